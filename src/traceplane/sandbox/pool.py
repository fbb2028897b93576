"""Runs operator code where it can reach its own task and nothing else.

    sandbox = await Sandbox.start(SandboxSettings())
    result = await sandbox.run(assignment, timeout=60)
    await sandbox.close()

A fork server (`server_process`) holds a warm interpreter without secrets; each slot of it keeps one child
forked and waiting, which confines itself (`confinement`) when its task arrives and before it imports
the operator. A task gets a fresh child, or one that has run a task of the same job if the assignment
allows it (`Reuse`) and the machine isolates slots by namespaces, and by uid if the worker is root. On every machine
where this starts:

- operator code sees none of the wrapper's memory, environment, descriptors or files, no files that its
  job may not see or that another task is still writing, and leaves nothing behind for another job;
- when `run` returns or is cancelled, no process of the task is left, except the child if it was kept;
- whatever the operator does ends in a `RunResult` with a stable code; `run` raises only if the
  sandbox itself is closed or cannot be restarted.

`start` verifies this with a first operator that tries to break out, and refuses with
`sandbox.too_weak` unless `allow_weak` is set. If the fork server dies, running tasks end with
`sandbox.lost` and it is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import time
from collections.abc import Coroutine, Hashable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from traceplane import telemetry
from traceplane.errors import PlatformError
from traceplane.linux.confine import protect_this_process
from traceplane.model.task_payload import TaskPayload
from traceplane.runtime.locked_folder import LockedFolder
from traceplane.runtime.process import describe
from traceplane.sandbox import confinement, frames, reach, staging
from traceplane.sandbox.assignment import Assignment, RunResult, ServerGrant
from traceplane.sandbox.batch import BATCH_SECONDS, Link, TaskBatch
from traceplane.sandbox.child_log import TaskLog
from traceplane.sandbox.confinement import Isolation
from traceplane.sandbox.disk_work import DiskWork
from traceplane.sandbox.job_queues import JobQueues, Waiting
from traceplane.sandbox.sandbox_settings import SandboxSettings
from traceplane.sandbox.slot import Child, Slot
from traceplane.sandbox.slot_supply import SlotSupply
from traceplane.sandbox.task_run import (
    OnEvents,
    OnProgress,
    TaskRun,
    end_child,
    is_as_it_should_be,
    look_at,
)
from traceplane.sandbox.uid_lease import UidLease

_CHECK_TIMEOUT_SECONDS = 60.0
_STARTS_TRIED = 3
"""For a task whose slot was lost before the operator ran."""
_SHORT_SECONDS = 0.01
_EXPECTED_SECONDS = 0.03
"""Target duration of a batch."""
_LARGEST_BATCH = 32
_BYTES_AT_ONCE = 48 << 10
_REMEMBERED_SECONDS = 60.0


class Sandbox:
    """Made by `start`. Safe to use from many asyncio tasks of one loop."""

    def __init__(self, settings: SandboxSettings, folder: LockedFolder, lease: UidLease | None) -> None:
        self._settings = settings
        self._own_folder = folder
        self.folder = folder.path
        self._lease = lease
        self._supply = SlotSupply(settings, folder.path, self.uids)
        self._queues = JobQueues(settings.slots, self._serve)
        self._disk = DiskWork()
        self._left_files: dict[Hashable, float] = {}
        """Jobs whose tasks write files outside the report, and when that was last seen; oldest first."""
        self._background: set[asyncio.Task[Any]] = set()
        self._numbers = itertools.count(1)

    @property
    def uids(self) -> list[int]:
        """The uids of the slots, if the worker is root."""
        return list(self._lease.uids) if self._lease else []

    @property
    def isolation(self) -> Isolation:
        return self._supply.isolation

    @property
    def server_pid(self) -> int:
        return self._supply.server_pid

    @classmethod
    async def start(cls, settings: SandboxSettings) -> Sandbox:
        """Start the fork server and verify the isolation. Raises PlatformError `sandbox.too_weak`."""
        protect_this_process()
        first, last = settings.uid_range
        has_uids = os.geteuid() == 0 and confinement.UID_SLOTS not in settings.disabled_layers
        lease = UidLease(first, last, settings.slots) if has_uids else None
        folder = LockedFolder(settings.folder, "traceplane-sandbox-", ("runs", "staging"))
        sandbox = cls(settings, folder, lease)
        try:
            await sandbox._supply.start()
            await sandbox._check_strength()
            await asyncio.to_thread(folder.remove_abandoned)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def run(
        self,
        assignment: Assignment,
        *,
        log: TaskLog | None = None,
        on_events: OnEvents | None = None,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
        grant: ServerGrant | None = None,
    ) -> RunResult:
        """Run one task; the timeout starts when a slot is free. `grant` is what its Spark server sees of it.

        With `on_events` the task is a source that emits while it runs: each batch is passed on, and
        the operator's `emit` returns once the callback has.
        """
        waiting = Waiting(assignment, log or TaskLog(), on_progress, timeout, time.monotonic_ns(), _future())
        job = reach.job_to_share(assignment, self.isolation) if on_events is None else None
        if job is not None and grant is None:
            return await self._queues.run(job, waiting)
        return await self._run_alone(waiting, job, job, on_events, grant)

    async def _run_alone(
        self,
        waiting: Waiting,
        job: Hashable,
        child_job: Hashable,
        on_events: OnEvents | None = None,
        grant: ServerGrant | None = None,
    ) -> RunResult:
        """In a child of this job, or in a fresh one."""
        while True:
            slot, child = await self._supply.take(child_job)
            try:
                result, folders = await self._run_in(slot, child, job, waiting, on_events, grant)
            finally:
                slot.release()
            if not self._is_to_be_tried_again(waiting, result):
                break
            child_job = None
            await self._disk.until_removed()  # the retry writes to the same folders
        self._disk.settle([(waiting, result, folders)])
        return await waiting.result

    def _is_to_be_tried_again(self, waiting: Waiting, result: RunResult) -> bool:
        """In a fresh child: if one used child failed, others may fail for the same reason."""
        waiting.tries += 1
        return waiting.tries < _STARTS_TRIED and _lost_before_start(result)

    async def _run_in(
        self,
        slot: Slot,
        child: Child,
        job: Hashable,
        waiting: Waiting,
        on_events: OnEvents | None = None,
        grant: ServerGrant | None = None,
    ) -> tuple[RunResult, staging.TaskFolders]:
        assignment = waiting.assignment
        outputs = self._output_folders(assignment, real=job is not None)
        areas = reach.areas(child, assignment, outputs) if job is not None and slot.uid is None else None
        folders = staging.TaskFolders(child.temp, outputs, slot.uid, assignment.spark, areas)
        try:
            child.temp.make()
            folders.make()
            assign = reach.frame(
                assignment,
                folders,
                streaming=on_events is not None,
                for_job=job is not None,
                keep=job is not None and child.tasks + 1 < self._settings.tasks_per_child,
            )
            link = Link(waiting, assign, frames.encode(assign), folders)
        except BaseException:
            slot.kill(child, 0.0)
            child.close()
            self._disk.remove(folders, outputs=True)
            raise
        result = await self._follow(slot, child, job, link, waiting.timeout, on_events, grant)
        if folders.left_files:
            self._note_left_files(job)
        elif result.start_seconds is not None:
            child.seconds_per_task = result.run_seconds - result.start_seconds
        return result, folders

    async def _follow(
        self,
        slot: Slot,
        child: Child,
        job: Hashable,
        link: Link,
        timeout: float | None,
        on_events: OnEvents | None = None,
        grant: ServerGrant | None = None,
    ) -> RunResult:
        """Follow a task to its end."""
        waiting, folders = link.waiting, link.folders
        execution = TaskRun(
            slot,
            child,
            link.assign,
            link.encoded,
            folders,
            began_ns=waiting.began_ns,
            grace_seconds=self._settings.grace_seconds,
            log=waiting.log,
            on_events=on_events,
            on_progress=waiting.on_progress,
            grant=grant,
            next_waits=lambda: self._supply.is_awaited(job) or self._queues.waits(job),
            started_ns=link.started_ns,
            is_followed=link.is_followed,
        )
        went_well = False
        try:
            async with grant or contextlib.nullcontext():
                result = await execution.run(timeout)
            went_well = result.status == "ok"
            return result
        finally:
            if execution.kept:
                child.job = job
                child.tasks += 1
                slot.keep(child)
                if not went_well:
                    folders.withdraw()
            else:
                self._disk.remove(folders, outputs=not went_well)
                if child.areas:
                    self._disk.remove_later(child.remove_areas)

    # --- tasks of one job -------------------------------------------------------------------------

    async def _serve(self, job: Hashable) -> None:
        """Run waiting tasks of a job, as many as one child gets at once."""
        slot, child = await self._supply.take(job)
        tasks = self._queues.take(job, self._batch_size(job, child))
        try:
            if not tasks:  # another call took them in the meantime
                slot.keep(child)
            elif len(tasks) == 1:
                await self._attend(job, tasks[0], self._run_in(slot, child, job, tasks[0]))
            else:
                await self._run_together(slot, child, job, tasks)
        except Exception as error:
            telemetry.emit("sandbox.batch_failed", "error", **describe(error))
            slot.kill(child, 0.0)
            child.close()
            for waiting in tasks:
                waiting.fail(error)
        finally:
            slot.release()

    def _batch_size(self, job: Hashable, child: Child) -> int:
        """More than one if they are short and write no files; files require an inspection of the child."""
        seconds = child.seconds_per_task
        if seconds is None or seconds > _SHORT_SECONDS or child.job is None:
            return 1
        if time.monotonic() - self._left_files.get(job, -math.inf) < _REMEMBERED_SECONDS:
            return 1
        most = min(_LARGEST_BATCH, int(_EXPECTED_SECONDS / max(seconds, 1e-4)))
        return max(1, min(most, self._queues.share(job), self._settings.tasks_per_child - 1 - child.tasks))

    async def _attend(
        self,
        job: Hashable,
        waiting: Waiting,
        run: Coroutine[Any, Any, tuple[RunResult, staging.TaskFolders]],
    ) -> None:
        """Deliver the task's result to its caller."""
        running = asyncio.create_task(run)
        await asyncio.sleep(
            0
        )  # it must have started: if it were canceled before, nothing would end its child
        waiting.running = running
        if waiting.canceled:
            running.cancel()
        try:
            result, folders = await running
        except (Exception, asyncio.CancelledError) as error:
            waiting.fail(error)
            return
        if self._is_to_be_tried_again(waiting, result):
            self._keep(asyncio.create_task(self._try_again(waiting, job)))
        else:
            self._disk.settle([(waiting, result, folders)])

    async def _try_again(self, waiting: Waiting, job: Hashable) -> None:
        await self._disk.until_removed()
        waiting.running = asyncio.create_task(self._run_alone(waiting, job, None))
        if waiting.canceled:
            waiting.running.cancel()
        try:
            await waiting.running
        except (Exception, asyncio.CancelledError) as error:
            waiting.fail(error)

    async def _run_together(self, slot: Slot, child: Child, job: Hashable, tasks: Sequence[Waiting]) -> None:
        links = self._links(slot, child, tasks)
        self._queues.wait_again(job, tasks[len(links) :])
        if len(links) == 1:
            await self._attend(job, tasks[0], self._run_in(slot, child, job, tasks[0]))
            return
        batch = TaskBatch(
            child,
            links,
            lambda ended: self._disk.settle((link.waiting, run, link.folders) for link, run in ended),
        )
        since = time.monotonic()
        all_ended = await batch.run()
        child.tasks += batch.done
        if all_ended:
            child.seconds_per_task = (time.monotonic() - since) / len(links)
            await self._keep_or_end(slot, child, job, links[-1].folders)
            return
        rest = [link.waiting for link in batch.rest]
        if batch.was_refused:
            await self._end(slot, child, links[-1].folders)
            self._queues.wait_again(job, [link.waiting for link in links])
            return
        if batch.has_passed:
            self._queues.wait_again(job, [batch.current.waiting, *rest])
            await self._keep_or_end(slot, child, job, links[-1].folders)
            return
        if batch.is_late:
            self._queues.wait_again(job, rest)
            rest = []
        batch.current.is_followed = bool(batch.rest)
        try:
            await self._attend(job, batch.current.waiting, self._go_on(slot, child, job, batch.current))
        finally:
            self._queues.wait_again(job, rest)

    def _links(self, slot: Slot, child: Child, tasks: Sequence[Waiting]) -> list[Link]:
        """Links for as many tasks as fit into the channel, so that sending them never blocks."""
        child.batches += 1
        ends_ns = time.monotonic_ns() + int(BATCH_SECONDS * 1e9)
        links: list[Link] = []
        size = 0
        for waiting in tasks:
            assignment = waiting.assignment
            outputs = self._output_folders(assignment, real=True)
            areas = reach.areas(child, assignment, outputs)
            folders = staging.TaskFolders(child.temp, outputs, slot.uid, None, areas)
            if not links:
                folders.make()
            assign = reach.frame(assignment, folders, streaming=False, for_job=True, keep=True)
            assign = msgspec.structs.replace(
                assign, batch=child.batches, leads=not links, batch_ends_ns=ends_ns
            )
            encoded = frames.encode(assign)
            size += len(encoded)
            if links and size > _BYTES_AT_ONCE:
                break
            links.append(Link(waiting, assign, encoded, folders))
        return links

    async def _go_on(
        self, slot: Slot, child: Child, job: Hashable, link: Link
    ) -> tuple[RunResult, staging.TaskFolders]:
        """Continue with a task that was sent to the child in a batch."""
        link.encoded = b""
        timeout = link.waiting.timeout
        if timeout is not None:
            timeout = max(0.0, timeout - (asyncio.get_running_loop().time() - link.begun))
        result = await self._follow(slot, child, job, link, timeout)
        if link.folders.left_files:
            self._note_left_files(job)
        child.seconds_per_task = None
        return result, link.folders

    async def _keep_or_end(
        self, slot: Slot, child: Child, job: Hashable, folders: staging.TaskFolders
    ) -> None:
        standing = await look_at(slot, child, self._queues.waits(job))
        if (
            standing is not None
            and is_as_it_should_be(standing)
            and child.is_silent()
            and folders.seal_empty(())
            and (child.temp.is_empty() or await asyncio.to_thread(child.temp.clear))
        ):
            slot.keep(child)
        else:
            await self._end(slot, child, folders)

    async def _end(self, slot: Slot, child: Child, folders: staging.TaskFolders) -> None:
        await end_child(slot, child, 0.0)
        child.close()
        self._disk.remove(folders, outputs=False)

    def _note_left_files(self, job: Hashable) -> None:
        now = time.monotonic()
        self._left_files.pop(job, None)
        self._left_files[job] = now
        while now - self._left_files[oldest := next(iter(self._left_files))] > _REMEMBERED_SECONDS:
            del self._left_files[oldest]

    async def close(self) -> None:
        """End every task, slot and the fork server; a `run` in flight returns `sandbox.lost`."""
        await self._supply.close()
        await self._queues.close()
        while self._background:
            await asyncio.wait(self._background)
        await self._disk.close()
        if self._lease is not None:
            self._lease.release()
        await asyncio.to_thread(self._own_folder.remove)

    async def _check_strength(self) -> None:
        canary = self.folder / "canary"
        canary.write_text("readable by every user of this machine, but not by an operator\n")
        canary.chmod(0o644)
        forbidden = [str(canary), f"/proc/{os.getpid()}/environ", f"/proc/{os.getpid()}/mem"]
        check = Assignment(
            task_id="selfcheck",
            attempt=1,
            entrypoint="traceplane.sandbox.selfcheck:look_around",
            payload=TaskPayload(config={"forbidden": forbidden}),
        )
        result = await self.run(check, timeout=_CHECK_TIMEOUT_SECONDS)
        if result.error is None:
            return
        if result.error.code != "sandbox.breached":
            raise PlatformError("sandbox.not_started", "the first task failed", value=result.error.message)
        self._settings.refuse_weakness(f"a task can read {result.error.message}")

    def _output_folders(self, assignment: Assignment, *, real: bool) -> dict[str, Path]:
        if not assignment.payload.outputs:
            return {}
        below = assignment.staging or self.folder / "staging" / str(next(self._numbers))
        outputs: dict[str, Path] = {}
        for index, declared in enumerate(assignment.payload.outputs):
            folder = Path(declared.folder or below / str(index))
            outputs[declared.name] = folder if real else folder.parent.resolve() / folder.name
        return outputs

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _future() -> asyncio.Future[RunResult]:
    return asyncio.get_running_loop().create_future()


def _lost_before_start(result: RunResult) -> bool:
    return result.error is not None and result.error.code == "sandbox.lost" and result.start_seconds is None
