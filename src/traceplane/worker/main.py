"""The worker process, wired by hand."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

from traceplane import telemetry
from traceplane.adapters.object_cache import ObjectCache
from traceplane.adapters.object_stores import object_store_for
from traceplane.decoding.decoder_pool import Decoders
from traceplane.errors import InvalidInput
from traceplane.model.runtimes import SPARK, Driver, Network, Runtime
from traceplane.operators import catalog
from traceplane.runtime.locked_folder import closed_folder
from traceplane.runtime.process import task_group
from traceplane.sandbox.frames import Reach, ReachSpark
from traceplane.sandbox.sandbox_settings import NO_NETWORK, SandboxSettings
from traceplane.sandbox.sandboxes import Sandboxes
from traceplane.settings import Settings, checked_code_paths
from traceplane.spark.command import SparkSettings
from traceplane.spark.servers import OneRemoteSpark, SparkServers
from traceplane.worker.attempt import Attempts
from traceplane.worker.code_cache import CodeCache
from traceplane.worker.dispatcher_client import DispatcherClient, patiently
from traceplane.worker.intake import Intake, LocalIntake, QueueIntake
from traceplane.worker.store_on_disk import StoreOnDisk
from traceplane.worker.wrapper import Wrapper

# pyarrow imports pandas when it makes its first array: a second, for each task, if nobody did it before.
_PRELOAD = ("pyarrow.parquet", "pandas", "pyarrow.pandas_compat", "aiohttp")
_PRELOAD_SPARK = ("pyarrow.parquet", "pandas", "pyarrow.pandas_compat", "traceplane.dataplane.task")


async def run(
    settings: Settings, stop: asyncio.Event, *, hurry: asyncio.Event, runtime: str = "python"
) -> None:
    """Runs tasks of one runtime until `stop`, then lets the running ones finish or hands them back; with a `hurry`,
    hands them back at once."""
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
    code_paths = checked_code_paths(settings)
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
    spark = await _spark(settings, chosen, code_paths, store) if SPARK in chosen.capabilities else None
    sandboxes = await Sandboxes.start(
        SandboxSettings(
            slots=settings.worker_concurrency,
            network=ReachSpark() if spark is not None else NO_NETWORK,
            private_network=spark.network.descriptors if spark is not None else (),
            preload=_PRELOAD_SPARK if spark is not None else (*_PRELOAD, *_built_in_code()),
            allow_weak=settings.allow_weak_sandbox,
        ),
        _reach(settings),
        chosen.network,
    )
    telemetry.emit("worker.ready", runtime=runtime, isolation=list(sandboxes.layers))
    decoders = Decoders()
    attempts = Attempts(
        client=client,
        sandboxes=sandboxes,
        runtime=chosen,
        store=store,
        code=CodeCache(
            closed_folder(settings.home.resolve() / "code_bundles"),
            code_paths,
            lambda bundle: patiently(lambda: client.code(bundle)),
        ),
        decoders=decoders,
        spark=spark,
    )
    wrapper = Wrapper(
        client=client,
        intake=intake,
        attempts=attempts,
        store=store,
        slots=settings.worker_concurrency,
        drain_seconds=settings.worker_drain_seconds,
        heartbeat_seconds=chosen.heartbeat_seconds,
    )
    loops = {"spark": spark.keep_running(stop)} if spark is not None else {}
    try:
        await task_group(
            stop,
            grace=settings.worker_drain_seconds + 30.0,
            work=wrapper.take_work(stop, hurry),
            heartbeat=wrapper.heartbeat(stop),
            intake=intake.run(stop),
            **loops,
        )
    finally:
        await asyncio.to_thread(decoders.close)
        await sandboxes.close()
        if spark is not None:
            await spark.close()
        if store.cache is not None:
            await store.cache.close()
        await client.close()


def _built_in_code() -> list[str]:
    """The modules of the built-in operators that Python workers run."""
    specs = [spec for name in catalog.BUILT_IN if (spec := catalog.find(name)) is not None]
    return sorted({s.entrypoint.partition(":")[0] for s in specs if s.entrypoint and "python" in s.runtimes})


async def _store(settings: Settings) -> StoreOnDisk:
    if settings.object_bucket is None:
        root = settings.object_store_root.resolve()
        if settings.object_store is None:
            closed_folder(root)
        return StoreOnDisk(inputs=root, outputs=root)
    if settings.object_cache is None:
        closed_folder(settings.object_cache_root)
    cache = await ObjectCache.open(
        object_store_for(settings), settings.object_cache_root, limit_bytes=settings.object_cache_mb << 20
    )
    return StoreOnDisk(inputs=cache.files, outputs=cache.outputs, cache=cache)


async def _spark(
    settings: Settings, runtime: Runtime, code_paths: tuple[Path, ...], store: StoreOnDisk
) -> SparkServers | OneRemoteSpark:
    if settings.spark_remote is not None:
        return OneRemoteSpark(settings.spark_remote)
    return await SparkServers.start(
        SparkSettings(
            folder=closed_folder(settings.home.resolve() / "spark"),
            object_store=store.outputs,
            inputs=store.inputs,
            code_paths=code_paths,
            master=settings.spark_master,
            memory_mb=settings.spark_memory_mb,
            disk_bytes=settings.spark_disk_mb << 20,
            quick=settings.spark_compiler == "quick",
            allow_weak=settings.allow_weak_sandbox,
        ),
        # A cluster's driver has to be reached by its executors.
        private=runtime.network is not Network.ALWAYS and settings.spark_master.startswith("local"),
        by_job=settings.spark_isolation == "job",
        most=settings.spark_servers,
    )


def _endpoints(url: str) -> list[str]:
    """The addresses and the port that a URL leads to, as far as they are known now."""
    parts = urlsplit(url)
    port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 5432)
    try:
        found = socket.getaddrinfo(parts.hostname or "", port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({f"[{a[4][0]}]:{port}" for a in found})


def _reach(settings: Settings) -> Reach:
    """Operators with the network do not reach what the platform is made of, as far as this worker knows where it is."""
    services = [settings.dispatcher_address, settings.gateway_address, settings.state_url]
    denied = [endpoint for url in services if url for endpoint in _endpoints(url)]
    return Reach(
        allowed=list(settings.operator_network_allow),
        denied=denied,
        never=list(settings.operator_network_deny),
    )
