"""Tasks of `invoke` runtimes: leased here, then called with their whole payload.

The relay hands over ids of dispatched tasks. A pass claims as many as there is room for and calls a function for
each, extending its lease meanwhile. The function answers how the task ended, which is committed like a worker's
report; or `{"accepted": true}`, and from then on the function is responsible for the lease and the report.

Nothing here has to survive a crash. An id not yet claimed is a dispatched task, which the reconciler resends; a
claimed one has a lease that expires, and the reaper retries it. The same applies to calls that do not end in time
when the process stops. A call is never repeated here: only the task is retried.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import socket
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.adapters.invokers import (
    HttpInvoker,
    InvocationFailed,
    Invoker,
    LambdaInvoker,
    ProcessInvoker,
)
from traceplane.auth.capability import Capability, JobGrants, TaskGrant, WriteGrant
from traceplane.dispatcher.leases.calls import (
    Claim,
    CompletionCall,
    HeartbeatCall,
    completion_call,
    heartbeat_call,
)
from traceplane.dispatcher.leases.grouped import GroupedReports
from traceplane.dispatcher.leases.service import Leases
from traceplane.errors import Forbidden, PlatformError
from traceplane.model import runtimes
from traceplane.model.runtimes import Runtime
from traceplane.runtime.group_commit import GroupCommit
from traceplane.runtime.process import Outcome, describe, run_loop
from traceplane.runtime.retrying import pauses, retrying
from traceplane.settings import Settings
from traceplane.wire.invocations import COMPLETE_PATH, Answer, Invocation
from traceplane.wire.tasks import (
    ClaimedTask,
    Completion,
    Heartbeat,
    HeartbeatOutcome,
    JobPayload,
    TaskError,
)

# Concurrent calls per runtime; a child process costs more than a connection.
_AT_ONCE = {
    runtimes.InvokerKind.HTTP: 256,
    runtimes.InvokerKind.AWS_LAMBDA: 256,
    runtimes.InvokerKind.PROCESS: 4 * (os.cpu_count() or 1),
}
_CLAIMS_AT_ONCE = 32
_STOP_SECONDS = 5.0
_SHORTEST_PATIENCE_SECONDS = 60.0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Answer).decode


def read_answer(raw: bytes) -> Answer:
    try:
        return _decode(raw)
    except (ValueError, RecursionError) as error:
        raise _bad_answer(f"{error} in {raw[:200].decode(errors='replace')!r}") from error


@dataclass(frozen=True, slots=True)
class Invoked(Outcome):
    started: int = 0
    refused: int = 0
    more: bool = False


@dataclass(slots=True)
class _Lane:
    """One runtime's tasks: those waiting for room, each once however often it is sent, and those being called."""

    runtime: Runtime
    invoker: Invoker
    at_once: int
    waiting: dict[UUID, None] = field(default_factory=dict)
    running: dict[asyncio.Task[None], ClaimedTask] = field(default_factory=dict)

    def next_ids(self, limit: int) -> tuple[UUID, ...]:
        return tuple(itertools.islice(self.waiting, min(limit, self.at_once - len(self.running))))


@dataclass(frozen=True, slots=True)
class _Held:
    """A task whose lease this process holds."""

    task: ClaimedTask
    job: JobPayload
    token: str
    capability: Capability

    @classmethod
    def of(cls, task: ClaimedTask, job: JobPayload, token: str) -> _Held:
        """The grants of the token, which this process issued and need not verify."""
        writes = tuple(
            WriteGrant(o.output_index, str(o.dataset_uuid), str(o.dataset_version), o.storage)
            for o in job.outputs
        )
        granted = TaskGrant(str(task.task_id), task.attempt, 0)
        capability = Capability(job.org, (granted,), (JobGrants(reads=(), writes=writes),), math.inf)
        return cls(task, job, token, capability)

    def beat(self) -> HeartbeatCall:
        t = self.task
        return heartbeat_call(Heartbeat(t.task_id, t.attempt, t.lease_token), [self.capability])

    def report(self, answer: Answer) -> CompletionCall:
        t = self.task
        assert answer.status is not None
        completion = Completion(
            task_id=t.task_id,
            attempt=t.attempt,
            lease_token=t.lease_token,
            status=answer.status,
            outputs=answer.outputs,
            events=answer.events,
            error=answer.error,
            log=answer.log,
            traceparent=t.traceparent,
            seen_commit=t.seen_commit,
        )
        return completion_call(completion, [self.capability])


