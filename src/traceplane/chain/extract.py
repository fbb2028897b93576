"""A range of blocks → tables. Every chunk is checked as a whole before any of its rows are returned.

Blocks and receipts are fetched in batches, one chunk ahead of the one being converted. A chunk whose parts contradict
one another (a reorg between two calls) is fetched again a few times. Parent hashes are also compared between chunks, so
a range never mixes two forks: if the chain moves while a long range streams, the stream ends with
`chain.rpc_inconsistent`, and the caller starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from traceplane.chain import tables as build
from traceplane.chain.answers import AnyBlock, FullBlock, Log, Receipt, SlimBlock, transaction_hashes
from traceplane.chain.doubts import (
    Doubt,
    Oddity,
    doubt_block,
    doubt_links,
    doubt_logs,
    doubt_missing_receipts,
    doubt_receipts,
    missing_receipts,
    odd_block,
    odd_logs,
    odd_receipts,
)
from traceplane.chain.errors import BeyondHead, RpcInconsistent, RpcRefused
from traceplane.chain.rpc import RpcCall, RpcClient, RpcSettings
from traceplane.chain.rules import Quirk
from traceplane.errors import InvalidInput

ALL_TABLES = tuple(build.SCHEMAS)
CHUNK_BLOCKS = 200
_TRIES = 3
_FROM_LOGS = frozenset({"logs", "token_transfers", "erc1155_transfers"})


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive blocks of a range, both ends included, with the parent hash of the first and the hash of the last."""

    first: int
    last: int
    parent_hash: str
    last_hash: str
    tables: dict[str, pa.Table]


@dataclass(frozen=True, slots=True)
class _Raw:
    """Checked answers: of each block its receipts and its logs, if they were requested."""

    blocks: list[AnyBlock]
    receipts: list[list[Receipt]]
    logs: list[list[Log]]

    def oddities(self) -> dict[str, list[Oddity]]:
        """By block hash, of those blocks that have any."""
        of_parts = self.oddities_of_parts()
        every = {block.hash: [*odd_block(block), *of_parts.get(block.hash, ())] for block in self.blocks}
        return {block_hash: oddities for block_hash, oddities in every.items() if oddities}

    def oddities_of_parts(self) -> dict[str, list[Oddity]]:
        """Those of receipts and logs."""
        found: dict[str, list[Oddity]] = {}
        for block, receipts in zip(self.blocks, self.receipts, strict=False):
            for oddity in odd_receipts(block, receipts):
                found.setdefault(block.hash, []).append(oddity)
        for block, logs in zip(self.blocks, self.logs, strict=False):
            for oddity in odd_logs(logs):
                found.setdefault(block.hash, []).append(oddity)
        return found


async def fetch_range(
    client: RpcClient,
    first: int,
    last: int,
    tables: Collection[str] = ALL_TABLES,
    *,
    cross_check: bool = False,
) -> dict[str, pa.Table]:
    """The tables of blocks first…last, both included, linked by parent hashes."""
    parts: dict[str, list[pa.Table]] = {name: [] for name in tables}
    async with aclosing(stream_range(client, first, last, tables, cross_check=cross_check)) as chunks:
        async for chunk in chunks:
            for name, table in chunk.tables.items():
                parts[name].append(table)
    return {name: pa.concat_tables(chunks) for name, chunks in parts.items()}


async def stream_range(
    client: RpcClient,
    first: int,
    last: int,
    tables: Collection[str] = ALL_TABLES,
    *,
    chunk_blocks: int = CHUNK_BLOCKS,
    cross_check: bool = False,
) -> AsyncGenerator[Chunk, None]:
    """Yields chunks in order, with at most two of them in memory.

    With `cross_check`, every endpoint is asked for the hash of each chunk's last block, which covers all blocks
    before it.
    """
    _check_request(first, last, tables, chunk_blocks)
    if (head := await client.head()) < last:
        raise BeyondHead(f"block {last} does not exist yet", value=head, next_step="retry later")
    stream = stream_spans(client, spans(first, last, chunk_blocks), tables, cross_check=cross_check)
    async with aclosing(stream) as chunks:
        async for chunk in chunks:
            yield chunk


