"""The operator `webhook_rows`: deliveries become rows with the declared columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from traceplane.columnar.arrow_types import declared_name, type_of
from traceplane.columnar.json_values import ValueUnfit, converted
from traceplane.operators import config as operator_config
from traceplane.sdk import OperatorError, OperatorOutput, OperatorTask
from traceplane.webhooks.bodies import NotABody, find, value_of
from traceplane.webhooks.specs import BODY_PLACE, DELIVERY_PLACES, HEADER_PLACE, RowsConfig

_LIMIT = 10_000
"""Rows in memory at once."""


@dataclass(frozen=True, slots=True)
class _Item:
    """An object that becomes a row, and the delivery that it is from."""

    value: dict[str, Any]
    body: Any
    delivery: Mapping[str, Any]
    headers: Mapping[str, Any]

    def at(self, place: str) -> Any:
        """None if there is nothing."""
        if place in DELIVERY_PLACES:
            value = self.delivery[place]
            return value.isoformat() if isinstance(value, datetime) else value
        if place.startswith(HEADER_PLACE):
            return self.headers.get(place.removeprefix(HEADER_PLACE).lower())
        source = self.body if place.startswith(BODY_PLACE) else self.value
        try:
            return find(source, place.removeprefix(BODY_PLACE))
        except LookupError:
            return None


def run(task: OperatorTask) -> None:
    config = operator_config.read(task.config, RowsConfig)
    (source,), (output,) = task.inputs.values(), task.outputs.values()
    columns = _Columns(output, config)
    waiting: list[list[Any]] = []
    for delivery in task.read(source.name).to_pylist():
        for item in _items(delivery, config):
            waiting.append(columns.row(item))
            if len(waiting) == _LIMIT:
                task.write(output.name, columns.table(waiting))
                waiting = []
    if waiting:
        task.write(output.name, columns.table(waiting))


class _Columns:
    def __init__(self, output: OperatorOutput, config: RowsConfig) -> None:
        fields = [pa.field(c.name, type_of(c.type), c.nullable) for c in output.columns]
        self._schema = pa.schema(fields)
        self._places = [config.columns.get(field.name, _own_field(field.name)) for field in fields]

    def row(self, item: _Item) -> list[Any]:
        row = []
        for field, place in zip(self._schema, self._places, strict=True):
            value = item.at(place)
            try:
                row.append(converted(value, field.type))
            except ValueUnfit as error:
                raise _unfit(item, field.name, str(error)) from None
            if value is None and not field.nullable:
                raise _unfit(
                    item, field.name, f"there is no value at {place}, and the column is not nullable"
                )
        return row

    def table(self, rows: list[list[Any]]) -> pa.Table:
        arrays = []
        for field, values in zip(self._schema, zip(*rows, strict=True), strict=True):
            try:
                arrays.append(pa.array(values, field.type))
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                message = (
                    f"column {field.name!r}: a value has more digits than {declared_name(field.type)} holds"
                )
                raise OperatorError("webhook.value_unfit", message) from None
        return pa.Table.from_arrays(arrays, schema=self._schema)


def _own_field(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")


def _items(delivery: Mapping[str, Any], config: RowsConfig) -> Iterator[_Item]:
    number = delivery["delivery"]
    try:
        body, headers = value_of(delivery["body"]), value_of(delivery["headers"])
        found = find(body, config.rows)
    except NotABody as error:
        raise OperatorError("webhook.not_rows", f"delivery {number}: {error}") from None
    except LookupError:
        raise OperatorError("webhook.not_rows", f"delivery {number} has nothing at {config.rows}") from None
    for place, value in enumerate(found if isinstance(found, list) else [found]):
        if not isinstance(value, dict):
            message = f"delivery {number}: item {place} is no object, so it is no row"
            raise OperatorError("webhook.not_rows", message)
        yield _Item(value, body, delivery, headers)


def _unfit(item: _Item, column: str, why: str) -> OperatorError:
    number = item.delivery["delivery"]
    return OperatorError("webhook.value_unfit", f"delivery {number}, column {column!r}: {why}")
