"""Events by hand. Calls that come together are committed together: a transaction for each would limit a source."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from uuid import UUID

from traceplane import telemetry
from traceplane.auth.callers import Caller
from traceplane.auth.rights import EVERYTHING, access_of
from traceplane.auth.roles import Role
from traceplane.errors import InvalidInput
from traceplane.gateway import partition_names as names
from traceplane.gateway.refused_names import unknown_dataset, virtual_dataset
from traceplane.model.partitions import EXAMPLES, By, Partitions
from traceplane.postgres import events, partition_names, registry
from traceplane.postgres.audit import Act
from traceplane.postgres.database import Database, Transaction, retry_on_conflict
from traceplane.postgres.events import NewEvent
from traceplane.postgres.registry import ManualTarget
from traceplane.runtime.group_commit import GroupCommit
from traceplane.wire.control import EmitResponse, ManualEvent
from traceplane.wire.scalars import Scope

_INSTEAD = "emit events of the sources of"


class Emits:
    """The calls of each organization, which are committed apart."""

    def __init__(self) -> None:
        self._of_orgs: dict[UUID, _OrgEmits] = {}

    async def emit(self, caller: Caller, events: Sequence[ManualEvent]) -> EmitResponse:
        datasets = list(dict.fromkeys(event.dataset for event in events))
        caller.act.object["dataset"] = ", ".join(datasets[:_MOST_NAMED])
        if caller.role is not Role.ADMIN or caller.datasets is not None:
            await _check_rights(caller, events)
        if (emits := self._of_orgs.get(caller.org_id)) is None:
            emits = self._of_orgs[caller.org_id] = _OrgEmits(caller.database.unwatched, caller.org)
        return await emits.emit(_Emit(tuple(events), caller.act))


async def _check_rights(caller: Caller, events: Sequence[ManualEvent]) -> None:
    """Before the events are committed together with those of others, whose errors may name any dataset."""
    named = {event.dataset for event in events}
    async with caller.database.autocommit() as tx:
        access = await access_of(tx, caller.org, caller)
        if not access.is_limited:
            return
        known = await registry.datasets_by_id(tx, caller.org, sorted(named))
        for dataset_id in sorted(named):
            if not access.reads(dataset_id) or dataset_id not in known:
                raise await unknown_dataset(tx, caller.org, dataset_id, access)
            refusal = await virtual_dataset(tx, caller.org, dataset_id, _INSTEAD, access)
            if refusal is not None:
                raise refusal
            access.require_write(dataset_id)


_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class _Emit:
    """One call."""

    events: tuple[ManualEvent, ...]
    """Resolved by name when the group commits."""
    act: Act


class _OrgEmits:
    def __init__(self, database: Database, org: str) -> None:
        self._database, self._org = database, org
        self._calls: GroupCommit[_Emit, EmitResponse] = GroupCommit("emit", self._commit, max_items=64)

    async def emit(self, call: _Emit) -> EmitResponse:
        return (await self._calls.submit([call]))[0]

    async def _commit(self, calls: Sequence[_Emit]) -> Sequence[EmitResponse]:
        async def once() -> tuple[events.AcceptedEvents, list[int]]:
            emitted = [event for call in calls for event in call.events]
            named = list(dict.fromkeys(event.dataset for event in emitted))
            async with self._database.autocommit() as tx:
                targets = await _targets(tx, self._org, named)
            if any(target.partitions.by is By.NAME for target in targets.values()):
                targets = await self._with_names(targets, emitted)
            drafts = [
                [draft for event in call.events for draft in _manual_events(event, targets[event.dataset])]
                for call in calls
            ]
            acts = [call.act for call in calls]
            async with self._database.statement("emit") as tx:
                accepted = await events.accept(tx, list(chain(*drafts)), notify_dispatchers=True, acts=acts)
            return accepted, list(map(len, drafts))

        accepted, counts = await retry_on_conflict(once)
        answers, position = [], 0
        for count in counts:
            ids = accepted.event_ids[position : position + count]
            position += count
            new = sum(1 for i in ids if i is not None)
            answers.append(EmitResponse(new, len(ids) - new))
        telemetry.count("events_accepted_total", sum(a.accepted for a in answers))
        telemetry.count("events_duplicate_total", sum(a.duplicates for a in answers))
        telemetry.count("tasks_created_total", accepted.tasks_created)
        return answers

    async def _with_names(
        self, targets: Mapping[str, _Target], emitted: Sequence[ManualEvent]
    ) -> dict[str, _Target]:
        """The targets, with the positions of the names that are emitted; new names are registered first."""
        asked: set[str] = set()
        for event in emitted:
            partitions = targets[event.dataset].partitions
            name = event.partition or (event.scope.partition_key if event.scope is not None else None)
            if partitions.by is By.NAME and name is not None and partitions.may_have(name):
                asked.add(name)
        async with self._database.autocommit() as tx:
            known = await partition_names.find(tx, self._org, sorted(asked))
        if asked - known.keys():
            async with self._database.transaction("emit") as tx:
                known = await partition_names.register(tx, self._org, sorted(asked))
        return {
            dataset: replace(target, partitions=target.partitions.with_names(known))
            if target.partitions.by is By.NAME
            else target
            for dataset, target in targets.items()
        }


@dataclass(frozen=True, slots=True)
class _Target:
    voice: UUID
    generation_id: UUID
    partitions: Partitions


async def _targets(tx: Transaction, org: str, named: Sequence[str]) -> dict[str, _Target]:
    """By dataset; raises for the first that takes no events."""
    known = await registry.manual_targets(tx, [(org, dataset_id) for dataset_id in named])
    targets = {}
    for dataset_id in named:
        target = known.get((org, dataset_id))
        if target is None or target.generation_id is None:
            raise await unknown_dataset(tx, org, dataset_id, EVERYTHING)
        if target.voice is None or target.source_kind not in ("manual", "webhook", "cron"):
            raise await virtual_dataset(tx, org, dataset_id, _INSTEAD, EVERYTHING) or _not_a_source(target)
        targets[dataset_id] = _Target(target.voice, target.generation_id, target.partitions)
    return targets


def _not_a_source(target: ManualTarget) -> InvalidInput:
    producer = f"is produced by job {target.job}" if target.job else "has no deployed producer"
    return InvalidInput(
        "dataset.not_a_source",
        f"only datasets of manual, webhook or cron sources take events by hand; this one {producer}",
        value=target.dataset_id,
        next_step="emit an event of the source it derives from",
    )


def _manual_events(event: ManualEvent, target: _Target) -> list[NewEvent]:
    now = time.time_ns()
    traceparent = telemetry.record_span("event", None, now, now, dataset=event.dataset)
    return [
        NewEvent(
            producer_id=target.voice,
            generation_id=target.generation_id,
            kind=event.kind,
            partition_key=partition_key,
            start=start,
            end=end,
            emission=event.emission,
            traceparent=traceparent,
        )
        for partition_key, start, end in _scopes(event, target.partitions)
    ]


def _scopes(event: ManualEvent, partitions: Partitions) -> list[tuple[str | None, int, int]]:
    """(partition, first, last position) of each event."""
    if event.partition is not None:
        if not partitions.is_named:
            first = last = names.position(partitions, event.partition)
            if event.through is not None:
                first, last = names.positions(partitions, event.partition, event.through)
            return [(None, p, p) for p in range(first, last + 1)]
        through = event.through or event.partition
        return [(p.name, p.start, p.end) for p in names.one_each(partitions, event.partition, through)]
    assert event.scope is not None
    if partitions.is_named:
        _check_named(event.dataset, event.scope, partitions)
    return [(event.scope.partition_key, event.scope.first, event.scope.last)]


def _check_named(dataset: str, scope: Scope, partitions: Partitions) -> None:
    """A program may send the position along with the name."""
    if scope.partition_key is None or scope.first != scope.last:
        raise InvalidInput(
            "scope.needs_name",
            f"{dataset} is partitioned by {partitions.by}, and this is not the name of one",
            value=scope.partition_key or scope.cursor,
            next_step=f"write the {partitions.by}, for example {EXAMPLES[partitions.by]}",
        )
    if names.position(partitions, scope.partition_key) != scope.first:
        raise InvalidInput(
            "scope.wrong_position",
            f"the position of {scope.partition_key} is {names.position(partitions, scope.partition_key)}",
            value=scope.first,
            next_step="send the name alone, as partition",
        )