Span = tuple[int, int]


def spans(first: int, last: int, chunk_blocks: int) -> list[Span]:
    """A range in pieces of at most that many blocks, both ends included."""
    return [
        (start, min(last, start + chunk_blocks - 1)) for start in range(first, last + 1, max(1, chunk_blocks))
    ]


async def stream_spans(
    client: RpcClient,
    every: Sequence[Span],
    tables: Collection[str],
    *,
    cross_check: bool = False,
    parent_hash: str | None = None,
) -> AsyncGenerator[Chunk, None]:
    """Yields a chunk for each span, in order. One that begins where the last one ended must follow it, and the first
    one must follow `parent_hash`."""
    if not every:
        return
    reader = _Reader(client, frozenset(tables))
    ended_at = every[0][0] - 1
    ahead = asyncio.ensure_future(reader.read(*every[0]))
    try:
        for number, (start, end) in enumerate(every, 1):
            raw = await ahead
            if number < len(every):
                ahead = asyncio.ensure_future(reader.read(*every[number]))
                await asyncio.sleep(0)  # sends its requests before the conversion blocks the loop
            _require(doubt_links(raw.blocks[:1], parent_hash if ended_at + 1 == start else None))
            ended_at, parent_hash = end, raw.blocks[-1].hash
            if cross_check:
                await client.confirm({end: parent_hash})
            yield Chunk(start, end, raw.blocks[0].parent_hash, parent_hash, convert(raw, tables))
    finally:
        ahead.cancel()
        await asyncio.gather(ahead, return_exceptions=True)


def fetch_range_sync(
    settings: RpcSettings,
    first: int,
    last: int,
    tables: Collection[str] = ALL_TABLES,
    *,
    cross_check: bool = False,
) -> dict[str, pa.Table]:
    """For Spark tasks and operators, which are not async."""

    async def run() -> dict[str, pa.Table]:
        async with RpcClient(settings) as client:
            return await fetch_range(client, first, last, tables, cross_check=cross_check)

    return asyncio.run(run())


def stream_range_sync(
    settings: RpcSettings,
    first: int,
    last: int,
    tables: Collection[str] = ALL_TABLES,
    *,
    chunk_blocks: int = CHUNK_BLOCKS,
    cross_check: bool = False,
) -> Iterator[Chunk]:
    """Like `stream_range`. The next chunk's requests are in flight while the caller works on this one, but its
    answers are only read when the caller returns."""
    make = partial(
        stream_range,
        first=first,
        last=last,
        tables=tables,
        chunk_blocks=chunk_blocks,
        cross_check=cross_check,
    )
    return _in_sync(settings, make)


def stream_spans_sync(
    settings: RpcSettings,
    every: Sequence[Span],
    tables: Collection[str],
    *,
    cross_check: bool = False,
    parent_hash: str | None = None,
) -> Generator[Chunk, None, None]:
    """`stream_spans` in the same way."""
    make = partial(stream_spans, every=every, tables=tables, cross_check=cross_check, parent_hash=parent_hash)
    return _in_sync(settings, make)


def _in_sync(
    settings: RpcSettings, make: Callable[[RpcClient], AsyncGenerator[Chunk, None]]
) -> Generator[Chunk, None, None]:
    async def chunks() -> AsyncGenerator[Chunk, None]:
        async with RpcClient(settings) as client, aclosing(make(client)) as opened:
            async for chunk in opened:
                yield chunk

    with asyncio.Runner() as runner:
        stream = chunks()
        try:
            while True:
                try:
                    chunk = runner.run(_coroutine(stream.__anext__))
                except StopAsyncIteration:
                    return
                yield chunk
        finally:
            runner.run(_coroutine(stream.aclose))


