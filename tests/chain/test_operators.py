"""The chain operators as a deploy sees them: their names, their configs, and the jobs that it rejects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from traceplane.chain.extract import ALL_TABLES
from traceplane.chain.operators import block_follower, integrity_check, range_ingest
from traceplane.chain.operators.config import TABLES, ClientConfig
from traceplane.chain.rpc import RpcSettings
from traceplane.model.runtimes import DEFAULT_RUNTIMES
from traceplane.operators import catalog
from traceplane.registry import job_checks
from traceplane.registry.spec import dag_file

JOB = """
version: 1
dag: d
jobs:
- name: j
  runtime: python
"""
FOLLOWER = JOB + "  activation: source\n  source: {kind: always_on}\n  operator: block_follower\n"
INGEST = JOB + "  operator: range_ingest\n  inputs: [{from: {dataset: x}}]\n"
CHECK = JOB + "  operator: integrity_check\n  outputs: [{dataset: y}]\n"
NODE = "  config: {endpoints: [http://node.example]"


def refused() -> Iterator[tuple[str, str]]:
    one = "  outputs: [{dataset: y}]\n"
    yield FOLLOWER + one, "config.endpoints is missing"
    yield FOLLOWER + one + "  config: {endpoints: []}\n", "a list of at least 1"
    yield FOLLOWER + one + "  config: {endpoints: [ftp://x]}\n", "an http or https URL"
    yield FOLLOWER + one + NODE + ", start: -1}\n", "start"
    yield FOLLOWER + one + NODE + ", chain: dogechain}\n", "chain must be one of arbitrum, base"
    yield FOLLOWER + one + NODE + ", chain: ethereum, chain_id: 5}\n", "chain_id of ethereum must be 1"
    yield FOLLOWER + one + NODE + ", begin: 1}\n", "no field 'begin'"
    yield FOLLOWER + one + NODE + ", batch_size: many}\n", "batch_size"
    yield (
        FOLLOWER + "  outputs: [{dataset: y}, {dataset: z}]\n" + NODE + "}\n",
        "it needs 1 output, but the job has 2",
    )
    executed = FOLLOWER.replace("always_on", "pipeline")
    yield executed + one + NODE + "}\n", "always runs"
    yield INGEST + one + NODE + "}\n", "one of: blocks, transactions, receipts"
    yield INGEST + NODE + "}\n", "one of: blocks, transactions, receipts"
    yield (
        CHECK + "  inputs: [{from: {dataset: x}}]\n" + NODE + "}\n",
        "one of: blocks, transactions, receipts",
    )


@pytest.mark.parametrize(("text", "part"), [*refused()])
def test_an_invalid_job_is_rejected_at_deploy(text: str, part: str) -> None:
    dag = dag_file.parse(text, "f", known_runtimes=frozenset(DEFAULT_RUNTIMES))
    result = [*job_checks.operator_faults(dag.jobs[0], dag, DEFAULT_RUNTIMES)]
    assert {fault.code for fault in result} == {"deploy.config_invalid"}
    assert part in " ".join(f"{'.'.join(fault.at)} {fault.message} {fault.suggestion}" for fault in result)


def test_the_names_of_tables_and_operators_are_those_of_the_code() -> None:
    assert TABLES == ALL_TABLES
    for name, module in (
        ("block_follower", block_follower),
        ("range_ingest", range_ingest),
        ("integrity_check", integrity_check),
    ):
        operator = catalog.find(name)
        assert operator is not None
        assert operator.entrypoint == f"{module.__name__}:run"


def test_the_client_has_the_defaults_that_the_operators_document() -> None:
    assert ClientConfig(endpoints=("http://a",)).client() == RpcSettings(endpoints=("http://a",))
