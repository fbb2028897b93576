"""The worker process, wired by hand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from traceplane import telemetry
from traceplane.adapters.object_cache import ObjectCache
from traceplane.adapters.object_stores import bucket_store_for
from traceplane.adapters.watched_files import WatchedFiles
from traceplane.decoding.decoder_pool import Decoders
from traceplane.errors import InvalidInput
from traceplane.model.runtimes import SPARK, Driver, Network, Runtime
from traceplane.operators import catalog
from traceplane.runtime.locked_folder import closed_folder
from traceplane.runtime.process import task_group, unless_stopped
from traceplane.sandbox.frames import Reach, ReachSpark
from traceplane.sandbox.sandbox_settings import NO_NETWORK, SandboxSettings
from traceplane.sandbox.sandboxes import Sandboxes
from traceplane.settings import Settings, checked_code_paths
from traceplane.spark import remote, s3_jars
from traceplane.spark.command import SparkSettings
from traceplane.spark.servers import OneRemoteSpark, SparkServers
from traceplane.wire.tasks import Resources
from traceplane.worker.attempt import Attempts
from traceplane.worker.code_cache import CodeCache
from traceplane.worker.direct_store import DirectStore
from traceplane.worker.dispatcher_client import DispatcherClient, patiently
from traceplane.worker.environment_cache import EnvironmentCache
from traceplane.worker.intake import Identity, Intake, LocalIntake, QueueIntake
from traceplane.worker.renewals import Renewals
from traceplane.worker.sandboxed_operators import SandboxedOperators
from traceplane.worker.store_on_disk import StoreOnDisk
from traceplane.worker.wrapper import Wrapper

# pyarrow imports pandas when it makes its first array: a second, for each task, if nobody did it before.
_PRELOAD = ("pyarrow.parquet", "pandas", "pyarrow.pandas_compat", "aiohttp")
_PRELOAD_SPARK = (*_PRELOAD, "traceplane.dataplane.task")


async def run(
    settings: Settings, stop: asyncio.Event, *, hurry: asyncio.Event, runtime: str = "python"
) -> None:
    """Runs tasks of one runtime until `stop`, then lets the running ones finish or hands them back; with a `hurry`,
    hands them back at once. A start that has not finished by then is given up."""
    async with contextlib.AsyncExitStack() as opened:
        worker = await unless_stopped(stop, _start(settings, runtime, opened))
        if worker is not None:
            await worker.work(stop, hurry)


@dataclass(frozen=True)
class _Worker:
    """All that a worker is made of, ready to take tasks."""

    wrapper: Wrapper
    intake: Intake
    spark: SparkServers | OneRemoteSpark | None
    online_spark: SparkServers | None
    renewals: Renewals | None
    drain_seconds: float

    async def work(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        loops = {"spark": self.spark.keep_running(stop)} if self.spark is not None else {}
        if self.online_spark is not None:
            loops["online_spark"] = self.online_spark.tend(stop)
        if self.renewals is not None:
            loops["renewals"] = self.renewals.serve(stop)
        await task_group(
            stop,
            grace=self.drain_seconds + 30.0,
            work=self.wrapper.take_work(stop, hurry),
            heartbeat=self.wrapper.heartbeat(stop),
            intake=self.intake.run(stop),
            **loops,
        )


async def _start(settings: Settings, name: str, opened: contextlib.AsyncExitStack) -> _Worker:
    """May be canceled at any time: what is open by then is in `opened`."""
    runtime = _queued_runtime(settings, name)
    client = DispatcherClient(settings.dispatcher_address, _token(settings), tls_ca=settings.tls_ca)
    opened.push_async_callback(client.close)
    code = _code_cache(settings, client)
    environments = _environment_cache(settings, client)
    opened.push_async_callback(environments.close)
    intake = _intake(settings, runtime, name, client)
    store = await _store(settings, runtime, opened)
    spark = online_spark = None
    if SPARK in runtime.capabilities:
        spark = await _spark(settings, runtime, store, opened)
        if spark.network.descriptors and runtime.network is not Network.NEVER:
            online_spark = await _online_spark(settings, store, opened)
    sandboxes = await _sandboxes(settings, runtime, spark, opened)
    decoders = Decoders()
    opened.push_async_callback(asyncio.to_thread, decoders.close)
    watched_files = WatchedFiles(settings)
    opened.push_async_callback(watched_files.close)
    operators = SandboxedOperators(
        client=client,
        sandboxes=sandboxes,
        runtime=runtime,
        store=store,
        code=code,
        environments=environments,
        spark=spark,
        online_spark=online_spark,
        spark_ui_url=settings.spark_ui_url,
    )
    attempts = Attempts(
        client=client, operators=operators, store=store, decoders=decoders, watched_files=watched_files
    )
    wrapper = _wrapper(settings, runtime, client, intake, attempts, store)
    telemetry.emit("worker.ready", runtime=name, isolation=list(sandboxes.layers))
    renewals = store.direct.renewals if store.direct is not None else None
    return _Worker(wrapper, intake, spark, online_spark, renewals, settings.worker_drain_seconds)


def _queued_runtime(settings: Settings, name: str) -> Runtime:
    runtime = settings.runtimes.get(name)
    if runtime is not None and runtime.driver is Driver.QUEUE:
        return runtime
    queued = sorted(name for name, r in settings.runtimes.items() if r.driver is Driver.QUEUE)
    raise InvalidInput(
        "worker.unknown_runtime",
        "there is no queue-driven runtime of that name",
        value=name,
        next_step=f"use one of {', '.join(queued)}",
    )


def _token(settings: Settings) -> str:
    if settings.worker_token is None:
        raise InvalidInput(
            "worker.no_token",
            "a worker needs a worker token",
            next_step="set TRACEPLANE_WORKER_TOKEN (see `traceplane token issue worker`)",
        )
    return settings.worker_token


def _intake(settings: Settings, runtime: Runtime, name: str, client: DispatcherClient) -> Intake:
    offers = msgspec.convert(settings.offers, Resources, from_attributes=True)
    worker = Identity(f"{socket.gethostname()}:{os.getpid()}", name, offers)
    if settings.wake_queue != "sqs":
        return LocalIntake(client, worker)
    from traceplane.adapters.wake_queue_sqs import SqsWakeQueue  # boto is an optional extra

    assert runtime.queue is not None
    queue = SqsWakeQueue.from_settings(settings)
    return QueueIntake(client, queue, worker, queue=runtime.queue)


def _code_cache(settings: Settings, client: DispatcherClient) -> CodeCache:
    code_paths = checked_code_paths(settings)
    return CodeCache(
        closed_folder(settings.home.resolve() / "code_bundles"),
        code_paths,
        lambda bundle: patiently(lambda: client.code(bundle)),
    )


def _environment_cache(settings: Settings, client: DispatcherClient) -> EnvironmentCache:
    return EnvironmentCache(
        closed_folder(_environments(settings)),
        lambda lock: patiently(lambda: client.code(lock)),
        limit_bytes=settings.environments_mb << 20,
    )


def _environments(settings: Settings) -> Path:
    return settings.home.resolve() / "environments"


def _wrapper(
    settings: Settings,
    runtime: Runtime,
    client: DispatcherClient,
    intake: Intake,
    attempts: Attempts,
    store: StoreOnDisk,
) -> Wrapper:
    return Wrapper(
        client=client,
        intake=intake,
        attempts=attempts,
        store=store,
        slots=settings.worker_concurrency,
        drain_seconds=settings.worker_drain_seconds,
        heartbeat_seconds=runtime.heartbeat_seconds,
    )


async def _sandboxes(
    settings: Settings,
    runtime: Runtime,
    spark: SparkServers | OneRemoteSpark | None,
    opened: contextlib.AsyncExitStack,
) -> Sandboxes:
    own = SandboxSettings(
        slots=settings.worker_concurrency,
        network=ReachSpark() if spark is not None else NO_NETWORK,
        private_network=spark.network.descriptors if spark is not None else (),
        preload=_PRELOAD_SPARK if spark is not None else (*_PRELOAD, *_built_in_code()),
        allow_weak=settings.allow_weak_sandbox,
    )
    sandboxes = await Sandboxes.start(own, _reach(settings), runtime.network)
    opened.push_async_callback(sandboxes.close)
    return sandboxes


def _built_in_code() -> list[str]:
    """The modules of the built-in operators that Python workers run."""
    specs = [spec for name in catalog.BUILT_IN if (spec := catalog.find(name)) is not None]
    return sorted({s.entrypoint.partition(":")[0] for s in specs if s.entrypoint and "python" in s.runtimes})


async def _store(settings: Settings, runtime: Runtime, opened: contextlib.AsyncExitStack) -> StoreOnDisk:
    if settings.object_bucket is None:
        root = settings.object_store_root.resolve()
        if settings.object_store is None:
            closed_folder(root)
        return StoreOnDisk(inputs=root, outputs=root)
    if settings.object_cache is None:
        closed_folder(settings.object_cache_root)
    bucket = bucket_store_for(settings)
    cache = await ObjectCache.open(
        bucket, settings.object_cache_root, limit_bytes=settings.object_cache_mb << 20
    )
    opened.push_async_callback(cache.close)
    direct = None
    if _is_direct(settings, runtime):
        renewals = Renewals(*settings.s3_renewals) if settings.s3_renewals is not None else None
        direct = DirectStore(bucket, most_seconds=settings.s3_task_seconds, renewals=renewals)
        await direct.check()
    return StoreOnDisk(inputs=cache.files, outputs=cache.outputs, cache=cache, direct=direct)


def _is_direct(settings: Settings, runtime: Runtime) -> bool:
    """Whether Spark reads and writes the bucket itself: it has a role to do so, and can reach it. A server in its
    private network cannot, and is better confined."""
    has_network = _computes_elsewhere(settings) or runtime.network is Network.ALWAYS
    return settings.s3_task_role is not None and SPARK in runtime.capabilities and has_network


def _computes_elsewhere(settings: Settings) -> bool:
    return settings.spark_remote is not None or not settings.spark_master.startswith("local")


def _check_shared_folder(settings: Settings, store: StoreOnDisk) -> None:
    """What is confined here runs unconfined on a cluster. With a folder of the worker it could replace what the worker
    is about to use there, by links to what it cannot reach itself."""
    if store.direct is None and _computes_elsewhere(settings) and not settings.spark_executors_trusted:
        raise InvalidInput(
            "spark.executors_not_trusted",
            "Spark's executors would share a folder with this worker as its user: all code on them could do whatever "
            "that user may, to every dataset and on this machine",
            value="spark_remote" if settings.spark_remote is not None else settings.spark_master,
            next_step="keep the data in S3 and set s3_task_role; or set spark_executors_trusted, if that is what all"
            " who deploy code may do",
        )


async def _spark(
    settings: Settings, runtime: Runtime, store: StoreOnDisk, opened: contextlib.AsyncExitStack
) -> SparkServers | OneRemoteSpark:
    _check_shared_folder(settings, store)
    if settings.spark_remote is not None:
        address = remote.checked(settings.spark_remote, settings.spark_remote_ca)
        renews = store.direct is not None and store.direct.renewals is not None
        await remote.check_server(address, uses_bucket=store.direct is not None, renews=renews)
        return OneRemoteSpark(address)
    servers = await SparkServers.start(
        replace(
            _spark_settings(settings, store),
            code_paths=checked_code_paths(settings),
            environments=_environments(settings),
        ),
        # A cluster's driver has to be reached by its executors.
        private=runtime.network is not Network.ALWAYS and not _computes_elsewhere(settings),
        by_job=settings.spark_isolation == "job",
        most=settings.spark_servers,
    )
    opened.push_async_callback(servers.close)
    return servers


async def _online_spark(
    settings: Settings, store: StoreOnDisk, opened: contextlib.AsyncExitStack
) -> SparkServers:
    """For operators of the platform that need the network, with none of the users' code."""
    servers = await SparkServers.start(_spark_settings(settings, store), private=False, in_advance=False)
    opened.push_async_callback(servers.close)
    return servers


def _spark_settings(settings: Settings, store: StoreOnDisk) -> SparkSettings:
    return SparkSettings(
        folder=closed_folder(settings.home.resolve() / "spark"),
        object_store=store.outputs,
        inputs=store.inputs,
        master=settings.spark_master,
        memory_mb=settings.spark_memory_mb,
        disk_bytes=settings.spark_disk_mb << 20,
        quick=settings.spark_compiler == "quick",
        jars=s3_jars.installed(settings.spark_jars_folder) if store.direct is not None else (),
        conf=settings.spark_properties,
        allow_weak=settings.allow_weak_sandbox,
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
