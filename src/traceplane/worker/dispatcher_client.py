"""The internal API, as a worker calls it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from traceplane.errors import PlatformError
from traceplane.http_service.client import Caller
from traceplane.runtime.retrying import pauses, retrying
from traceplane.wire.tasks import (
    ClaimRequest,
    ClaimResponse,
    CodeResponse,
    CompleteRequest,
    CompleteResponse,
    Completion,
    CompletionOutcome,
    Emission,
    EmissionOutcome,
    EventsRequest,
    EventsResponse,
    Fence,
    FetchResponse,
    FilesRequest,
    Heartbeat,
    HeartbeatOutcome,
    HeartbeatRequest,
    HeartbeatResponse,
    HelloRequest,
    HelloResponse,
    LeaveRequest,
    LeaveResponse,
    RowsRequest,
    TakeRequest,
)

Answer = TypeVar("Answer")

_PATIENCE_SECONDS = 900.0


class DispatcherClient:
    """The internal API, as a worker calls it."""

    def __init__(self, base_url: str, worker_token: str | None, *, tls_ca: Path | None = None) -> None:
        """Without a worker token, only the calls about tasks whose capability token is at hand."""
        self._caller = Caller(base_url, worker_token, tls_ca=tls_ca)
        self.is_worker = worker_token is not None

    async def close(self) -> None:
        await self._caller.close()

    async def claim(self, request: ClaimRequest) -> ClaimResponse:
        return await self._caller.call("POST", "/internal/task-claim", ClaimResponse, request)

    async def take(self, request: TakeRequest) -> ClaimResponse:
        return await self._caller.call("POST", "/internal/task-take", ClaimResponse, request)

    async def hello(self, request: HelloRequest) -> HelloResponse:
        return await self._caller.call("POST", "/internal/worker-hello", HelloResponse, request)

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

    def files(self, request: FilesRequest) -> AsyncGenerator[bytes, None]:
        return self._caller.stream("/internal/input-files", request)

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


async def patiently(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Retries a call while the dispatcher is unavailable: reports are idempotent, and late ones still count."""
    tries = pauses(0.1, 5.0, seconds=_PATIENCE_SECONDS)
    return await retrying(call, on=PlatformError, pauses=tries)