def convert(raw: _Raw, tables: Collection[str]) -> dict[str, pa.Table]:
    """The requested tables of checked answers."""
    logs = (
        pa.Table.from_batches([build.logs_batch([one for logs in raw.logs for one in logs])])
        if _FROM_LOGS & set(tables)
        else None
    )
    makers: dict[str, Callable[[], pa.Table]] = {
        "blocks": lambda: pa.Table.from_batches([build.blocks_batch(raw.blocks, _recorded(raw))]),
        "transactions": lambda: pa.Table.from_batches(
            [build.transactions_batch([one for one in raw.blocks if isinstance(one, FullBlock)])]
        ),
        "receipts": lambda: pa.Table.from_batches(
            [build.receipts_batch([one for group in raw.receipts for one in group])]
        ),
        "logs": lambda: logs,
        "token_transfers": lambda: build.token_transfers(logs),
        "erc1155_transfers": lambda: build.erc1155_transfers(logs),
        "withdrawals": lambda: pa.Table.from_batches([build.withdrawals_batch(raw.blocks)]),
    }
    return {name: makers[name]() for name in tables}


def _recorded(raw: _Raw) -> dict[str, str]:
    """The quirks of each block that has some, as a JSON object of quirks and offending values."""
    return {
        block_hash: msgspec.json.encode({one.quirk: one.value for one in oddities}).decode()
        for block_hash, oddities in raw.oddities().items()
    }


