"""Events of running tasks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from traceplane import telemetry
from traceplane.dispatcher.leases.calls import EmissionCall
from traceplane.postgres import events, tasks
from traceplane.postgres.database import Database, retry_on_conflict
from traceplane.postgres.events import AcceptedEvents
from traceplane.postgres.tasks import HeldFence
from traceplane.wire.tasks import EmissionOutcome


class Emissions:
    def __init__(self, database: Database, work_created: Callable[[], None]) -> None:
        self._database = database
        self._work_created = work_created

    async def accept(self, calls: Sequence[EmissionCall]) -> list[EmissionOutcome]:
        """Events of a stale or canceled task are not accepted."""

        async def once() -> tuple[list[HeldFence | None], AcceptedEvents]:
            async with self._database.transaction("events") as tx:
                held = await tasks.hold_fences(tx, [c.fence for c in calls])
                fences = [held.get(c.fence) for c in calls]
                drafts = [
                    replace(event, backfill=True) if fence.backfill else event
                    for call, fence in zip(calls, fences, strict=True)
                    if fence is not None and not fence.cancel_requested
                    for event in call.events
                ]
                return fences, await events.accept(tx, drafts)

        fences, accepted = await retry_on_conflict(once)
        after_acceptance(accepted, self._work_created)
        event_ids = iter(accepted.event_ids)
        return [_outcome(call, fence, event_ids) for call, fence in zip(calls, fences, strict=True)]


def _outcome(call: EmissionCall, fence: HeldFence | None, event_ids: Iterator[int | None]) -> EmissionOutcome:
    """`event_ids` has the events of the accepted calls, in their order."""
    if fence is None:
        return EmissionOutcome(call.fence.task_id, "stale")
    if fence.cancel_requested:
        return EmissionOutcome(call.fence.task_id, "canceled")
    new = sum(1 for event_id in itertools.islice(event_ids, len(call.events)) if event_id is not None)
    return EmissionOutcome(call.fence.task_id, "ok", new, len(call.events) - new)


def after_acceptance(accepted: AcceptedEvents, work_created: Callable[[], None]) -> None:
    """Called after the transaction is committed."""
    if accepted.event_ids:
        new = sum(1 for event_id in accepted.event_ids if event_id is not None)
        telemetry.count("events_accepted_total", new)
        telemetry.count("events_duplicate_total", len(accepted.event_ids) - new)
    if accepted.tasks_created:
        telemetry.count("tasks_created_total", accepted.tasks_created)
        work_created()
