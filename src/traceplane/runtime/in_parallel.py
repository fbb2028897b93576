"""Many calls of one kind, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


async def in_parallel(
    act: Callable[[Item], Awaitable[Answer]], items: Iterable[Item], at_once: int
) -> list[Answer]:
    """The answers, in order. The first failure cancels the remaining calls."""
    answers: dict[int, Answer] = {}
    remaining = enumerate(items)

    async def work() -> None:
        for index, item in remaining:
            answers[index] = await act(item)

    workers = [asyncio.ensure_future(work()) for _ in range(at_once)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [answers[index] for index in sorted(answers)]
