"""The follower announces every block once, whatever the chain does and whenever it is killed."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from tests.chain.conftest import QUICK, patient
from traceplane.chain.answers import Header
from traceplane.chain.operators import block_follower
from traceplane.chain.operators.announcements import Announcement, Announcements
from traceplane.chain.operators.config import FollowerConfig
from traceplane.chain.rpc import RpcClient
from traceplane.chain.simulated.ledger import Ledger
from traceplane.chain.simulated.server import Simulator
from traceplane.model.task_payload import DeclaredOutput, TaskPayload
from traceplane.sdk import OperatorTask


class Killed(Exception):
    pass


class Platform:
    """Accepts events as the platform does, once per height, kind and emission, and remembers the latest ones."""

    def __init__(self, remembered: int = block_follower.REMEMBERED) -> None:
        self.events: list[tuple[int, str, str]] = []
        self.budget: int | None = None
        self.remembered = remembered

    def accept(self, events: list[dict[str, Any]], wait: bool) -> None:
        assert wait
        for event in events:
            if self.budget is not None:
                if self.budget == 0:
                    raise Killed
                self.budget -= 1
            accepted = (event["scope"]["cursor"], event["emission"], event["kind"])
            assert accepted not in self.events, "an announcement was repeated"
            self.events.append(accepted)

    def last(self) -> dict[int, tuple[int, str, str]]:
        return {event[0]: event for event in self.events}

    def task(self, url: str, **config: Any) -> OperatorTask:
        resume = sorted(self.last().values(), reverse=True)[: self.remembered]
        return OperatorTask(
            task_id="t",
            attempt=1,
            payload=TaskPayload(
                config={"endpoints": [url], "interval_seconds": 0.001, **QUICK, **config},
                outputs=(DeclaredOutput("head"),),
                resume=tuple(resume),
            ),
            output_folders={"head": "/nowhere"},
            temp_dir="/nowhere",
            stream=self.accept,
        )

    def standing(self) -> dict[int, str]:
        announcements = [Announcement.read(*event) for event in self.last().values()]
        return {one.number: one.hash for one in announcements if one.hash is not None}


def canonical(ledger: Ledger, start: int = 0) -> dict[int, str]:
    return {n: "0x" + ledger.hash(n).hex() for n in range(start, ledger.head + 1)}


async def follow_until(platform: Platform, node: Simulator, expected: dict[int, str], **config: Any) -> None:
    """Runs a follower until its announcements are the expected ones."""

    async def reached() -> None:
        while platform.standing() != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async with RpcClient(patient(node.url)) as client:
        task = platform.task(node.url, **config)
        settings = FollowerConfig(endpoints=(node.url,), interval_seconds=0.001, **config)
        following = asyncio.ensure_future(block_follower.Follower(task, client, settings).run())
        waiting = asyncio.ensure_future(asyncio.wait_for(reached(), 20))
        try:
            await asyncio.wait((following, waiting), return_when=asyncio.FIRST_COMPLETED)
            (following if following.done() else waiting).result()
        finally:
            following.cancel()
            waiting.cancel()
            await asyncio.gather(following, waiting, return_exceptions=True)


async def test_each_block_is_announced_once_with_its_hash(node: Simulator) -> None:
    platform = Platform()
    await follow_until(platform, node, canonical(node.ledger))
    assert platform.events == [(n, h, "data") for n, h in canonical(node.ledger).items()]
    node.ledger.mine(3)
    await follow_until(platform, node, canonical(node.ledger))
    assert platform.events == [(n, h, "data") for n, h in canonical(node.ledger).items()]


async def test_it_begins_at_start_and_stays_behind_the_head(node: Simulator) -> None:
    platform = Platform()
    expected = {n: h for n, h in canonical(node.ledger).items() if 10 <= n <= 38}
    await follow_until(platform, node, expected, start=10, confirmations=2)
    assert platform.standing() == expected


@pytest.mark.parametrize(("depth", "length"), [(1, 1), (1, 4), (7, 7), (7, 12), (40, 41)])
async def test_a_reorg_while_it_was_down_is_announced_once_per_changed_block(
    depth: int, length: int, node: Simulator
) -> None:
    platform = Platform()
    await follow_until(platform, node, canonical(node.ledger))
    before = len(platform.events)
    node.ledger.fork(depth, length)
    await follow_until(platform, node, canonical(node.ledger))
    changed = range(40 - depth + 1, node.ledger.head + 1)
    expected = canonical(node.ledger)
    kinds = ["invalidation" if n <= 40 else "data" for n in changed]
    assert platform.events[before:] == [
        (n, expected[n], kind) for n, kind in zip(changed, kinds, strict=True)
    ]


async def test_heights_that_a_shorter_chain_lacks_are_orphaned_and_come_back(node: Simulator) -> None:
    platform = Platform()
    old = canonical(node.ledger)
    await follow_until(platform, node, old)
    node.ledger.fork(6, 2)
    await follow_until(platform, node, canonical(node.ledger))
    orphaned = [event for event in platform.events if event[1].startswith("orphaned:")]
    assert orphaned == [(n, f"orphaned:{old[n]}", "invalidation") for n in (40, 39, 38, 37)]
    node.ledger.mine(4)
    await follow_until(platform, node, canonical(node.ledger))
    assert platform.events[-4:] == [(n, f"{canonical(node.ledger)[n]}#2", "data") for n in range(37, 41)]


async def test_a_reorg_deeper_than_the_record_is_announced_from_its_oldest_block(node: Simulator) -> None:
    platform = Platform(remembered=8)
    await follow_until(platform, node, canonical(node.ledger))
    unchanged = {n: h for n, h in canonical(node.ledger).items() if n < 33}
    node.ledger.fork(20, 20)
    expected = unchanged | {n: h for n, h in canonical(node.ledger).items() if n >= 33}
    await follow_until(platform, node, expected)
    assert [event[0] for event in platform.events[41:]] == list(range(33, 41))


class FickleNode:
    """A node that switches chains at any moment, even between two calls, also back to a chain it had before."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.chain: list[str] = ["genesis"]
        self.abandoned: list[list[str]] = []
        self.restless = 0.0
        self.mine(12)

    def mine(self, blocks: int) -> None:
        self.chain = [*self.chain, *(f"0x{self.draw.getrandbits(64):016x}" for _ in range(blocks))]

    def change(self) -> None:
        draw, old = self.draw, self.chain
        match draw.randrange(4):
            case 0:
                self.mine(draw.randint(1, 3))
                return
            case 1 if self.abandoned:
                self.chain = draw.choice(self.abandoned)
            case _:
                self.chain = old[: -draw.randint(1, min(10, len(old) - 1))]
                self.mine(draw.randint(1, 8))
        self.abandoned.append(old)

    async def head(self) -> int:
        if self.draw.random() < self.restless:
            self.change()
        return len(self.chain) - 1

    async def headers(self, numbers: Sequence[int]) -> list[Header | None]:
        if self.draw.random() < self.restless:
            self.change()
        return [
            Header(hex(n), self.chain[n], self.chain[n - 1] if n else "") if n < len(self.chain) else None
            for n in numbers
        ]


