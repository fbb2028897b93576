"""What a DAG is: jobs, the datasets they read and write, and how their work is metered.

Frozen and pure. `registry.spec` builds these from YAML and is the only place that validates them, so a `Dag` is
always valid: names are unique, inputs resolve, the graph has no cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property

from traceplane.model.checks import Check
from traceplane.model.compaction import Compaction
from traceplane.model.edges import Read
from traceplane.model.json_object import JsonObject
from traceplane.model.partitions import Partitions
from traceplane.model.resources import Resources
from traceplane.model.spark_resources import SparkResources


class Activation(StrEnum):
    SOURCE = "source"
    REACTIVE = "reactive"


class SourceKind(StrEnum):
    MANUAL = "manual"
    CRON = "cron"
    WEBHOOK = "webhook"
    ALWAYS_ON = "always_on"
    FILE = "file"
    PIPELINE = "pipeline"
    """Each execution of a pipeline is one of its tasks."""


class CatchUpPolicy(StrEnum):
    """Which ticks of a cron source fire that were missed while no dispatcher ran or the source was paused."""

    ALL = "all"
    LATEST = "latest"
    NONE = "none"


class Period(StrEnum):
    """Which period the event of a tick names."""

    THIS = "this"
    """The one that contains the tick."""
    PREVIOUS = "previous"
    """The one before, which is over."""


class ExecutionStrategy(StrEnum):
    """How incoming events become tasks. `Bulk` never reaches a `Job`: the spec expands it."""

    PER_UPDATE = "PerUpdate"
    PER_PARTITION = "PerPartition"
    BULK = "Bulk"


class When(StrEnum):
    """When a job with several inputs runs for a scope."""

    ALL = "all"
    """When each input has what the scope reads, and again when one of them changes it."""
    ANY = "any"
    """Whenever one of them has it."""


class InputRole(StrEnum):
    FEEDS = "feeds"
    """Its events create the tasks of the job, which read its rows."""
    TRIGGERS = "triggers"
    """Its events create the tasks of the job; it has no rows."""
    READS = "reads"
    """Only its rows are read: another input says which tasks there are."""


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
    declassified: str | None = None
    """Why its values are no personal data, although they are computed from some."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A named, typed collection that one job produces. `dataset_id` is opaque: nothing parses it."""

    dataset_id: str
    storage: Storage = Storage.PARQUET
    write_mode: WriteMode | None = None
    columns: tuple[Column, ...] = ()
    description: str = ""
    position: str | None = None
    """The column that holds a row's position (a cursor, or a position of a partition)."""
    unique_key: tuple[str, ...] = ()
    """Of a hot table: columns, the position among them, of which no two rows have the same values."""
    indexes: tuple[tuple[str, ...], ...] = ()
    """Of a hot table: columns by which readers find rows, besides position and unique key."""
    partitions: Partitions = Partitions()
    retention: float | None = None
    """Seconds for which a partition is kept; None: for ever."""
    sql: str | None = None
    """Of a virtual dataset: its SQL, in the dialect of queries. No job produces it, and it is not stored."""
    read_roles: tuple[str, ...] | None = None
    """The roles that may read it, besides admins; None: all."""
    readers_of: str | None = None
    """Of rows that an alert found: the dataset that it is about. Only those who may read that one, as its roles are at
    the time, may read these."""
    write_roles: tuple[str, ...] | None = None
    """The roles that may change what it holds, and run the job that writes it, besides admins; None: all writers."""
    cluster_by: tuple[str, ...] = ()
    """Columns by which rows are sorted within files, so that statistics say where values are."""
    compaction: Compaction = Compaction()  # noqa: RUF009 -- frozen
    """How its small files are merged."""
    checks: tuple[Check, ...] = ()
    """What its rows are checked for when they are written, and how old they may become."""


@dataclass(frozen=True, slots=True)
class Input:
    """One edge into a job: the dataset it reads, what of it, and conditions on its rows."""

    name: str
    dataset_id: str
    where: JsonObject = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    """The columns that the job reads; empty: all."""
    read: Read = Read()
    role: InputRole = InputRole.FEEDS


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    dataset_id: str


