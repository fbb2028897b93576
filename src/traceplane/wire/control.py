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
    """An event of a source's dataset."""

    dataset: Text
    scope: Scope | None = None
    kind: Literal["data", "invalidation"] = "data"
    emission: Annotated[str, msgspec.Meta(max_length=256)] = ""
    """Distinguishes events of the same scope and kind; an event with the same value is a duplicate."""
    partition: Text | None = None
    """Instead of a scope: the name of a partition, such as 2026-11-16."""
    through: Text | None = None
    """The last partition of a range; each partition is one event."""

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
    """The end of the range, inclusive."""
    only: Literal["missing", "failed", "all"] = "missing"
    """missing: scopes without a live commit. failed: scopes whose last task is dead."""
    partition_size: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    """Positions per task; if unset, one task per cursor, or the ranges that the job usually receives."""
    allow_gaps: bool = False
    """Include scopes for which an input lacks positions."""
    dry_run: bool = False
    """Count the scopes, but create no tasks."""


class BackfillResponse(Wire, frozen=True):
    dataset: str
    job: str
    scopes: int
    created: int
    """Tasks that were created or, in a dry run, would be."""
    unfinished: int
    """Scopes with an unfinished task."""
    missing: int
    """Scopes without a live commit."""
    failed: int
    """Scopes whose last task is dead."""
    left_out: int = 0
    """Scopes that got no task because an input lacks some of their positions."""
    gaps: tuple[LackingView, ...] = ()
    """The first of those positions."""


class TaskQuery(Wire, frozen=True):
    dag: str | None = None
    job: str | None = None
    state: Literal["queued", "dispatched", "running", "completed", "dead", "canceled"] | None = None
    standing: Literal["open", "superseded", "retired", "acknowledged"] | None = None
    """For dead tasks: whether they still need attention."""
    start: Text | None = None
    end: Text | None = None
    """Only tasks whose scope overlaps `start` to `end`, given as positions or as partitions of the job."""
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
    """For a dead task. superseded: its work has been done since. retired: its job is no longer deployed."""


class TasksResponse(Wire, frozen=True):
    tasks: list[TaskView]


class LineageView(Wire, frozen=True):
    event_id: int
    dataset: str
    kind: str
    scope: str
    producer_id: UUID


class WholeReadView(Wire, frozen=True):
    """What a task's last attempt read of a dataset that it reads as a whole."""

    dataset: str
    commit_id: int | None = None
    """The newest commit at that time; unset if the dataset was empty."""
    committed_at: str | None = None
    newer: int = 0
    """The number of commits since then."""


class AttemptView(Wire, frozen=True):
    attempt: int
    outcome: Literal["running", "completed", "failed", "lost", "returned", "canceled"]
    """lost: its worker fell silent. returned: its worker was stopped, and the attempt does not count."""
    started_at: str
    ended_at: str | None = None
    worker_id: str | None = None
    code: str | None = None
    """Of its error."""


class TaskDetail(Wire, frozen=True):
    task: TaskView
    inputs: list[LineageView]
    outputs: list[LineageView]
    reads: list[WholeReadView] = msgspec.field(default_factory=list)
    attempts: list[AttemptView] = msgspec.field(default_factory=list)
    """The last ones, in order."""


class ReasonView(Wire, frozen=True):
    code: str
    sentence: str


class AttemptLog(Wire, frozen=True):
    attempt: int
    text: str
    """The end of the log."""
    written_at: str
    """When it was reported; of a running attempt, when it last wrote."""


class TaskLogs(Wire, frozen=True):
    task_id: UUID
    state: str
    attempt: int
    """The number of the last attempt."""
    attempts: list[AttemptLog]
    """Those that logged something, newest first."""


class ExplainResponse(Wire, frozen=True):
    task_id: UUID
    state: str
    job: str
    reasons: list[ReasonView]
    dag: str = ""
    scope: str | None = None
    error: JsonObject | None = None
    """The error of the last failed attempt."""
    log: AttemptLog | None = None
    """The log of the last attempt that has one."""
    next_step: str | None = None
    """For a dead task."""
    retry_helps: bool | None = None
    """Whether retrying a dead task can help, once the next step is done."""


