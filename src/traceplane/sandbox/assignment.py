"""What the wrapper asks of the sandbox, and what it gets back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from traceplane.model.task_payload import TaskPayload
from traceplane.sandbox.frames import ColumnBounds, EmittedEvent, Failure, ReportedColumn, RunLimits


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """Lets a child that has finished one task of a job run the next one of the same job.

    The child is confined to what every task of the job may reach, so these are real paths, without
    links, of folders that exist. What may be written is below folders of the wrapper's own.
    """

    key: str
    """Organisation, job and revision: tasks with different keys never meet in one process."""
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


class ServerGrant(Protocol):
    """What a task's Spark server is shown of it, from `__aenter__` until `end`."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *failure: object) -> None: ...

    def using(self, on_lost: Callable[[object], None]) -> AbstractContextManager[None]:
        """While a process of the task runs, which is to end when it has lost its server."""
        ...

    async def end(self, *, sealed: bool) -> bool:
        """Take it all away; with `sealed`, whether nobody can change any more what was written."""
        ...


@dataclass(frozen=True)
class UsedSpark:
    port: int
    uid: int | None
    """What it runs as; None: the wrapper's own user."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One attempt of one task.

    `payload` is handed to the operator. The files of its inputs become readable. The folder of each output is made
    for this attempt, is writable by it alone, and must be new or empty; an output without one gets one below `staging`.
    """

    task_id: str
    attempt: int
    entrypoint: str
    """package.module:function, found on the code paths."""
    error_codes: tuple[str, ...] = ()
    """Codes that it may raise, besides those of the platform."""
    payload: TaskPayload = field(default_factory=TaskPayload)
    code_paths: tuple[Path, ...] = ()
    """With `reuse`, without links."""
    limits: RunLimits = field(default_factory=RunLimits)
    spark: UsedSpark | None = None
    """The Spark server that the task uses, and that writes to the output folders too."""
    staging: Path | None = None
    """Unset: below the sandbox's own folder, gone when the sandbox closes."""
    reuse: Reuse | None = None
    """Unset: a child of its own. Set: one that may have run other tasks of the job, where the machine can
    keep jobs apart well enough."""


@dataclass(frozen=True)
class OutputFile:
    path: str
    rows: int
    bytes: int
    statistics: dict[str, ColumnBounds] = field(default_factory=dict)


@dataclass(frozen=True)
class OutputResult:
    output_index: int
    name: str
    files: tuple[OutputFile, ...]
    schema_hash: str
    columns: tuple[ReportedColumn, ...] = ()

    @property
    def row_count(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended. The files of a good run are sealed: owned by the wrapper and read-only."""

    task_id: str
    attempt: int
    status: Literal["ok", "failed"]
    outputs: tuple[OutputResult, ...] = ()
    events: tuple[EmittedEvent, ...] = ()
    """What the operator emitted, unless it was streamed while running."""
    error: Failure | None = None
    log_tail: str = ""
    start_seconds: float | None = None
    """From the call of `run` to the operator's first line; None if it never got there."""
    run_seconds: float = 0.0
    """From the call of `run` until no process of the task was left, or only one that waits for the next."""
    slot_seconds: float = 0.0
    """The part of it after a child was found, by the wrapper's own clock: the others are the child's word in part."""
    cpu_seconds: float = 0.0
    max_rss_bytes: int = 0
    """The most that was resident; of a child that lives on, what is resident at its end."""
    leftovers: bool = False
    """Whether processes outlived the operator and were killed."""