@dataclass(frozen=True, slots=True)
class SourceCatchUp:
    policy: CatchUpPolicy = CatchUpPolicy.LATEST
    most: int = 100
    """With `all`: only so many of the missed ticks fire, the latest ones."""


@dataclass(frozen=True, slots=True)
class Source:
    """What sets off a source. All but `kind` is about cron, and a deploy changes it in place."""

    kind: SourceKind
    schedule: str | None = None
    time_zone: str = "UTC"
    catch_up: SourceCatchUp = SourceCatchUp()
    jitter_seconds: float = 0.0
    """Ticks fire up to this much later, always by the same amount for one source."""
    period: Period = Period.THIS


@dataclass(frozen=True, slots=True)
class ExecutionSettings:
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
    """Whether its operator needs network access; built-in operators that need it always have it."""
    function: str | None = None
    """For an `invoke` runtime: what is called; None: what the runtime names."""
    requires: Resources = Resources()
    """What its tasks need of the worker that runs them."""
    spark: SparkResources = SparkResources()
    """What its tasks need of Spark."""
    secrets: dict[str, str] = field(default_factory=dict)
    """The secrets that its code receives, by the names that it knows them by."""

    def of_the_dispatcher(self) -> ExecutionSettings:
        """For a job that is added in front of this one and that the dispatcher runs: it holds back nothing, since this
        job would otherwise wait for itself, and it needs no worker."""
        return replace(
            self,
            max_concurrency=None,
            max_queue_depth=None,
            max_queue_age_seconds=None,
            function=None,
            requires=Resources(),
            spark=SparkResources(),
            secrets={},
        )


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    activation: Activation
    runtime: str
    operator: str
    config: JsonObject
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    execution_strategy: ExecutionStrategy
    update_strategy: UpdateStrategy
    unique_key: tuple[str, ...] = ()
    source: Source | None = None
    execution: ExecutionSettings = ExecutionSettings()
    description: str = ""
    lineage: dict[str, list[str]] | None = None
    """What its code computes columns from, as `input.column`, by column or `output.column`; a column that is not there
    may be computed from all."""
    requirements: tuple[str, ...] = ()
    """The Python packages that its code needs, as they are written."""
    requirements_file: str | None = None
    """The file that has them, if they are not in the DAG file itself."""
    generated_for: str | None = None
    """The job that this one was added for, to batch its inputs, to find its scopes or to relay its events; shown in the
    plan and in the graph."""

    @property
    def inputs_read(self) -> tuple[Input, ...]:
        """Those that its operator gets. One that the dispatcher runs for its events gets all of them."""
        if self.runtime == "dispatcher":
            return self.inputs
        return tuple(used for used in self.inputs if used.role is not InputRole.TRIGGERS)


@dataclass(frozen=True)  # without slots, which leave no room for what is cached
class Dag:
    name: str
    jobs: tuple[Job, ...]
    """In topological order: a job comes after every job of this DAG that it reads from."""
    datasets: tuple[Dataset, ...]
    """Every dataset that this DAG owns, declared or implied, sorted by id: virtual ones and those that its jobs
    produce."""
    external_datasets: tuple[str, ...] = ()
    """Datasets read but not produced here; deploy checks that another DAG owns them."""
    description: str = ""
    requirements: tuple[str, ...] = ()
    """Of jobs that do not name their own; `registry.job_requirements` gives them to the jobs."""
    requirements_file: str | None = None

    @cached_property
    def rows_of(self) -> dict[str, str]:
        """A cache of `operators.grouping`, which knows the jobs that group: whose rows each dataset stands for."""
        return {}

    @cached_property
    def datasets_by_id(self) -> dict[str, Dataset]:
        return {dataset.dataset_id: dataset for dataset in self.datasets}

    @property
    def virtual(self) -> dict[str, str]:
        """The SQL of its virtual datasets."""
        return {d.dataset_id: d.sql for d in self.datasets if d.sql is not None}