class TaskSelection(Wire, frozen=True):
    """Tasks by id, or the tasks of a DAG, optionally of one job and of positions or partitions from `start` to
    `end`."""

    task_ids: Annotated[list[UUID], msgspec.Meta(max_length=MAX_BATCH)] = msgspec.field(default_factory=list)
    dag: Text | None = None
    job: Text | None = None
    start: Position | Text | None = None
    end: Position | Text | None = None
    state: Literal["dead", "canceled"] = "dead"
    """Which tasks of the DAG to retry."""
    after: UUID | None = None
    """The `after` of the previous response."""

    def __post_init__(self) -> None:
        if bool(self.task_ids) == (self.dag is not None):
            raise ValueError("tasks are given by task_ids, or by a dag")
        if self.task_ids and (self.job, self.start, self.end, self.after) != (None, None, None, None):
            raise ValueError("job, start, end and after belong to a dag, not to task_ids")


class TaskChanges(Wire, frozen=True):
    changed: dict[str, str]
    """The new state of each task that changed."""
    unchanged: list[UUID]
    """Unknown tasks, and those whose state does not allow the change."""
    after: UUID | None = None
    """Set if the DAG may have more such tasks: repeat the call with this value."""
    why_unchanged: dict[str, str] = msgspec.field(default_factory=dict)
    """For each unchanged task: its state; `unknown`; `retired` if its job belongs to a version that no longer
    serves; or `pipeline` if it belongs to a finished execution. For dead letters also `no_letter`; `superseded` if
    something newer is committed in its scope; `acknowledged`; `busy` if another task is working on its scope; or
    `not_newest` if a newer task of its scope is dead too."""


class CoverageView(Wire, frozen=True):
    """The positions that a dataset holds."""

    first: int | None = None
    last: int | None = None
    gap_count: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    """The first few gaps, each as its first and last position."""
    dead: int = 0
    """Scopes whose task is dead and that nothing else covers."""
    first_name: str | None = None
    """For a dataset with named partitions: `first`, `last` and `gaps` by name."""
    last_name: str | None = None
    gap_names: tuple[tuple[str, str], ...] = ()
    dropped: tuple[int, int] | None = None
    """First and last position that was dropped because of its age."""
    dropped_name: str | None = None
    dropped_ranges: int = 0
    """How many ranges that is; between them is what the dataset never had."""


class ScopeQuery(Wire, frozen=True):
    first: Text
    """A position, or the name of a partition."""
    last: Text


class ScopeExplanation(Wire, frozen=True):
    dataset: str
    first: int
    last: int
    missing: tuple[tuple[int, int], ...]
    """The missing ranges, as first and last positions."""
    reasons: list[ReasonView]
    scope: str = ""
    """The requested range and the missing ranges, as users write them."""
    missing_scopes: tuple[str, ...] = ()


class FailedCheckView(Wire, frozen=True):
    """A check that the rows of a dataset do not meet now, or its freshness."""

    check: str
    scopes: int
    """In how many scopes; 0 for freshness."""
    problem: str
    """The newest one."""
    task_id: UUID | None = None
    """Whose rows these are."""


class DatasetView(Wire, frozen=True):
    dataset: str
    commits: int
    rows: int
    bytes: int
    cursor: int | None = None
    coverage: CoverageView | None = None
    storage: str = "parquet"
    at_most: bool = False
    """`rows` is an upper bound: newer commits have replaced an unknown number of the counted rows."""
    events: int | None = None
    """For a dataset without rows: its number of events, counted up to 10,000. `cursor` is the position of the last."""
    cursor_name: str | None = None
    """The name of the partition at `cursor`, if it is a period; partitions by name have no last one."""
    dead_letters: int = 0
    """For a buffered dataset: completed attempts whose rows could not be written, and which wait for somebody."""
    failed_checks: list[FailedCheckView] = []
    """Those that only warn."""


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
    """The scope of the newest task."""
    and_more: bool = False
    """Whether the job has more dead tasks than were counted."""


class StuckView(Wire, frozen=True):
    """A job whose tasks make no progress."""

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
    paused: bool = False
    """A paused source has no next tick."""


class StatusQuery(Wire, frozen=True):
    datasets: bool = True
    """Whether to say what each dataset holds: there may be thousands."""
    dag: Text | None = None
    """Only what is said of the jobs of this DAG, and of the datasets that it writes and reads."""
    dataset: Text | None = None
    """What is said of datasets, only of this one."""
    unmet: bool = False
    """What is said of datasets, only of those with dead letters or checks that are not met."""


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
    """Paused jobs."""
    dead_messages: dict[str, int] = {}
    """By channel, messages that could not be delivered; only for admins, as channels are."""
