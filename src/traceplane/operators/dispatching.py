"""The operators that the dispatcher runs itself, inside its transaction; its code is in `dispatcher`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from traceplane.operators.spec import Config, OperatorSpec, Ports

_DISPATCHER = frozenset({"dispatcher"})


class AggregatorConfig(Config, frozen=True, kw_only=True):
    size: Annotated[
        int,
        Meta(
            ge=1,
            description="Positions of a range. Ranges are aligned: with 10 they are 0–9, 10–19 and so on.",
        ),
    ]
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


AGGREGATOR = OperatorSpec(
    name="aggregator",
    summary="Positions fill aligned ranges; a full range becomes one event.",
    runtimes=_DISPATCHER,
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
    config=ScopesConfig,
    inputs=Ports(least=1),
    outputs=Ports(least=1),
)

SPLITTER = OperatorSpec(
    name="splitter",
    summary="A partition becomes one event for each of its positions.",
    runtimes=_DISPATCHER,
    inputs=Ports(least=1),
    groups=True,
)

PASS = OperatorSpec(
    name="pass",
    summary="Repeats every event on each output.",
    runtimes=_DISPATCHER,
)

SOURCE = OperatorSpec(
    name="source",
    summary="Stands for a source that only receives events; a job need not name it.",
    runtimes=_DISPATCHER,
)
