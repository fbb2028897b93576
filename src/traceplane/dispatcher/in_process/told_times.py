"""Inputs of a `scopes` job that are read by a column of time: in which periods of the job their rows are.

An event is about positions, such as blocks. The files of their commits say in which periods they have rows now, and
`told_periods` in which they had rows before. The change concerns both: a block that moves from one hour to another
recomputes exactly these two.

A period is over once rows of a later one were told. With `wait_for: all` there is also no gap between the last position
before the period and the first one after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceplane.dispatcher.in_process.operator import MAX_POSITIONS_PER_EVENT, InProcessInput, InProcessJob
from traceplane.model.edges import WaitFor
from traceplane.model.extents import Extents, UnknownTimes, merged, of_files
from traceplane.model.positions import Range, kept
from traceplane.postgres import commits, scopes
from traceplane.postgres.commits import LiveCommit, ReadRange
from traceplane.postgres.database import Transaction
from traceplane.postgres.scopes import PeriodBounds
from traceplane.wire.tasks import TaskError

Told = tuple[InProcessInput, Range]
"""An input, and positions of it."""
Periods = tuple[list[Range], list[Range]]
"""The periods in which positions had rows or have rows, and those in which they have rows."""


async def tell(
    tx: Transaction, job: InProcessJob, written: Sequence[Told], invalid: Sequence[Told]
) -> tuple[list[Periods | TaskError], list[Periods]]:
    """Remembers where the rows of positions are that were written; those that are only invalid stay where they were."""
    before = await scopes.periods_of_positions(
        tx, job.job_id, [_asked(told) for told in [*written, *invalid]]
    )
    ranges = [ReadRange(used.row_generation_id, positions) for used, positions in written]
    live = await commits.read_with_statistics(tx, ranges)
    after = [_extents(job, told, found) for told, found in zip(written, live, strict=True)]
    known = [
        (told, extents) for told, extents in zip(written, after, strict=True) if isinstance(extents, Extents)
    ]
    if known:
        await scopes.set_periods(
            tx,
            job.job_id,
            [_asked(told) for told, _ in known],
            [
                (used.input_index, period, positions)
                for (used, _), extents in known
                for period, held in extents.positions.items()
                for positions in held
            ],
        )
    periods: list[Periods | TaskError] = []
    for (_, positions), old, new in zip(written, before, after, strict=False):
        if isinstance(new, TaskError):
            periods.append(new)
        else:
            now = new.concerned(positions)
            periods.append((merged([*old.concerned(positions), *now]), now))
    had: list[Periods] = [
        (old.concerned(positions), [])
        for (_, positions), old in zip(invalid, before[len(written) :], strict=True)
    ]
    return periods, had


def _extents(job: InProcessJob, told: Told, live: Sequence[LiveCommit]) -> Extents | TaskError:
    used, positions = told
    column = used.edge.read.time_column
    assert column is not None
    files = [(held, file) for commit in live for held in _held(commit, positions) for file in commit.files]
    try:
        return of_files(files, column, job.partitions, MAX_POSITIONS_PER_EVENT)
    except UnknownTimes as error:
        return TaskError(
            "operator.times_unknown",
            str(error),
            value=column,
            next_step="write the column as a timestamp, or as whole seconds since 1970, among the first 64 columns",
            retryable=False,
        )


def _held(commit: LiveCommit, positions: Range) -> Sequence[Range]:
    ranges = kept(commit.positions, positions, commit.hidden)
    return [commit.positions] if ranges is None else ranges


async def maybe_over(tx: Transaction, job: InProcessJob, told: Sequence[Told]) -> list[tuple[Range, Told]]:
    """Periods around positions that were written, which may be complete now; with some of these positions."""
    together: dict[int, list[Told]] = {}
    for one in told:
        if one[0].edge.read.wait_for in (WaitFor.ALL, WaitFor.END):
            together.setdefault(one[0].input_index, []).append(one)
    asked = [
        (next(one for one in group if positions[0] <= one[1][0] <= positions[1]), positions)
        for group in together.values()
        for positions in merged(positions for _, positions in group)
    ]
    if not asked:
        return []
    around = await scopes.around_positions(
        tx, job.job_id, [(used.input_index, positions) for (used, _), positions in asked]
    )
    return [(periods, one) for (one, _), periods in zip(asked, around, strict=True) if periods is not None]


async def bounds(
    tx: Transaction, job: InProcessJob, inputs: Sequence[InProcessInput], periods: Sequence[int]
) -> Mapping[tuple[int, int], PeriodBounds]:
    """By the index of the input and the period."""
    asked = [(used.input_index, period) for used in inputs for period in periods]
    return dict(zip(asked, await scopes.around_periods(tx, job.job_id, asked), strict=True)) if asked else {}


def _asked(told: Told) -> tuple[int, Range]:
    used, positions = told
    return used.input_index, positions
