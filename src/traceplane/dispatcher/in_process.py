"""Jobs of the dispatcher's own runtime: small platform operators that run inside one transaction.

Taking the tasks, doing the work, emitting its events and finishing the tasks commit together, so there is
neither a lease nor a moment in which half of it is visible. No user code runs here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from traceplane import telemetry
from traceplane.model.runtimes import SIGNAL_PUBLISH
from traceplane.postgres import aggregator, events, registry, tasks
from traceplane.postgres.database import Database, Transaction, again_if_concurrent
from traceplane.postgres.events import NewEvent
from traceplane.runtime.process import Outcome

_BATCH = 500
_POSITIONS_OF_AN_EVENT = 100_000
"""An aggregator refuses an event of more positions than this: it would keep all the others waiting."""
_POSITIONS_OF_A_PASS = 20_000
"""Events of more positions in sum are a matter of several passes."""
_EVENTS_OF_A_SPLIT = 2_000
"""A splitter emits so many events in one pass; a wide partition takes several."""


@dataclass(frozen=True, slots=True)
class Ran(Outcome):
    completed: int = 0
    failed: int = 0
    emitted: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class _Work:
    """What an operator made of a batch; tasks of the batch that it names nowhere wait for the next pass."""

    events: list[NewEvent]
    done: list[dict[str, Any]]
    refused: list[dict[str, Any]] = field(default_factory=list)
    """Tasks that it can do nothing with."""
    reason: str = ""
    begun: dict[UUID, dict[str, Any]] = field(default_factory=dict)
    """Progress of tasks that go on in the next pass."""


class InProcess:
    def __init__(self, database: Database, *, work_created: Callable[[], None]) -> None:
        self._database = database
        self._work_created = work_created

    async def run_once(self) -> Ran:
        return await again_if_concurrent(self._run)

    async def _run(self) -> Ran:
        async with self._database.transaction("in_process") as tx:
            completed = failed = emitted = created = 0
            more = False
            for job in await tasks.waiting_jobs(tx, in_process=True):
                if job.operator == SIGNAL_PUBLISH:
                    continue  # waits for others, in a loop of its own
                batch = await tasks.take_in_process(tx, job.job_id, _BATCH)
                if not batch:
                    continue
                (definition,) = await registry.job_payloads(tx, [job.job_id])
                try:
                    work = await _OPERATORS[job.operator](tx, definition, batch)
                except (KeyError, ValueError, TypeError) as error:
                    # The definition is unusable; nothing was written by the operator before it noticed.
                    reason = f"{job.operator}: {type(error).__name__} {error}"
                    await self._fail(tx, job.operator, batch, "operator.misconfigured", reason)
                    failed += len(batch)
                    continue
                accepted = await events.accept(tx, work.events)
                await tasks.finish_in_process(tx, [t["task_id"] for t in work.done])
                if work.begun:
                    await tasks.keep_progress(tx, work.begun)
                if work.refused:
                    await self._fail(tx, job.operator, work.refused, "operator.range_too_wide", work.reason)
                completed += len(work.done)
                failed += len(work.refused)
                emitted += sum(1 for i in accepted.event_ids if i is not None)
                created += accepted.tasks_created
                more = more or len(batch) == _BATCH or len(work.done) + len(work.refused) < len(batch)
        if created:
            telemetry.count("tasks_created_total", created)
            self._work_created()
        return Ran(completed, failed, emitted, more or created > 0)

    async def _fail(
        self, tx: Transaction, operator: str, batch: list[dict[str, Any]], code: str, reason: str
    ) -> None:
        telemetry.emit("in_process.failed", "warning", operator=operator, tasks=len(batch), message=reason)
        await tasks.fail_in_process(tx, [t["task_id"] for t in batch], {"code": code, "message": reason})


async def _aggregate(tx: Transaction, job: dict[str, Any], batch: list[dict[str, Any]]) -> _Work:
    """Positions fill aligned ranges of a fixed size; a full range becomes one partition event, once. With
    `finality`, not before a position has arrived that is so many beyond its end.

    Whatever arrives later for a position of a full range, data or an invalidation, is news about that range: it
    is emitted again, as an invalidation, once per pass however much arrived. An invalidation fills a range only
    if it tells of a commit, which wrote the whole scope; said by itself it brings no data.

    The job itself is the producer, and a repeated word is named after the first task that brought it; nothing
    of a pass that was rolled back is left, so one that runs again says the same or more, and says it once.
    """
    size = int(job["definition"]["config"]["size"])
    finality = int(job["definition"]["config"].get("finality", 0))
    if size < 1 or finality < 0:
        raise ValueError("size must be at least 1, and finality not negative")
    output = UUID(job["outputs"][0]["dataset_version"])
    job_id: UUID = job["job_id"]
    doubtful = [t["task_id"] for t in batch if t["kind"] == "invalidation"]
    written = await aggregator.told_of_commits(tx, doubtful) if doubtful else set()
    fills = {t["task_id"] for t in batch if t["kind"] == "data"} | written
    batch, too_wide = _share(batch, size, fills)
    touching: dict[int, list[dict[str, Any]]] = {}
    for task in batch:
        for start in _aligned(task["range_start"], task["range_end"], size):
            touching.setdefault(start, []).append(task)
    head = await aggregator.head(tx, job_id) if finality else None
    full_before = set(await aggregator.full_ranges(tx, job_id, sorted(touching), size))
    if arrived := [(t["range_start"], t["range_end"]) for t in batch if t["task_id"] in fills]:
        await aggregator.add_positions(tx, job_id, arrived)
    if finality and arrived:
        # The head moved on, and behind it ranges became final that nothing of this pass is about.
        newest = await aggregator.head(tx, job_id)
        assert newest is not None
        bringer = max((t for t in batch if t["task_id"] in fills), key=lambda t: t["range_end"])
        lowest = max(newest if head is None else head + 1, finality + size - 2**63) - finality
        if lowest <= newest - finality:
            for start in await aggregator.ranges_between(tx, job_id, lowest, newest - finality, size):
                touching.setdefault(start, [bringer])
        full_before = {start for start in full_before if _is_final(start, size, head, finality)}
        touching = {s: t for s, t in touching.items() if _is_final(s, size, newest, finality)}
    elif finality:
        touching = {s: t for s, t in touching.items() if _is_final(s, size, head, finality)}
    drafts = []
    for start in await aggregator.full_ranges(tx, job_id, sorted(touching), size):
        by = min(touching[start], key=lambda t: t["task_id"])
        again = start in full_before
        drafts.append(
            NewEvent(
                producer_id=job_id,
                generation_id=output,
                kind="invalidation" if again else "data",
                partition_key=f"{start}-{start + size - 1}",
                start=start,
                end=start + size - 1,
                emission=f"task:{by['task_id']}" if again else "",
                backfill=all(t["backfill"] for t in touching[start]),
                traceparent=by["traceparent"],
            )
        )
    reason = f"an aggregator takes events of at most {_POSITIONS_OF_AN_EVENT} positions, within 64 bits"
    return _Work(drafts, batch, too_wide, reason)


def _is_final(start: int, size: int, head: int | None, finality: int) -> bool:
    """Whether the newest position is so far beyond a range that the range is believed to stay as it is."""
    return head is not None and start + size - 1 <= head - finality


def _share(
    batch: list[dict[str, Any]], size: int, fills: set[UUID]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The tasks to take in now, in order, and those that nobody could ever take in."""
    share: list[dict[str, Any]] = []
    too_wide: list[dict[str, Any]] = []
    room = _POSITIONS_OF_A_PASS
    for task in batch:
        ranges = _aligned(task["range_start"], task["range_end"], size)
        positions = _positions(task) if task["task_id"] in fills else len(ranges)
        if positions > _POSITIONS_OF_AN_EVENT or ranges[0] < -(2**63) or ranges[-1] + size > 2**63:
            too_wide.append(task)
        elif share and positions > room:
            break
        else:
            share.append(task)
            room -= positions
    return share, too_wide


