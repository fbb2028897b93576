"""The work that is driven over each boundary while its process dies there, and the count of it afterwards."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import aiohttp
import pytest

from tests.alert_evaluators import alerting_dag, evaluating
from tests.dags import dag, job
from tests.delivery.http_receiver import HttpReceiver, http_receiver
from tests.delivery.messages import MESSAGE
from tests.platform import until
from tests.ports import free_port
from tests.process.crashes import DESK, EVENTS, MINE, TRACES, Crash, hourly, small, ticking
from tests.process.effects import settle
from tests.trigger.signals import TOPIC
from tests.trigger.signals import signal as signal_of
from traceplane.adapters import signal_source_folder
from traceplane.errors import PlatformError
from traceplane.postgres import channels, deliveries
from traceplane.postgres.database import Database
from traceplane.postgres.deliveries import NewDelivery
from traceplane.wire.deploys import DeletedResponse, DeleteRequest
from traceplane.wire.pipelines import PipelineConfig, PipelineRequest, PipelineView


async def events_flow(crash: Crash) -> None:
    """Events go all the way through the DAG, and a process dies on their way."""
    await crash.arm()
    await crash.emit()
    await crash.strike()
    await settle(crash.platform)
    await crash.check_flow()


async def caller_emits(crash: Crash) -> None:
    """A caller whose call was cut off repeats it."""
    await crash.arm()
    await crash.platform.ready("gateway")
    with pytest.raises(PlatformError):
        await crash.platform.emit("flow.in", crash.cursors)
    await crash.strike()
    await crash.platform.ready("gateway")
    answer = await crash.platform.emit("flow.in", crash.cursors)
    known = EVENTS if crash.boundary == "emit.after_commit" else 0
    assert (answer.accepted, answer.duplicates) == (EVENTS - known, known)
    await settle(crash.platform)
    await crash.check_flow()


async def caller_deploys(crash: Crash) -> None:
    crash.dag = crash.boundary.replace(".", "-")
    yaml = small(crash.dag)
    await crash.arm()
    await crash.platform.ready("gateway")
    with pytest.raises(PlatformError):
        await crash.platform.deploy(yaml)
    await crash.strike()
    await crash.platform.ready("gateway")
    answer = await crash.platform.deploy(yaml)
    assert (answer.version, answer.changed) == (1, crash.boundary == "deploy.before_commit")
    await crash.emit()
    await settle(crash.platform)
    assert await crash.rows(f"{crash.dag}.out") == [{"position": c} for c in crash.cursors]


async def dag_changes(crash: Crash) -> None:
    """A changed job is built beside the old one and takes its place, through a dispatcher that dies on the way."""
    crash.dag = crash.boundary.replace(".", "-").replace("_", "-")
    yaml = small(crash.dag)
    await crash.platform.deploy(yaml)
    await crash.emit()
    await settle(crash.platform)
    await crash.arm()
    answer = await crash.platform.deploy(yaml.replace('"basic:copy"', '"basic:copy", version: 2'))
    assert (answer.version, answer.building) == (2, True)
    await crash.strike()
    serves = "select v.number from dags d join dag_versions v on v.dag_version_id = d.active_version_id where name = $1"

    async def cut_over() -> bool:
        return await crash.platform.value(serves, crash.dag) == 2

    await until(cut_over, what="the new version serves")
    assert await crash.rows(f"{crash.dag}.out") == [{"position": c} for c in crash.cursors]
    made_by = await crash.platform.sql(
        "select distinct j.definition -> 'config' ->> 'version' from datasets d join dataset_commits c"
        " on c.generation_id = d.current_generation_id join tasks using (task_id) join jobs j using (job_id)"
        " where dataset_id = $1",
        f"{crash.dag}.out",
    )
    assert [tuple(row) for row in made_by] == [("2",)]


async def task_beats(crash: Crash) -> None:
    """A task that runs for longer than a heartbeat's interval."""
    crash.dag = "slow"
    await crash.arm()
    await crash.emit()
    await crash.strike()
    await settle(crash.platform)
    assert await crash.rows("slow.out") == [{"position": c} for c in crash.cursors]


