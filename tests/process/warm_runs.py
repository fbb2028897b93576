"""Runs of `warm_operators` in children that are kept, and a look at their processes.

`PROCESS` of `warm_operators` tells which tasks ran in the same process.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import py_compile
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.process.sandbox_run import Run
from traceplane.model.task_payload import DeclaredOutput, TaskPayload
from traceplane.sandbox.assignment import Assignment, Reuse
from traceplane.sandbox.child_log import TaskLog
from traceplane.sandbox.frames import RunLimits
from traceplane.sandbox.pool import Sandbox

CODE = Path(__file__).resolve().parent
_numbers = itertools.count(1)


class WarmRun(Run):
    @property
    def process(self) -> str:
        return str(self.told["process"])


@contextlib.contextmanager
def lake_folder() -> Iterator[Path]:
    folder = Path("/var/tmp") / f"traceplane-test-warm-{os.getpid()}"
    folder.mkdir(mode=0o755)
    with contextlib.suppress(PermissionError):
        py_compile.compile(str(CODE / "warm_operators.py"))
    yield folder
    shutil.rmtree(folder)


def job(lake: Path, name: str) -> Reuse:
    generation = lake / name / "generation"
    staging = generation / "staging"
    staging.mkdir(parents=True, exist_ok=True)
    return Reuse(key=name, readable=(generation,), writable=(staging,))


async def run(
    sandbox: Sandbox,
    of: Reuse,
    *acts: str,
    timeout: float = 120,
    on_events: Any = None,
    entrypoint: str = "warm_operators:look_then_act",
    code: Path = CODE,
    limits: RunLimits | None = None,
    task_id: str | None = None,
    attempt: int = 1,
    **config: Any,
) -> WarmRun:
    lines: list[str] = []
    task_id = task_id or f"task-{next(_numbers)}"
    result = await sandbox.run(
        Assignment(
            task_id=task_id,
            attempt=attempt,
            entrypoint=entrypoint,
            payload=TaskPayload(
                config={"acts": acts, **config},
                outputs=(DeclaredOutput("rows", str(of.writable[0] / task_id / str(attempt))),),
            ),
            code_paths=(code,),
            limits=limits or RunLimits(),
            reuse=of,
        ),
        log=TaskLog(lines.append),
        on_events=on_events,
        timeout=timeout,
    )
    return WarmRun(result, lines)


def processes_of(uids: list[int]) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if _uid_of(name) in uids:
                found.append(int(name))
    return found


def _uid_of(pid: str) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["Uid"].split()[0])


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def eventually(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)
