"""`python -m examples.signals`: bars → Spark → signals → trigger → executions, without a broker, in a minute."""

from __future__ import annotations

import asyncio
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from traceplane import telemetry
from traceplane.cli import profile, supervisor
from traceplane.client import Client
from traceplane.errors import PlatformError
from traceplane.http_service.client import Caller
from traceplane.settings import Settings, load
from traceplane.wire.control import EmitRequest, EmitResponse, ManualEvent, StatusResponse
from traceplane.wire.deploys import DeployRequest, DeployResponse
from traceplane.wire.pipelines import (
    ExecutionsResponse,
    PipelineConfig,
    PipelineRequest,
    PipelineView,
    Subscription,
)
from traceplane.wire.scalars import Scope

HERE = Path(__file__).parent
PAST, LIVE = 384, 12
"""Minutes that exist at the start, and minutes that arrive one by one."""
DAY = "2023-11-14"
PIPELINES = {
    "crosses": (Subscription("golden_cross"), Subscription("death_cross")),
    "sure bulls": (Subscription(direction="BULLISH", min_confidence=70.0),),
    "volume": (Subscription("volume_spike"),),
}


async def run(settings: Settings, caller: Caller) -> None:
    await until(lambda: answers(caller))
    yaml = (HERE / "dag.yaml").read_text()
    await caller.call("POST", "/api/v1/deploy", DeployResponse, DeployRequest(yaml, "dag.yaml"))
    for name, wanted in PIPELINES.items():
        request = PipelineRequest(
            name,
            PipelineConfig("market", "trade", {"shares": 10}),
            scanner_tickers=["AAPL", "AMZN", "GOOGL", "MSFT", "TSLA"],
            signal_subscriptions=list(wanted),
        )
        await caller.call("POST", "/api/v1/pipelines", PipelineView, request)
    print(f"1. The DAG is deployed, and {len(PIPELINES)} pipelines wait for signals.")
    past = Scope(partition_key=f"0-{PAST - 1}", start=0, end=PAST - 1)
    await emit(caller, past)
    await emit(caller, Scope(cursor=0), "market.listings")
    await until(lambda: settled(caller))
    print(f"2. {PAST} minutes of bars were processed on Spark: signals, averages, values by instrument.")
    for minute in range(PAST, PAST + LIVE):
        await emit(caller, Scope(cursor=minute))
        await until(lambda: settled(caller))
    print(f"3. {LIVE} more arrived one by one; each task read the earlier bars that it needs.")
    day = EmitRequest([ManualEvent("market.closes", partition=DAY)])
    await caller.call("POST", "/api/v1/events", EmitResponse, day)
    await until(lambda: settled(caller))
    print(f"4. The exchange closed on {DAY}, and the day was rolled up.")
    client = Client(settings.gateway_address, str(settings.user_token))

    async def all_seen() -> bool:
        done = await caller.call("GET", "/api/v1/executions", ExecutionsResponse, query={"limit": "1000"})
        over = all(e.status in ("COMPLETED", "FAILED") for e in done.executions)
        return over and {e.pipeline for e in done.executions} == set(PIPELINES)

    await until(all_seen)
    for sql in (
        "select ticker, low, high, close, volume from market.daily order by ticker",
        "select ticker, name, value from market.valued where position = 0 order by ticker",
        "select signal_type, signal, count(*) as signals, min(position) as first, max(position) as last"
        " from market.signals group by all order by all",
        "select pipeline, side, ticker, signal_id, shares from market.trades order by all",
    ):
        print(f"\n{sql}\n")
        for row in (await asyncio.to_thread(client.query, sql)).to_pylist():
            print("   " + "  ".join(f"{value!s:<14}" for value in row.values()))


async def emit(caller: Caller, scope: Scope, dataset: str = "market.minutes") -> None:
    request = EmitRequest([ManualEvent(dataset, scope)])
    await caller.call("POST", "/api/v1/events", EmitResponse, request)


async def answers(caller: Caller) -> bool:
    try:
        await caller.call("GET", "/api/v1/status", StatusResponse)
    except PlatformError:
        return False
    return True


async def settled(caller: Caller) -> bool:
    return not (await caller.call("GET", "/api/v1/status", StatusResponse)).counts


async def until(condition: Callable[[], Awaitable[Any]], seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        if time.monotonic() > deadline:
            raise SystemExit("timed out; see processes.log in the folder of the run")
        await asyncio.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def main(folder: Path) -> None:
    settings = load(
        environment={},
        home=folder,
        dispatcher_port=free_port(),
        gateway_port=free_port(),
        trigger_port=free_port(),
        kafka_auto_offset_reset="earliest",
        log_format="text",
        log_level="error",
        worker_code_paths=[HERE.parents[1]],
        spark_compiler="quick",
        worker_concurrency=2,
    )
    started, server = await asyncio.to_thread(profile.start_postgres, settings, die_with_parent=True)
    prepared = replace(await profile.prepare(started), log_level="error")
    telemetry.configure("example", log_level="error", log_format="text")
    caller, stop = Caller(prepared.gateway_address, prepared.user_token), asyncio.Event()
    logs = (folder / "processes.log").open("w")
    children = [
        replace(child, output=logs.fileno())
        for child in supervisor.services(prepared, workers=1, trigger=True)
    ]
    running = asyncio.create_task(supervisor.supervise(children, stop))
    try:
        await run(prepared, caller)
    finally:
        stop.set()
        await running
        await caller.close()
        if server is not None:
            await asyncio.to_thread(server.destroy)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="traceplane-signals-", ignore_cleanup_errors=True) as temporary:
        Path(temporary).chmod(0o711)  # the sandbox and Postgres run as other users when this one is root
        asyncio.run(main(Path(temporary)))
