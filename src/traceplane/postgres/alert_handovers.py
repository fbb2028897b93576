"""What is on its way to an alert: new events that any job between it and its sources has yet to work on.

Nobody may take for history what one of them brings, whichever version of the alert comes to it first; and what a
version has not done when it is replaced, the one that serves then has to do.

A job knows positions of what it reads: blocks, days, months. On the way to the alert they become others, as the inputs
of the jobs in between say (`model.edges`), and so they do from one version to the next, if the alert has other periods
there. Of positions that say nothing about those of the alert, such as blocks about days, nothing is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from traceplane.model.dag import InputRole
from traceplane.model.edges import can_map, overlapping
from traceplane.model.partitions import Partitions
from traceplane.model.positions import Range, common, merged
from traceplane.postgres import scopes
from traceplane.postgres.alerts import of_periods
from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.registry import JobRow, job_payloads

_SQL = statements("alert_handovers")
_WIDE = 10_000
"""Positions of a range that may be everything."""

_Input = tuple[UUID, UUID]
"""A job, and a generation that it gets events of."""


async def awaited(
    tx: Transaction,
    job_id: UUID,
    ranges: Sequence[Range],
    besides: Sequence[UUID] = (),
    *,
    by_the_one_being_built: bool = False,
) -> list[Range]:
    """What of these ranges new events are about that have yet to be routed, besides those of these tasks. By any
    version of the alert: one that takes over from another must not take for history what that has not come to."""
    routes = [r["job_id"] for r in await tx.rows(_SQL["versions_of"], job_id, by_the_one_being_built)]
    flow = await _Flow.to(tx, [*routes, job_id])
    await flow.add_unfinished(flow.in_front_of(routes), besides=besides)
    if flow.is_quiet:
        return []
    own = flow.periods(job_id)
    coming = [_mapped(await flow.arriving(route), flow.periods(route), own) for route in routes]
    return common(ranges, merged(positions for one in coming for positions in one))


async def hand_over(tx: Transaction, retired_jobs: Sequence[UUID], operator: str) -> None:
    """What jobs had not done of new events when they were retired is no history to the version that serves now.
    `operator`: of the jobs that route alerts."""
    behind = await tx.rows(_SQL["behind"], list(retired_jobs), operator)
    heirs = {r["job_id"]: r["heir"] for r in behind if r["routes"] and r["heir"] is not None}
    left: set[tuple[UUID, Range]] = set()
    if heirs:
        flow = await _Flow.over(tx, {r["job_id"] for r in behind} | set(heirs.values()))
        await flow.add_moved(retired_jobs)
        await flow.add_unfinished(retired_jobs, retired=True)
        for job_id, heir in heirs.items():
            arriving = await flow.arriving(job_id)
            left |= {(heir, r) for r in _mapped(arriving, flow.periods(job_id), flow.periods(heir))}
    await tx.rows(_SQL["forget"], list(retired_jobs))
    await _leave(tx, left, history=False)


async def release(tx: Transaction, dag_id: UUID, operator: str) -> None:
    """Lets the version that serves from now on route what only it had found, or what one that was replaced at once had
    found when it did not serve yet. `operator`: of the jobs that route alerts."""
    rows = await tx.rows(_SQL["release"], dag_id, operator)
    if not rows:
        return
    flow = await _Flow.over(tx, {row["job_id"] for row in rows})
    left: set[tuple[UUID, Range]] = set()
    for row in rows:
        own, position = flow.periods(row["job_id"]), (row["position"], row["position"])
        former = of_periods(row["periods"]) if row["periods"] is not None else own
        left |= {(row["job_id"], r) for r in _mapped([position], former, own)}
    await _leave(tx, left, history=True)


async def _leave(tx: Transaction, left: Collection[tuple[UUID, Range]], *, history: bool) -> None:
    if left:
        jobs, firsts, lasts = zip(*((job_id, first, last) for job_id, (first, last) in left), strict=True)
        await tx.rows(_SQL["leave"], list(jobs), list(firsts), list(lasts), history)


async def handed_over(tx: Transaction) -> bool:
    """Whether something is."""
    return bool(await tx.value(_SQL["handed_over"]))


async def settle(tx: Transaction, most: int) -> int:
    """Creates tasks for what was handed over and has arrived: nothing about it is on its way any more, in no replay
    either, nor dead and still to be retried. How many."""
    handed = await tx.rows(_SQL["some"], most)
    heirs = list({row["job_id"] for row in handed})
    flow = await _Flow.to(tx, heirs)
    await flow.add_unfinished(flow.in_front_of(heirs), backfills=True)
    replaying = {r["job_id"] for r in await tx.rows(_SQL["replaying"], flow.in_front_of(heirs))}
    busy = {heir: merged(await flow.arriving(heir)) for heir in heirs}
    settled = [
        (row["job_id"], row["first"], row["last"], row["history"])
        for row in handed
        if not replaying.intersection(flow.in_front_of([row["job_id"]]))
        and not common([(row["first"], row["last"])], busy[row["job_id"]])
    ]
    if not settled:
        return 0
    columns = [list(column) for column in zip(*settled, strict=True)]
    return len(await tx.rows(_SQL["settle"], *columns, _WIDE))


def _mapped(ranges: Iterable[Range], source: Partitions, target: Partitions) -> set[Range]:
    return {overlapping(r, source, target) for r in ranges} if can_map(source, target) else set()


@dataclass(slots=True)
class _Flow:
    """How what some jobs have not done reaches others."""

    tx: Transaction
    jobs: Mapping[UUID, JobRow]
    upstream: Mapping[UUID, Sequence[UUID]] = field(default_factory=dict)
    """By job that routes: itself and those in front of it."""
    _producers: dict[UUID, list[UUID]] = field(default_factory=lambda: defaultdict(list))
    """By generation."""
    _former: dict[UUID, list[UUID]] = field(default_factory=lambda: defaultdict(list))
    """By generation, those in place of which it serves."""
    _unfinished: dict[tuple[UUID, UUID | None], set[Range]] = field(default_factory=lambda: defaultdict(set))
    """By job and generation that it is about, if that needs to be said."""
    _left: dict[UUID, set[Range]] = field(default_factory=lambda: defaultdict(set))
    """What other versions have left to jobs that route alerts, and have not settled."""
    _leaving: dict[UUID, set[Range]] = field(default_factory=dict)

    @classmethod
    async def to(cls, tx: Transaction, routes: Sequence[UUID]) -> Self:
        upstream: defaultdict[UUID, list[UUID]] = defaultdict(list)
        for row in await tx.rows(_SQL["in_front"], list(routes)):
            upstream[row["route"]].append(row["job_id"])
        flow = await cls.over(tx, {job_id for jobs in upstream.values() for job_id in jobs})
        flow.upstream = upstream
        return flow

    @classmethod
    async def over(cls, tx: Transaction, job_ids: Iterable[UUID]) -> Self:
        flow = cls(tx, {job.job_id: job for job in await job_payloads(tx, list(job_ids))})
        for job_id, job in flow.jobs.items():
            for output in job.outputs:
                flow._producers[UUID(output["dataset_version"])].append(job_id)
        return flow

    def in_front_of(self, routes: Iterable[UUID]) -> list[UUID]:
        return list({job_id for route in routes for job_id in self.upstream[route]})

    async def add_moved(self, retired_jobs: Sequence[UUID]) -> None:
        """Readers in other DAGs get the rest from new jobs."""
        for row in await self.tx.rows(_SQL["moved"], list(retired_jobs)):
            self._former[row["current_generation_id"]].append(row["generation_id"])

    async def add_unfinished(
        self,
        job_ids: Sequence[UUID],
        *,
        besides: Sequence[UUID] = (),
        backfills: bool = False,
        retired: bool = False,
    ) -> None:
        of_which = [job_id for job_id in job_ids if job_id in self.jobs and len(self._inputs(job_id)) > 1]
        arguments = (list(job_ids), backfills, list(besides), of_which, retired)
        for r in await self.tx.rows(_SQL["unfinished"], *arguments):
            self._unfinished[r["job_id"], r["generation_id"]].add((r["first"], r["last"]))
        if not backfills:
            for r in await self.tx.rows(_SQL["left"], list(job_ids)):
                if not r["history"]:
                    self._left[r["job_id"]].add((r["first"], r["last"]))

    @property
    def is_quiet(self) -> bool:
        return not self._unfinished and not self._left

    def periods(self, route: UUID) -> Partitions:
        """Those of the alerts that a job routes."""
        return self.jobs[route].job_inputs[0].partitions

    async def arriving(self, route: UUID) -> set[Range]:
        """Positions of the alerts that a job routes."""
        arriving = set(self._left[route])
        for index, generation_id in self._inputs(route).items():
            arriving |= await self._arriving(route, index, generation_id)
        return arriving

    def _inputs(self, job_id: UUID) -> dict[int, UUID]:
        """Those with events, and their generations."""
        return {
            i.input_index: i.generation_id
            for i in self.jobs[job_id].job_inputs
            if i.role is not InputRole.READS
        }

    async def _arriving(self, job_id: UUID, index: int, generation_id: UUID) -> set[Range]:
        """Positions of an input, of events that a job has not worked on or will get."""
        arriving = self._unfinished[job_id, None] | self._unfinished[job_id, generation_id]
        for producer in self._producers[generation_id]:
            arriving |= await self._changes(producer)
        own = next(i.partitions for i in self.jobs[job_id].job_inputs if i.input_index == index)
        for former in self._former[generation_id]:
            for producer in self._producers[former]:
                if self.jobs[producer].dag != self.jobs[job_id].dag:
                    arriving |= _mapped(await self._changes(producer), self.jobs[producer].partitions, own)
        return arriving

    async def _changes(self, job_id: UUID) -> set[Range]:
        """Positions of its outputs that a job will write again."""
        if job_id in self._leaving:
            return self._leaving[job_id]
        changes: set[Range] = set()
        for used, edge in self.jobs[job_id].edges():
            if used.role is InputRole.READS:
                continue
            arriving = await self._arriving(job_id, used.input_index, used.generation_id)
            if edge.read.time_column is not None:
                changes.update(await self._periods_of(job_id, used.input_index, arriving))
            elif can_map(edge.input, edge.job):
                changes.update(r for one in arriving if (r := edge.affected(one)) is not None)
        self._leaving[job_id] = changes
        return changes

    async def _periods_of(self, job_id: UUID, index: int, positions: Iterable[Range]) -> list[Range]:
        """The periods in which positions have rows. Of those that are not written yet it is not known: new rows belong
        to the newest period, or to the next one."""
        asked = [(index, one) for one in positions]
        if not asked:
            return []
        told = await scopes.periods_of_positions(self.tx, job_id, asked)
        newest = (await scopes.newest_periods(self.tx, job_id)).get(index)
        periods = [r for (_, one), extents in zip(asked, told, strict=True) for r in extents.concerned(one)]
        if newest is not None and any(not extents.positions for extents in told):
            periods.append((newest, newest + 1))
        return periods
