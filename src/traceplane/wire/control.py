"""The wire contract of the public control API, and nothing else: gateway and command line share it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec

from traceplane.model.code_bundle import MODULE_PATH
from traceplane.wire.scalars import MAX_BATCH, Position, Scope, Text, Wire

ModulePath = Annotated[str, msgspec.Meta(max_length=512, pattern=MODULE_PATH)]


class DeployRequest(Wire, frozen=True):
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=1_048_576)]
    """The DAG file itself."""
    file: Text = "dag.yaml"
    """Its name, for error messages."""
    expect_version: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    """Refuse if another version is deployed by now; 0 means none."""
    manual_cutover: bool = False
    """Wait for a call when the version is built, rather than let it serve at once."""
    drop_missing: bool = False
    """Let it serve although readers lose scopes that they have, and that it does not compute."""
    no_rematerialize: bool = False
    """Jobs that differ in nothing but `execution_strategy` keep their data; refused if others need to be rebuilt."""
    code: dict[ModulePath, str] | None = None
    """The Python modules that its jobs are to run, sources by path below a code path. Without them, jobs run what
    the workers' own folders have."""


class FieldChangeView(Wire, frozen=True):
    field: str
    old: str | None = None
    """As JSON text; unset where the field was absent, and for code, of which only a hash is known."""
    new: str | None = None


class JobChangeView(Wire, frozen=True):
    job: str
    runtime: str
    operator: str
    changes: list[FieldChangeView] = msgspec.field(default_factory=list)
    downstream_of: list[str] = msgspec.field(default_factory=list)
    """Changed jobs and virtual datasets upstream, for which it is rebuilt."""
    generated_for: str | None = None
    """The Bulk job that it was made for."""


class DatasetChangeView(Wire, frozen=True):
    dataset: str
    changes: list[FieldChangeView]


class WeightView(Wire, frozen=True):
    dataset: str
    scopes: int
    rows: int
    bytes: int


class ConcernedView(Wire, frozen=True):
    dag: str
    job: str
    dataset: str
    loses_it: bool
    """Nobody will produce the dataset any more; otherwise the job follows at the cutover and computes it all anew."""
    broken_columns: list[str] = msgspec.field(default_factory=list)


class PlanSteps(Wire, frozen=True):
    """What a deploy would do, as data."""

    added: list[JobChangeView]
    in_place: list[JobChangeView]
    """Jobs that keep their data."""
    rebuilt: list[JobChangeView]
    """Jobs whose data is computed anew beside what serves; they are cut over together."""
    removed: list[JobChangeView]
    unchanged: list[str]
    datasets_added: list[str]
    datasets_changed: list[DatasetChangeView]
    datasets_removed: list[str]
    computed_anew: list[WeightView]
    """How much of each dataset there is to compute."""
    readers: list[ConcernedView]
    """Jobs of other DAGs that read what changes."""


class PlanResponse(Wire, frozen=True):
    dag: str
    noop: bool
    text: str
    deployed_version: int | None = None
    blocked: str | None = None
    """Why a deploy would be refused."""
    blocked_code: str | None = None
    """The error code of that."""
    steps: PlanSteps | None = None


class DeployResponse(Wire, frozen=True):
    dag: str
    version: int
    changed: bool
    building: bool
    """Whether it has to be built before it serves."""
    text: str


class DagName(Wire, frozen=True):
    dag: Text


class CutoverRequest(Wire, frozen=True):
    dag: Text
    drop_missing: bool = False
    """Also if readers lose scopes by it."""


class RollbackRequest(Wire, frozen=True):
    dag: Text
    to: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    """The version to go back to; unset: the one that served before."""


class LackingView(Wire, frozen=True):
    dataset: str
    first: int
    last: int


class MovedResponse(Wire, frozen=True):
    dag: str
    version: int
    """The one that serves now, or was given up."""
    before: int | None = None
    """The one that served until now."""
    lacking: tuple[LackingView, ...] = ()
    """Of a rollback: the first of what readers had, and this version does not hold yet."""
    given_up: int | None = None
    """Of a rollback: the version that was being built."""


class DeleteRequest(Wire, frozen=True):
    dag: Text
    force: bool = False
    """Also if others read its datasets or run its jobs."""


