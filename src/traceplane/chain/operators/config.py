"""What the chain operators accept in `config`. Cheap to import: deploy checks jobs with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Annotated, Any, TypeVar

import msgspec

from traceplane.chain.rpc import RpcSettings
from traceplane.errors import InvalidInput, TraceplaneError
from traceplane.model.dag import Job, SourceKind
from traceplane.sdk import OperatorError

TABLES = ("blocks", "transactions", "receipts", "logs", "token_transfers")

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class OperatorConfig(msgspec.Struct, frozen=True, kw_only=True):
    pass


class FollowerConfig(OperatorConfig, frozen=True, kw_only=True):
    start: _Number = 0
    """The first block that is announced."""
    confirmations: _Number = 0
    """How far behind the head it stays."""
    interval_seconds: _Seconds = 2.0
    """How long it waits when there is nothing new."""


class IngestConfig(OperatorConfig, frozen=True, kw_only=True):
    chunk_blocks: _Count = 200
    """Blocks that are fetched, checked and written as one file per table."""
    cross_check: bool = False
    """Whether every endpoint must name the same hash for the last block of each chunk."""
    patience_seconds: _Seconds = 10.0
    """How long it waits for a node that has not heard yet of the block it was asked for."""


class CheckConfig(OperatorConfig, frozen=True, kw_only=True):
    chunk_blocks: _Count = 200
    cross_check: bool = False


Config = TypeVar("Config", bound=OperatorConfig)

CONFIGS: Mapping[str, type[OperatorConfig]] = {
    "block_follower": FollowerConfig,
    "range_ingest": IngestConfig,
    "integrity_check": CheckConfig,
}
_CLIENT_FIELDS = frozenset(field.name for field in fields(RpcSettings))


def read(config: Mapping[str, Any], kind: type[Config]) -> tuple[RpcSettings, Config]:
    """The client's settings and the operator's own; raises InvalidInput that names the field."""
    own = frozenset(kind.__struct_fields__)
    for name in sorted(config.keys() - own - _CLIENT_FIELDS):
        known = ", ".join(sorted(own | _CLIENT_FIELDS))
        raise InvalidInput("operator.misconfigured", f"config has no field {name!r}; there are {known}")
    if not config.get("endpoints"):
        raise InvalidInput("operator.misconfigured", "config.endpoints is missing: a list of JSON-RPC URLs")
    try:
        client = msgspec.convert({name: config[name] for name in config.keys() & _CLIENT_FIELDS}, RpcSettings)
        operator = msgspec.convert({name: config[name] for name in config.keys() & own}, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput("operator.misconfigured", f"config: {error}") from None
    except InvalidInput as error:
        raise InvalidInput("operator.misconfigured", f"config: {error.message}", value=error.value) from None
    return client, operator


def check(job: Job) -> None:
    """Raises InvalidInput if a job of a chain operator cannot work, whatever the node says."""
    read(job.config, CONFIGS[job.operator])
    inputs, outputs = [used.name for used in job.inputs], [made.name for made in job.outputs]
    match job.operator:
        case "block_follower":
            if job.source is None or job.source.kind is not SourceKind.ALWAYS_ON:
                raise _misplaced("it is a source that always runs", "source: { kind: always_on }")
            _require_one("output", outputs)
        case "range_ingest":
            _require_tables("output", outputs)
        case "integrity_check":
            _require_tables("input", inputs)
            _require_one("output", outputs)


def _require_tables(what: str, names: list[str]) -> None:
    if not names or (unknown := sorted(set(names) - set(TABLES))):
        shown = unknown[0] if names else None
        raise _misplaced(f"each {what} has the name of a table: {', '.join(TABLES)}", shown)


def _require_one(what: str, names: list[str]) -> None:
    if len(names) != 1:
        raise _misplaced(f"it has one {what}", len(names))


def _misplaced(message: str, value: object) -> InvalidInput:
    return InvalidInput("operator.misconfigured", message, value=value)


@contextmanager
def told_to_the_platform() -> Iterator[None]:
    """Errors of the chain keep their code and sentence, which names the endpoint without credentials."""
    try:
        yield
    except TraceplaneError as error:
        value = "" if error.value is None else f" (value: {str(error.value)[:200]!r})"
        raise OperatorError(error.code, error.message + value) from error
