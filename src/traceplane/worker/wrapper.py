"""The trusted half of a worker: from wake-up to completion, for as many tasks at once as it has slots."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from traceplane import telemetry
from traceplane.adapters.object_cache import ObjectCache
from traceplane.adapters.object_store import StoredFile
from traceplane.crash_points import crash_point
from traceplane.decoding.decoders import Decoders
from traceplane.errors import InvalidInput, PlatformError, TooLarge, TraceplaneError, UserError
from traceplane.model.runtimes import PYTHON_OPERATORS, USES_NETWORK, Runtime
from traceplane.runtime.group_commit import GroupCommit
from traceplane.sandbox.assignment import Assignment, Reuse, RunResult
from traceplane.sandbox.frames import Limits
from traceplane.sandbox.sandboxes import Sandboxes
from traceplane.spark.server import SparkGrant
from traceplane.spark.servers import OneRemoteSpark, Spark, SparkServers
from traceplane.wire.tasks import (
    LONGEST_LOG,
    ClaimedTask,
    ClaimResponse,
    ColumnSchema,
    ColumnStatistics,
    Completion,
    CompletionOutcome,
    Emission,
    EventOut,
    Heartbeat,
    HeartbeatOutcome,
    JobPayload,
    OutputManifest,
    StagedFile,
    TaskError,
)
from traceplane.worker.code_cache import CodeCache
from traceplane.worker.dispatcher_client import DispatcherClient
from traceplane.worker.hot_inputs import LocalInputs, fetched
from traceplane.worker.intake import Intake

Answer = TypeVar("Answer")

_COMPLETION_PATIENCE_SECONDS = 900.0
_LEAVE_SECONDS = 5.0
_LOG_LINES_KEPT = 20
_LONGEST_MESSAGE = 2_000
_READABLE_BY_OTHERS = 0o005
NOT_WORTH_A_RETRY = frozenset(
    {
        "chain.range_invalid",
        "chain.rpc_refused",
        "operator.input_schema_unknown",
        "operator.input_unknown",
        "operator.misconfigured",
        "operator.no_entrypoint",
        "operator.output_unknown",
        "operator.result_invalid",
        "operator.schema_mixed",
        "operator.unknown",
        "operator.value_does_not_fit",
        "operator.wrong_parameters",
    }
)
_SPARK_TASK = "traceplane.dataplane.task:run"
_SPARK_LOST = "operator.spark_lost"
_AHEAD_SECONDS = 1.0
_WEIGHT_OF_THE_LATEST = 0.2
_MOST_UNREPORTED = 2000
_MOST_AHEAD = 500
_MANY = 100
_GATHER_SECONDS = 0.03


@dataclass(slots=True)
class _Held:
    """A task this worker holds the lease of."""

    task: ClaimedTask
    job: JobPayload
    token: str
    reuse: Reuse | None
    run: asyncio.Task[None] | None = None
    verdict: str | None = None
    """canceled | stale, once a heartbeat said so; returned, when its worker stops before it has ended."""
    ended: bool = False
    """The operator has ended; nothing is left but the report, and no heartbeat interrupts that."""
    next_beat: float = 0.0
    progress: dict[str, Any] | None = None
    local: LocalInputs = field(default_factory=LocalInputs)
    """Its hot inputs, as they were read."""
    spark: Spark | None = None
    """The server that it uses, or used last."""


@dataclass(frozen=True, slots=True)
class _Finished:
    token: str
    completion: Completion


@dataclass(frozen=True, slots=True)
class StoreOnDisk:
    """Where the object store's files are on this machine, at their paths below these folders."""

    inputs: Path
    outputs: Path
    cache: ObjectCache | None = None
    """Unset: the store is a folder, and files are read and written in place."""


