"""Operators that never end and emit events."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.process.sandbox.attacks import assignment, eventually, run, whatever_the_layers
from traceplane.errors import PlatformError
from traceplane.sandbox.child_log import TaskLog
from traceplane.sandbox.frames import EmittedEvent
from traceplane.sandbox.pool import Sandbox

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only"),
    pytest.mark.asyncio(loop_scope="package"),
]


@whatever_the_layers
async def test_a_source_learns_that_its_event_was_accepted(sandbox: Sandbox) -> None:
    accepted: list[int | None] = []
    gate = asyncio.Event()

    async def accept(events: list[EmittedEvent]) -> None:
        await gate.wait()
        accepted.extend(event.scope.cursor for event in events)

    lines: list[str] = []
    source = assignment("source", config={"count": 3, "then_seconds": 100})
    running = asyncio.create_task(sandbox.run(source, log=TaskLog(lines.append), on_events=accept))
    await asyncio.sleep(0.1)
    assert lines == []
    gate.set()
    await eventually(lambda: len(lines) == 3)
    assert accepted == [0, 1, 2]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@whatever_the_layers
async def test_a_source_need_not_wait_and_loses_nothing(sandbox: Sandbox) -> None:
    accepted: list[int | None] = []

    async def accept(events: list[EmittedEvent]) -> None:
        accepted.extend(event.scope.cursor for event in events)

    sent = await run(sandbox, "hasty_source", config={"count": 500}, on_events=accept)
    assert sent.code is None
    assert sent.result.events == ()
    assert accepted == list(range(500))


@whatever_the_layers
async def test_a_refused_event_raises_in_the_source(sandbox: Sandbox) -> None:
    async def refuse(events: list[EmittedEvent]) -> None:
        raise PlatformError("task.stale", "somebody else runs this task now")

    refused = await run(sandbox, "source", config={"count": 1}, on_events=refuse)
    assert refused.result.error is not None
    assert (refused.code, refused.result.error.type) == ("operator.raised", "EmitRefused")
    assert refused.message == "task.stale: somebody else runs this task now"