class DeletedResponse(Wire, frozen=True):
    dag: str
    datasets: list[str]
    """Those that readers had, and that are gone."""
    readers: list[str]
    """Who read them or ran its jobs, and does so in vain."""


class VersionQuery(Wire, frozen=True):
    dag: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20


class BuildView(Wire, frozen=True):
    dataset: str
    built: int
    """Scopes of the serving generation that the new one has too."""
    serving: int
    """Scopes that the serving one has."""


class VersionView(Wire, frozen=True):
    version: int
    state: Literal["building", "active", "retired", "aborted", "collected"]
    created_at: str
    activated_at: str | None = None
    manual_cutover: bool = False
    datasets: tuple[BuildView, ...] = ()
    """Of a version that is being built: how far each dataset is."""
    replays: int = 0
    """Jobs whose past scopes have not all been turned into tasks yet."""
    unfinished: int = 0
    """Tasks that it lacks, counted up to a thousand."""
    dead: int = 0
    """Dead tasks that keep it from serving, counted up to a thousand."""
    sources_behind: int = 0
    """Sources that have not said yet what the serving ones have."""
    lacking: tuple[LackingView, ...] = ()
    """The first positions that readers have and that it does not hold."""


class VersionsResponse(Wire, frozen=True):
    dag: str
    versions: list[VersionView]


class JobView(Wire, frozen=True):
    job: str
    runtime: str
    operator: str
    activation: str
    source_kind: str | None = None
    max_concurrency: int | None = None
    hold_level: int | None = None


class DagView(Wire, frozen=True):
    dag: str
    version: int
    jobs: list[JobView]


class DagsResponse(Wire, frozen=True):
    dags: list[DagView]


class ManualEvent(Wire, frozen=True):
    """An event of a source dataset, by its name."""

    dataset: Text
    scope: Scope
    kind: Literal["data", "invalidation"] = "data"
    emission: Annotated[str, msgspec.Meta(max_length=256)] = ""
    """Another value makes another event of the same scope and kind; with the same value it is a repetition."""


class EmitRequest(Wire, frozen=True):
    events: Annotated[list[ManualEvent], msgspec.Meta(min_length=1, max_length=MAX_BATCH)]


class EmitResponse(Wire, frozen=True):
    accepted: int
    duplicates: int


class BackfillRequest(Wire, frozen=True):
    dataset: Text
    start: Position
    end: Position
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
    start: Position | None = None
    end: Position | None = None
    """Only tasks whose scope has positions from `start` to `end`."""
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
    progress: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
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


class TaskDetail(Wire, frozen=True):
    task: TaskView
    inputs: list[LineageView]
    outputs: list[LineageView]


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
    error: dict[str, Any] | None = None
    """Of the last failed attempt."""
    log: AttemptLog | None = None
    """What the last attempt wrote that wrote something."""
    next_step: str | None = None
    """Of a dead task."""
    retry_helps: bool | None = None
    """Whether starting a dead task again can help, once what the next step names is mended."""


class TaskSelection(Wire, frozen=True):
    """Tasks by their ids; or those of a DAG, of one of its jobs, of positions from `start` to `end`."""

    task_ids: Annotated[list[UUID], msgspec.Meta(max_length=MAX_BATCH)] = msgspec.field(default_factory=list)
    dag: Text | None = None
    job: Text | None = None
    start: Position | None = None
    end: Position | None = None
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


class CoverageView(Wire, frozen=True):
    """Which positions there are."""

    first: int | None = None
    last: int | None = None
    gap_count: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    """First and last position of the first of them."""
    dead: int = 0
    """Scopes whose task died, and that nothing else covers."""


class ScopeQuery(Wire, frozen=True):
    first: Position
    last: Position


class ScopeExplanation(Wire, frozen=True):
    dataset: str
    first: int
    last: int
    missing: tuple[tuple[int, int], ...]
    """What of it is not there, as first and last positions."""
    reasons: list[ReasonView]


class DatasetView(Wire, frozen=True):
    dataset: str
    commits: int
    rows: int
    bytes: int
    cursor: int | None = None
    coverage: CoverageView | None = None


