"""What happens to tasks when the sandbox itself is killed or closes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.process.sandbox.attacks import (
    CODE,
    WITHOUT,
    eventually,
    processes_with,
    run,
    unique_marker,
    whatever_the_layers,
)
from traceplane.errors import PlatformError
from traceplane.sandbox.pool import Sandbox
from traceplane.sandbox.sandbox_settings import SandboxSettings

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only"),
    pytest.mark.asyncio(loop_scope="package"),
]


async def test_the_fork_server_is_replaced_when_it_dies() -> None:
    sandbox = await Sandbox.start(SandboxSettings(slots=2, disabled_layers=WITHOUT))
    try:
        marker = unique_marker()
        running = asyncio.create_task(run(sandbox, "daemonize", config={"marker": marker, "seconds": 100}))
        await eventually(lambda: processes_with(marker))
        os.kill(sandbox.server_pid, signal.SIGKILL)
        lost = await running
        assert lost.code == "sandbox.lost"
        assert processes_with(marker) == []
        assert (await run(sandbox, "nothing")).code is None
    finally:
        await sandbox.close()


async def test_closing_ends_every_task_and_refuses_new_ones() -> None:
    sandbox = await Sandbox.start(SandboxSettings(slots=2, disabled_layers=WITHOUT))
    marker = unique_marker()
    running = asyncio.create_task(run(sandbox, "daemonize", config={"marker": marker, "seconds": 100}))
    await eventually(lambda: processes_with(marker))
    await sandbox.close()
    assert (await running).code == "sandbox.lost"
    assert processes_with(marker) == []
    assert not sandbox.folder.exists()
    with pytest.raises(PlatformError, match="closed"):
        await run(sandbox, "nothing")


async def test_closing_does_not_wait_for_children_without_a_task(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = await Sandbox.start(SandboxSettings(slots=2, folder=lake / "idle", disabled_layers=WITHOUT))
    monkeypatch.setattr("traceplane.linux.fork_server._END_SECONDS", 600)
    async with asyncio.timeout(120):
        await idle.close()


async def test_a_killed_wrapper_ends_its_tasks(lake: Path) -> None:
    marker = unique_marker()
    folder = lake / "killed"
    script = f"""
import asyncio
from pathlib import Path
from traceplane.model.task_payload import TaskPayload
from traceplane.sandbox.assignment import Assignment
from traceplane.sandbox.pool import Sandbox
from traceplane.sandbox.sandbox_settings import SandboxSettings

async def main():
    settings = SandboxSettings(slots=1, folder=Path({str(folder)!r}), disabled_layers=frozenset({set(WITHOUT)!r}))
    payload = TaskPayload(config={{"marker": "{marker}", "seconds": 100}})
    operator = Assignment(
        task_id="t", attempt=1, entrypoint="hostile_operators:daemonize", payload=payload,
        code_paths=(Path({str(CODE)!r}),)
    )
    await (await Sandbox.start(settings)).run(operator)

asyncio.run(main())
"""
    wrapper = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    await eventually(lambda: len(processes_with(marker)) == 2, seconds=30)  # the script names it too
    wrapper.kill()
    await wrapper.wait()
    await eventually(lambda: processes_with(marker) == [])
    (abandoned,) = folder.iterdir()
    heir = await Sandbox.start(SandboxSettings(slots=1, folder=folder, disabled_layers=WITHOUT))
    try:
        assert not abandoned.exists()
    finally:
        await heir.close()


@whatever_the_layers
async def test_more_tasks_than_slots_wait_for_their_turn(sandbox: Sandbox) -> None:
    finished = await asyncio.gather(*(run(sandbox, "innocent") for _ in range(12)))
    assert [r.code for r in finished] == [None] * 12


@whatever_the_layers
async def test_a_payload_that_is_not_json_costs_no_slot(sandbox: Sandbox) -> None:
    for _ in range(6):
        with pytest.raises(TypeError):
            await run(sandbox, "nothing", config={"bad": object()})
    assert (await run(sandbox, "nothing")).code is None
