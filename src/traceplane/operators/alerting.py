"""The operators of alerts. `alerts:` of a DAG file makes their jobs; a file does not name them itself."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from traceplane.model.dag import Column, Dataset, Storage, WriteMode
from traceplane.model.partitions import Partitions
from traceplane.operators.processing import QueryConfig
from traceplane.operators.spec import ColumnsFrom, Config, OperatorSpec, Ports

EVALUATE, ROUTE = "alert_evaluate", "alert_route"


class Each(StrEnum):
    """What a throttle counts by."""

    SUBJECT = "subject"
    ALERT = "alert"


class Throttle(msgspec.Struct, frozen=True):
    most: int
    per_seconds: float
    each: Each = Each.SUBJECT


# fmt: off
class RouteConfig(Config, frozen=True, kw_only=True):
    alert: Annotated[str, Meta(description="Its name.")]
    dataset: Annotated[str | None, Meta(description="What it is about.")] = None
    severity: Annotated[str, Meta(description="Its severity: info, warning, error or critical.")]
    subject: Annotated[tuple[str, ...], Meta(description="The columns that tell alerts apart.")]
    fields: Annotated[tuple[str, ...], Meta(description="Further columns that are sent.")] = ()
    title: Annotated[str, Meta(description="What is sent: one line, with placeholders.")]
    text: Annotated[str, Meta(description="What is sent: more of it, with placeholders.")] = ""
    channels: Annotated[tuple[str, ...], Meta(description="Where it is sent.")] = ()
    stale_after_seconds: Annotated[float | None, Meta(description="Rows with older times are not sent.")] = None
    throttle: Annotated[Throttle | None, Meta(description="How many are sent in a while.")] = None
    group_above: Annotated[int | None, Meta(description="More at once are sent as one message.")] = None
    owner: Annotated[str, Meta(description="Who is responsible for it.")] = ""
    declassified: Annotated[dict[str, str], Meta(description="Columns that are no personal data, and why.")] = (
        msgspec.field(default_factory=dict)
    )
# fmt: on


ALERT_EVALUATE = OperatorSpec(
    name=EVALUATE,
    summary="Finds the rows of a task's scope that an alert is about.",
    runtimes=frozenset({"spark"}),
    entrypoint="traceplane.dataplane.task:sql",
    config=QueryConfig,
    query_field="query",
    inputs=Ports(least=1, most=1),
    outputs=Ports(least=1, most=1),
    position="position",
    for_dags=False,
    virtual_inputs=True,
)

ALERT_ROUTE = OperatorSpec(
    name=ROUTE,
    summary="Decides which alerts are sent, and to whom.",
    runtimes=frozenset({"dispatcher"}),
    columns_from=ColumnsFrom.OUTSIDE,
    config=RouteConfig,
    execution_fields=frozenset(RouteConfig.__struct_fields__) - {"alert"},
    inputs=Ports(least=1, most=1),
    for_dags=False,
)


def found_dataset(dag: str, alert: str) -> str:
    """What the evaluation of an alert writes."""
    return f"{dag}.{alert}#alerts"


def found_rows(dataset_id: str, partitions: Partitions) -> Dataset:
    """What an alert's evaluation writes: a row for each alert, of the same form for all alerts."""
    return Dataset(
        dataset_id,
        storage=Storage.POSTGRES,
        write_mode=WriteMode.BUFFERED,
        columns=(
            Column("position", "bigint", nullable=False),
            Column("subject", "string", nullable=False),
            Column("fields", "string", nullable=False),
            Column("event_time", "timestamp"),
            Column("emission", "string"),
        ),
        position="position",
        partitions=partitions,
    )
