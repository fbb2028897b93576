"""Runs operator code where it can reach its own task and nothing else.

    sandbox = await Sandbox.start(SandboxSettings())
    result = await sandbox.run(assignment, timeout=60)
    await sandbox.close()

A fork server (`fork_server_main`) holds a warm interpreter without secrets; each slot of it keeps one child
forked and waiting, which confines itself (`confinement`) when its task arrives and before it imports
the operator. A task gets a fresh child, or one that has run a task of the same job if the assignment
allows it (`Reuse`) and the machine keeps slots apart by namespaces, and by uid if the worker is root. What holds on
every machine this starts on:

- operator code sees none of the wrapper's memory, environment, descriptors or files, no files that its
  job may not see or that another task is still writing, and leaves nothing behind for another job;
- when `run` returns or is cancelled, no process of the task is left, but for the child if it was kept;
- whatever the operator does ends in a `RunResult` with a stable code; `run` raises only if the
  sandbox itself is closed or cannot be restarted.

`start` measures this with a first operator that tries to break out, and refuses with
`sandbox.too_weak` unless `allow_weak` is set. If the fork server dies, running tasks end with
`sandbox.lost` and it is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from traceplane import telemetry
from traceplane.adapters.locked_folder import LockedFolder
from traceplane.errors import InvalidInput, PlatformError
from traceplane.linux import plain_files
from traceplane.linux.operator_ids import UID_RANGE
from traceplane.runtime.process import describe
from traceplane.sandbox import confinement, frames, private_root, staging
from traceplane.sandbox.assignment import Assignment, Reuse, RunResult, ServerGrant
from traceplane.sandbox.batch import BATCH_SECONDS, Batch, Link
from traceplane.sandbox.confinement import Isolation, protect_this_process
from traceplane.sandbox.execution import (
    Execution,
    OnEvents,
    OnProgress,
    end_child,
    is_as_it_should_be,
    look_at,
)
from traceplane.sandbox.fork_server import ForkServer
from traceplane.sandbox.frames import Assign, Configure, Failure, NetworkAccess, ReachNothing
from traceplane.sandbox.idle_slots import IdleSlots
from traceplane.sandbox.job_queues import JobQueues, Waiting
from traceplane.sandbox.private_root import is_within
from traceplane.sandbox.slot import Child, OnLog, Slot
from traceplane.sandbox.uid_lease import UidLease

_CHECK_TIMEOUT_SECONDS = 60.0
_RESTARTS_ALLOWED = 5
_STARTS_TRIED = 3
"""For a task whose slot vanished before the operator ran."""
_RESTART_WINDOW_SECONDS = 30.0
_TEND_SECONDS = 1.0
_INLINE_BYTES = 64 << 10
_SHORT_SECONDS = 0.01
_EXPECTED_SECONDS = 0.03
"""That a batch takes."""
_LARGEST_BATCH = 32
_BYTES_AT_ONCE = 48 << 10
_REMEMBERED_SECONDS = 60.0
_WRITTEN_TOGETHER = 4
_WRITERS = 16
"""Threads that wait for the disk: it flushes the files of many tasks at once, or one by one as slowly."""


NO_NETWORK = ReachNothing()


@dataclass(frozen=True, kw_only=True)
class SandboxSettings:
    slots: int = 8
    """How many tasks run at once; more wait."""
    folder: Path | None = None
    """For temporary files, and for outputs without a folder of their own; unset: a new one below /tmp."""
    network: NetworkAccess = NO_NETWORK
    private_network: tuple[int, ...] = ()
    """Descriptors of the network namespace in which tasks find their Spark server."""
    hidden: tuple[Path, ...] = ()
    """Never readable, not even below a code path: the platform's home, the object store. Inputs and outputs
    of a task that lie there are shown to that task alone."""
    allow_weak: bool = False
    """Run even where tasks cannot be kept apart; for development on other systems than Linux."""
    uid_range: tuple[int, int] = UID_RANGE
    """When started by root, each slot runs as one of these."""
    preload: tuple[str, ...] = ("pyarrow.parquet",)
    """Imported once by the fork server, so that operators get them for free."""
    grace_seconds: float = 0.5
    """Between the polite signal and the kill, on timeout and cancel."""
    tasks_per_child: int = 1000
    """How many tasks of one job a child may run, where it may run more than one."""
    child_seconds: float = 600.0
    """How old a child may be that is given another task."""
    disabled_layers: frozenset[str] = frozenset()
    """Layers of isolation not to use although they are there; see docs/concepts/sandbox.md."""

    def __post_init__(self) -> None:
        unknown = self.disabled_layers - set(confinement.OPTIONAL_LAYERS)
        if unknown:
            raise InvalidInput("sandbox.unknown_layer", "there is no such layer", value=sorted(unknown)[0])
        if self.slots < 1:
            raise InvalidInput("sandbox.no_slots", "a sandbox needs at least one slot", value=self.slots)


class Sandbox:
    """Made by `start`. Safe to use from many asyncio tasks of one loop."""

    def __init__(self, settings: SandboxSettings, folder: LockedFolder, lease: UidLease | None) -> None:
        self._settings = settings
        self._own_folder = folder
        self.folder = folder.path
        self._lease = lease
        self._server: ForkServer | None = None
        self._slots: dict[int, Slot] = {}
        self._idle = IdleSlots(settings.child_seconds)
        self._queues = JobQueues(settings.slots, self._serve)
        self._left_files: dict[Hashable, float] = {}
        """Jobs whose tasks leave files that do not come with the report, and when that was seen last."""
        self._background: set[asyncio.Task[Any]] = set()
        self._watchers: list[asyncio.Task[None]] = []
        self._removals: list[Callable[[], None]] = []
        self._removing: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._deaths: list[float] = []
        self._unavailable: PlatformError | None = None
        self._writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="outputs")
        self.isolation = Isolation((), {})

    @property
    def uids(self) -> list[int]:
        """What the slots run as, when started by root."""
        return list(self._lease.uids) if self._lease else []

    @property
    def server_pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    @classmethod
    async def start(cls, settings: SandboxSettings) -> Sandbox:
        """Start the fork server and prove the isolation. Raises PlatformError `sandbox.too_weak`."""
        if sys.platform != "linux" and not settings.allow_weak:
            raise _too_weak(f"operators can be isolated on Linux only, and this is {sys.platform}")
        protect_this_process()
        first, last = settings.uid_range
        lease = UidLease(first, last, settings.slots) if _uses_uids(settings) else None
        folder = LockedFolder(settings.folder, "traceplane-sandbox-", ("runs", "staging"))
        sandbox = cls(settings, folder, lease)
        try:
            await sandbox._start_server()
            sandbox._watchers = [
                asyncio.create_task(sandbox._keep_server_running()),
                asyncio.create_task(sandbox._tend_idle_children()),
            ]
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
        on_log: OnLog | None = None,
        on_events: OnEvents | None = None,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
        grant: ServerGrant | None = None,
    ) -> RunResult:
        """Run one task; the timeout begins when a slot is free. `grant` is what its Spark server sees of it.

        With `on_events` the task is a source that emits while it runs: each batch is handed over, and
        the operator's `emit` returns once the callback has.
        """
        waiting = Waiting(assignment, on_log, on_progress, timeout, time.monotonic_ns(), _future())
        job = self._job_to_reuse(assignment) if on_events is None else None
        if job is not None and grant is None:
            return await self._queues.run(job, waiting)
        return await self._run_alone(waiting, job, job, on_events, grant)

    async def _run_alone(
        self,
        waiting: Waiting,
        job: Hashable,
        wanted: Hashable,
        on_events: OnEvents | None = None,
        grant: ServerGrant | None = None,
    ) -> RunResult:
        """In a child of the job that is wanted, or in a fresh one."""
        while True:
            slot, child = await self._take_child(wanted)
            try:
                result, folders = await self._run_in(slot, child, job, waiting, on_events, grant)
            finally:
                slot.release()
            if not self._is_to_be_tried_again(waiting, result):
                break
            wanted = None
            await self._until_removed()
        self._settle([(waiting, result, folders)])
        return await waiting.result

    def _is_to_be_tried_again(self, waiting: Waiting, result: RunResult) -> bool:
        """In a fresh child: if one used child was no good, others may be so for the same reason."""
        waiting.tries += 1
        return waiting.tries < _STARTS_TRIED and _lost_before_start(result)

    async def _until_removed(self) -> None:
        """The next try writes to the same folders."""
        if self._removing is not None:
            await asyncio.wait((self._removing,))

    def _settle(self, ended: Iterable[tuple[Waiting, RunResult, staging.TaskFolders]]) -> None:
        """Tell those who wait for them, once what came with the reports is on disk."""
        unwritten = []
        for waiting, result, folders in ended:
            if result.status == "ok" and folders.to_be_written and not waiting.canceled:
                unwritten.append((waiting, result, folders))
            else:
                waiting.settle(result)
        for first in range(0, len(unwritten), _WRITTEN_TOGETHER):
            part = unwritten[first : first + _WRITTEN_TOGETHER]
            writing = asyncio.get_running_loop().run_in_executor(
                self._writers, _write_out, [folders for _, _, folders in part]
            )
            writing.add_done_callback(functools.partial(_on_written, part))

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
        areas = _areas(child, assignment, outputs) if job is not None and slot.uid is None else None
        folders = staging.TaskFolders(child.temp, outputs, slot.uid, assignment.spark, areas)
        try:
            child.temp.make()
            folders.make()
            assign = _as_frame(
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
            self._remove(folders, outputs=True)
            raise
        result = await self._follow(slot, child, job, link, waiting.timeout, on_events, grant)
        if folders.left_files:
            self._left_files[job] = time.monotonic()
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
        """A task to its end, whatever that is."""
        waiting, folders = link.waiting, link.folders
        execution = Execution(
            slot,
            child,
            link.assign,
            link.encoded,
            folders,
            began_ns=waiting.began_ns,
            grace_seconds=self._settings.grace_seconds,
            on_log=waiting.on_log,
            on_events=on_events,
            on_progress=waiting.on_progress,
            grant=grant,
            next_waits=lambda: self._idle.waits(job) or self._queues.waits(job),
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
                self._remove(folders, outputs=not went_well)
                if child.areas:
                    self._remove_later(child.remove_areas)

    # --- tasks of one job -------------------------------------------------------------------------

    async def _serve(self, job: Hashable) -> None:
        """Tasks of a job that wait, as many as one child is to be handed at once."""
        slot, child = await self._take_child(job)
        tasks = self._queues.take(job, self._batch_size(job, child))
        try:
            if not tasks:  # somebody else took them meanwhile
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
        """More than one if they are short; and if they do not write files, for which a child has to be looked at."""
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
        """Tell whoever waits for it how it ended."""
        running = asyncio.create_task(run)
        await asyncio.sleep(0)  # it has to have begun: if it were canceled before, nobody would end its child
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
            self._settle([(waiting, result, folders)])

    async def _try_again(self, waiting: Waiting, job: Hashable) -> None:
        await self._until_removed()
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
        batch = Batch(
            child, links, lambda ended: self._settle((link.waiting, run, link.folders) for link, run in ended)
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
        """Of as many as fit into the channel, so that nobody has to wait while they are handed over."""
        child.batches += 1
        ends_ns = time.monotonic_ns() + int(BATCH_SECONDS * 1e9)
        links: list[Link] = []
        size = 0
        for waiting in tasks:
            assignment = waiting.assignment
            outputs = self._output_folders(assignment, real=True)
            areas = _areas(child, assignment, outputs)
            folders = staging.TaskFolders(child.temp, outputs, slot.uid, None, areas)
            if not links:
                folders.make()
            assign = _as_frame(assignment, folders, streaming=False, for_job=True, keep=True)
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
        """With a task that the child was handed in a batch."""
        link.encoded = b""
        timeout = link.waiting.timeout
        if timeout is not None:
            timeout = max(0.0, timeout - (asyncio.get_running_loop().time() - link.begun))
        result = await self._follow(slot, child, job, link, timeout)
        if link.folders.left_files:
            self._left_files[job] = time.monotonic()
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
        self._remove(folders, outputs=False)

    async def close(self) -> None:
        """End every task, slot and the fork server; a `run` still under way returns `sandbox.lost`."""
        self._unavailable = PlatformError("sandbox.closed", "the sandbox is closed")
        self._idle.wake_all()
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await asyncio.gather(*(slot.end() for slot in list(self._slots.values())))
        self._slots.clear()
        if self._server is not None:
            await self._server.stop()
        await self._queues.close()
        while self._background:
            await asyncio.wait(self._background)
        self._writers.shutdown(wait=False)
        if self._lease is not None:
            self._lease.release()
        await asyncio.to_thread(self._own_folder.remove)

    # --- children ---------------------------------------------------------------------------------

    def _job_to_reuse(self, assignment: Assignment) -> Hashable:
        """All that a child which runs several tasks is confined to; None if each needs its own."""
        reuse = assignment.reuse
        if reuse is None or assignment.limits.cpu_seconds is not None:  # the kernel counts that by process
            return None
        if not self.isolation.has(confinement.NAMESPACES):
            return None
        own_uid = self.isolation.has(confinement.UID_SLOTS)
        if not own_uid and (
            os.geteuid() == 0 or assignment.spark is not None or _reads_what_it_writes(reuse)
        ):
            return None
        if not _lies_within(assignment.payload, reuse, reads_outputs=own_uid):
            return None
        return (reuse, assignment.entrypoint, assignment.code_paths, assignment.limits, assignment.spark)

    async def _take_child(self, job: Hashable) -> tuple[Slot, Child]:
        while True:
            if self._unavailable is not None:
                raise self._unavailable
            found = await self._idle.take(job)
            if found is not None:
                return found

    async def _tend_idle_children(self) -> None:
        while True:
            await asyncio.sleep(_TEND_SECONDS)
            self._idle.tend()
            now = time.monotonic()
            self._left_files = {
                job: seen for job, seen in self._left_files.items() if now - seen < _REMEMBERED_SECONDS
            }

    def _open_slot(self, index: int) -> None:
        assert self._server is not None
        uid = self._lease.uids[index] if self._lease and self.isolation.has(confinement.UID_SLOTS) else None
        self._slots[index] = Slot(
            index,
            uid,
            self._server.open_slot(index, uid),
            make_temp=functools.partial(self._make_temp, uid),
            on_ready=self._idle.add,
            on_lost=self._on_slot_lost,
        )

    def _on_slot_lost(self, slot: Slot) -> None:
        self._idle.forget(slot)
        if self._slots.get(slot.index) is not slot:
            return
        del self._slots[slot.index]
        if self._unavailable is None:
            telemetry.emit("sandbox.slot_lost", "warning", slot=slot.index)
            with contextlib.suppress(OSError):  # the fork server is gone too; its watcher starts another
                self._open_slot(slot.index)

    # --- the fork server --------------------------------------------------------------------------

    async def _start_server(self) -> None:
        settings = self._settings
        configure = Configure(
            folder=str(self.folder),
            network=settings.network,
            uids=self.uids,
            disabled=sorted(settings.disabled_layers),
            preload=list(settings.preload),
            hidden=[str(self.folder), *(os.path.realpath(path) for path in settings.hidden)],
        )
        self._server = await ForkServer.start(configure, settings.private_network)
        self.isolation = self._server.isolation
        self._refuse_weakness(self.isolation.weakness())
        for index in range(settings.slots):
            self._open_slot(index)

    async def _keep_server_running(self) -> None:
        while self._unavailable is None and self._server is not None:
            code = await self._server.wait()
            telemetry.emit("sandbox.server_died", "error", exit_code=code)
            now = time.monotonic()
            self._deaths = [t for t in self._deaths if now - t < _RESTART_WINDOW_SECONDS] + [now]
            try:
                if len(self._deaths) > _RESTARTS_ALLOWED:
                    value = f"exit code {code}"
                    raise PlatformError("sandbox.unavailable", "the fork server keeps dying", value=value)
                await self._replace_server(self._server)
            except PlatformError as error:
                self._unavailable = error
                self._idle.wake_all()

    async def _replace_server(self, dead: ForkServer) -> None:
        """Its slots end with it; wait for that, so that their uids are free of processes."""
        lost, self._slots = list(self._slots.values()), {}
        for slot in lost:
            self._idle.forget(slot)
        await asyncio.gather(*(slot.end() for slot in lost))
        await dead.stop()
        await self._start_server()

    async def _check_strength(self) -> None:
        canary = self.folder / "canary"
        canary.write_text("readable by every user of this machine, but not by an operator\n")
        canary.chmod(0o644)
        forbidden = [str(canary)]
        if sys.platform == "linux":
            forbidden += [f"/proc/{os.getpid()}/environ", f"/proc/{os.getpid()}/mem"]
        check = Assignment(
            task_id="selfcheck",
            attempt=1,
            entrypoint="traceplane.sandbox.selfcheck:look_around",
            payload={"config": {"forbidden": forbidden}},
        )
        result = await self.run(check, timeout=_CHECK_TIMEOUT_SECONDS)
        if result.error is None:
            return
        if result.error.code != "sandbox.breached":
            raise PlatformError("sandbox.not_started", "the first task failed", value=result.error.message)
        self._refuse_weakness(f"a task can read {result.error.message}")

    def _refuse_weakness(self, weakness: str | None) -> None:
        if weakness is None:
            return
        if not self._settings.allow_weak:
            raise _too_weak(weakness)
        telemetry.emit("sandbox.weak", "warning", reason=weakness)

    # --- folders and background work --------------------------------------------------------------

    def _make_temp(self, uid: int | None) -> staging.TempFolder:
        return staging.TempFolder(self.folder / "runs" / str(next(self._numbers)), uid)

    def _output_folders(self, assignment: Assignment, *, real: bool) -> dict[str, Path]:
        entries = assignment.payload.get("outputs") or ()
        if not entries:
            return {}
        below = assignment.staging or self.folder / "staging" / str(next(self._numbers))
        outputs: dict[str, Path] = {}
        for index, entry in enumerate(entries):
            folder = Path(entry.get("folder") or below / str(index))
            outputs[entry["name"]] = folder if real else folder.parent.resolve() / folder.name
        return outputs

    def _remove(self, folders: staging.TaskFolders, *, outputs: bool) -> None:
        """What takes time, in another thread, and for many runs at once when many have ended."""
        if outputs:
            folders.withdraw()
        elif folders.remove_if_empty():
            return
        self._remove_later(functools.partial(folders.remove, outputs=outputs))

    def _remove_later(self, removal: Callable[[], None]) -> None:
        self._removals.append(removal)
        if len(self._removals) == 1:
            self._removing = asyncio.create_task(self._remove_pending())
            self._keep(self._removing)

    async def _remove_pending(self) -> None:
        while self._removals:
            batch = list(self._removals)
            await asyncio.to_thread(_call_each, batch)
            del self._removals[: len(batch)]

    def _keep(self, task: asyncio.Task[Any]) -> None:
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _call_each(acts: list[Callable[[], None]]) -> None:
    for act in acts:
        act()


def _future() -> asyncio.Future[RunResult]:
    return asyncio.get_running_loop().create_future()


def _write_out(tasks: Sequence[staging.TaskFolders]) -> list[Exception | None]:
    """What went wrong with each, if anything did."""
    problems: list[Exception | None] = []
    for folders in tasks:
        try:
            folders.write_out()
            problems.append(None)
        except Exception as problem:  # whatever it is, somebody waits for this task's end
            problems.append(problem)
    return problems


def _on_written(
    part: Sequence[tuple[Waiting, RunResult, staging.TaskFolders]],
    writing: asyncio.Future[list[Exception | None]],
) -> None:
    for (waiting, result, _), problem in zip(part, writing.result(), strict=True):
        if problem is not None:
            message = f"the outputs could not be kept: {problem}"
            result = _failed(result, Failure(code="sandbox.failed", message=message))
        waiting.settle(result)


def _lost_before_start(result: RunResult) -> bool:
    return result.error is not None and result.error.code == "sandbox.lost" and result.start_seconds is None


def _failed(result: RunResult, error: Failure) -> RunResult:
    return replace(result, status="failed", outputs=(), events=(), error=error)


def _areas(child: Child, assignment: Assignment, outputs: Mapping[str, Path]) -> dict[str, Path]:
    """Where a child that has the wrapper's own uid, or is handed several tasks at once, writes as long as it lives:
    beside its first task's folders and named after that attempt, so that whoever collects the leavings of attempts
    finds those of a killed worker's too. No other child is ever given it, not even one for the same attempt: what it
    wrote there would be within this one's reach after it was moved to its place."""
    if child.job is None or not child.areas:
        mark = secrets.token_hex(8)
        child.areas = {name: folder.with_name(f"{folder.name}-{mark}") for name, folder in outputs.items()}
        below_temp = [*assignment.code_paths, *child.areas.values(), *private_root.interpreter_folders()]
        if assignment.reuse is not None:
            below_temp += assignment.reuse.readable
        parts = [str(path).split("/") for path in below_temp]
        child.temp.mount_points = frozenset(
            path[2] for path in parts if len(path) > 2 and f"/{path[1]}" == private_root.TEMP
        )
    return child.areas


