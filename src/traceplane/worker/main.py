"""The worker process, wired by hand."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

from traceplane import telemetry
from traceplane.adapters.object_cache import ObjectCache
from traceplane.adapters.object_store import object_store_for
from traceplane.errors import InvalidInput
from traceplane.model.runtimes import PYTHON_OPERATORS, SPARK, Driver
from traceplane.runtime import task_group
from traceplane.settings import Settings
from traceplane.task_api import DispatcherClient
from traceplane.worker.code_cache import CodeCache
from traceplane.worker.intake import Intake, LocalIntake, QueueIntake
from traceplane.worker.sandbox import Sandbox, SandboxSettings
from traceplane.worker.spark_server import RemoteSpark, SparkServer, SparkSettings
from traceplane.worker.wrapper import StoreOnDisk, Wrapper, patiently

# pyarrow imports pandas when it makes its first array: a second, for each task, if nobody did it before.
_PRELOAD = (
    "pyarrow.parquet",
    "pandas",
    "pyarrow.pandas_compat",
    "aiohttp",
    *(code.partition(":")[0] for code in PYTHON_OPERATORS.values()),
)
_PRELOAD_SPARK = ("pyarrow.parquet", "pandas", "pyarrow.pandas_compat", "traceplane.dataplane.task")


async def run(settings: Settings, stop: asyncio.Event, *, runtime: str = "python") -> None:
    """Runs tasks of one runtime until `stop`, then lets the running ones finish."""
    chosen = settings.runtimes.get(runtime)
    if chosen is None or chosen.driver is not Driver.QUEUE:
        queued = sorted(name for name, r in settings.runtimes.items() if r.driver is Driver.QUEUE)
        raise InvalidInput(
            "worker.unknown_runtime",
            "there is no queue-driven runtime of that name",
            value=runtime,
            next_step=f"use one of {', '.join(queued)}",
        )
    if settings.worker_token is None:
        raise InvalidInput(
            "worker.no_token",
            "a worker needs a worker token",
            next_step="set TRACEPLANE_WORKER_TOKEN (see `traceplane token issue worker`)",
        )
    code_paths = _code_paths(settings)
    client = DispatcherClient(settings.dispatcher_address, settings.worker_token)
    worker_id = f"{socket.gethostname()}:{os.getpid()}"
    intake: Intake = LocalIntake(client, worker_id=worker_id, runtime=runtime)
    if settings.wake_queue == "sqs":
        from traceplane.adapters.wake_queue_sqs import SqsWakeQueue  # boto is an optional extra

        assert chosen.queue is not None
        intake = QueueIntake(
            client,
            SqsWakeQueue.from_settings(settings),
            queue=chosen.queue,
            worker_id=worker_id,
            runtime=runtime,
        )
    store = await _store(settings)
    spark = await _spark(settings, code_paths, store) if SPARK in chosen.capabilities else None
    sandbox = await Sandbox.start(
        SandboxSettings(
            slots=settings.worker_concurrency,
            network="full" if chosen.network or spark is not None else "none",
            preload=_PRELOAD if spark is None else _PRELOAD_SPARK,
            allow_weak=settings.allow_weak_sandbox,
        )
    )
    telemetry.emit("worker.ready", runtime=runtime, isolation=list(sandbox.isolation.active))
    wrapper = Wrapper(
        client=client,
        intake=intake,
        sandbox=sandbox,
        runtime=chosen,
        slots=settings.worker_concurrency,
        store=store,
        code=CodeCache(
            settings.home.resolve() / "code_bundles",
            code_paths,
            lambda bundle: patiently(lambda: client.code(bundle)),
        ),
        spark=spark,
    )
    loops = {"spark": spark.keep_running(stop)} if spark is not None else {}
    try:
        await task_group(
            stop,
            grace=60.0,
            work=wrapper.take_work(stop),
            heartbeat=wrapper.heartbeat(stop),
            intake=intake.run(stop),
            **loops,
        )
    finally:
        await sandbox.close()
        if spark is not None:
            await spark.close()
        if store.cache is not None:
            await store.cache.close()
        await client.close()


async def _store(settings: Settings) -> StoreOnDisk:
    if settings.object_bucket is None:
        root = settings.object_store_root.resolve()
        return StoreOnDisk(inputs=root, outputs=root)
    cache = await ObjectCache.open(
        object_store_for(settings), settings.object_cache_root, limit_bytes=settings.object_cache_mb << 20
    )
    return StoreOnDisk(inputs=cache.files, outputs=cache.outputs, cache=cache)


async def _spark(
    settings: Settings, code_paths: tuple[Path, ...], store: StoreOnDisk
) -> SparkServer | RemoteSpark:
    if settings.spark_remote is not None:
        return RemoteSpark(settings.spark_remote)
    return await SparkServer.start(
        SparkSettings(
            folder=settings.home.resolve() / "spark" / str(os.getpid()),
            object_store=store.outputs,
            inputs=store.inputs,
            code_paths=code_paths,
            master=settings.spark_master,
            memory_mb=settings.spark_memory_mb,
            quick=settings.spark_compiler == "quick",
            allow_weak=settings.allow_weak_sandbox,
        )
    )


def _code_paths(settings: Settings) -> tuple[Path, ...]:
    """Operators can read what lies in their code paths; the platform's own folder must not be there."""
    home = settings.home.resolve()
    paths = tuple(path.resolve() for path in settings.worker_code_paths)
    for path in paths:
        if home.is_relative_to(path):
            raise InvalidInput(
                "worker.home_in_code_path",
                f"operators could read the platform's secrets: {home} lies inside of a code path",
                value=str(path),
                next_step="keep operators in a folder of their own, for example `traceplane up --code code`",
            )
    return paths
