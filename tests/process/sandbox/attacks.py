"""Running hostile operators in a sandbox, beside innocent ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.process.sandbox_run import Run
from traceplane.model.task_payload import TaskPayload
from traceplane.sandbox.assignment import Assignment
from traceplane.sandbox.child_log import TaskLog
from traceplane.sandbox.pool import Sandbox

CODE = Path(__file__).resolve().parents[1]
"""Where `hostile_operators` are."""
SECRET = "tpw_a_worker_token_that_must_not_leak"
WITHOUT = frozenset(filter(None, os.environ.get("TRACEPLANE_TEST_SANDBOX_WITHOUT", "").split(",")))
IN_A_WAY_OF_CONFINING = "TRACEPLANE_TEST_SANDBOX_WITHOUT" in os.environ
AS_ROOT = os.geteuid() == 0
OTHER_UID = 60_715


whatever_the_layers = pytest.mark.skipif(IN_A_WAY_OF_CONFINING, reason="it does not depend on the layers")


def assignment(operator: str, task_id: str = "task", **fields: Any) -> Assignment:
    config = fields.pop("config", {})
    body = {"config": config, "outputs": [{"name": "rows"}], **fields.pop("payload", {})}
    payload = msgspec.convert(body, TaskPayload)
    entrypoint = operator if ":" in operator else f"hostile_operators:{operator}"
    fields.setdefault("code_paths", (CODE,))
    return Assignment(task_id=task_id, attempt=1, entrypoint=entrypoint, payload=payload, **fields)


async def run(
    sandbox: Sandbox, operator: str, *, timeout: float = 120, on_events: Any = None, **fields: Any
) -> Run:
    lines: list[str] = []
    result = await sandbox.run(
        assignment(operator, **fields), log=TaskLog(lines.append), on_events=on_events, timeout=timeout
    )
    return Run(result, lines)


async def attack(sandbox: Sandbox, operator: str, **fields: Any) -> Run:
    """Run a hostile operator beside an innocent one, which must come out whole."""
    attacked, bystander = await asyncio.gather(
        run(sandbox, operator, **fields), run(sandbox, "innocent", task_id="bystander")
    )
    assert bystander.result.error is None
    assert bystander.result.outputs[0].row_count == 10
    return attacked


async def run_until_it_left_something(sandbox: Sandbox, operator: str, **fields: Any) -> Run:
    """Kill it after a short time, or after a longer one if it had not come that far on a busy machine."""
    for seconds in (0.5, 2.0, 8.0):
        attacked = await attack(sandbox, operator, timeout=seconds, **fields)
        if attacked.result.leftovers:
            return attacked
    raise AssertionError("it left nothing behind")


def unique_marker() -> str:
    """An argument for `sleep` that no other process has."""
    return f"1000.{os.getpid()}{time.monotonic_ns()}"


def processes_with(marker: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if marker.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
    return found


async def eventually(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)
