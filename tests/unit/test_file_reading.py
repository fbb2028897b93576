"""DAG files that take long to read."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from traceplane.errors import TooManyRequests
from traceplane.gateway.file_reading import FileReading
from traceplane.model.dag import Dag


async def test_one_caller_waits_behind_its_own_files_and_not_for_ever() -> None:
    reading, go_on = FileReading(), threading.Event()
    read: list[str] = []

    def parse(name: str) -> Any:
        assert go_on.wait(60)
        read.append(name)
        return Dag

    try:
        first, second = (asyncio.create_task(reading.read("o", "ann", partial(parse, n))) for n in "12")
        other = asyncio.create_task(reading.read("o", "bob", partial(parse, "3")))
        await asyncio.sleep(0)  # each of them begins
        with pytest.raises(TooManyRequests):
            await reading.read("o", "ann", partial(parse, "4"))
        second.cancel()  # who hangs up is counted until the thread is free again
        go_on.set()
        await asyncio.gather(first, other)
        await reading.read("o", "ann", partial(parse, "5"))
        assert (read[0], "4" in read, read[-1]) == ("1", False, "5")
    finally:
        go_on.set()
        reading.close()
