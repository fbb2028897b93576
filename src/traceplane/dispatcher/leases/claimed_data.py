"""What a claimed task gets from the catalog: its inputs' files and schemas, the existing files of its output, and the
last cursors of a source.

What is fixed for one revision of a job is kept with the job (`JobEntry`); what commits may change is read for each
claim.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from traceplane.dispatcher.leases import hot_reads
from traceplane.dispatcher.leases.job_entry import JobEntry, as_columns
from traceplane.errors import Conflict
from traceplane.model import pruning
from traceplane.model.committed_file import CommittedFile
from traceplane.model.comparisons import asked_columns
from traceplane.model.dataset_schema import as_read
from traceplane.model.edges import EVERYTHING, Edge, What
from traceplane.model.extents import values
from traceplane.model.positions import Range, kept
from traceplane.model.pruning import Asked, AskedColumn
from traceplane.model.row_positions import PositionColumn, ValueRange
from traceplane.postgres import commits, dataset_retention, events, executions, generation_schemas, scopes
from traceplane.postgres.commits import LiveCommit, ReadRange, WholeRead
from traceplane.postgres.database import Transaction
from traceplane.postgres.tasks import Claimed
from traceplane.wire.tasks import ColumnSchema, HotInput, InputFile, PipelineRun, TaskError

_RESUMED_CURSORS = 2048
FILES_PER_PIECE = 5_000
MOST_COMMITS = 10_000
"""Of an input, in a claim; the files of more are sent separately."""
_INSTANT = "timestamp[us, tz=UTC]"

Word = tuple[int, str, str]
"""A cursor, and the emission and kind of the last event about it."""


@dataclass(frozen=True, slots=True)
class ClaimedData:
    """The lists that go into a ClaimedTask, by task; a missing task has none."""

    input_files: dict[UUID, list[list[InputFile]]] = field(default_factory=dict)
    long_inputs: dict[UUID, list[int]] = field(default_factory=dict)
    input_schemas: dict[UUID, list[list[ColumnSchema] | None]] = field(default_factory=dict)
    input_times: dict[UUID, list[ValueRange | None]] = field(default_factory=dict)
    hot_inputs: dict[UUID, list[HotInput | None]] = field(default_factory=dict)
    output_files: dict[UUID, list[list[InputFile]]] = field(default_factory=dict)
    seen_commits: dict[UUID, int] = field(default_factory=dict)
    emissions: dict[UUID, str] = field(default_factory=dict)
    resume: dict[UUID, list[Word]] = field(default_factory=dict)
    executions: dict[UUID, PipelineRun] = field(default_factory=dict)
    not_computable: dict[UUID, TaskError] = field(default_factory=dict)
    """Tasks that would read what an input has dropped, or what was deleted since the moment that they read."""


async def gather(tx: Transaction, claimed: Sequence[Claimed], jobs: Mapping[UUID, JobEntry]) -> ClaimedData:
    data = ClaimedData()
    for c in claimed:
        if any(declared := jobs[c.job_id].declared):  # nobody writes rows there yet, or ever
            data.input_schemas[c.task_id] = list(declared)
    if reading := [c for c in claimed if jobs[c.job_id].reads_files]:
        await _inputs(tx, reading, jobs, data)
    if hot := [c for c in reading if jobs[c.job_id].reads_hot and c.range_start is not None]:
        await _hot_inputs(tx, hot, jobs, data)
    if appending := [c for c in claimed if jobs[c.job_id].appends]:
        files, newest = await commits.output_files(tx, [c.task_id for c in appending])
        data.seen_commits.update(newest)
        for c in appending:
            outputs = jobs[c.job_id].payload.outputs
            data.output_files[c.task_id] = [
                [_handed(f) for f in files.get((c.task_id, o.output_index), [])] for o in outputs
            ]
    if with_emission := [c.task_id for c in claimed if jobs[c.job_id].needs_emission]:
        data.emissions.update(await events.emissions_of_tasks(tx, with_emission))
    if runs := [c.task_id for c in claimed if jobs[c.job_id].payload.source_kind == "pipeline"]:
        data.executions.update(await executions.of_tasks(tx, runs))
    for c in claimed:
        job = jobs[c.job_id].payload
        if job.endless and job.outputs:
            generation = job.outputs[0].dataset_version
            data.resume[c.task_id] = await events.latest_by_cursor(tx, generation, _RESUMED_CURSORS)
    return data


async def _inputs(
    tx: Transaction, reading: Sequence[Claimed], jobs: Mapping[UUID, JobEntry], data: ClaimedData
) -> None:
    by_time = await _positions_by_time(tx, reading, jobs)
    scoped = [
        (c, number, positions)
        for c in reading
        if c.range_start is not None and c.range_end is not None
        for number, edge in enumerate(jobs[c.job_id].edges)
        for positions in (
            by_time[c.task_id, number]
            if edge.read.time_column is not None
            else [jobs[c.job_id].reads(number, (c.range_start, c.range_end))]
        )
    ]
    reads = await _reads(tx, scoped, jobs)
    live = await _live(tx, scoped, reads, jobs)
    await _forgotten(tx, scoped, jobs, data)
    input_commits = {
        (c.task_id, number): [(commit, positions) for commit in found or ()]
        for (c, number, positions), found in zip(scoped, live, strict=True)
    }
    for (c, number, _), found in zip(scoped, live, strict=True):
        if found is None:
            data.long_inputs.setdefault(c.task_id, []).append(number)
    generations = {generation for c in reading for generation in jobs[c.job_id].row_generations}
    stored_schemas = await generation_schemas.load(tx, sorted(generations))
    dropping = {generation for generation, stored in stored_schemas.items() if stored.drops}
    if dropping:
        await _dropped(tx, scoped, jobs, dropping, data)
    schemas = {
        generation: as_columns(columns)
        for generation, stored in stored_schemas.items()
        if (columns := as_read(stored.schema, stored.declared))
    }
    types = {generation: {c.name: c.type for c in columns} for generation, columns in schemas.items()}
    positions_in = {
        generation: column
        for generation, stored in stored_schemas.items()
        if (column := stored.position_column(as_read(stored.schema, stored.declared) or ())) is not None
    }
    for c in reading:
        entry = jobs[c.job_id]
        sides = list(zip(entry.payload.inputs, entry.row_generations, strict=True))
        data.input_schemas[c.task_id] = [schemas.get(generation) for _, generation in sides]
        if any(i.time_column for i, _ in sides):
            data.input_times[c.task_id] = [
                _times(entry.edges[number], c, types.get(generation, {}))
                for number, (_, generation) in enumerate(sides)
            ]
        data.input_files[c.task_id] = [
            [
                _handed(f)
                for commit, positions in input_commits.get((c.task_id, number), [])
                for f in _of_range(commit, positions, positions_in.get(generation))
            ]
            for number, (_, generation) in enumerate(sides)
        ]


async def _reads(
    tx: Transaction, scoped: Sequence[tuple[Claimed, int, Range | None]], jobs: Mapping[UUID, JobEntry]
) -> list[ReadRange]:
    """What each task reads of each input."""
    asking = {
        entry.row_generations[number]
        for c, number, _ in scoped
        for entry in [jobs[c.job_id]]
        if entry.payload.inputs[number].where or entry.edges[number].read.time_column is not None
    }
    types = {
        generation: {c.name: c.type for c in as_columns(as_read(stored.schema, stored.declared) or ())}
        for generation, stored in (
            await generation_schemas.load(tx, sorted(asking)) if asking else {}
        ).items()
    }
    return [
        ReadRange(
            jobs[c.job_id].row_generations[number],
            positions,
            _asked(jobs[c.job_id], number, c, types.get(jobs[c.job_id].row_generations[number], {})),
        )
        for c, number, positions in scoped
    ]


def _asked(entry: JobEntry, number: int, task: Claimed, types: Mapping[str, str]) -> Asked | None:
    """Which files of an input a task needs, as far as their statistics show it."""
    columns = asked_columns(entry.payload.inputs[number].where, types)
    times, column = _times(entry.edges[number], task, types), entry.edges[number].read.time_column
    if times is not None and column is not None:
        columns.append(AskedColumn(column, types.get(column, _INSTANT), (times,), before=True))
    return pruning.asked(columns)


async def _live(
    tx: Transaction,
    scoped: Sequence[tuple[Claimed, int, Range | None]],
    reads: Sequence[ReadRange],
    jobs: Mapping[UUID, JobEntry],
) -> list[list[LiveCommit] | None]:
    """The commits that each task reads of each input, None for too many of them. Remembers the newest of inputs that
    are read as a whole."""
    times = [jobs[c.job_id].as_of for c, _, _ in scoped]
    whole = [
        n
        for n, (c, number, _) in enumerate(scoped)
        if jobs[c.job_id].edges[number].read.what is not What.SCOPE
    ]
    # Before the commits themselves: what comes in between makes the task run again, rather than be missed.
    newest = await _newest(tx, reads, [n for n in whole if reads[n].asked is not None])
    now = iter(
        await commits.read_by_tasks(
            tx, [read for read, at in zip(reads, times, strict=True) if at is None], most=MOST_COMMITS
        )
    )
    live = [
        next(now) if at is None else await commits.read_at(tx, read, at, most=MOST_COMMITS)
        for read, at in zip(reads, times, strict=True)
    ]
    newest |= await _newest(tx, reads, [n for n in whole if live[n] is None and n not in newest])
    seen = [
        WholeRead(
            scoped[n][0].task_id,
            jobs[scoped[n][0].job_id].payload.inputs[scoped[n][1]].input_index,
            reads[n].generation_id,
            newest[n] if n in newest else max((commit.commit_id for commit in live[n] or ()), default=None),
        )
        for n in whole
    ]
    if seen:
        await commits.record_reads(tx, seen)
    return live


async def _newest(
    tx: Transaction, reads: Sequence[ReadRange], numbers: Sequence[int]
) -> dict[int, int | None]:
    if not numbers:
        return {}
    return dict(zip(numbers, await commits.newest(tx, [reads[n] for n in numbers]), strict=True))


async def send_files(
    tx: Transaction, task: Claimed, job: JobEntry, number: int, push: Callable[[bytes], Awaitable[None]]
) -> None:
    """Sends the files of an input as of now, some at a time: each line is a JSON array of `InputFile`s, and the last
    one is empty. What was committed since the claim makes the task run again anyway. Raises Conflict if the input has
    dropped something since then."""
    jobs = {task.job_id: job}
    positions_by_time = await _positions_by_time(tx, [task], jobs)
    assert task.range_start is not None
    assert task.range_end is not None
    found: Sequence[Range | None] = (
        positions_by_time[task.task_id, number]
        if job.edges[number].read.time_column is not None
        else [job.reads(number, (task.range_start, task.range_end))]
    )
    generation = job.row_generations[number]
    stored = (await generation_schemas.load(tx, [generation]))[generation]
    column = stored.position_column(as_read(stored.schema, stored.declared) or ())
    scoped = [(task, number, positions) for positions in found]
    if stored.drops:
        await _dropped(tx, scoped, jobs, {generation}, dropped := ClaimedData())
        if dropped.not_computable:
            raise Conflict(
                "task.stale", "an input of the task has dropped something", value=str(task.task_id)
            )
    piece: list[InputFile] = []
    for read in await _reads(tx, scoped, jobs):
        async for commit in commits.streamed(tx, read, job.as_of):
            piece += [_handed(f) for f in _of_range(commit, read.positions, column)]
            if len(piece) >= FILES_PER_PIECE:
                await push(msgspec.json.encode(piece) + b"\n")
                piece = []
    if piece:
        await push(msgspec.json.encode(piece) + b"\n")
    await push(b"[]\n")


async def _dropped(
    tx: Transaction,
    scoped: Sequence[tuple[Claimed, int, Range | None]],
    jobs: Mapping[UUID, JobEntry],
    dropping: Collection[UUID],
    data: ClaimedData,
) -> None:
    """Finds the tasks whose input dropped something while they waited. They must not run: they would replace what was
    computed from all of it."""
    asked = [
        (c, generation, positions)
        for c, number, positions in scoped
        for generation in [jobs[c.job_id].row_generations[number]]
        if generation in dropping and positions is not None
        if jobs[c.job_id].edges[number].read.what is What.SCOPE
    ]
    ranges = [(generation, positions) for _, generation, positions in asked]
    for place, dropped in (await dataset_retention.dropped_reads(tx, ranges)).items():
        data.not_computable[asked[place][0].task_id] = TaskError(
            "task.input_dropped",
            f"{dropped.dataset_id} has dropped {dropped.scope}, which it reads",
            value=dropped.scope,
            next_step="compute what was dropped again with `traceplane backfill`, then retry the task",
        )


async def _forgotten(
    tx: Transaction,
    scoped: Sequence[tuple[Claimed, int, Range | None]],
    jobs: Mapping[UUID, JobEntry],
    data: ClaimedData,
) -> None:
    """Finds the tasks that read as of a moment of which retention deleted rows while they waited."""
    pinned = [
        (c.task_id, jobs[c.job_id].row_generations[number], at)
        for c, number, _ in scoped
        if (at := jobs[c.job_id].as_of) is not None
    ]
    if not pinned:
        return
    asked = [(generation, at) for _, generation, at in pinned]
    for place, (dataset_id, until) in (await commits.forgotten_since(tx, asked)).items():
        task_id, _, at = pinned[place]
        data.not_computable[task_id] = TaskError(
            "query.history_gone",
            f"rows of {dataset_id} that were replaced up to {until.isoformat()} were deleted while it waited",
            value=at.isoformat(),
            next_step="ask again, for a later time",
        )


async def _positions_by_time(
    tx: Transaction, reading: Sequence[Claimed], jobs: Mapping[UUID, JobEntry]
) -> dict[tuple[UUID, int], list[Range]]:
    """Per task and input that is read by a column of time: the range of positions with rows in its periods, if any."""
    asked = [
        (
            c,
            number,
            (c.job_id, jobs[c.job_id].payload.inputs[number].input_index, (c.range_start, c.range_end)),
        )
        for c in reading
        if c.range_start is not None and c.range_end is not None
        for number, edge in enumerate(jobs[c.job_id].edges)
        if edge.read.time_column is not None
    ]
    if not asked:
        return {}
    found = await scopes.positions_in_periods(tx, [periods for _, _, periods in asked])
    return {
        (c.task_id, number): [] if positions is None else [positions]
        for (c, number, _), positions in zip(asked, found, strict=True)
    }


def _times(edge: Edge, task: Claimed, types: Mapping[str, str]) -> ValueRange | None:
    """The times of the rows that a task reads of an input."""
    column = edge.read.time_column
    if column is None or task.range_start is None or task.range_end is None:
        return None
    return values(types.get(column, _INSTANT), edge.job, (task.range_start, task.range_end))


def _of_range(
    commit: LiveCommit, positions: Range | None, column: PositionColumn | None
) -> list[CommittedFile]:
    """The commit's files, with the ranges of their position column to read if they are not read in full."""
    if column is None:
        return commit.files
    ranges = kept(commit.positions, positions or commit.positions, commit.hidden)
    if ranges is None:
        return commit.files
    values = column.all_values(ranges)
    return [{**f, "kept": values} for f in commit.files] if values else []


async def _hot_inputs(
    tx: Transaction, reading: Sequence[Claimed], jobs: Mapping[UUID, JobEntry], data: ClaimedData
) -> None:
    sides = [
        (c, number, generation)
        for c in reading
        for number, (i, generation) in enumerate(
            zip(jobs[c.job_id].payload.inputs, jobs[c.job_id].row_generations, strict=True)
        )
        if i.hot
    ]
    ranges = [
        (generation, *(jobs[c.job_id].reads(number, (c.range_start or 0, c.range_end or 0)) or EVERYTHING))
        for c, number, generation in sides
    ]
    for (c, number, _), hot_input in zip(sides, await hot_reads.places(tx, ranges), strict=True):
        every = data.hot_inputs.setdefault(c.task_id, [None] * len(jobs[c.job_id].payload.inputs))
        every[number] = hot_input
        data.input_files[c.task_id][number] = []


def _handed(file: CommittedFile) -> InputFile:
    """A file as workers get it, without its statistics, which are no longer needed."""
    return InputFile(file["path"], file["rows"], file["bytes"], file.get("kept"))
