"""Runs operator code where it can reach its own task and nothing else.

    sandbox = await Sandbox.start(SandboxSettings())
    result = await sandbox.run(assignment, timeout=60)
    await sandbox.close()

A fork server (`zygote`) holds a warm interpreter without secrets; each slot of it keeps one child
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
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceplane.adapters.locked_folder import LockedFolder
from traceplane.errors import InvalidInput, PlatformError
from traceplane.linux import plain_files
from traceplane.linux.operator_ids import UID_RANGE
from traceplane.worker import confinement, frames, private_root, staging
from traceplane.worker.assignment import Assignment, Reuse, RunResult
from traceplane.worker.confinement import Isolation, protect_this_process
from traceplane.worker.execution import Execution, OnEvents, OnProgress
from traceplane.worker.fork_server import ForkServer
from traceplane.worker.frames import Assign, Configure, Failure, NetworkAccess, ReachNothing
from traceplane.worker.idle_slots import IdleSlots
from traceplane.worker.private_root import is_within
from traceplane.worker.slot import Child, OnLog, Slot
from traceplane.worker.uid_lease import UidLease

if TYPE_CHECKING:
    from traceplane.worker.spark_server import SparkGrant

log = logging.getLogger(__name__)

_CHECK_TIMEOUT_SECONDS = 60.0
_RESTARTS_ALLOWED = 5
_STARTS_TRIED = 3
"""For a task whose slot vanished before the operator ran."""
_RESTART_WINDOW_SECONDS = 30.0
_TEND_SECONDS = 1.0
_INLINE_BYTES = 64 << 10
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
        grant: SparkGrant | None = None,
    ) -> RunResult:
        """Run one task; the timeout begins when a slot is free. `grant` is what its Spark server sees of it.

        With `on_events` the task is a source that emits while it runs: each batch is handed over, and
        the operator's `emit` returns once the callback has.
        """
        began_ns = time.monotonic_ns()
        job = self._job_to_reuse(assignment) if on_events is None else None
        wanted = job
        for _ in range(_STARTS_TRIED):
            slot, child = await self._take_child(wanted)
            try:
                result, folders = await self._run_in(
                    slot, child, job, assignment, began_ns, on_log, on_events, on_progress, timeout, grant
                )
            finally:
                slot.release()
            if not _lost_before_start(result):
                break
            wanted = None  # if one used child was no good, others may be so for the same reason
            if self._removing is not None:
                await asyncio.wait((self._removing,))  # the next try writes to the same folders
        if result.status == "ok" and folders.to_be_written:
            try:
                await asyncio.get_running_loop().run_in_executor(self._writers, folders.write_out)
            except OSError as problem:
                message = f"the outputs could not be kept: {problem}"
                result = _failed(result, Failure(code="sandbox.failed", message=message))
        return result

    async def _run_in(
        self,
        slot: Slot,
        child: Child,
        job: Hashable,
        assignment: Assignment,
        began_ns: int,
        on_log: OnLog | None,
        on_events: OnEvents | None,
        on_progress: OnProgress | None,
        timeout: float | None,
        grant: SparkGrant | None,
    ) -> tuple[RunResult, staging.TaskFolders]:
        outputs = self._output_folders(assignment, real=job is not None)
        areas = _areas(child, assignment, outputs) if job is not None and slot.uid is None else None
        folders = staging.TaskFolders(child.temp, outputs, slot.uid, assignment.spark, areas)
        keep = job is not None and child.tasks + 1 < self._settings.tasks_per_child
        try:
            child.temp.make()
            folders.make()
            assign = _as_frame(
                assignment, folders, streaming=on_events is not None, for_job=job is not None, keep=keep
            )
            encoded = frames.encode(assign)
        except BaseException:
            slot.kill(child, 0.0)
            child.close()
            self._remove(folders, outputs=True)
            raise
        execution = Execution(
            slot,
            child,
            assign,
            encoded,
            folders,
            began_ns=began_ns,
            grace_seconds=self._settings.grace_seconds,
            on_log=on_log,
            on_events=on_events,
            on_progress=on_progress,
            grant=grant,
            next_waits=lambda: self._idle.waits(job),
        )
        went_well = False
        try:
            async with grant or contextlib.nullcontext():
                result = await execution.run(timeout)
            went_well = result.status == "ok"
            return result, folders
        finally:
            if execution.kept:
                child.job = job
                child.tasks += 1
                slot.keep(child)
                if not went_well:
                    folders.withdraw()
            else:
                self._remove(folders, outputs=not went_well)

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
            log.warning("sandbox.slot_lost", extra={"slot": slot.index})
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
            log.error("sandbox.server_died", extra={"exit_code": code})
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
            entrypoint="traceplane.worker.selfcheck:look_around",
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
        log.warning("sandbox.weak", extra={"reason": weakness})

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
        self._removals.append(functools.partial(folders.remove, outputs=outputs))
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


def _lost_before_start(result: RunResult) -> bool:
    return result.error is not None and result.error.code == "sandbox.lost" and result.start_seconds is None


def _failed(result: RunResult, error: Failure) -> RunResult:
    return replace(result, status="failed", outputs=(), events=(), error=error)


def _areas(child: Child, assignment: Assignment, outputs: Mapping[str, Path]) -> dict[str, Path]:
    """Where a child of the wrapper's own uid writes as long as it lives, beside its first task's folders and named
    after that attempt, so that whoever collects the leavings of attempts finds those of a killed worker's too. No
    other child is ever given it, not even one for the same attempt: what it wrote there would be within this one's
    reach after it was moved to its place."""
    if child.job is None:
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
