"""Pipelines, what they watch and how often they may be launched, and their executions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal
from uuid import UUID

from traceplane.client.connection import Connection, every, quoted, uuid_of
from traceplane.wire.pipelines import (
    ExecutionsResponse,
    ExecutionView,
    PipelineChange,
    PipelineRequest,
    PipelinesResponse,
    PipelineView,
    ScannerListRequest,
    ScannerListsResponse,
    ScannerListView,
    SignalsResponse,
    Status,
    UserLimitRequest,
    UserLimitsResponse,
)

_PIPELINES = "/api/v1/pipelines"
_LISTS = "/api/v1/scanner-lists"
_LIMITS = "/api/v1/user-limits"
_EXECUTIONS = "/api/v1/executions"


class Pipelines:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def each(
        self,
        *,
        user_id: str | None = None,
        trigger_mode: Literal["signal", "periodic"] | None = None,
        is_active: bool | None = None,
        ticker: str | None = None,
        limit: int | None = None,
    ) -> Iterator[PipelineView]:
        """Pipelines, in the order in which they were made."""

        def page(after: UUID | None, size: int) -> tuple[Sequence[PipelineView], UUID | None]:
            answer = self._connection.ask(
                "GET",
                _PIPELINES,
                PipelinesResponse,
                user_id=user_id,
                trigger_mode=trigger_mode,
                is_active=is_active,
                ticker=ticker,
                after=after,
                limit=size,
            )
            items = answer.pipelines
            return items, items[-1].pipeline_id if len(items) == size else None

        return every(page, limit)

    def get(self, pipeline_id: UUID | str) -> PipelineView:
        return self._connection.ask("GET", _pipeline(pipeline_id), PipelineView)

    def create(self, pipeline: PipelineRequest) -> PipelineView:
        return self._connection.ask("POST", _PIPELINES, PipelineView, pipeline)

    def change(self, pipeline_id: UUID | str, change: PipelineChange) -> PipelineView:
        """Changes the fields that are given; None clears a field."""
        return self._connection.ask("PATCH", _pipeline(pipeline_id), PipelineView, change)

    def delete(self, pipeline_id: UUID | str) -> PipelineView:
        return self._connection.ask("DELETE", _pipeline(pipeline_id), PipelineView)

    def signals(self) -> SignalsResponse:
        """What pipelines made of the signals of the last hour, by the minute, and how late the trigger is."""
        return self._connection.ask("GET", "/api/v1/signals", SignalsResponse)


class ScannerLists:
    """Lists of tickers that pipelines share."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[ScannerListView]:
        return self._connection.ask("GET", _LISTS, ScannerListsResponse).scanner_lists

    def set(self, name: str, tickers: Sequence[str]) -> ScannerListView:
        request = ScannerListRequest(list(tickers))
        return self._connection.ask("PUT", f"{_LISTS}/{quoted(name)}", ScannerListView, request)

    def delete(self, name: str) -> ScannerListView:
        return self._connection.ask("DELETE", f"{_LISTS}/{quoted(name)}", ScannerListView)


class UserLimits:
    """How much signals may launch for users, per hour."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> dict[str, int]:
        """By user; users without a limit are not listed."""
        return self._connection.ask("GET", _LIMITS, UserLimitsResponse).launches_per_hour

    def set(self, user_id: str, launches_per_hour: int | None) -> dict[str, int]:
        """None: no limit."""
        answer = self._connection.ask(
            "PUT", f"{_LIMITS}/{quoted(user_id)}", UserLimitsResponse, UserLimitRequest(launches_per_hour)
        )
        return answer.launches_per_hour


class Executions:
    """Runs of pipelines. A Celery worker claims one with `Client.execution`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def each(
        self,
        *,
        pipeline_id: UUID | str | None = None,
        status: Status | None = None,
        limit: int | None = None,
    ) -> Iterator[ExecutionView]:
        """Newest first."""

        def page(before: UUID | None, size: int) -> tuple[Sequence[ExecutionView], UUID | None]:
            answer = self._connection.ask(
                "GET",
                _EXECUTIONS,
                ExecutionsResponse,
                pipeline_id=pipeline_id,
                status=status,
                before=before,
                limit=size,
            )
            items = answer.executions
            return items, items[-1].execution_id if len(items) == size else None

        return every(page, limit)

    def get(self, execution_id: UUID | str) -> ExecutionView:
        path = f"{_EXECUTIONS}/{uuid_of(execution_id, 'execution_id', 'executions.each()')}"
        return self._connection.ask("GET", path, ExecutionView)


def _pipeline(pipeline_id: UUID | str) -> str:
    return f"{_PIPELINES}/{uuid_of(pipeline_id, 'pipeline_id', 'pipelines.each()')}"
