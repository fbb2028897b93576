"""What a DAG is: jobs, the datasets they read and write, and how their work is metered.

Frozen and pure. `registry.spec` makes these from YAML and is the only place that validates;
whoever holds a `Dag` may rely on it: names are unique, inputs resolve, the graph has no cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Activation(StrEnum):
    SOURCE = "source"
    REACTIVE = "reactive"


class SourceKind(StrEnum):
    MANUAL = "manual"
    CRON = "cron"
    WEBHOOK = "webhook"
    ALWAYS_ON = "always_on"
    PIPELINE = "pipeline"
    """Each execution of a pipeline is a task of it."""


class ExecutionStrategy(StrEnum):
    """How incoming events become tasks. `Bulk` never reaches a `Job`: the spec expands it."""

    PER_UPDATE = "PerUpdate"
    PER_PARTITION = "PerPartition"
    BULK = "Bulk"


class UpdateStrategy(StrEnum):
    APPEND = "append"
    REPLACE = "replace"


class Priority(StrEnum):
    NORMAL = "normal"
    BACKFILL = "backfill"


class ScalingMode(StrEnum):
    STEADY = "steady"
    BACKFILL = "backfill"


class Storage(StrEnum):
    PARQUET = "parquet"
    POSTGRES = "postgres"
    VIRTUAL = "virtual"


class WriteMode(StrEnum):
    BUFFERED = "buffered"
    DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str
    nullable: bool = True
    pii: bool = False


@dataclass(frozen=True, slots=True)
class Dataset:
    """A named, typed collection with one producing job. `dataset_id` is opaque: nothing parses it."""

    dataset_id: str
    storage: Storage = Storage.PARQUET
    write_mode: WriteMode | None = None
    columns: tuple[Column, ...] = ()
    description: str = ""
    position: str | None = None
    """The column that says to which position (a cursor, or one of a partition's) a row belongs."""
    sql: str | None = None
    """Of a virtual dataset: what it is, in the dialect of queries. No job produces it, and nothing stores it."""


@dataclass(frozen=True, slots=True)
class Input:
    """One edge into a job: the dataset it reads, and equality filters on its rows."""

    name: str
    dataset_id: str
    where: dict[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    """Those that the job reads; none: all of them."""


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    dataset_id: str


@dataclass(frozen=True, slots=True)
class Source:
    kind: SourceKind
    schedule: str | None = None


@dataclass(frozen=True, slots=True)
class Execution:
    """Fields that change how work is metered, never what it produces; a deploy swaps them in place."""

    priority: Priority = Priority.NORMAL
    scaling_mode: ScalingMode = ScalingMode.STEADY
    max_concurrency: int | None = None
    max_queue_depth: int | None = None
    max_queue_age_seconds: float | None = None
    timeout_seconds: float = 3600.0
    lease_seconds: float = 30.0
    max_attempts: int = 5
    retry_base_seconds: float = 2.0
    retry_max_seconds: float = 300.0
    network: bool = False
    """Whether its operator asks for the network; built-in operators that need it have it anyhow."""


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    activation: Activation
    runtime: str
    operator: str
    config: dict[str, Any]
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    execution_strategy: ExecutionStrategy
    update_strategy: UpdateStrategy
    unique_key: tuple[str, ...] = ()
    source: Source | None = None
    execution: Execution = Execution()
    description: str = ""
    generated_for: str | None = None
    """The job a `Bulk` expansion made this one for; shown in the plan and in the graph."""


@dataclass(frozen=True, slots=True)
class Dag:
    name: str
    jobs: tuple[Job, ...]
    """In topological order: a job stands after every job of this DAG that it reads from."""
    datasets: tuple[Dataset, ...]
    """Every dataset that this DAG owns, declared or implied, sorted by id: those that its jobs produce, and virtual
    ones."""
    external_datasets: tuple[str, ...] = ()
    """Datasets read but not produced here; deploy checks that another DAG owns them."""
    description: str = ""

    @property
    def virtual(self) -> dict[str, str]:
        """The SQL of its virtual datasets."""
        return {d.dataset_id: d.sql for d in self.datasets if d.sql is not None}
