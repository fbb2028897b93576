"""The wire contract between the dispatcher and its workers.

All calls are batches; the dispatcher also groups concurrent calls into one transaction. A worker
authenticates with the worker token (claim and wake calls) and, for every call about a task it holds, with that
task's capability token and fence: (task_id, attempt, lease_token). A stale caller gets "stale" and changes
nothing.
"""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec

from traceplane.model.checks import LONGEST_VALUE, MOST_COLUMNS, MOST_SAMPLED, Check
from traceplane.model.json_object import JsonObject
from traceplane.model.row_positions import ValueRange
from traceplane.model.spark_resources import SparkResources
from traceplane.wire.scalars import (
    MAX_BATCH,
    AttemptNumber,
    ColumnName,
    Count,
    Position,
    Scalar,
    Scope,
    Text,
    Traceparent,
    Wire,
    Written,
)

LONGEST_LOG = 20_000
"""How many characters of an attempt's log are kept."""
SampledValue = Annotated[str, msgspec.Meta(max_length=LONGEST_VALUE)]
_Batch = msgspec.Meta(min_length=1, max_length=MAX_BATCH)


class Fence(Wire, frozen=True):
    """Proof that the caller holds the current attempt of a task."""

    task_id: UUID
    attempt: AttemptNumber
    lease_token: UUID
    token: Annotated[int, msgspec.Meta(ge=0, lt=MAX_BATCH)] = 0
    """The index in the call's `tokens` of the capability that covers this task."""


Tokens = Annotated[
    list[Annotated[str, msgspec.Meta(max_length=262_144)]], msgspec.Meta(min_length=1, max_length=MAX_BATCH)
]
"""Capability tokens; one covers all tasks that were claimed together."""


class Resources(Wire, frozen=True):
    """What a worker has for each of its tasks, or what a job needs of its worker."""

    memory: Count = 0
    """In bytes."""
    gpu: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    labels: Annotated[list[Annotated[str, msgspec.Meta(max_length=63)]], msgspec.Meta(max_length=100)] = []


class ClaimRequest(Wire, frozen=True):
    worker_id: Text
    runtime: Text
    task_ids: Annotated[list[UUID], _Batch]
    offers: Resources = Resources()


class TakeRequest(Wire, frozen=True):
    """Asks for tasks from the local queue: up to `limit`, as soon as any are ready."""

    worker_id: Text
    runtime: Text
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCH)] = 10
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=60)] = 20.0
    offers: Resources = Resources()


class HelloRequest(Wire, frozen=True):
    """Sent by a worker every few seconds: it is there, and what it offers."""

    worker_id: Text
    runtime: Text
    offers: Resources = Resources()


class HelloResponse(Wire, frozen=True):
    queue_suffixes: list[str]
    """The wake queues that the worker can serve, by what follows the name of the runtime's own queue."""


class LeaveRequest(Wire, frozen=True):
    """Sent by a worker that is stopping. Its calls that wait for tasks are answered at once, so that no lease is
    granted to a worker that is gone."""

    worker_id: Text


class LeaveResponse(Wire, frozen=True):
    ended: int
    """The number of calls that were waiting."""


class InputRef(Wire, frozen=True):
    input_index: int
    name: str
    dataset_id: str
    dataset_uuid: UUID
    dataset_version: UUID
    where: JsonObject = {}
    columns: list[str] = []
    """The columns that the job reads; empty means all."""
    storage: str = ""
    """The prefix of the committed files."""
    position: str | None = None
    """The column that holds each row's position."""
    hot: bool = False
    """Whether the rows are in a hot table."""
    with_files: bool = False
    """Whether the rows name files of the job's own file source, which the operator gets."""
    time_column: str | None = None
    """The column that says which rows a task reads: those in its periods."""


class OutputRef(Wire, frozen=True):
    output_index: int
    name: str
    dataset_id: str
    dataset_uuid: UUID
    dataset_version: UUID
    storage: str
    columns: list[ColumnSchema] = []
    """The columns that the dataset declares, with Arrow types; empty if it declares none."""
    checks: list[Check] = []
    """What the rows are checked for; expressions are in Spark's dialect."""
    cluster_by: list[str] = []
    """The columns by which rows are sorted within files."""


class ViewRef(Wire, frozen=True):
    """SQL over inputs or earlier views."""

    name: str
    sql: str
    reads: dict[str, str] = {}
    """The input behind each table that the SQL names."""


