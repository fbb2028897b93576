"""What the platform knows about an operator, as data.

    from traceplane.operators.spec import Config, OperatorSpec, Ports

    class RateConfig(Config, frozen=True, kw_only=True):
        currency: Annotated[str, Meta(description="Amounts are converted to it.")] = "EUR"

    SPEC = OperatorSpec(
        name="convert",
        summary="Converts amounts to one currency.",
        runtimes=frozenset({"python"}),
        entrypoint="money.convert:run",
        config=RateConfig,
        inputs=Ports(least=1, most=1),
        outputs=Ports(least=1, most=1),
    )

The gateway imports the spec and not the operator's code, so the module of a spec should import little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from traceplane.model.advice import Remedy
from traceplane.model.dag import Dag, Job


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a job's `config`. Each has a type, a description (`msgspec.Meta`) and, unless it is required, a
    default. Checks across fields belong in `__post_init__`, which raises ValueError."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The inputs or the outputs of an operator."""

    least: int = 0
    most: int | None = None
    names: tuple[str, ...] = ()
    """Their allowed names; empty: any."""


class ColumnsFrom(StrEnum):
    """What the columns of an operator's outputs are computed from, if the operator is enough to know it."""

    SAME_NAMES = "same_names"
    """Each from the columns of its name in the inputs."""
    OUTSIDE = "outside"
    """None from a column of an input: the values come from outside the platform, and there are no marks yet."""


@dataclass(frozen=True, slots=True)
class ErrorCode:
    """A code that the operator raises (`traceplane.sdk.OperatorError`)."""

    code: str
    meaning: str
    retried: bool = True
    """Whether another attempt may succeed."""
    remedy: Remedy | None = None
    """What `traceplane explain` advises once the task is dead."""


@dataclass(frozen=True, slots=True)
class JobMisfit:
    """Something in a job that does not fit its operator."""

    at: tuple[str, ...]
    """The path to it in the job: `("config", "size")`."""
    message: str
    allowed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSpec:
    name: str
    summary: str
    """One sentence."""
    runtimes: frozenset[str]
    """The families of runtimes (`model.runtimes.Runtime.family`) that run it: dispatcher, python, spark."""
    entrypoint: str | None = None
    """Its code, as `package.module:function`. None: the job's config names it, or it is part of the dispatcher."""

    config: type[Config] = Config
    open_config: bool = False
    """Whether a job may have further fields, which are passed to its code as they are."""
    execution_fields: frozenset[str] = frozenset()
    """Config fields that affect how data is made, but not the data itself: changing them rebuilds nothing."""
    source_fields: frozenset[str] = frozenset()
    """Config fields that name the location of external data, such as addresses."""
    identity_fields: tuple[str, ...] = ()
    """The config fields that identify the data there, which the operator checks. As long as one of them is set and
    none changes, changing `source_fields` rebuilds nothing."""
    code_field: str | None = None
    """The config field that names the user's own code."""
    query_field: str | None = None
    """The config field that holds Spark SQL over the inputs: text, or text by output."""
    history_field: str | None = None
    """The config field for how many positions before its scope a task also reads."""
    deletion_field: str | None = None
    """The config field that deletes the rows of hot inputs once the task is committed. Such an operator writes all
    the rows that it reads, and only those."""
    inputs: Ports = Ports()
    outputs: Ports = Ports()
    always_on: bool = False
    """Whether it is a source that never ends."""
    check: Callable[[Job, Dag], Iterable[JobMisfit]] | None = None
    """Further checks of a job that uses it."""

    errors: tuple[ErrorCode, ...] = ()
    """Its own error codes, besides those of the platform."""
    network: bool = False
    """Whether it needs the network; its jobs then need not request it."""
    columns_from: ColumnsFrom | None = None
    """None: from what its query says, if it has one; otherwise each column may come from all columns of all inputs."""
    position: str | None = None
    """The column of its outputs with the position of a row."""
    needs_emission: bool = False
    """Whether a task receives the emission of its event."""
    groups: bool = False
    """Whether its output has no rows of its own: readers get the rows of its input."""
    for_dags: bool = True
    """Whether DAG files may use it."""
    virtual_inputs: bool = False
    """Whether its jobs may read virtual datasets."""
    range_size_field: str | None = None
    """The config field that says how many positions each of its output's ranges has."""
    runs_once: bool = False
    """Whether a job has one task, created with the job: no event wakes it, and no cutover moves its inputs."""
    splits_on_spark: bool = False
    """Whether Spark runs it in parts, if its scope has several positions. A single one, and every scope on a runtime
    without Spark, runs its entrypoint. It runs none of the user's code."""
    publishes_signals: bool = False
    """Whether its tasks wait on other systems, in a loop of the dispatcher that publishes signals."""

    def fields_without_rebuild(
        self, before: Mapping[str, object], after: Mapping[str, object]
    ) -> frozenset[str]:
        """The fields whose values may differ between these configs of a job that keeps its data."""
        identity, fields = self.identity_fields, self.execution_fields
        if not identity:
            return fields
        is_set = any(before.get(name) is not None for name in identity)
        if is_set and all(before.get(name) == after.get(name) for name in identity):
            fields |= self.source_fields
        if all(before.get(name) == after.get(name) for name in self.source_fields):
            fields |= {*identity}
        return fields

    def remedy(self, code: str) -> Remedy | None:
        """Of an error of its own."""
        return next((error.remedy for error in self.errors if error.code == code), None)
