"""The operators of webhook sources, as listed in the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from traceplane.model import column_types
from traceplane.model.advice import Cause, Remedy
from traceplane.model.dag import Column, Dag, Dataset, Job, SourceKind, Storage, WriteMode
from traceplane.operators.spec import ColumnsFrom, Config, ErrorCode, JobMisfit, OperatorSpec, Ports
from traceplane.webhooks.bodies import pointer_problem
from traceplane.webhooks.config import WebhookConfig

DELIVERY_PLACES = ("delivery", "received_at", "key")
HEADER_PLACE, BODY_PLACE = "header:", "body:"


def deliveries(dataset_id: str) -> Dataset:
    """What a source keeps of each delivery. Nobody knows what a body holds, so only those who may see personal data
    see bodies and headers."""
    return Dataset(
        dataset_id,
        storage=Storage.POSTGRES,
        write_mode=WriteMode.DIRECT,
        columns=(
            Column("delivery", "bigint", nullable=False),
            Column("received_at", "timestamp", nullable=False),
            Column("key", "string", nullable=False),
            Column("headers", "string", nullable=False, pii=True),
            Column("body", "string", nullable=False, pii=True),
        ),
        position="delivery",
        description="Deliveries of a webhook source, numbered in the order in which they were accepted.",
    )


# fmt: off
class RowsConfig(Config, frozen=True, kw_only=True):
    rows: Annotated[str, Meta(
        description="A JSON pointer to the object that is a row, or to the list of those that are rows.")] = ""
    columns: Annotated[dict[str, str], Meta(
        description="Where the value of a column is, if not in the field of its name: a JSON pointer in the row's "
        "object, or in the whole body after `body:`; `delivery`, `received_at`, `key`; `header:` and a name.",
    )] = {}  # noqa: RUF012 -- msgspec copies it
# fmt: on


def _webhook_misfits(job: Job, _: Dag) -> Iterator[JobMisfit]:
    if job.source is None or job.source.kind is not SourceKind.WEBHOOK:
        message = "it stands for a webhook source, and no job names it"
        yield JobMisfit(
            ("operator",), message, "write activation: source, source: { kind: webhook, path: … }"
        )


def _rows_misfits(job: Job, dag: Dag) -> Iterator[JobMisfit]:
    declared: dict[str, Column] = {}
    for output in job.outputs:
        declared = {column.name: column for column in dag.datasets_by_id[output.dataset_id].columns}
        if not declared:
            message = f"the dataset {output.dataset_id} declares no columns, so its rows have no types"
            yield JobMisfit(("outputs",), message, "declare its columns under datasets")
        for name, column in declared.items():
            if column_types.arrow_type(column.type) is None:
                yield JobMisfit(
                    ("outputs",), f"rows cannot have the column {name}, of the type {column.type}"
                )
    places = job.config.get("columns")
    for name, place in places.items() if isinstance(places, dict) else ():
        if declared and name not in declared:
            yield JobMisfit(("config", "columns", name), f"the dataset has no column {name[:100]!r}")
        elif isinstance(place, str) and not _is_place(place):
            message = f"{place[:100]!r} is no place of a value"
            allowed = "a JSON pointer such as /customer/id, body:/id, header:X-Name, " + ", ".join(
                DELIVERY_PLACES
            )
            yield JobMisfit(("config", "columns", name), message, allowed)
    rows = job.config.get("rows")
    if isinstance(rows, str) and (problem := pointer_problem(rows)) is not None:
        yield JobMisfit(("config", "rows"), problem)


def _is_place(place: str) -> bool:
    if place in DELIVERY_PLACES or (place.startswith(HEADER_PLACE) and place != HEADER_PLACE):
        return True
    pointer = place.removeprefix(BODY_PLACE)
    return pointer_problem(pointer) is None and (pointer != "" or place == BODY_PLACE)


def _unfit(code: str, meaning: str, step: str) -> ErrorCode:
    return ErrorCode(code, meaning, retried=False, remedy=Remedy(Cause.DEFINITION, step))


WEBHOOK = OperatorSpec(
    name="webhook",
    summary="Stands for a webhook source; the gateway receives its deliveries.",
    runtimes=frozenset({"dispatcher"}),
    columns_from=ColumnsFrom.OUTSIDE,
    config=WebhookConfig,
    execution_fields=frozenset(WebhookConfig.__struct_fields__),
    outputs=Ports(least=1, most=1),
    check=_webhook_misfits,
)

WEBHOOK_ROWS = OperatorSpec(
    name="webhook_rows",
    summary="Turns the deliveries of a webhook source into rows with the declared columns.",
    runtimes=frozenset({"python"}),
    columns_from=ColumnsFrom.OUTSIDE,
    entrypoint="traceplane.webhooks.rows:run",
    config=RowsConfig,
    inputs=Ports(least=1, most=1),
    outputs=Ports(least=1, most=1),
    check=_rows_misfits,
    errors=(
        _unfit("webhook.not_rows", "a body is neither an object nor a list of objects",
               "correct `config.rows`, or read the deliveries with an operator of your own, and deploy"),
        _unfit("webhook.value_unfit", "a value of a body does not fit its column",
               "correct the column's type or its place in `config.columns`, and deploy; or acknowledge the task"),
    ),
)  # fmt: skip
