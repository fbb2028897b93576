"""How a task reaches code: the runtime registry, as data.

A runtime is a name; adding one is adding an entry to the settings, with no change to the dispatcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Driver(StrEnum):
    IN_PROCESS = "in_process"
    """Run by the dispatcher itself, inside its transaction; platform operators only."""
    QUEUE = "queue"
    """A wake-up on a queue; a worker claims the task."""
    INVOKE = "invoke"
    """Called directly with the whole payload, already leased; the invoker's own retries are off."""


class Network(StrEnum):
    """Whether operators of a runtime reach other machines."""

    JOB = "job"
    """Those whose job asks for it."""
    ALWAYS = "always"
    NEVER = "never"


class Invoker(StrEnum):
    HTTP = "http"
    PROCESS = "process"
    AWS_LAMBDA = "aws_lambda"


@dataclass(frozen=True, slots=True)
class Limits:
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
    invoker: Invoker | None = None
    target: str | None = None
    """What the invoker calls: a URL, a command, or a function's name."""
    image: str | None = None
    capabilities: frozenset[str] = frozenset({"reactive"})
    """reactive: runs tasks of events. source: runs always-on sources. spark: its workers keep Spark running."""
    limits: Limits = field(default_factory=Limits)
    heartbeat_seconds: float = 10.0
    """A worker is heard of at least this often, and at least three times per lease."""
    network: Network = Network.JOB


DEFAULT_RUNTIMES: Mapping[str, Runtime] = {
    "dispatcher": Runtime("dispatcher", Driver.IN_PROCESS, capabilities=frozenset({"reactive"})),
    "python": Runtime("python", Driver.QUEUE, queue="python", capabilities=frozenset({"reactive", "source"})),
    "spark": Runtime(
        "spark",
        Driver.QUEUE,
        queue="spark",
        capabilities=frozenset({"reactive", "spark"}),
        limits=Limits(processes=256, open_files=1024),
    ),
}

SPARK = "spark"

SPARK_OPERATORS = frozenset({"compact", "pyspark", "signal_generate", "sql"})
"""What tasks of a runtime with the capability `spark` can run."""

SIGNAL_PUBLISH = "signal_publish"

DISPATCHER_OPERATORS = frozenset({"aggregator", "pass", SIGNAL_PUBLISH, "source", "splitter"})
"""What the dispatcher itself can run; `source` stands for a source that only receives events."""

PYTHON_OPERATORS: Mapping[str, str] = {
    "block_follower": "traceplane.chain.operators.block_follower:run",
    "integrity_check": "traceplane.chain.operators.integrity_check:run",
    "range_ingest": "traceplane.chain.operators.range_ingest:run",
}
"""Built-in operators that workers run in their sandbox, and their code; `python` names its own in `config`."""

USES_NETWORK = frozenset(PYTHON_OPERATORS)
"""Built-in operators that ask for the network, so that their jobs need not."""

TOLD_OF_EMISSIONS = frozenset({"range_ingest"})
"""Built-in operators that are handed the emission of the event that their task is for."""

GROUPING_OPERATORS = frozenset({"aggregator", "splitter"})
"""Those whose output has no rows of its own: it is read from what they group."""

READS_HISTORY: Mapping[str, int] = {"signal_generate": 250}
"""Built-in operators that read positions before their scope too: `config.history` many, or as many as here."""

POSITIONS = {"range_ingest": "block_number", "signal_generate": "position"}
"""The column of their outputs in which built-in operators write to which position a row belongs."""
