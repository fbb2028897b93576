"""The life of a task through everything that can happen to it, against a model that is too simple to be wrong.

Two dispatchers share one Postgres; workers claim, die, return late and repeat calls; the wake queue
loses, repeats and reorders messages; the clock jumps. After every step the tables must equal the model, and in the end,
whatever happened, all accepted work is done: nothing lost, nothing stuck, no effect twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.control_plane import (
    RESEND_AFTER_SECONDS,
    ControlPlane,
    Held,
    WakeUps,
    canceled,
    completed,
    failed,
    returned,
)
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import Completion, EventOut

LEASE_SECONDS = 30.0
RETRY_SECONDS = (2.0, 60.0)  # half of the shortest pause, and the longest
CONCURRENCY = {"metered": 2}
MAX_ATTEMPTS = {"metered": 2, "open": 3, "last": 2, "batches": 5, "bulk": 1}
READERS = {"in": {"metered", "open", "batches"}, "mid": {"last"}, "side": {"last"}, "ranges": {"bulk"}}
WRITES = {"metered": "mid", "open": "side", "last": "end", "bulk": "bulk.out"}
BATCH = 2
DAG = f"""
version: 1
dag: machine
defaults: {{lease: 30s, retry: {{base: 4s, max: 60s}}}}
jobs:
- {{name: numbers, activation: source, source: {{kind: manual}}, outputs: [{{dataset: in}}]}}
- name: metered
  runtime: python
  operator: python
  inputs: [{{from: {{dataset: in}}}}]
  outputs: [{{dataset: mid}}]
  config: {{entrypoint: "basic:copy"}}
  max_attempts: {MAX_ATTEMPTS["metered"]}
  scaling: {{max_concurrency: {CONCURRENCY["metered"]}}}
- name: open
  runtime: python
  operator: python
  inputs: [{{from: {{dataset: in}}}}]
  outputs: [{{dataset: side}}]
  config: {{entrypoint: "basic:copy"}}
  max_attempts: {MAX_ATTEMPTS["open"]}
- name: last
  runtime: python
  operator: python
  inputs: [{{from: {{dataset: mid}}}}, {{from: {{dataset: side}}}}]
  when: any
  outputs: [{{dataset: end}}]
  config: {{entrypoint: "basic:copy"}}
  max_attempts: {MAX_ATTEMPTS["last"]}
  max_queue_depth: 3
- name: batches
  runtime: dispatcher
  operator: aggregator
  inputs: [{{from: {{dataset: in}}}}]
  outputs: [{{dataset: ranges}}]
  config: {{size: {BATCH}}}
  max_attempts: {MAX_ATTEMPTS["batches"]}
- name: bulk
  runtime: python
  operator: python
  inputs: [{{from: {{dataset: ranges}}}}]
  outputs: [{{dataset: bulk.out}}]
  config: {{entrypoint: "basic:copy"}}
  max_attempts: {MAX_ATTEMPTS["bulk"]}
"""

SAID = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.sampled_from(
            ["alive", "alive", "alive", "event", "completed", "failed", "hopeless", "canceled", "returned"]
        ),
    ),
    min_size=1,
    max_size=6,
)
"""Which lease, counted from the youngest, and what its worker says."""

FINISHED = {"completed", "dead", "canceled"}
OUT = {"dispatched", "running"}
EventKey = tuple[Any, str, str, str, str]
"""producer, dataset, scope, kind, emission"""


@dataclass
class Task:
    """What the model knows of a task."""

    task_id: UUID
    job: str
    scope: str
    state: str
    attempt: int = 0
    limit: int = 0
    """With this many attempts it is used up."""
    holder: UUID | None = None
    """The lease whose word counts."""
    answer: str | None = None
    """What the holder's report was answered with."""
    stop: bool = False
    started: float = 0.0
    expires: float | None = None
    ready: float = 0.0
    effects: int = 0

    def unheld(self) -> Task:
        self.holder = self.answer = None
        return self


