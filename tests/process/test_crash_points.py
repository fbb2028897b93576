"""Every crash point, enumerated: the process that owns it dies there by SIGKILL, and nothing is lost or doubled.

All boundaries share one platform; each has positions, or a DAG, of its own. A test arms the boundary, drives
work over it, sees the process die, sees that what its transaction did is visible after the commit and not
before, starts the process again, and has all work counted. A boundary that is never reached fails its test.

Guarantees 1, 2 and 4 of docs/guarantees.md.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from tests.aws import CREDENTIALS, aws_server
from tests.dags import dag, job, source
from tests.platform import OPERATORS, Platform, Process, free_port, until
from tests.process.effects import settle, stored_rows, watched
from tests.trigger.signals import TOPIC
from tests.trigger.signals import signal as signal_of
from traceplane import crash_points
from traceplane.adapters import signal_source_folder
from traceplane.errors import PlatformError
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.wire.deploys import DeletedResponse, DeleteRequest
from traceplane.wire.pipelines import PipelineConfig, PipelineRequest, PipelineView

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVENTS = 4
"""What one boundary's scenario emits; also the size of a batch."""

DEFAULTS = "{lease: 1s, retry: {base: 50ms}}"
BATCH = ("execution_strategy: Bulk", f"batch: {{size: {EVENTS}}}")

FLOW = dag(
    "flow",
    source("flow.in"),
    job("copy", "flow.in", "flow.mid"),
    job("add_one", "flow.mid", "flow.out", entrypoint="basic:add_one"),
    job("sums", "flow.mid", "flow.sums", *BATCH, entrypoint="recovery:total"),
    job("metered", "flow.in", "flow.metered", "scaling: {max_concurrency: 2}"),
    defaults=DEFAULTS,
)
SLOW = dag(
    "slow",
    source("slow.in"),
    job("slow", "slow.in", "slow.out", entrypoint="basic:slow", config="seconds: 0.8"),
    defaults=DEFAULTS,
)
PRESSURE = dag(
    "pressure",
    source("pressure.in"),
    """\
- name: wide
  runtime: dispatcher
  operator: pass
  inputs: [{from: {dataset: pressure.in}}]
  outputs: [{dataset: pressure.mid}]
""",
    job("narrow", "pressure.mid", "pressure.out", "max_queue_depth: 3", "scaling: {max_concurrency: 1}"),
    defaults=DEFAULTS,
)


def small(name: str) -> str:
    return dag(name, source(f"{name}.in"), job("copy", f"{name}.in", f"{name}.out"))


def ticking(name: str) -> str:
    """An always-on source that says `EVENTS` times something, and a job that copies it."""
    source = f"""\
- name: ticks
  activation: source
  source: {{kind: always_on}}
  runtime: python
  operator: python
  outputs: [{{dataset: {name}.in}}]
  config: {{entrypoint: "recovery:few_ticks", ticks: {EVENTS}, output: {name}.in}}
"""
    return dag(name, source, job("copy_ticks", f"{name}.in", f"{name}.out"), defaults=DEFAULTS)


def hourly(name: str) -> str:
    """A cron source, and a job that copies its hours."""
    source = f"""\
- name: hours
  activation: source
  source: {{kind: cron, schedule: "0 * * * *", catch_up: all}}
  outputs: [{{dataset: {name}.in}}]
"""
    text = dag(name, source, job("copy", f"{name}.in", f"{name}.out"), defaults=DEFAULTS)
    return text.replace("jobs:\n", f"datasets: {{{name}.in: {{partitions: {{by: hour}}}}}}\njobs:\n", 1)


FUNCTION = f"""
version: 1
dag: function
defaults: {DEFAULTS}
jobs:
- name: numbers
  activation: source
  source: {{kind: manual}}
  outputs: [{{dataset: function.in}}]
- name: call
  runtime: call
  operator: function
  inputs: [{{from: {{job: numbers}}}}]
  outputs: [{{dataset: function.out}}]
"""

DESK = f"""
version: 1
dag: desk
defaults: {DEFAULTS}
jobs:
- name: trade
  activation: source
  source: {{kind: pipeline}}
  runtime: python
  operator: python
  config: {{entrypoint: "basic:nothing"}}
"""

RUNTIMES = f"""
[runtimes.call]
driver = "invoke"
invoker = "process"
target = "{sys.executable} -I -S {OPERATORS / "function.py"}"
capabilities = ["reactive"]
"""

