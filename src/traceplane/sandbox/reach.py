"""What a child may reach for its task: the files it can read, where it writes, and which tasks may share it."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path

from traceplane.errors import PlatformError
from traceplane.linux import plain_files
from traceplane.model.task_payload import TaskPayload
from traceplane.sandbox import confinement, private_root, staging
from traceplane.sandbox.assignment import Assignment, Reuse
from traceplane.sandbox.confinement import Isolation
from traceplane.sandbox.frames import Assign
from traceplane.sandbox.private_root import is_within
from traceplane.sandbox.slot import Child

_INLINE_BYTES = 64 << 10


def job_to_share(assignment: Assignment, isolation: Isolation) -> Hashable:
    """Everything that a child for several tasks is confined to; None if each task needs its own child."""
    reuse = assignment.reuse
    if reuse is None or assignment.limits.cpu_seconds is not None:  # the kernel counts that by process
        return None
    if not isolation.has(confinement.NAMESPACES):
        return None
    own_uid = isolation.has(confinement.UID_SLOTS)
    if not own_uid and (os.geteuid() == 0 or assignment.spark is not None or _reads_what_it_writes(reuse)):
        return None
    if not _lies_within(assignment.payload, reuse, reads_outputs=own_uid):
        return None
    return (reuse, assignment.entrypoint, assignment.code_paths, assignment.limits, assignment.spark)


def areas(child: Child, assignment: Assignment, outputs: Mapping[str, Path]) -> dict[str, Path]:
    """Where a child writes during its whole life if it has the wrapper's own uid or gets several tasks at once: beside
    its first task's folders and named after that attempt, so that garbage collection finds it if the worker was killed.
    No other child ever gets the same folder, not even one for the same attempt: this child could still reach what the
    other wrote there after it was moved into place."""
    if child.job is None or child.areas is None:
        mark = secrets.token_hex(8)
        child.areas = {name: folder.with_name(f"{folder.name}-{mark}") for name, folder in outputs.items()}
        below_temp = [*assignment.code_paths, *child.areas.values(), *private_root.interpreter_folders()]
        below_temp += private_root.links_on_the_way(sys.executable)
        if assignment.reuse is not None:
            below_temp += assignment.reuse.readable
        parts = [str(path).split("/") for path in below_temp]
        child.temp.mount_points = frozenset(
            path[2] for path in parts if len(path) > 2 and f"/{path[1]}" == private_root.TEMP
        )
    return child.areas


def frame(
    assignment: Assignment, folders: staging.TaskFolders, *, streaming: bool, for_job: bool, keep: bool
) -> Assign:
    payload = assignment.payload
    outputs = {name: str(folder) for name, folder in folders.for_child.items()}
    if for_job and assignment.reuse is not None:
        readable = [str(path) for path in assignment.reuse.readable]
        writable = [str(path) for path in assignment.reuse.writable]
        if folders.for_child is not folders.outputs:
            writable = list(outputs.values())
        code_paths = [str(path) for path in assignment.code_paths]
    else:
        code_paths = [os.path.realpath(path) for path in assignment.code_paths]
        readable = [*_files(payload)]
        _refuse_links(readable)
        writable = list(outputs.values())
    return Assign(
        task_id=assignment.task_id,
        attempt=assignment.attempt,
        entrypoint=assignment.entrypoint,
        error_codes=list(assignment.error_codes),
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


def _files(payload: TaskPayload) -> Iterator[str]:
    """Those that are on this machine."""
    for used in payload.inputs:
        if used.access is None:
            yield from used.files
    for written in payload.outputs:
        if written.direct is None:
            yield from written.existing


def _lies_within(payload: TaskPayload, reuse: Reuse, *, reads_outputs: bool) -> bool:
    """Whether the inputs and outputs of a task are within those of its job, and whether it may read the outputs."""
    readable = [str(folder) for folder in (*reuse.readable, *(reuse.writable if reads_outputs else ()))]
    writable = [str(folder) for folder in reuse.writable]
    return all(any(is_within(file, folder) for folder in readable) for file in _files(payload)) and all(
        output.folder is not None
        and any(is_within(os.path.dirname(output.folder), folder) for folder in writable)
        for output in payload.outputs
    )


def _reads_what_it_writes(reuse: Reuse) -> bool:
    """True where only the uid keeps tasks of a job from reading what another task is writing."""
    return any(is_within(str(w), str(r)) for w in reuse.writable for r in reuse.readable)


def _refuse_links(files: Iterable[str]) -> None:
    """Untrusted code wrote the inputs and must not decide what other tasks can read. The child refuses links too."""
    for path in files:
        with contextlib.suppress(FileNotFoundError):  # the operator gets the error when it opens the file
            if not plain_files.is_plain(path):
                raise PlatformError(
                    "sandbox.input_not_a_file",
                    "an input is not a plain file, or its path contains a link",
                    value=path,
                    next_step="find out who wrote to the object store besides the workers, and restore the file",
                )
