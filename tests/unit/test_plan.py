"""A plan says what a deploy would do: nothing for the same file, and no more than needed for another."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceplane.model.dag import Dag, Job
from traceplane.registry import fingerprint
from traceplane.registry.plan import (
    DatasetChanged,
    Deployed,
    ExecutionChanged,
    FieldChange,
    Plan,
    plan,
    render,
)
from traceplane.registry.spec import dag_file, normalized

HOT = "storage: postgres, position: k, columns: [{name: k, type: bigint}]"
TEXT = """\
version: 1
dag: chain
datasets:
  logs: {storage: postgres, position: k, columns: [{name: k, type: bigint}]}
jobs:
- {name: ingest, activation: source, source: {kind: always_on}, operator: follow, outputs: [{dataset: logs}]}
- {name: transfers, operator: sql, config: {size: 100}, inputs: [{from: {job: ingest}}],
   outputs: [{dataset: moves}]}
- {name: alerts, operator: alert, timeout: 10m, inputs: [{from: {job: transfers}}]}
- {name: prices, operator: sql, inputs: [{from: {dataset: market}}], outputs: [{dataset: usd}]}
"""


def parse(text: str) -> Dag:
    return dag_file.parse(text, "f", known_runtimes=frozenset({"spark", "python"}))


def deployed(text: str, code: str = "", version: int = 3) -> Deployed:
    """As it comes back from the database."""
    dag = normalized.load(json.loads(json.dumps(normalized.dump(parse(text)))))
    return Deployed(
        version,
        dag,
        fingerprint.job_fingerprints(dag, code_hash=lambda job: code),
        fingerprint.definition_fingerprints(dag, code_hash=lambda job: code),
    )


def plan_of(old: str | None, new: str, changed_code: str = "") -> Plan:
    def code_hash(job: Job) -> str:
        return "new" if job.name == changed_code else ""

    dag = parse(new)
    return plan(
        None if old is None else deployed(old),
        dag,
        fingerprints=fingerprint.job_fingerprints(dag, code_hash=code_hash),
        definition_fingerprints=fingerprint.definition_fingerprints(dag, code_hash=code_hash),
    )


def names(jobs: tuple[Job, ...]) -> list[str]:
    return [job.name for job in jobs]


def rebuilt(result: Plan) -> dict[str, tuple[list[str], tuple[str, ...]]]:
    return {r.job.name: ([change.field for change in r.changes], r.downstream_of) for r in result.rebuilt}


def test_a_first_deploy_adds_everything() -> None:
    result = plan_of(None, TEXT)
    assert names(result.added) == ["ingest", "transfers", "alerts", "prices"]
    assert result.datasets_added == ("logs", "moves", "usd")
    assert result.base_version is None
    assert not result.is_noop


def test_the_same_file_twice_is_a_noop() -> None:
    result = plan_of(TEXT, TEXT)
    assert result.is_noop
    assert names(result.unchanged) == ["ingest", "transfers", "alerts", "prices"]
    assert render(result) == "DAG chain: no changes; version 3 matches the file.\n"


def test_jobs_in_another_order_are_a_noop() -> None:
    head, *jobs = TEXT.split("- {name")
    assert plan_of(TEXT, "- {name".join([head, *reversed(jobs)])).is_noop


def test_an_execution_field_is_changed_in_place() -> None:
    result = plan_of(TEXT, TEXT.replace("10m", "15m"))
    (changed,) = result.execution_changed
    assert (changed.job.name, changed.changes) == (
        "alerts",
        (FieldChange("timeout_seconds", "600.0", "900.0"),),
    )
    assert names(result.unchanged) == ["ingest", "transfers", "prices"]
    assert not result.rebuilt
    assert not result.is_noop


def test_a_description_is_changed_in_place() -> None:
    result = plan_of(TEXT, TEXT.replace("{name: alerts,", "{name: alerts, description: big ones,"))
    assert [type(change) for change in result.execution_changed] == [ExecutionChanged]
    assert result.execution_changed[0].changes == (FieldChange("description", '""', '"big ones"'),)
    result = plan_of(TEXT, TEXT.replace("dag: chain", "dag: chain\ndescription: all"))
    assert result.dag_changes == (FieldChange("description", '""', '"all"'),)
    assert not result.is_noop


def test_a_changed_job_is_rebuilt_with_all_below_it() -> None:
    result = plan_of(TEXT, TEXT.replace("size: 100", "size: 200"))
    assert rebuilt(result) == {"transfers": (["config.size"], ()), "alerts": ([], ("transfers",))}
    assert names(result.unchanged) == ["ingest", "prices"]


def test_the_nearest_changed_job_is_the_reason() -> None:
    result = plan_of(TEXT, TEXT.replace("follow", "chase").replace("size: 100", "size: 200"))
    assert rebuilt(result) == {
        "ingest": (["operator"], ()),
        "transfers": (["config.size"], ("ingest",)),
        "alerts": ([], ("transfers",)),
    }


def test_a_reason_far_upstream_is_named() -> None:
    result = plan_of(TEXT, TEXT.replace("follow", "chase"))
    assert rebuilt(result)["alerts"] == ([], ("ingest",))


def test_a_rebuilt_job_shows_its_execution_changes_too() -> None:
    result = plan_of(TEXT, TEXT.replace("size: 100", "size: 200").replace("10m", "15m"))
    assert [change.field for change in result.rebuilt[1].execution_changes] == ["timeout_seconds"]


def test_changed_code_is_a_change_of_its_own() -> None:
    result = plan_of(TEXT, TEXT, changed_code="transfers")
    assert rebuilt(result) == {"transfers": (["code"], ()), "alerts": ([], ("transfers",))}


def test_a_removed_producer_is_the_reason_for_its_reader() -> None:
    start, end = TEXT.index("- {name: transfers"), TEXT.index("- {name: alerts")
    result = plan_of(TEXT, (TEXT[:start] + TEXT[end:]).replace("{job: transfers}", "{dataset: moves}"))
    assert names(result.removed) == ["transfers"]
    assert result.datasets_removed == ("moves",)
    assert rebuilt(result) == {"alerts": ([], ("transfers",))}


def test_a_renamed_producer_is_the_reason_for_its_reader() -> None:
    result = plan_of(TEXT, TEXT.replace("transfers", "moved"))
    assert (names(result.added), names(result.removed)) == (["moved"], ["transfers"])
    assert rebuilt(result) == {"alerts": ([], ("moved",))}
    assert result.datasets_added == result.datasets_removed == ()


def test_a_changed_storage_rebuilds_and_a_write_mode_does_not() -> None:
    result = plan_of(TEXT, TEXT.replace(HOT, "storage: parquet"))
    assert list(rebuilt(result)) == ["ingest", "transfers", "alerts"]
    assert rebuilt(result)["ingest"] == (
        ["outputs[0].columns", "outputs[0].position", "outputs[0].storage"],
        (),
    )
    result = plan_of(TEXT, TEXT.replace("storage: postgres", "storage: postgres, write_mode: direct"))
    assert not result.rebuilt
    change = FieldChange("write_mode", '"buffered"', '"direct"')
    assert result.datasets_changed == (DatasetChanged("logs", (change,)),)
    assert not result.is_noop


def test_marking_a_column_as_personal_is_a_change_in_place() -> None:
    old = TEXT.replace(HOT, "columns: [{name: k, type: string}]")
    result = plan_of(old, old.replace("type: string", "type: string, pii: true"))
    assert result.datasets_changed == (
        DatasetChanged("logs", (FieldChange("columns.k.pii", "false", "true"),)),
    )
    assert not result.rebuilt


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        ("{a: 1}", "{a: true}", FieldChange("config.a", "1", "true")),
        ("{a: 1}", "{a: 1, b: null}", FieldChange("config.b", None, "null")),
        ("{a: null}", "{}", FieldChange("config.a", "null", None)),
        ("{a: [1, {b: 2}]}", "{a: [1, {b: 3}]}", FieldChange("config.a[1].b", "2", "3")),
        ("{a: [1]}", "{a: [1, 2]}", FieldChange("config.a", "[1]", "[1, 2]")),
        ("{a: {b: 1}}", "{a: é}", FieldChange("config.a", '{"b": 1}', '"é"')),
    ],
)
def test_every_difference_of_a_config_is_named(old: str, new: str, change: FieldChange) -> None:
    result = plan_of(TEXT.replace("{size: 100}", old), TEXT.replace("{size: 100}", new))
    assert result.rebuilt[0].changes == (change,)


def test_versions_of_two_dags_are_not_compared() -> None:
    with pytest.raises(ValueError, match="chain with other"):
        plan_of(TEXT, TEXT.replace("dag: chain", "dag: other"))


def test_only_a_batch_is_called_bulk() -> None:
    joined = TEXT.replace(
        "inputs: [{from: {job: ingest}}]", "inputs: [{from: {job: ingest}, read: {before: 2}}]", 1
    )
    added = render(plan_of(TEXT, joined))
    assert "(scopes generated for transfers)" in added
    assert "Bulk" not in added


def test_bulk_is_shown_as_the_aggregator_it_becomes() -> None:
    bulk = TEXT.replace(
        "config: {size: 100},", "config: {size: 100}, execution_strategy: Bulk, batch: {size: 50},"
    )
    result = plan_of(TEXT, bulk)
    assert names(result.added) == ["transfers__batch"]
    assert "+ job transfers__batch (aggregator generated for transfers: Bulk)\n" in render(result)
    assert rebuilt(result)["transfers"] == (
        ["execution_strategy", "inputs[0].dataset"],
        ("transfers__batch",),
    )
    result = plan_of(bulk, bulk.replace("{size: 50}", "{size: 60}"))
    assert rebuilt(result) == {
        "transfers__batch": (["config.size"], ()),
        "transfers": ([], ("transfers__batch",)),
        "alerts": ([], ("transfers__batch",)),
    }


def test_render_of_a_new_dag() -> None:
    assert render(plan_of(None, TEXT)) == (
        "DAG chain: new\n"
        "\n"
        "+ job ingest (spark: follow)\n"
        "+ job transfers (spark: sql)\n"
        "+ job alerts (spark: alert)\n"
        "+ job prices (spark: sql)\n"
        "+ dataset logs\n"
        "+ dataset moves\n"
        "+ dataset usd\n"
        "\n"
        "Jobs: 4 to add, 0 to change in place, 0 to rebuild, 0 to remove, 0 unchanged.\n"
    )


def test_render_of_every_kind_of_change() -> None:
    new = (
        "version: 1\n"
        "dag: chain\n"
        "description: all\n"
        f"datasets: {{logs: {{{HOT}, write_mode: direct}}}}\n"
        "jobs:\n"
        "- {name: ingest, activation: source, source: {kind: always_on}, operator: follow, max_attempts: 9,\n"
        "   outputs: [{dataset: logs}]}\n"
        "- {name: transfers, operator: sql, config: {batch: 7},\n"
        "   execution_strategy: Bulk, batch: {size: 50},\n"
        "   inputs: [{from: {job: ingest}}], outputs: [{dataset: moves}]}\n"
        "- {name: alerts, operator: alert, timeout: 15m, inputs: [{from: {job: transfers}}]}\n"
    )
    assert render(plan_of(TEXT, new)) == (
        "DAG chain: changes to version 3\n"
        '      description: "" → "all"\n'
        "\n"
        "+ job transfers__batch (aggregator generated for transfers: Bulk)\n"
        "~ job ingest (spark: follow): in place\n"
        "      max_attempts: 5 → 9\n"
        "-/+ job transfers (spark: sql): rebuilt, its definition changed and downstream of transfers__batch\n"
        "      config.batch: (unset) → 7\n"
        "      config.size: 100 → (unset)\n"
        '      execution_strategy: "PerUpdate" → "PerPartition"\n'
        '      inputs[0].dataset: "logs" → "logs#transfers.batches"\n'
        "-/+ job alerts (spark: alert): rebuilt, downstream of transfers\n"
        "      timeout_seconds: 600.0 → 900.0\n"
        "- job prices (spark: sql)\n"
        "+ dataset logs#transfers.batches\n"
        "~ dataset logs\n"
        '      write_mode: "buffered" → "direct"\n'
        "- dataset usd\n"
        "\n"
        "Jobs: 1 to add, 1 to change in place, 2 to rebuild, 1 to remove, 0 unchanged.\n"
    )


def test_render_of_changed_code() -> None:
    text = render(plan_of(TEXT, TEXT, changed_code="alerts"))
    assert "-/+ job alerts (spark: alert): rebuilt, its definition changed\n      code\n" in text


EDITS = [
    ("size: 100", "size: 200"),
    ("10m", "15m"),
    ("follow", "chase"),
    (HOT, "storage: parquet"),
    (HOT, HOT + ", write_mode: direct"),
    (HOT, "storage: postgres, position: k, columns: [{name: k, type: int}]"),
    (HOT, "storage: postgres, position: k, columns: [{name: k, type: int, pii: true}]"),
    (HOT, HOT + ", unique_key: [k], indexes: [[k]]"),
    ("dag: chain", "dag: chain\ndescription: x"),
    ("name: transfers, operator: sql", "name: transfers, description: x, operator: sql"),
    ("{name: prices,", "{name: prices, execution_strategy: Bulk, batch: {size: 9},"),
    ("dataset: market", "dataset: usd2"),
    ("dataset: usd}", "dataset: eur}"),
    ("name: alerts", "name: alarms"),
]


def edited(choice: set[int]) -> str:
    text = TEXT
    for old, new in dict(EDITS[index] for index in sorted(choice)).items():  # one for each place
        text = text.replace(old, new)
    return text


@settings(max_examples=150)
@given(*[st.sets(st.integers(0, len(EDITS) - 1), max_size=4)] * 2)
def test_a_plan_is_a_noop_exactly_if_the_dags_are_equal_and_accounts_for_every_job(
    one: set[int], two: set[int]
) -> None:
    old, new = edited(one), edited(two)
    result = plan_of(old, new)
    assert result.is_noop == (normalized.dump(parse(old)) == normalized.dump(parse(new)))
    kept = [*result.unchanged, *(c.job for c in result.execution_changed), *(r.job for r in result.rebuilt)]
    assert sorted(names((*kept, *result.added))) == sorted(names(parse(new).jobs))
    assert sorted(names((*kept, *result.removed))) == sorted(names(parse(old).jobs))
    assert all(r.changes or r.downstream_of for r in result.rebuilt)
    assert render(result).endswith(".\n")


def test_only_the_columns_that_differ_are_shown() -> None:
    columns = (
        "storage: postgres, position: k, columns: [{name: k, type: bigint}, {name: venue, type: string}]"
    )
    text = render(plan_of(TEXT, TEXT.replace(HOT, columns)))
    assert "outputs[0].columns.venue: (unset) → {" in text
    assert '"name": "k"' not in text


def test_dates_and_durations_are_shown_as_they_are_written() -> None:
    days = "datasets:\n  market: {partitions: {by: day}}\n  usd: {partitions: {by: day}, retention: 90d}\n"
    source = "- {name: m, activation: source, source: {kind: manual}, outputs: [{dataset: market}]}\n"
    text = TEXT.replace("datasets:\n", days) + source
    assert "retention: (unset)" not in render(plan_of(text, text.replace("90d", "36h")))
    assert 'retention: "90d" → "36h"' in render(plan_of(text, text.replace("90d", "36h")))
    started = render(plan_of(text, text.replace("by: day}, ret", "by: day, start: 2026-11-16}, ret")))
    assert 'partitions.start: null → "2026-11-16"' in started
    assert "20773" not in started
