"""The dispatcher process, wired by hand."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from datetime import timedelta
from pathlib import Path
from typing import Any

from traceplane.adapters.object_stores import object_store_for
from traceplane.adapters.signal_publisher import signal_publisher
from traceplane.adapters.wake_queue_postgres import PostgresWakeQueue
from traceplane.adapters.watched_files import WatchedFiles
from traceplane.auth.master_key_file import MasterKeyFile
from traceplane.decoding.decoder_pool import Decoders
from traceplane.delivery.sending import Channels
from traceplane.dispatcher.api import InternalApi
from traceplane.dispatcher.authority import Authority
from traceplane.dispatcher.invocations import Invocations
from traceplane.dispatcher.leases.complete import Reports
from traceplane.dispatcher.leases.hot_writes import HotWrites, OpenStore
from traceplane.dispatcher.leases.job_entry import KnownJobs
from traceplane.dispatcher.leases.service import Leases
from traceplane.dispatcher.loops.batch_closer import BatchCloser
from traceplane.dispatcher.loops.builds import Builds
from traceplane.dispatcher.loops.celery_relay import CeleryRelay
from traceplane.dispatcher.loops.cron_ticks import CronTicks
from traceplane.dispatcher.loops.deliveries import Deliveries
from traceplane.dispatcher.loops.execution_status import ExecutionStatus
from traceplane.dispatcher.loops.file_compaction import FileCompaction
from traceplane.dispatcher.loops.file_listing import FileListing
from traceplane.dispatcher.loops.freshness import Freshness
from traceplane.dispatcher.loops.gauges import Gauges
from traceplane.dispatcher.loops.openlineage import OpenLineage
from traceplane.dispatcher.loops.outbox_relay import OutboxRelay
from traceplane.dispatcher.loops.periodic import PeriodicPipelines
from traceplane.dispatcher.loops.platform_alerts import PlatformAlerts
from traceplane.dispatcher.loops.reaper import Reaper
from traceplane.dispatcher.loops.reconciler import Reconciler
from traceplane.dispatcher.loops.retention import Retention
from traceplane.dispatcher.loops.signal_publisher import SignalJobs
from traceplane.dispatcher.loops.sinks import Sinks
from traceplane.dispatcher.loops.source_monitor import SourceMonitor
from traceplane.dispatcher.loops.table_statistics import Statistics
from traceplane.dispatcher.loops.webhook_keys import WebhookKeys
from traceplane.dispatcher.openlineage.receivers import Receiver, receiver_for
from traceplane.dispatcher.scheduling import Scheduler
from traceplane.http_service.metrics import serve_metrics
from traceplane.http_service.outgoing import Outgoing
from traceplane.http_service.server import connection_limits, serve
from traceplane.http_service.tls import ServerCertificate
from traceplane.model.compaction import Policy
from traceplane.postgres import buffers, deliveries, events
from traceplane.postgres.database import Database
from traceplane.postgres.processes import Presence
from traceplane.registry import garbage
from traceplane.runtime.process import Activity, Outcome, run_loop, task_group
from traceplane.secrets.own_settings import with_secrets
from traceplane.secrets.vault import Vault
from traceplane.settings import Settings

_TOLD_SECONDS = 60.0
_PLATFORM_ALERT_SECONDS = 10.0
_ROW_STREAMS = 4
"""Pieces of hot inputs sent concurrently; on separate connections, so that nothing else waits for them."""


async def run(settings: Settings, stop: asyncio.Event, bound: asyncio.Future[int] | None = None) -> None:
    """Serves the internal API and runs the loops until `stop`."""
    certificate = ServerCertificate.of(settings)
    async with contextlib.AsyncExitStack() as opened:
        database = await _connect(settings, settings.database_connections, opened)
        rows_database = await _connect(settings, _ROW_STREAMS, opened)
        master_keys = MasterKeyFile(settings.master_key_path).keys
        settings = await with_secrets(settings, database, master_keys)
        vault = Vault.of(settings, master_keys)
        opened.push_async_callback(vault.close)
        await vault.check()
        authority = Authority(database, master_keys, vault)
        decoders = Decoders()
        opened.push_async_callback(asyncio.to_thread, decoders.close)
        activity = Activity()
        scheduler = Scheduler(database, activity)
        leases = _leases(settings, database, authority, scheduler, decoders)
        opened.push_async_callback(leases.close)
        invocations = Invocations(leases, settings)
        queue = PostgresWakeQueue(database)
        api = InternalApi(
            database=database,
            authority=authority,
            leases=leases,
            local_queue=queue,
            queues=_local_queues(settings),
            rows_database=rows_database,
        )
        relay = _relay(settings, database, queue, invocations, opened)
        retention = _retention(settings, database, opened)
        watched_files = WatchedFiles(settings)
        opened.push_async_callback(watched_files.close)
        file_listing = FileListing(database, watched_files, stop=stop)
        await authority.refresh()
        await task_group(
            stop,
            api=serve(
                api.app(max_body_bytes=settings.max_body_bytes),
                host=settings.host,
                port=settings.dispatcher_port,
                setting="dispatcher_port",
                stop=stop,
                bound=bound,
                limits=connection_limits(settings),
                certificate=certificate,
            ),
            metrics=serve_metrics(
                settings.metrics_host,
                settings.dispatcher_metrics_port,
                stop,
                connection_limits(settings),
                "dispatcher_metrics_port",
            ),
            authority=run_loop("authority", authority.refresh, interval=2.0, stop=stop),
            invocations=invocations.run(stop),
            presence=Presence(database, "dispatcher").run(stop),
            wake_listener=queue.listen(stop),
            work_listener=database.listen(["traceplane_work"], lambda *_: scheduler.work_created(), stop),
            **(run_sinks(database, leases.reports, stop) if settings.dispatcher_runs_sinks else {}),
            **(run_deliveries(settings, database, vault, stop) if settings.dispatcher_runs_delivery else {}),
            **_run_openlineage(settings, database, stop),
            files=run_loop("files", file_listing.run_once, interval=1.0, stop=stop),
            **_loops(settings, database, scheduler, relay, retention, decoders, activity, stop),
        )


def run_sinks(database: Database, reports: Reports, stop: asyncio.Event) -> dict[str, Any]:
    """What writes buffered datasets, until `stop`."""
    sinks, buffered = Sinks(database, reports), asyncio.Event()

    async def run() -> None:
        try:
            await run_loop("sinks", sinks.run_once, interval=1.0, kick=buffered, stop=stop)
        finally:
            await sinks.finish()

    return {
        "sinks": run(),
        "buffer_listener": database.listen([buffers.CHANNEL], lambda *_: buffered.set(), stop),
    }


async def run_sink(settings: Settings, stop: asyncio.Event) -> None:
    """Writes buffered datasets until `stop`, without a dispatcher."""
    async with contextlib.AsyncExitStack() as opened:
        database = await _connect(settings, settings.database_connections, opened)
        settings = await with_secrets(settings, database, MasterKeyFile(settings.master_key_path).keys)
        decoders = Decoders()
        opened.push_async_callback(asyncio.to_thread, decoders.close)
        hot = HotWrites(database, _staged(settings), decoders)
        opened.push_async_callback(hot.close)
        committed = asyncio.Event()
        reports = Reports(database, KnownJobs(), hot, work_created=committed.set, slot_freed=committed.set)

        async def tell_dispatchers() -> Outcome:
            async with database.autocommit() as tx:
                await events.notify_dispatchers(tx)
            return Outcome()

        await task_group(
            stop,
            presence=Presence(database, "sink").run(stop),
            told=run_loop("told", tell_dispatchers, interval=_TOLD_SECONDS, kick=committed, stop=stop),
            **run_sinks(database, reports, stop),
        )


def run_deliveries(
    settings: Settings, database: Database, vault: Vault, stop: asyncio.Event
) -> dict[str, Any]:
    """What sends messages over channels, until `stop`."""
    outgoing = Outgoing(settings.outgoing_allow, keeps_connections=True)
    loop, queued = Deliveries(database, Channels(outgoing), vault), asyncio.Event()

    async def run() -> None:
        try:
            await run_loop("deliveries", loop.run_once, interval=1.0, kick=queued, stop=stop)
        finally:
            await loop.finish()
            await outgoing.close()

    return {
        "deliveries": run(),
        "delivery_listener": database.listen([deliveries.CHANNEL], lambda *_: queued.set(), stop),
    }


def _run_openlineage(settings: Settings, database: Database, stop: asyncio.Event) -> dict[str, Any]:
    receiver = receiver_for(settings)
    return {} if receiver is None else {"openlineage": _openlineage(settings, database, receiver, stop)}


async def _openlineage(
    settings: Settings, database: Database, receiver: Receiver, stop: asyncio.Event
) -> None:
    loop = OpenLineage(
        database, receiver, namespace=settings.openlineage_namespace, orgs=settings.openlineage_orgs
    )
    try:
        await run_loop("openlineage", loop.run_once, interval=1.0, stop=stop)
    finally:
        await loop.finish()


async def run_delivery(settings: Settings, stop: asyncio.Event) -> None:
    """Sends messages over channels until `stop`, without a dispatcher."""
    async with contextlib.AsyncExitStack() as opened:
        database = await _connect(settings, settings.database_connections, opened)
        master_keys = MasterKeyFile(settings.master_key_path).keys
        settings = await with_secrets(settings, database, master_keys)
        vault = Vault.of(settings, master_keys)
        opened.push_async_callback(vault.close)
        await vault.check()
        await task_group(
            stop,
            presence=Presence(database, "delivery").run(stop),
            **run_deliveries(settings, database, vault, stop),
        )


async def _connect(settings: Settings, connections: int, opened: contextlib.AsyncExitStack) -> Database:
    assert settings.state_url is not None
    database = await Database.connect(settings.state_url, connections=connections)
    opened.push_async_callback(database.close)
    return database


def _leases(
    settings: Settings, database: Database, authority: Authority, scheduler: Scheduler, decoders: Decoders
) -> Leases:
    return Leases(
        database,
        authority,
        work_created=scheduler.work_created,
        slot_freed=scheduler.slot_freed,
        decoders=decoders,
        staged=_staged(settings),
    )


def _staged(settings: Settings) -> Path | OpenStore:
    in_folder = settings.object_bucket is None
    return settings.object_store_root.resolve() if in_folder else lambda: object_store_for(settings)


def _own_folders(settings: Settings) -> list[Path]:
    """Where the platform writes on this machine."""
    return [settings.home, *([settings.object_store_root] if settings.object_bucket is None else [])]


def _local_queues(settings: Settings) -> dict[str, str]:
    """By runtime; empty if the wake queue is elsewhere."""
    if settings.wake_queue == "sqs":
        return {}
    return {r.name: r.queue for r in settings.runtimes.values() if r.queue is not None}


def _relay(
    settings: Settings,
    database: Database,
    queue: PostgresWakeQueue,
    invocations: Invocations,
    opened: contextlib.AsyncExitStack,
) -> OutboxRelay:
    if settings.wake_queue != "sqs":
        return OutboxRelay(database, queue, settings.runtimes, invocations.start, local=queue)
    from traceplane.adapters.wake_queue_sqs import SqsWakeQueue  # boto is an optional extra

    sqs_queue = SqsWakeQueue.from_settings(settings)
    opened.push_async_callback(sqs_queue.close)
    return OutboxRelay(database, sqs_queue, settings.runtimes, invocations.start)


def _retention(settings: Settings, database: Database, opened: contextlib.AsyncExitStack) -> Retention | None:
    if not settings.background_gc:
        return None
    retention = Retention(
        database,
        lambda: object_store_for(settings),
        garbage.Policy(settings.grace, settings.history_age, settings.gc_keep_versions),
    )
    opened.push_async_callback(retention.close)
    return retention


def _compaction(settings: Settings, database: Database) -> FileCompaction:
    return FileCompaction(
        database,
        Policy(settings.compaction_target_mb << 20, settings.compaction_min_files),
        age=timedelta(seconds=settings.compaction_after_seconds),
    )


def _loops(
    settings: Settings,
    database: Database,
    scheduler: Scheduler,
    relay: OutboxRelay,
    retention: Retention | None,
    decoders: Decoders,
    activity: Activity,
    stop: asyncio.Event,
) -> dict[str, Any]:
    reaper = Reaper(database, grace_seconds=settings.reap_grace_seconds)
    reconciler = Reconciler(database, resend_after_seconds=settings.resend_after_seconds)
    signal_jobs = SignalJobs(
        database, lambda: signal_publisher(settings), lambda: object_store_for(settings), decoders
    )
    platform_alerts = PlatformAlerts(database, _own_folders(settings))
    loop = functools.partial(run_loop, activity=activity, stop=stop)
    in_background: dict[str, Any] = {} if retention is None else {"retention": retention.run_once}
    if settings.background_compaction:
        in_background["compaction"] = _compaction(settings, database).run_once
    return {
        "relay": loop("relay", relay.run_once, interval=1.0, kick=scheduler.relay_work),
        "valve": loop("valve", scheduler.meter, interval=0.5, kick=scheduler.work),
        "backpressure": loop("backpressure", scheduler.hold, interval=0.25),
        "reaper": loop("reaper", reaper.run_once, interval=1.0),
        "reconciler": loop(
            "reconciler", reconciler.run_once, interval=min(5.0, settings.resend_after_seconds)
        ),
        "sources": loop("sources", SourceMonitor(database).run_once, interval=2.0),
        "batches": loop(
            "batches", BatchCloser(database, work_created=scheduler.work_created).run_once, interval=0.5
        ),
        "builds": loop("builds", Builds(database).run_once, interval=0.5),
        "executions": loop("executions", ExecutionStatus(database).run_once, interval=0.25),
        "celery": loop("celery", CeleryRelay(database, settings.celery_broker_url).run_once, interval=0.25),
        "signals": loop("signals", signal_jobs.run_once, interval=0.25),
        "periodic": loop("periodic", PeriodicPipelines(database).run_once, interval=1.0),
        "cron": loop("cron", CronTicks(database).run_once, interval=0.5),
        "freshness": loop("freshness", Freshness(database).run_once, interval=5.0),
        "platform_alerts": run_loop(
            "platform_alerts", platform_alerts.run_once, interval=_PLATFORM_ALERT_SECONDS, stop=stop
        ),
        "gauges": run_loop("gauges", Gauges(database).run_once, interval=5.0, stop=stop),
        "webhook_keys": loop(
            "webhook_keys", WebhookKeys(database, days=settings.webhook_key_days).run_once, interval=60.0
        ),
        "statistics": loop("statistics", Statistics(database).run_once, interval=1.0),
        **{name: run_loop(name, once, interval=30.0, stop=stop) for name, once in in_background.items()},
    }
