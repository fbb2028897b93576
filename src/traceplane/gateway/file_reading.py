"""DAG files of those who may not deploy: read one after the other, in a thread of their own.

To parse a file full of SQL takes seconds of a core. Whoever sends many of them waits behind their own, and the calls of
everybody else go on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from traceplane.errors import TooManyRequests
from traceplane.model.dag import Dag

_MOST_OF_CALLER = 2
"""Files of one caller that are read or wait to be."""


class FileReading:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dag-files")
        self._reading: Counter[tuple[str, str]] = Counter()

    async def read(self, org: str, counted_as: str, parse: Callable[[], Dag]) -> Dag:
        """`counted_as`: as of a `Caller`."""
        whose = org, counted_as
        if self._reading[whose] >= _MOST_OF_CALLER:
            raise TooManyRequests(
                "file.busy",
                f"{_MOST_OF_CALLER} DAG files of this caller are being read already",
                next_step="try again when they have been answered",
                retry_after_seconds=5.0,
            )
        self._reading[whose] += 1
        reading = self._thread.submit(parse)
        # Counted until it is over, also if the caller hangs up: a thread cannot be stopped.
        loop = asyncio.get_running_loop()
        reading.add_done_callback(lambda _: loop.call_soon_threadsafe(self._end, whose))
        return await asyncio.wrap_future(reading)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _end(self, whose: tuple[str, str]) -> None:
        self._reading[whose] -= 1
        if not self._reading[whose]:
            del self._reading[whose]
