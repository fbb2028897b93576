"""The wire contract between the dispatcher and its workers.

All calls are batches; the dispatcher also groups concurrent calls into one transaction. A worker proves
itself with the worker token (claim and wake calls) and, for everything about a task it holds, with that
task's capability token and fence: (task_id, attempt, lease_token). A stale caller is answered "stale" and
has changed nothing.
"""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

import msgspec

from traceplane.model.json_object import JsonObject
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
)

LONGEST_LOG = 20_000
"""Characters of what one attempt wrote that are kept."""
_Batch = msgspec.Meta(min_length=1, max_length=MAX_BATCH)


class Fence(Wire, frozen=True):
    """What proves that a caller holds the current attempt of a task."""

    task_id: UUID
    attempt: AttemptNumber
    lease_token: UUID
    token: Annotated[int, msgspec.Meta(ge=0, lt=MAX_BATCH)] = 0
    """Which of the call's `tokens` is the capability that covers this task."""


Tokens = Annotated[
    list[Annotated[str, msgspec.Meta(max_length=262_144)]], msgspec.Meta(min_length=1, max_length=MAX_BATCH)
]
"""Capability tokens; one covers all tasks that were claimed together."""


class ClaimRequest(Wire, frozen=True):
    worker_id: Text
    runtime: Text
    task_ids: Annotated[list[UUID], _Batch]


class TakeRequest(Wire, frozen=True):
    """For workers of the local queue: whatever is ready, up to a limit, as soon as something is."""

    worker_id: Text
    runtime: Text
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCH)] = 10
    wait_seconds: Annotated[float, msgspec.Meta(ge=0, le=60)] = 20.0


class LeaveRequest(Wire, frozen=True):
    """From a worker that stops: its calls that wait for tasks are answered now, so that no lease is on its way to
    somebody who is gone."""

    worker_id: Text


class LeaveResponse(Wire, frozen=True):
    ended: int
    """Calls that were waiting."""


class InputRef(Wire, frozen=True):
    input_index: int
    name: str
    dataset_id: str
    dataset_uuid: UUID
    dataset_version: UUID
    where: JsonObject = {}
    columns: list[str] = []
    """Those that the job reads; none: all of them."""
    storage: str = ""
    """Prefix below which the committed files lie."""
    position: str | None = None
    """The column that says to which position a row belongs."""
    hot: bool = False
    """Whether its rows are in a hot table."""


class OutputRef(Wire, frozen=True):
    output_index: int
    name: str
    dataset_id: str
    dataset_uuid: UUID
    dataset_version: UUID
    columns: list[ColumnSchema] = []
    """Those that the dataset declares, with Arrow's types; none: it declares none."""


class ViewRef(Wire, frozen=True):
    """SQL over inputs, or over views before it."""

    name: str
    sql: str
    reads: dict[str, str] = {}
    """The tables that it names, and the inputs that these are."""


class GivenInput(Wire, frozen=True):
    name: str
    view: str | None = None
    """None: the input of this name."""
    where: JsonObject = {}
    columns: list[str] = []


class JobPayload(Wire, frozen=True):
    """What a worker needs to know of a job; the same for all its tasks."""

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
    """The code that it was deployed with; None: what the worker's own folders have."""
    package: str | None = None
    """The installed package that has its operator, and its version; None: it is built in."""
    source_kind: str | None = None
    """Of a source: what sets it off."""
    views: list[ViewRef] = []
    """What virtual datasets make of its inputs."""
    network: bool = False
    """Whether it asks for the network."""
    given: list[GivenInput] = []
    """Where there are views: the inputs that the operator is given."""

    @property
    def endless(self) -> bool:
        """Whether its task is kept running, rather than being one of many that end."""
        return self.source_kind == "always_on"


class ColumnSchema(Wire, frozen=True):
    name: ColumnName
    type: Text
    """As Arrow spells it: int64, string, decimal128(38, 0)."""
    nullable: bool = True


class MovedFile(Wire, frozen=True):
    """A file that took up rows of a hot table."""

    path: str
    rows: int
    keep: list[tuple[int, int]] | None = None
    """Positions, from the first to the last, whose rows still count; None: all of them."""


class HotInput(Wire, frozen=True):
    """Where the rows of a hot input are, as of one moment."""

    state: str
    """A word for that moment; who asks for rows repeats it."""
    position: str
    parts: list[tuple[int, int]]
    """The task's scope in pieces of a good size; each is asked for by itself."""
    files: list[MovedFile] = []


class InputFile(Wire, frozen=True):
    """A committed file that a task reads."""

    path: str
    rows: int
    bytes: int
    kept: list[tuple[int, int]] | None = None
    """Positions, from the first to the last, of the rows that count; None: all of them."""