async def rows_are_buffered(crash: Crash) -> None:
    """Rows wait in a buffer, and a dispatcher dies when it puts them there or takes them out."""
    crash.dag = crash.boundary.replace(".", "-").replace("_", "-")
    name = f"{crash.dag}.out"
    hot = "{storage: postgres, position: position, unique_key: [position], columns: [{name: position, type: bigint}]}"
    await crash.platform.deploy(f"{small(crash.dag)}datasets: {{{name}: {hot}}}\n")
    await crash.arm()
    await crash.emit()
    await crash.strike()
    await settle(crash.platform)
    generation = await crash.platform.value(
        "select current_generation_id from datasets where dataset_id = $1", name
    )
    rows = await crash.platform.sql(
        f"select position from traceplane_hot.g_{generation.hex} order by position"
    )
    assert [row["position"] for row in rows] == list(crash.cursors)
    told = "select count(*) from events where generation_id = $1"
    assert await crash.platform.value(told, generation) == EVENTS
    assert await crash.platform.value("select count(*) from buffered_reports") == 0
    await crash.platform.api.call("POST", "/api/v1/delete", DeletedResponse, DeleteRequest(crash.dag))


async def messages_wait(crash: Crash) -> None:
    """Messages wait for a channel, and a dispatcher dies before or after it has sent them."""
    crash.dag = crash.boundary.replace(".", "-").replace("_", "-")
    database = await Database.connect(crash.platform.url, connections=1)
    async with http_receiver() as receiver:
        config = {"kind": "webhook", "url": receiver.url, "per_second": 1000, "burst": 1000}
        async with database.transaction() as tx:
            org_id = await tx.value("select org_id from orgs")
            channel_id = await channels.set_channel(
                tx, org_id, crash.dag, config, platform_alerts=False, by="somebody"
            )
        await crash.arm()
        messages = [
            replace(MESSAGE, key=f"{crash.dag}:{cursor}", incident=f"{crash.dag}:{cursor}")
            for cursor in crash.cursors
        ]
        async with database.transaction() as tx:
            await deliveries.queue(tx, [NewDelivery(org_id, channel_id, message) for message in messages])
        await crash.strike()
        assert bool(receiver.came) == crash.boundary.startswith("deliver.")
        waiting = "select count(*) from alert_deliveries where state = 'waiting'"
        await until(lambda: crash.platform.value(f"select ({waiting}) = 0"), what="delivered")
    await database.close()
    assert sorted(receiver.accepted) == sorted(message.key for message in messages)
    # What was in flight, or sent and not recorded, is sent again.
    most = {"deliver.before_commit": (2,), "deliver.after_commit": (1, 2)}.get(crash.boundary, (1,))
    assert max(receiver.came.values()) in most


async def alerts_arise(crash: Crash) -> None:
    """Rows are found and told, and a dispatcher dies on the way; then a reorganization takes them back."""
    crash.dag = f"alerts-{crash.boundary}".replace(".", "-").replace("_", "-")
    platform = crash.platform
    rows = {cursor: {f"{cursor}-a", f"{cursor}-b"} for cursor in crash.cursors}
    async with http_receiver() as receiver, evaluating(platform, lambda _, cursor: rows[cursor]):
        await platform.sql(
            "insert into channels (org_id, name, config, changed_by) select org_id, $1::text, jsonb_build_object("
            "'kind', 'webhook', 'url', $2::text, 'per_second', 1000, 'burst', 1000), 'test' from orgs",
            crash.dag,
            receiver.url,
        )
        await platform.deploy(alerting_dag(crash.dag, lease="2s"))
        await crash.arm()
        await crash.emit()
        await crash.strike()
        await _told(crash)
        assert Counter(_heard(receiver)) == {("alert", tx): 1 for found in rows.values() for tx in found}
        gone, *_ = crash.cursors
        rows[gone] = {f"{gone}-b"}
        await platform.emit(f"{crash.dag}.in", [gone], emission="again")
        await _told(crash)
        assert _heard(receiver)[2 * EVENTS :] == [("retraction", f"{gone}-a")]
    await platform.api.call("POST", "/api/v1/delete", DeletedResponse, DeleteRequest(crash.dag))


