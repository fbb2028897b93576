"""Operator code cannot reach other tasks' files and processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.sandbox.attacks import CODE, attack, eventually, run
from traceplane.linux import kernel
from traceplane.sandbox.confinement import NAMESPACES
from traceplane.sandbox.pool import Sandbox

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only"),
    pytest.mark.asyncio(loop_scope="package"),
]


@pytest.mark.parametrize("job", ["same", "other"])
async def test_another_tasks_staging_cannot_be_reached(sandbox: Sandbox, lake: Path, job: str) -> None:
    staging = lake / "jobs" / job / "theirs"
    committed = await run(sandbox, "innocent", staging=lake / "jobs" / job / "committed")
    sealed = committed.result.outputs[0].files[0].path
    assert Path(sealed).stat().st_mode & 0o004
    busy = asyncio.create_task(run(sandbox, "innocent", staging=staging, config={"seconds": 1.0}))
    await eventually((staging / "0").exists)
    paths = [str(staging / "0"), str(staging), sealed, os.path.dirname(sealed)]
    looked = await run(
        sandbox, "look_at_files", config={"paths": paths}, staging=lake / "jobs" / "same" / "mine"
    )
    wrote = await run(
        sandbox, "write_around", config={"paths": paths}, staging=lake / "jobs" / "same" / "mine2"
    )
    for outcome in looked.told["outcomes"].values():
        assert not outcome.startswith("did")
    for outcome in wrote.told["outcomes"].values():
        assert not outcome.startswith("did")
    assert (await busy).code is None


async def test_nothing_is_left_for_the_next_task(sandbox: Sandbox) -> None:
    for _ in range(2):
        await asyncio.gather(*(run(sandbox, "leave_something") for _ in range(4)))
    found = await asyncio.gather(*(run(sandbox, "find_something") for _ in range(8)))
    for looked in found:
        assert looked.told["found"] == []
        assert not set(looked.told["temp"]) & {"left-behind", "private"}


async def test_code_cannot_be_changed(sandbox: Sandbox) -> None:
    before = (CODE / "hostile_operators.py").read_text()
    wrote = await attack(sandbox, "write_around", config={"paths": [str(Path(kernel.__file__).parent)]})
    for outcome in wrote.told["outcomes"].values():
        assert not outcome.startswith("did")
    assert not wrote.told["removed"].startswith("did")
    assert wrote.told["own_temp"].startswith("did")
    assert wrote.told["shared_temp"].startswith("did") == sandbox.isolation.has(NAMESPACES)
    assert not Path("/tmp/left-behind").exists()
    assert (CODE / "hostile_operators.py").read_text() == before
    assert not (CODE / "planted.py").exists()


async def test_limits_and_priorities_of_other_processes_stay_as_they_are(
    sandbox: Sandbox, victim: subprocess.Popen[bytes]
) -> None:
    """A slot's next tasks inherit its own, and a limit on processor time ends a process."""
    before = (await run(sandbox, "describe_limits")).told
    changed = await attack(sandbox, "change_limits", config={"pids": [victim.pid]})
    assert set(changed.told["outcomes"].values()) == {"EPERM"}
    assert set(changed.told["affinities"]) == {"did: None"}, (
        "ignored: libraries do this for their own threads"
    )
    assert all(outcome.startswith("did") for outcome in changed.told["own"].values()), changed.told["own"]
    for after in await asyncio.gather(*(run(sandbox, "describe_limits") for _ in range(8))):
        assert after.told == before
    assert len(os.sched_getaffinity(victim.pid)) == len(os.sched_getaffinity(0))
    assert victim.poll() is None


async def test_files_of_the_platform_keep_their_modes_owners_and_times(
    sandbox: Sandbox, secret_file: Path
) -> None:
    """F8: Landlock does not cover chmod and its like."""
    before = secret_file.stat()
    folder_before = secret_file.parent.stat()
    changed = await attack(sandbox, "change_attributes", config={"path": str(secret_file)})
    for after, was in ((secret_file.stat(), before), (secret_file.parent.stat(), folder_before)):
        assert (after.st_mode, after.st_uid, after.st_gid) == (was.st_mode, was.st_uid, was.st_gid)
    assert secret_file.stat().st_mtime_ns == before.st_mtime_ns
    assert not os.listxattr(secret_file)
    assert changed.told["own_file_copied"] == "did: 'mine'"


async def test_no_other_process_can_be_signalled(sandbox: Sandbox, victim: subprocess.Popen[bytes]) -> None:
    sibling = asyncio.create_task(run(sandbox, "innocent", config={"seconds": 0.5}))
    shot = await attack(sandbox, "signal_others", config={"pids": [victim.pid, os.getpid()]})
    assert shot.code is None
    assert victim.poll() is None
    assert (await sibling).code is None
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
