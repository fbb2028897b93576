"""Operator code that uses up memory, processes, disk or time is ended, and affects no other task."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.process.sandbox.attacks import (
    assignment,
    attack,
    eventually,
    processes_with,
    run,
    run_until_it_left_something,
    unique_marker,
    whatever_the_layers,
)
from traceplane.sandbox.child_log import TaskLog
from traceplane.sandbox.confinement import NAMESPACES, UID_SLOTS
from traceplane.sandbox.frames import RunLimits
from traceplane.sandbox.pool import Sandbox

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only"),
    pytest.mark.asyncio(loop_scope="package"),
]


async def test_a_fork_bomb_is_bounded_and_cleaned_up(sandbox: Sandbox) -> None:
    bombed = await attack(sandbox, "fork_bomb", limits=RunLimits(processes=40))
    assert bombed.code is None
    assert bombed.told["stopped_by"] == "EAGAIN"
    most = 40 if sandbox.isolation.has(UID_SLOTS) or sandbox.isolation.has(NAMESPACES) else 5000
    assert 0 < bombed.told["count"] <= most
    assert bombed.result.leftovers
    assert (await run(sandbox, "uses_threads_and_processes")).code is None


async def test_a_fork_bomb_that_never_rests_is_killed(sandbox: Sandbox) -> None:
    bombed = await run_until_it_left_something(
        sandbox, "relentless_fork_bomb", limits=RunLimits(processes=40)
    )
    assert bombed.code == "operator.timeout"


async def test_memory_is_bounded(sandbox: Sandbox) -> None:
    hogged = await attack(sandbox, "hog_memory", limits=RunLimits(memory_bytes=400 << 20))
    assert hogged.result.error is not None
    assert (hogged.code, hogged.result.error.type) == ("operator.raised", "MemoryError")
    assert "out of memory" in str(hogged.result.error.hint)


async def test_shared_memory_is_bounded_too(sandbox: Sandbox) -> None:
    hogged = await attack(sandbox, "hog_shared_memory", limits=RunLimits(memory_bytes=1 << 30))
    assert hogged.told["megabytes"] < 12_000
    assert hogged.told["memfd"] == "EPERM"


@whatever_the_layers
async def test_uncounted_shared_memory_cannot_be_allocated(sandbox: Sandbox) -> None:
    """F11: anonymous shared mappings are no data of the process, so its limit does not see them."""
    grabbed = await attack(sandbox, "grab_shared_memory", limits=RunLimits(memory_bytes=512 << 20))
    assert grabbed.told["shared"] == "ENOMEM"
    assert grabbed.told["private"] == "did: 1048576"


@whatever_the_layers
async def test_uncounted_stacks_cannot_be_allocated(sandbox: Sandbox) -> None:
    """Nor are mappings that grow downwards data, and a stack grows as far as its own limit."""
    grabbed = await attack(sandbox, "grab_stacks", limits=RunLimits(memory_bytes=512 << 20))
    assert grabbed.told["mapped"] == "ENOMEM"
    assert grabbed.told["most"] == 8 << 20


@whatever_the_layers
async def test_operators_cannot_block_readers_with_a_file_lease(sandbox: Sandbox) -> None:
    """An operator of an ordinary user's worker owns what it reads, in the eyes of the kernel."""
    taken = await attack(sandbox, "take_leases")
    assert (taken.told["lease"], taken.told["delegation"]) == ("EPERM", "EPERM")
    assert taken.told["lock"] == "did: None"


async def test_disk_is_bounded(sandbox: Sandbox) -> None:
    filled = await attack(sandbox, "fill_disk", limits=RunLimits(disk_bytes=8 << 20))
    assert filled.code == "operator.killed"
    assert f"the limit is {8 << 20}" in filled.message
    filled = await attack(sandbox, "fill_one_file", limits=RunLimits(file_bytes=8 << 20))
    assert filled.code == "operator.raised"
    assert "File too large" in filled.message


@whatever_the_layers
async def test_files_nested_too_deeply_exceed_the_limit(sandbox: Sandbox) -> None:
    hidden = await attack(sandbox, "hide_deep", limits=RunLimits(disk_bytes=1 << 30))
    assert hidden.code == "operator.killed"


