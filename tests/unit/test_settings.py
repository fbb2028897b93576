"""Where settings come from, and what wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_docs import page, rows, sections
from traceplane.errors import InvalidInput
from traceplane.settings import CELERY_BROKER, UNPREFIXED, Settings, load, with_celery_broker, with_unprefixed

GUIDE = {
    "SERVICE_NAME": "trigger-dispatcher",
    "LOG_LEVEL": "INFO",
    "KAFKA_BOOTSTRAP_SERVERS": "kafka:9092",
    "KAFKA_SIGNAL_TOPIC": "trading-signals",
    "KAFKA_CONSUMER_GROUP": "desk",
    "KAFKA_AUTO_OFFSET_RESET": "earliest",
    "BATCH_SIZE": "20",
    "BATCH_TIMEOUT_SECONDS": "0.5",
    "CACHE_REFRESH_INTERVAL_SECONDS": "30",
    "POSTGRES_USER": "dev",
    "POSTGRES_PASSWORD": "d:v",
    "POSTGRES_HOST": "postgres",
    "POSTGRES_PORT": "5432",
    "POSTGRES_DB": "trading_platform",
    "CELERY_BROKER_URL": "redis://redis:6379/0",
    "CELERY_RESULT_BACKEND": "redis://redis:6379/0",
}
"""The environment of a trigger, as its guide has it."""


def test_a_trigger_reads_the_environment_of_its_guide() -> None:
    found = with_unprefixed(load(environment=GUIDE), GUIDE)
    url = "postgresql://dev:d%3Av@postgres:5432/trading_platform"
    assert found == Settings(
        service_name="trigger-dispatcher",
        log_level="info",
        kafka_bootstrap_servers="kafka:9092",
        kafka_consumer_group="desk",
        kafka_auto_offset_reset="earliest",
        batch_size=20,
        batch_timeout_seconds=0.5,
        cache_refresh_interval_seconds=30.0,
        state_url=url,
        celery_broker_url="redis://redis:6379/0",
    )


def test_prefixed_names_win_and_empty_values_count_as_unset() -> None:
    given = GUIDE | {
        "TRACEPLANE_CELERY_BROKER_URL": "redis://ours/1",
        "TRACEPLANE_SERVICE_NAME": "ours",
        "TRACEPLANE_STATE_URL": "postgresql://ours",
        "KAFKA_BOOTSTRAP_SERVERS": "",
    }
    found = with_unprefixed(load(environment=given), given)
    assert (found.celery_broker_url, found.service_name) == ("redis://ours/1", "ours")
    assert (found.state_url, found.kafka_bootstrap_servers) == ("postgresql://ours", None)


def test_other_processes_read_no_such_name_but_celerys_broker_where_nothing_else_names_it(
    tmp_path: Path,
) -> None:
    assert load(environment=GUIDE) == Settings()
    assert with_celery_broker(Settings(), GUIDE) == Settings(celery_broker_url="redis://redis:6379/0")
    assert with_celery_broker(Settings(), {"CELERY_BROKER_URL": ""}) == Settings()
    (tmp_path / "ours.toml").write_text('celery_broker_url = "redis://ours/1"')
    chosen = load(tmp_path / "ours.toml", environment=GUIDE)
    assert with_celery_broker(chosen, GUIDE).celery_broker_url == "redis://ours/1"


def test_a_wrong_value_is_refused_under_any_name() -> None:
    with pytest.raises(InvalidInput, match="batch_size must be greater than zero"):
        with_unprefixed(Settings(), {"BATCH_SIZE": "0"})
    with pytest.raises(InvalidInput, match="`batch_timeout_seconds` must be a number, not text"):
        with_unprefixed(Settings(), {"BATCH_TIMEOUT_SECONDS": "soon"})


def test_every_name_without_the_prefix_is_documented() -> None:
    documented = rows(sections(page("concepts/trigger.md"), level=2)["Settings"])
    assert documented.keys() >= {*UNPREFIXED, CELERY_BROKER, *GUIDE}


def test_a_setting_of_older_versions_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "traceplane.toml"
    file.write_text('data_url = "postgresql://data"\norg = "ours"\n')
    settings = load(file, environment={"TRACEPLANE_DATA_URL": "postgresql://data"})
    assert settings == Settings(config=file, org="ours")
