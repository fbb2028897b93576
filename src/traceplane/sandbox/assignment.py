"""The wrapper's request to the sandbox, and the result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from traceplane.model.task_payload import TaskPayload
from traceplane.sandbox.frames import (
    ColumnBounds,
    EmittedEvent,
    Failure,
    ReportedCheck,
    ReportedColumn,
    RunLimits,
)


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """Allows a child that has finished a task to run the next task of the same job.

    The child is confined to what every task of the job may reach, so these must be real paths, without
    links, of existing folders. The writable ones are below the wrapper's own folders.
    """

    key: str
    """Organisation, job and revision: tasks with different keys never share a process."""
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


class ServerGrant(Protocol):
    """What a task's Spark server can see of the task, from `__aenter__` until `end`."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *failure: object) -> None: ...

    def using(self, on_lost: Callable[[object], None]) -> AbstractContextManager[None]:
        """Held while a process of the task runs; `on_lost` is called if its server is lost."""
        ...

    async def end(self, *, sealed: bool) -> bool:
        """Revoke everything; with `sealed`, returns whether the written files can no longer be changed."""
        ...


@dataclass(frozen=True)
class UsedSpark:
    port: int
    uid: int | None
    """The server's user; None: the wrapper's own user."""
    on_cluster: bool = False
    """Its executors write too, on other machines, as the wrapper's own user."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One attempt of one task.

    `payload` is passed to the operator. The files of its inputs become readable. The folder of each output is created
    for this attempt, is writable by it alone, and must be new or empty; an output without one gets one below `staging`.
    """

    task_id: str
    attempt: int
    entrypoint: str
    """package.module:function, found on the code paths."""
    error_codes: tuple[str, ...] = ()
    """Error codes that the operator may raise, besides those of the platform."""
    payload: TaskPayload = field(default_factory=TaskPayload)
    code_paths: tuple[Path, ...] = ()
    """With `reuse`, paths without links."""
    limits: RunLimits = field(default_factory=RunLimits)
    spark: UsedSpark | None = None
    """The Spark server that the task uses, and that writes to the output folders too."""
    staging: Path | None = None
    """Unset: below the sandbox's own folder, removed when the sandbox closes."""
    reuse: Reuse | None = None
    """Unset: a fresh child. Set: one that may have run other tasks of the job, if the machine isolates jobs well
    enough."""


@dataclass(frozen=True)
class OutputFile:
    path: str
    rows: int
    bytes: int
    statistics: dict[str, ColumnBounds] = field(default_factory=dict)
    stored: bool = False
    """Whether it is in the store already, and not under its path; nobody has verified that yet."""


@dataclass(frozen=True)
class OutputResult:
    output_index: int
    name: str
    files: tuple[OutputFile, ...]
    schema_hash: str
    columns: tuple[ReportedColumn, ...] = ()
    broken_checks: tuple[ReportedCheck, ...] = ()

    @property
    def row_count(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended. The files of a successful run are sealed: owned by the wrapper and read-only."""

    task_id: str
    attempt: int
    status: Literal["ok", "failed"]
    outputs: tuple[OutputResult, ...] = ()
    events: tuple[EmittedEvent, ...] = ()
    """The operator's events, unless they were streamed while it ran."""
    error: Failure | None = None
    log_tail: str = ""
    start_seconds: float | None = None
    """From the call of `run` to the operator's first line; None if it was never reached."""
    run_seconds: float = 0.0
    """From the call of `run` until no process of the task was left, except one waiting for the next task."""
    slot_seconds: float = 0.0
    """The part of it after a child was assigned, by the wrapper's own clock: the others rely partly on the child."""
    cpu_seconds: float = 0.0
    max_rss_bytes: int = 0
    """Peak resident memory; for a child that is kept, its resident memory at the end of the run."""
    leftovers: bool = False
    """Whether processes outlived the operator and were killed."""
