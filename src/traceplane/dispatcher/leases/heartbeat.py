"""Leases are extended, and what operators have written so far is kept; callers learn of cancellation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from traceplane import telemetry
from traceplane.dispatcher.authority import Authority
from traceplane.dispatcher.leases import tokens
from traceplane.dispatcher.leases.calls import HeartbeatCall
from traceplane.model.task import HeartbeatVerdict, judge_heartbeat
from traceplane.postgres import task_logs, tasks
from traceplane.postgres.database import Database, Transaction, retry_on_conflict
from traceplane.wire.tasks import HeartbeatOutcome


@dataclass(frozen=True, slots=True)
class _Revivable:
    """Tasks that were reaped but are alive. They continue if their jobs have room. A job has to be locked before any
    task, so the transaction starts over."""

    task_ids: frozenset[UUID]


class LeaseExtensions:
    def __init__(self, database: Database, authority: Authority) -> None:
        self._database = database
        self._authority = authority

    async def extend(self, calls: Sequence[HeartbeatCall]) -> list[HeartbeatOutcome]:
        revivable: frozenset[UUID] = frozenset()

        async def once() -> list[HeartbeatOutcome] | _Revivable:
            async with self._database.transaction("heartbeat") as tx:
                return await self._extend(tx, calls, revivable)

        while isinstance(result := await retry_on_conflict(once), _Revivable):
            revivable |= result.task_ids
        return result

    async def _extend(
        self, tx: Transaction, calls: Sequence[HeartbeatCall], revivable: frozenset[UUID]
    ) -> list[HeartbeatOutcome] | _Revivable:
        """`revivable`: tasks whose jobs are locked first."""
        if revivable:
            await tasks.lock_jobs(tx, list(revivable))
        locked = await tasks.lock(tx, [c.beat.task_id for c in calls])
        verdicts = [
            judge_heartbeat(task.facts if task is not None else None, c.beat.attempt, c.beat.lease_token)
            for c in calls
            for task in (locked.get(c.beat.task_id),)
        ]
        judged = list(zip(calls, verdicts, strict=True))
        alive = {c.beat.task_id: c.beat.progress for c, v in judged if v is HeartbeatVerdict.OK}
        if revive := {c.beat.task_id: c.beat.progress for c, v in judged if v is HeartbeatVerdict.REVIVE}:
            if not revivable.issuperset(revive):
                return _Revivable(frozenset(revive))
            revived = await tasks.revivable(tx, list(revive))
            alive |= {task_id: progress for task_id, progress in revive.items() if task_id in revived}
        ends = await tasks.extend(tx, list(alive), list(alive.values())) if alive else {}
        if logs := {
            c.beat.task_id: (c.beat.task_id, c.beat.attempt, c.beat.log)
            for c, _ in judged
            if c.beat.log and c.beat.task_id in ends
        }:
            await task_logs.keep(tx, list(logs.values()))
        return [self._outcome(c, v, ends) for c, v in judged]

    def _outcome(
        self, call: HeartbeatCall, verdict: HeartbeatVerdict, ends: Mapping[UUID, datetime]
    ) -> HeartbeatOutcome:
        task_id = call.beat.task_id
        match verdict:
            case HeartbeatVerdict.OK | HeartbeatVerdict.REVIVE if task_id in ends:
                seconds = ends[task_id].timestamp() - self._authority.now
                return HeartbeatOutcome(task_id, "ok", seconds, tokens.renew(self._authority, call))
            case HeartbeatVerdict.CANCELED:
                return HeartbeatOutcome(task_id, "canceled")
            case HeartbeatVerdict.UNKNOWN:
                return HeartbeatOutcome(task_id, "unknown")
            case _:
                telemetry.count("stale_calls_total", call="heartbeat")
                return HeartbeatOutcome(task_id, "stale")