MINE = """
with mine as (
  select t.*, j.name as job, j.runtime from tasks t join jobs j using (job_id) join dags d using (dag_id)
  where d.name = $1 and (t.range_start is null or t.range_start between $2 and $3)
), told as (
  select e.event_id from events e join jobs j on j.job_id = e.producer_id join dags d using (dag_id)
  where d.name = $1 and e.range_start between $2 and $3
), ticked as (
  select e.event_id from events e join tasks t on t.task_id = e.producer_id and t.dedupe_key = 'source'
  join jobs j using (job_id) join dags d using (dag_id) where d.name = $1
)
"""

TRACES = {
    "emit": "select count(*) from told",
    "claim": "select count(*) from mine where runtime = 'python' and attempt > 0",
    "heartbeat": "select count(*) from mine where lease_expires_at > started_at + interval '1 second'",
    "events": "select count(*) from ticked",
    "complete": "select count(*) from mine join dataset_commits using (task_id)",
    "relay": "select count(*) from mine join wake_messages using (task_id)",
    "valve": "select count(*) from mine where job = 'metered' and dispatched_at is not null",
    "reaper": "select count(*) from mine where error ->> 'code' = 'lease.expired'",
    "reconciler": "select count(*) from mine where resends > 0",
    "in_process": "select count(*) from mine where runtime = 'dispatcher' and state = 'completed'",
    "source_monitor": "select count(*) from mine where dedupe_key = 'source'",
    "backpressure": "select count(*) from job_pressure where exists (select 1 from mine)",
    "wake_receive": "select count(*) from mine join wake_messages using (task_id) where receives > 0",
    "deploy": "select count(*) from dag_versions join dags using (dag_id) where name = $1",
    "replay": "select count(*) from mine where backfill",
    "cutover": "select count(*) from dags d join dag_versions v on v.dag_version_id = d.active_version_id"
    " join jobs j on j.dag_id = d.dag_id and j.name = 'copy' and j.routed and not j.building"
    " join job_outputs o using (job_id) join datasets s on s.current_generation_id = o.generation_id"
    " where d.name = $1 and v.number = 2",
    "cron": "select count(*) from told",
    "webhook": "select count(*) from told",
    "launch": "select count(*) from executions where (signal ->> 'position')::bigint between $2 and $3",
}
"""What each transaction leaves behind: nothing before its commit, something after."""

STEPS = {
    "complete.after_fence": ("complete", False),
    "complete.after_outputs": ("complete", False),
    "cutover.after_pointers": ("cutover", False),
    "cutover.after_jobs": ("cutover", False),
    "relay.after_send": ("relay", False),
    "worker.after_receive": ("claim", False),
    "worker.after_claim": ("claim", True),
    "worker.after_run": ("complete", False),
    "worker.after_stage": ("complete", False),
    "worker.after_complete": ("complete", True),
    "worker.after_settle": ("complete", True),
}
"""Which transaction has, or has not, happened when a process dies at a step."""

OVER_SQS = ("worker.after_receive", "worker.after_settle")
"""Steps that a worker takes when its wake-ups come from outside the dispatcher's database."""

recovered: list[str] = []


