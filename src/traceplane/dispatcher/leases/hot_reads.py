"""Where the rows of hot inputs are, and the rows themselves, a piece at a time.

A task reads its input in several pieces, over several connections, and still as of one moment: the state of its range
is a fingerprint of the live commits in it, and a piece is sent only while the state is the one that came with the
claim. A commit's rows never change, so the same commits mean the same rows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from traceplane.auth.capability import JobGrants
from traceplane.dispatcher.leases.job_entry import JobEntry
from traceplane.errors import Conflict, Forbidden, InvalidInput
from traceplane.model.edges import EVERYTHING
from traceplane.model.hot_table import HeldCommit, HotTable, moved_rows, parts, state_of
from traceplane.model.positions import Range
from traceplane.postgres import hot_tables
from traceplane.postgres.database import Transaction
from traceplane.postgres.tasks import Claimed
from traceplane.wire.tasks import HotInput, MovedFile, RowsRequest

_ROWS_PER_PART = 100_000


async def places(tx: Transaction, ranges: Sequence[hot_tables.Range]) -> list[HotInput]:
    """For each range of a hot generation, where its rows are."""
    tables = await hot_tables.load(tx, sorted({generation for generation, _, _ in ranges}))
    held_commits = await hot_tables.held(tx, ranges)
    return [
        _place(tables[generation], held, start, end)
        for (generation, start, end), held in zip(ranges, held_commits, strict=True)
    ]


def _place(table: HotTable, held: Sequence[HeldCommit], start: int, end: int) -> HotInput:
    files = []
    for commit, kept in moved_rows(held, start, end, replaces=table.replaces):
        whole = kept == ((commit.start, commit.end),)
        keep = table.position_column.all_values(kept)
        files += [MovedFile(f["path"], f["rows"], None if whole else keep) for f in commit.files]
    pieces = parts(held, start, end, rows_per_part=_ROWS_PER_PART)
    return HotInput(state_of(held), table.position, pieces, files)


async def send(
    tx: Transaction,
    task: Claimed,
    job: JobEntry,
    request: RowsRequest,
    grants: JobGrants,
    push: Callable[[bytes], Awaitable[None]],
) -> None:
    """Raises Conflict `hot.changed` if the range has changed since the task's claim."""
    generation = _granted(task, job, request, grants)
    first, last = _readable(task, job, request.input_index)
    [state] = await hot_tables.states(tx, [(generation, first, last)])
    if state != request.state:
        raise Conflict(
            "hot.changed",
            "the range was written since the task was claimed or fetched",
            value=f"{first} to {last}",
            next_step="fetch the task again, and reread the input",
        )
    table = (await hot_tables.load(tx, [generation]))[generation]
    used = job.payload.inputs[request.input_index]
    try:
        await hot_tables.read(
            tx,
            table,
            request.start,
            request.end,
            push,
            columns=columns_read(table, used.columns, used.where),
            where=used.where,
        )
    except hot_tables.FilterRefused as error:
        raise InvalidInput(
            "hot.filter_invalid",
            f"the input's `where` does not fit the table: {error}",
            value=str(used.where),
            next_step="correct the filter in the DAG file",
        ) from error


def columns_read(
    table: HotTable, selected: Sequence[str], where: Sequence[str] | dict[str, object]
) -> list[str]:
    """In the table's order. Columns of the filter are included, since readers filter again."""
    return [c.name for c in table.columns if not selected or c.name in selected or c.name in where]


def _readable(task: Claimed, job: JobEntry, input_index: int) -> Range:
    assert task.range_start is not None
    assert task.range_end is not None
    return job.reads(input_index, (task.range_start, task.range_end)) or EVERYTHING


def _granted(task: Claimed, job: JobEntry, request: RowsRequest, grants: JobGrants) -> UUID:
    """The generation to read, as the capability grants it."""
    inputs = job.payload.inputs
    if (
        task.range_start is not None
        and request.input_index < min(len(inputs), len(grants.reads))
        and inputs[request.input_index].hot
    ):
        first, last = _readable(task, job, request.input_index)
        if first <= request.start <= request.end <= last:
            return UUID(grants.reads[request.input_index].storage.strip("/").rpartition("/")[2])
    raise Forbidden(
        "task.input_not_granted",
        f"task {task.task_id} may not read this",
        value=f"input {request.input_index}, {request.start} to {request.end}",
        next_step="read hot inputs of the task, within its scope",
    )