class Pace:
    """How long tasks take once they have a slot: a worker claims a second's work ahead. Short tasks go by the hundred
    through one claim, and a long one stays in the queue for whoever is free."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._seconds: float | None = None
        """Of a task; the latest count most."""

    def note(self, result: RunResult) -> None:
        before = result.slot_seconds if self._seconds is None else self._seconds
        self._seconds = before + (result.slot_seconds - before) * _WEIGHT_OF_THE_LATEST

    def tasks(self) -> int:
        """How many to hold beyond those that run."""
        if self._seconds is None:
            return 0
        return min(_MOST_AHEAD, int(self._slots * _AHEAD_SECONDS / max(self._seconds, 1e-4)))


class Wrapper:
    def __init__(
        self,
        *,
        client: DispatcherClient,
        intake: Intake,
        sandboxes: Sandboxes,
        runtime: Runtime,
        slots: int,
        drain_seconds: float,
        store: StoreOnDisk,
        code: CodeCache,
        decoders: Decoders,
        spark: SparkServers | OneRemoteSpark | None = None,
    ) -> None:
        self._client = client
        self._intake = intake
        self._sandboxes = sandboxes
        self._runtime = runtime
        self._slots = slots
        self._drain_seconds = drain_seconds
        self._store = store
        self._code = code
        self._decoders = decoders
        self._spark = spark
        self._held: dict[UUID, _Held] = {}
        self._freed = asyncio.Event()
        self._pace = Pace(slots)
        self._unended = 0
        """Held tasks whose operator has not ended."""
        self._completions: GroupCommit[_Finished, CompletionOutcome] = GroupCommit(
            "worker.complete", self._send_completions, concurrency=1
        )

    # Waiting for work ------------------------------------------------------------------------------

    async def take_work(self, stop: asyncio.Event) -> None:
        """Receives and claims as long as there are free slots, and short tasks ahead of them; at `stop` lets running
        tasks finish for a while.

        Those that do not are ended and handed back, a source at once, so that another worker takes them up.
        """
        while not stop.is_set():
            ahead = self._pace.tasks()
            free = min(self._slots + ahead - self._unended, _MOST_UNREPORTED - len(self._held))
            if free <= ahead // 2:  # one claim for many, rather than one for each that ends
                self._freed.clear()
                await _unless(stop, self._freed.wait())
                continue
            if self._store.cache is not None and self._store.cache.away:
                await _unless(stop, self._store.cache.until_back())
                continue
            try:
                taken = await self._take(stop, free)
                if taken is not None:
                    self._start(taken)
            except TraceplaneError as error:
                telemetry.emit("worker.dispatcher_away", "warning", code=error.code, message=error.message)
                await _unless(stop, asyncio.sleep(0.5))
        await self._drain()

    async def _take(self, stop: asyncio.Event, free: int) -> ClaimResponse | None:
        """What the intake gives. At `stop` it is told so and answers at once: a lease that is on its way here would
        cost its task an attempt if nobody heard of it."""
        taking, stopping = asyncio.ensure_future(self._intake.take(free)), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(TimeoutError, TraceplaneError):
                async with asyncio.timeout(_LEAVE_SECONDS):
                    while not taking.done():
                        await self._intake.leave()  # again and again: it may arrive before the call does
                        await asyncio.wait((taking,), timeout=0.2)
            return taking.result() if taking.done() else None
        finally:
            taking.cancel()
            stopping.cancel()

    async def _drain(self) -> None:
        for held in self._held.values():
            if held.job.endless:
                self._interrupt(held, "returned")
        running = [held.run for held in self._held.values() if held.run is not None]
        if not running:
            return
        telemetry.emit("worker.draining", tasks=len(running))
        await asyncio.wait(running, timeout=self._drain_seconds)
        for held in self._held.values():
            self._interrupt(held, "returned")
        await asyncio.wait(running)

    def _start(self, taken: ClaimResponse) -> None:
        crash_point("worker.after_claim")
        reuses: dict[UUID, Reuse | None] = {}
        for task in taken.tasks:
            job = taken.jobs[str(task.job_id)]
            if job.job_id not in reuses:
                reuses[job.job_id] = _reuse(job, self._store)
            held = _Held(task, job, taken.tokens[task.token], reuses[job.job_id])
            held.next_beat = time.monotonic() + self._beat_interval(held)
            self._held[task.task_id] = held
            self._unended += 1
            held.run = asyncio.create_task(self._run(held))

    # Running a task --------------------------------------------------------------------------------

    async def _run(self, held: _Held) -> None:
        task, job = held.task, held.job
        try:
            with telemetry.span(
                "task.attempt",
                traceparent=task.traceparent,
                job=job.name,
                task=str(task.task_id),
                attempt=task.attempt,
            ) as span:
                completion = await self._attempt(held, span.traceparent)
            self._end(held)
            if completion is not None:
                await self._report(held, completion)
        except Exception as error:  # whatever happens to one task must not end the worker
            telemetry.emit("worker.task_lost", "error", task_id=str(task.task_id), error=repr(error))
        finally:
            self._end(held)
            self._held.pop(task.task_id, None)
            self._freed.set()
            with contextlib.suppress(TraceplaneError):
                await self._intake.settle(task.task_id)

    def _end(self, held: _Held) -> None:
        """Its operator has ended; only the report is left."""
        if not held.ended:
            held.ended = True
            self._unended -= 1
            self._freed.set()

    async def _attempt(self, held: _Held, traceparent: str | None) -> Completion | None:
        """Runs the operator; None when the attempt is no longer ours to report."""
        logs: list[str] = []

        def keep_line(line: str) -> None:
            logs.append(line)
            del logs[:-_LOG_LINES_KEPT]
            telemetry.emit("task.log", "debug", task_id=str(held.task.task_id), line=line)

        outputs: list[OutputManifest] = []
        try:
            result = await self._run_on_inputs(held, keep_line, traceparent)
            self._pace.note(result)
            crash_point("worker.after_run")
            if result.error is None:
                outputs = await self._staged(held, result)
        except asyncio.CancelledError:
            if held.verdict is None:
                raise
            if held.verdict == "stale":
                return None
            return self._completion(held, held.verdict, traceparent)
        except TraceplaneError as error:
            message = error.message if error.value is None else f"{error.message}: {str(error.value)[:500]}"
            failure = TaskError(error.code, message, retryable=not isinstance(error, UserError))
            return self._completion(held, "failed", traceparent, error=failure)
        if result.error is not None:
            body = result.error
            hint = body.hint
            if body.code == _SPARK_LOST and held.spark is not None:
                hint = held.spark.last_end
            failure = TaskError(
                code=body.code,
                message=body.message if hint is None else f"{body.message} ({hint})",
                type=body.type,
                traceback=body.traceback,
                file=body.file,
                line=body.line,
                logs=logs,
                retryable=body.code not in NOT_WORTH_A_RETRY,
            )
            return self._completion(held, "failed", traceparent, error=failure, log=_end(result.log_tail))
        if lost := _rows_lost(held, result):
            return self._completion(held, "failed", traceparent, error=lost)
        crash_point("worker.after_stage")
        events = [msgspec.convert(event, EventOut) for event in result.events]
        return self._completion(
            held,
            "completed",
            traceparent,
            outputs=outputs,
            events=events,
            hot_reads=held.local.reads if held.job.operator == "compact" else [],
            log=_end(result.log_tail),
        )

    async def _run_on_inputs(self, held: _Held, on_log: Any, traceparent: str | None) -> RunResult:
        if self._store.cache is None:
            return await self._run_in_sandbox(held, on_log, traceparent)
        async with self._store.cache.holding(_granted(held.task)):
            return await self._run_in_sandbox(held, on_log, traceparent)

    async def _staged(self, held: _Held, result: RunResult) -> list[OutputManifest]:
        """What the task wrote, once it is in the object store."""
        manifests = [self._manifest(held, index, result) for index in range(len(held.job.outputs))]
        outputs = [manifest for manifest in manifests if manifest is not None]
        if self._store.cache is not None and result.outputs:
            written = [StoredFile(f.path, f.bytes) for output in outputs for f in output.files]
            try:
                await self._store.cache.upload(written)
            finally:
                await self._store.cache.discard(held.task.write_prefixes)
        return outputs

    async def _run_in_sandbox(self, held: _Held, on_log: Any, traceparent: str | None) -> RunResult:
        if not held.task.hot_inputs:
            return await self._run_on(held, on_log, traceparent)
        async with fetched(
            self._client, held.task, held.job, lambda: held.token, self._store.inputs, self._decoders
        ) as held.local:
            return await self._run_on(held, on_log, traceparent)

    async def _run_on(self, held: _Held, on_log: Any, traceparent: str | None) -> RunResult:
        if self._spark is None:
            return await self._run_with(held, None, on_log, traceparent)
        async with self._spark.for_job(f"{held.job.org}/{held.job.job_id}") as held.spark:
            return await self._run_with(held, held.spark, on_log, traceparent)

    async def _run_with(
        self, held: _Held, spark: Spark | None, on_log: Any, traceparent: str | None
    ) -> RunResult:
        task, job = held.task, held.job
        is_source = job.endless
        builtin = _SPARK_TASK if spark is not None else PYTHON_OPERATORS.get(job.operator)
        entrypoint = builtin or job.config.get("entrypoint", "")
        files = task.input_files or [[] for _ in job.inputs]
        schemas = task.input_schemas or [None for _ in job.inputs]
        existing = task.output_files or [[] for _ in job.outputs]
        code = await self._code.code_of(job.code_bundle)
        sandbox = await self._sandboxes.for_job(network=job.network or job.operator in USES_NETWORK)
        # From here to the run nothing is waited for: the task is told of the server that is shown its folders.
        payload = {
            "scope": msgspec.to_builtins(task.scope) if task.scope is not None else None,
            "kind": task.kind,
            "emission": task.emission,
            "operator": job.operator,
            "platform": (
                {"spark_remote": spark.remote, "bundled": code.bundled} if spark is not None else {}
            ),
            "config": job.config,
            "unique_key": job.unique_key if job.update_strategy == "append" else [],
            "resume": task.resume,
            "execution": _run_of(task),
            "inputs": [
                {
                    "name": i.name,
                    "where": i.where,
                    "select": i.columns,
                    "files": held.local.files.get(number, self._paths(found)),
                    "position": i.position,
                    "kept": {
                        path: f["kept"]
                        for path, f in zip(self._paths(found), found, strict=True)
                        if "kept" in f
                    },
                    "columns": msgspec.to_builtins(columns or []),
                }
                for number, (i, found, columns) in enumerate(zip(job.inputs, files, schemas, strict=True))
            ],
            "views": msgspec.to_builtins(job.views),
            "given": msgspec.to_builtins(job.given),
            "outputs": [
                {
                    "name": o.name,
                    "folder": str(self._store.outputs / prefix),
                    "existing": self._paths(found),
                    "columns": msgspec.to_builtins(o.columns),
                }
                for o, prefix, found in zip(job.outputs, task.write_prefixes, existing, strict=True)
            ],
        }

        async def on_events(events: list[dict[str, Any]]) -> None:
            outcome = await self._emit(held, [msgspec.convert(e, EventOut) for e in events], traceparent)
            if outcome != "ok":
                raise PlatformError(
                    f"task.{outcome}", f"the task's events were not accepted: it is {outcome}"
                )

        return await sandbox.run(
            Assignment(
                task_id=str(task.task_id),
                attempt=task.attempt,
                entrypoint=str(entrypoint),
                payload=payload,
                code_paths=code.paths,
                limits=_limits(self._runtime),
                spark=spark.used if spark is not None else None,
                reuse=None if is_source else held.reuse,
            ),
            on_log=on_log,
            on_events=on_events if is_source else None,
            on_progress=lambda told: setattr(held, "progress", told),
            timeout=None if is_source else job.timeout_seconds,
            grant=self._grant(held, spark, payload["outputs"]) if spark is not None else None,
        )

    def _grant(self, held: _Held, spark: Spark, outputs: Sequence[dict[str, Any]]) -> SparkGrant:
        """The generations that the task reads and writes, and of the latter the folders of this attempt to write."""
        local = [Path(file).parent for files in held.local.files.values() for file in files]
        readable = {_generation(self._store.inputs, file.path) for file in _granted(held.task)}
        readable |= {_generation(self._store.outputs, prefix) for prefix in held.task.write_prefixes}
        return spark.granting([*readable, *local], [Path(output["folder"]) for output in outputs])

    def _paths(self, files: Sequence[dict[str, Any]]) -> list[str]:
        return [str(self._store.inputs / f["path"]) for f in files]

    async def _emit(self, held: _Held, events: list[EventOut], traceparent: str | None) -> str:
        task = held.task
        emission = Emission(
            task.task_id, task.attempt, task.lease_token, events=events, traceparent=traceparent
        )
        answer = await patiently(lambda: self._client.events([held.token], [emission]))
        return answer[0].outcome

    def _manifest(self, held: _Held, index: int, result: RunResult) -> OutputManifest | None:
        """What an output holds for the task's scope; an output that got no rows is committed as empty."""
        scope, ref = held.task.scope, held.job.outputs[index]
        if scope is None:
            return None  # a source's run has no scope of its own; it speaks through events
        found = next((o for o in result.outputs if o.output_index == index), None)
        if found is None:
            return OutputManifest(ref.output_index, ref.dataset_uuid, ref.dataset_version, scope)
        prefix = held.task.write_prefixes[index]
        return OutputManifest(
            output_index=ref.output_index,
            dataset_uuid=ref.dataset_uuid,
            dataset_version=ref.dataset_version,
            scope=scope,
            files=[
                StagedFile(
                    prefix + Path(f.path).name,
                    f.rows,
                    f.bytes,
                    {name: ColumnStatistics(b.min, b.max, b.null_count) for name, b in f.statistics.items()},
                )
                for f in found.files
            ],
            row_count=found.row_count,
            bytes=found.bytes,
            schema_hash=found.schema_hash,
            schema=[ColumnSchema(c.name, c.type, c.nullable) for c in found.columns] or None,
        )

    def _completion(self, held: _Held, status: Any, traceparent: str | None, **fields: Any) -> Completion:
        task = held.task
        return Completion(
            task.task_id,
            task.attempt,
            task.lease_token,
            status=status,
            traceparent=traceparent,
            seen_commit=task.seen_commit,
            **fields,
        )

    # Reporting -------------------------------------------------------------------------------------

    async def _report(self, held: _Held, completion: Completion) -> None:
        try:
            (outcome,) = await self._completions.submit([_Finished(held.token, completion)])
        except (InvalidInput, TooLarge) as refusal:  # what the operator made is part of the report
            if completion.status != "completed":
                raise
            message = f"the dispatcher refused the report: {refusal.message}"
            error = TaskError("operator.result_invalid", message[:_LONGEST_MESSAGE], retryable=False)
            completion = self._completion(
                held, "failed", completion.traceparent, error=error, log=completion.log
            )
            (outcome,) = await self._completions.submit([_Finished(held.token, completion)])
        crash_point("worker.after_complete")
        if outcome.outcome not in ("committed", "canceled") and completion.status != "returned":
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
        """One call at a time. Where many tasks end, the next ones are let gather first: most of what a
        call costs the dispatcher and the database does not depend on how many it reports."""
        if len(finished) < _MANY <= len(self._held):
            await asyncio.sleep(_GATHER_SECONDS)
        tokens = list(dict.fromkeys(f.token for f in finished))
        position = {token: i for i, token in enumerate(tokens)}
        completions = [msgspec.structs.replace(f.completion, token=position[f.token]) for f in finished]
        return await patiently(lambda: self._client.complete(tokens, completions))

    # Staying alive ---------------------------------------------------------------------------------

    async def heartbeat(self, stop: asyncio.Event) -> None:
        """Extends every lease at a third of its length, in one call for all that are due."""
        while not (stop.is_set() and not self._held):
            await asyncio.sleep(0.2)
            now = time.monotonic()
            due = [held for held in self._held.values() if held.next_beat <= now]
            for held in due:
                held.next_beat = now + self._beat_interval(held)
            if due:
                await self._beat(due)

    def _beat_interval(self, held: _Held) -> float:
        return min(self._runtime.heartbeat_seconds, held.job.lease_seconds / 3)

    async def _beat(self, due: Sequence[_Held]) -> None:
        tokens = list(dict.fromkeys(held.token for held in due))
        position = {token: i for i, token in enumerate(tokens)}
        beats = [
            Heartbeat(
                h.task.task_id, h.task.attempt, h.task.lease_token, position[h.token], progress=h.progress
            )
            for h in due
        ]
        try:
            outcomes = await self._client.heartbeat(tokens, beats)
        except TraceplaneError as error:
            telemetry.emit("worker.heartbeat_failed", "warning", code=error.code, message=error.message)
            for held in due:
                held.next_beat = time.monotonic() + 0.5
            return
        for held, outcome in zip(due, outcomes, strict=True):
            self._heed(held, outcome)

    def _heed(self, held: _Held, outcome: HeartbeatOutcome) -> None:
        if outcome.token is not None:
            held.token = outcome.token
        if outcome.outcome != "ok":
            verdict = "canceled" if outcome.outcome == "canceled" else "stale"
            self._interrupt(held, verdict, why=outcome.outcome)

    def _interrupt(self, held: _Held, verdict: str, *, why: str | None = None) -> None:
        """Ends the operator, unless it has ended or is being ended already."""
        if held.run is not None and held.verdict is None and not held.ended:
            held.verdict = verdict
            telemetry.emit("worker.stopping_task", task_id=str(held.task.task_id), why=why or verdict)
            held.run.cancel()