def _too_weak(reason: str) -> PlatformError:
    return PlatformError(
        "sandbox.too_weak",
        f"operator code cannot be isolated well enough here: {reason}",
        next_step="see docs/concepts/sandbox.md; allow_weak_sandbox is for where all operator code is trusted",
    )


def _uses_uids(settings: SandboxSettings) -> bool:
    return (
        sys.platform == "linux"
        and os.geteuid() == 0
        and confinement.UID_SLOTS not in settings.disabled_layers
    )


def _as_frame(
    assignment: Assignment, folders: staging.TaskFolders, *, streaming: bool, for_job: bool, keep: bool
) -> Assign:
    payload = dict(assignment.payload)
    outputs = {name: str(folder) for name, folder in folders.for_child.items()}
    if for_job and assignment.reuse is not None:
        readable = [str(path) for path in assignment.reuse.readable]
        writable = [str(path) for path in assignment.reuse.writable]
        if folders.for_child is not folders.outputs:
            writable = list(outputs.values())
        code_paths = [str(path) for path in assignment.code_paths]
    else:
        code_paths = [os.path.realpath(path) for path in assignment.code_paths]
        payload["inputs"] = [_with_paths(entry) for entry in payload.get("inputs") or ()]
        readable = [path for entry in payload["inputs"] for path in entry["files"]]
        readable += [f for entry in payload.get("outputs") or () for f in entry.get("existing") or ()]
        _refuse_links(readable)
        writable = list(outputs.values())
    return Assign(
        task_id=assignment.task_id,
        attempt=assignment.attempt,
        entrypoint=assignment.entrypoint,
        payload=payload,
        code_paths=code_paths,
        readable=readable,
        writable=writable,
        output_folders=outputs,
        temp=str(folders.temp),
        limits=assignment.limits,
        streaming=streaming,
        keep=keep,
        spark_port=assignment.spark.port if assignment.spark is not None else None,
        inline_bytes=_INLINE_BYTES if for_job else 0,
    )


