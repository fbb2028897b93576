"""What a DAG file means: every field reaches the model, and the reference page has it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.dag_texts import DAYS, FULL, HEAD, SOURCE, job, parse
from traceplane.errors import SpecInvalid
from traceplane.model.dag import (
    Activation,
    CatchUpPolicy,
    Column,
    Dataset,
    ExecutionSettings,
    ExecutionStrategy,
    Input,
    Job,
    Output,
    Period,
    Priority,
    ScalingMode,
    Source,
    SourceCatchUp,
    SourceKind,
    Storage,
    UpdateStrategy,
    WriteMode,
)
from traceplane.model.partitions import By, Partitions
from traceplane.registry.spec import dag_file, fields, normalized


def test_jobs_are_ordered_upstream_first_then_in_file_order() -> None:
    names = [job.name for job in parse(FULL).jobs]
    assert names == ["ingest", "transfers", "alerts", "daily__batch", "daily", "nightly"]


def test_every_field_reaches_the_model() -> None:
    assert job(parse(FULL), "transfers") == Job(
        name="transfers",
        activation=Activation.REACTIVE,
        runtime="spark",
        operator="pyspark",
        config={},
        inputs=(Input("logs", "chain.logs"), Input("market.prices", "market.prices")),
        outputs=(Output("chain.transfers", "chain.transfers"),),
        execution_strategy=ExecutionStrategy.PER_UPDATE,
        update_strategy=UpdateStrategy.APPEND,
        unique_key=("tx_hash", "log_index"),
        execution=ExecutionSettings(
            scaling_mode=ScalingMode.BACKFILL,
            max_concurrency=8,
            max_queue_depth=1000,
            max_queue_age_seconds=300.0,
            timeout_seconds=90.0,
            lease_seconds=0.5,
            max_attempts=3,
            retry_base_seconds=1.5,
            retry_max_seconds=7200.0,
        ),
    )


def test_defaults_apply_to_every_job_that_does_not_override_them() -> None:
    dag = parse(FULL)
    assert job(dag, "alerts").execution == ExecutionSettings(
        timeout_seconds=600.0, max_concurrency=8, max_attempts=7
    )
    assert job(dag, "transfers").execution.timeout_seconds == 90.0


def test_datasets_are_declared_or_implied_and_those_of_others_are_external() -> None:
    dag = parse(FULL)
    assert dag.datasets == (
        Dataset("chain.daily", columns=(Column("amount", "decimal(38, 0)"),)),
        Dataset(
            "chain.logs",
            Storage.POSTGRES,
            WriteMode.DIRECT,
            (Column("block_number", "bigint", nullable=False, pii=True),),
            "Raw logs",
            "block_number",
        ),
        Dataset("chain.ticks", partitions=Partitions(By.HOUR)),
        Dataset(
            "chain.transfers",
            Storage.POSTGRES,
            WriteMode.BUFFERED,
            (
                Column("block_number", "bigint"),
                Column("token", "string"),
                Column("chain", "int"),
                Column("final", "boolean"),
            ),
            position="block_number",
            unique_key=("block_number", "token"),
            indexes=(("chain",),),
        ),
        Dataset("chain.transfers#daily.batches"),
    )
    assert dag.external_datasets == ("market.prices",)


def test_config_is_kept_as_written_and_an_unquoted_address_stays_text() -> None:
    assert job(parse(FULL), "ingest").config == {
        "address": "0xdAC17F958D2ee523a2206206994597C13D831ec7",
        "since": "2024-01-01",
        "depth": 12,
        "on": ["a", None, 1.5],
    }


def test_where_keeps_its_scalars() -> None:
    (read,) = job(parse(FULL), "alerts").inputs
    assert read == Input("large", "chain.transfers", {"token": "usdt", "chain": 1, "final": True})


def test_a_source_that_only_relays_runs_in_the_dispatcher() -> None:
    nightly = job(parse(FULL), "nightly")
    assert (nightly.runtime, nightly.operator) == ("dispatcher", "source")
    assert nightly.source == Source(SourceKind.CRON, "*/5 0-6 1,15 * 1-5")
    text = HEAD + SOURCE.replace("name: a,", "name: a, operator: poll,").replace("manual", "always_on")
    assert parse(text).jobs[0].runtime == "spark"
    text = HEAD + SOURCE.replace("name: a,", "name: a, runtime: dispatcher,")
    assert parse(text).jobs[0].operator == "source"


def test_the_default_runtime_is_spark_where_there_is_one() -> None:
    text = HEAD + "- {name: a, operator: f, inputs: [{from: {dataset: x}}]}\n"
    assert dag_file.parse(text, "f", known_runtimes=frozenset({"spark"})).jobs[0].runtime == "spark"
    assert dag_file.parse(text, "f", known_runtimes=frozenset({"python"})).jobs[0].runtime == "python"
    with pytest.raises(SpecInvalid, match=r"f:4:3: spec\.unknown_runtime"):
        dag_file.parse(text, "f", known_runtimes=frozenset({"lambda"}))


def test_bulk_becomes_an_aggregator_in_front_of_the_job() -> None:
    dag = parse(FULL)
    made, daily = job(dag, "daily__batch"), job(dag, "daily")
    assert (made.runtime, made.operator, made.generated_for) == ("dispatcher", "aggregator", "daily")
    assert made.config == {"size": 100, "source_dataset": "chain.transfers"}
    assert made.inputs == (Input("chain.transfers", "chain.transfers"),)
    assert made.outputs == (Output("batches", "chain.transfers#daily.batches"),)
    assert daily.execution_strategy == ExecutionStrategy.PER_PARTITION
    assert daily.inputs == (Input("chain.transfers", "chain.transfers#daily.batches"),)
    assert daily.generated_for is None


def test_an_aggregator_takes_the_jobs_priority_and_never_its_thresholds() -> None:
    dag = parse(FULL)
    assert job(dag, "daily").execution.max_queue_depth == 10
    assert job(dag, "daily__batch").execution == ExecutionSettings(
        priority=Priority.BACKFILL, timeout_seconds=600.0, max_attempts=7
    )


def test_bulk_with_several_inputs_has_one_aggregator_for_each_dataset() -> None:
    text = HEAD + (
        "- name: join\n"
        "  operator: sql\n"
        "  execution_strategy: Bulk\n"
        "  batch: {size: 5}\n"
        "  when: any\n"
        "  inputs:\n"
        "  - {from: {dataset: a.b}, where: {k: 1}}\n"
        "  - {name: right, from: {dataset: c}}\n"
        "  - {name: again, from: {dataset: c}, where: {k: 2}}\n"
    )
    dag = parse(text)
    assert [job.name for job in dag.jobs] == ["join__batch_a_b", "join__batch_again", "join"]
    assert job(dag, "join").inputs == (
        Input("a.b", "a.b#join.batches", {"k": 1}),
        Input("right", "c#join.batches"),
        Input("again", "c#join.batches", {"k": 2}),
    )
    assert dag.external_datasets == ("a.b", "c")


def test_anchors_aliases_and_merge_keys_are_followed() -> None:
    text = (
        "version: 1\n"
        "dag: d\n"
        "jobs:\n"
        "- &first\n"
        "  name: a\n"
        "  operator: f\n"
        "  timeout: &long 2h\n"
        "  inputs: &in [{from: {dataset: x}}]\n"
        "- <<: *first\n"
        "  name: b\n"
        "- {name: c, operator: g, lease: *long, inputs: *in}\n"
    )
    dag = parse(text)
    assert [(job.name, job.operator) for job in dag.jobs] == [("a", "f"), ("b", "f"), ("c", "g")]
    assert job(dag, "b").execution.timeout_seconds == job(dag, "c").execution.lease_seconds == 7200.0


def test_a_merge_key_counts_in_from_as_anywhere() -> None:
    text = HEAD + (
        "- {name: a, activation: source, source: {kind: manual}, outputs: [{dataset: x}, {dataset: y}]}\n"
        "- {name: b, operator: f, when: any, inputs: [{from: &f {job: a, output: x}}, {from: {<<: *f, output: y}}]}\n"
    )
    assert job(parse(text), "b").inputs == (Input("x", "x"), Input("y", "y"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86400), ("45", 45), ("0.25", 0.25)],
)
def test_durations(text: str, seconds: float) -> None:
    dag = parse(f"version: 1\ndag: d\ndefaults: {{timeout: {text}}}\njobs:\n{SOURCE}")
    assert dag.jobs[0].execution.timeout_seconds == seconds


@pytest.mark.parametrize("schedule", ["* * * * *", "0 0 1 1 0", "59 23 31 12 7", "*/15 1-5/2 1,2,3-9 * 1-5"])
def test_valid_schedules_are_accepted(schedule: str) -> None:
    dag = parse(DAYS + SOURCE.replace("kind: manual", f"kind: cron, schedule: '{schedule}'"))
    assert dag.jobs[0].source == Source(SourceKind.CRON, schedule)


def test_a_cron_source_says_when_it_fires_and_what_of_the_missed_ticks() -> None:
    fields = "kind: cron, schedule: '0 6 * * *', time_zone: Europe/Berlin, jitter: 2m, period: previous"
    catch_up = {
        "all": SourceCatchUp(CatchUpPolicy.ALL),
        "{policy: none, most: 3}": SourceCatchUp(CatchUpPolicy.NONE, 3),
    }
    for text, expected in catch_up.items():
        dag = parse(DAYS + SOURCE.replace("kind: manual", f"{fields}, catch_up: {text}"))
        assert dag.jobs[0].source == Source(
            SourceKind.CRON, "0 6 * * *", "Europe/Berlin", expected, 120.0, Period.PREVIOUS
        )
        assert normalized.load(json.loads(json.dumps(normalized.dump(dag)))) == dag


def test_queue_thresholds_are_allowed_on_an_aggregator() -> None:
    text = HEAD + (
        "- {name: b, runtime: dispatcher, operator: aggregator, config: {size: 3}, max_queue_depth: 9,\n"
        "   max_queue_age: 1m, inputs: [{from: {dataset: x}}], outputs: [{dataset: y}]}\n"
    )
    assert parse(text).jobs[0].execution.max_queue_depth == 9


# ── the reference page ───────────────────────────────────────────────────────────────────────────────

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "dag.md"


def test_every_field_is_documented() -> None:
    page = PAGE.read_text()
    missing = [
        f"{place}.{name}"
        for place, names in fields.FIELDS.items()
        for name in names
        if f"`{name}`" not in page
    ]
    assert not missing


def test_every_problem_code_is_documented() -> None:
    files = Path(dag_file.__file__).parent.glob("*.py")
    codes = {code for file in files for code in re.findall(r'"(spec\.\w+)"', file.read_text())}
    assert codes
    assert {code for code in codes if f"`{code}`" not in PAGE.read_text()} == set()


def test_the_example_on_the_page_is_valid() -> None:
    for text in re.findall(r"```yaml\n(version: 1\n.*?)```", PAGE.read_text(), re.DOTALL):
        assert parse(text).jobs