class GivenInput(Wire, frozen=True):
    name: str
    view: str | None = None
    """Unset means the input of this name."""
    where: JsonObject = {}
    columns: list[str] = []


class JobPayload(Wire, frozen=True):
    """What a worker needs to know about a job; the same for all its tasks."""

    job_id: UUID
    org: str
    dag: str
    name: str
    runtime: str
    operator: str
    activation: str
    config: JsonObject
    update_strategy: str
    unique_key: list[str]
    timeout_seconds: float
    lease_seconds: float
    max_attempts: int
    inputs: list[InputRef]
    outputs: list[OutputRef]
    code_bundle: str | None = None
    """The code that the job was deployed with; unset if it runs what the worker's own folders contain."""
    environment: str | None = None
    """The lock of the Python packages that its code needs; fetched like the code."""
    package: str | None = None
    """The installed package that provides the operator, and its version; unset for a built-in operator."""
    source_kind: str | None = None
    """For a source: its kind."""
    views: list[ViewRef] = []
    """The virtual datasets that it reads, as SQL over its inputs."""
    network: bool = False
    """Whether the job requests network access."""
    given: list[GivenInput] = []
    """If there are views: the inputs that the operator receives."""
    function: str | None = None
    """For an `invoke` runtime: the function that the job names."""
    requires: Resources = Resources()
    """What the job needs of the worker that runs its tasks."""
    spark: SparkResources = SparkResources()
    """What the job needs of Spark."""
    secret_names: dict[str, str] = {}
    """The secrets that its code receives, by the names that it knows them by."""
    secrets: dict[str, str] = {}
    """The values of its secrets, by their names. Only a claim has them."""
    secret_denied: str | None = None
    """Why the job may not have its secrets, and cannot run."""

    @property
    def endless(self) -> bool:
        """Whether the job has one task that runs forever."""
        return self.source_kind == "always_on"


class ColumnSchema(Wire, frozen=True):
    name: ColumnName
    type: Text
    """As Arrow spells it: int64, string, decimal128(38, 0)."""
    nullable: bool = True


class MovedFile(Wire, frozen=True):
    """A file with rows that were moved out of a hot table."""

    path: str
    rows: int
    keep: list[ValueRange] | None = None
    """Ranges of the position column whose rows still count; unset means all."""


class HotInput(Wire, frozen=True):
    """Where the rows of a hot input are, in one consistent state."""

    state: str
    """A fingerprint of that state; every request for rows repeats it."""
    position: str
    parts: list[tuple[int, int]]
    """The task's scope, split into pieces of a suitable size; each is requested separately."""
    files: list[MovedFile] = []


class InputFile(Wire, frozen=True):
    """A committed file that a task reads."""

    path: str
    rows: int
    bytes: int
    kept: list[ValueRange] | None = None
    """Ranges of the position column whose rows count; unset means all."""


class PipelineRun(Wire, frozen=True):
    """The pipeline execution that a task runs."""

    pipeline_id: UUID
    pipeline: str
    user_id: str
    parameters: JsonObject = {}
    """From the pipeline's config."""
    signal: JsonObject | None = None
    """The signal that launched it."""
    scheduled_for: str | None = None
    """The scheduled time of this launch."""


class ClaimedTask(Wire, frozen=True):
    task_id: UUID
    attempt: int
    lease_token: UUID
    lease_seconds: float
    job_id: UUID
    kind: str
    write_prefixes: list[str]
    """Per output, where this attempt may stage files."""
    scope: Scope | None = None
    input_files: list[list[InputFile]] = []
    """Per input, the live files in the task's scope, except those in which no row can match `where`."""
    long_inputs: list[int] = []
    """The inputs, by their numbers, with so many files that they are requested separately; `input_files` has none."""
    input_schemas: list[list[ColumnSchema] | None] = []
    """Per input, every column that its files may have; None if that is unknown."""
    input_times: list[ValueRange | None] = []
    """Per input with a `time_column`, the values of the rows in the task's periods; empty if no input has one."""
    hot_inputs: list[HotInput | None] = []
    """Per input, where its rows are if it is hot; empty if no input is hot."""
    output_files: list[list[InputFile]] = []
    """For an `append` job, per output: the live files in the task's scope, for dropping duplicates."""
    seen_commit: Count | None = None
    """For an `append` job: the newest commit among those files; the report repeats it."""
    emission: str = ""
    """The emission of the event that created the task, if the operator requests it."""
    resume: list[tuple[int, str, str]] = []
    """For a source: its newest cursors, highest first, each with the emission and kind of its last event."""
    execution: PipelineRun | None = None
    """For a pipeline's job: the execution."""
    traceparent: str | None = None
    token: int = 0


