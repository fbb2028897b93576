"""Events, backfills, tasks and the status of the public API."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec

from traceplane.model.json_object import JsonObject
from traceplane.wire.deploys import LackingView
from traceplane.wire.jobs import PauseView
from traceplane.wire.scalars import MAX_BATCH, Position, Scope, Text, Wire


class ManualEvent(Wire, frozen=True):
    """An event of a source dataset, by its name."""

    dataset: Text
    scope: Scope | None = None
    kind: Literal["data", "invalidation"] = "data"
    emission: Annotated[str, msgspec.Meta(max_length=256)] = ""
    """Another value makes another event of the same scope and kind; with the same value it is a repetition."""
    partition: Text | None = None
    """Instead of a scope: a partition by its name, such as 2026-11-16."""
    through: Text | None = None
    """The last of several partitions, which are one event each."""

    def __post_init__(self) -> None:
        if (self.scope is None) == (self.partition is None):
            raise ValueError("an event has either a scope or a partition")
        if self.through is not None and self.partition is None:
            raise ValueError("through is the end of a range that begins with partition")


class EmitRequest(Wire, frozen=True):
    events: Annotated[list[ManualEvent], msgspec.Meta(min_length=1, max_length=MAX_BATCH)]


class EmitResponse(Wire, frozen=True):
    accepted: int
    duplicates: int


class BackfillRequest(Wire, frozen=True):
    dataset: Text
    start: Position | Text
    """A position, or the name of a partition, such as 2026-11-16."""
    end: Position | Text
    """Belongs to the range."""
    only: Literal["missing", "failed", "all"] = "missing"
    """Scopes without a live commit; those whose last task is dead; or all of them."""
    partition_size: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    """Positions of one task; unset: one for each cursor, or the ranges that the job is fed with."""
    allow_gaps: bool = False
    """Also scopes for which an input lacks positions."""
    dry_run: bool = False
    """Only tell how the scopes stand."""


class BackfillResponse(Wire, frozen=True):
    dataset: str
    job: str
    scopes: int
    created: int
    """Tasks that were made; or would be, for a dry run."""
    unfinished: int
    """Scopes with a task under way."""
    missing: int
    """Scopes without a live commit."""
    failed: int
    """Scopes whose last task is dead."""
    left_out: int = 0
    """Scopes that got no task, since an input lacks positions of them."""
    gaps: tuple[LackingView, ...] = ()
    """The first of those positions."""


class TaskQuery(Wire, frozen=True):
    dag: str | None = None
    job: str | None = None
    state: Literal["queued", "dispatched", "running", "completed", "dead", "canceled"] | None = None
    standing: Literal["open", "superseded", "retired", "acknowledged"] | None = None
    """Of dead tasks: whether they still need somebody."""
    start: Text | None = None
    end: Text | None = None
    """Only tasks whose scope has positions from `start` to `end`, or partitions of the job."""
    before: UUID | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class TaskView(Wire, frozen=True):
    task_id: UUID
    dag: str
    job: str
    state: str
    kind: str
    attempt: int
    max_attempts: int
    created_at: str
    scope: str | None = None
    priority: str = "normal"
    worker_id: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    cancel_requested: bool = False
    progress: JsonObject | None = None
    error: JsonObject | None = None
    standing: Literal["open", "superseded", "retired", "acknowledged"] | None = None
    """Of a dead task. superseded: what it was to do has been done since. retired: its job is no longer deployed."""


class TasksResponse(Wire, frozen=True):
    tasks: list[TaskView]


class LineageView(Wire, frozen=True):
    event_id: int
    dataset: str
    kind: str
    scope: str
    producer_id: UUID


class WholeReadView(Wire, frozen=True):
    """What the last attempt of a task saw of a dataset that it reads as a whole."""

    dataset: str
    commit_id: int | None = None
    """The newest commit of the dataset then; none: it was empty."""
    committed_at: str | None = None
    newer: int = 0
    """Commits that the dataset has had since."""


class TaskDetail(Wire, frozen=True):
    task: TaskView
    inputs: list[LineageView]
    outputs: list[LineageView]
    reads: list[WholeReadView] = msgspec.field(default_factory=list)


class ReasonView(Wire, frozen=True):
    code: str
    sentence: str


class AttemptLog(Wire, frozen=True):
    attempt: int
    text: str
    """The end of what it wrote."""
    written_at: str


class TaskLogs(Wire, frozen=True):
    task_id: UUID
    state: str
    attempt: int
    """The last one that there was."""
    attempts: list[AttemptLog]
    """Those that wrote something and are over, the newest first."""


class ExplainResponse(Wire, frozen=True):
    task_id: UUID
    state: str
    job: str
    reasons: list[ReasonView]
    dag: str = ""
    scope: str | None = None
    error: JsonObject | None = None
    """Of the last failed attempt."""
    log: AttemptLog | None = None
    """What the last attempt wrote that wrote something."""
    next_step: str | None = None
    """Of a dead task."""
    retry_helps: bool | None = None
    """Whether retrying a dead task can help, once the next step is done."""


class TaskSelection(Wire, frozen=True):
    """Tasks by their ids; or those of a DAG, of one of its jobs, of positions or partitions from `start` to
    `end`."""

    task_ids: Annotated[list[UUID], msgspec.Meta(max_length=MAX_BATCH)] = msgspec.field(default_factory=list)
    dag: Text | None = None
    job: Text | None = None
    start: Position | Text | None = None
    end: Position | Text | None = None
    state: Literal["dead", "canceled"] = "dead"
    """Which ones of a DAG are started again."""
    after: UUID | None = None
    """Where the call before stopped."""

    def __post_init__(self) -> None:
        if bool(self.task_ids) == (self.dag is not None):
            raise ValueError("tasks are given by task_ids, or by a dag")
        if self.task_ids and (self.job, self.start, self.end, self.after) != (None, None, None, None):
            raise ValueError("job, start, end and after belong to a dag, not to task_ids")


class TaskChanges(Wire, frozen=True):
    changed: dict[str, str]
    """The new state of each task that changed."""
    unchanged: list[UUID]
    """Unknown tasks, and those in a state that does not allow it."""
    after: UUID | None = None
    """There may be more tasks of the DAG: repeat the call with this."""
    why_unchanged: dict[str, str] = msgspec.field(default_factory=dict)
    """Of each unchanged task: its state; `unknown`; `retired`, if its job is of a version that no longer serves; or
    `pipeline`, if it is of an execution that is over."""


class CoverageView(Wire, frozen=True):
    """Which positions there are."""

    first: int | None = None
    last: int | None = None
    gap_count: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    """First and last position of the first of them."""
    dead: int = 0
    """Scopes whose task died, and that nothing else covers."""
    first_name: str | None = None
    """Of a dataset whose partitions have names: what first, last and gaps are called."""
    last_name: str | None = None
    gap_names: tuple[tuple[str, str], ...] = ()
    dropped: tuple[int, int] | None = None
    """First and last position that was dropped because of its age."""
    dropped_name: str | None = None


class ScopeQuery(Wire, frozen=True):
    first: Text
    """A position, or the name of a partition."""
    last: Text


class ScopeExplanation(Wire, frozen=True):
    dataset: str
    first: int
    last: int
    missing: tuple[tuple[int, int], ...]
    """What of it is not there, as first and last positions."""
    reasons: list[ReasonView]
    scope: str = ""
    """What was asked for, as people write it; and what of it is missing."""
    missing_scopes: tuple[str, ...] = ()


class DatasetView(Wire, frozen=True):
    dataset: str
    commits: int
    rows: int
    bytes: int
    cursor: int | None = None
    coverage: CoverageView | None = None
    storage: str = "parquet"
    at_most: bool = False
    """Newer commits have replaced some of the rows that are counted; how many is not known."""
    events: int | None = None
    """Of a dataset without rows: how many there are, counted up to 10,000. `cursor` is the last one's position."""
    cursor_name: str | None = None
    """The partition at `cursor`, if partitions have names; those by name have no last one."""


