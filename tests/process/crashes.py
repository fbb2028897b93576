"""A platform whose processes die at a boundary, and what each transaction leaves behind.

A crash arms its boundary, drives work over it, sees the process die, sees that what its transaction did is visible
after the commit and not before, and starts the process again.
"""

from __future__ import annotations

import shlex
import signal
import sys
from dataclasses import dataclass, field

from tests.dags import dag, job, source
from tests.platform import OPERATORS, Platform, Process
from tests.process.effects import stored_rows

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
target = "{shlex.join([sys.executable, "-I", "-S", str(OPERATORS / "function.py")])}"
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
    "claim": "select count(*) from mine where runtime in ('python', 'spark') and attempt > 0",
    "heartbeat": "select count(*) from mine where lease_expires_at > started_at + interval '1 second'",
    "events": "select count(*) from ticked",
    "complete": "select count(*) from mine join dataset_commits using (task_id)",
    "hand_over": "select count(*) from mine join buffered_reports using (task_id)",
    "sink": "select count(*) from mine join dataset_commits using (task_id)",
    "deliver_claim": "select count(*) from alert_deliveries join channels using (channel_id)"
    " where name = $1 and tries > 0",
    "deliver": "select count(*) from alert_deliveries join channels using (channel_id)"
    " where name = $1 and state = 'delivered'",
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
    "files": "select count(*) from told",
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


@dataclass
class CrashingPlatform:
    platform: Platform
    next_position: int = 100
    retired_sources: int = 0

    def positions(self) -> int:
        """The first of some positions that nobody has used."""
        self.next_position += 2 * EVENTS
        return self.next_position - 2 * EVENTS


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