class QueryRequest(Wire, frozen=True):
    sql: Annotated[str, msgspec.Meta(min_length=1, max_length=65_536)]
    """One SELECT, in DuckDB's dialect."""
    format: Literal["json", "csv", "arrow", "parquet"] | None = None
    """Of the result; unset: by the Accept header, or JSON."""
    as_of_version: dict[str, Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]] = msgspec.field(
        default_factory=dict
    )
    """Versions of DAGs, by their names, to read instead of the active ones."""
    as_of_time: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    """Read what was there at this time."""
    max_rows: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    """Refuse a larger result; unset: the setting query_max_rows."""

    def __post_init__(self) -> None:
        if self.as_of_version and self.as_of_time is not None:
            raise ValueError("a query is as of versions or as of a time, not both")


class QueryTaskRequest(Wire, frozen=True):
    sql: Annotated[str, msgspec.Meta(min_length=1, max_length=65_536)]
    """One SELECT, in DuckDB's dialect."""
    dataset: Annotated[str, msgspec.Meta(pattern=r"^[^\s#\x00-\x20\x7f]{1,200}$")]
    """The dataset that its result becomes."""
    as_of_version: dict[str, Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]] = msgspec.field(
        default_factory=dict
    )
    """Versions of DAGs, by their names, to read instead of the active ones."""


class QueryTask(Wire, frozen=True):
    task_id: UUID
    dataset: str
    dag: str
    """Made for this query alone."""


class ColumnView(Wire, frozen=True):
    name: str
    type: str
    nullable: bool
    pii: bool = False
    """Marked as personal data; listed only for those who may see it."""
    derived_from: list[str] | None = None
    """Columns of other datasets, as dataset.column, that it is computed from; unset where that is not known."""


class CatalogEntry(Wire, frozen=True):
    dataset: str
    dag: str
    storage: str
    rows: int
    bytes: int
    commits: int
    version: int | None = None
    """The DAG's version that is read."""
    generation: UUID | None = None
    cursor: int | None = None
    coverage: CoverageView | None = None
    description: str = ""


class CatalogResponse(Wire, frozen=True):
    datasets: list[CatalogEntry]


class DatasetDetail(Wire, frozen=True):
    dataset: CatalogEntry
    columns: list[ColumnView]
    position: str | None = None
    """The column that says to which position a row belongs."""
    produced_by: list[str] = msgspec.field(default_factory=list)
    """Jobs, as dag/job."""
    read_by: list[str] = msgspec.field(default_factory=list)
    sql: str | None = None
    """Of a virtual dataset: what it is."""


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


# Pipelines ---------------------------------------------------------------------------------------------

Ticker = Annotated[str, msgspec.Meta(min_length=1, max_length=32, pattern=r"^\S+$")]
Tickers = Annotated[list[Ticker], msgspec.Meta(min_length=1, max_length=10_000)]
Confidence = Annotated[float, msgspec.Meta(ge=0, le=100)]
Schedule = Annotated[str, msgspec.Meta(max_length=256)]
PerHour = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Timeout = Annotated[float, msgspec.Meta(ge=1, le=31_622_400)]
Status = Literal["PENDING", "RUNNING", "COMPLETED", "FAILED"]


class Subscription(Wire, frozen=True):
    """Which signals of its tickers launch a pipeline."""

    signal_type: Text | None = None
    """Unset: signals of any type."""
    min_confidence: Confidence = 0.0
    direction: Literal["BULLISH", "BEARISH", "NEUTRAL"] | None = None
    """Unset: any."""


Subscriptions = Annotated[list[Subscription], msgspec.Meta(max_length=1000)]


class PipelineConfig(Wire, frozen=True):
    """What an execution of a pipeline runs."""

    dag: Text | None = None
    job: Text | None = None
    """A job of the source kind `pipeline`; with target celery, neither is given."""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """Handed to the operator."""
    target: Literal["task", "celery"] = "task"
    timeout_seconds: Timeout | None = None
    """With target celery: when an unfinished execution has failed; unset: an hour."""

    def __post_init__(self) -> None:
        named = (self.dag is not None, self.job is not None)
        if self.target == "task" and named != (True, True):
            raise ValueError("a pipeline names the dag and the job that it runs, or the target celery")
        if self.target == "celery" and any(named):
            raise ValueError("a pipeline with the target celery names no dag and no job")
        if self.target == "task" and self.timeout_seconds is not None:
            raise ValueError("the timeout of a task is that of its job")