@pytest.mark.parametrize("seed", range(150))
async def test_a_follower_killed_at_any_announcement_announces_the_truth_in_the_end(seed: int) -> None:
    """The chain grows, shrinks, forks and returns, between the runs and during them; none announces anything twice."""
    draw = random.Random(seed)
    node, platform = FickleNode(draw), Platform()
    for _ in range(12):
        platform.budget, node.restless = draw.randint(0, 9), draw.choice((0.0, 0.1, 0.4))
        follower = follower_of(platform, node)
        with suppress(Killed):
            record = await follower.resume()
            for _ in range(draw.randint(1, 6)):
                await follower.step(record)
        for _ in range(draw.randint(0, 2)):
            node.change()
    platform.budget, node.restless = None, 0.0
    node.mine(1)
    follower = follower_of(platform, node)
    record = await follower.resume()
    for _ in range(6):
        await follower.step(record)
    assert platform.standing() == dict(enumerate(node.chain))


def follower_of(platform: Platform, node: FickleNode) -> block_follower.Follower:
    task = platform.task("http://unused")
    return block_follower.Follower(task, node, FollowerConfig(endpoints=("http://a",), interval_seconds=1e-6))  # type: ignore[arg-type]


def test_a_chain_that_returns_to_a_block_is_not_taken_for_a_repetition() -> None:
    announcements, emitted = Announcements(), set()
    for block_hash in itertools.islice(itertools.cycle(["0xa", "0xb"]), 7):
        announcement = announcements.of_block(5, block_hash)
        assert announcement is not None
        assert (announcement.kind, announcement.emission) not in emitted
        emitted.add((announcement.kind, announcement.emission))
        announcements.add(announcement, keep=10)
        assert announcements.of_block(5, block_hash) is None
        assert Announcement.read(5, announcement.emission, announcement.kind) == announcement
