"""The wire contract between the dispatcher and its workers, and the client that speaks it.

All calls are batches; the dispatcher also groups concurrent calls into one transaction. A worker proves
itself with the worker token (claim and wake calls) and, for everything about a task it holds, with that
task's capability token and fence: (task_id, attempt, lease_token). A stale caller is answered "stale" and
has changed nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from uuid import UUID

import msgspec

from traceplane.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    PlatformError,
    TooLarge,
    TraceplaneError,
    Unauthenticated,
)

if TYPE_CHECKING:
    import aiohttp

MAX_BATCH = 1000
LONGEST_LOG = 20_000
"""Characters of what one attempt wrote that are kept."""

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Position = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
AttemptNumber = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=43_200)]
Traceparent = Annotated[str, msgspec.Meta(pattern="^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
_Batch = msgspec.Meta(min_length=1, max_length=MAX_BATCH)
Scalar = Annotated[str, msgspec.Meta(max_length=1024)] | Position | float | bool | None
ColumnName = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Scope(Wire, frozen=True):
    """A cursor, or a partition with its inclusive ends."""

    cursor: Position | None = None
    partition_key: Text | None = None
    start: Position | None = None
    end: Position | None = None

    def __post_init__(self) -> None:
        if (self.cursor is None) == (self.partition_key is None):
            raise ValueError("a scope is either a cursor or a partition_key with start and end")
        if self.cursor is not None:
            if self.start is not None or self.end is not None:
                raise ValueError("a cursor has neither start nor end")
        elif self.start is None or self.end is None or self.end < self.start:
            raise ValueError("a partition needs start and end, and start must not lie after end")

    @property
    def first(self) -> int:
        return self.cursor if self.cursor is not None else self.start  # type: ignore[return-value]

    @property
    def last(self) -> int:
        return self.cursor if self.cursor is not None else self.end  # type: ignore[return-value]


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
    where: dict[str, Any] = {}
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
    where: dict[str, Any] = {}
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
    config: dict[str, Any]
    update_strategy: str
    unique_key: list[str]
    timeout_seconds: float
    lease_seconds: float
    max_attempts: int
    inputs: list[InputRef]
    outputs: list[OutputRef]
    code_bundle: str | None = None
    """The code that it was deployed with; None: what the worker's own folders have."""
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


class PipelineRun(Wire, frozen=True):
    """The execution that a task of a pipeline is."""

    pipeline_id: UUID
    pipeline: str
    user_id: str
    parameters: dict[str, Any] = {}
    """What the pipeline's config says."""
    signal: dict[str, Any] | None = None
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
    input_files: list[list[dict[str, Any]]] = []
    """Per input, the live files for the task's scope, without those that cannot hold what `where` asks for."""
    input_schemas: list[list[ColumnSchema] | None] = []
    """Per input, every column that a file of it may have; None where that is not known."""
    hot_inputs: list[HotInput | None] = []
    """Per input, where the rows of a hot one are; none if no input is hot."""
    output_files: list[list[dict[str, Any]]] = []
    """Of an `append` job, per output: the live files of the task's scope, to drop duplicates by."""
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
    progress: dict[str, Any] | None = None


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
    code: Text
    message: Annotated[str, msgspec.Meta(max_length=20_000)]
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


Response = TypeVar("Response", bound=Wire)

_ERRORS: dict[int, type[TraceplaneError]] = {
    400: InvalidInput,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
}


