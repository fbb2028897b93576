"""Tables of a chain: `spark.read.format("evm")`, and `spark.readStream`.

A range is planned once: its head, and the hash of the last block of each part. Each part is checked against these, so
all parts belong to one chain, or reading fails. A stream keeps the hash of the last block that it has read, and fails
if the chain leaves that block: what was read cannot be taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Annotated, Any, Literal

import pyarrow as pa
from msgspec import Meta
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from traceplane.chain.errors import BeyondHead, RpcInconsistent
from traceplane.chain.extract import spans, stream_spans_sync
from traceplane.chain.operators.config import ClientConfig
from traceplane.chain.operators.parts import shared
from traceplane.chain.rpc import RpcClient
from traceplane.chain.tables import SCHEMAS
from traceplane.datasources.filters import Bounds, bounds
from traceplane.datasources.options import read, selected

_POSITION = "block_number"
_Block = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Count = Annotated[int, Meta(ge=1, le=1_000_000)]


class EvmOptions(ClientConfig, frozen=True, kw_only=True):
    table: Literal[
        "blocks",
        "transactions",
        "receipts",
        "logs",
        "token_transfers",
        "erc1155_transfers",
        "withdrawals",
    ]
    columns: tuple[str, ...] = ()
    from_block: _Block = 0
    to_block: _Block | None = None
    """None: the head."""
    parts: _Count = 4
    chunk_blocks: _Count = 200
    cross_check: bool = False
    confirmations: Annotated[int, Meta(ge=0)] = 0
    """Of a stream: how many blocks it stays behind the head."""
    max_blocks: _Count = 10_000
    """Of a stream: the most blocks of one batch."""


class EvmDataSource(DataSource):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._chosen = read(options, EvmOptions, {"endpoint": "endpoints"})

    @classmethod
    def name(cls) -> str:
        return "evm"

    def schema(self) -> StructType:
        return from_arrow_schema(selected(SCHEMAS[self._chosen.table], self._chosen.columns))

    def reader(self, schema: StructType) -> EvmReader:
        return EvmReader(self._chosen, schema.fieldNames())

    def streamReader(self, schema: StructType) -> EvmStreamReader:
        return EvmStreamReader(self._chosen, schema.fieldNames())


class EvmPart(InputPartition):
    """Blocks of one part, both ends included."""

    def __init__(self, first: int, last: int, parent_hash: str | None, last_hash: str) -> None:
        super().__init__((first, last))
        self.first, self.last = first, last
        self.parent_hash, self.last_hash = parent_hash, last_hash


class _Blocks:
    """What both readers do with a range."""

    def __init__(self, chosen: EvmOptions, columns: Sequence[str]) -> None:
        self._chosen = chosen
        self._columns = selected(SCHEMAS[chosen.table], columns).names

    async def plan(
        self, client: RpcClient, first: int, last: int, parent_hash: str | None = None
    ) -> list[EvmPart]:
        if last < first:
            return []
        chunks = spans(first, last, self._chosen.chunk_blocks)
        size = -(-len(chunks) // self._chosen.parts)
        ranges = [
            (chunks[at][0], chunks[min(at + size, len(chunks)) - 1][1]) for at in range(0, len(chunks), size)
        ]
        headers = await client.headers([end for _, end in ranges])
        parts = []
        for (start, end), header in zip(ranges, headers, strict=True):
            if header is None:
                raise RpcInconsistent(f"the node has no block {end} any more", endpoint=client.labels)
            parts.append(EvmPart(start, end, parent_hash, header.hash))
            parent_hash = header.hash
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, EvmPart):
            return  # Spark makes one of its own if there is none
        chosen = self._chosen
        chunks = stream_spans_sync(
            shared(chosen.client(), chosen.parts),
            spans(partition.first, partition.last, chosen.chunk_blocks),
            (chosen.table,),
            cross_check=chosen.cross_check,
            parent_hash=partition.parent_hash,
        )
        with closing(chunks):
            for chunk in chunks:
                if chunk.last == partition.last and chunk.last_hash != partition.last_hash:
                    raise RpcInconsistent(
                        f"block {chunk.last} was {partition.last_hash} when the read was planned",
                        value=chunk.last_hash,
                        next_step="the chain has moved; read again",
                    )
                yield from chunk.tables[chosen.table].select(self._columns).to_batches()

    def client(self) -> RpcClient:
        return RpcClient(self._chosen.client())


class EvmReader(DataSourceReader):
    def __init__(self, chosen: EvmOptions, columns: Sequence[str]) -> None:
        self._chosen, self._blocks = chosen, _Blocks(chosen, columns)
        self._bounds = Bounds()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._bounds = bounds(filters, _POSITION)
        return filters

    def partitions(self) -> list[InputPartition]:
        async def plan() -> list[InputPartition]:
            async with self._blocks.client() as client:
                head, end = await client.head(), self._chosen.to_block
                if end is not None and end > head:
                    raise BeyondHead(
                        f"block {end} does not exist yet", value=head, next_step="read fewer blocks"
                    )
                first, last = self._bounds.within(self._chosen.from_block, head if end is None else end)
                return [*await self._blocks.plan(client, first, last)]

        return asyncio.run(plan())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._blocks.read(partition)


class EvmStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is the last block that was read, and its hash."""

    _target: int | None = None
    """The last block of a stream that ends once it has read what is there."""

    def __init__(self, chosen: EvmOptions, columns: Sequence[str]) -> None:
        self._chosen, self._blocks = chosen, _Blocks(chosen, columns)

    def initialOffset(self) -> dict[str, Any]:
        return {"block": self._chosen.from_block - 1, "hash": ""}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._chosen.max_blocks)  # of blocks: Spark hands it back and counts nothing

    def prepareForTriggerAvailableNow(self) -> None:
        async def head() -> int:
            async with self._blocks.client() as client:
                return await client.head()

        self._target = asyncio.run(head()) - self._chosen.confirmations

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit | None = None) -> dict[str, Any]:
        most = None if isinstance(limit, ReadAllAvailable) else self._chosen.max_blocks
        return asyncio.run(self._latest(start, most))

    async def _latest(self, start: dict[str, Any], most: int | None) -> dict[str, Any]:
        async with self._blocks.client() as client:
            ends = [await client.head() - self._chosen.confirmations, self._chosen.to_block, self._target]
            if most is not None:
                ends.append(start["block"] + most)
            end = min(end for end in ends if end is not None)
            if end <= start["block"]:
                return start
            before, last = await client.headers([max(0, start["block"]), end])
        if start["hash"] and (before is None or before.hash != start["hash"]):
            raise RpcInconsistent(
                f"the chain has left block {start['block']} {start['hash']}, which this stream has read",
                value=None if before is None else before.hash,
                next_step="start again from a block before it, and set `confirmations` to more than it went back",
            )
        return start if last is None else {"block": end, "hash": last.hash}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        async def plan() -> list[InputPartition]:
            async with self._blocks.client() as client:
                parent = start["hash"] or None
                parts = await self._blocks.plan(client, start["block"] + 1, end["block"], parent)
            if parts and parts[-1].last_hash != end["hash"]:
                raise RpcInconsistent(
                    f"the chain has left block {end['block']} {end['hash']}, up to which a batch was planned",
                    value=parts[-1].last_hash,
                    next_step="start again from a block before it, with `confirmations`",
                )
            return [*parts]

        return asyncio.run(plan())

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._blocks.read(partition)
