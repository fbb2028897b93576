"""The chain operators, as listed in the catalog."""

from __future__ import annotations

from dataclasses import fields

from traceplane.chain.operators.config import TABLES, CheckConfig, FollowerConfig, IngestConfig
from traceplane.chain.rpc import RpcSettings
from traceplane.operators.spec import ErrorCode, OperatorSpec, Ports

_CLIENT_FIELDS = frozenset(field.name for field in fields(RpcSettings)) - {"endpoints"}
"""How nodes are queried. The endpoints may decide which chain is read."""

_ERRORS = (
    ErrorCode("chain.rpc_unavailable", "no endpoint answers, or the node reports a failure"),
    ErrorCode("chain.rate_limited", "rate limited for longer than the client waits"),
    ErrorCode("chain.rpc_invalid", "an answer cannot be read"),
    ErrorCode("chain.rpc_inconsistent", "an answer contradicts itself or the request"),
    ErrorCode("chain.endpoints_disagree", "endpoints name different hashes for one height"),
    ErrorCode("chain.beyond_head", "the range ends above the node's head"),
    ErrorCode("chain.settings_invalid", "a setting of the client is invalid"),
    ErrorCode("chain.table_unknown", "there is no such table"),
    ErrorCode("chain.rpc_refused", "the node rejects the method, parameters or credentials", retried=False),
    ErrorCode("chain.range_invalid", "the scope is not a range of blocks", retried=False),
)

BLOCK_FOLLOWER = OperatorSpec(
    name="block_follower",
    summary="Follows an EVM chain: one event per block, and one more for each block that a reorg changes.",
    runtimes=frozenset({"python"}),
    entrypoint="traceplane.chain.operators.block_follower:run",
    config=FollowerConfig,
    execution_fields=_CLIENT_FIELDS | {"interval_seconds"},
    outputs=Ports(least=1, most=1),
    always_on=True,
    errors=_ERRORS,
    network=True,
)

RANGE_INGEST = OperatorSpec(
    name="range_ingest",
    summary="Reads the blocks of a task's scope into chain tables.",
    runtimes=frozenset({"python"}),
    entrypoint="traceplane.chain.operators.range_ingest:run",
    config=IngestConfig,
    execution_fields=_CLIENT_FIELDS | {"chunk_blocks", "cross_check", "patience_seconds"},
    outputs=Ports(least=1, names=TABLES),
    errors=_ERRORS,
    network=True,
    position="block_number",
    needs_emission=True,
)

INTEGRITY_CHECK = OperatorSpec(
    name="integrity_check",
    summary="Compares committed chain tables with the node, and writes one row per discrepancy.",
    runtimes=frozenset({"python"}),
    entrypoint="traceplane.chain.operators.integrity_check:run",
    config=CheckConfig,
    execution_fields=_CLIENT_FIELDS | {"chunk_blocks"},
    inputs=Ports(least=1, names=TABLES),
    outputs=Ports(least=1, most=1),
    errors=_ERRORS,
    network=True,
)
