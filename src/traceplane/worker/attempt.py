"""One attempt of a task: fetches its inputs, runs its operator, stores its outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

from traceplane import telemetry
from traceplane.adapters.object_store import StoredFile
from traceplane.adapters.watched_files import WatchedFiles
from traceplane.crash_points import crash_point
from traceplane.decoding.decoder_pool import Decoders
from traceplane.errors import PlatformError, TraceplaneError
from traceplane.model.hidden_values import HiddenValues
from traceplane.sandbox.assignment import RunResult
from traceplane.sandbox.child_log import TaskLog
from traceplane.wire.tasks import Completion, OutputManifest
from traceplane.worker import report
from traceplane.worker.dispatcher_client import DispatcherClient
from traceplane.worker.held_task import HeldTask, LiveLog
from traceplane.worker.hot_inputs import fetched
from traceplane.worker.long_inputs import with_all_files
from traceplane.worker.sandboxed_operators import lends
from traceplane.worker.store_on_disk import StoreOnDisk, granted_files

_LOG_LINES_KEPT = 20


class Operators(Protocol):
    """Runs the operator of a task whose inputs are on this machine."""

    async def run(self, held: HeldTask, *, log: TaskLog, traceparent: str | None) -> RunResult: ...


class Attempts:
    def __init__(
        self,
        *,
        client: DispatcherClient,
        operators: Operators,
        store: StoreOnDisk,
        decoders: Decoders,
        watched_files: WatchedFiles,
    ) -> None:
        self._client = client
        self._operators = operators
        self._store = store
        self._decoders = decoders
        self._watched_files = watched_files

    async def run(
        self, held: HeldTask, traceparent: str | None, on_ran: Callable[[RunResult], None]
    ) -> Completion | None:
        """The completion to report; None if this worker no longer holds the attempt. `on_ran` is called with the
        operator's result, before outputs are stored."""
        if held.job.secret_denied is not None:
            return report.completion_without_secrets(held, traceparent)
        hidden = HiddenValues(secrets=held.job.secrets.values())
        completion = await self._run(held, traceparent, on_ran, hidden)
        return (
            report.without(hidden, completion) if completion is not None and held.job.secrets else completion
        )

    async def _run(
        self,
        held: HeldTask,
        traceparent: str | None,
        on_ran: Callable[[RunResult], None],
        hidden: HiddenValues,
    ) -> Completion | None:
        log_lines: list[str] = []

        def keep_line(line: str) -> None:
            line = hidden.without(line)
            log_lines.append(line)
            del log_lines[:-_LOG_LINES_KEPT]
            telemetry.emit("task.log", "debug", task_id=str(held.task.task_id), line=line)

        log = TaskLog(keep_line)
        held.log = LiveLog(log, hidden)
        outputs: list[OutputManifest] = []
        try:
            result = await self._run_operator(held, log, traceparent)
            on_ran(result)
            crash_point("worker.after_run")
            if result.error is None:
                outputs = await self._store_outputs(held, result)
        except asyncio.CancelledError:
            if held.interruption is None:
                raise
            if held.interruption == "stale":
                return None
            return report.completion(held, held.interruption, traceparent)
        except TraceplaneError as error:
            return report.completion_of_error(held, error, traceparent)
        if result.error is None:
            crash_point("worker.after_stage")
        return report.completion_of_result(held, result, outputs, log_lines, traceparent)

    async def _run_operator(self, held: HeldTask, log: TaskLog, traceparent: str | None) -> RunResult:
        held.task = await with_all_files(self._client, held.task, lambda: held.token)
        task, job = held.task, held.job
        async with AsyncExitStack() as during:
            lent = self._store.direct is not None and lends(held)
            if self._store.cache is not None and (not lent or task.hot_inputs):
                await during.enter_async_context(self._store.cache.holding(granted_files(task)))
            if task.hot_inputs:
                hot_rows = fetched(
                    self._client,
                    task,
                    job,
                    lambda: held.token,
                    self._store.inputs,
                    self._decoders,
                    self._watched_files,
                )
                held.local = await during.enter_async_context(hot_rows)
            return await self._operators.run(held, log=log, traceparent=traceparent)

    async def _store_outputs(self, held: HeldTask, result: RunResult) -> list[OutputManifest]:
        """Stores the task's outputs in the object store, and returns their manifests."""
        outputs = report.manifests(held, result)
        if self._store.cache is not None and result.outputs:
            kept = [] if report.blocked_by(held, result) else outputs
            stored = {Path(f.path).name for output in result.outputs for f in output.files if f.stored}
            files = [StoredFile(f.path, f.bytes) for output in kept for f in output.files]
            try:
                await self._verify([file for file in files if Path(file.path).name in stored])
                await self._store.cache.upload([file for file in files if Path(file.path).name not in stored])
            finally:
                await self._store.cache.discard(held.task.write_prefixes)
        else:
            await self._verify(
                [StoredFile(f.path, f.bytes) for o in result.outputs for f in o.files if f.stored]
            )
        return outputs

    async def _verify(self, stored: Sequence[StoredFile]) -> None:
        """Files that are in the store already, as the operator's process says."""
        if not stored:
            return
        if self._store.direct is None:
            raise PlatformError(
                "operator.result_invalid",
                "the operator's process reports files that Spark stored, and Spark has no access to the store",
                value=stored[0].path,
            )
        await self._store.direct.verify(stored)