class PipelineRun(Wire, frozen=True):
    """The execution that a task of a pipeline is."""

    pipeline_id: UUID
    pipeline: str
    user_id: str
    parameters: JsonObject = {}
    """What the pipeline's config says."""
    signal: JsonObject | None = None
    """The signal that launched it."""
    scheduled_for: str | None = None
    """The time that it was launched for."""


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
    """Per input, the live files for the task's scope, without those that cannot hold what `where` asks for."""
    input_schemas: list[list[ColumnSchema] | None] = []
    """Per input, every column that a file of it may have; None where that is not known."""
    hot_inputs: list[HotInput | None] = []
    """Per input, where the rows of a hot one are; none if no input is hot."""
    output_files: list[list[InputFile]] = []
    """Of an `append` job, per output: the live files of the task's scope, to drop duplicates by."""
    seen_commit: Count | None = None
    """Of an `append` job: the newest commit among those files; the report repeats it."""
    emission: str = ""
    """Of an operator that asks for it: the emission of the event that the task is for."""
    resume: list[tuple[int, str, str]] = []
    """Of a source: its newest cursors, the highest first, with emission and kind of the last event about each."""
    execution: PipelineRun | None = None
    """Of a pipeline's job: what is run."""
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


class HeartbeatRequest(Wire, frozen=True):
    tokens: Tokens
    beats: Annotated[list[Heartbeat], _Batch]


class HeartbeatOutcome(Wire, frozen=True):
    task_id: UUID
    outcome: Literal["ok", "canceled", "stale", "unknown"]
    """canceled: stop, and report it. stale: somebody else holds the task; stop, and report nothing."""
    lease_seconds: float | None = None
    token: str | None = None
    """A fresh capability token for this task, when the one sent is near its end."""


class HeartbeatResponse(Wire, frozen=True):
    outcomes: list[HeartbeatOutcome]


class EventOut(Wire, frozen=True):
    """An event of a task's own output."""

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
    """What a file holds of one column. A bound that is left out says nothing."""

    min: Scalar = None
    max: Scalar = None
    null_count: Count | None = None


class StagedFile(Wire, frozen=True):
    path: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
    rows: Count
    bytes: Count
    statistics: dict[ColumnName, ColumnStatistics] | None = None


class OutputManifest(Wire, frozen=True):
    output_index: Annotated[int, msgspec.Meta(ge=0, le=10_000)]
    dataset_uuid: UUID
    dataset_version: UUID
    scope: Scope
    files: list[StagedFile] = []
    row_count: Count = 0
    bytes: Count = 0
    schema_hash: Annotated[str, msgspec.Meta(max_length=128)] = ""
    schema: Annotated[list[ColumnSchema], msgspec.Meta(max_length=10_000)] | None = None
    """The columns of the files; left out, they are not checked against those of earlier commits."""


class TaskError(Wire, frozen=True):
    """Why an attempt failed; stored with its task as it is."""

    code: Text
    message: Annotated[str, msgspec.Meta(max_length=20_000)]
    value: Annotated[str, msgspec.Meta(max_length=20_000)] | None = None
    next_step: Annotated[str, msgspec.Meta(max_length=20_000)] | None = None
    type: str | None = None
    traceback: Annotated[str, msgspec.Meta(max_length=50_000)] | None = None
    file: str | None = None
    line: int | None = None
    logs: list[str] = []
    retryable: bool = True


class HotRead(Wire, frozen=True):
    """As of which moment a hot input was read."""

    input_index: Annotated[int, msgspec.Meta(ge=0, le=10_000)]
    state: Annotated[str, msgspec.Meta(max_length=64)]


class Completion(Fence, frozen=True, kw_only=True):
    status: Literal["completed", "failed", "canceled", "returned"]
    """returned: the worker stops; the task is queued again, and the attempt does not count."""
    outputs: Annotated[list[OutputManifest], msgspec.Meta(max_length=10_000)] = []
    events: Annotated[list[EventOut], msgspec.Meta(max_length=10_000)] = []
    error: TaskError | None = None
    hot_reads: Annotated[list[HotRead], msgspec.Meta(max_length=10_000)] = []
    """Of a job that moves rows out of a hot table."""
    seen_commit: Count | None = None
    """Of an `append` job, as it came with the claim: rows of a newer commit may be among those that are reported."""
    log: Annotated[str, msgspec.Meta(max_length=LONGEST_LOG)] = ""
    """The end of what the operator wrote."""
    traceparent: Traceparent | None = None
    """The attempt's span; downstream events continue its trace."""


class CompleteRequest(Wire, frozen=True):
    tokens: Tokens
    completions: Annotated[list[Completion], _Batch]


class CompletionOutcome(Wire, frozen=True):
    task_id: UUID
    outcome: Literal["committed", "retrying", "dead", "canceled", "stale", "unknown"]
    """What the task is now because of this report, or of the first report that this one repeats."""


class CompleteResponse(Wire, frozen=True):
    outcomes: list[CompletionOutcome]


class RowsRequest(Wire, frozen=True):
    """A piece of a hot input."""

    tokens: Tokens
    fence: Fence
    input_index: Annotated[int, msgspec.Meta(ge=0, le=10_000)]
    start: Position
    end: Position
    state: Annotated[str, msgspec.Meta(max_length=64)]


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
    """As `model.code_bundle` encodes it; the bundle's name is its SHA-256."""


class Jwks(Wire, frozen=True):
    keys: list[dict[str, str]]
