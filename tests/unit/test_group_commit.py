from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence

import pytest

from traceplane.errors import ConcurrentChange, DatabaseUnavailable, InvalidInput, PlatformError
from traceplane.runtime.group_commit import GroupCommit


class Ledger:
    """Commits by remembering; a group can be made to wait or to fail."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.running = 0
        self.most_running = 0
        self.started = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.poison: dict[int, Exception] = {}

    async def commit(self, items: Sequence[int]) -> Sequence[str]:
        self.running += 1
        self.started.set()
        self.most_running = max(self.most_running, self.running)
        try:
            await self.gate.wait()
            await asyncio.sleep(0)
            self.groups.append(list(items))
            for item in items:
                if item in self.poison:
                    raise self.poison[item]
            return [f"did {item}" for item in items]
        finally:
            self.running -= 1


def group(ledger: Ledger, **options: int) -> GroupCommit[int, str]:
    return GroupCommit("test", ledger.commit, **options)


async def soon(*submissions: Awaitable[object]) -> list[object]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*submissions, return_exceptions=True)


async def test_every_caller_gets_its_own_answers_in_order() -> None:
    ledger = Ledger()
    commit = group(ledger)
    answers = await soon(commit.submit([1, 2]), commit.submit([3]), commit.submit([4, 5, 6]))
    assert answers == [["did 1", "did 2"], ["did 3"], ["did 4", "did 5", "did 6"]]
    assert ledger.groups == [[1, 2, 3, 4, 5, 6]]


async def test_calls_that_wait_during_a_commit_share_the_next_group() -> None:
    ledger = Ledger()
    commit = group(ledger, concurrency=1)
    ledger.gate.clear()
    first = asyncio.create_task(commit.submit([0]))
    await ledger.started.wait()
    later = [asyncio.create_task(commit.submit([n])) for n in range(1, 6)]
    await asyncio.sleep(0)
    ledger.gate.set()
    await soon(first, *later)
    assert ledger.groups == [[0], [1, 2, 3, 4, 5]]


async def test_a_group_stays_within_its_size_but_a_larger_call_runs_alone() -> None:
    ledger = Ledger()
    commit = group(ledger, max_items=4, concurrency=1)
    await soon(*(commit.submit(items) for items in ([1, 2], [3, 4], [5], list(range(10, 20)), [6])))
    assert ledger.groups == [[1, 2, 3, 4], [5], list(range(10, 20)), [6]]


async def test_no_more_groups_run_at_once_than_allowed() -> None:
    ledger = Ledger()
    commit = group(ledger, max_items=1, concurrency=2)
    await soon(*(commit.submit([n]) for n in range(20)))
    assert ledger.most_running == 2
    assert sorted(n for (n,) in ledger.groups) == list(range(20))


async def test_one_callers_error_does_not_affect_another() -> None:
    ledger = Ledger()
    ledger.poison[2] = InvalidInput("test.bad", "this one is bad")
    commit = group(ledger)
    answers = await soon(*(commit.submit([n]) for n in range(4)))
    assert answers[0] == ["did 0"]
    assert answers[1] == ["did 1"]
    assert answers[2] is ledger.poison[2]
    assert answers[3] == ["did 3"]


@pytest.mark.parametrize("error", [DatabaseUnavailable, ConcurrentChange])
async def test_an_unavailable_database_fails_all_callers_at_once(error: type[PlatformError]) -> None:
    ledger = Ledger()
    ledger.poison[2] = error("test.down", "nobody answers")
    commit = group(ledger)
    answers = await soon(*(commit.submit([n]) for n in range(4)))
    assert answers == [ledger.poison[2]] * 4
    assert len(ledger.groups) == 1
    ledger.poison.clear()
    assert await soon(commit.submit([5])) == [["did 5"]]


async def test_a_caller_that_disconnects_does_not_affect_others() -> None:
    ledger = Ledger()
    commit = group(ledger, concurrency=1)
    ledger.gate.clear()
    calls = [asyncio.create_task(commit.submit([n])) for n in range(3)]
    await ledger.started.wait()
    calls[1].cancel()
    await asyncio.sleep(0)
    ledger.gate.set()
    answers = await soon(*calls)
    assert answers[0] == ["did 0"]
    assert isinstance(answers[1], asyncio.CancelledError)
    assert answers[2] == ["did 2"]


async def test_a_call_that_arrives_at_the_moment_a_group_ends_is_not_forgotten() -> None:
    """Whatever turn of the loop it comes in: right behind the answer, or just beside the end."""
    for turns in range(12):
        ledger = Ledger()
        commit = group(ledger, concurrency=1)
        first = asyncio.create_task(commit.submit([1]))
        for _ in range(turns):
            await asyncio.sleep(0)
        second = asyncio.create_task(commit.submit([2]))
        assert await soon(first, second) == [["did 1"], ["did 2"]], turns


async def test_a_caller_that_calls_again_at_once_is_served_every_time() -> None:
    ledger = Ledger()
    commit = group(ledger, concurrency=1)

    async def caller(number: int) -> int:
        for n in range(50):
            assert await commit.submit([number * 100 + n]) == [f"did {number * 100 + n}"]
        return number

    assert await soon(*(caller(n) for n in range(3))) == [0, 1, 2]


async def test_under_any_interleaving_each_item_is_committed_once_and_answered() -> None:
    chance = random.Random(7)
    ledger = Ledger()

    async def commit_slowly(items: Sequence[int]) -> Sequence[str]:
        for _ in range(chance.randrange(3)):
            await asyncio.sleep(0)
        return await ledger.commit(items)

    commit = GroupCommit("test", commit_slowly, max_items=5, concurrency=2)

    async def caller(numbers: range) -> None:
        for n in numbers:
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            assert await commit.submit([n, -n]) == [f"did {n}", f"did {-n}"]

    async with asyncio.timeout(60):
        await asyncio.gather(*(caller(range(k * 100 + 1, k * 100 + 40)) for k in range(8)))
    committed = [item for items in ledger.groups for item in items]
    assert len(committed) == len(set(committed)) == 8 * 39 * 2
