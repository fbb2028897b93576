"""A source that announces each new block, and each block that a reorg changed.

Its announcements are its only record. A new run gets the latest announcement of each recent height, checks those that
a killed run may have left incomplete, and continues from there: a reorg that happened in between is found like any
other, by walking back to the first recorded block that is still canonical.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence

from traceplane.chain.answers import Header
from traceplane.chain.follow import UNCHANGED, BlockRecord, NewBlocks, Reorg, linked, poll, present
from traceplane.chain.operators.announcements import Announcement, Announcements
from traceplane.chain.operators.config import FollowerConfig, operator_errors, read
from traceplane.chain.rpc import RpcClient
from traceplane.sdk import OperatorTask

REMEMBERED = 2048
"""The number of heights that the platform hands to a new run."""
_EMITTED_TOGETHER = 250


def run(task: OperatorTask) -> None:
    with operator_errors():
        settings, config = read(task.config, FollowerConfig)

        async def follow() -> None:
            async with RpcClient(settings) as client:
                await Follower(task, client, config).run()

        asyncio.run(follow())


class Follower:
    def __init__(self, task: OperatorTask, client: RpcClient, config: FollowerConfig) -> None:
        self._task = task
        (self._output,) = task.outputs
        self._client = client
        self._config = config
        self._announced = Announcements(task.resume)
        self._left_behind = False
        """Whether announcements above the record are known to belong to an abandoned fork."""

    async def run(self) -> None:
        record = await self.resume()
        head = record.head.number if record.head else None
        self._task.log("following", recorded_head=head, start=record.start)
        while True:
            await self.step(record)

    async def step(self, record: BlockRecord) -> None:
        step = await poll(self._client, record, confirmations=self._config.confirmations)
        match step:
            case NewBlocks():
                numbered = enumerate(step.hashes, step.first)
                self._say(self._announced.of_block(number, block_hash) for number, block_hash in numbered)
            case Reorg():
                self._task.log("reorg", first=step.first_changed, old=step.old_head, new=step.new_head)
                self._say(self._announced.of_orphans(step.new_head))
                self._left_behind = True
            case _:
                if self._left_behind and step.reason == UNCHANGED and record.head is not None:
                    self._say(self._announced.of_orphans(record.head.number))
                    self._left_behind = False
                await asyncio.sleep(self._config.interval_seconds)
        record.apply(step, REMEMBERED)

    def _say(self, announcements: Iterable[Announcement | None]) -> None:
        """Emits in order, many at a time, and returns when all of them are accepted."""
        pending = iter([one for one in announcements if one is not None])
        while group := list(itertools.islice(pending, _EMITTED_TOGETHER)):
            self._task.emit_together(self._output, [(a.number, a.kind, a.emission) for a in group])
            for announcement in group:
                self._announced.add(announcement, REMEMBERED)

    async def resume(self) -> BlockRecord:
        """The recorded blocks that form one chain, so that a walk back from them misses nothing."""
        oldest, blocks = self._announced.oldest, self._announced.blocks()
        lowest_change = self._announced.lowest_change
        if lowest_change is not None:
            sure = [block for block in blocks if block.number < lowest_change]
            doubtful = blocks[len(sure) :]
            headers = await self._linked_headers([block.number for block in doubtful])
            pairs = zip(doubtful, headers, strict=False)
            confirmed = [
                block for block, _ in itertools.takewhile(lambda pair: pair[0].hash == pair[1].hash, pairs)
            ]
            self._left_behind = len(confirmed) < len(headers)
            blocks = sure + confirmed
        return BlockRecord(blocks, start=self._config.start if oldest is None else oldest)

    async def _linked_headers(self, numbers: Sequence[int]) -> list[Header]:
        """The node's blocks at these heights, as far as it has them, all of one chain."""
        while True:
            headers = present(await self._client.headers(numbers))
            if linked(headers):
                return headers
            await asyncio.sleep(self._config.interval_seconds)  # the chain moved while it was read
