"""The internal API. Reached by workers and platform components only; the gateway does not expose it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

import msgspec

from traceplane import __version__
from traceplane.adapters.wake_queue import Message
from traceplane.adapters.wake_queue_postgres import PostgresWakeQueue
from traceplane.auth.opaque import TokenRecord
from traceplane.dispatcher.authority import Authority
from traceplane.dispatcher.leases.calls import (
    BatchCall,
    Claim,
    EmissionCall,
    HeartbeatCall,
    batch_call,
    completion_call,
    emission_call,
    granted,
    heartbeat_call,
)
from traceplane.dispatcher.leases.grouped import GroupedReports
from traceplane.dispatcher.leases.requirements import Requirements
from traceplane.dispatcher.leases.service import Leases
from traceplane.errors import InvalidInput, NotFound, UserError
from traceplane.http_service.app import App
from traceplane.http_service.routes import (
    CAPABILITY,
    FROM_BODY,
    PUBLIC,
    WORKER,
    Call,
    Incoming,
    Push,
    Route,
    Stream,
)
from traceplane.model.resources import Resources
from traceplane.postgres import code_bundles, tasks, workers
from traceplane.postgres.database import Database
from traceplane.postgres.workers import WorkerKey
from traceplane.runtime.group_commit import GroupCommit
from traceplane.wire.tasks import (
    BatchOutcome,
    BufferPublishRequest,
    BufferPublishResponse,
    ClaimRequest,
    ClaimResponse,
    CodeQuery,
    CodeResponse,
    CompleteRequest,
    CompleteResponse,
    EmissionOutcome,
    EventsRequest,
    EventsResponse,
    FetchQuery,
    FetchResponse,
    FilesRequest,
    HeartbeatOutcome,
    HeartbeatRequest,
    HeartbeatResponse,
    HelloRequest,
    HelloResponse,
    Jwks,
    LeaveRequest,
    LeaveResponse,
    RowsRequest,
    TakeRequest,
)

_NEW_QUEUE_SECONDS = 3.0
_VISIBILITY_SECONDS = 30.0
"""For the time between receiving and claiming, in case the dispatcher dies in between."""


class InternalApi:
    """`queues` are the local queues of runtimes; empty if the wake queue is elsewhere. `rows_database` is a separate
    pool for the rows of hot inputs, which may take a while to send."""

    def __init__(
        self,
        *,
        database: Database,
        authority: Authority,
        leases: Leases,
        local_queue: PostgresWakeQueue,
        queues: Mapping[str, str],
        rows_database: Database | None = None,
    ) -> None:
        self._database = database
        self._rows_database = rows_database or database
        self._authority = authority
        self._leases = leases
        self._local_queue = local_queue
        self._queues = queues
        self._requirements = Requirements(database)
        self._waiting: defaultdict[WorkerKey, set[asyncio.Event]] = defaultdict(set)
        """One for each waiting `take`, by worker; set when the worker leaves."""
        self._claims: GroupCommit[Claim, ClaimResponse] = GroupCommit(
            "claim", leases.claims.claim, max_items=64
        )
        self._beats: GroupCommit[HeartbeatCall, HeartbeatOutcome] = GroupCommit(
            "heartbeat", leases.heartbeats.extend, concurrency=1
        )
        self._events: GroupCommit[EmissionCall, EmissionOutcome] = GroupCommit(
            "events", leases.emissions.accept
        )
        self._batches: GroupCommit[BatchCall, BatchOutcome] = GroupCommit("publish", leases.handovers.publish)
        self._reports = GroupedReports(leases.reports, leases.handovers)

    def app(self, *, max_body_bytes: int) -> App:
        routes = [
            Route("POST", "/internal/task-claim", ClaimRequest, ClaimResponse, self.claim, WORKER,
                  "Take leases on tasks."),
            Route("POST", "/internal/task-take", TakeRequest, ClaimResponse, self.take, WORKER,
                  "Wait for tasks of the local queue and take leases on them."),
            Route("POST", "/internal/worker-leave", LeaveRequest, LeaveResponse, self.leave, WORKER,
                  "End the waiting calls of a worker that stops."),
            Route("POST", "/internal/worker-hello", HelloRequest, HelloResponse, self.hello, WORKER,
                  "Say that a worker is there and what it offers; learn which wake queues it can serve."),
            Route("GET", "/internal/task-fetch", None, FetchResponse, self.fetch, WORKER,
                  "Fetch a held task again.", query=FetchQuery),
            Route("GET", "/internal/code", None, CodeResponse, self.code, WORKER,
                  "The code that jobs were deployed with.", query=CodeQuery),
            Route("POST", "/internal/heartbeat", HeartbeatRequest, HeartbeatResponse, self.heartbeat, CAPABILITY,
                  "Extend leases; learn of cancellation."),
            Route("POST", "/internal/events", EventsRequest, EventsResponse, self.events, CAPABILITY,
                  "Emit events of running tasks."),
            Route("POST", "/internal/task-complete", CompleteRequest, CompleteResponse, self.complete, CAPABILITY,
                  "Report the end of attempts; outputs, cursor and events commit together."),
            Route("POST", "/internal/buffer-publish", BufferPublishRequest, BufferPublishResponse, self.publish,
                  CAPABILITY, "Publish staged rows of buffered outputs of running tasks."),
            Route("POST", "/internal/input-rows", RowsRequest, Stream, self.input_rows, CAPABILITY,
                  "A piece of a hot input, as CSV."),
            Route("POST", "/internal/input-files", FilesRequest, Stream, self.input_files, CAPABILITY,
                  "The files of an input that has too many for a claim, some in each line."),
            Route("GET", "/internal/jwks", None, Jwks, self.jwks, PUBLIC,
                  "The public keys of capability tokens."),
        ]  # fmt: skip
        return App(
            routes,
            authenticate=self._authenticate,
            title="Traceplane internal API",
            version=__version__,
            ready=self._ready,
            max_body_bytes=max_body_bytes,
        )

    def _authenticate(self, incoming: Incoming) -> object:
        header = incoming.header("authorization")
        if incoming.auth == WORKER:
            return self._authority.worker(header)
        try:
            worker = self._authority.worker(header)
        except UserError:
            return FROM_BODY
        return _or_from_body(worker) if isinstance(worker, Awaitable) else worker

    async def _ready(self) -> None:
        async with self._database.transaction():
            pass

    async def claim(self, call: Call[ClaimRequest]) -> ClaimResponse:
        body, orgs = call.body, _served(call)
        queues = await self._requirements.served_by(body.runtime, _offers(body), orgs)
        task_ids = tuple(dict.fromkeys(body.task_ids))
        claim = Claim(body.worker_id, body.runtime, task_ids, queues=queues, orgs=orgs)
        return (await self._claims.submit([claim]))[0]

    async def take(self, call: Call[TakeRequest]) -> ClaimResponse:
        """Receives, claims and settles wake-ups in one call; a claimed task no longer needs its wake-up."""
        body, orgs = call.body, _served(call)
        queue = self._queues.get(body.runtime)
        if queue is None:
            raise InvalidInput(
                "runtime.no_local_queue",
                "this runtime has no queue in the dispatcher's database",
                value=body.runtime,
                next_step="start the worker with the dispatcher's `wake_queue` and `runtimes` settings",
            )
        queues = await self._requirements.served_by(body.runtime, _offers(body), orgs)
        hung_up = asyncio.ensure_future(call.hung_up())
        try:
            received = await self._receive(call, [f"{queue}{suffix}" for suffix in queues], hung_up)
            if not received:
                return ClaimResponse([], {}, [], [])
            task_ids = tuple(dict.fromkeys(m.task_id for _, m in received))
            wake_ups = tuple((name, m.receipt) for name, m in received)
            claim = Claim(body.worker_id, body.runtime, task_ids, wake_ups, queues, orgs)
            (answer,) = await self._claims.submit([claim])
            if hung_up.done() and answer.tasks:
                await self._leases.hand_back(answer.tasks)
            return answer
        finally:
            hung_up.cancel()

    async def leave(self, call: Call[LeaveRequest]) -> LeaveResponse:
        worker = _worker_key(call)
        waiting = tuple(self._waiting.get(worker, ()))  # each removes itself when it ends
        for left in waiting:
            left.set()
        async with self._database.transaction() as tx:
            await workers.leave(tx, worker)
        return LeaveResponse(len(waiting))

    async def hello(self, call: Call[HelloRequest]) -> HelloResponse:
        body, orgs = call.body, _served(call)
        async with self._database.transaction() as tx:
            await workers.see(tx, _worker_key(call), body.runtime, _offers(body))
        # An external queue is asked over the network, in turn with the others.
        queues = await self._requirements.served_by(body.runtime, _offers(body), orgs, in_use=True)
        return HelloResponse(list(queues))

    async def _receive(
        self, call: Call[TakeRequest], queues: Sequence[str], hung_up: asyncio.Future[None]
    ) -> list[tuple[str, Message]]:
        request, worker = call.body, _worker_key(call)
        # A deploy may add a queue that this worker can serve, and so may a new organization.
        may_be_more = bool(_offers(request)) or _served(call) is None
        longest = _NEW_QUEUE_SECONDS if may_be_more else request.wait_seconds
        receiving = asyncio.ensure_future(
            self._local_queue.receive_from(
                queues,
                request.limit,
                wait_seconds=min(request.wait_seconds, longest),
                visibility_seconds=_VISIBILITY_SECONDS,
            )
        )
        left = asyncio.Event()
        leaving = asyncio.ensure_future(left.wait())
        self._waiting[worker].add(left)
        try:
            # A worker that died while waiting must not get tasks: they would wait until its lease expires.
            await asyncio.wait((receiving, hung_up, leaving), return_when=asyncio.FIRST_COMPLETED)
            received = receiving.result() if receiving.done() else []
            if received and hung_up.done():
                for queue in queues:
                    await self._local_queue.release(
                        queue, [m.receipt for name, m in received if name == queue]
                    )
                return []
            return received
        finally:
            receiving.cancel()
            leaving.cancel()
            self._waiting[worker].discard(left)
            if not self._waiting[worker]:
                del self._waiting[worker]

    async def fetch(self, call: Call[None]) -> FetchResponse:
        query: FetchQuery = call.query
        return await self._leases.claims.fetch(
            tasks.LeaseFence(query.task_id, query.attempt, query.lease_token), _served(call)
        )

    async def code(self, call: Call[None]) -> CodeResponse:
        query: CodeQuery = call.query
        async with self._database.transaction() as tx:
            content = await code_bundles.load(tx, query.bundle, _served(call))
        if content is None:
            raise NotFound("code.unknown_bundle", "there is no such code bundle", value=query.bundle)
        return CodeResponse(content)

    async def heartbeat(self, call: Call[HeartbeatRequest]) -> HeartbeatResponse:
        capabilities = self._authority.capabilities(call.body.tokens)
        calls = [heartbeat_call(beat, capabilities) for beat in call.body.beats]
        return HeartbeatResponse(list(await self._beats.submit(calls)))

    async def events(self, call: Call[EventsRequest]) -> EventsResponse:
        capabilities = self._authority.capabilities(call.body.tokens)
        calls = [emission_call(emission, capabilities) for emission in call.body.emissions]
        return EventsResponse(list(await self._events.submit(calls)))

    async def publish(self, call: Call[BufferPublishRequest]) -> BufferPublishResponse:
        capabilities = self._authority.capabilities(call.body.tokens)
        calls = [batch_call(batch, capabilities) for batch in call.body.batches]
        return BufferPublishResponse(list(await self._batches.submit(calls)))

    async def complete(self, call: Call[CompleteRequest]) -> CompleteResponse:
        capabilities = self._authority.capabilities(call.body.tokens)
        calls = [completion_call(completion, capabilities) for completion in call.body.completions]
        return CompleteResponse(list(await self._reports.submit(calls)))

    async def input_rows(self, call: Call[RowsRequest]) -> Stream:
        request = call.body
        _, grants = granted(request.fence, self._authority.capabilities(request.tokens))

        async def write(push: Push) -> None:
            await self._leases.claims.read_rows(self._rows_database, request, grants, push)

        return Stream(write, "text/csv")

    async def input_files(self, call: Call[FilesRequest]) -> Stream:
        request = call.body
        _, grants = granted(request.fence, self._authority.capabilities(request.tokens))

        async def write(push: Push) -> None:
            await self._leases.claims.read_files(self._rows_database, request, grants, push)

        return Stream(write, "application/x-ndjson")

    async def jwks(self, call: Call[None]) -> Jwks:
        return Jwks(**self._authority.jwks())


async def _or_from_body(worker: Awaitable[TokenRecord]) -> object:
    try:
        return await worker
    except UserError:
        return FROM_BODY


def _served(call: Call[Any]) -> tuple[str, ...] | None:
    """The organizations that the calling worker serves; None: all."""
    token: TokenRecord = call.principal
    return token.serves


def _worker_key(call: Call[TakeRequest] | Call[LeaveRequest] | Call[HelloRequest]) -> WorkerKey:
    """By its token, whatever it says of itself."""
    orgs = _served(call)
    return WorkerKey(None if orgs is None else frozenset(orgs), call.body.worker_id)


def _offers(request: ClaimRequest | TakeRequest | HelloRequest) -> Resources:
    return msgspec.convert(request.offers, Resources, from_attributes=True)