class Invocations:
    def __init__(self, leases: Leases, settings: Settings) -> None:
        self._leases = leases
        self._settings = settings
        self._worker_id = f"invoker:{socket.gethostname()}:{os.getpid()}"
        self._complete_url = f"{settings.dispatcher_address}{COMPLETE_PATH}"
        self._object_store = settings.object_store_address
        self._lanes: dict[str, _Lane] = {}
        self._kick = asyncio.Event()
        self._beats: GroupCommit[HeartbeatCall, HeartbeatOutcome] = GroupCommit(
            "heartbeat", leases.heartbeats.extend, concurrency=1
        )
        self._reports = GroupedReports(leases.reports, leases.handovers)

    def start(self, runtime: Runtime, task_ids: tuple[UUID, ...]) -> None:
        """Takes over dispatched tasks, to be called when there is room."""
        lane = self._lanes.get(runtime.name)
        if lane is None:
            assert runtime.invoker is not None
            invoker = self._invoker(runtime.invoker)
            lane = self._lanes[runtime.name] = _Lane(runtime, invoker, _AT_ONCE[runtime.invoker])
        lane.waiting.update(dict.fromkeys(task_ids))
        self._kick.set()

    def _invoker(self, kind: runtimes.InvokerKind) -> Invoker:
        limit = self._settings.max_body_bytes
        match kind:
            case runtimes.InvokerKind.HTTP:
                return HttpInvoker(max_answer_bytes=limit)
            case runtimes.InvokerKind.PROCESS:
                return ProcessInvoker(max_answer_bytes=limit)
            case runtimes.InvokerKind.AWS_LAMBDA:
                return LambdaInvoker(
                    region=self._settings.aws_region, connections=_AT_ONCE[kind], max_answer_bytes=limit
                )

    async def run(self, stop: asyncio.Event) -> None:
        """Calls functions until `stop`; then running calls have a few seconds to end.

        Tasks of calls that do not end are handed back: another dispatcher calls again, and a report of the first call
        is stale.
        """
        try:
            await run_loop("invocations", self.run_once, interval=5.0, kick=self._kick, stop=stop)
            if running := self._running():
                await asyncio.wait(running, timeout=_STOP_SECONDS)
        finally:
            left = self._running()
            for call in left:
                call.cancel()
            ends = await asyncio.gather(*left, return_exceptions=True)
            for lane in self._lanes.values():
                await lane.invoker.close()
            broken_off = [
                task for task, end in zip(left.values(), ends, strict=True) if isinstance(end, BaseException)
            ]
            if broken_off:
                telemetry.emit("invocations.handed_back", "warning", tasks=len(broken_off))
                await self._leases.hand_back(broken_off)

    def _running(self) -> dict[asyncio.Task[None], ClaimedTask]:
        return {call: task for lane in self._lanes.values() for call, task in lane.running.items()}

    async def run_once(self) -> Invoked:
        """Claims what there is room for, in one transaction, and starts the calls."""
        batch = self._next()
        if not batch:
            return Invoked()
        # Each task is claimed separately, so that its token, which user code sees, covers no other task.
        claims = [
            Claim(self._worker_id, lane.runtime.name, (task_id,), orgs=lane.runtime.orgs or None)
            for lane, task_id in batch
        ]
        try:
            answers = await self._leases.claims.claim(claims)
        except PlatformError:
            raise  # nothing is known to be claimed; the tasks wait for the next pass
        except Exception:
            # Anything else is likely about one of these tasks, such as a stored job that this version cannot read.
            # If they stayed, each pass would fail at it, and no other task would be called. The reconciler resends.
            _forget(batch)
            raise
        _forget(batch)
        for (lane, _), answer in zip(batch, answers, strict=True):
            for task in answer.tasks:
                self._begin(lane, task, answer.jobs[str(task.job_id)], answer.tokens[task.token])
        return Invoked(
            started=sum(len(answer.tasks) for answer in answers),
            refused=sum(len(answer.refused) for answer in answers),
            more=bool(self._next()),
        )

    def _next(self) -> list[tuple[_Lane, UUID]]:
        """Tasks that there is room for, shared fairly among the runtimes."""
        share = max(1, _CLAIMS_AT_ONCE // max(1, len(self._lanes)))
        return [(lane, task_id) for lane in self._lanes.values() for task_id in lane.next_ids(share)]

    def _begin(self, lane: _Lane, task: ClaimedTask, job: JobPayload, token: str) -> None:
        def ended(call: asyncio.Task[None]) -> None:
            lane.running.pop(call, None)
            self._kick.set()

        call = asyncio.create_task(self._serve(lane, task, job, token))
        lane.running[call] = task
        call.add_done_callback(ended)

    async def _serve(self, lane: _Lane, task: ClaimedTask, job: JobPayload, token: str) -> None:
        """One attempt, from claim to report. No answer of a function can stop the dispatcher."""
        task_id = str(task.task_id)
        try:
            with telemetry.span(
                "task.attempt",
                traceparent=task.traceparent,
                task_id=task_id,
                attempt=task.attempt,
                job=job.name,
            ) as span:
                held = _Held.of(msgspec.structs.replace(task, traceparent=span.traceparent), job, token)
                answer = await self._call(lane, held)
                if answer is not None:
                    await self._report(held, answer)
        except Exception as error:
            telemetry.emit("invocation.broken", "error", task_id=task_id, job=job.name, **describe(error))

    async def _call(self, lane: _Lane, held: _Held) -> Answer | None:
        """What to report; None if the function reports, or the lease is lost."""
        target = lane.runtime.function_of(held.job.function)
        if target is None:
            return _failure(_not_allowed(held.job.function))
        payload = _encode(Invocation(held.task, held.job, held.token, self._complete_url, self._object_store))
        calling = asyncio.create_task(lane.invoker.invoke(target, payload, held.job.timeout_seconds))
        losing = asyncio.create_task(self._keep_lease(held))
        try:
            await asyncio.wait((calling, losing), return_when=asyncio.FIRST_COMPLETED)
            if not calling.done():
                return Answer("canceled") if losing.result() == "canceled" else None
            answer = read_answer(calling.result())
        except InvocationFailed as error:
            return _failure(error)
        finally:
            calling.cancel()
            losing.cancel()
            await asyncio.gather(calling, losing, return_exceptions=True)
        return None if answer.accepted else answer

    async def _keep_lease(self, held: _Held) -> str:
        """Sends heartbeats until one is refused; returns the reason."""
        interval = pause = held.task.lease_seconds / 3
        while True:
            await asyncio.sleep(pause)
            try:
                (beat,) = await self._beats.submit([held.beat()])
            except PlatformError:
                pause = min(interval, 1.0)
                continue
            if beat.outcome != "ok":
                return beat.outcome
            pause = interval

    async def _report(self, held: _Held, answer: Answer) -> None:
        """Retries through an outage: a late report counts as long as nobody else has claimed the task."""
        try:
            call = held.report(answer)
        except Forbidden as error:
            call = held.report(_failure(_bad_answer(str(error))))
        patience = max(held.task.lease_seconds, _SHORTEST_PATIENCE_SECONDS)
        await retrying(
            lambda: self._reports.submit([call]), on=PlatformError, pauses=pauses(0.5, 2.0, seconds=patience)
        )


def _forget(batch: list[tuple[_Lane, UUID]]) -> None:
    for lane, task_id in batch:
        lane.waiting.pop(task_id, None)


def _failure(error: InvocationFailed) -> Answer:
    message = error.message if error.value is None else f"{error.message}: {error.value}"
    return Answer("failed", error=TaskError(error.code, message, type=type(error).__name__))


def _not_allowed(function: str | None) -> InvocationFailed:
    """The settings have changed since the deploy, which checks this too."""
    return InvocationFailed(
        "invoke.refused",
        "the runtime's settings do not let the job call this function",
        value=function,
        next_step="add it to the runtime's functions in the settings of the dispatchers",
    )


def _bad_answer(why: str) -> InvocationFailed:
    return InvocationFailed(
        "invoke.bad_answer",
        "the function's answer is invalid",
        value=why,
        next_step="answer as docs/concepts/runtimes.md says",
    )