def _rows_lost(held: _Held, result: RunResult) -> TaskError | None:
    """Rows may be deleted where they were compacted from, so none may be missing from what was written."""
    read, written = sum(held.local.rows.values()), sum(output.row_count for output in result.outputs)
    filtered = any(i.where for i in held.job.inputs)
    if held.job.operator != "compact" or not held.local.rows or filtered or read == written:
        return None
    return TaskError("compact.rows_differ", f"{read} rows were read and {written} written")


def _end(log: str) -> str:
    return log[-LONGEST_LOG:]


def _run_of(task: ClaimedTask) -> dict[str, Any] | None:
    """What is told to the operator of a pipeline."""
    if task.execution is None:
        return None
    return {"execution_id": str(task.task_id), **msgspec.to_builtins(task.execution)}


def _limits(runtime: Runtime) -> Limits:
    limits = runtime.limits
    return Limits(
        memory_bytes=limits.memory_mb << 20,
        cpu_seconds=limits.cpu_seconds,
        open_files=limits.open_files,
        processes=limits.processes,
        file_bytes=limits.file_size_mb << 20,
    )


def _granted(task: ClaimedTask) -> list[StoredFile]:
    """Every file that the task was handed, once."""
    lists = (*task.input_files, *task.output_files)
    sizes = {str(file["path"]): int(file["bytes"]) for files in lists for file in files}
    return [StoredFile(path, size) for path, size in sizes.items()]


