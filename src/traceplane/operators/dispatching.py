"""The operators that the dispatcher runs itself, inside its transaction; its code is in `dispatcher`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from traceplane.operators.spec import ColumnsFrom, Config, OperatorSpec, Ports

_DISPATCHER = frozenset({"dispatcher"})


_Seconds = Annotated[float, Meta(gt=0)]


class AggregatorConfig(Config, frozen=True, kw_only=True):
    size: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Positions of a range. Ranges are aligned: with 10 they are 0–9, 10–19 and so on."),
    ] = None
    every_seconds: Annotated[
        _Seconds | None,
        Meta(description="Instead of `size`: a batch is closed this long after its first position."),
    ] = None
    all: Annotated[
        bool,
        Meta(
            description="Instead of `size`: a batch is closed once the jobs behind have done the one before."
        ),
    ] = False
    each: Annotated[
        bool,
        Meta(
            description="Instead of `size`: every event is passed on as it came. A deploy sets it in front of a job "
            "that keeps the data of its batches and has none any more."
        ),
    ] = False
    max_wait_seconds: Annotated[
        _Seconds | None,
        Meta(description="A range that is not full is closed this long after its first position."),
    ] = None
    finality: Annotated[
        int,
        Meta(
            ge=0,
            description="A full range waits until a position this many beyond its end has arrived.",
        ),
    ] = 0
    source_dataset: Annotated[
        str | None, Meta(description="Set for an aggregator that `Bulk` made: the dataset that it reads.")
    ] = None

    def __post_init__(self) -> None:
        rules = [self.size is not None, self.every_seconds is not None, self.all, self.each]
        if rules.count(True) != 1:
            raise ValueError("one of size, every_seconds, all and each must be set")
        if self.size is None and (self.finality or self.max_wait_seconds is not None):
            raise ValueError("finality and max_wait_seconds need a size")


AGGREGATOR = OperatorSpec(
    name="aggregator",
    summary="Positions become batches; a batch that is full, or whose time has come, becomes one event.",
    execution_fields=frozenset({"every_seconds", "max_wait_seconds"}),
    runtimes=_DISPATCHER,
    columns_from=ColumnsFrom.SAME_NAMES,
    config=AggregatorConfig,
    inputs=Ports(least=1),
    outputs=Ports(least=1),
    groups=True,
    range_size_field="size",
)


class ScopesConfig(Config, frozen=True, kw_only=True):
    when: Annotated[
        Literal["all", "any"],
        Meta(description="Whether a scope waits for all inputs of the job, or for any of them."),
    ] = "all"


SCOPES = OperatorSpec(
    name="scopes",
    summary="Decides which scopes of a job are ready, and which a change of an input makes stale.",
    runtimes=_DISPATCHER,
    columns_from=ColumnsFrom.OUTSIDE,
    config=ScopesConfig,
    inputs=Ports(least=1),
    outputs=Ports(least=1),
)

SPLITTER = OperatorSpec(
    name="splitter",
    summary="A partition becomes one event for each of its positions.",
    runtimes=_DISPATCHER,
    columns_from=ColumnsFrom.SAME_NAMES,
    inputs=Ports(least=1),
    groups=True,
)

PASS = OperatorSpec(
    name="pass",
    summary="Repeats every event on each output.",
    runtimes=_DISPATCHER,
    columns_from=ColumnsFrom.OUTSIDE,
)

SOURCE = OperatorSpec(
    name="source",
    summary="Stands for a source that only receives events; a job need not name it.",
    runtimes=_DISPATCHER,
    columns_from=ColumnsFrom.OUTSIDE,
)
