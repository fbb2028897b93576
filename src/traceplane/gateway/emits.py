"""Events by hand. Calls that come together are committed together: a transaction for each would limit a source."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from traceplane import telemetry
from traceplane.errors import InvalidInput
from traceplane.gateway.refused_names import unknown_dataset, virtual_dataset
from traceplane.postgres import events, registry
from traceplane.postgres.database import Database, Transaction, retry_on_conflict
from traceplane.postgres.events import NewEvent
from traceplane.postgres.registry import ManualTarget
from traceplane.runtime.group_commit import GroupCommit
from traceplane.wire.control import EmitResponse, ManualEvent


@dataclass(frozen=True, slots=True)
class _Emit:
    """One call's events, resolved by name when its group commits."""

    org: str
    events: tuple[ManualEvent, ...]


class Emits:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._calls: GroupCommit[_Emit, EmitResponse] = GroupCommit("emit", self._commit, max_items=64)

    async def emit(self, org: str, events: Sequence[ManualEvent]) -> EmitResponse:
        return (await self._calls.submit([_Emit(org, tuple(events))]))[0]

    async def _commit(self, emits: Sequence[_Emit]) -> Sequence[EmitResponse]:
        async def once() -> events.AcceptedEvents:
            named = list(dict.fromkeys((emit.org, e.dataset) for emit in emits for e in emit.events))
            async with self._database.autocommit() as tx:
                targets = await _targets(tx, named)
            drafts = [
                _manual_event(event, targets[emit.org, event.dataset])
                for emit in emits
                for event in emit.events
            ]
            async with self._database.statement("emit") as tx:
                return await events.accept(tx, drafts, notify_dispatchers=True)

        accepted = await retry_on_conflict(once)
        answers, position = [], 0
        for emit in emits:
            ids = accepted.event_ids[position : position + len(emit.events)]
            position += len(emit.events)
            new = sum(1 for i in ids if i is not None)
            answers.append(EmitResponse(new, len(ids) - new))
        telemetry.count("events_accepted_total", sum(a.accepted for a in answers))
        telemetry.count("events_duplicate_total", sum(a.duplicates for a in answers))
        telemetry.count("tasks_created_total", accepted.tasks_created)
        return answers


@dataclass(frozen=True, slots=True)
class _Target:
    voice: UUID
    generation_id: UUID


async def _targets(tx: Transaction, named: Sequence[tuple[str, str]]) -> dict[tuple[str, str], _Target]:
    """By organization and dataset; raises for the first that takes no events."""
    known = await registry.manual_targets(tx, named)
    targets = {}
    for org, dataset_id in named:
        target = known.get((org, dataset_id))
        if target is None or target.generation_id is None:
            raise await unknown_dataset(tx, org, dataset_id)
        if target.voice is None or target.source_kind not in ("manual", "webhook", "cron"):
            raise await virtual_dataset(
                tx, org, dataset_id, "emit events of the sources of"
            ) or _not_a_source(target)
        targets[org, dataset_id] = _Target(target.voice, target.generation_id)
    return targets


def _not_a_source(target: ManualTarget) -> InvalidInput:
    producer = f"is produced by job {target.job}" if target.job else "has no deployed producer"
    return InvalidInput(
        "dataset.not_a_source",
        f"only datasets of manual, webhook or cron sources take events by hand; this one {producer}",
        value=target.dataset_id,
        next_step="emit an event of the source it derives from",
    )


def _manual_event(event: ManualEvent, target: _Target) -> NewEvent:
    now = time.time_ns()
    return NewEvent(
        producer_id=target.voice,
        generation_id=target.generation_id,
        kind=event.kind,
        partition_key=event.scope.partition_key,
        start=event.scope.first,
        end=event.scope.last,
        emission=event.emission,
        traceparent=telemetry.record_span("event", None, now, now, dataset=event.dataset),
    )
