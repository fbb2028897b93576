"""A DAG file becomes a Dag, or every problem in it is reported with its location."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from traceplane.errors import NotFound, SpecInvalid, SpecProblem
from traceplane.model.dag import (
    Activation,
    Column,
    Dag,
    Dataset,
    ExecutionSettings,
    ExecutionStrategy,
    Input,
    Job,
    Output,
    Priority,
    ScalingMode,
    Source,
    SourceKind,
    Storage,
    UpdateStrategy,
    WriteMode,
)
from traceplane.registry.spec import dag_file, fields, normalized, yaml_reader

RUNTIMES = frozenset({"spark", "python", "dispatcher", "lambda"})

FULL = """\
version: 1
dag: chain
description: Transfers of a chain
datasets:
  chain.logs:
    storage: postgres
    write_mode: direct
    description: Raw logs
    position: block_number
    columns: [{name: block_number, type: bigint, nullable: false, pii: true}]
  chain.transfers:
    storage: postgres
  chain.daily:
    columns:
    - {name: amount, type: 'decimal(38, 0)'}
defaults:
  timeout: 10m
  scaling: {max_concurrency: 8}
  max_attempts: 7
jobs:
- name: alerts
  operator: alert_evaluate
  inputs: [{name: large, from: {job: transfers}, where: {token: usdt, chain: 1, final: true}}]
- name: daily
  description: Once a day
  operator: sql
  execution_strategy: Bulk
  batch: {size: 100}
  max_queue_depth: 10
  priority: backfill
  inputs: [{from: {job: transfers}}]
  outputs: [{dataset: chain.daily}]
- name: ingest
  activation: source
  source: {kind: always_on}
  runtime: python
  operator: block_follower
  config: {address: 0xdAC17F958D2ee523a2206206994597C13D831ec7, since: 2024-01-01, depth: 12, on: [a, ~, 1.5]}
  outputs: [{name: logs, dataset: chain.logs}]
- name: transfers
  inputs: [{from: {job: ingest, output: logs}}, {from: {dataset: market.prices}}]
  operator: pyspark
  outputs: [{dataset: chain.transfers}]
  execution_strategy: PerPartition
  update_strategy: append
  unique_key: [tx_hash, log_index]
  scaling: {mode: backfill}
  max_queue_depth: 1000
  max_queue_age: 5m
  timeout: 90
  lease: 500ms
  max_attempts: 3
  retry: {base: 1.5s, max: 2h}
- name: nightly
  activation: source
  source: {kind: cron, schedule: '*/5 0-6 1,15 * 1-5'}
  outputs: [{dataset: chain.ticks}]
