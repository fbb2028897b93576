"""A source that says of each block that it is there, and of each block that a reorg changed that it changed.

What it said is its only record. A new run is handed the last word on each of the newest heights, checks the part
of them that a killed run may have left half said, and goes on from there: reorgs that happened meanwhile are
found as any other, by walking back to the first recorded block that is still canonical.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence

from traceplane.chain.answers import Header
from traceplane.chain.follow import UNCHANGED, NewBlocks, Record, Reorg, linked, poll, present
from traceplane.chain.operators.config import FollowerConfig, read, told_to_the_platform
from traceplane.chain.operators.words import Word, Words
from traceplane.chain.rpc import RpcClient
from traceplane.sdk import OperatorTask

REMEMBERED = 2048
"""As many heights as the platform hands to a new run."""
_WORDS_TOGETHER = 250


def run(task: OperatorTask) -> None:
    with told_to_the_platform():
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
        self._words = Words(task.resume)
        self._left_behind = False
        """Whether what was said of heights above the record is known to be of an abandoned fork."""

    async def run(self) -> None:
        record = await self.resume()
        head = record.head.number if record.head else None
        self._task.log("following", recorded_head=head, start=record.start)
        while True:
            await self.step(record)

    async def step(self, record: Record) -> None:
        step = await poll(self._client, record, confirmations=self._config.confirmations)
        match step:
            case NewBlocks():
                numbered = enumerate(step.hashes, step.first)
                self._say(self._words.of_block(number, block_hash) for number, block_hash in numbered)
            case Reorg():
                self._task.log("reorg", first=step.first_changed, old=step.old_head, new=step.new_head)
                self._say(self._words.of_orphans(step.new_head))
                self._left_behind = True
            case _:
                if self._left_behind and step.reason == UNCHANGED and record.head is not None:
                    self._say(self._words.of_orphans(record.head.number))
                    self._left_behind = False
                await asyncio.sleep(self._config.interval_seconds)
        record.apply(step, REMEMBERED)

    def _say(self, words: Iterable[Word | None]) -> None:
        """Emit in order, many at a time, and return when all of them are accepted."""
        needed = iter([word for word in words if word is not None])
        while group := list(itertools.islice(needed, _WORDS_TOGETHER)):
            self._task.emit_together(self._output, [(w.number, w.kind, w.emission) for w in group])
            for word in group:
                self._words.said(word, REMEMBERED)

    async def resume(self) -> Record:
        """The recorded blocks that follow one another, so that a walk back from them misses nothing."""
        oldest, blocks = self._words.oldest, self._words.blocks()
        lowest_change = self._words.lowest_change
        if lowest_change is not None:
            sure = [block for block in blocks if block.number < lowest_change]
            doubtful = blocks[len(sure) :]
            headers = await self._linked_headers([block.number for block in doubtful])
            pairs = zip(doubtful, headers, strict=False)
            kept = [
                block for block, _ in itertools.takewhile(lambda pair: pair[0].hash == pair[1].hash, pairs)
            ]
            self._left_behind = len(kept) < len(headers)
            blocks = sure + kept
        return Record(blocks, start=self._config.start if oldest is None else oldest)

    async def _linked_headers(self, numbers: Sequence[int]) -> list[Header]:
        """The node's blocks at these heights, as far as it has them, all of one chain."""
        while True:
            headers = present(await self._client.headers(numbers))
            if linked(headers):
                return headers
            await asyncio.sleep(self._config.interval_seconds)  # the chain moved while it was read