async def _told(crash: Crash) -> None:
    """Whatever happened was evaluated, and all messages about it arrived."""
    await settle(crash.platform)
    waiting = "select count(*) from alert_deliveries where state = 'waiting'"
    await until(lambda: crash.platform.value(f"select ({waiting}) = 0"), what="delivered")


def _heard(receiver: HttpReceiver) -> list[tuple[str, str]]:
    return [(body["kind"], body["subject"]["tx"]) for body in receiver.bodies]


async def worker_is_lost(crash: Crash) -> None:
    """Its lease runs out and is reaped, by a dispatcher that dies of it."""
    crash.dag = "slow"
    await crash.arm()
    await crash.emit()
    await until(
        lambda: crash.platform.value(MINE + "select count(*) from mine where state = 'running'", "slow",
                                     crash.first, crash.first + EVENTS),
        what="running",
    )  # fmt: skip
    await crash.platform["worker-1"].kill()
    await crash.platform["worker-1"].start()
    await crash.strike()
    await settle(crash.platform)
    assert await crash.rows("slow.out") == [{"position": c} for c in crash.cursors]


async def function_is_called(crash: Crash) -> None:
    """A call leaves the database, and the dispatcher dies before it has noted that it did."""
    crash.dag = "function"
    await crash.arm()
    await crash.emit()
    await crash.strike()
    await settle(crash.platform)
    done = "select count(*) from mine join dataset_commits using (task_id) where state = 'completed'"
    assert await crash.platform.value(MINE + done, "function", crash.first, crash.first + EVENTS) == EVENTS


async def wake_up_is_lost(crash: Crash) -> None:
    crash.pause_worker()
    await crash.arm()
    await crash.platform.ready("dispatcher-1")
    await crash.emit()
    mine = "select count(*) from mine where state = 'dispatched'"
    sent = "select count(*) from mine join wake_messages using (task_id)"
    bounds = ("flow", crash.first, crash.first + EVENTS)
    await until(
        lambda: crash.platform.value(f"{MINE} select ({mine}) = ({sent}) and ({sent}) > {EVENTS}", *bounds)
    )
    await crash.platform.sql("delete from wake_messages")
    await crash.strike()
    crash.resume_worker()
    await settle(crash.platform)
    await crash.check_flow()


async def source_speaks(crash: Crash) -> None:
    """An always-on source is started, and says what it has to say, once."""
    crash.dag = crash.boundary.replace(".", "-").replace("_", "-")
    crash.first = 0
    await crash.arm()
    await crash.platform.deploy(ticking(crash.dag))
    done = "select count(*) from mine where job = 'copy_ticks' and state = 'completed'"
    try:
        await crash.strike()
        await until(
            lambda: crash.platform.value(f"{MINE} select ({done}) = {EVENTS}", crash.dag, 0, EVENTS),
            what="all ticks copied",
        )
        assert await crash.rows(f"{crash.dag}.out") == [{"position": c} for c in range(EVENTS)]
    finally:
        renamed = small(crash.dag).replace(f"{crash.dag}.", f"{crash.dag}.x.")
        await crash.platform.deploy(renamed, drop_missing=True)
        crash.world.retired_sources += 1
    await settle(crash.platform)
    assert await crash.platform.value(MINE + TRACES["events"], crash.dag, 0, EVENTS) == EVENTS
    assert await crash.platform.value(MINE + TRACES["source_monitor"], crash.dag, 0, EVENTS) == 1