@dataclass
class CrashingPlatform:
    platform: Platform
    next_position: int = 100
    retired_sources: int = 0

    def positions(self) -> int:
        """The first of some positions that nobody has used."""
        self.next_position += 2 * EVENTS
        return self.next_position - 2 * EVENTS


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[CrashingPlatform]:
    url = create_database(postgres_server, "crash_points", template=template_database)
    folder: Path = tmp_path_factory.mktemp("crash_points")
    (folder / "traceplane.toml").write_text(RUNTIMES)
    settings = {
        "TRACEPLANE_CONFIG": str(folder / "traceplane.toml"),
        "TRACEPLANE_WORKER_CONCURRENCY": "3",
    }
    async with Platform.start(url, folder, environment=settings) as platform:
        for yaml in (FLOW, SLOW, PRESSURE, FUNCTION):
            await platform.deploy(yaml)
        yield CrashingPlatform(platform)
    drop_database(postgres_server, "crash_points")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sqs_world(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[CrashingPlatform]:
    url = create_database(postgres_server, "crash_points_sqs", template=template_database)
    with aws_server() as endpoint:
        settings = {"TRACEPLANE_WAKE_QUEUE": "sqs", "TRACEPLANE_SQS_ENDPOINT_URL": endpoint, **CREDENTIALS}
        folder = tmp_path_factory.mktemp("crash_points_sqs")
        async with Platform.start(url, folder, environment=settings) as platform:
            await platform.deploy(FLOW)
            yield CrashingPlatform(platform)
    drop_database(postgres_server, "crash_points_sqs")


@dataclass
class Crash:
    """One boundary and the work that is driven over it."""

    world: CrashingPlatform
    boundary: str
    dag: str = "flow"
    first: int = 0
    finished: set[tuple] = field(default_factory=set, init=False)
    """Tasks that had ended when the process died."""
    dead: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.first = self.world.positions()

    @property
    def platform(self) -> Platform:
        return self.world.platform

    @property
    def cursors(self) -> range:
        return range(self.first, self.first + EVENTS)

    @property
    def victim(self) -> Process:
        label = self.boundary.partition(".")[0]
        gateways = dict.fromkeys(("emit", "webhook", "deploy"), "gateway")
        names = {**gateways, "worker": "worker-1", "launch": "trigger"}
        name = names.get(label, "dispatcher-1")
        return self.platform[name]

    async def arm(self) -> None:
        await self.victim.kill()
        await self.victim.start(crash_at=self.boundary)

    async def strike(self) -> None:
        """Waits for the process to die at the boundary; looks at what it left, and starts it again."""
        try:
            assert await self.victim.died(60) == -signal.SIGKILL
        except TimeoutError:
            raise AssertionError(f"{self.boundary} was never reached") from None
        label, side = self.boundary.split(".")
        label, visible = STEPS.get(self.boundary, (label, side == "after_commit"))
        left = await self.platform.value(
            MINE + TRACES[label], self.dag, self.first, self.first + 2 * EVENTS - 1
        )
        assert bool(left) == visible, f"{left} traces of {label} after a crash at {self.boundary}"
        self.finished = await self.finished_tasks()
        self.dead = True
        await self.victim.start()

    async def finished_tasks(self) -> set[tuple]:
        ended = "select task_id, state::text, attempt, finished_at from tasks where stage >= 2"
        return {tuple(row) for row in await self.platform.sql(ended)}

    async def emit(self) -> None:
        answer = await self.platform.emit(f"{self.dag}.in", self.cursors)
        assert (answer.accepted, answer.duplicates) == (EVENTS, 0)

    async def rows(self, dataset: str) -> list[dict]:
        return await stored_rows(self.platform, dataset, self.first, self.first + 2 * EVENTS - 1)

    async def check_flow(self) -> None:
        """Every job of `flow` wrote exactly what these cursors ask for."""
        expected = [{"position": c} for c in self.cursors]
        assert await self.rows("flow.mid") == expected
        assert await self.rows("flow.metered") == expected
        assert await self.rows("flow.out") == [{"position": c, "plus_one": c + 1} for c in self.cursors]
        assert await self.rows("flow.sums") == [
            {"position": self.first, "count": EVENTS, "sum": sum(self.cursors)}
        ]

    def pause_worker(self) -> None:
        self.platform["worker-1"].send(signal.SIGSTOP)

    def resume_worker(self) -> None:
        self.platform["worker-1"].send(signal.SIGCONT)


# Scenarios ---------------------------------------------------------------------------------------------


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
    "reaper": worker_is_lost,
    "relay.after_send": function_is_called,
    "reconciler": wake_up_is_lost,
    "events": source_speaks,
    "source_monitor": source_speaks,
    "backpressure": queue_fills_up,
    "launch": signals_come_in,
    "cron": ticks_are_due,
    "webhook": sender_delivers,
}


@pytest.mark.parametrize("boundary", [b for b in crash_points.ALL if b not in OVER_SQS])
async def test_nothing_is_lost_or_doubled_when_a_process_dies_at(
    world: CrashingPlatform, boundary: str
) -> None:
    await kill_and_recover(world, boundary)


@pytest.mark.parametrize("boundary", OVER_SQS)
async def test_nothing_is_lost_or_doubled_over_sqs_when_a_worker_dies_at(
    sqs_world: CrashingPlatform, boundary: str
) -> None:
    await kill_and_recover(sqs_world, boundary)


async def kill_and_recover(world: CrashingPlatform, boundary: str) -> None:
    for process in world.platform.processes.values():
        if not process.alive:
            await process.start()
        process.send(signal.SIGCONT)
    # Nothing is left to do, but repeated wake-ups may still lie about, and a process could die of those.
    await world.platform.sql("delete from wake_messages")
    crash = Crash(world, boundary)
    async with watched(world.platform):
        scenario = SCENARIOS.get(boundary) or SCENARIOS.get(boundary.partition(".")[0], events_flow)
        await scenario(crash)
    assert crash.dead
    states = await settle(world.platform)
    assert set(states) <= {"completed", "canceled"}
    assert states["canceled"] == world.retired_sources
    assert crash.finished <= await crash.finished_tasks(), "what had ended was done again"
    recovered.append(boundary)


async def test_every_crash_point_was_killed_and_recovered(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = {
        item.callspec.params["boundary"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }
    with capsys.disabled():
        print("\n" + "\n".join(f"  {name}" for name in recovered))
        print(f"crash points: {len(recovered)} of {len(crash_points.ALL)} killed and recovered")
    assert set(recovered) == chosen
