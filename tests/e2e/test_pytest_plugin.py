"""The pytest plugin, as a user's tests use it: rows instead of sources, reorganizations, crashes, time, failures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DAG = """
version: 1
dag: chain
datasets: {chain.ticks: {partitions: {by: day}}, chain.blocks: {partitions: {by: position}}}
jobs:
- {name: ticks, activation: source, source: {kind: cron, schedule: "0 6 * * *"}, outputs: [{dataset: chain.ticks}]}
- name: blocks
  runtime: python
  operator: python
  inputs: [{from: {job: ticks}}]
  outputs: [{dataset: chain.blocks}]
  config: {entrypoint: "jobs:of_a_node"}
- name: sums
  runtime: python
  operator: python
  inputs: [{name: blocks, from: {job: blocks}}]
  outputs: [{dataset: chain.sums}]
  config: {entrypoint: "jobs:sums"}
  max_attempts: 1
- name: noted
  runtime: python
  operator: python
  inputs: [{from: {job: ticks}}]
  outputs: [{dataset: chain.noted}]
  config: {entrypoint: "jobs:note"}
"""
JOBS = """
def of_a_node(task):
    raise AssertionError("the node is not asked in tests")

def sums(task):
    amounts = task.read("blocks")["amount"].to_pylist()
    return [{"block": task.scope.start, "total": 100 // sum(amounts)}]

def note(task):
    return [{"tick": str(task.scope)}]
"""
TESTS = """
from datetime import timedelta

import pytest

GIVEN = {"blocks": {17: [{"amount": 1}, {"amount": 1}], 18: [{"amount": 4}]}}


def totals(traceplane):
    return {row["block"]: row["total"] for row in traceplane.rows("chain.sums")}


def test_a_reorganization_and_a_crash(traceplane):
    traceplane.deploy("dag.yaml", given=GIVEN)
    traceplane.settle()
    assert totals(traceplane) == {17: 50, 18: 25}
    traceplane.kill("dispatcher")
    traceplane.give("blocks", {18: [{"amount": 10}], 19: [{"amount": 20}]})
    traceplane.kill("worker")
    traceplane.settle()
    assert totals(traceplane) == {17: 50, 18: 10, 19: 5}


def test_a_failure_is_that_of_the_code(traceplane):
    assert traceplane.client.dags.all() == []
    traceplane.deploy("dag.yaml", given={"blocks": {17: [{"amount": 0}]}})
    with pytest.raises(AssertionError, match="(?s)chain/sums failed for 17.*ZeroDivisionError"):
        traceplane.settle()
    traceplane.settle(may_fail=True)
    with pytest.raises(ValueError, match="'sums' is not among the given jobs: blocks"):
        traceplane.give("sums", {})


def test_time_passes(traceplane):
    traceplane.deploy("dag.yaml", given={"blocks": {}})
    traceplane.pass_time(timedelta(days=1))
    traceplane.settle()
    while not traceplane.rows("chain.noted"):  # the clock is looked at now and then
        traceplane.settle()
"""


def test_a_dag_is_tested_with_pytest(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    for name, text in {"dag.yaml": DAG, "code/jobs.py": JOBS, "test_chain.py": TESTS}.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "traceplane.pytest_plugin", "--traceplane-no-spark", "-q"],
        cwd=tmp_path, check=False, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert "3 passed" in done.stdout, done.stdout + done.stderr