class Refusal(Wire, frozen=True):
    task_id: UUID
    reason: str


class ClaimResponse(Wire, frozen=True):
    tasks: list[ClaimedTask]
    jobs: dict[str, JobPayload]
    refused: list[Refusal]
    tokens: list[str]
    """Capability tokens; each task says which one covers it."""


class Heartbeat(Fence, frozen=True):
    progress: JsonObject | None = None
    log: Annotated[str, msgspec.Meta(max_length=LONGEST_LOG)] | None = None
    """The end of what the operator has written so far; unset if that was sent before."""


class HeartbeatRequest(Wire, frozen=True):
    tokens: Tokens
    beats: Annotated[list[Heartbeat], _Batch]


class HeartbeatOutcome(Wire, frozen=True):
    task_id: UUID
    outcome: Literal["ok", "canceled", "stale", "unknown"]
    """canceled: stop, and report it. stale: another worker holds the task; stop, and report nothing."""
    lease_seconds: float | None = None
    token: str | None = None
    """A new capability token for this task, if the one sent is about to expire."""


class HeartbeatResponse(Wire, frozen=True):
    outcomes: list[HeartbeatOutcome]


class EventOut(Wire, frozen=True):
    """An event on one of the task's own outputs."""

    output_index: Annotated[int, msgspec.Meta(ge=0, le=10_000)]
    scope: Scope
    kind: Literal["data", "invalidation"] = "data"
    emission: Annotated[str, msgspec.Meta(max_length=256)] = ""


class Emission(Fence, frozen=True, kw_only=True):
    events: Annotated[list[EventOut], _Batch]
    traceparent: Traceparent | None = None


class EventsRequest(Wire, frozen=True):
    tokens: Tokens
    emissions: Annotated[list[Emission], _Batch]


class EmissionOutcome(Wire, frozen=True):
    task_id: UUID
    outcome: Literal["ok", "canceled", "stale", "unknown"]
    accepted: int = 0
    duplicates: int = 0


class EventsResponse(Wire, frozen=True):
    outcomes: list[EmissionOutcome]


class ColumnStatistics(Wire, frozen=True):
    """Statistics of one column in a file. A missing bound is unknown."""

    min: Scalar = None
    max: Scalar = None
    null_count: Count | None = None


class StagedFile(Wire, frozen=True):
    path: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
    rows: Written
    bytes: Written
    statistics: dict[ColumnName, ColumnStatistics] | None = None


class FailedCheck(Wire, frozen=True):
    """A check of a dataset that the rows of a task do not meet."""

    output_index: Annotated[int, msgspec.Meta(ge=0, le=10_000)]
    check: Text
    problem: Annotated[str, msgspec.Meta(max_length=2_000)]
    rows: Count
    """How many rows do not meet it."""
    sample: Annotated[
        list[Annotated[dict[ColumnName, SampledValue | None], msgspec.Meta(max_length=MOST_COLUMNS)]],
        msgspec.Meta(max_length=MOST_SAMPLED),
    ] = []
    """Some of them, with their values as short texts."""


class OutputManifest(Wire, frozen=True):
    output_index: Annotated[int, msgspec.Meta(ge=0, le=10_000)]
    dataset_uuid: UUID
    dataset_version: UUID
    scope: Scope
    files: list[StagedFile] = []
    row_count: Written = 0
    bytes: Written = 0
    schema_hash: Annotated[str, msgspec.Meta(max_length=128)] = ""
    schema: Annotated[list[ColumnSchema], msgspec.Meta(max_length=10_000)] | None = None
    """The columns of the files; if missing, they are not checked against earlier commits."""
    failed_checks: Annotated[list[FailedCheck], msgspec.Meta(max_length=10_000)] = []
    """Those that only warn."""


