"""Stopping processes finish their tasks or hand them back: a restart costs no task an attempt."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from tests.platform import OPERATORS, Platform, until

DAG = """
version: 1
dag: rolling
jobs:
- {name: numbers, activation: source, source: {kind: manual}, outputs: [{dataset: in}]}
- name: work
  runtime: python
  operator: python
  inputs: [{from: {job: numbers}}]
  outputs: [{dataset: out}]
  config: {entrypoint: "basic:slow", seconds: 0.7}
  max_attempts: 1
"""

RUNTIMES = f"""
[runtimes.call]
driver = "invoke"
invoker = "process"
target = "{shlex.join([sys.executable, "-I", "-S", str(OPERATORS / "slow_function.py")])}"
capabilities = ["reactive"]
"""


@contextlib.asynccontextmanager
async def kept_busy(platform: Platform) -> AsyncIterator[None]:
    """Events keep coming, about as many as both workers can do."""
    enough = asyncio.Event()

    async def feed() -> None:
        emitted = 0
        while not enough.is_set():
            await platform.emit("in", range(emitted, emitted + 6), patient=True)
            emitted += 6
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(enough.wait(), 0.5)

    feeding = asyncio.create_task(feed())
    try:
        yield
    finally:
        enough.set()
        await feeding


async def test_a_rolling_restart_under_load_costs_no_attempt(database_url: str, tmp_path: Path) -> None:
    """With a single attempt each, no task is dead: those that a worker cannot finish in time are handed back."""
    drain = {"TRACEPLANE_WORKER_DRAIN_SECONDS": "0.2"}
    async with Platform.start(database_url, tmp_path, workers=2, environment=drain) as platform:
        await platform.deploy(DAG)

        async def runs_on(name: str) -> bool:
            process = platform[name].running
            assert process is not None
            found = await platform.sql("select worker_id from tasks where state = 'running'")
            return any(row["worker_id"].endswith(f":{process.pid}") for row in found)

        async with kept_busy(platform):
            for name in ("worker-1", "dispatcher-1", "gateway", "worker-2"):
                for worker in ("worker-1", "worker-2"):
                    await until(partial(runs_on, worker), what=f"tasks run on {worker}")
                assert await platform[name].stop() == 0, platform.logs(name)[-4000:]
                await platform[name].start()
                await platform.ready(name)
        assert set(await platform.settled()) == {"completed"}
        used = await platform.sql("select distinct attempt - granted_attempts from tasks")
        assert [row[0] for row in used] == [1]
        assert await platform.value("select sum(granted_attempts) from tasks") > 0, "nothing was handed back"
        assert "lease_expired" not in platform.logs("dispatcher-1")


async def test_a_stopping_worker_takes_no_lease_with_it(database_url: str, tmp_path: Path) -> None:
    """Tasks arrive while it is stopping: each is done, or waits for another worker."""
    async with Platform.start(database_url, tmp_path) as platform:
        await platform.deploy(DAG)

        async def waits() -> bool:
            return "worker.ready" in platform.logs("worker-1")

        await until(waits, what="the worker is ready")
        _, code = await asyncio.gather(platform.emit("in", range(8)), platform["worker-1"].stop())
        assert code == 0
        assert not {"running", "dead"} & set(await platform.states("work"))


async def test_a_dispatcher_that_stops_hands_back_functions_that_it_called(
    database_url: str, tmp_path: Path
) -> None:
    runtimes = tmp_path / "runtimes.toml"
    runtimes.write_text(RUNTIMES)
    settings = {"TRACEPLANE_CONFIG": str(runtimes)}
    async with Platform.start(database_url, tmp_path / "home", workers=0, environment=settings) as platform:
        await platform.deploy(DAG.replace("runtime: python", "runtime: call"))
        await platform.emit("in", [1])

        async def called() -> bool:
            return await platform.states("work") == {"running": 1}

        await until(called, what="the function is called")
        assert await platform["dispatcher-1"].stop() == 0
        assert (
            await platform.value("select attempt - granted_attempts from tasks where state <> 'running'") == 0
        )
        await platform["dispatcher-1"].start()
        assert await platform.settled() == {"completed": 1}