def _lies_within(payload: Mapping[str, Any], reuse: Reuse, *, reads_outputs: bool) -> bool:
    """Whether the inputs and outputs of a task are among those of its job, and whether it may read the latter."""
    readable = [str(folder) for folder in (*reuse.readable, *(reuse.writable if reads_outputs else ()))]
    writable = [str(folder) for folder in reuse.writable]
    files = [file for entry in payload.get("inputs") or () for file in entry.get("files") or ()]
    files += [file for entry in payload.get("outputs") or () for file in entry.get("existing") or ()]
    folders = [entry.get("folder") for entry in payload.get("outputs") or ()]
    return all(
        isinstance(file, str) and any(is_within(file, folder) for folder in readable) for file in files
    ) and all(
        isinstance(output, str) and any(is_within(os.path.dirname(output), folder) for folder in writable)
        for output in folders
    )


def _reads_what_it_writes(reuse: Reuse) -> bool:
    """Where only the uid keeps tasks of one job from reading what another one is writing."""
    return any(is_within(str(w), str(r)) for w in reuse.writable for r in reuse.readable)


def _with_paths(entry: Mapping[str, Any]) -> dict[str, Any]:
    files = [file if isinstance(file, str) else file["path"] for file in entry.get("files") or ()]
    return {**entry, "files": files}


def _refuse_links(files: Iterable[str]) -> None:
    """Whoever wrote an input is not trusted with what is shown to others. The child, which opens them, refuses too."""
    for path in files:
        with contextlib.suppress(FileNotFoundError):  # the operator is told when it opens it
            if not plain_files.is_plain(path):
                raise PlatformError(
                    "sandbox.input_not_a_file",
                    "an input is not a plain file, or a link leads to it",
                    value=path,
                    next_step="find out who wrote to the object store besides the workers, and restore the file",
                )
