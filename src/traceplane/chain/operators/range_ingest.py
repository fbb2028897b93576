"""The chain tables of a task's scope: one block, or a range of them, written chunk by chunk.

A range is read from one chain or not at all, and a reorg while it streams fails the attempt. For one block, the
event that asked for it names the block's hash. A node that has never heard of that block is behind the one that the
follower asked, and its answer is not taken; a node that knows the block, and has another in its place, is ahead.
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
from traceplane.chain.operators.config import IngestConfig, read, told_to_the_platform
from traceplane.chain.operators.words import Word
from traceplane.chain.rpc import Call, RpcClient
from traceplane.errors import InvalidInput
from traceplane.model.scope import Cursor
from traceplane.sdk import OperatorTask

_PAUSE_SECONDS = 0.5
_HASH = re.compile(r"0x[0-9a-f]{64}")


def run(task: OperatorTask) -> None:
    with told_to_the_platform():
        settings, config = read(task.config, IngestConfig)
        if task.scope is None or task.scope.start < 0:
            raise InvalidInput("chain.range_invalid", "the scope is not a range of blocks", value=task.scope)

        async def ingest() -> None:
            async with RpcClient(settings) as client:
                expected = _expected(task)
                if expected is None:
                    await _ingest_range(task, client, config)
                else:
                    await _ingest_block(task, client, config, expected)

        asyncio.run(ingest())


def _expected(task: OperatorTask) -> Word | None:
    """What the event says of the block, if it comes from a follower."""
    if not isinstance(task.scope, Cursor):
        return None
    word = Word.read(task.scope.position, task.emission, task.kind)
    return word if _HASH.fullmatch(word.text.rpartition(":")[2]) else None


async def _ingest_range(task: OperatorTask, client: RpcClient, config: IngestConfig) -> None:
    """All of the range; of one that was invalidated, what the chain still reaches."""
    assert task.scope is not None
    first, last = task.scope.start, task.scope.end
    if task.kind == "invalidation":
        last = min(last, await client.head())
    if last < first:
        _write_empty(task)
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


async def _ingest_block(task: OperatorTask, client: RpcClient, config: IngestConfig, expected: Word) -> None:
    deadline = time.monotonic() + config.patience_seconds
    while True:
        chunk = await _block(client, expected.number, tuple(task.outputs), config)
        if await _is_believable(client, expected, chunk):
            break
        if time.monotonic() > deadline:
            found = "no block" if chunk is None else chunk.last_hash
            raise RpcInconsistent(
                f"at {expected.number} the node has {found}; it has not heard of {expected.text} yet",
                endpoint=client.labels,
                next_step="the node may be behind the one that was followed; it is asked again",
            )
        await asyncio.sleep(_PAUSE_SECONDS)
    if chunk is None:
        _write_empty(task)
    else:
        _write(task, chunk)


async def _block(
    client: RpcClient, number: int, wanted: tuple[str, ...], config: IngestConfig
) -> Chunk | None:
    try:
        async with aclosing(
            stream_range(client, number, number, wanted, cross_check=config.cross_check)
        ) as chunks:
            return await anext(chunks)
    except BeyondHead:
        return None


async def _is_believable(client: RpcClient, expected: Word, chunk: Chunk | None) -> bool:
    found = None if chunk is None else chunk.last_hash
    if expected.hash is None:  # gone: nothing, or another block than the one that went
        return found is None or found != expected.text.rpartition(":")[2]
    if found == expected.hash:
        return True
    # The chain moved on since the event, and another event follows; or the node is behind.
    call: Call[Header] = Call("eth_getBlockByHash", (expected.hash, False), may_be_null=True)
    [known] = await client.batch([call], Header)
    return known is not None


def _write(task: OperatorTask, chunk: Chunk) -> None:
    for name, table in chunk.tables.items():
        task.write(name, table)


def _write_empty(task: OperatorTask) -> None:
    for name in task.outputs:
        task.write(name, tables.empty(name))
