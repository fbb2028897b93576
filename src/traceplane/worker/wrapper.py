"""The trusted half of a worker: from wake-up to completion, for as many tasks at once as it has slots."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.crash_points import crash_point
from traceplane.errors import InvalidInput, TooLarge, TraceplaneError
from traceplane.operators import catalog
from traceplane.runtime.group_commit import GroupCommit
from traceplane.sandbox.assignment import Reuse
from traceplane.wire.tasks import ClaimResponse, Completion, CompletionOutcome
from traceplane.worker import report
from traceplane.worker.attempt import Attempts
from traceplane.worker.dispatcher_client import DispatcherClient, patiently
from traceplane.worker.heartbeats import HeartbeatSender
from traceplane.worker.held_task import HeldTask
from traceplane.worker.intake import Intake
from traceplane.worker.pace import Pace
from traceplane.worker.store_on_disk import StoreOnDisk, reuse_of

Answer = TypeVar("Answer")

_AWAY_SAID_AGAIN_SECONDS = 30.0
_LEAVE_SECONDS = 5.0
_HAND_BACK_SECONDS = 5.0
"""How long the dispatcher has to answer when the worker is in a hurry."""
_MOST_UNREPORTED = 2000
_MANY = 100
_GATHER_SECONDS = 0.03


@dataclass(frozen=True, slots=True)
class _Finished:
    token: str
    completion: Completion


class Wrapper:
    def __init__(
        self,
        *,
        client: DispatcherClient,
        intake: Intake,
        attempts: Attempts,
        store: StoreOnDisk,
        slots: int,
        drain_seconds: float,
        heartbeat_seconds: float,
    ) -> None:
        self._client = client
        self._intake = intake
        self._attempts = attempts
        self._store = store
        self._slots = slots
        self._drain_seconds = drain_seconds
        self._held: dict[UUID, HeldTask] = {}
        self._heartbeats = HeartbeatSender(client, self._held, longest_interval_seconds=heartbeat_seconds)
        self._freed = asyncio.Event()
        self._away_said: tuple[str, float] | None = None
        """The code of the error that was last logged, and when."""
        self._pace = Pace(slots)
        self._unended = 0
        """Held tasks whose operator has not ended."""
        self._completions: GroupCommit[_Finished, CompletionOutcome] = GroupCommit(
            "worker.complete", self._send_completions, concurrency=1
        )

    async def heartbeat(self, stop: asyncio.Event) -> None:
        await self._heartbeats.run(stop)

    # Waiting for work ------------------------------------------------------------------------------

    async def take_work(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Receives and claims tasks while there are free slots, and short tasks ahead of them. At `stop` it gives
        running tasks some time to finish, unless there is a `hurry`.

        Tasks that do not finish are ended and handed back, sources at once, so that another worker runs them.
        """
        while not stop.is_set():
            ahead = self._pace.tasks()
            free = min(self._slots + ahead - self._unended, _MOST_UNREPORTED - len(self._held))
            if free <= ahead // 2:  # one claim for many tasks, rather than one for each task that ends
                self._freed.clear()
                await _unless(stop, self._freed.wait())
                continue
            if self._store.cache is not None and self._store.cache.away:
                await _unless(stop, self._store.cache.until_back())
                continue
            try:
                claims = await self._take(stop, free)
                if claims is not None:
                    self._start(claims)
                self._away_said = None
            except TraceplaneError as error:
                self._say_away(error)
                await _unless(stop, asyncio.sleep(0.5))
        await self._drain(hurry)

    def _say_away(self, error: TraceplaneError) -> None:
        """Once, and again after a while, since it is tried twice a second."""
        now = time.monotonic()
        if self._away_said is not None:
            code, at = self._away_said
            if code == error.code and now - at < _AWAY_SAID_AGAIN_SECONDS:
                return
        self._away_said = error.code, now
        telemetry.emit(
            "worker.dispatcher_away",
            "warning",
            code=error.code,
            message=error.message,
            value=str(error.value),
            next_step=error.next_step,
        )

    async def _take(self, stop: asyncio.Event, free: int) -> ClaimResponse | None:
        """Takes tasks from the intake. At `stop` the intake is told and answers at once: a lease that is in flight and
        never received would cost its task an attempt."""
        taking, stopping = asyncio.ensure_future(self._intake.take(free)), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(TimeoutError, TraceplaneError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    while not taking.done():
                        await self._intake.leave()  # repeatedly: it may arrive before the call does
                        await asyncio.wait((taking,), timeout=0.2)
            return taking.result() if taking.done() else None
        finally:
            taking.cancel()
            stopping.cancel()

    async def _drain(self, hurry: asyncio.Event) -> None:
        for held in self._held.values():
            if held.job.endless:
                held.interrupt("returned")
        running = [held.run for held in self._held.values() if held.run is not None]
        if not running:
            return
        telemetry.emit("worker.draining", tasks=len(running))
        await _unless(hurry, asyncio.wait(running, timeout=self._drain_seconds))
        for held in self._held.values():
            held.interrupt("returned")
        await _unless(hurry, asyncio.wait(running))
        _, unreported = await asyncio.wait(running, timeout=_HAND_BACK_SECONDS)
        for run in unreported:
            run.cancel()

    def _start(self, claims: ClaimResponse) -> None:
        crash_point("worker.after_claim")
        reuses: dict[UUID, Reuse | None] = {}
        started = []
        for task in claims.tasks:
            job = claims.jobs[str(task.job_id)]
            if job.job_id not in reuses:
                reuses[job.job_id] = reuse_of(job, self._store)
            operator = catalog.find(job.operator)
            held = HeldTask(task, job, claims.tokens[task.token], reuses[job.job_id], operator)
            self._held[task.task_id] = held
            self._unended += 1
            held.run = asyncio.create_task(self._run_and_report(held))
            started.append(held)
        self._heartbeats.schedule(started)

    # Running a task --------------------------------------------------------------------------------

    async def _run_and_report(self, held: HeldTask) -> None:
        task, job = held.task, held.job
        try:
            with telemetry.span(
                "task.attempt",
                traceparent=task.traceparent,
                job=job.name,
                task=str(task.task_id),
                attempt=task.attempt,
            ) as span:
                completion = await self._attempts.run(held, span.traceparent, on_ran=self._pace.note)
            self._end(held)
            if completion is not None:
                await self._report(held, completion)
        except Exception as error:  # one task must never end the worker
            telemetry.emit("worker.task_lost", "error", task_id=str(task.task_id), error=repr(error))
        finally:
            self._end(held)
            self._held.pop(task.task_id, None)
            self._freed.set()
            with contextlib.suppress(TraceplaneError):
                await self._intake.settle(task.task_id)

    def _end(self, held: HeldTask) -> None:
        """Its operator has ended; only the report is left."""
        if not held.ended:
            held.ended = True
            self._unended -= 1
            self._freed.set()

    async def _report(self, held: HeldTask, completion: Completion) -> None:
        try:
            (outcome,) = await self._completions.submit([_Finished(held.token, completion)])
        except (InvalidInput, TooLarge) as refusal:  # the report contains data from the operator
            if completion.status != "completed":
                raise
            completion = report.completion_of_refusal(held, completion, refusal)
            (outcome,) = await self._completions.submit([_Finished(held.token, completion)])
        crash_point("worker.after_complete")
        if outcome.outcome not in ("committed", "buffered", "canceled") and completion.status != "returned":
            telemetry.emit(
                "worker.attempt_ended",
                "warning",
                task_id=str(completion.task_id),
                job=held.job.name,
                attempt=completion.attempt,
                outcome=outcome.outcome,
                code=completion.error.code if completion.error else None,
            )

    async def _send_completions(self, finished: Sequence[_Finished]) -> list[CompletionOutcome]:
        """One call at a time. If many tasks end, completions are collected first: most of what a call
        costs the dispatcher and the database does not depend on how many it reports."""
        if len(finished) < _MANY <= len(self._held):
            await asyncio.sleep(_GATHER_SECONDS)
        tokens = list(dict.fromkeys(f.token for f in finished))
        position = {token: i for i, token in enumerate(tokens)}
        completions = [msgspec.structs.replace(f.completion, token=position[f.token]) for f in finished]
        return await patiently(lambda: self._client.complete(tokens, completions))


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, Answer]) -> Answer | None:
    """The result of `work`, or None when `stop` comes first."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()