class RefusedRow(Wire, frozen=True):
    """The first row of an output that its dataset cannot hold."""

    file: Annotated[str, msgspec.Meta(max_length=2048)] | None = None
    row: Count | None = None
    """Its number in the file, beginning with 1; unset if all rows are meant, such as those without a column."""
    column: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    value: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    """As text, at most 200 characters; unset for null."""
    expected: Annotated[str, msgspec.Meta(max_length=2048)] | None = None
    """A type or a rule."""


class TaskError(Wire, frozen=True):
    """Why an attempt failed; stored unchanged with the task."""

    code: Text
    message: Annotated[str, msgspec.Meta(max_length=20_000)]
    value: Annotated[str, msgspec.Meta(max_length=20_000)] | None = None
    next_step: Annotated[str, msgspec.Meta(max_length=20_000)] | None = None
    type: str | None = None
    traceback: Annotated[str, msgspec.Meta(max_length=50_000)] | None = None
    file: str | None = None
    line: int | None = None
    logs: list[str] = []
    failed_checks: list[FailedCheck] = []
    """With `check.failed`."""
    retryable: bool = True
    row: RefusedRow | None = None


class HotRead(Wire, frozen=True):
    """The state in which a hot input was read."""

    input_index: Annotated[int, msgspec.Meta(ge=0, le=10_000)]
    state: Annotated[str, msgspec.Meta(max_length=64)]


class Completion(Fence, frozen=True, kw_only=True):
    status: Literal["completed", "failed", "canceled", "returned"]
    """returned: the worker is stopping; the task is queued again, and the attempt does not count."""
    outputs: Annotated[list[OutputManifest], msgspec.Meta(max_length=10_000)] = []
    events: Annotated[list[EventOut], msgspec.Meta(max_length=10_000)] = []
    error: TaskError | None = None
    hot_reads: Annotated[list[HotRead], msgspec.Meta(max_length=10_000)] = []
    """For a job that moves rows out of a hot table."""
    seen_commit: Count | None = None
    """For an `append` job, from the claim. If a newer commit exists, the reported rows may duplicate its rows."""
    log: Annotated[str, msgspec.Meta(max_length=LONGEST_LOG)] = ""
    """The end of the operator's log."""
    traceparent: Traceparent | None = None
    """The attempt's span; downstream events continue its trace."""


class CompleteRequest(Wire, frozen=True):
    tokens: Tokens
    completions: Annotated[list[Completion], _Batch]


class CompletionOutcome(Wire, frozen=True):
    task_id: UUID
    outcome: Literal["committed", "buffered", "retrying", "dead", "canceled", "stale", "unknown"]
    """The result of this report, or of the earlier report that it repeats. buffered: a sink will commit it."""


class CompleteResponse(Wire, frozen=True):
    outcomes: list[CompletionOutcome]


class Batch(Fence, frozen=True, kw_only=True):
    """Staged rows of a buffered output, published while their task runs. They count when it completes."""

    batch: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    output: OutputManifest


class BufferPublishRequest(Wire, frozen=True):
    tokens: Tokens
    batches: Annotated[list[Batch], _Batch]


class BatchOutcome(Wire, frozen=True):
    task_id: UUID
    batch: int
    outcome: Literal["ok", "canceled", "stale"]


class BufferPublishResponse(Wire, frozen=True):
    outcomes: list[BatchOutcome]


class RowsRequest(Wire, frozen=True):
    """A piece of a hot input."""

    tokens: Tokens
    fence: Fence
    input_index: Annotated[int, msgspec.Meta(ge=0, le=10_000)]
    start: Position
    end: Position
    state: Annotated[str, msgspec.Meta(max_length=64)]


class FilesRequest(Wire, frozen=True):
    """The files of an input that has too many for a claim."""

    tokens: Tokens
    fence: Fence
    input_index: Annotated[int, msgspec.Meta(ge=0, le=10_000)]


class FetchQuery(Wire, frozen=True):
    task_id: UUID
    attempt: AttemptNumber
    lease_token: UUID


class FetchResponse(Wire, frozen=True):
    outcome: Literal["ok", "canceled", "stale"]
    state: str | None = None
    task: ClaimedTask | None = None
    job: JobPayload | None = None
    token: str | None = None


class CodeQuery(Wire, frozen=True):
    bundle: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class CodeResponse(Wire, frozen=True):
    content: str
    """In the encoding of `model.code_bundle` or, if it is a lock, of `model.requirements`; its name is its SHA-256."""


class Jwks(Wire, frozen=True):
    keys: list[dict[str, str]]
