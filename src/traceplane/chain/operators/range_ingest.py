"""The chain tables of a task's scope: one block, or a range of them, written chunk by chunk.

A range is read from one chain or not at all; a reorg while it streams fails the attempt. For a single block, the event
names the block's hash. A node that does not know that block is behind the one that was followed, and its answer is not
used; a node that knows the block but has another one in its place is ahead.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import aclosing

from traceplane.chain import tables
from traceplane.chain.answers import Header
from traceplane.chain.errors import BeyondHead, RpcInconsistent
from traceplane.chain.extract import Chunk, stream_range
from traceplane.chain.operators.announcements import Announcement
from traceplane.chain.operators.config import IngestConfig, block_range, operator_errors, read
from traceplane.chain.rpc import RpcCall, RpcClient
from traceplane.model.scope import Cursor
from traceplane.sdk import OperatorTask

_PAUSE_SECONDS = 0.5
_HASH = re.compile(r"0x[0-9a-f]{64}")


def run(task: OperatorTask) -> None:
    with operator_errors():
        settings, config = read(task.config, IngestConfig)
        block_range(task)

        async def ingest() -> None:
            async with RpcClient(settings) as client:
                expected = _expected(task)
                if expected is None:
                    await _ingest_range(task, client, config)
                else:
                    await _ingest_block(task, client, config, expected)

        asyncio.run(ingest())


def _expected(task: OperatorTask) -> Announcement | None:
    """What the event announced about the block, if it comes from a follower."""
    if not isinstance(task.scope, Cursor):
        return None
    announcement = Announcement.read(task.scope.position, task.emission, task.kind)
    return announcement if _HASH.fullmatch(announcement.text.rpartition(":")[2]) else None


async def _ingest_range(task: OperatorTask, client: RpcClient, config: IngestConfig) -> None:
    """The whole range; for an invalidated one, the part that the chain still reaches."""
    first, last = block_range(task)
    if task.kind == "invalidation":
        last = min(last, await client.head())
    if last < first:
        write_empty(task)
        return
    stream = stream_range(
        client,
        first,
        last,
        tuple(task.outputs),
        chunk_blocks=config.chunk_blocks,
        cross_check=config.cross_check,
    )
    async with aclosing(stream) as chunks:
        async for chunk in chunks:
            _write(task, chunk)


async def _ingest_block(
    task: OperatorTask, client: RpcClient, config: IngestConfig, expected: Announcement
) -> None:
    deadline = time.monotonic() + config.patience_seconds
    while True:
        chunk = await _block(client, expected.number, tuple(task.outputs), config)
        if await _is_believable(client, expected, chunk):
            break
        if time.monotonic() > deadline:
            actual = "no block" if chunk is None else chunk.last_hash
            raise RpcInconsistent(
                f"at {expected.number} the node has {actual}; it does not know {expected.text} yet",
                endpoint=client.labels,
                next_step="the node may be behind the one that was followed; it is retried",
            )
        await asyncio.sleep(_PAUSE_SECONDS)
    if chunk is None:
        write_empty(task)
    else:
        _write(task, chunk)


async def _block(
    client: RpcClient, number: int, names: tuple[str, ...], config: IngestConfig
) -> Chunk | None:
    try:
        async with aclosing(
            stream_range(client, number, number, names, cross_check=config.cross_check)
        ) as chunks:
            return await anext(chunks)
    except BeyondHead:
        return None


async def _is_believable(client: RpcClient, expected: Announcement, chunk: Chunk | None) -> bool:
    actual = None if chunk is None else chunk.last_hash
    if expected.hash is None:  # orphaned: no block, or another one
        return actual is None or actual != expected.text.rpartition(":")[2]
    if actual == expected.hash:
        return True
    # The chain moved on since the event, and another event follows; or the node is behind.
    call: RpcCall[Header] = RpcCall("eth_getBlockByHash", (expected.hash, False), may_be_null=True)
    [header] = await client.batch([call], Header)
    return header is not None


def _write(task: OperatorTask, chunk: Chunk) -> None:
    for name, table in chunk.tables.items():
        task.write(name, table)


def write_empty(task: OperatorTask) -> None:
    for name in task.outputs:
        task.write(name, tables.empty(name))
