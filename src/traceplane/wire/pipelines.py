"""Pipelines, lists of tickers and executions in the public API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from traceplane.model.json_object import JsonObject
from traceplane.wire.scalars import Text, Wire

Ticker = Annotated[str, msgspec.Meta(min_length=1, max_length=32, pattern=r"^\S+$")]
Tickers = Annotated[list[Ticker], msgspec.Meta(min_length=1, max_length=10_000)]
Confidence = Annotated[float, msgspec.Meta(ge=0, le=100)]
Schedule = Annotated[str, msgspec.Meta(max_length=256)]
PerHour = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Timeout = Annotated[float, msgspec.Meta(ge=1, le=31_622_400)]
Status = Literal["PENDING", "RUNNING", "COMPLETED", "FAILED"]


class Subscription(Wire, frozen=True):
    """Restricts which signals on a pipeline's tickers launch it."""

    signal_type: Text | None = None
    """Unset means any type."""
    min_confidence: Confidence = 0.0
    direction: Literal["BULLISH", "BEARISH", "NEUTRAL"] | None = None
    """Unset means any direction."""


Subscriptions = Annotated[list[Subscription], msgspec.Meta(max_length=1000)]


class PipelineConfig(Wire, frozen=True):
    """What an execution of a pipeline runs."""

    dag: Text | None = None
    job: Text | None = None
    """A job with the source kind `pipeline`. With the target celery, leave out `dag` and `job`."""
    parameters: JsonObject = msgspec.field(default_factory=dict)
    """Passed to the operator."""
    target: Literal["task", "celery"] = "task"
    timeout_seconds: Timeout | None = None
    """With the target celery: how long an execution may take before it counts as failed; the default is an hour."""

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
    """The owner; the default is the name of the caller's token."""
    scanner_tickers: Tickers | None = None
    scanner_list: Text | None = None
    """A shared list of tickers, instead of the pipeline's own."""
    signal_subscriptions: Subscriptions = msgspec.field(default_factory=list)
    """Empty means every signal on its tickers."""
    rules: JsonObject = msgspec.field(default_factory=dict)
    schedule: Schedule | None = None
    """For a periodic pipeline: five cron fields, in UTC."""
    is_active: bool = True
    launches_per_hour: PerHour | None = None


class PipelineChange(Wire, frozen=True):
    """Only the given fields change; null clears a field."""

    name: Text | msgspec.UnsetType = msgspec.UNSET
    config: PipelineConfig | msgspec.UnsetType = msgspec.UNSET
    trigger_mode: Literal["signal", "periodic"] | msgspec.UnsetType = msgspec.UNSET
    scanner_tickers: Tickers | msgspec.UnsetType | None = msgspec.UNSET
    scanner_list: Text | msgspec.UnsetType | None = msgspec.UNSET
    signal_subscriptions: Subscriptions | msgspec.UnsetType = msgspec.UNSET
    rules: JsonObject | msgspec.UnsetType = msgspec.UNSET
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
    rules: JsonObject = msgspec.field(default_factory=dict)
    schedule: str | None = None
    launches_per_hour: int | None = None
    running: UUID | None = None
    """The unfinished execution, if there is one."""
    hidden_parameters: list[str] = msgspec.field(default_factory=list)
    """For a reader, who may not see values: the names of the config's parameters, instead of the parameters."""


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
    """The number of pipelines that use it."""


class ScannerListsResponse(Wire, frozen=True):
    scanner_lists: list[ScannerListView]


class UserLimitRequest(Wire, frozen=True):
    launches_per_hour: PerHour | None
    """Null means no limit."""


class UserLimitsResponse(Wire, frozen=True):
    launches_per_hour: dict[str, int]
    """By user; users without a limit are not listed."""


class ExecutionQuery(Wire, frozen=True):
    pipeline_id: UUID | None = None
    status: Status | None = None
    before: UUID | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class ExecutionChange(Wire, frozen=True):
    """A status report for an execution that a Celery worker runs."""

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
    signal: JsonObject | None = None
    scheduled_for: str | None = None
    parameters: JsonObject = msgspec.field(default_factory=dict)
    """From the pipeline's current config."""
    started_at: str | None = None
    finished_at: str | None = None
    error: JsonObject | None = None
    hidden_parameters: list[str] = msgspec.field(default_factory=list)
    """For a reader, who may not see values: the names of the parameters, instead of the parameters."""


class ExecutionsResponse(Wire, frozen=True):
    executions: list[ExecutionView]


class SignalMinuteView(Wire, frozen=True):
    """What the organization's pipelines made of signals within a minute."""

    at: datetime
    seconds: float
    """How many of its seconds are over: 60, except in the present minute."""
    has_trigger: bool = False
    """Whether a trigger was there; without one, nothing else is set."""
    signals: int | None = None
    """Those on tickers that a pipeline watches. Divided by `seconds`, it is their rate."""
    matches: int | None = None
    """Pipelines that matched, once per batch of the trigger; each was launched, running or held back."""
    lag_seconds: float | None = None
    """The longest from publishing a signal on the topic until it was processed. Unset if nobody knows: the trigger has
    no partition, or signals come from files."""


class SignalsResponse(Wire, frozen=True):
    minutes: list[SignalMinuteView]
    """The last 60, up to the present one, oldest first."""
    is_limited: bool = False
    """The caller may not see all jobs, so `signals` and `matches`, which are of all pipelines, are left out."""
