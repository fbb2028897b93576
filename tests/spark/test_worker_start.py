"""A worker that is stopped before it is ready gives up its start and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.platform import FAST, Process, until
from tests.spark.conftest import descendants

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

GIVES_UP_SECONDS = 20.0
"""Generous for a busy machine; it takes a fraction of a second on an idle one. Waiting for Spark would take longer, and
the log would tell."""


@pytest_asyncio.fixture(loop_scope="session")
async def home(tmp_path: Path) -> AsyncIterator[Path]:
    before = Path("/proc/self/mountinfo").read_text()
    yield tmp_path
    assert Path("/proc/self/mountinfo").read_text() == before


async def starting_worker(home: Path, runtime: str) -> Process:
    """It needs no dispatcher: it has not asked for work yet."""
    environment = {
        **FAST,
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(home),
        "TRACEPLANE_HOME": str(home),
        "TRACEPLANE_WORKER_TOKEN": "of nobody",
        "TRACEPLANE_SPARK_MEMORY_MB": "640",
    }
    worker = Process("worker", ("worker", "--runtime", runtime), environment, home / "worker.log")
    await worker.start()
    return worker


async def children_once(worker: Process, contain: bytes) -> list[int]:
    """Every process below the worker, once the command line of one of them has this in it."""

    async def children() -> list[int] | None:
        assert worker.alive, worker.log.read_text()
        assert worker.running is not None
        below = descendants(worker.running.pid)
        return below if any(contain in command_line(pid) for pid in below) else None

    found: list[int] = await until(children, what=f"a process of {contain!r}")
    return found


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def events(worker: Process) -> list[str]:
    return [json.loads(line)["event"] for line in worker.log.read_text().splitlines()]


@pytest.mark.parametrize(
    ("runtime", "starts"),
    [
        ("spark", b"traceplane.spark.network"),
        ("spark", b"traceplane.spark.launcher"),
        ("spark", b"SparkConnectServer"),
        ("python", b"traceplane.sandbox.server_process"),
    ],
)
async def test_a_worker_that_is_stopped_while_it_starts_does_not_wait_for_the_start(
    home: Path, runtime: str, starts: bytes
) -> None:
    worker = await starting_worker(home, runtime)
    try:
        below = await children_once(worker, starts)
        worker.send(signal.SIGTERM)
        assert await worker.died(GIVES_UP_SECONDS) == 0, worker.log.read_text()
    finally:
        await worker.kill()

    assert [event for event in events(worker) if event.startswith("process.")] == [
        "process.started",
        "process.stopping",
        "process.stopped",
    ]
    assert not {"spark.ready", "worker.ready"} & set(events(worker)), "it waited for the start"
    assert [command_line(pid) for pid in below if command_line(pid)] == []
    assert [path.name for path in (home / "spark").glob("server-*")] == []
    assert [path.name for path in home.glob("traceplane-sandbox-*")] == []
