"""Fires the ticks of cron sources, each one once, by the database's clock.

A tick becomes an event for the period that it names, in the transaction that advances its source. The source's row is
locked meanwhile, so that dispatchers share the work; one that dies leaves the tick to the next. The event's emission is
the tick, so that even a repetition would be recognized.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from traceplane import telemetry
from traceplane.postgres import cron_schedules, events
from traceplane.postgres.cron_schedules import DueSource, Settled
from traceplane.postgres.database import Database, retry_on_conflict
from traceplane.postgres.events import NewEvent
from traceplane.runtime.process import Outcome
from traceplane.schedule.due_ticks import delay_of, position
from traceplane.schedule.due_ticks import settle as settle_ticks

_SOURCES_AT_ONCE = 250
_POSTPONED = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class TicksFired(Outcome):
    fired: int = 0
    skipped: int = 0


class CronTicks:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_once(self) -> TicksFired:
        fired = skipped = 0
        taken = _SOURCES_AT_ONCE
        while taken == _SOURCES_AT_ONCE:
            outcome, taken = await retry_on_conflict(self._fire)
            fired, skipped = fired + outcome.fired, skipped + outcome.skipped
        telemetry.count("cron_ticks_fired_total", fired)
        telemetry.count("cron_ticks_skipped_total", skipped)
        return TicksFired(fired, skipped)

    async def _fire(self) -> tuple[TicksFired, int]:
        """What became of the ticks of sources that are due, and how many sources that were."""
        async with self._database.transaction("cron") as tx:
            due = await cron_schedules.take(tx, _SOURCES_AT_ONCE)
            if not due:
                return TicksFired(), 0
            passes = [_pass(source) for source in due]
            new_events = [event for one in passes for event in one.events]
            accepted = await events.accept(tx, new_events, notify_dispatchers=True)
            await cron_schedules.settle(tx, [one.settled for one in passes])
        new = sum(1 for event_id in accepted.event_ids if event_id is not None)
        telemetry.count("events_accepted_total", new)
        telemetry.count("events_duplicate_total", len(new_events) - new)
        telemetry.count("tasks_created_total", accepted.tasks_created)
        for source, one in zip(due, passes, strict=True):
            if one.skipped:
                telemetry.emit(
                    "cron.ticks_skipped", "warning", dag=source.dag, job=source.job, ticks=one.skipped
                )
        return TicksFired(sum(one.fired for one in passes), sum(one.skipped for one in passes)), len(due)


@dataclass(frozen=True, slots=True)
class _Pass:
    """What one pass does for one source."""

    settled: Settled
    events: tuple[NewEvent, ...] = ()
    fired: int = 0
    skipped: int = 0


def _pass(due: DueSource) -> _Pass:
    unchanged = Settled(due.job_id, due.settled_through, None, due.now + _POSTPONED, None)
    try:
        delay = delay_of(due.source, f"{due.org}/{due.dag}/{due.job}")
        ticks = settle_ticks(due.source, settled_through=due.settled_through, now=due.now, delay=delay)
        new_events = tuple(event for tick in ticks.fire for event in _events(due, tick))
    except ValueError as error:  # the time zone is not known here, or the dataset has no periods any more
        telemetry.emit("cron.unusable", "error", dag=due.dag, job=due.job, message=str(error))
        return _Pass(unchanged)
    settled = replace(
        unchanged,
        settled_through=ticks.settled_through,
        next_tick=ticks.next_tick,
        due_at=None if ticks.next_tick is None else ticks.next_tick + delay,
        last_tick=ticks.fire[-1] if ticks.fire else None,
    )
    return _Pass(settled, new_events, len(ticks.fire), ticks.skipped)


def _events(due: DueSource, tick: datetime) -> list[NewEvent]:
    """One for each dataset of the source that has the period."""
    found = []
    for output in due.outputs:
        if (period := position(due.source, output.partitions, tick)) is None:
            continue
        now = time.time_ns()
        found.append(
            NewEvent(
                producer_id=output.voice,
                generation_id=output.generation_id,
                kind="data",
                partition_key=output.partitions.name(period),
                start=period,
                end=period,
                emission=f"tick {tick.astimezone(UTC):%Y-%m-%dT%H:%MZ}",
                traceparent=telemetry.record_span("event", None, now, now, dataset=output.dataset_id),
            )
        )
    return found
