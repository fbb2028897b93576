"""How a task reaches code: the runtime registry, as data.

A runtime is a name; a new one is a new entry in the settings, with no change to the dispatcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase


class Driver(StrEnum):
    IN_PROCESS = "in_process"
    """Run by the dispatcher itself, inside its transaction; platform operators only."""
    QUEUE = "queue"
    """A wake-up is put on a queue; a worker claims the task."""
    INVOKE = "invoke"
    """Called directly with the whole payload, already leased; the invoker's own retries are off."""


class Network(StrEnum):
    """Which operators of a runtime have network access."""

    JOB = "job"
    """Those whose job asks for it."""
    ALWAYS = "always"
    NEVER = "never"


class InvokerKind(StrEnum):
    HTTP = "http"
    PROCESS = "process"
    AWS_LAMBDA = "aws_lambda"


@dataclass(frozen=True, slots=True)
class RuntimeLimits:
    memory_mb: int = 2048
    cpu_seconds: int | None = None
    open_files: int = 256
    processes: int = 64
    file_size_mb: int = 4096


@dataclass(frozen=True, slots=True)
class Runtime:
    name: str
    driver: Driver
    queue: str | None = None
    invoker: InvokerKind | None = None
    target: str | None = None
    """What the invoker calls: a URL, a command, or a function's name. None: each job names its function."""
    functions: tuple[str, ...] = ()
    """Patterns of the Lambda functions that jobs may name instead."""
    orgs: tuple[str, ...] = ()
    """The organizations whose tasks it invokes; empty: all. Of workers, their tokens say it."""
    capabilities: frozenset[str] = frozenset({"reactive"})
    """reactive: runs tasks of events. source: runs always-on sources. spark: its workers keep Spark running."""
    limits: RuntimeLimits = field(default_factory=RuntimeLimits)
    heartbeat_seconds: float = 10.0
    """A worker sends heartbeats at least this often, and at least three times per lease."""
    network: Network = Network.JOB

    def function_of(self, named: str | None) -> str | None:
        """What is called for a job that names this function, or none; None: the runtime does not allow it."""
        if named is None:
            return self.target
        return named if any(fnmatchcase(named, pattern) for pattern in self.functions) else None

    @property
    def family(self) -> str | None:
        """Which operators it runs: `dispatcher`, `python` or `spark`. None: a function, which is its own operator."""
        match self.driver:
            case Driver.IN_PROCESS:
                return "dispatcher"
            case Driver.QUEUE:
                return SPARK if SPARK in self.capabilities else "python"
            case Driver.INVOKE:
                return None


SPARK = "spark"

DEFAULT_RUNTIMES: Mapping[str, Runtime] = {
    "dispatcher": Runtime("dispatcher", Driver.IN_PROCESS, capabilities=frozenset({"reactive"})),
    "python": Runtime("python", Driver.QUEUE, queue="python", capabilities=frozenset({"reactive", "source"})),
    "spark": Runtime(
        "spark",
        Driver.QUEUE,
        queue="spark",
        capabilities=frozenset({"reactive", "spark"}),
        limits=RuntimeLimits(processes=256, open_files=1024),
    ),
}
