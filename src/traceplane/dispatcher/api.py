"""The internal API. Reached by workers and platform components only; the gateway does not expose it."""

from __future__ import annotations

import asyncio

from traceplane import __version__
from traceplane.adapters.wake_queue import WakeQueue
from traceplane.dispatcher.authority import Authority
from traceplane.dispatcher.leasing import (
    Claim,
    CompletionCall,
    EmissionCall,
    HeartbeatCall,
    Leasing,
    completion_call,
    emission_call,
    heartbeat_call,
)
from traceplane.errors import InvalidInput
from traceplane.group_commit import GroupCommit
from traceplane.http_service import PUBLIC, App, Authenticate, Call, Route
from traceplane.postgres import tasks
from traceplane.postgres.database import Database
from traceplane.task_api import (
    ClaimRequest,
    ClaimResponse,
    CompleteRequest,
    CompleteResponse,
    CompletionOutcome,
    EmissionOutcome,
    EventsRequest,
    EventsResponse,
    FetchQuery,
    FetchResponse,
    HeartbeatOutcome,
    HeartbeatRequest,
    HeartbeatResponse,
    Jwks,
    WakeReceiveRequest,
    WakeReceiveResponse,
    WakeSettleRequest,
    WakeSettleResponse,
    WakeUp,
)

WORKER = "worker"
CAPABILITY = "capability"
"""Carried per item in the body, since one call may speak for many tasks."""


class InternalApi:
    def __init__(
        self, *, database: Database, authority: Authority, leasing: Leasing, wake_queue: WakeQueue
    ) -> None:
        self._database = database
        self._authority = authority
        self._leasing = leasing
        self._wake_queue = wake_queue
        self._claims: GroupCommit[Claim, ClaimResponse] = GroupCommit("claim", leasing.claim, max_items=64)
        self._beats: GroupCommit[HeartbeatCall, HeartbeatOutcome] = GroupCommit(
            "heartbeat", leasing.heartbeat, concurrency=1
        )
        self._events: GroupCommit[EmissionCall, EmissionOutcome] = GroupCommit("events", leasing.emit)
        self._completions: GroupCommit[CompletionCall, CompletionOutcome] = GroupCommit(
            "complete", leasing.complete
        )

    def app(self, *, max_body_bytes: int) -> App:
        routes = [
            Route("POST", "/internal/task-claim", ClaimRequest, ClaimResponse, self.claim, WORKER,
                  "Take leases on tasks."),
            Route("GET", "/internal/task-fetch", None, FetchResponse, self.fetch, WORKER,
                  "A held task again.", query=FetchQuery),
            Route("POST", "/internal/heartbeat", HeartbeatRequest, HeartbeatResponse, self.heartbeat, CAPABILITY,
                  "Extend leases; learn of cancellation."),
            Route("POST", "/internal/events", EventsRequest, EventsResponse, self.events, CAPABILITY,
                  "Emit events of running tasks."),
            Route("POST", "/internal/task-complete", CompleteRequest, CompleteResponse, self.complete, CAPABILITY,
                  "Report the end of attempts; outputs, cursor and events commit together."),
            Route("POST", "/internal/wake-receive", WakeReceiveRequest, WakeReceiveResponse, self.wake_receive,
                  WORKER, "Wait for wake-ups of the local queue."),
            Route("POST", "/internal/wake-settle", WakeSettleRequest, WakeSettleResponse, self.wake_settle,
                  WORKER, "Delete, extend or give back wake-ups."),
            Route("GET", "/internal/jwks", None, Jwks, self.jwks, PUBLIC,
                  "The public keys of capability tokens."),
        ]  # fmt: skip
        return App(
            routes,
            authenticate=self._authenticate(),
            title="Traceplane internal API",
            version=__version__,
            ready=self._ready,
            max_body_bytes=max_body_bytes,
        )

    def _authenticate(self) -> Authenticate:
        def check(principal: str, headers: object) -> object:
            return self._authority.worker(headers) if principal == WORKER else CAPABILITY

        return check

    async def _ready(self) -> None:
        async with self._database.transaction():
            pass

    async def claim(self, call: Call[ClaimRequest]) -> ClaimResponse:
        body = call.body
        claim = Claim(body.worker_id, body.runtime, tuple(dict.fromkeys(body.task_ids)))
        return (await self._claims.submit([claim]))[0]

    async def fetch(self, call: Call[None]) -> FetchResponse:
        query: FetchQuery = call.query
        return await self._leasing.fetch(tasks.Fence(query.task_id, query.attempt, query.lease_token))

    async def heartbeat(self, call: Call[HeartbeatRequest]) -> HeartbeatResponse:
        capabilities = self._authority.capabilities(call.body.tokens)
        calls = [heartbeat_call(beat, capabilities) for beat in call.body.beats]
        return HeartbeatResponse(list(await self._beats.submit(calls)))

    async def events(self, call: Call[EventsRequest]) -> EventsResponse:
        capabilities = self._authority.capabilities(call.body.tokens)
        calls = [emission_call(emission, capabilities) for emission in call.body.emissions]
        return EventsResponse(list(await self._events.submit(calls)))

    async def complete(self, call: Call[CompleteRequest]) -> CompleteResponse:
        capabilities = self._authority.capabilities(call.body.tokens)
        calls = [completion_call(completion, capabilities) for completion in call.body.completions]
        return CompleteResponse(list(await self._completions.submit(calls)))

    async def wake_receive(self, call: Call[WakeReceiveRequest]) -> WakeReceiveResponse:
        body = call.body
        receiving = asyncio.ensure_future(
            self._wake_queue.receive(
                body.queue,
                body.limit,
                wait_seconds=body.wait_seconds,
                visibility_seconds=body.visibility_seconds,
            )
        )
        hung_up = asyncio.ensure_future(call.hung_up())
        try:
            # A worker that died while it waited must not be handed wake-ups: they would stay hidden.
            await asyncio.wait((receiving, hung_up), return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                return WakeReceiveResponse([])
            messages = receiving.result()
        finally:
            receiving.cancel()
            hung_up.cancel()
        return WakeReceiveResponse([WakeUp(m.receipt, m.task_id, m.receives) for m in messages])

    async def wake_settle(self, call: Call[WakeSettleRequest]) -> WakeSettleResponse:
        body = call.body
        for receipt in (*body.delete, *body.extend, *body.release):
            if not (receipt.isascii() and receipt.isdigit() and len(receipt) < 19):
                raise InvalidInput("wake.bad_receipt", "this is not a receipt of this queue", value=receipt)
        if body.delete:
            await self._wake_queue.delete(body.queue, body.delete)
        extended = (
            await self._wake_queue.extend(body.queue, body.extend, body.visibility_seconds)
            if body.extend
            else 0
        )
        if body.release:
            await self._wake_queue.release(body.queue, body.release)
        return WakeSettleResponse(len(body.delete), extended, len(body.release))

    async def jwks(self, call: Call[None]) -> Jwks:
        return Jwks(**self._authority.jwks())
