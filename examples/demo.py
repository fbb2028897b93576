"""`make demo`: the product at work, with processes killed in the middle, in about a minute."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from examples.market.operators import make_bars, synthetic_trades
from traceplane import telemetry
from traceplane.cli import profile, supervisor
from traceplane.control_api import (
    DeployRequest,
    DeployResponse,
    EmitRequest,
    EmitResponse,
    ManualEvent,
    StatusResponse,
)
from traceplane.errors import PlatformError
from traceplane.postgres import commits, tasks
from traceplane.postgres.database import Database
from traceplane.settings import Settings, load
from traceplane.task_api import Caller, Scope

HERE = Path(__file__).parent
MINUTES = 120


def say(text: str) -> None:
    print(text, flush=True)


class Demo:
    def __init__(self, settings: Settings, database: Database, caller: Caller) -> None:
        self.settings, self.database, self.caller = settings, database, caller
        self.pids: dict[str, int] = {}
        self.started = time.monotonic()

    async def run(self) -> bool:
        await self.until(self.gateway_answers)
        say(f"1. Embedded Postgres, dispatcher, gateway and two workers run ({self.seconds()}).")
        deployed = await self.caller.call(
            "POST",
            "/v1/deploy",
            DeployResponse,
            DeployRequest((HERE / "market/dag.yaml").read_text(), "dag.yaml"),
        )
        say(f"2. Deployed DAG {deployed.dag} version {deployed.version}:")
        say(
            "".join(
                f"      {line}\n" for line in deployed.text.splitlines() if line.startswith("+ job")
            ).rstrip()
        )
        first = await self.emit(range(60))
        say(f"3. Emitted 60 minutes: {first.accepted} accepted.")
        await self.kill_busy_worker()
        await self.kill_dispatcher()
        again = await self.emit(range(60))
        say(
            f"6. Emitted the first 60 again: {again.accepted} accepted, {again.duplicates} recognized as repetitions."
        )
        await self.until(self.settled)
        say(f"7. Everything is done ({self.seconds()}).")
        return await self.account()

    async def kill_busy_worker(self) -> None:
        running = await self.until(self.tasks_running)
        os.kill(self.pids["worker-1"], signal.SIGKILL)
        say(f"4. Killed worker-1 (SIGKILL) while {running} tasks were running on the two workers.")

    async def kill_dispatcher(self) -> None:
        await self.until(self.tasks_running)
        os.kill(self.pids["dispatcher"], signal.SIGKILL)
        second = await self.emit(range(60, MINUTES))
        say(
            f"5. Killed the dispatcher (SIGKILL); emitted 60 more while it was away: {second.accepted} accepted."
        )

    async def emit(self, minutes: range) -> EmitResponse:
        events = [ManualEvent("market.minutes", Scope(cursor=minute)) for minute in minutes]
        return await self.caller.call("POST", "/v1/events", EmitResponse, EmitRequest(events))

    async def account(self) -> bool:
        """What happened, and whether every promise held."""
        async with self.database.transaction() as tx:
            listed = await tasks.listing(tx, limit=10_000)
            datasets = {d["dataset_id"]: d for d in await commits.summary(tx)}
            lost = await tx.value(
                "select count(*) from events e"
                " where not exists (select 1 from task_inputs i where i.event_id = e.event_id)"
                " and exists (select 1 from job_inputs j where j.generation_id = e.generation_id)"
            )
            doubled = await tx.value(
                "select count(*) from (select generation_id, scope_key from dataset_commits"
                " group by 1, 2 having count(*) > 1) d"
            )
            files = await tx.rows(
                "select c.files from dataset_commits c join datasets d on d.current_generation_id = c.generation_id"
                " where d.dataset_id = 'market.bars' order by c.range_start"
            )
        say("\n      job             tasks  completed  needed a second attempt")
        for job in ("trades", "bars", "report__batch", "report"):
            mine = [t for t in listed if t["job"] == job]
            done = sum(t["state"] == "completed" for t in mine)
            say(f"      {job:<14} {len(mine):>6} {done:>10} {sum(t['attempt'] > 1 for t in mine):>10}")
        rows = [row for record in files for file in record["files"] for row in self.rows(file["path"])]
        expected = [bar for minute in range(MINUTES) for bar in make_bars(synthetic_trades(minute))]
        checks = {
            "every accepted event was processed": lost == 0,
            "every task completed": all(t["state"] == "completed" for t in listed),
            "no scope was committed twice": doubled == 0,
            f"{datasets['market.trades']['rows']:,} trades, as many as there should be": datasets[
                "market.trades"
            ]["rows"]
            == MINUTES * 200,
            f"{len(rows)} bars, equal to a recomputation in plain Python": rows == expected,
            f"{datasets['market.report']['commits']} reports of twenty minutes each": datasets[
                "market.report"
            ]["commits"]
            == MINUTES // 20,
            "some work was really interrupted": any(t["attempt"] > 1 for t in listed),
        }
        say("")
        for what, holds in checks.items():
            say(f"      {'ok ' if holds else 'NOT'}  {what}")
        return all(checks.values())

    def rows(self, path: str) -> list[dict[str, Any]]:
        return parquet.read_table(self.settings.object_store_root / path).to_pylist()

    # Waiting ---------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], Awaitable[Any]], seconds: float = 90.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (value := await condition()):
            if time.monotonic() > deadline:
                raise SystemExit(f"the demo waited {seconds:.0f} s in vain: {condition.__name__}")
            await asyncio.sleep(0.02)
        return value

    async def gateway_answers(self) -> bool:
        try:
            await self.caller.call("GET", "/v1/status", StatusResponse)
        except PlatformError:
            return False
        return True

    async def tasks_running(self) -> int:
        async with self.database.transaction() as tx:
            return sum(row["tasks"] for row in await tasks.counts(tx) if row["state"] == "running")

    async def settled(self) -> bool:
        async with self.database.transaction() as tx:
            return not await tasks.counts(tx)

    def seconds(self) -> str:
        return f"{time.monotonic() - self.started:.1f} s"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def main(folder: Path) -> bool:
    settings = load(
        environment={},
        home=folder,
        dispatcher_port=free_port(),
        gateway_port=free_port(),
        log_format="text",
        log_level="error",
        reap_grace_seconds=1.0,
        worker_code_paths=[HERE.parent],
    )
    started, server = await asyncio.to_thread(profile.start_postgres, settings, die_with_parent=True)
    prepared = await profile.prepare(started)
    prepared = replace(prepared, log_level="error")
    assert prepared.state_url is not None
    telemetry.configure("demo", log_level="error", log_format="text")
    database = await Database.connect(prepared.state_url, connections=2)
    caller = Caller(prepared.gateway_address, prepared.user_token)
    demo = Demo(prepared, database, caller)
    stop = asyncio.Event()
    logs = (folder / "processes.log").open("w")
    running = asyncio.create_task(
        supervisor.supervise(
            supervisor.children(prepared, workers=2, spark=False),
            stop,
            started=demo.pids.__setitem__,
            output=logs.fileno(),
        )
    )
    try:
        return await demo.run()
    finally:
        stop.set()
        await running
        await caller.close()
        await database.close()
        if server is not None:
            await asyncio.to_thread(server.destroy)


if __name__ == "__main__":
    say("Traceplane: minutes of trades become bars become reports, while processes are killed.\n")
    with tempfile.TemporaryDirectory(prefix="traceplane-demo-", ignore_cleanup_errors=True) as temporary:
        Path(temporary).chmod(0o711)  # the sandbox and Postgres run as other users when this one is root
        good = asyncio.run(main(Path(temporary)))
    say("\nNothing was lost, nothing was doubled." if good else "\nA promise was broken.")
    sys.exit(0 if good else 1)
