"""Operator code finds no secrets of the platform: not in files, the environment, or other processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.sandbox.attacks import AS_ROOT, CODE, OTHER_UID, SECRET, attack, run, whatever_the_layers
from traceplane.sandbox import private_root
from traceplane.sandbox.confinement import NAMESPACES
from traceplane.sandbox.pool import Sandbox

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only"),
    pytest.mark.asyncio(loop_scope="package"),
]


async def test_the_environment_holds_five_names_and_no_token(sandbox: Sandbox) -> None:
    assert os.environ["TRACEPLANE_WORKER_TOKEN"] == SECRET
    looked = await attack(sandbox, "look_at_environment")
    assert sorted(looked.told["environment"]) == ["HOME", "LANG", "PATH", "TMPDIR", "TZ"]
    assert SECRET not in json.dumps(looked.told)


async def test_no_descriptor_is_inherited(sandbox: Sandbox, inherited: int) -> None:
    control = "import os, sys; print(os.pread(int(sys.argv[1]), 100, 0))"
    unconfined = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", control, str(inherited)), close_fds=False, stdout=asyncio.subprocess.PIPE
    )
    assert SECRET.encode() in (await unconfined.communicate())[0]
    looked = await attack(sandbox, "look_at_descriptors")
    assert sorted(map(int, looked.told["descriptors"])) == [0, 1, 2, 3]


async def test_no_other_process_can_be_inspected(sandbox: Sandbox, victim: subprocess.Popen[bytes]) -> None:
    assert SECRET in Path(f"/proc/{victim.pid}/environ").read_text()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    assert {victim.pid, os.getpid()} <= set(pids)
    looked = await attack(sandbox, "look_at_processes", config={"pids": pids})
    assert looked.told["found"] == {}
    assert looked.told["tried"] >= len(pids) - 1


@whatever_the_layers
async def test_the_wrapper_is_closed_to_its_own_user() -> None:
    """Without any sandbox, a process of the same uid cannot look into a protected one."""
    outcomes = []
    for protect in (False, True):
        with _holder_of_the_secret(protect) as pid:
            outcomes.append(_look_as_other_user(pid))
    assert SECRET in outcomes[0]
    assert outcomes[1] == "PermissionError"


@contextlib.contextmanager
def _holder_of_the_secret(protect: bool) -> Iterator[int]:
    """A process, of an unprivileged user in any case, with the token in its environment."""
    script = f"""
import os, time
from traceplane.linux import kernel
from traceplane.linux.confine import protect_this_process
if os.geteuid() == 0:
    os.setresuid({OTHER_UID}, {OTHER_UID}, {OTHER_UID})
kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
if {protect}:
    protect_this_process()
print("ready", flush=True)
time.sleep(100)
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, env={"TOKEN": SECRET}, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield holder.pid
        holder.kill()


def _look_as_other_user(pid: int) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if AS_ROOT:
            os.setresuid(OTHER_UID, OTHER_UID, OTHER_UID)
        try:
            found = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError as error:
            found = type(error).__name__.encode()
        os.write(writer, found)
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read()


def _readable_address(pid: int) -> int:
    """Where a process has memory that its own user can read."""
    address = int(Path(f"/proc/{pid}/maps").read_text().split("-")[0], 16)
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        memory.seek(address)
        assert len(memory.read(8)) == 8
    return address


async def test_no_other_process_can_be_traced(sandbox: Sandbox, victim: subprocess.Popen[bytes]) -> None:
    address = _readable_address(victim.pid)
    tried = await attack(sandbox, "trace", config={"pids": [victim.pid, os.getpid()], "address": address})
    assert len(tried.told["outcomes"]) == 3
    for outcome in tried.told["outcomes"].values():
        assert outcome == {"traced": False, "memory": False}


async def test_files_of_the_platform_cannot_be_read(sandbox: Sandbox, secret_file: Path) -> None:
    assert SECRET in secret_file.read_text()
    assert secret_file.stat().st_mode & 0o004
    paths = [
        str(secret_file),
        str(secret_file.parent),
        "/etc/shadow",
        "/root",
        "/home",
        "/var",
        str(CODE.parents[1]),
    ]
    looked = await attack(sandbox, "look_at_files", config={"paths": paths})
    assert SECRET not in json.dumps(looked.told)
    for path, outcome in looked.told["outcomes"].items():
        # In a root of its own a folder may be there to pass through, wherever this is installed; then it shows the
        # task's own paths.
        passes_through = sandbox.isolation.has(NAMESPACES) and any(
            Path(folder).is_relative_to(path) for folder in (*private_root.interpreter_folders(), str(CODE))
        )
        listed = path == str(secret_file.parent) and sandbox.isolation.has(NAMESPACES)
        assert not outcome.startswith("did") or passes_through or listed, path
        assert "pyproject.toml" not in outcome
        assert "traceplane.toml" not in outcome


async def test_the_platforms_home_is_hidden_even_below_a_code_path(sandbox: Sandbox, lake: Path) -> None:
    project = lake / "project"
    home = project / ".traceplane"
    (home / "objects").mkdir(parents=True)
    shutil.copy(CODE / "hostile_operators.py", project)
    for secret in (home / "worker_token", home / "objects" / "other_task", project / "settings.toml"):
        secret.write_text(SECRET)
    (project / "notes.txt").write_text("the user's own")
    (project / "shortcut").symlink_to(home / "worker_token")
    own = await run(sandbox, "innocent", staging=home / "objects" / "own")
    assert own.code is None

    paths = [
        ".traceplane/worker_token",
        ".traceplane/objects/other_task",
        "settings.toml",
        "shortcut",
        "notes.txt",
    ]
    looked = await attack(
        sandbox,
        "look_at_files",
        config={"paths": [str(project / path) for path in paths]},
        payload={"inputs": [{"name": "own", "files": [file.path for file in own.result.outputs[0].files]}]},
        staging=home / "objects" / "next",
        code_paths=(project,),
    )
    assert looked.code is None
    assert SECRET not in json.dumps(looked.told)
    assert looked.told["outcomes"][str(project / "notes.txt")] == 'did: "the user\'s own"'
    doubled = await run(
        sandbox,
        "double",
        payload={
            "inputs": [{"name": "numbers", "files": [file.path for file in own.result.outputs[0].files]}],
            "outputs": [{"name": "doubled"}, {"name": "count"}],
        },
        staging=home / "objects" / "last",
        code_paths=(project,),
    )
    assert [output.row_count for output in doubled.result.outputs] == [10, 1]


async def test_no_link_mount_or_chroot_escapes_the_sandbox(sandbox: Sandbox, secret_file: Path) -> None:
    climbed = await attack(sandbox, "climb_out", config={"path": str(secret_file)})
    assert climbed.code is None
    for way, outcome in climbed.told.items():
        assert outcome is False or not str(outcome).startswith("did"), way
