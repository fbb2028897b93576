"""Retries with exponential backoff and jitter.

It imports little, because the client uses it, and people import the client into their own programs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio

Result = TypeVar("Result")


def backoff(failures: int, first: float, longest: float) -> float:
    """The pause after this many consecutive failures; it doubles each time. Jitter takes off up to half of it, so that
    callers that failed together do not retry together."""
    jitter = random.uniform(0.5, 1.0)  # noqa: S311 -- guessing it gains nothing
    return min(longest, first * 2.0 ** min(failures - 1, 16)) * jitter


def pauses(
    first: float, longest: float, *, attempts: int | None = None, seconds: float = math.inf
) -> Iterator[float]:
    """How long to wait before each retry. Ends after `attempts` calls in total, or `seconds` from now."""
    deadline = time.monotonic() + seconds
    failures = itertools.count(1) if attempts is None else iter(range(1, attempts))
    return (
        backoff(n, first, longest)
        for n in itertools.takewhile(lambda _: time.monotonic() <= deadline, failures)
    )


async def retrying(
    call: Callable[[], Awaitable[Result]],
    *,
    on: type[Exception] | tuple[type[Exception], ...],
    pauses: Iterator[float],
    stop: asyncio.Event | None = None,
    failed: Callable[[Exception, int, float], None] | None = None,
) -> Result:
    """The result of `call`, which is retried on these errors as long as there are `pauses`. When they run out, or
    `stop` is set before the next attempt, the last error is raised. `failed` is called with each error that is not
    raised, the number of failures so far, and the pause."""
    import asyncio

    for failures in itertools.count(1):
        try:
            return await call()
        except on as error:
            if (pause := next(pauses, None)) is None:
                raise
            if failed is not None:
                failed(error, failures, pause)
            if stop is None:
                await asyncio.sleep(pause)
            elif await happens(stop, within=pause):
                raise
    raise AssertionError("unreachable")


async def happens(event: asyncio.Event, *, within: float) -> bool:
    """Wait for an event for at most `within` seconds. Returns whether it is set."""
    import asyncio

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()
    return event.is_set()