class FailureView(Wire, frozen=True):
    """Tasks of one job that failed in the same way."""

    dag: str
    job: str
    state: Literal["dead", "retrying"]
    tasks: int
    code: str
    message: str
    newest: UUID
    scope: str | None = None
    """Of the newest."""
    and_more: bool = False
    """The job has more dead tasks than are counted."""


class StuckView(Wire, frozen=True):
    """A job whose tasks do not go on."""

    dag: str
    job: str
    reason: str
    sentence: str


class CronView(Wire, frozen=True):
    """A cron source that serves."""

    dag: str
    job: str
    schedule: str
    time_zone: str
    next_tick: str | None = None
    last_tick: str | None = None
    """The last one that fired."""


class StatusResponse(Wire, frozen=True):
    counts: dict[str, dict[str, int]]
    """Unfinished tasks: "dag/job" -> state -> number."""
    datasets: list[DatasetView]
    outbox_lag_seconds: float
    failed: list[FailureView] = msgspec.field(default_factory=list)
    stuck: list[StuckView] = msgspec.field(default_factory=list)
    dead_superseded: int = 0
    """Dead tasks whose work has been done since."""
    dead_retired: int = 0
    """Dead tasks of jobs that are no longer deployed."""
    cron: list[CronView] = msgspec.field(default_factory=list)
    paused: list[PauseView] = msgspec.field(default_factory=list)
    """Jobs that somebody paused."""