def _positions(task: dict[str, Any]) -> int:
    return int(task["range_end"] - task["range_start"] + 1)


def _aligned(start: int, end: int, size: int) -> range:
    return range(start // size * size, end + 1, size)


async def _pass_on(tx: Transaction, job: dict[str, Any], batch: list[dict[str, Any]]) -> _Work:
    """Every event again on each output: a joint between datasets that needs no worker."""
    drafts = [
        NewEvent(
            producer_id=task["task_id"],
            generation_id=UUID(output["dataset_version"]),
            kind=task["kind"],
            partition_key=task["partition_key"],
            start=task["range_start"],
            end=task["range_end"],
            backfill=task["backfill"],
            traceparent=task["traceparent"],
        )
        for task in batch
        for output in job["outputs"]
    ]
    return _Work(drafts, batch)


async def _split(tx: Transaction, job: dict[str, Any], batch: list[dict[str, Any]]) -> _Work:
    """A partition becomes one cursor event for each of its positions, in order; the inverse of an aggregator.

    A pass emits so many events and no more. A task that it got through in part keeps the position to go on at,
    in the same transaction as the events before it.
    """
    drafts: list[NewEvent] = []
    done: list[dict[str, Any]] = []
    too_wide: list[dict[str, Any]] = []
    begun: dict[UUID, dict[str, Any]] = {}
    outputs = [UUID(output["dataset_version"]) for output in job["outputs"]]
    for task in batch:
        if _positions(task) > _POSITIONS_OF_AN_EVENT:
            too_wide.append(task)
            continue
        room = (_EVENTS_OF_A_SPLIT - len(drafts)) // max(1, len(outputs))
        if room <= 0:
            break
        first = (task["progress"] or {}).get("next_position", task["range_start"])
        last = min(task["range_end"], first + room - 1)
        drafts += (
            NewEvent(
                producer_id=task["task_id"],
                generation_id=generation,
                kind=task["kind"],
                partition_key=None,
                start=position,
                end=position,
                backfill=task["backfill"],
                traceparent=task["traceparent"],
            )
            for position in range(first, last + 1)
            for generation in outputs
        )
        if last == task["range_end"]:
            done.append(task)
        else:
            begun[task["task_id"]] = {"next_position": last + 1}
    reason = f"a splitter takes events of at most {_POSITIONS_OF_AN_EVENT} positions"
    return _Work(drafts, done, too_wide, reason, begun)


_OPERATORS = {"aggregator": _aggregate, "pass": _pass_on, "splitter": _split}