async def queue_fills_up(crash: Crash) -> None:
    """A job's queue passes its threshold while no worker takes from it; everything still gets through."""
    crash.dag = "pressure"
    crash.pause_worker()
    await crash.arm()
    await crash.emit()
    await crash.strike()
    await until(lambda: crash.platform.value("select count(*) from job_holds"), what="producers held")
    later = range(crash.first + EVENTS, crash.first + 2 * EVENTS)
    await crash.platform.emit("pressure.in", later)
    crash.resume_worker()
    await settle(crash.platform)
    open_again = "select not exists (select 1 from job_holds) and not exists (select 1 from job_pressure)"
    await until(lambda: crash.platform.value(open_again), what="no producer held")
    assert await crash.rows("pressure.out") == [{"position": c} for c in (*crash.cursors, *later)]


async def signals_come_in(crash: Crash) -> None:
    """A trigger dies of its first batch; whoever goes on launches what it did not, and nothing again."""
    crash.dag = "desk"
    platform = crash.platform
    if "trigger" not in platform.processes:
        port = str(free_port())
        options = {"KAFKA_AUTO_OFFSET_RESET": "earliest", "BATCH_SIZE": str(EVENTS)}
        platform.add("trigger", "trigger", "run", TRACEPLANE_TRIGGER_PORT=port, **options)
    await platform.deploy(DESK)
    config = PipelineConfig("desk", "trade")
    for position in crash.cursors:
        request = PipelineRequest(f"pipeline-{position}", config, scanner_tickers=[f"T{position}", "ALL"])
        await platform.api.call("POST", "/api/v1/pipelines", PipelineView, request)
    await crash.arm()
    # The first of them launches every pipeline of this and earlier boundaries; the others find theirs running, or
    # launch it when that is over. The last is the first, published again.
    tickers = ["ALL", *(f"T{position}" for position in crash.cursors)]
    signals = [signal_of(f"{crash.boundary}-{t}", t, position=crash.first) for t in tickers]
    signals.append(signals[0])
    folder = platform.folder / "signals"
    signal_source_folder.publish(folder, TOPIC, [json.dumps(s).encode() for s in signals])
    await crash.strike()
    size = (folder / TOPIC / "0.jsonl").stat().st_size
    await until(
        lambda: platform.value("select count(*) = 1 from trigger_offsets where next_offset = $1", size),
        what="all signals are consumed",
    )
    await settle(platform)
    running = "select count(*) = 0 from executions where status in ('PENDING', 'RUNNING')"
    await until(lambda: platform.value(running), what="all executions ended")
    mine = "select count(*), count(distinct (pipeline_id, signal_id)) from executions where signal_id = $1"
    ((launched, different),) = await platform.sql(mine, signals[0]["signal_id"])
    known = await platform.value("select count(*) from pipelines")
    assert launched == different == known, "the signal launched every pipeline that watches it, once"
    orphans = (
        "select count(*) from executions full join (select task_id from tasks join jobs using (job_id)"
        " where name = 'trade') t on task_id = execution_id where task_id is null or execution_id is null"
    )
    assert await platform.value(orphans) == 0
    assert await platform.value("select count(*) from executions where status = 'FAILED'") == 0


async def ticks_are_due(crash: Crash) -> None:
    """Ticks that a cron source missed fire once, through a dispatcher that dies of it."""
    crash.dag = crash.boundary.replace(".", "-").replace("_", "-")
    platform = crash.platform
    await platform.deploy(hourly(crash.dag))
    looked_at = "select next_tick is not null from cron_schedules join dags using (dag_id) where name = $1"
    await until(lambda: platform.value(looked_at, crash.dag), what="the schedule is looked at")
    crash.first = await platform.value("select extract(epoch from tp_now())::bigint / 3600") - EVENTS + 1
    await crash.arm()
    missed = (
        "update cron_schedules set settled_through = tp_now() - interval '1 hour' * $2, due_at = tp_now()"
        " where dag_id = (select dag_id from dags where name = $1)"
    )
    await platform.sql(missed, crash.dag, EVENTS)
    await crash.strike()
    await until(
        lambda: platform.value(looked_at.replace("next_tick is not null", "due_at > tp_now()"), crash.dag)
    )
    await settle(platform)
    assert await crash.rows(f"{crash.dag}.out") == [{"position": c} for c in crash.cursors]
    assert await platform.value(MINE + TRACES["cron"], crash.dag, crash.first, crash.first + EVENTS) == EVENTS
    await platform.api.call("POST", "/api/v1/delete", DeletedResponse, DeleteRequest(crash.dag))


