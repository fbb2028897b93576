"""Hostile operators on a Spark server, and a look at its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.process.sandbox_run import Run
from tests.spark.probes import WITHOUT
from tests.spark.victims import Victims
from traceplane.model.task_payload import DeclaredOutput, TaskPayload
from traceplane.sandbox.assignment import Assignment
from traceplane.sandbox.child_log import TaskLog
from traceplane.sandbox.frames import RunLimits
from traceplane.sandbox.pool import Sandbox
from traceplane.spark.command import SparkSettings
from traceplane.spark.server import SparkServer

AS_ROOT = os.geteuid() == 0
WORKER_UID, LOCAL_UID = pwd.getpwnam("nobody").pw_uid, 60_710
"""Of the unprivileged worker, which needs a name (Java asks for it), and of somebody else on the machine."""


def spark_settings(victims: Victims) -> SparkSettings:
    return SparkSettings(
        folder=victims.spark,
        object_store=victims.objects,
        code_paths=(victims.code_folder,),
        master="local[2]",
        memory_mb=512,
        quick=True,
        disabled_layers=WITHOUT,
    )


async def run(
    sandbox: Sandbox,
    server: SparkServer,
    victims: Victims,
    operator: str,
    *,
    readable: tuple[Path, ...] = (),
    output: Path | None = None,
    uses_spark: bool = True,
    **config: Any,
) -> Run:
    """A task as a worker runs it: its output folder is shown to the server to write, the rest to read."""
    outputs = () if output is None else (DeclaredOutput("rows", str(output)),)
    assignment = Assignment(
        task_id="task",
        attempt=1,
        entrypoint=f"hostile_spark:{operator}",
        payload=TaskPayload(config={"remote": server.remote, **config}, outputs=outputs),
        code_paths=(victims.code_folder,),
        limits=RunLimits(processes=256),
        spark=server.used if uses_spark else None,
    )
    lines: list[str] = []
    writable = [] if output is None else [output]
    grant = server.granting([*readable, *(path.parent for path in writable)], writable)
    result = await sandbox.run(assignment, log=TaskLog(lines.append), timeout=600, grant=grant)
    return Run(result, lines)


async def told_by_udf(
    sandbox: Sandbox, server: SparkServer, victims: Victims, act: str, *arguments: Any, **fields: Any
) -> str:
    probes = [["told", act, list(arguments)]]
    done = await run(sandbox, server, victims, "in_udf", probes=probes, **fields)
    assert done.code is None, done.result.error
    return str(done.told["told"])


async def eventually(condition: Callable[[], Any], what: str, seconds: float = 240.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"it never came true: {what}"
        await asyncio.sleep(0.02)
    return found


def jvm_of(server: SparkServer) -> int:
    """The Java process below a launcher."""
    below = {server.pid}
    for _ in range(3):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
                if parent in below:
                    below.add(int(name))
    (jvm,) = (pid for pid in below if b"SparkConnectServer" in command_line(pid))
    return jvm


def command_line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def port_of(server: SparkServer) -> int:
    return int(server.remote.partition("/;")[0].rpartition(":")[2])


OTHER_USER = """
import json, os, socket, sys
os.setgroups([]); os.setresgid(*[int(sys.argv[1])] * 3); os.setresuid(*[int(sys.argv[1])] * 3)
outcomes = {}
for path in sys.argv[3:]:
    try:
        outcomes[path] = str(os.listdir(path) if os.path.isdir(path) else open(path, "rb").read())
    except OSError as error:
        outcomes[path] = type(error).__name__
with socket.socket() as client:
    outcomes["port"] = client.connect_ex(("127.0.0.1", int(sys.argv[2])))
print(json.dumps(outcomes))
"""