class Caller:
    """Typed JSON calls over one keep-alive HTTP session.

    The HTTP client is imported by the first call: a process that is only called starts in half the time without it.
    """

    def __init__(self, base_url: str, token: str | None = None, *, timeout_seconds: float = 90.0) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._timeout_seconds = timeout_seconds
        self._session: aiohttp.ClientSession | None = None
        self._encoder = msgspec.json.Encoder()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def stream(self, path: str, body: object) -> AsyncIterator[bytes]:
        """The answer to a POST, piece by piece; raises if it is not complete."""
        import aiohttp

        try:
            async with self._opened().post(
                self._base_url + path, data=self._encoder.encode(body), headers=self._headers
            ) as answer:
                if answer.status >= 400:
                    raise as_error(answer.status, await answer.read())
                async for piece in answer.content.iter_any():
                    yield piece
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._unreachable(path, error) from error

    async def call(
        self,
        method: str,
        path: str,
        response: type[Response],
        body: object = None,
        query: dict[str, str] | None = None,
    ) -> Response:
        import aiohttp

        data = self._encoder.encode(body) if body is not None else None
        try:
            async with self._opened().request(
                method, self._base_url + path, data=data, params=query, headers=self._headers
            ) as answer:
                raw = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._unreachable(path, error) from error
        if answer.status >= 400:
            raise as_error(answer.status, raw)
        try:
            return msgspec.json.decode(raw, type=response)
        except msgspec.DecodeError as error:
            raise PlatformError(
                "service.bad_answer", f"the service answered with something unexpected: {error}", value=path
            ) from error

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
                timeout=aiohttp.ClientTimeout(total=self._timeout_seconds, connect=5),
            )
        return self._session

    def _unreachable(self, path: str, error: BaseException) -> PlatformError:
        return PlatformError(
            "service.unreachable",
            "the service did not answer",
            value=f"{self._base_url}{path}: {type(error).__name__} {error}",
            next_step="check that it runs; the call may be repeated",
        )


def as_error(status: int, raw: bytes) -> TraceplaneError:
    """The error that a service answered with."""
    try:
        body = msgspec.json.decode(raw)["error"]
        kind = _ERRORS.get(status, PlatformError)
        return kind(body["code"], body["message"], value=body.get("value"), next_step=body.get("next_step"))
    except (msgspec.DecodeError, KeyError, TypeError):
        return PlatformError(
            "service.bad_answer", "the service answered with something unexpected", value=raw[:200]
        )


class DispatcherClient:
    """The internal API, as a worker calls it."""

    def __init__(self, base_url: str, worker_token: str) -> None:
        self._caller = Caller(base_url, worker_token)

    async def close(self) -> None:
        await self._caller.close()

    async def claim(self, request: ClaimRequest) -> ClaimResponse:
        return await self._caller.call("POST", "/internal/task-claim", ClaimResponse, request)

    async def take(self, request: TakeRequest) -> ClaimResponse:
        return await self._caller.call("POST", "/internal/task-take", ClaimResponse, request)

    async def leave(self, worker_id: str) -> LeaveResponse:
        return await self._caller.call(
            "POST", "/internal/worker-leave", LeaveResponse, LeaveRequest(worker_id)
        )

    async def heartbeat(self, tokens: list[str], beats: list[Heartbeat]) -> list[HeartbeatOutcome]:
        request = HeartbeatRequest(tokens, beats)
        return (await self._caller.call("POST", "/internal/heartbeat", HeartbeatResponse, request)).outcomes

    async def events(self, tokens: list[str], emissions: list[Emission]) -> list[EmissionOutcome]:
        request = EventsRequest(tokens, emissions)
        return (await self._caller.call("POST", "/internal/events", EventsResponse, request)).outcomes

    async def complete(self, tokens: list[str], completions: list[Completion]) -> list[CompletionOutcome]:
        request = CompleteRequest(tokens, completions)
        return (
            await self._caller.call("POST", "/internal/task-complete", CompleteResponse, request)
        ).outcomes

    def rows(self, request: RowsRequest) -> AsyncIterator[bytes]:
        return self._caller.stream("/internal/input-rows", request)

    async def fetch(self, fence: Fence) -> FetchResponse:
        query = {
            "task_id": str(fence.task_id),
            "attempt": str(fence.attempt),
            "lease_token": str(fence.lease_token),
        }
        return await self._caller.call("GET", "/internal/task-fetch", FetchResponse, query=query)

    async def code(self, bundle: str) -> str:
        query = {"bundle": bundle}
        return (await self._caller.call("GET", "/internal/code", CodeResponse, query=query)).content