async def files_arrive(crash: Crash) -> None:
    """Files are announced once, by a dispatcher that dies of it or by the next."""
    crash.dag = crash.boundary.replace(".", "-").replace("_", "-")
    platform, folder = crash.platform, crash.platform.folder / "incoming" / crash.dag
    folder.mkdir(parents=True)
    source = f"""\
- name: files
  activation: source
  source: {{kind: file, path: {folder}, pattern: "{{position}}", every: 100ms, settle: 0}}
  outputs: [{{dataset: {crash.dag}.in}}]
"""
    await platform.deploy(dag(crash.dag, source, job("copy", f"{crash.dag}.in", f"{crash.dag}.out")))
    await crash.arm()
    for cursor in crash.cursors:
        (folder / str(cursor)).touch()
    await crash.strike()
    await platform.sql("update file_sources set held_until = tp_now()")  # rather than wait for a minute
    own = (crash.dag, crash.first, crash.first + EVENTS)
    await until(lambda: platform.value(f"{MINE} select count(*) >= {EVENTS} from told", *own))
    await settle(platform)
    assert await crash.rows(f"{crash.dag}.out") == [{"position": c} for c in crash.cursors]
    assert await platform.value(MINE + TRACES["files"], *own) == EVENTS
    await platform.api.call("POST", "/api/v1/delete", DeletedResponse, DeleteRequest(crash.dag))


async def sender_delivers(crash: Crash) -> None:
    """A sender whose deliveries were cut off repeats them."""
    crash.dag = crash.boundary.replace(".", "-")
    source = f"""\
- name: hook
  activation: source
  source: {{kind: webhook, path: {crash.dag}, verify: none, dedupe: {{pointer: /n}}, scope: {{pointer: /n}}}}
  outputs: [{{dataset: {crash.dag}.in}}]
"""
    await crash.platform.deploy(dag(crash.dag, source, job("copy", f"{crash.dag}.in", f"{crash.dag}.out")))
    await crash.arm()
    await crash.platform.ready("gateway")
    url = f"{crash.platform.gateway_url}/hooks/default/{crash.dag}"

    async def deliver(session: aiohttp.ClientSession) -> list[str]:
        statuses = []
        for cursor in crash.cursors:
            async with session.post(url, json={"n": cursor}) as answer:
                statuses.append((await answer.json())["status"])
        return statuses

    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await deliver(session)
        await crash.strike()
        await crash.platform.ready("gateway")
        first = "duplicate" if crash.boundary == "webhook.after_commit" else "accepted"
        assert await deliver(session) == [first, *["accepted"] * (EVENTS - 1)]
        assert set(await deliver(session)) == {"duplicate"}
    await settle(crash.platform)
    assert await crash.rows(f"{crash.dag}.out") == [{"position": c} for c in crash.cursors]


SCENARIOS: dict[str, Callable[[Crash], Awaitable[None]]] = {
    "emit": caller_emits,
    "deploy": caller_deploys,
    "replay": dag_changes,
    "cutover": dag_changes,
    "heartbeat": task_beats,
    "hand_over": rows_are_buffered,
    "sink": rows_are_buffered,
    "deliver_claim": messages_wait,
    "deliver": messages_wait,
    "reaper": worker_is_lost,
    "relay.after_send": function_is_called,
    "reconciler": wake_up_is_lost,
    "events": source_speaks,
    "source_monitor": source_speaks,
    "backpressure": queue_fills_up,
    "launch": signals_come_in,
    "cron": ticks_are_due,
    "files": files_arrive,
    "webhook": sender_delivers,
}

ON_THE_WAY_OF_ALERTS = ("claim", "hand_over", "sink", "in_process", "deliver_claim", "deliver")
"""Transactions between an event and the message about what was found there."""
