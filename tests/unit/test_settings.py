"""Where settings come from, and what wins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs_pages import page, rows, sections
from traceplane.errors import InvalidInput
from traceplane.settings import (
    CELERY_BROKER,
    UNPREFIXED,
    Settings,
    load,
    user_token,
    with_celery_broker,
    with_unprefixed,
)

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


def test_settings_that_others_may_write_are_refused_unless_chosen_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "traceplane.toml"
    file.write_text('org = "ours"\n')
    file.chmod(0o646)
    with pytest.raises(InvalidInput, match="others can write") as refused:
        load(environment={})
    assert (refused.value.code, refused.value.value) == ("settings.untrusted_file", file)
    for chosen in (load(file, environment={}), load(environment={"TRACEPLANE_CONFIG": str(file)})):
        assert chosen.org == "ours"
    file.chmod(0o664)  # as umask 002 leaves it, for users with a group of their own
    os.chown(file, -1, os.getegid())
    assert load(environment={}).org == "ours"


EVIL = "http://collector.example:80"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "tokens").mkdir(parents=True)
    (home / "tokens/user").write_text("secret\n")
    (home / "running").write_text('{"pid": 1, "url": "https://ours.example"}')
    return home


@pytest.mark.parametrize(
    "toml",
    [
        "",
        'host = "0.0.0.0"',
        'gateway_url = "http://localhost:8461"',
        'gateway_url = "http://[::1]:8461"',
        'gateway_url = "https://ours.example"',
        'gateway_url = "https://ours.example/"',
        f'gateway_url = "{EVIL}"\nuser_token = "secret"',
    ],
)
def test_a_token_is_sent_to_this_machine_and_to_the_platform_that_issued_it(
    tmp_path: Path, home: Path, toml: str
) -> None:
    (tmp_path / "traceplane.toml").write_text(toml)
    settings = load(tmp_path / "traceplane.toml", environment={}, home=home)
    assert user_token(settings, environment={}) == "secret"


@pytest.mark.parametrize(
    "toml",
    [
        f'gateway_url = "{EVIL}"',
        'host = "collector.example"',
        'gateway_url = "http://localhost@collector.example"',
        'gateway_url = "http://127.0.0.1.collector.example"',
        'gateway_url = "http://collector.example\\\\@localhost"',
        'gateway_url = "http://ours.example"',
    ],
)
def test_a_settings_file_cannot_send_a_token_of_the_home_elsewhere(
    tmp_path: Path, home: Path, toml: str
) -> None:
    (tmp_path / "traceplane.toml").write_text(toml)
    settings = load(tmp_path / "traceplane.toml", environment={}, home=home)
    with pytest.raises(InvalidInput, match="user token") as refused:
        user_token(settings, environment={})
    assert refused.value.code == "cli.token_withheld"
    assert "TRACEPLANE_GATEWAY_URL" in str(refused.value.next_step)


def test_an_address_of_the_environment_gets_the_token(home: Path) -> None:
    for environment in ({"TRACEPLANE_GATEWAY_URL": EVIL}, {"TRACEPLANE_HOST": "10.1.2.3"}):
        assert user_token(load(environment=environment, home=home), environment=environment) == "secret"


def test_a_home_cannot_pass_the_token_of_another_one_to_its_own_address(tmp_path: Path, home: Path) -> None:
    """A cloned repository may bring a `.traceplane` with links."""
    planted = tmp_path / ".traceplane"
    planted.mkdir()
    (planted / "tokens").symlink_to(home / "tokens")
    (planted / "running").write_text(f'{{"pid": 1, "url": "{EVIL}"}}')
    (tmp_path / "traceplane.toml").write_text(f'gateway_url = "{EVIL}"')
    settings = load(tmp_path / "traceplane.toml", environment={}, home=planted)
    with pytest.raises(InvalidInput, match="user token"):
        user_token(settings, environment={})


@pytest.mark.parametrize("name", ["HOME", "OBJECT_CACHE", "MASTER_KEY_FILE", "OBJECT_STORE", "CONFIG"])
def test_an_empty_path_is_not_the_current_folder(name: str) -> None:
    with pytest.raises(InvalidInput, match="empty") as refused:
        load(environment={f"TRACEPLANE_{name}": ""})
    assert name.lower() in str(refused.value)
    assert refused.value.next_step is not None
    with pytest.raises(InvalidInput, match="empty"):
        load(environment={}, home="")


def test_an_invalid_setting_is_named_with_its_value(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        load(environment={"TRACEPLANE_GATEWAY_PORT": "high"})
    assert (refused.value.value, refused.value.next_step) == ("high", "see docs/reference/settings.md")
    file = tmp_path / "bad.toml"
    file.write_text("kafka_sasl_password = 271828")
    with pytest.raises(InvalidInput) as refused:
        load(file, environment={})
    assert "271828" not in str(refused.value), "it is a secret"
    file.write_text("home = ")
    with pytest.raises(InvalidInput) as refused:
        load(file, environment={})
    assert refused.value.value == str(file)
    assert refused.value.next_step is not None


def test_what_spark_on_s3_needs_belongs_together() -> None:
    bucket = {"TRACEPLANE_OBJECT_STORE": "s3://my-bucket/p"}
    role = {"TRACEPLANE_S3_TASK_ROLE": "arn:aws:iam::1:role/tasks"}
    for environment, named in (
        (role, "the object store is not in S3"),
        ({**bucket, "TRACEPLANE_S3_RENEWAL_ADDRESS": "10.0.0.5:7480"}, "there is no s3_task_role"),
        ({**bucket, **role, "TRACEPLANE_S3_RENEWAL_ADDRESS": "http://10.0.0.5:7480"}, "without a scheme"),
        ({**bucket, **role, "TRACEPLANE_S3_TASK_SECONDS": "60"}, "as STS has it"),
        ({"TRACEPLANE_SPARK_CONF": "spark.hadoop.fs.s3a.access.key=x"}, "keep tasks apart"),
        ({"TRACEPLANE_SPARK_MASTER": "k8s://https://kubernetes.default.svc"}, "standalone cluster"),
        ({"TRACEPLANE_SPARK_MASTER": "yarn"}, "standalone cluster"),
        ({"TRACEPLANE_SPARK_UI_URL": "spark-history:18080"}, "address of a page"),
    ):
        with pytest.raises(InvalidInput, match=named):
            load(environment=environment)
    found = load(environment={**bucket, **role, "TRACEPLANE_S3_RENEWAL_ADDRESS": "10.0.0.5:7480"})
    assert found.s3_renewals == ("10.0.0.5", 7480)


def test_a_store_of_secrets_has_what_it_needs() -> None:
    for environment, named in (
        ({"TRACEPLANE_SECRET_STORE": "files"}, "secret_folder"),
        ({"TRACEPLANE_SECRET_STORE": "vault"}, "secret_store"),
        ({"TRACEPLANE_SECRET_ENVIRONMENT": "a/b"}, "secret_environment"),
    ):
        with pytest.raises(InvalidInput, match=named):
            load(environment=environment)
    files = {"TRACEPLANE_SECRET_STORE": "files", "TRACEPLANE_SECRET_FOLDER": "/run/secrets"}
    assert load(environment=files).secret_folder == Path("/run/secrets")