"""

HEAD = "version: 1\ndag: d\njobs:\n"
SOURCE = "- {name: a, activation: source, source: {kind: manual}, outputs: [{dataset: x}]}\n"


def parse(text: str) -> Dag:
    return dag_file.parse(text, "dag.yaml", known_runtimes=RUNTIMES)


def problems_of(text: str) -> tuple[SpecProblem, ...]:
    with pytest.raises(SpecInvalid) as caught:
        parse(text)
    return caught.value.problems


def job(dag: Dag, name: str) -> Job:
    return next(job for job in dag.jobs if job.name == name)


# ── what a good file means ───────────────────────────────────────────────────────────────────────────


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
        execution_strategy=ExecutionStrategy.PER_PARTITION,
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
        Dataset("chain.ticks"),
        Dataset("chain.transfers", Storage.POSTGRES, WriteMode.BUFFERED),
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
        "- {name: b, operator: f, inputs: [{from: &f {job: a, output: x}}, {from: {<<: *f, output: y}}]}\n"
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
    dag = parse(HEAD + SOURCE.replace("kind: manual", f"kind: cron, schedule: '{schedule}'"))
    assert dag.jobs[0].source == Source(SourceKind.CRON, schedule)


def test_queue_thresholds_are_allowed_on_an_aggregator() -> None:
    text = HEAD + (
        "- {name: b, runtime: dispatcher, operator: aggregator, config: {size: 3}, max_queue_depth: 9,\n"
        "   max_queue_age: 1m, inputs: [{from: {dataset: x}}], outputs: [{dataset: y}]}\n"
    )
    assert parse(text).jobs[0].execution.max_queue_depth == 9


# ── what is wrong with a bad one, and where: » stands before the offending node ──────────────────────

INPUTS = "- {name: j, operator: f, inputs: ["
JOB = INPUTS + "{from: {dataset: i}}], "
DATASETS = "version: 1\ndag: d\ndatasets: "
TRADES = (
    DATASETS
    + "{x: {columns: [{name: ticker, type: string}, {name: qty, type: bigint}, {name: price, type: double}]}}\n"
    + "jobs:\n"
    + SOURCE
)
HOT = "{x: {storage: postgres, write_mode: direct, "
SCHEDULES = (
    *("", "@daily", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *"),
    *("* * * * 8", "5-1 * * * *", "*/0 * * * *", "5/0 * * * *", "1,,2 * * * *", "-1 * * * *", "* * * janu *"),
)
BROKEN = {
    # the text itself
    "empty": ("spec.empty", "»"),
    "only a comment": ("spec.empty", "»# nothing\n"),
    "null": ("spec.empty", "»---\n...\n"),
    "a list": ("spec.wrong_type", "»- 1\n"),
    "a word": ("spec.wrong_type", "»hello"),
    "bad syntax": ("spec.syntax", "version: 1\ndag: »@x\n"),
    "unclosed": ("spec.syntax", "version: 1\njobs: [a, b\n»"),
    "control character": ("spec.syntax", "version: 1\ndag: é»\x07\n"),
    "two documents": ("spec.syntax", HEAD + SOURCE + "»---\na: 1\n"),
    "unknown alias": ("spec.syntax", "version: 1\ndag: »*x\n"),
    "lone surrogate": ("spec.syntax", "»dag: \ud800\n"),
    "surrogate in a tag": ("spec.syntax", "»dag: !<tag%ED%A0%80> x\n"),
    "recursive alias": ("spec.recursive_alias", "version: 1\ndag: d\njobs: &a [»*a]\n"),
    "too deep": ("spec.too_deep", "version: " + "[" * 62 + "»" + "[" * 40),
    "duplicate key": ("spec.duplicate_key", "version: 1\ndag: d\n»dag: e\njobs:\n" + SOURCE),
    "key that is not text": ("spec.wrong_type", "version: 1\ndag: d\n»1: x\njobs:\n" + SOURCE),
    "key that is a list": ("spec.wrong_type", "version: 1\ndag: d\n? »[a]\n: x\njobs:\n" + SOURCE),
    "merge of a scalar": (
        "spec.wrong_type",
        HEAD + "- {<<: »1, name: j, operator: f, inputs: [{from: {dataset: i}}]}\n",
    ),
    # the file
    "no version": ("spec.missing_field", "»dag: d\njobs:\n" + SOURCE),
    "version 2": ("spec.unsupported_version", "version: »2\ndag: d\njobs:\n" + SOURCE),
    "version text": ("spec.wrong_type", "version: »'1'\ndag: d\njobs:\n" + SOURCE),
    "version true": ("spec.wrong_type", "version: »true\ndag: d\njobs:\n" + SOURCE),
    "no dag": ("spec.missing_field", "»version: 1\njobs:\n" + SOURCE),
    "no jobs": ("spec.missing_field", "»version: 1\ndag: d\n"),
    "empty jobs": ("spec.no_jobs", "version: 1\ndag: d\njobs: »[]\n"),
    "blank jobs": ("spec.wrong_type", "version: 1\ndag: d\njobs:»\n"),
    "dag name with capitals": ("spec.bad_name", "version: 1\ndag: »Chain\njobs:\n" + SOURCE),
    "dag name too long": ("spec.bad_name", f"version: 1\ndag: »{'a' * 64}\njobs:\n" + SOURCE),
    "dag name a number": ("spec.wrong_type", "version: 1\ndag: »12\njobs:\n" + SOURCE),
    "unknown field of the file": ("spec.unknown_field", "version: 1\ndag: d\n»job: []\njobs:\n" + SOURCE),
    "description a list": ("spec.wrong_type", "version: 1\ndag: d\ndescription: »[a]\njobs:\n" + SOURCE),
    "NUL in text": ("spec.bad_text", 'version: 1\ndag: d\ndescription: »"a\\0b"\njobs:\n' + SOURCE),
    "defaults with a job field": (
        "spec.unknown_field",
        "version: 1\ndag: d\ndefaults: {»runtime: python}\njobs:\n" + SOURCE,
    ),
    # datasets
    "dataset nobody produces": (
        "spec.unproduced_dataset",
        "version: 1\ndag: d\ndatasets:\n  »xx: {}\njobs:\n" + SOURCE,
    ),
    "blank dataset": ("spec.wrong_type", DATASETS + "{x: »}\njobs:\n" + SOURCE),
    "dataset id with a space": ("spec.bad_name", HEAD + JOB + "outputs: [{dataset: »'a b'}]}\n"),
    "dataset id with #": ("spec.bad_name", HEAD + JOB + "outputs: [{dataset: »'a#b'}]}\n"),
    "storage unknown": (
        "spec.unknown_value",
        DATASETS + "{x: {storage: »postgre}}\njobs:\n" + SOURCE,
    ),
    "write_mode on parquet": (
        "spec.write_mode_needs_postgres",
        DATASETS + "{x: {storage: parquet, write_mode: »direct}}\njobs:\n" + SOURCE,
    ),
    "write_mode on the default": (
        "spec.write_mode_needs_postgres",
        DATASETS + "{x: {write_mode: »direct}}\njobs:\n" + SOURCE,
    ),
    "hot table without columns": (
        "spec.hot_needs_position",
        DATASETS + "{x: »{storage: postgres, write_mode: direct}}\njobs:\n" + SOURCE,
    ),
    "position that is text": (
        "spec.bad_position",
        DATASETS
        + HOT
        + "position: »b, columns: [{name: a, type: bigint}, {name: b, type: string}]}}\njobs:\n"
        + SOURCE,
    ),
    "position that is not there": (
        "spec.unknown_column",
        DATASETS + HOT + "position: »c, columns: [{name: a, type: bigint}]}}\njobs:\n" + SOURCE,
    ),
    "position of files that is text": (
        "spec.bad_position",
        DATASETS
        + "{x: {position: »b, columns: [{name: a, type: bigint}, {name: b, type: string}]}}\njobs:\n"
        + SOURCE,
    ),
    "position of files that is not there": (
        "spec.unknown_column",
        DATASETS + "{x: {position: »dayy, columns: [{name: day, type: int}]}}\njobs:\n" + SOURCE,
    ),
    "column of no type": (
        "spec.unknown_type",
        DATASETS + "{x: {columns: [{name: a, type: »bigintt}]}}\njobs:\n" + SOURCE,
    ),
    "hot column of another type": (
        "spec.hot_type_unsupported",
        DATASETS
        + HOT
        + "position: a, columns: [{name: a, type: bigint}, {name: b, type: »'map<int, int>'}]}}\njobs:\n"
        + SOURCE,
    ),
    "hot column that Postgres has": (
        "spec.bad_name",
        DATASETS
        + HOT
        + "position: a, columns: [{name: a, type: bigint}, {name: »ctid, type: int}]}}\njobs:\n"
        + SOURCE,
    ),
    "input reads what is not there": (
        "spec.unknown_column",
        DATASETS
        + "{x: {columns: [{name: a, type: bigint}]}}\njobs:\n"
        + SOURCE
        + "- {name: r, operator: o, inputs: [{from: {dataset: x}, columns: [a, »b]}]}\n",
    ),
    "where on a column that is not there": (
        "spec.unknown_column",
        TRADES + "- {name: r, operator: o, inputs: [{from: {dataset: x}, where: {qty: 1, »tiker: AAPL}}]}\n",
    ),
    "where compares a number with text": (
        "spec.wrong_type",
        TRADES + "- {name: r, operator: o, inputs: [{from: {dataset: x}, where: {qty: »AAPL}}]}\n",
    ),
    "where compares text with a number": (
        "spec.wrong_type",
        TRADES + "- {name: r, operator: o, inputs: [{from: {dataset: x}, where: {ticker: »7}}]}\n",
    ),
    "where compares a number with true": (
        "spec.wrong_type",
        TRADES + "- {name: r, operator: o, inputs: [{from: {dataset: x}, where: {price: »true}}]}\n",
    ),
    "virtual dataset names a column that is not there": (
        "sql.unknown_column",
        TRADES.replace("{x:", "{v: {storage: virtual, sql: »select tiker from x}, x:"),
    ),
    "virtual dataset names a column of an alias that is not there": (
        "sql.unknown_column",
        TRADES.replace("{x:", "{v: {storage: virtual, sql: »select t.tiker from x t}, x:"),
    ),
    "column without a type": (
        "spec.missing_field",
        DATASETS + "{x: {columns: [»{name: a}]}}\njobs:\n" + SOURCE,
    ),
    "column twice": (
        "spec.duplicate_name",
        DATASETS + "{x: {columns: [{name: a, type: string}, {name: »a, type: string}]}}\njobs:\n" + SOURCE,
    ),
    "column nullable text": (
        "spec.wrong_type",
        DATASETS + "{x: {columns: [{name: a, type: string, nullable: »yes}]}}\njobs:\n" + SOURCE,
    ),
    "two producers": ("spec.two_producers", HEAD + SOURCE + JOB + "outputs: [{dataset: »x}]}\n"),
    "two outputs of one dataset": (
        "spec.two_producers",
        HEAD + JOB + "outputs: [{name: a, dataset: x}, {name: b, dataset: »x}]}\n",
    ),
    # jobs
    "job not a map": ("spec.wrong_type", HEAD + SOURCE + "- »x\n"),
    "job without a name": ("spec.missing_field", HEAD + "- »{operator: f, inputs: [{from: {dataset: x}}]}\n"),
    "job twice": ("spec.duplicate_name", HEAD + SOURCE + JOB.replace("name: j", "name: »a") + "}\n"),
    "job twice by alias": (
        "spec.duplicate_name",
        HEAD + "- &j {name: »j, operator: f, inputs: [{from: {dataset: i}}]}\n- *j\n",
    ),
    "unknown field of a job": ("spec.unknown_field", HEAD + JOB + "»time_out: 5m}\n"),
    "no operator": ("spec.missing_field", HEAD + "- »{name: j, inputs: [{from: {dataset: x}}]}\n"),
    "no operator for a runtime": (
        "spec.missing_field",
        HEAD + SOURCE.replace("- {name: a,", "- »{name: a, runtime: python,").replace("manual", "always_on"),
    ),
    "always_on without an operator": (
        "spec.missing_field",
        HEAD + SOURCE.replace("- {", "- »{").replace("manual", "always_on"),
    ),
    "unknown runtime": ("spec.unknown_runtime", HEAD + JOB + "runtime: »pyton}\n"),
    "unknown runtime of a source": (
        "spec.unknown_runtime",
        HEAD
        + SOURCE.replace("name: a,", "name: a, operator: f, runtime: »dispatchr,").replace(
            "manual", "always_on"
        ),
    ),
    "unknown activation": ("spec.unknown_value", HEAD + JOB + "activation: »sourc}\n"),
    "unknown strategy": ("spec.unknown_value", HEAD + JOB + "execution_strategy: »bulk, batch: {size: 1}}\n"),
    "config a list": ("spec.wrong_type", HEAD + JOB + "config: »[]}\n"),
    "config with a duplicate key": ("spec.duplicate_key", HEAD + JOB + "config: {a: {b: 1, »b: 2}}}\n"),
    "config with a number as key": ("spec.wrong_type", HEAD + JOB + "config: {a: {»1: 2}}}\n"),
    "config with a tag": ("spec.unsupported_tag", HEAD + JOB + "config: {a: »!!binary aGk=}}\n"),
    "config with python": (
        "spec.unsupported_tag",
        HEAD + JOB + "config: {a: »!!python/name:os.system ''}}\n",
    ),
    "config with an endless float": ("spec.out_of_range", HEAD + JOB + "config: {a: »1e999}}\n"),
    "config with an endless integer": ("spec.wrong_type", HEAD + JOB + f"config: {{a: »{'9' * 5000}}}}}\n"),
    "config with a false tag": ("spec.wrong_type", HEAD + JOB + "config: {a: »!!int abc}}\n"),
    "append without unique_key": ("spec.append_needs_unique_key", HEAD + JOB + "update_strategy: »append}\n"),
    "append with an empty unique_key": (
        "spec.append_needs_unique_key",
        HEAD + JOB + "update_strategy: »append, unique_key: []}\n",
    ),
    "unique_key text": ("spec.wrong_type", HEAD + JOB + "update_strategy: append, unique_key: »a}\n"),
    "unique_key with a list": ("spec.wrong_type", HEAD + JOB + "unique_key: [»[a], b]}\n"),
    "unique_key twice the same": ("spec.duplicate_name", HEAD + JOB + "unique_key: [a, »a]}\n"),
    # sources
    "source without kind": ("spec.missing_field", HEAD + SOURCE.replace("{kind: manual}", "»{}")),
    "source without source": (
        "spec.missing_field",
        HEAD + "- »{name: a, activation: source, outputs: [{dataset: x}]}\n",
    ),
    "source kind unknown": ("spec.unknown_value", HEAD + SOURCE.replace("manual", "»kron")),
    "source without outputs": (
        "spec.source_needs_outputs",
        HEAD + "- »{name: a, activation: source, source: {kind: manual}}\n",
    ),
    "source with empty outputs": (
        "spec.source_needs_outputs",
        HEAD + "- {name: a, activation: source, source: {kind: manual}, outputs: »[]}\n",
    ),
    "source with inputs": (
        "spec.source_has_inputs",
        HEAD + SOURCE.replace("name: a,", "name: a, inputs: »[{from: {dataset: y}}],"),
    ),
    "source on a reactive job": ("spec.source_needs_activation", HEAD + JOB + "source: »{kind: manual}}\n"),
    **{
        f"{kind} source with an operator": (
            "spec.source_runs_no_code",
            HEAD
            + SOURCE.replace("kind: manual", kind).replace(
                "name: a,", "name: a, runtime: python, operator: »f,"
            ),
        )
        for kind in ("kind: manual", "kind: webhook", "kind: cron, schedule: '* * * * *'")
    },
    "manual source with a runtime": (
        "spec.source_runs_no_code",
        HEAD + SOURCE.replace("name: a,", "name: a, runtime: »python,"),
    ),
    "cron without schedule": (
        "spec.cron_needs_schedule",
        HEAD + SOURCE.replace("{kind: manual", "»{kind: cron"),
    ),
    "schedule without cron": (
        "spec.schedule_needs_cron",
        HEAD + SOURCE.replace("{kind: manual", "»{kind: manual, schedule: '* * * * *'"),
    ),
    **{
        f"schedule {bad!r}": (
            "spec.bad_schedule",
            HEAD + SOURCE.replace("kind: manual", f"kind: cron, schedule: »'{bad}'"),
        )
        for bad in SCHEDULES
    },
    # inputs
    "reactive without inputs": ("spec.reactive_needs_inputs", HEAD + "- »{name: j, operator: f}\n"),
    "reactive with empty inputs": (
        "spec.reactive_needs_inputs",
        HEAD + "- {name: j, operator: f, inputs: »[]}\n",
    ),
    "input without from": ("spec.missing_field", HEAD + INPUTS + "»{name: x}]}\n"),
    "from of both kinds": (
        "spec.bad_from",
        HEAD + SOURCE + INPUTS + "{from: »{job: a, dataset: x}}]}\n",
    ),
    "from of neither": ("spec.bad_from", HEAD + INPUTS + "{from: »{}}]}\n"),
    "from with only an output": (
        "spec.bad_from",
        HEAD + INPUTS + "{from: »{output: x}}]}\n",
    ),
    "from with a typo": (
        "spec.unknown_field",
        HEAD + SOURCE + INPUTS + "{from: {»jobb: a}}]}\n",
    ),
    "unknown job": ("spec.unknown_job", HEAD + SOURCE + INPUTS + "{from: {job: »b}}]}\n"),
    "unknown output": (
        "spec.unknown_output",
        HEAD + SOURCE + INPUTS + "{from: {job: a, output: »y}}]}\n",
    ),
    "job without outputs": (
        "spec.unknown_output",
        HEAD + JOB + "}\n- {name: k, operator: f, inputs: [{from: »{job: j}}]}\n",
    ),
    "several outputs": (
        "spec.ambiguous_output",
        HEAD + JOB + "outputs: [{dataset: x}, {dataset: y}]}\n"
        "- {name: k, operator: f, inputs: [{from: »{job: j}}]}\n",
    ),
    "input twice": (
        "spec.duplicate_name",
        HEAD + INPUTS + "{from: {dataset: x}}, {from: »{dataset: x}}]}\n",
    ),
    "input name twice": (
        "spec.duplicate_name",
        HEAD + INPUTS + "{name: n, from: {dataset: x}}, {name: »n, from: {dataset: y}}]}\n",
    ),
    "output name twice": (
        "spec.duplicate_name",
        HEAD + JOB + "outputs: [{name: n, dataset: x}, {name: »n, dataset: y}]}\n",
    ),
    "output without dataset": ("spec.missing_field", HEAD + JOB + "outputs: [»{name: n}]}\n"),
    "where a list": (
        "spec.wrong_type",
        HEAD + INPUTS + "{from: {dataset: x}, where: {k: »[1]}}]}\n",
    ),
    "where null": (
        "spec.wrong_type",
        HEAD + INPUTS + "{from: {dataset: x}, where: {k: »null}}]}\n",
    ),
    "cycle of one": (
        "spec.cycle",
        HEAD + INPUTS + "{from: »{job: j}}], outputs: [{dataset: x}]}\n",
    ),
    "cycle through datasets": (
        "spec.cycle",
        HEAD + SOURCE + "- {name: b, operator: f, outputs: [{dataset: y}],\n"
        "   inputs: [{from: {job: a}}, {from: »{dataset: z}}]}\n"
        "- {name: c, operator: f, inputs: [{from: {job: b}}], outputs: [{dataset: z}]}\n",
    ),
    # metering
    "depth zero": ("spec.out_of_range", HEAD + JOB + "max_queue_depth: »0}\n"),
    "depth negative": ("spec.out_of_range", HEAD + JOB + "max_queue_depth: »-5}\n"),
    "depth too large": ("spec.out_of_range", HEAD + JOB + "max_queue_depth: »2147483648}\n"),
    "depth a fraction": ("spec.wrong_type", HEAD + JOB + "max_queue_depth: »1.5}\n"),
    "depth true": ("spec.wrong_type", HEAD + JOB + "max_queue_depth: »true}\n"),
    "concurrency zero": ("spec.out_of_range", HEAD + JOB + "scaling: {max_concurrency: »0}}\n"),
    "attempts zero": ("spec.out_of_range", HEAD + JOB + "max_attempts: »0}\n"),
    "age zero": ("spec.out_of_range", HEAD + JOB + "max_queue_age: »0s}\n"),
    "timeout too long": ("spec.out_of_range", HEAD + JOB + "timeout: »400d}\n"),
    "timeout negative": ("spec.out_of_range", HEAD + JOB + "timeout: »-1}\n"),
    "timeout true": ("spec.bad_duration", HEAD + JOB + "timeout: »true}\n"),
    "timeout a word": ("spec.bad_duration", HEAD + JOB + "timeout: »5min}\n"),
    "timeout a list": ("spec.bad_duration", HEAD + JOB + "timeout: »[5m]}\n"),
    "retry with a typo": ("spec.unknown_field", HEAD + JOB + "retry: {»bas: 1s}}\n"),
    "scaling a word": ("spec.wrong_type", HEAD + JOB + "scaling: »steady}\n"),
    "unknown priority": ("spec.unknown_value", HEAD + JOB + "priority: »high}\n"),
    # Bulk
    "Bulk without batch": ("spec.bulk_needs_batch", HEAD + JOB + "execution_strategy: »Bulk}\n"),
    "batch without size": ("spec.missing_field", HEAD + JOB + "execution_strategy: Bulk, batch: »{}}\n"),
    "batch of zero": ("spec.out_of_range", HEAD + JOB + "execution_strategy: Bulk, batch: {size: »0}}\n"),
    "batch without Bulk": ("spec.batch_needs_bulk", HEAD + JOB + "batch: »{size: 1}}\n"),
    "batch with PerUpdate": (
        "spec.batch_needs_bulk",
        HEAD + JOB + "execution_strategy: PerUpdate, batch: »{size: 1}}\n",
    ),
    "Bulk source": (
        "spec.bulk_needs_inputs",
        HEAD + SOURCE.replace("name: a,", "name: a, execution_strategy: »Bulk, batch: {size: 1},"),
    ),
    "Bulk name taken": (
        "spec.bad_batch_name",
        HEAD + JOB.replace("name: j", "name: »j") + "execution_strategy: Bulk, batch: {size: 1}}\n"
        "- {name: j__batch, operator: f, inputs: [{from: {dataset: i}}]}\n",
    ),
    "Bulk name too long": (
        "spec.bad_batch_name",
        HEAD + JOB.replace("name: j", f"name: »{'j' * 60}") + "execution_strategy: Bulk, batch: {size: 1}}\n",
    ),
    "Bulk names that meet": (
        "spec.bad_batch_name",
        HEAD + "- {name: »j, operator: f, execution_strategy: Bulk, batch: {size: 1},\n"
        "   inputs: [{from: {dataset: a.b}}, {from: {dataset: a_b}}]}\n",
    ),
}


@pytest.mark.parametrize(("code", "marked"), BROKEN.values(), ids=BROKEN.keys())
def test_each_problem_is_reported_once_at_its_location(code: str, marked: str) -> None:
    before, _, _ = marked.partition("»")
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    found = [(p.code, p.file, p.line, p.column) for p in problems_of(marked.replace("»", ""))]
    assert found == [(code, "dag.yaml", line, column)]


@pytest.mark.parametrize(
    ("case", "suggestion"),
    [
        ("unknown field of a job", "did you mean 'timeout'?"),
        ("unknown field of the file", "did you mean 'jobs'?"),
        ("from with a typo", "did you mean 'job'?"),
        ("unknown job", "one of: a, j"),
        ("unknown runtime", "did you mean 'python'?"),
        ("unknown strategy", "did you mean 'Bulk'?"),
        ("source kind unknown", "did you mean 'cron'?"),
        ("unknown priority", "one of: backfill, normal"),
        ("several outputs", "add output: x | y"),
        ("dag name a number", 'put it in quotes: "12"'),
        ("append without unique_key", "add unique_key: [column, ...]"),
        ("position of files that is text", "name a bigint column"),
        ("position of files that is not there", "did you mean 'day'?"),
        ("virtual dataset names a column that is not there", "did you mean 'ticker'?"),
        ("where on a column that is not there", "did you mean 'ticker'?"),
        ("where compares a number with text", "write a number, without quotes"),
        ("where compares text with a number", "put it in quotes"),
    ],
)
def test_problems_suggest_what_to_write(case: str, suggestion: str) -> None:
    (problem,) = problems_of(BROKEN[case][1].replace("»", ""))
    assert problem.suggestion == suggestion


def test_where_takes_values_of_the_type_of_their_column() -> None:
    where = {"ticker": "AAPL", "qty": 7, "price": 3}
    dag = parse(
        TRADES
        + f"- {{name: r, operator: o, inputs: [{{from: {{dataset: x}}, where: {json.dumps(where)}}}]}}\n"
    )
    assert job(dag, "r").inputs[0].where == where


@pytest.mark.parametrize(
    "sql",
    [
        "select Ticker, sum(qty) n from x group by all having n > 1 order by n",
        'select x."ticker", x.qty from x where price > 1',
        "with c as (select ticker symbol from x) select c.symbol from c join x on x.ticker = symbol",
        "select a.ticker, b.other from x a join elsewhere b on a.ticker = b.ticker",
        "select * exclude (qty), row_number() over (partition by ticker order by price) as place from x",
        "select item from (select unnest([qty, 1]) as item from x)",
        "select list_transform([qty], q -> q + 1) as more, date_part('day', current_date) from x",
        "select [q + 1 for q in [qty]] as more from x",
        "select symbol from x t(symbol, amount, paid)",
    ],
)
def test_a_virtual_dataset_may_read_existing_columns(sql: str) -> None:
    dag = parse(TRADES.replace("{x:", f"{{v: {{storage: virtual, sql: {json.dumps(sql)}}}, x:"))
    assert [d.dataset_id for d in dag.datasets] == ["v", "x"]


def test_a_cycle_is_named_from_job_to_job() -> None:
    (problem,) = problems_of(BROKEN["cycle through datasets"][1].replace("»", ""))
    assert problem.message == "jobs feed each other: b → c → b"


def test_all_separate_cycles_are_reported() -> None:
    jobs = "".join(
        f"- {{name: {name}, operator: f, inputs: [{{from: {{job: {other}}}}}],\n"
        f"   outputs: [{{dataset: {name}}}]}}\n"
        for name, other in ("ab", "ba", "cd", "dc", "ea")
    )
    found = [problem.message.rpartition(": ")[2] for problem in problems_of(HEAD + jobs)]
    assert found == ["a → b → a", "c → d → c"]


def test_the_invalid_value_is_quoted() -> None:
    (problem,) = problems_of(BROKEN["depth negative"][1].replace("»", ""))
    assert problem.value == "-5"
    assert str(problem).startswith("dag.yaml:4:75: spec.out_of_range: ")


def test_all_problems_are_reported_together_in_file_order() -> None:
    text = (
        "version: 1\n"
        "dag: D\n"
        "defaults: {timeout: never}\n"
        "jobs:\n"
        "- {name: a, operator: f, inputs: [{from: {job: nobody}}], outputs: [{dataset: x}]}\n"
        "- {name: a, operator: f, inputs: [], outputs: [{dataset: x}], update_strategy: append}\n"
        "- {nam: c}\n"
    )
    assert [(p.line, p.code) for p in problems_of(text)] == [
        (2, "spec.bad_name"),
        (3, "spec.bad_duration"),
        (5, "spec.unknown_job"),
        (6, "spec.duplicate_name"),
        (6, "spec.reactive_needs_inputs"),
        (6, "spec.two_producers"),
        (6, "spec.append_needs_unique_key"),
        (7, "spec.missing_field"),
        (7, "spec.missing_field"),
        (7, "spec.reactive_needs_inputs"),
        (7, "spec.unknown_field"),
    ]


def test_a_problem_is_not_repeated_for_fields_that_depend_on_it() -> None:
    text = (
        "version: 1\n"
        "dag: d\n"
        "datasets: {x: {}}\n"
        "jobs:\n"
        "- {name: Ingest, activation: source, source: {kind: manual}, outputs: [{datset: x}]}\n"
        "- {name: b, operator: f, inputs: [{from: {job: Ingest}}]}\n"
    )
    codes = [problem.code for problem in problems_of(text)]
    assert codes == ["spec.bad_name", "spec.missing_field", "spec.unknown_field"]


def test_a_problem_in_an_aliased_node_is_reported_once() -> None:
    text = (
        HEAD
        + "- {name: a, operator: f, inputs: &i [{from: {datset: x}}]}\n- {name: b, operator: f, inputs: *i}\n"
    )
    assert [problem.code for problem in problems_of(text)] == ["spec.unknown_field"]


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_over_one_mebibyte_is_refused() -> None:
    (problem,) = problems_of("# " + "x" * yaml_reader.MAX_BYTES)
    assert problem.code == "spec.too_large"


@pytest.mark.parametrize("item", ["[{}]", "{{a: {}}}", "{{<<: [{}]}}"])
def test_an_alias_bomb_is_refused_at_once(item: str) -> None:
    lines = ["version: 1", "dag: d", "jobs: []", f"x0: &x0 {{a: {'lol' * 100}}}"]
    for level in range(1, 30):
        aliases = ", ".join([f"*x{level - 1}"] * 9) if "[" in item else f"*x{level - 1}, b: *x{level - 1}"
        lines.append(f"x{level}: &x{level} {item.format(aliases)}")
    started = time.process_time()
    (problem,) = problems_of("\n".join(lines))
    assert problem.code == "spec.too_large"
    assert time.process_time() - started < 2


def test_a_chain_of_aliases_cannot_nest_too_deep() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{level}: &a{level} [*a{level - 1}]" for level in range(1, 5000)]
    (problem,) = problems_of("\n".join(lines))
    assert problem.code == "spec.too_deep"


@pytest.mark.parametrize(
    "text",
    [
        "[" * 500_000,
        "- " * 500_000,
        "{a: " * 250_000,
        "version: 1\ndag: d\njobs: [" + "x," * 500_000 + "]",
        "version: 1\ndag: d\njobs: [" + "{}," * 100_000 + "]",
        HEAD + "- {name: a, operator: f, inputs: [" + "{from: {job: b}}," * 30_000 + "]}",
        HEAD
        + "".join(f"- {{name: j{n}, operator: f, inputs: [{{from: {{job: k}}}}]}}\n" for n in range(12_000)),
        "".join(f"k{n}: 1\n" for n in range(50_000)),
        "a: &a " + "x" * 1000 + "\nb: [" + "*a," * 300_000 + "]",
    ],
    ids=lambda text: text[-30:].strip(),
)
def test_no_file_takes_long_to_refuse(text: str) -> None:
    started = time.process_time()
    assert 1 <= len(problems_of(text)) <= yaml_reader.MAX_PROBLEMS
    assert time.process_time() - started < 10


def test_a_long_chain_of_jobs_is_read() -> None:
    jobs = "".join(
        f"- {{name: j{n}, operator: f, inputs: [{{from: {{job: j{n + 1}}}}}],\n"
        f"   outputs: [{{dataset: d{n}}}]}}\n"
        for n in range(3000)
    )
    dag = parse(HEAD + jobs + SOURCE.replace("name: a", "name: j3000"))
    assert [job.name for job in dag.jobs[:2]] == ["j3000", "j2999"]


# ── files ────────────────────────────────────────────────────────────────────────────────────────────


def test_load_reads_a_file_and_names_it_in_problems(tmp_path: Path) -> None:
    path = tmp_path / "chain.yaml"
    path.write_text(FULL)
    assert dag_file.load(path, known_runtimes=RUNTIMES) == parse(FULL)
    path.write_bytes(b"dag: \xff\xfe")
    with pytest.raises(SpecInvalid, match=re.escape(f"{path}:1:1: spec.syntax")):
        dag_file.load(path, known_runtimes=RUNTIMES)
    path.write_text("#" + "é" * yaml_reader.MAX_BYTES)
    with pytest.raises(SpecInvalid, match=r"spec\.too_large"):
        dag_file.load(str(path), known_runtimes=RUNTIMES)


def test_loading_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"spec\.unreadable"):
        dag_file.load(tmp_path / "none.yaml", known_runtimes=RUNTIMES)
    with pytest.raises(NotFound, match=r"spec\.unreadable"):
        dag_file.load(tmp_path, known_runtimes=RUNTIMES)


# ── properties ───────────────────────────────────────────────────────────────────────────────────────


def parses_or_is_invalid(text: str) -> None:
    try:
        assert_round_trip(parse(text))
        return
    except SpecInvalid as error:
        invalid = error
    assert invalid.problems
    assert all(problem.line >= 1 and problem.column >= 1 for problem in invalid.problems)
    json.dumps(invalid.as_dict())


def assert_round_trip(dag: Dag) -> None:
    stored = normalized.dump(dag)
    assert normalized.load(json.loads(json.dumps(stored, allow_nan=False))) == dag
    assert normalized.dump(normalized.load(stored)) == stored


@settings(max_examples=300)
@given(st.text(max_size=200))
@example("dag: \ud800")
@example("? [a]\n: b")
@example("!!set {a}")
@example("{<<: [1, {a: b}], <<: {c: d}}")
@example("version: !!float 1\ndag: !!str 5\njobs: !!omap []")
def test_any_text_is_read_or_refused(text: str) -> None:
    parses_or_is_invalid(text)


WORDS = re.findall(r"[\w.'*/-]+|[\[\]{}:,\n-]| +", FULL)


@settings(max_examples=400)
@given(
    edits=st.lists(
        st.tuples(
            st.integers(0, len(WORDS) - 1),
            st.one_of(
                st.sampled_from(WORDS),
                st.sampled_from(
                    ["", "~", "&a ", "*a", "<<", "!!int ", "!x ", "0", "-1", "1e999", '"', "? ", "|\n"]
                ),
                st.text(max_size=5),
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_damaged_file_is_read_or_refused(edits: list[tuple[int, str]]) -> None:
    words = list(WORDS)
    for index, word in edits:
        words[index] = word
    parses_or_is_invalid("".join(words))


labels = st.text("abcxyz019._/-", min_size=1, max_size=12)
names = st.from_regex(r"[a-z][a-z0-9_-]{0,20}", fullmatch=True)
# Up to U+FFFF: JSON escapes what is above as two surrogates, which YAML refuses.
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0", max_codepoint=0xFFFF)
texts = st.text(characters, max_size=20)
scalars = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts)
values = st.recursive(
    st.none() | scalars,
    lambda v: st.lists(v, max_size=3) | st.dictionaries(texts, v, max_size=3),
    max_leaves=6,
)
executions = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.sampled_from([str(p) for p in Priority]),
        "scaling": st.fixed_dictionaries(
            {},
            optional={"mode": st.sampled_from(["steady", "backfill"]), "max_concurrency": st.integers(1, 99)},
        ),
        "max_queue_depth": st.integers(1, 9999),
        "max_queue_age": st.sampled_from(["5m", 30, "500ms", 0.5]),
        "timeout": st.integers(1, 1000).map(lambda n: f"{n}m"),
        "max_attempts": st.integers(1, 20),
        "retry": st.fixed_dictionaries({}, optional={"base": st.just("1s"), "max": st.just("1h")}),
    },
)


@st.composite
def files(draw: st.DrawFn) -> dict[str, object]:
    """Good DAG files, jobs in any order; JSON is YAML, so they are written with json.dumps."""
    jobs: list[dict[str, object]] = []
    outputs: list[tuple[str, str]] = []
    for index in range(draw(st.integers(1, 6))):
        job: dict[str, object] = {"name": f"j{index}", "operator": draw(labels), **draw(executions)}
        if draw(st.booleans()) and outputs:
            reads = draw(st.lists(st.sampled_from(outputs), min_size=1, max_size=3, unique=True))
            job["inputs"] = [
                {
                    "name": f"i{n}",
                    "from": draw(st.sampled_from([{"job": j, "output": d}, {"dataset": d}])),
                    "where": draw(st.dictionaries(texts, scalars, max_size=2)),
                }
                for n, (j, d) in enumerate(reads)
            ]
            if draw(st.booleans()):
                job |= {"execution_strategy": "Bulk", "batch": {"size": draw(st.integers(1, 500))}}
        else:
            job |= {
                "activation": "source",
                "source": {"kind": draw(st.sampled_from(["pipeline", "always_on"]))},
            }
        datasets = [f"{index}/{label}" for label in draw(st.sets(labels, min_size=1, max_size=2))]
        job["outputs"] = [{"dataset": dataset} for dataset in datasets]
        outputs += [(f"j{index}", dataset) for dataset in datasets]
        job["config"] = draw(st.dictionaries(texts, values, max_size=3))
        jobs.append(job)
    jobs = draw(st.permutations(jobs))
    return {"version": 1, "dag": draw(names), "defaults": draw(executions), "jobs": jobs}


@settings(max_examples=60)
@given(files())
def test_a_valid_file_is_read_in_order_and_survives_storage(file: dict[str, object]) -> None:
    dag = parse(json.dumps(file))
    assert_round_trip(dag)
    seen: set[str] = set(dag.external_datasets)
    for job in dag.jobs:
        assert {used.dataset_id for used in job.inputs} <= seen
        assert job.execution_strategy != ExecutionStrategy.BULK
        seen |= {output.dataset_id for output in job.outputs}
    assert seen == {dataset.dataset_id for dataset in dag.datasets}
    configs = {job["name"]: job["config"] for job in file["jobs"]}  # type: ignore[attr-defined]
    assert {job.name: job.config for job in dag.jobs if job.generated_for is None} == configs


def test_a_stored_dag_without_a_newer_field_takes_its_default() -> None:
    stored = normalized.dump(parse(FULL))
    for job in stored["jobs"]:
        del job["generated_for"], job["execution"]["retry_max_seconds"]
    dag = normalized.load(stored)
    assert {job.execution.retry_max_seconds for job in dag.jobs} == {300.0}


def test_dump_is_the_same_for_equal_files() -> None:
    assert json.dumps(normalized.dump(parse(FULL))) == json.dumps(normalized.dump(parse(FULL + "# end\n")))


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
