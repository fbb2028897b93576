"""What a dataset holds, lacks and computes, as a strip of cells that stays the same size however many positions there
are."""

from __future__ import annotations

from traceplane.auth.rights import access_of
from traceplane.errors import InvalidInput
from traceplane.gateway import partition_names as names
from traceplane.gateway.refused_names import unknown_dataset, virtual_dataset
from traceplane.http_service.routes import Call, Route
from traceplane.model.partitions import By
from traceplane.model.positions import Range
from traceplane.postgres import coverage_strip
from traceplane.postgres.coverage_strip import StripTask
from traceplane.wire.coverage import CoverageStrip, StripCell, StripQuery

_MOST_TASKS = 5_000
"""Of each kind."""
_WIDEST = 2**62
_WAITING, _IN_FLIGHT, _DEAD = 0, 1, 3


class CoverageStripApi:
    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/datasets/{dataset_id}/coverage", None, CoverageStrip, self.strip, "reader",
                  "What a dataset holds, lacks and computes, as a strip of cells.", query=StripQuery),
        ]  # fmt: skip

    async def strip(self, call: Call[None]) -> CoverageStrip:
        query: StripQuery = call.query
        org, dataset_id = call.principal.org, call.path_params["dataset_id"]
        async with call.principal.database.snapshot() as tx:
            access = await access_of(tx, org, call.principal)
            found = await coverage_strip.dataset(tx, org, dataset_id) if access.reads(dataset_id) else None
            if found is None:
                raise await unknown_dataset(tx, org, dataset_id, access)
            refusal = await virtual_dataset(tx, org, dataset_id, "look at what it reads:", access)
            if refusal is not None:
                raise refusal
            tasks = await coverage_strip.tasks(tx, found.generation_id, _MOST_TASKS)
            asked = (query.first, query.last)
            partitions = await names.with_names(
                tx, org, found.partitions, *(name for name in asked if name is not None)
            )
            ends = [(t.first, t.last) for t in tasks] + ([] if found.held is None else [found.held])
            if not ends and None in asked:
                return CoverageStrip(dataset_id, [])
            first = names.position(partitions, asked[0]) if asked[0] else min(a for a, _ in ends)
            last = names.position(partitions, asked[1]) if asked[1] else max(b for _, b in ends)
            _check(first, last)
            per_cell = -(-(last - first + 1) // query.cells)
            held = await coverage_strip.held(tx, found.generation_id, (first, last), per_cell)
            ranges = [(at, min(at + per_cell - 1, last)) for at in range(first, last + 1, per_cell)]
            labels = await names.written(tx, org, found.partitions, ranges)
        if found.partitions.by is By.NAME and per_cell == 1:
            labels = [label or str(first) for label, (first, _) in zip(labels, ranges, strict=True)]
        return CoverageStrip(
            dataset_id,
            _cells(held, tasks, (first, last), per_cell),
            first=first,
            last=last,
            per_cell=per_cell,
            names=labels,
            tasks_left_out=len(tasks) >= _MOST_TASKS,
        )


def _check(first: int, last: int) -> None:
    if first > last:
        raise InvalidInput(
            "scope.bad_range",
            "the range ends before it starts",
            value=f"{first}..{last}",
            next_step="give its first position first",
        )
    if last - first >= _WIDEST:
        raise InvalidInput(
            "scope.range_too_wide",
            "the range is too wide to be divided into cells",
            value=f"{first}..{last}",
            next_step="give `first` and `last`",
        )


def _cells(held: list[int], tasks: list[StripTask], positions: Range, per_cell: int) -> list[StripCell]:
    first, last = positions
    counts = {stage: [0] * (len(held) + 1) for stage in (_WAITING, _IN_FLIGHT, _DEAD)}
    for task in tasks:
        if task.last < first or task.first > last:
            continue
        counts[task.stage][(max(task.first, first) - first) // per_cell] += 1
        counts[task.stage][(min(task.last, last) - first) // per_cell + 1] -= 1
    under_way = {stage: _added_up(counts[stage]) for stage in counts}
    return [
        StripCell(present, *(under_way[stage][n] for stage in (_WAITING, _IN_FLIGHT, _DEAD)))
        for n, present in enumerate(held)
    ]


def _added_up(changes: list[int]) -> list[int]:
    total, sums = 0, []
    for change in changes:
        total += change
        sums.append(total)
    return sums