@dataclass
class DispatcherPair:
    """One loop, one database, two dispatchers; used by all examples, one after the other."""

    url: str
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    wake_ups: WakeUps = field(default_factory=WakeUps)
    planes: list[ControlPlane] = field(default_factory=list)

    def __enter__(self) -> DispatcherPair:
        self.runner.__enter__()
        for _ in range(2):
            plane = self.run(
                ControlPlane.connect(self.url, wake_ups=self.wake_ups, connections=3, dispatch_window=4)
            )
            self.planes.append(plane)
            if len(self.planes) == 1:
                self.run(self.make_clock(plane))
                self.run(plane.deploy(DAG))
            self.run(plane.authority.refresh())
        return self

    def __exit__(self, *exc: object) -> None:
        for plane in self.planes:
            plane.decoders.close()
            self.run(plane.close())
        self.runner.__exit__(None, None, None)

    def run(self, step: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(step)

    async def make_clock(self, plane: ControlPlane) -> None:
        """A clock that is moved by an update: replacing the function each time would cost every cached plan."""
        async with plane.database.transaction() as tx:
            await tx.run("create table test_clock (seconds float8 not null)")
            await tx.run("insert into test_clock values (0)")
            await tx.run("grant select on test_clock to traceplane_org")
            await tx.run(
                "create or replace function tp_now() returns timestamptz language sql stable as "
                "'select timestamptz ''2030-01-01Z'' + seconds * interval ''1 second'' from traceplane.test_clock'"
            )

    def set_clock(self, seconds: float) -> None:
        self.run(self.planes[0].sql("update test_clock set seconds = $1", seconds))

    def empty(self) -> None:
        self.wake_ups.take()
        self.wake_ups.down = False
        self.set_clock(0)
        self.run(
            self.planes[0].sql(
                "truncate events, tasks, buffered_batches, buffered_reports, task_inputs, outbox, dataset_commits,"
                " generation_cursors,"
                " generation_schemas, told_positions, told_periods, known_scopes, open_batches, job_pressure, job_holds"
            )
        )


class TaskMachine(RuleBasedStateMachine):
    """No rule has a precondition: the outcome of a race between two dispatchers varies, and the next draw must not
    depend on it."""

    def __init__(self, world: DispatcherPair) -> None:
        super().__init__()
        self.world = world
        self.clock = 0.0
        self.tasks: dict[UUID, Task] = {}
        self.events: set[EventKey] = set()
        self.leases: list[Held] = []
        self.arrived: list[UUID] = []
        """Wake-ups in the hands of workers that have not claimed yet."""
        self.holds: dict[str, int] = {}
        self.live: dict[tuple[str, str], UUID] = {}
        """Whose commit is read, by dataset and scope."""
        self.written: dict[tuple[str, str], float] = {}
        """When it was made."""

    # The two dispatchers, and what is picked ------------------------------------------------------

    def plane(self, second: bool) -> ControlPlane:
        return self.world.planes[second]

    def run(self, step: Coroutine[Any, Any, Any]) -> Any:
        return self.world.run(step)

    def pick_leases(self, picks: list[int]) -> list[Held]:
        return [self.leases[-1 - pick % len(self.leases)] for pick in picks]

    def pick_tasks(self, picks: list[int]) -> list[Task]:
        ids = sorted(self.tasks)
        return [self.tasks[ids[pick % len(ids)]] for pick in picks]

    @initialize(cursors=st.lists(st.integers(0, 4), min_size=3, max_size=5))
    def begin(self, cursors: list[int]) -> None:
        self.world.empty()
        self.emit(False, cursors, "", "data")
        self.bring_work(False, False, "well", 3)

    # Rules: what comes in -------------------------------------------------------------------------

    @rule(
        second=st.booleans(),
        cursors=st.lists(st.integers(0, 4), min_size=1, max_size=4),
        emission=st.sampled_from(["", "", "b"]),
        kind=st.sampled_from(["data", "data", "data", "invalidation"]),
    )
    def emit(self, second: bool, cursors: list[int], emission: str, kind: str) -> None:
        keys: list[EventKey] = [("source", "in", f"c:{c}", kind, emission) for c in cursors]
        new = set(keys) - self.events
        answer = self.run(self.plane(second).emit("in", cursors, kind=kind, emission=emission))
        assert (answer.accepted, answer.duplicates) == (len(new), len(keys) - len(new))
        self.events |= new
        self.adopt()

    # Rules: the queue -----------------------------------------------------------------------------

    def relay(self, second: bool, both: bool) -> None:
        planes = self.world.planes if both else [self.plane(second)]
        waiting = self.outbox()
        self.run(_together(*(plane.relay.run_once() for plane in planes)))
        sent = self.world.wake_ups.take()
        if self.world.wake_ups.down:
            assert not sent
            assert self.outbox() == waiting
        else:
            assert Counter(sent) + self.outbox() == waiting
            self.arrived += sent

    @rule(down=st.sampled_from([False, False, True]))
    def the_queue_goes_down_or_comes_back(self, down: bool) -> None:
        self.world.wake_ups.down = down

    def arrive(self, fate: str) -> None:
        """A queue may lose, repeat and reorder."""
        match fate:
            case "lost":
                self.arrived = []
            case "half":
                self.arrived = self.arrived[::2]
            case "twice, backwards":
                self.arrived = [*self.arrived, *self.arrived][::-1]

    # Rules: workers -------------------------------------------------------------------------------

    def claim(self, second: bool, count: int, both: bool) -> None:
        ids = list(dict.fromkeys(self.arrived[:count]))
        del self.arrived[:count]
        planes = self.world.planes if both else [self.plane(second)]
        answers = self.run(_together(*(plane.try_claim(ids) for plane in planes)))
        given = [held for claimed, _ in answers for held in claimed]
        expected = {task_id for task_id in ids if self.tasks[task_id].state == "dispatched"}
        assert sorted(held.task_id for held in given) == sorted(expected)
        for held in given:
            task = self.tasks[held.task_id]
            assert held.task.attempt == task.attempt + 1
            task.state, task.attempt, task.answer = "running", held.task.attempt, None
            task.holder, task.expires = held.task.lease_token, self.clock + LEASE_SECONDS
            task.started = self.clock
        for claimed, refused in answers:
            assert set(refused) == set(ids) - {held.task_id for held in claimed}
            assert all(reason == self.tasks[task_id].state for task_id, reason in refused.items())
        self.leases += given

    @rule(
        second=st.booleans(),
        both=st.booleans(),
        fate=st.sampled_from(["well", "well", "lost", "half", "twice, backwards"]),
        claims=st.integers(1, 3),
    )
    def bring_work(self, second: bool, both: bool, fate: str, claims: int) -> None:
        """What happens most of the time: what is due goes out, arrives, and most of it is claimed."""
        self.meter(second, both)
        self.relay(second, both)
        self.arrive(fate)
        for _ in range(claims):
            if self.arrived:
                self.claim(second, 4, both)

    @rule(second=st.booleans(), said=SAID)
    def workers_speak(self, second: bool, said: list[tuple[int, str]]) -> None:
        """Workers that hold a lease, that held one, and that repeat a call."""
        if not self.leases:
            return
        heard = [
            (held, word) for held, (_, word) in zip(self.pick_leases([n for n, _ in said]), said, strict=True)
        ]
        if beats := [held for held, word in heard if word == "alive"]:
            self.heartbeat(second, beats)
        for number, held in enumerate(held for held, word in heard if word == "event"):
            self.emit_while_running(second, held, number % 2)
        if reports := [(held, word) for held, word in heard if word not in ("alive", "event")]:
            self.report(second, reports)

    @rule(second=st.booleans(), said=SAID)
    def slow_workers_speak(self, second: bool, said: list[tuple[int, str]]) -> None:
        """Their leases expired and were reaped, others took over, and yet they are alive."""
        if not self.leases:
            return
        self.time_passes(second, LEASE_SECONDS + 1, True, False)
        self.what_always_holds()
        self.bring_work(not second, False, "well", 2)
        self.workers_speak(second, said)

    def heartbeat(self, second: bool, beats: list[Held]) -> None:
        expected: dict[tuple[UUID, UUID], str] = {}
        for held in sorted(beats, key=lambda h: h.task_id):
            fence = held.task_id, held.task.lease_token
            if fence not in expected:
                expected[fence] = self.expected_heartbeat(self.tasks[held.task_id], held)
        answers = self.run(self.plane(second).heartbeat(*beats))
        assert answers == [expected[held.task_id, held.task.lease_token] for held in beats]

    def expected_heartbeat(self, task: Task, held: Held) -> str:
        if task.holder != held.task.lease_token:
            return "stale"
        if task.state == "canceled" or task.stop:
            return "canceled"
        if task.answer is not None:
            return "stale"
        if self.is_overtaken(task):
            return "stale"
        if task.state not in OUT:  # it was given up, yet lives: it goes on if there is room
            out = [t for t in self.tasks.values() if t.job == task.job and t.state in OUT]
            if len(out) >= CONCURRENCY.get(task.job, 10**9) or task.scope in {t.scope for t in out}:
                return "stale"
        task.state, task.expires = "running", self.clock + LEASE_SECONDS
        return "ok"

    def report(self, second: bool, said: list[tuple[Held, str]]) -> None:
        reports = [(held, _completion(held, word)) for held, word in said]
        before = self.rows()
        expected = self.expected_reports(said)
        assert self.run(self.plane(second).report(*reports)) == [answer for answer, _ in expected]
        if not any(changes for _, changes in expected):
            assert self.rows() == before
        self.adopt()

    @rule(second=st.booleans(), pick=st.integers(0, 3), word=st.sampled_from(["completed", "failed"]))
    def worker_and_heartbeat_at_once(self, second: bool, pick: int, word: str) -> None:
        """Whichever comes first: the report counts, and nothing is left half done."""
        if not self.leases:
            return
        (held,) = self.pick_leases([pick])
        [(expected, _)] = self.expected_reports([(held, word)])
        answer, _ = self.run(
            _together(
                self.plane(second).report((held, _completion(held, word))),
                self.plane(not second).heartbeat(held),
            )
        )
        assert answer == [expected]
        self.adopt()

    def expected_reports(self, said: list[tuple[Held, str]]) -> list[tuple[str, bool]]:
        """Of one call, in which a task is reported once before any is reported again."""
        rounds: list[dict[UUID, int]] = []
        for number, (held, _) in enumerate(said):
            turn = next((turn for turn in rounds if held.task_id not in turn), None)
            if turn is None:
                rounds.append(turn := {})
            turn[held.task_id] = number
        expected: dict[int, tuple[str, bool]] = {}
        for turn in rounds:
            completing = [
                self.tasks[task_id] for task_id, number in turn.items() if self.would_complete(*said[number])
            ]
            overtaken = {task.task_id for task in completing if self.is_overtaken(task, completing)}
            for task_id, number in turn.items():
                held, word = said[number]
                word = "returned" if task_id in overtaken else word
                expected[number] = self.expected_report(self.tasks[task_id], held, word)
        return [expected[number] for number in range(len(said))]

    def would_complete(self, held: Held, word: str) -> bool:
        task = self.tasks[held.task_id]
        counts = task.holder == held.task.lease_token and task.answer is None and task.state != "canceled"
        return counts and not task.stop and word == "completed"

    def is_overtaken(self, task: Task, others: Collection[Task] = ()) -> bool:
        """It was given up, and another task of its scope has committed since it began, or began later and is one of
        these others, which commit with it."""
        if task.state == "running":
            return False
        newer = self.live.get(place(task), task.task_id) != task.task_id
        return (newer and self.written[place(task)] > task.started) or any(
            place(other) == place(task) and other.started > task.started for other in others
        )

    def expected_report(self, task: Task, held: Held, word: str) -> tuple[str, bool]:
        """The expected answer, and whether the call changes anything."""
        if task.holder != held.task.lease_token:
            return "stale", False
        if task.answer is not None:  # a repetition; canceled since then is the only news
            return ("canceled" if task.state == "canceled" else task.answer), False
        if task.state == "canceled":
            return "canceled", False
        if word == "returned" and not task.stop:
            if task.state == "dead":
                return "stale", False
            task.state, task.answer, task.ready = "queued", "retrying", self.clock
            task.limit += 1  # the attempt does not count
        elif task.stop or word == "canceled":
            task.state, task.answer, task.stop = "canceled", "canceled", True
        elif word == "completed":
            task.state, task.answer = "completed", "committed"
            task.effects += 1
            kind = "invalidation" if place(task) in self.live else "data"
            self.live[place(task)], self.written[place(task)] = task.task_id, self.clock
            self.events.add((task.task_id, *place(task), kind, ""))
        elif word == "hopeless" or task.attempt >= task.limit:
            task.state, task.answer = "dead", "dead"
        else:
            task.state, task.answer = "queued", "retrying"
        return task.answer, True

    def emit_while_running(self, second: bool, held: Held, number: int) -> None:
        task = self.tasks[held.task_id]
        key: EventKey = (task.task_id, WRITES[task.job], "c:9", "data", f"more-{number}")
        event = EventOut(0, Scope(cursor=9), emission=key[4])
        answer = self.run(self.plane(second).emit_running(held, event))
        if task.holder != held.task.lease_token or task.state != "running":
            assert answer == ("stale", 0, 0)
        elif task.stop:
            assert answer == ("canceled", 0, 0)
        else:
            assert answer == (("ok", 0, 1) if key in self.events else ("ok", 1, 0))
            self.events.add(key)
        self.adopt()

    # Rules: people --------------------------------------------------------------------------------

    @rule(second=st.booleans(), picks=st.lists(st.integers(0, 1000), min_size=1, max_size=4))
    def cancel(self, second: bool, picks: list[int]) -> None:
        chosen = {task.task_id: task for task in self.pick_tasks(picks)}
        changed = self.run(self.plane(second).cancel(*chosen))
        expected = {}
        for task in chosen.values():
            if task.state not in FINISHED:
                expected[task.task_id] = "canceling" if task.state == "running" else "canceled"
                task.stop = True
                task.state = "running" if task.state == "running" else "canceled"
        assert changed == expected

    @rule(second=st.booleans(), picks=st.lists(st.integers(0, 1000), min_size=1, max_size=8))
    def retry(self, second: bool, picks: list[int]) -> None:
        if not any(t.state in ("dead", "canceled") for t in self.tasks.values()):
            return
        chosen = {task.task_id: task for task in self.pick_tasks(picks)}
        changed = self.run(self.plane(second).retry(*chosen))
        for task in chosen.values():
            if task.state in ("dead", "canceled"):
                assert changed.pop(task.task_id) == "queued"
                task.unheld().state = "queued"
                task.stop, task.ready = False, self.clock
                task.limit = task.attempt + MAX_ATTEMPTS[task.job]
        assert not changed

    # Rules: the dispatcher's loops ----------------------------------------------------------------

    @rule(
        second=st.booleans(),
        seconds=st.sampled_from([1, 5, LEASE_SECONDS + 1, LEASE_SECONDS + 1, 100]),
        reaps=st.sampled_from([True, True, True, False]),
        resends=st.booleans(),
    )
    def time_passes(self, second: bool, seconds: float, reaps: bool, resends: bool) -> None:
        self.clock += seconds
        self.world.set_clock(self.clock)
        if reaps:
            self.reap(second, resends)
        if resends:
            self.resend(second)

    def reap(self, second: bool, both: bool) -> None:
        planes = self.world.planes if both else [self.plane(second)]
        self.run(_together(*(plane.reaper.run_once() for plane in planes)))
        for task in self.tasks.values():
            if task.state == "running" and task.expires is not None and task.expires < self.clock:
                if task.stop:
                    task.state = "canceled"
                else:
                    task.state = "queued" if task.attempt < task.limit else "dead"

    def resend(self, second: bool) -> None:
        before = self.outbox()
        self.run(self.plane(second).reconciler.run_once())
        again = self.outbox() - before
        assert all(self.tasks[task_id].state == "dispatched" for task_id in again)

    def meter(self, second: bool, both: bool) -> None:
        planes = self.world.planes if both else [self.plane(second)]
        self.run(_together(*(plane.in_process.run_once() for plane in planes)))
        self.adopt_batches()
        self.adopt()
        due = [t for t in self.tasks.values() if t.state == "queued" and self.may_pass(t)]
        self.run(_together(*(plane.valve.run_once() for plane in planes)))
        self.adopt_dispatched({task.task_id for task in due})

    def may_pass(self, task: Task) -> bool:
        return task.job != "batches" and task.ready <= self.clock and self.holds.get(task.job, 0) < 2

    @rule(second=st.booleans())
    def hold(self, second: bool) -> None:
        self.run(self.plane(second).backpressure.run_once())
        self.holds = self.run(self.plane(second).holds())
        assert set(self.holds) <= {"metered", "open", "numbers"}, "only what feeds `last` is ever held"
        depth = sum(t.job == "last" and t.state in ("queued", "dispatched") for t in self.tasks.values())
        assert depth < 3 or self.holds.keys() >= {"metered", "open"}
        assert depth > 1 or not self.holds

    # Looking at the tables ------------------------------------------------------------------------

    def outbox(self) -> Counter[UUID]:
        rows = self.run(self.plane(False).sql("select task_ids from outbox"))
        return Counter(task_id for row in rows for task_id in row["task_ids"])

    def rows(self) -> dict[UUID, dict[str, Any]]:
        rows = self.run(
            self.plane(False).sql(
                """
                select t.task_id, j.name as job, t.scope_key as scope, t.state::text, t.attempt, t.lease_token,
                  t.cancel_requested as stop, t.kind::text, t.range_start, t.range_end,
                  extract(epoch from t.ready_at - timestamptz '2030-01-01Z')::float8 as ready,
                  extract(epoch from t.lease_expires_at - timestamptz '2030-01-01Z')::float8 as expires,
                  (select count(*) from dataset_commits c where c.task_id = t.task_id) as commits,
                  (select array_agg(e.event_id) from task_inputs e where e.task_id = t.task_id) as fed_by
                from tasks t join jobs j using (job_id)
                """
            )
        )
        return {row["task_id"]: dict(row) for row in rows}

    def stored_events(self) -> dict[int, EventKey]:
        rows = self.run(
            self.plane(False).sql(
                "select e.*, e.kind::text as said, d.dataset_id, j.name as job from events e"
                " join datasets d using (dataset_uuid) left join jobs j on j.job_id = e.producer_id"
            )
        )
        names = {"numbers": "source", "batches": "batches"}
        return {
            r["event_id"]: (
                names.get(r["job"], r["producer_id"]), r["dataset_id"], r["scope_key"], r["said"], r["emission"]
            )
            for r in rows
        }  # fmt: skip

    def adopt(self) -> None:
        """Takes over tasks that are new; where each starts is not the model's business, that it may is."""
        for task_id, row in self.rows().items():
            if task_id not in self.tasks:
                assert row["state"] in ("queued", "dispatched")
                assert row["state"] == "queued" or row["job"] not in ("metered", "batches")
                limit = MAX_ATTEMPTS[row["job"]]
                self.tasks[task_id] = Task(
                    task_id, row["job"], row["scope"], row["state"], limit=limit, ready=self.clock
                )

    def adopt_batches(self) -> None:
        """The dispatcher runs all of its own tasks that are due in one step."""
        for task in self.tasks.values():
            if task.job == "batches" and task.state == "queued" and task.ready <= self.clock:
                task.state, task.attempt, task.answer = "completed", task.attempt + 1, "committed"
        rows = self.rows()
        done = [rows[t.task_id] for t in self.tasks.values() if t.job == "batches" and t.state == "completed"]
        full = _full_ranges({row["range_start"] for row in done if row["kind"] == "data"})
        ranges = {key for key in self.stored_events().values() if key[1] == "ranges"}
        assert {key[2] for key in ranges if key[3] == "data"} == full
        assert {key[2] for key in ranges if key[3] == "invalidation"} <= full
        self.events |= ranges

    def adopt_dispatched(self, due: set[UUID]) -> None:
        rows = self.rows()
        passed = {
            i for i, task in self.tasks.items() if task.state == "queued" and rows[i]["state"] == "dispatched"
        }
        assert passed <= due, "only what is due and not held passes the valve"
        for task_id in passed:
            self.tasks[task_id].state = "dispatched"
        for job in {self.tasks[task_id].job for task_id in due}:
            mine = [t for t in self.tasks.values() if t.job == job]
            out = {t.scope for t in mine if t.state in OUT}
            left = [t for t in mine if t.task_id in due - passed and t.scope not in out]
            room = CONCURRENCY.get(job, 4) - sum(t.state in OUT for t in mine)
            if left and room > 0:
                # A pass looks at as many as there are slots; several of one scope among them leave slots free.
                assert passed & {t.task_id for t in mine}, "there was work and room, and nothing moved"
            newest = max(((t.ready, t.task_id) for t in mine if t.task_id in passed), default=None)
            for task in left:
                assert newest is None or (task.ready, task.task_id) > newest, (
                    "a younger task overtook an older one"
                )

    # What must hold after every step --------------------------------------------------------------

    @invariant()
    def what_always_holds(self) -> None:
        rows = self.rows()
        self.the_tables_equal_the_model(rows)
        self.every_event_is_kept_and_feeds_each_reader_once(rows)
        self.no_job_has_more_out_than_it_may_and_no_scope_twice()
        self.the_last_commit_of_a_scope_is_the_one_that_is_read()

    def the_last_commit_of_a_scope_is_the_one_that_is_read(self) -> None:
        rows = self.run(
            self.plane(False).sql(
                "select d.dataset_id, c.scope_key, c.task_id from dataset_commits c"
                " join datasets d on d.current_generation_id = c.generation_id where superseded_by is null"
            )
        )
        assert sorted(map(tuple, rows)) == sorted((*where, task_id) for where, task_id in self.live.items())

    def the_tables_equal_the_model(self, rows: dict[UUID, dict[str, Any]]) -> None:
        assert rows.keys() == self.tasks.keys()
        for task_id, task in self.tasks.items():
            row = rows[task_id]
            assert (row["state"], row["attempt"], row["stop"]) == (task.state, task.attempt, task.stop), task
            if task.job != "batches":
                assert row["lease_token"] == task.holder, task
                assert row["commits"] == task.effects <= 1
                assert (task.effects == 1) == (task.state == "completed")
            if task.state == "running":
                assert row["expires"] == task.expires, task
            if task.state == "queued":
                pause = row["ready"] - self.clock
                assert row["ready"] == task.ready or pause <= RETRY_SECONDS[1], task
                task.ready = row["ready"]

    def every_event_is_kept_and_feeds_each_reader_once(self, rows: dict[UUID, dict[str, Any]]) -> None:
        stored = self.stored_events()
        assert Counter(stored.values()) == Counter(self.events)
        fed = Counter((event_id, row["job"]) for row in rows.values() for event_id in row["fed_by"])
        expected = Counter(
            (event_id, job) for event_id, key in stored.items() for job in READERS.get(key[1], ())
        )
        assert fed == expected

    def no_job_has_more_out_than_it_may_and_no_scope_twice(self) -> None:
        out = [task for task in self.tasks.values() if task.state in OUT]
        per_job = Counter(task.job for task in out)
        assert all(per_job[job] <= most for job, most in CONCURRENCY.items()), per_job
        assert all(count == 1 for count in Counter((task.job, task.scope) for task in out).values())

    # The end --------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if self.tasks:
            self.drain()
            self.repeat_everything()

    def drain(self) -> None:
        """Workers that do not fail, and time: everything ends by itself."""
        self.world.wake_ups.down = False
        for round_ in range(80):
            if all(task.state in FINISHED for task in self.tasks.values()):
                break
            second = bool(round_ % 2)
            self.time_passes(second, 2 * RESEND_AFTER_SECONDS * 2 ** (round_ % 7), True, True)
            self.hold(second)
            self.what_always_holds()
            self.bring_work(second, False, "well", 100)
            held = [h for h in self.leases if self.tasks[h.task_id].state == "running"]
            alive = [h for h in held if self.tasks[h.task_id].holder == h.task.lease_token]
            if alive and round_ > 0:  # those of the first round die, so that the reaper has work
                for h in alive:
                    self.expected_report(self.tasks[h.task_id], h, "completed")
                self.run(self.plane(second).complete(*alive))
                self.adopt()
        else:
            stuck = [task for task in self.tasks.values() if task.state not in FINISHED]
            raise AssertionError(f"stuck for ever: {stuck}")
        self.what_always_holds()
        self.hold(False)
        assert not self.holds, "nothing waits, yet something is held"

    def repeat_everything(self) -> None:
        """Every report again: the same answers, and nothing changes."""
        if not self.leases:
            return
        before, events = self.rows(), self.stored_events()
        expected = self.expected_reports([(held, "completed") for held in self.leases])
        answers = self.run(self.plane(True).complete(*self.leases))
        late = [changes for _, changes in expected]
        assert answers == [answer for answer, _ in expected]
        if not any(late):
            assert (self.rows(), self.stored_events()) == (before, events)


def place(task: Task) -> tuple[str, str]:
    """What it writes: a dataset, and a scope of it."""
    return WRITES[task.job], task.scope


def _completion(held: Held, word: str) -> Completion:
    match word:
        case "completed":
            return completed(held)
        case "canceled":
            return canceled(held)
        case "returned":
            return returned(held)
        case _:
            return failed(held, retryable=word == "failed")


def _full_ranges(positions: set[int]) -> set[str]:
    starts = {position // BATCH * BATCH for position in positions}
    return {f"p:{s}-{s + BATCH - 1}" for s in starts if positions >= set(range(s, s + BATCH))}


async def _together(*steps: Coroutine[Any, Any, Any]) -> list[Any]:
    return list(await asyncio.gather(*steps))


@pytest.fixture
def world(database_url: str) -> Iterator[DispatcherPair]:
    with DispatcherPair(database_url) as made:
        yield made


def _play(world: DispatcherPair, *, examples: int, steps: int) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=steps,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(partial(TaskMachine, world), settings=chosen)  # type: ignore[arg-type]


def test_whatever_happens_no_event_is_lost_no_effect_is_doubled_and_no_task_is_stuck(
    world: DispatcherPair,
) -> None:
    _play(world, examples=6, steps=30)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_the_task_machine_holds_for_minutes(world: DispatcherPair) -> None:
    _play(world, examples=600, steps=60)