@whatever_the_layers
async def test_processor_time_is_bounded(sandbox: Sandbox) -> None:
    burned = await attack(sandbox, "burn", limits=RunLimits(cpu_seconds=1))
    assert burned.code == "operator.killed"
    assert burned.result.error is not None
    assert "processor time" in str(burned.result.error.hint)


@pytest.mark.parametrize(
    "operator",
    [
        "ignore_polite_signals",
        pytest.param("burn", marks=whatever_the_layers),
        pytest.param("stall_after_result", marks=whatever_the_layers),
    ],
)
async def test_a_timeout_ends_an_operator_that_resists(sandbox: Sandbox, operator: str) -> None:
    late = await attack(sandbox, operator, timeout=0.3)
    assert late.code == "operator.timeout"
    assert "longer than 0.3 seconds" in late.message


@whatever_the_layers
async def test_a_task_gets_sigterm_first(sandbox: Sandbox) -> None:
    lines: list[str] = []
    running = asyncio.create_task(sandbox.run(assignment("heeds_polite_signals"), log=TaskLog(lines.append)))
    await eventually(lambda: lines)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert lines == ['TELL {"waiting": true}', 'TELL {"leaving": true}']


async def test_a_daemon_does_not_outlive_its_task(sandbox: Sandbox) -> None:
    marker = unique_marker()
    ended = await attack(sandbox, "daemonize", config={"marker": marker})
    assert ended.code is None
    assert ended.result.leftovers
    assert processes_with(marker) == []


async def test_a_daemon_does_not_outlive_a_timeout(sandbox: Sandbox) -> None:
    marker = unique_marker()
    ended = await run_until_it_left_something(sandbox, "daemonize", config={"marker": marker, "seconds": 100})
    assert ended.code == "operator.timeout"
    assert processes_with(marker) == []


async def test_a_daemon_does_not_outlive_a_cancellation(sandbox: Sandbox) -> None:
    marker = unique_marker()
    running = asyncio.create_task(run(sandbox, "daemonize", config={"marker": marker, "seconds": 100}))
    await eventually(lambda: processes_with(marker))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert processes_with(marker) == []


@whatever_the_layers
async def test_cancelling_twice_still_waits_for_the_end(sandbox: Sandbox) -> None:
    marker = unique_marker()
    running = asyncio.create_task(run(sandbox, "daemonize", config={"marker": marker, "seconds": 100}))
    await eventually(lambda: processes_with(marker))
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert processes_with(marker) == []


@whatever_the_layers
async def test_a_flood_of_logs_is_truncated_and_its_end_kept(sandbox: Sandbox) -> None:
    flooded = await attack(sandbox, "flood_log", config={"lines": 3000}, limits=RunLimits(log_bytes=100_000))
    assert flooded.code is None
    assert sum(map(len, flooded.lines)) < 200_000
    assert flooded.lines[0].startswith("0 xxx")
    assert flooded.result.log_tail.endswith("the end")
    assert "bytes of log were not forwarded" in flooded.result.log_tail
    assert len(flooded.result.log_tail) < 50_000


@whatever_the_layers
async def test_a_line_without_end_does_not_fill_the_wrapper(sandbox: Sandbox) -> None:
    flooded = await attack(sandbox, "flood_one_line", timeout=2, limits=RunLimits(log_bytes=100_000))
    assert flooded.code == "operator.timeout"
    assert max(map(len, flooded.lines), default=0) <= 8192
    assert len(flooded.result.log_tail) < 50_000


@whatever_the_layers
async def test_a_result_that_is_too_large_is_refused(sandbox: Sandbox) -> None:
    large = await attack(
        sandbox, "large_result", config={"events": 2000}, limits=RunLimits(result_bytes=50_000)
    )
    assert large.code == "operator.result_invalid"
    assert "the limit is 50000" in large.message


@whatever_the_layers
async def test_folders_too_deep_for_python_are_removed(sandbox: Sandbox, lake: Path) -> None:
    assert (await attack(sandbox, "deep_folders")).code is None
    await eventually(lambda: not any(sandbox.folder.glob("runs/*/tmp/d")))
