"""The definition of a deployed job, as `jobs.definition` stores it: everything that determines the data of its tasks.

`registry.job_rows` writes it, and `postgres.registry` is the only reader. The config, the execution strategy, the
lineage, the checks, what the job needs of Spark and the facts of the operator change in place: each version has its
own, which its jobs get when it begins to serve. Upgrades of the platform do not rewrite definitions, so a new field
needs a default. A test checks the JSON keys that SQL names against these fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from traceplane.model.checks import Check
from traceplane.model.dag import ExecutionStrategy, Input, UpdateStrategy
from traceplane.model.json_object import JsonObject
from traceplane.model.spark_resources import SparkResources


@dataclass(frozen=True, slots=True)
class InputView:
    """SQL over a job's stored inputs, or over earlier views, in Spark's dialect."""

    name: str
    sql: str
    reads: dict[str, str] = field(default_factory=dict)
    """The tables that the SQL names, with the stored input of each."""
    dataset_id: str = field(default="", compare=False)
    """The virtual dataset that it stands for. Not compared: jobs that were deployed before it was kept are the same."""


@dataclass(frozen=True, slots=True)
class VirtualInputs:
    """How the inputs of a job that reads virtual datasets are computed from stored ones."""

    inputs: tuple[Input, ...]
    """As the DAG declares them."""
    datasets: tuple[str, ...]
    """The virtual datasets that it reads, directly or through others; empty: all of them are stored by now."""
    own: dict[str, str]
    """The SQL of those that belong to the job's own DAG."""
    views: tuple[InputView, ...]
    given: dict[str, str]
    """The declared inputs that are views, with the names of these views."""


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """What an operator's spec says about a job's tasks. Stored with the job, so claims need no operator catalog."""

    needs_emission: bool = False
    """Tasks get the emission of the event that they are for."""
    history: int = 0
    """How many positions before their scope are read too."""
    deletes_inputs: bool = False
    """The rows of hot inputs are deleted when a task commits."""
    compacts_files: bool = False
    """It writes the rows that it reads back to where they are, in fewer files."""
    package: str | None = None
    """The package that provides the operator, and its version; None: it is built in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefinition(OperatorFacts):
    config: JsonObject
    execution_strategy: ExecutionStrategy
    update_strategy: UpdateStrategy
    unique_key: tuple[str, ...] = ()
    generated_for: str | None = None
    """The job that a `Bulk` expansion created this one for."""
    code_bundle: str | None = None
    """The code that it was deployed with; None: the code in the worker's own folders."""
    environment: str | None = None
    """The lock of the Python packages that its code needs, by its hash; None: it needs no others than the platform."""
    virtual: VirtualInputs | None = None
    lineage: dict[str, list[str]] | None = None
    """As `Job.lineage`; changes in place, like the config."""
    checks: dict[str, tuple[Check, ...]] = field(default_factory=dict)
    """Of the rows that it writes, by dataset; changes in place, like the config."""
    as_of: datetime | None = None
    """Of a query that runs as a job: the moment whose files it reads; None: when its task starts."""
    cluster_by: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The columns by which its rows are sorted within files, by dataset; changes in place, like the config."""
    spark: SparkResources = SparkResources()
    """What its tasks need of Spark; changes in place, like the config."""
    views: tuple[InputView, ...] = ()
    """Of a query that runs as a job: its steps, the last of which is the result."""
