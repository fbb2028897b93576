"""The chain operators, as listed in the catalog."""

from __future__ import annotations

from dataclasses import fields

from traceplane.chain.operators.config import TABLES, CheckConfig, FollowerConfig, IngestConfig
from traceplane.chain.rpc import RpcSettings
from traceplane.model.advice import Cause, Remedy
from traceplane.operators.spec import ColumnsFrom, ErrorCode, OperatorSpec, Ports

_ENDPOINTS, _IDENTITY = frozenset({"endpoints"}), ("chain", "chain_id")
"""Which chain is read: the endpoints alone may decide it."""
_CLIENT_FIELDS = frozenset(field.name for field in fields(RpcSettings)) - _ENDPOINTS - {*_IDENTITY}
"""How nodes are queried."""


def _transient(code: str, meaning: str, step: str) -> ErrorCode:
    return ErrorCode(code, meaning, remedy=Remedy(Cause.PASSING, step))


def _configured(code: str, meaning: str, step: str, *, retried: bool = True) -> ErrorCode:
    return ErrorCode(code, meaning, retried=retried, remedy=Remedy(Cause.DEFINITION, step))


# fmt: off
_ERRORS = (
    _transient("chain.rpc_unavailable", "no endpoint answers, or the node reports a failure",
               "check the endpoints; the call may be retried"),
    _transient("chain.rate_limited", "rate limited for longer than the client waits",
               "set `calls_per_second`, or wait; the call may be retried"),
    _transient("chain.rpc_invalid", "an answer cannot be read",
               "retry the call; if the error persists, use another endpoint"),
    _transient("chain.rpc_inconsistent", "an answer contradicts itself or the request", "retry the call"),
    _configured("chain.quirk_refused", "an answer departs from the rules of `chain`",
                "use another endpoint, or leave out `chain` to accept and record it"),
    _transient("chain.beyond_head", "the range ends above the node's head", "wait, or request fewer blocks"),
    ErrorCode("chain.endpoints_disagree", "endpoints name different hashes for one height",
              remedy=Remedy(Cause.SURROUNDINGS, "find out which one is right; one may be on another fork")),
    _configured("chain.settings_invalid", "a setting of the client is invalid", "correct the value named"),
    _configured("chain.table_unknown", "there is no such table", "use one of those named"),
    _configured("chain.rpc_refused", "the node rejects the method, parameters or credentials", "see its message",
                retried=False),
    _configured("chain.wrong_chain", "an endpoint is of another chain than `chain` or `chain_id`",
                "correct `endpoints`, `chain` or `chain_id`", retried=False),
    _configured("chain.range_invalid", "the scope is not a range of blocks", "correct the range", retried=False),
)
# fmt: on

BLOCK_FOLLOWER = OperatorSpec(
    name="block_follower",
    summary="Follows an EVM chain: one event per block, and one more for each block that a reorg changes.",
    runtimes=frozenset({"python"}),
    columns_from=ColumnsFrom.OUTSIDE,
    entrypoint="traceplane.chain.operators.block_follower:run",
    config=FollowerConfig,
    execution_fields=_CLIENT_FIELDS | {"interval_seconds"},
    source_fields=_ENDPOINTS,
    identity_fields=_IDENTITY,
    outputs=Ports(least=1, most=1),
    always_on=True,
    errors=_ERRORS,
    network=True,
)

RANGE_INGEST = OperatorSpec(
    name="range_ingest",
    summary="Reads the blocks of a task's scope into chain tables.",
    runtimes=frozenset({"python", "spark"}),
    splits_on_spark=True,
    columns_from=ColumnsFrom.OUTSIDE,
    entrypoint="traceplane.chain.operators.range_ingest:run",
    config=IngestConfig,
    execution_fields=_CLIENT_FIELDS | {"chunk_blocks", "cross_check", "patience_seconds", "spark_parts"},
    source_fields=_ENDPOINTS,
    identity_fields=_IDENTITY,
    outputs=Ports(least=1, names=TABLES),
    errors=_ERRORS,
    network=True,
    position="block_number",
    needs_emission=True,
)

INTEGRITY_CHECK = OperatorSpec(
    name="integrity_check",
    summary="Compares committed chain tables with the node, and writes one row per discrepancy.",
    runtimes=frozenset({"python", "spark"}),
    splits_on_spark=True,
    entrypoint="traceplane.chain.operators.integrity_check:run",
    config=CheckConfig,
    execution_fields=_CLIENT_FIELDS | {"chunk_blocks", "spark_parts"},
    source_fields=_ENDPOINTS,
    identity_fields=_IDENTITY,
    inputs=Ports(least=1, names=TABLES),
    outputs=Ports(least=1, most=1),
    errors=_ERRORS,
    network=True,
)