class _Reader:
    """Reads chunks of answers; remembers whether the node supports eth_getBlockReceipts."""

    def __init__(self, client: RpcClient, tables: frozenset[str]) -> None:
        self._client = client
        self._full = "transactions" in tables
        self._wants_receipts = "receipts" in tables
        self._wants_logs = bool(tables & _FROM_LOGS)
        self._receipts_by_block = True
        self._rules = client.settings.rules

    async def read(self, first: int, last: int) -> _Raw:
        before: dict[str, list[Oddity]] = {}
        for remaining in reversed(range(_TRIES)):
            try:
                raw = await self._read_once(first, last)
            except RpcInconsistent:
                if not remaining:
                    raise
                continue
            suspects = self._suspects(raw)
            if suspects == before or not suspects:
                return raw
            before = suspects
        [oddity, *_] = next(iter(before.values()))
        raise RpcInconsistent(f"{oddity.reason}, but not in every answer", value=oddity.value)

    def _suspects(self, raw: _Raw) -> dict[str, list[Oddity]]:
        """What is believed only if the next answer has it too."""
        return {
            block_hash: suspects
            for block_hash, oddities in raw.oddities_of_parts().items()
            if (suspects := [one for one in oddities if one.quirk in self._rules.repeated])
        }

    async def _read_once(self, first: int, last: int) -> _Raw:
        kind = FullBlock if self._full else SlimBlock
        calls: list[RpcCall[AnyBlock]] = [
            RpcCall(
                "eth_getBlockByNumber", (hex(number), self._full), partial(doubt_block, self._rules, number)
            )
            for number in range(first, last + 1)
        ]
        blocks: list[AnyBlock] = await self._client.batch(calls, kind)
        _require(doubt_links(blocks, None))
        if not self._wants_receipts:  # they include the logs, but take more than twice the bytes
            return _Raw(blocks, [], await self._logs(blocks) if self._wants_logs else [])
        receipts = await self._receipts(blocks)
        return _Raw(blocks, receipts, await self._logs_with(blocks, receipts))

    async def _receipts(self, blocks: Sequence[AnyBlock]) -> list[list[Receipt]]:
        if self._receipts_by_block:
            try:
                return await self._block_receipts(blocks)
            except RpcRefused as refused:
                if not refused.method_missing:
                    raise
                self._receipts_by_block = False
        return await self._transaction_receipts(blocks)

    async def _logs_with(
        self, blocks: Sequence[AnyBlock], receipts: Sequence[Sequence[Receipt]]
    ) -> list[list[Log]]:
        """The logs of the receipts; where receipts are missing, those that the node knows of the block."""
        logs = [[log for one in group for log in one.logs] for group in receipts]
        incomplete = [i for i, block in enumerate(blocks) if missing_receipts(block, receipts[i])]
        if not incomplete:
            return logs
        odd = [blocks[i] for i in incomplete]
        for block, at in zip(await self._with_transactions(odd), incomplete, strict=True):
            _require(doubt_missing_receipts(block, receipts[at]))
        if self._wants_logs:
            for at, known in zip(incomplete, await self._logs(odd), strict=True):
                logs[at] = known
        return logs

    async def _with_transactions(self, blocks: Sequence[AnyBlock]) -> list[FullBlock]:
        calls: list[RpcCall[FullBlock]] = [
            RpcCall(
                "eth_getBlockByHash", (one.hash, True), partial(doubt_block, self._rules, int(one.number, 16))
            )
            for one in blocks
            if isinstance(one, SlimBlock)
        ]
        fetched = iter(await self._client.batch(calls, FullBlock))
        return [next(fetched) if isinstance(one, SlimBlock) else one for one in blocks]

    async def _block_receipts(self, blocks: Sequence[AnyBlock]) -> list[list[Receipt]]:
        calls: list[RpcCall[list[Receipt]]] = [
            RpcCall("eth_getBlockReceipts", (block.number,), partial(doubt_receipts, self._rules, block))
            for block in blocks
        ]
        return await self._client.batch(calls, list[Receipt])

    async def _transaction_receipts(self, blocks: Sequence[AnyBlock]) -> list[list[Receipt]]:
        hashes = [transaction_hashes(block) for block in blocks]
        may_be_null = Quirk.RECEIPTS_MISSING in self._rules.allowed
        calls: list[RpcCall[Receipt]] = [
            RpcCall("eth_getTransactionReceipt", (one,), may_be_null=may_be_null)
            for block_hashes in hashes
            for one in block_hashes
        ]
        every: Iterator[Receipt | None] = iter(await self._client.batch(calls, Receipt))
        grouped = [[one for _ in block_hashes if (one := next(every)) is not None] for block_hashes in hashes]
        for block, receipts in zip(blocks, grouped, strict=True):
            _require(doubt_receipts(self._rules, block, receipts), "eth_getTransactionReceipt")
        return grouped

    async def _logs(self, blocks: Sequence[AnyBlock]) -> list[list[Log]]:
        """By block hash rather than by number, so that a reorg causes an error and not other logs."""
        calls: list[RpcCall[list[Log]]] = [
            RpcCall("eth_getLogs", ({"blockHash": block.hash},), partial(doubt_logs, self._rules, block))
            for block in blocks
        ]
        return await self._client.batch(calls, list[Log])


def _require(doubt: Doubt | None, method: str | None = None) -> None:
    if doubt is not None:
        raise doubt.as_error(method=method)


def _check_request(first: int, last: int, tables: Collection[str], chunk_blocks: int) -> None:
    if first < 0 or last < first:
        raise InvalidInput(
            "chain.range_invalid",
            "a range starts at 0 or higher and does not end before its start",
            value=f"{first}-{last}",
        )
    if chunk_blocks < 1:
        raise InvalidInput("chain.range_invalid", "a chunk must hold at least one block", value=chunk_blocks)
    unknown = sorted(set(tables) - set(ALL_TABLES))
    if unknown or not tables:
        raise InvalidInput(
            "chain.table_unknown",
            f"unknown table; the tables are {', '.join(ALL_TABLES)}",
            value=", ".join(unknown),
        )


async def _coroutine(make: Callable[[], Any]) -> Any:
    return await make()
