"""The dispatcher process, wired by hand."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

from traceplane.adapters.object_stores import object_store_for
from traceplane.adapters.signal_publisher import signal_publisher
from traceplane.adapters.wake_queue import WakeQueue
from traceplane.adapters.wake_queue_postgres import PostgresWakeQueue
from traceplane.auth.store import read_master_key
from traceplane.decoding.decoders import Decoders
from traceplane.dispatcher.api import InternalApi
from traceplane.dispatcher.authority import Authority
from traceplane.dispatcher.in_process import InProcess
from traceplane.dispatcher.invocations import Invocations
from traceplane.dispatcher.leasing import Leasing
from traceplane.dispatcher.loops.backpressure import Backpressure
from traceplane.dispatcher.loops.builds import Builds
from traceplane.dispatcher.loops.celery_relay import CeleryRelay
from traceplane.dispatcher.loops.execution_status import ExecutionStatus
from traceplane.dispatcher.loops.gauges import Gauges
from traceplane.dispatcher.loops.outbox_relay import OutboxRelay
from traceplane.dispatcher.loops.periodic import PeriodicPipelines
from traceplane.dispatcher.loops.reaper import Reaper
from traceplane.dispatcher.loops.reconciler import Reconciler
from traceplane.dispatcher.loops.signal_publisher import SignalJobs
from traceplane.dispatcher.loops.source_monitor import SourceMonitor
from traceplane.dispatcher.loops.table_statistics import Statistics
from traceplane.dispatcher.loops.valve import Metered, Valve
from traceplane.http_service.server import connection_limits, serve
from traceplane.postgres import tasks
from traceplane.postgres.database import Database
from traceplane.runtime.process import Activity, Outcome, run_loop, task_group
from traceplane.settings import Settings

_ROW_STREAMS = 4
"""Pieces of hot inputs that are sent at once; on connections of their own, so that nothing else waits for them."""


async def run(settings: Settings, stop: asyncio.Event, bound: asyncio.Future[int] | None = None) -> None:
    """Serves the internal API and runs the loops until `stop`."""
    assert settings.state_url is not None
    database = await Database.connect(settings.state_url, connections=settings.database_connections)
    closers: list[Callable[[], Awaitable[None]]] = [database.close]
    work, relay_work = asyncio.Event(), asyncio.Event()
    activity = Activity()
    tasks_wait = True  # until a look at the queue says otherwise; whoever queues a task says so to everybody

    def work_created() -> None:
        nonlocal tasks_wait
        tasks_wait = True
        work.set()
        relay_work.set()
        activity.seen()

    def slot_freed() -> None:
        activity.seen()
        if tasks_wait:
            work.set()

    authority = Authority(database, read_master_key(settings.master_key_file or settings.home / "master.key"))
    decoders = Decoders()

    async def end_decoders() -> None:
        await asyncio.to_thread(decoders.close)

    closers.append(end_decoders)
    leasing = Leasing(
        database,
        authority,
        decoders=decoders,
        work_created=work_created,
        slot_freed=slot_freed,
        staged=settings.object_store_root.resolve()
        if settings.object_bucket is None
        else lambda: object_store_for(settings),
    )
    closers.append(leasing.close)
    postgres_queue = PostgresWakeQueue(database)
    wake_queue: WakeQueue = postgres_queue
    if settings.wake_queue == "sqs":
        from traceplane.adapters.wake_queue_sqs import SqsWakeQueue  # boto is an optional extra

        wake_queue = sqs_queue = SqsWakeQueue.from_settings(settings)
        closers.append(sqs_queue.close)
    invocations = Invocations(leasing, settings)
    local = postgres_queue if wake_queue is postgres_queue else None
    queues = {
        r.name: r.queue for r in settings.runtimes.values() if local is not None and r.queue is not None
    }
    relay = OutboxRelay(database, wake_queue, settings.runtimes, invocations, local=local)
    valve = Valve(database)
    in_process = InProcess(database, work_created=work_created)
    backpressure = Backpressure(database)
    rows_database = await Database.connect(settings.state_url, connections=_ROW_STREAMS)
    closers.append(rows_database.close)
    api = InternalApi(
        database=database,
        authority=authority,
        leasing=leasing,
        local_queue=postgres_queue,
        queues=queues,
        rows_database=rows_database,
    )

    async def meter() -> Outcome:
        nonlocal tasks_wait
        tasks_wait = False  # before the look: what comes during it says so again
        async with database.glance() as tx:
            waiting = await tasks.waiting_kinds(tx)
        tasks_wait = tasks_wait or bool(waiting)
        if True in waiting and (await in_process.run_once()).more:
            work.set()
        metered = await valve.run_once() if False in waiting else Metered()
        if metered.dispatched:
            relay_work.set()
        return metered

    async def hold() -> Outcome:
        held = await backpressure.run_once()
        if held.released or held.changed:
            work.set()
        return held

    reaper = Reaper(database, grace_seconds=settings.reap_grace_seconds)
    reconciler = Reconciler(database, resend_after_seconds=settings.resend_after_seconds)
    signal_jobs = SignalJobs(
        database, lambda: signal_publisher(settings), lambda: object_store_for(settings), decoders
    )
    loop = functools.partial(run_loop, activity=activity, stop=stop)
    await authority.refresh()
    try:
        await task_group(
            stop,
            api=serve(
                api.app(max_body_bytes=settings.max_body_bytes),
                host=settings.host,
                port=settings.dispatcher_port,
                stop=stop,
                bound=bound,
                limits=connection_limits(settings),
            ),
            authority=run_loop("authority", authority.refresh, interval=2.0, stop=stop),
            relay=loop("relay", relay.run_once, interval=1.0, kick=relay_work),
            valve=loop("valve", meter, interval=0.5, kick=work),
            backpressure=loop("backpressure", hold, interval=0.25),
            reaper=loop("reaper", reaper.run_once, interval=1.0),
            reconciler=loop(
                "reconciler", reconciler.run_once, interval=min(5.0, settings.resend_after_seconds)
            ),
            sources=loop("sources", SourceMonitor(database).run_once, interval=2.0),
            builds=loop("builds", Builds(database).run_once, interval=0.5),
            executions=loop("executions", ExecutionStatus(database).run_once, interval=0.25),
            celery=loop("celery", CeleryRelay(database, settings.celery_broker_url).run_once, interval=0.25),
            signals=loop("signals", signal_jobs.run_once, interval=0.25),
            periodic=loop("periodic", PeriodicPipelines(database).run_once, interval=1.0),
            gauges=run_loop("gauges", Gauges(database).run_once, interval=5.0, stop=stop),
            statistics=loop("statistics", Statistics(database).run_once, interval=1.0),
            invocations=invocations.run(stop),
            wake_listener=postgres_queue.listen(stop),
            work_listener=database.listen(["traceplane_work"], lambda *_: work_created(), stop),
        )
    finally:
        for close in closers:
            await close()
