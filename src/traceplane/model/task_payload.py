"""What the sandbox receives for a task: the worker builds it, sends it to the child as JSON, and `sdk.OperatorTask`
passes it to the operator. Paths are those of the worker's machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from traceplane.model.checks import Check
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.job_definition import InputView
from traceplane.model.json_object import JsonObject
from traceplane.model.row_positions import ValueRange
from traceplane.model.scope import Cursor, Partition, Scope

Ranges = tuple[ValueRange, ...]


@dataclass(frozen=True, slots=True)
class Renewal:
    """Where credentials are to be had, while the attempt runs."""

    url: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class BucketAccess:
    """Credentials of S3 for some files of one attempt; empty if they are got from its `renewal`."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(repr=False)
    region: str
    endpoint_url: str | None
    renewal: Renewal | None = None

    @property
    def secrets(self) -> list[str]:
        if self.renewal is not None:
            return [self.renewal.token]
        return [self.secret_key, self.session_token]


@dataclass(frozen=True, slots=True)
class DirectOutput:
    """Where Spark's executors write an output themselves; keys below the prefix belong to the attempt."""

    bucket: str
    prefix: str
    access: BucketAccess


@dataclass(frozen=True, slots=True)
class OperatorInput:
    name: str
    files: tuple[str, ...] = ()
    """The committed files of this input for the task's scope."""
    where: JsonObject = field(default_factory=dict)
    """Conditions on columns (`model.comparisons`); `OperatorTask.read` applies them."""
    columns: tuple[SchemaColumn, ...] = ()
    """The columns of the dataset, as far as known."""
    select: tuple[str, ...] = ()
    """The columns that the job reads; empty: all."""
    position: str | None = None
    """The column that holds a row's position, if the dataset has one."""
    kept: dict[str, Ranges] = field(default_factory=dict)
    """The ranges of the position column to read of files that are not read in full."""
    attached: dict[str, str] = field(default_factory=dict)
    """Of the job's own file source: the files that the rows name, by their paths there, and where copies are."""
    time_column: str | None = None
    times: ValueRange | None = None
    """If there is such a column: its values in the rows of the task's periods; others are not read."""
    access: BucketAccess | None = None
    """With which Spark's executors read the files, which are then in S3; None: they are on this machine."""
    bytes: int | None = None
    """The size of the files, as far as the platform knows it."""

    def by_kept_ranges(self) -> list[tuple[list[str], Ranges]]:
        """The files, grouped by the ranges to read of them; no ranges: the whole file."""
        groups: dict[Ranges, list[str]] = {}
        for file in self.files:
            groups.setdefault(self.kept.get(file, ()), []).append(file)
        return [(files, ranges) for ranges, files in groups.items()]


@dataclass(frozen=True, slots=True)
class DeclaredOutput:
    name: str
    folder: str | None = None
    """Created for this attempt, which alone may write to it; None: the sandbox chooses one."""
    existing: tuple[str, ...] = ()
    """Of an `append` job: the files that the task's scope already has."""
    columns: tuple[SchemaColumn, ...] = ()
    """The columns that the dataset declares, with Arrow types; empty: it declares none."""
    checks: tuple[Check, ...] = ()
    """Of the rows that are written; their expressions are in Spark's dialect."""
    cluster_by: tuple[str, ...] = ()
    """The columns by which they are sorted within files."""
    direct: DirectOutput | None = None
    """None: outputs are written to the folder."""


@dataclass(frozen=True, slots=True)
class ResolvedInput:
    """An input of the operator, if views are computed from the stored inputs."""

    name: str
    view: str | None = None
    """None: the stored input of this name."""
    where: JsonObject = field(default_factory=dict)
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SparkAccess:
    remote: str
    """The address of its Spark Connect server."""
    entrypoint: str
    """The function that a DataFrame job runs; empty: its operator is built in."""
    bundled: tuple[str, ...] = ()
    """The modules of the job's own bundle, which Spark's Python processes need too."""
    python: str | None = None
    """What starts Spark's Python processes with the packages that the job needs; None: it needs no others, or they are
    sent."""
    environment_to_send: str | None = None
    """The folder of these packages, if executors are not on this machine."""
    shuffle_partitions: int | None = None
    """None: as many as the server has."""
    authorities: str | None = None
    """Certificates that the server is trusted by; None: those of the system."""


@dataclass(frozen=True)
class Execution:
    """One run of a pipeline."""

    execution_id: str
    pipeline_id: str
    pipeline: str
    """Its name."""
    user_id: str
    parameters: JsonObject = field(default_factory=dict)
    """`parameters` of the pipeline's config."""
    signal: JsonObject | None = None
    """The signal that launched it: the first of those that matched."""
    scheduled_for: datetime | None = None
    """Of a periodic pipeline: the time that it was launched for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPayload:
    cursor: int | None = None
    partition: Partition | None = None
    kind: str = "data"
    emission: str = ""
    """For built-in operators that request it: the emission of the event that the task is for."""
    operator: str = "python"
    config: JsonObject = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    """By the names that the operator knows them by."""
    unique_key: tuple[str, ...] = ()
    """Of an `append` job: the columns that identify a row; a row that exists already is not written again."""
    resume: tuple[tuple[int, str, str], ...] = ()
    """Of a source: its newest cursors, highest first, with the emission and kind of the last event about each."""
    execution: Execution | None = None
    """Of a pipeline's job: the execution that it runs."""
    spark: SparkAccess | None = None
    inputs: tuple[OperatorInput, ...] = ()
    views: tuple[InputView, ...] = ()
    """The views of virtual datasets over the inputs; for the Spark runtime."""
    given: tuple[ResolvedInput, ...] = ()
    """If there are views: the inputs that the operator gets."""
    outputs: tuple[DeclaredOutput, ...] = ()

    @property
    def scope(self) -> Scope | None:
        return Cursor(self.cursor) if self.cursor is not None else self.partition
