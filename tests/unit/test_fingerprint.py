"""A fingerprint changes when, and only when, a job's data could: itself, or what it is made from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traceplane.model.dag import Dag, Job
from traceplane.registry import fingerprint
from traceplane.registry.spec import dag_file, normalized

TEXT = """\
version: 1
dag: d
description: before
datasets:
  a:
    {storage: postgres, position: k, columns: [{name: k, type: bigint}, {name: chain, type: int}], description: before,
     partitions: {by: hour}}
jobs:
- {name: source, activation: source, source: {kind: cron, schedule: '0 * * * *'}, outputs: [{dataset: a}]}
- name: middle
  description: before
  runtime: python
  operator: f
  config: {x: {y: 1}, z: 2}
  when: any
  inputs: [{from: {job: source}, where: {chain: 1}}, {from: {dataset: external}}]
  outputs: [{name: out, dataset: b}]
  unique_key: [k]
  timeout: 5m
- {name: leaf, operator: g, inputs: [{name: in, from: {job: middle}}]}
- {name: other, operator: g, inputs: [{from: {dataset: external}}]}
"""


def no_code_hash(job: Job) -> str:
    return ""


def parse(text: str) -> Dag:
    return dag_file.parse(text, "f", known_runtimes=frozenset({"spark", "python", "lambda"}))


def changed(old: Dag, new: Dag) -> tuple[set[str], set[str]]:
    """The jobs whose own definition changed, and those whose fingerprint did."""
    both = []
    for function in (fingerprint.definition_fingerprints, fingerprint.job_fingerprints):
        before = function(old, code_hash=no_code_hash)
        after = function(new, code_hash=no_code_hash)
        both.append({name for name in after if before.get(name) != after[name]})
    return both[0], both[1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("runtime: python", "runtime: lambda"),
        ("operator: f", "operator: ff"),
        ("{x: {y: 1}, z: 2}", "{x: {y: 2}, z: 2}"),
        ("{x: {y: 1}, z: 2}", "{x: {y: true}, z: 2}"),
        ("{x: {y: 1}, z: 2}", "{x: {y: 1}, z: 2, w: null}"),
        ("where: {chain: 1}", "where: {chain: 2}"),
        ("{from: {job: source}, where", "{name: renamed, from: {job: source}, where"),
        (", {from: {dataset: external}}]\n", "]\n"),
        ("name: out", "name: result"),
        ("unique_key: [k]", "unique_key: [k, l]"),
        ("unique_key: [k]", "unique_key: [k]\n  update_strategy: append"),
    ],
)
def test_a_changed_definition_affects_only_downstream_jobs(old: str, new: str) -> None:
    assert TEXT.count(old) == 1
    assert changed(parse(TEXT), parse(TEXT.replace(old, new))) == ({"middle"}, {"middle", "leaf"})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{kind: cron, schedule: '0 * * * *'}", "{kind: manual}"),
        ("storage: postgres, position: k", "storage: parquet"),
        ("type: bigint", "type: int"),
        ("type: bigint", "type: bigint, nullable: false"),
    ],
)
def test_a_changed_source_or_its_dataset_affects_everything_downstream(old: str, new: str) -> None:
    assert changed(parse(TEXT), parse(TEXT.replace(old, new))) == ({"source"}, {"source", "middle", "leaf"})


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("timeout: 5m", "timeout: 6m\n  lease: 9s\n  max_attempts: 2\n  retry: {base: 1s, max: 9s}"),
        ("timeout: 5m", "priority: backfill\n  scaling: {mode: backfill, max_concurrency: 3}"),
        ("timeout: 5m", "max_queue_depth: 5\n  max_queue_age: 1m"),
        ("description: before", "description: after"),
        ("0 * * * *'", "5 * * * *', time_zone: Europe/Berlin, catch_up: all, jitter: 5s, period: previous"),
        ("storage: postgres", "storage: postgres, write_mode: direct"),
        ("type: bigint", "type: bigint, pii: true"),
        ("{x: {y: 1}, z: 2}", "{z: 2, x: {y: 1}}"),
        ("runtime: python\n  operator: f", "operator: f\n  runtime: python"),
    ],
)
def test_limits_descriptions_and_order_do_not_change_fingerprints(old: str, new: str) -> None:
    assert changed(parse(TEXT), parse(TEXT.replace(old, new))) == (set(), set())


def test_the_order_of_jobs_in_the_file_changes_nothing() -> None:
    head, *jobs = TEXT.split("\n- ")
    assert changed(parse(TEXT), parse("\n- ".join([head, *reversed([job.rstrip() for job in jobs])]))) == (
        set(),
        set(),
    )


def test_code_counts_as_definition() -> None:
    def code_hash(job: Job) -> str:
        return "v2" if job.name == "middle" else ""

    dag = parse(TEXT)
    before = fingerprint.job_fingerprints(dag, code_hash=no_code_hash)
    after = fingerprint.job_fingerprints(dag, code_hash=code_hash)
    assert {name for name in before if before[name] != after[name]} == {"middle", "leaf"}
    own = fingerprint.definition_fingerprints(dag, code_hash=code_hash)
    assert own != fingerprint.definition_fingerprints(dag, code_hash=no_code_hash)


def test_a_fingerprint_survives_storage() -> None:
    dag = parse(TEXT)
    assert changed(dag, normalized.load(normalized.dump(dag))) == (set(), set())


def test_a_fingerprint_is_stable_across_releases() -> None:
    # If this fails, every deployed DAG would be rebuilt by the upgrade: change it only on purpose.
    dag = parse("version: 1\ndag: d\njobs: [{name: j, operator: f, inputs: [{from: {dataset: x}}]}]\n")
    (value,) = fingerprint.job_fingerprints(dag, code_hash=no_code_hash).values()
    assert value == "fd1fe94884b5bea9b7f5ff99dc7ca2d4aefbb88da2c45a63178fc2fce3d390a9"


def test_jobs_that_differ_only_by_name_differ() -> None:
    dag = parse(TEXT)
    renamed = replace(dag, jobs=tuple(replace(job, name=job.name + "2") for job in dag.jobs))
    old = fingerprint.job_fingerprints(dag, code_hash=no_code_hash)
    new = fingerprint.job_fingerprints(renamed, code_hash=no_code_hash)
    assert set(old.values()).isdisjoint(new.values())
