"""What the chain operators accept in `config`. Cheap to import: deploy checks jobs with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from traceplane.chain.rpc import RpcSettings
from traceplane.chain.rules import CHAINS
from traceplane.errors import InvalidInput, TraceplaneError
from traceplane.operators import config as operator_config
from traceplane.operators.spec import Config
from traceplane.sdk import OperatorError, OperatorTask

TABLES = (
    *("blocks", "transactions", "receipts", "logs", "token_transfers"),
    *("erc1155_transfers", "withdrawals"),
)

_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Count = Annotated[int, Meta(ge=1, le=100_000)]
_Seconds = Annotated[float, Meta(gt=0, le=86_400)]

# fmt: off
_ChunkBlocks = Annotated[_Count, Meta(
    description="Blocks that are fetched and checked at once; an ingest writes them as one file per table.")]
_SparkParts = Annotated[int, Meta(ge=1, le=1000,
    description="With `runtime: spark`, how many parts of a range are fetched at once. They share `concurrency` and "
    "`calls_per_second`.")]
_CrossCheck = Annotated[bool, Meta(
    description="Whether every endpoint must report the same hash for the last block of each chunk.")]


class ClientConfig(Config, frozen=True, kw_only=True):
    """The JSON-RPC client's settings, shared by all chain operators."""

    endpoints: Annotated[tuple[str, ...], Meta(
        min_length=1, description="JSON-RPC URLs, tried in this order; a failed one rests.")]
    chain: Annotated[str | None, Meta(
        description=f"One of {', '.join(f'`{name}`' for name in CHAINS)}. It implies the `chain_id`, and quirks of "
        "nodes that are not normal on that chain are refused. By default, all are accepted and recorded.")] = None
    chain_id: Annotated[_Number | None, Meta(
        description="The chain's id, such as 1 for Ethereum. An endpoint of another chain is refused.")] = None
    batch_size: Annotated[_Count, Meta(
        description="Calls in one HTTP body; halved if a node rejects that many.")] = 50
    concurrency: Annotated[_Count, Meta(description="HTTP requests at once.")] = 4
    calls_per_second: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(
        description="No limit by default. Every call of a batch counts.")] = None
    timeout_seconds: Annotated[_Seconds, Meta(description="Of one HTTP request.")] = 30.0
    attempts: Annotated[_Count, Meta(
        description="Rounds without any believable answer before it gives up.")] = 6
    backoff_seconds: Annotated[float, Meta(
        ge=0, description="The first pause when every endpoint rests; it doubles, with jitter.")] = 0.2
    backoff_limit_seconds: Annotated[float, Meta(ge=0, description="The longest such pause.")] = 10.0
    rest_seconds: Annotated[float, Meta(
        ge=0, description="How long an endpoint rests after a failure, unless it sends `Retry-After`.")] = 15.0
    longest_wait_seconds: Annotated[float, Meta(
        ge=0, description="A longer `Retry-After`, if all other endpoints rest, fails immediately.")] = 60.0
    largest_answer_bytes: Annotated[int, Meta(
        gt=0, description="A larger answer is requested again in smaller batches.")] = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        try:
            self.client()
        except InvalidInput as error:
            raise ValueError(error.message) from None

    def client(self) -> RpcSettings:
        return RpcSettings(**{field.name: getattr(self, field.name) for field in fields(RpcSettings)})


class FollowerConfig(ClientConfig, frozen=True, kw_only=True):
    start: Annotated[_Number, Meta(description="The first block that is announced.")] = 0
    confirmations: Annotated[_Number, Meta(description="How many blocks it stays behind the head.")] = 0
    interval_seconds: Annotated[_Seconds, Meta(
        description="How long it waits when there is nothing new.")] = 2.0


class IngestConfig(ClientConfig, frozen=True, kw_only=True):
    chunk_blocks: _ChunkBlocks = 200
    cross_check: _CrossCheck = False
    spark_parts: _SparkParts = 4
    patience_seconds: Annotated[_Seconds, Meta(
        description="How long it waits for a node that does not know the announced block yet.")] = 10.0


class CheckConfig(ClientConfig, frozen=True, kw_only=True):
    chunk_blocks: _ChunkBlocks = 200
    cross_check: _CrossCheck = False
    spark_parts: _SparkParts = 4
# fmt: on


AnyConfig = TypeVar("AnyConfig", bound=ClientConfig)


def read(config: Mapping[str, Any], kind: type[AnyConfig]) -> tuple[RpcSettings, AnyConfig]:
    """The settings of the client and of the operator; raises an OperatorError that names the field."""
    own = operator_config.read(config, kind)
    return own.client(), own


def block_range(task: OperatorTask) -> tuple[int, int]:
    """The first and the last block of the scope."""
    if task.scope is None or task.scope.start < 0:
        raise InvalidInput("chain.range_invalid", "the scope is not a range of blocks", value=task.scope)
    return task.scope.start, task.scope.end


@contextmanager
def operator_errors() -> Iterator[None]:
    """Errors of the chain keep their code and message, which names the endpoint without credentials."""
    try:
        yield
    except TraceplaneError as error:
        value = "" if error.value is None else f" (value: {str(error.value)[:200]!r})"
        raise OperatorError(error.code, error.message + value) from error