class PipelineRequest(Wire, frozen=True):
    name: Text
    config: PipelineConfig
    trigger_mode: Literal["signal", "periodic"] = "signal"
    user_id: Text | None = None
    """Whose it is; unset: the name of the caller's token."""
    scanner_tickers: Tickers | None = None
    scanner_list: Text | None = None
    """A list of tickers that pipelines share, instead of tickers of its own."""
    signal_subscriptions: Subscriptions = msgspec.field(default_factory=list)
    """None: every signal of its tickers."""
    rules: dict[str, Any] = msgspec.field(default_factory=dict)
    schedule: Schedule | None = None
    """Of a periodic one: five numeric cron fields, in UTC."""
    is_active: bool = True
    launches_per_hour: PerHour | None = None


class PipelineChange(Wire, frozen=True):
    """What is given is changed; null takes it away."""

    name: Text | msgspec.UnsetType = msgspec.UNSET
    config: PipelineConfig | msgspec.UnsetType = msgspec.UNSET
    trigger_mode: Literal["signal", "periodic"] | msgspec.UnsetType = msgspec.UNSET
    scanner_tickers: Tickers | msgspec.UnsetType | None = msgspec.UNSET
    scanner_list: Text | msgspec.UnsetType | None = msgspec.UNSET
    signal_subscriptions: Subscriptions | msgspec.UnsetType = msgspec.UNSET
    rules: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    schedule: Schedule | msgspec.UnsetType | None = msgspec.UNSET
    is_active: bool | msgspec.UnsetType = msgspec.UNSET
    launches_per_hour: PerHour | msgspec.UnsetType | None = msgspec.UNSET


class PipelineView(Wire, frozen=True, omit_defaults=False):
    pipeline_id: UUID
    user_id: str
    name: str
    trigger_mode: str
    is_active: bool
    config: PipelineConfig
    created_at: str
    scanner_tickers: list[str] | None = None
    scanner_list: str | None = None
    signal_subscriptions: list[Subscription] = msgspec.field(default_factory=list)
    rules: dict[str, Any] = msgspec.field(default_factory=dict)
    schedule: str | None = None
    launches_per_hour: int | None = None
    running: UUID | None = None
    """The execution that it is at."""
    hidden_parameters: list[str] = msgspec.field(default_factory=list)
    """Names of the config's parameters, whose values a reader may not see; the parameters are left out then."""


class PipelineQuery(Wire, frozen=True):
    user_id: str | None = None
    trigger_mode: Literal["signal", "periodic"] | None = None
    is_active: bool | None = None
    ticker: str | None = None
    after: UUID | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class PipelinesResponse(Wire, frozen=True):
    pipelines: list[PipelineView]


class ScannerListRequest(Wire, frozen=True):
    tickers: Tickers


class ScannerListView(Wire, frozen=True):
    name: str
    tickers: list[str]
    pipelines: int
    """How many use it."""


class ScannerListsResponse(Wire, frozen=True):
    scanner_lists: list[ScannerListView]


class UserLimitRequest(Wire, frozen=True):
    launches_per_hour: PerHour | None
    """Null: no limit."""


class UserLimitsResponse(Wire, frozen=True):
    launches_per_hour: dict[str, int]
    """By user, for those who have a limit."""


class ExecutionQuery(Wire, frozen=True):
    pipeline_id: UUID | None = None
    status: Status | None = None
    before: UUID | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class ExecutionChange(Wire, frozen=True):
    """A step of an execution that a Celery worker runs."""

    status: Literal["RUNNING", "COMPLETED", "FAILED"]
    error: Annotated[str, msgspec.Meta(max_length=20_000)] | None = None

    def __post_init__(self) -> None:
        if self.error is not None and self.status != "FAILED":
            raise ValueError("only a failed execution has an error")


class ExecutionView(Wire, frozen=True, omit_defaults=False):
    execution_id: UUID
    pipeline_id: UUID
    pipeline: str
    user_id: str
    target: str
    status: Status
    created_at: str
    signal_id: str | None = None
    signal: dict[str, Any] | None = None
    scheduled_for: str | None = None
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """Of the pipeline's config, as it is now."""
    started_at: str | None = None
    finished_at: str | None = None
    error: dict[str, Any] | None = None
    hidden_parameters: list[str] = msgspec.field(default_factory=list)
    """Names of the parameters, whose values a reader may not see; the parameters are left out then."""


class ExecutionsResponse(Wire, frozen=True):
    executions: list[ExecutionView]