def _generation(store: Path, path: str) -> Path:
    """Of a file or prefix: `{dataset}/{generation}/…`."""
    dataset, generation, *_ = path.split("/")
    return store / dataset / generation


def _reuse(job: JobPayload, store: StoreOnDisk) -> Reuse | None:
    """What all tasks of one revision of a job may reach; None where operators cannot pass the folders."""
    readable = [store.inputs / str(i.dataset_uuid) / str(i.dataset_version) for i in job.inputs]
    if store.cache is not None:  # an append reads what its output has, which is not below where it writes
        readable += [store.inputs / str(o.dataset_uuid) / str(o.dataset_version) for o in job.outputs]
    writable = [store.outputs / str(o.dataset_uuid) / str(o.dataset_version) / "staging" for o in job.outputs]
    if not all(_make_passable(folder) for folder in (*readable, *writable)):
        return None
    revision = hashlib.sha256(
        msgspec.json.encode([job.operator, job.config, job.views], order="sorted")
    ).hexdigest()
    return Reuse(key=f"{job.org}/{job.job_id}/{revision}", readable=tuple(readable), writable=tuple(writable))


def _make_passable(folder: Path) -> bool:
    try:
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)
        return folder.stat().st_mode & _READABLE_BY_OTHERS == _READABLE_BY_OTHERS
    except OSError:
        return False


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, Answer]) -> Answer | None:
    """The result of `work`, or None when `stop` comes first."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        stopping.cancel()


async def patiently(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeats a call while the dispatcher is away: reports are idempotent, and late ones still count."""
    deadline = time.monotonic() + _COMPLETION_PATIENCE_SECONDS
    pause = 0.1
    while True:
        try:
            return await call()
        except PlatformError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 5.0)
