"""The checks of a dataset: what they may say, and the `Check`s they become."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import yaml

from traceplane.model import column_types
from traceplane.model.checks import Check, CheckKind, Severity, default_name
from traceplane.model.comparisons import DoesNotFit, fitted
from traceplane.model.dag import Activation, Job
from traceplane.model.near_names import near
from traceplane.operators import catalog
from traceplane.registry.spec.jobs import Draft, refuse_repeats
from traceplane.registry.spec.yaml_reader import Problems, YamlMap
from traceplane.sql import row_condition

_SPARK = frozenset({"spark"})
_KINDS = tuple(map(str, CheckKind))


def check(problems: Problems, top: YamlMap, drafts: list[Draft], producers: Mapping[str, int]) -> None:
    for dataset_id, dataset in (top.get("datasets") or {}).items():
        if dataset is None or not dataset.get("checks"):
            continue
        items = [item for item in dataset.get("checks") if _check_form(problems, item)]
        refuse_repeats(problems, "check", [(_name_of(item), item.node) for item in items])
        columns = {column.get("name"): column for column in dataset.get("columns") or ()}
        for item in items:
            _check_columns(problems, item, {} if None in columns else columns)
        if dataset_id in producers:
            _check_producer(problems, items, drafts[producers[dataset_id]])


def _check_form(problems: Problems, item: YamlMap) -> bool:
    """Whether it has one kind, with a value that can be read; whatever is wrong with it is reported."""
    named = [kind for kind in _KINDS if kind in item.nodes]
    if len(named) != 1:
        if named or not item.has_unknown:
            message = "a check has exactly one kind" + (f", not {' and '.join(named)}" if named else "")
            problems.add("spec.bad_check", item.node, message, f"one of: {', '.join(_KINDS)}")
        return False
    (kind,) = named
    if item.get(kind) is None:
        return False
    if kind == CheckKind.FRESHNESS and item.has("severity", Severity.BLOCK):
        message = "freshness cannot block: it fails when no output comes"
        problems.add("spec.bad_check", item.at("severity"), message, "write severity: warn, or remove it")
    if kind in (CheckKind.RANGE, CheckKind.ROWS):
        _check_bounds(problems, item.get(kind))
    return True


def _check_bounds(problems: Problems, bounds: YamlMap) -> None:
    if "min" not in bounds.nodes and "max" not in bounds.nodes:
        if not bounds.has_unknown:
            problems.add("spec.bad_check", bounds.node, "a range without bounds", "add min, max or both")
        return
    low, high = bounds.get("min"), bounds.get("max")
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        _add_empty(problems, bounds, low, high)


def _add_empty(problems: Problems, bounds: YamlMap, low: object, high: object) -> None:
    problems.add("spec.bad_check", bounds.at("max"), f"no value is from {low} to {high}", "swap them")


def _check_producer(problems: Problems, items: list[YamlMap], producer: Draft) -> None:
    operator = catalog.find(producer.record.get("operator") or "")
    if operator is not None and operator.runtimes <= _SPARK:
        return
    for item in items:
        if CheckKind.FRESHNESS not in item.nodes:
            message = (
                f"rows are checked on Spark, and the job {producer.name[:100]!r} does not write them there"
            )
            suggestion = "check a dataset that a sql or pyspark job makes of it, or keep only freshness"
            problems.add("spec.checks_need_spark", item.node, message, suggestion)


def check_freshness(problems: Problems, top: YamlMap, producers: Mapping[str, Job | None]) -> None:
    """What a source announces has no rows of its own, so none can be missed."""
    for dataset_id, dataset in (top.get("datasets") or {}).items():
        producer = producers.get(dataset_id)
        if dataset is None or producer is None or producer.activation is not Activation.SOURCE:
            continue
        for item in dataset.get("checks") or ():
            if CheckKind.FRESHNESS in item.nodes:
                message = f"the source {producer.name[:100]!r} only announces events of it, without rows"
                suggestion = "expect freshness of a dataset that a job makes of it"
                problems.add("spec.bad_check", item.at("freshness"), message, suggestion)


def _check_columns(problems: Problems, item: YamlMap, columns: Mapping[str, YamlMap]) -> None:
    """The columns that it names, and the values that it compares them with, if the dataset declares columns."""
    for kind in ("not_null", "unique"):
        if isinstance(item.at(kind), yaml.SequenceNode):
            refuse_repeats(problems, "column", zip(item.get(kind), item.at(kind).value, strict=False))
    if not columns:
        return
    if expression := item.get("expression"):
        types = {name: column.get("type") for name, column in columns.items()}
        for fault in row_condition.faults(expression, types):
            suggestion = near(fault.word, fault.known) or "write for example: amount > 0"
            problems.add(fault.code, item.at("expression"), fault.message, suggestion)
    for name, node in _named_columns(item):
        if name not in columns:
            message = f"the dataset has no column {name[:100]!r}"
            problems.add("spec.unknown_column", node, message, near(name, columns))
    for column, values in _compared(item):
        if column in columns and (declared := columns[column].get("type")):
            found = _fitted(problems, column, declared, values)
            if (bounds := item.get("range")) is not None:
                _check_order(problems, bounds, declared, found)
    for column in item.get("unique") or ():
        declared = columns[column].get("type") if column in columns else None
        if declared and "map<" in declared.replace(" ", "").lower():
            message = f"the column {column[:100]!r} is {declared[:100]}, and maps cannot be compared"
            problems.add("spec.bad_check", item.at("unique"), message, "name a column of another type")


def _named_columns(item: YamlMap) -> list[tuple[str, yaml.Node]]:
    found = []
    for kind in ("not_null", "unique"):
        if names := item.get(kind):
            node = item.at(kind)
            nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
            found += list(zip(names, nodes, strict=False))
    for kind in ("accepted", "range"):
        if (column := item.get(kind, "column")) is not None:
            found.append((column, item.get(kind).at("column")))
    return found


def _compared(item: YamlMap) -> list[tuple[str, list[tuple[Any, yaml.Node]]]]:
    """The column that a check compares, with the values."""
    if (accepted := item.get("accepted")) is not None and accepted.get("column"):
        values = accepted.get("values") or []
        return [(accepted.get("column"), list(zip(values, accepted.at("values").value, strict=False)))]
    if (bounds := item.get("range")) is not None and bounds.get("column"):
        values = [(bounds.get(word), bounds.at(word)) for word in ("min", "max")]
        return [(bounds.get("column"), [(value, node) for value, node in values if value is not None])]
    return []


def _fitted(problems: Problems, column: str, declared: str, values: list[tuple[Any, yaml.Node]]) -> list[Any]:
    """The values as the column has them. One that it cannot have would fail every task."""
    type_ = column_types.arrow_type(declared)
    found = []
    for value, node in values if type_ is not None else ():
        try:
            found.append(fitted(value, type_ or ""))
        except DoesNotFit as error:
            message = f"the column {column[:100]!r} is {declared[:100]} and cannot hold {value!r:.100}"
            problems.add("spec.wrong_type", node, message, error.suggestion)
    return found


def _check_order(problems: Problems, bounds: YamlMap, declared: str, values: list[Any]) -> None:
    """Of bounds that fit their column. Numbers were compared before, whatever their column."""
    type_ = column_types.arrow_type(declared) or ""
    if type_ == "bool":
        message = f"the column {bounds.get('column')[:100]!r} is boolean, and true and false have no order"
        problems.add("spec.bad_check", bounds.node, message, "use accepted: { column, values: [true] }")
    elif len(values) == 2 and isinstance(bounds.get("min"), str):
        low, high = map(Decimal, values) if type_.startswith("decimal") else values
        if low > high:
            _add_empty(problems, bounds, bounds.get("min"), bounds.get("max"))


def _name_of(item: YamlMap) -> str:
    if (name := item.get("name")) is not None:
        return str(name)
    kind = next(kind for kind in CheckKind if kind in item.nodes)
    return default_name(kind, [column for column, _ in _named_columns(item)])


def build(dataset: YamlMap | None) -> tuple[Check, ...]:
    """Of a dataset in which `check` found no problem."""
    return tuple(map(_built, (dataset.get("checks") or ()) if dataset is not None else ()))


def _built(item: YamlMap) -> Check:
    kind = next(kind for kind in CheckKind if kind in item.nodes)
    bounds: YamlMap | None = item.get(kind) if kind in (CheckKind.RANGE, CheckKind.ROWS) else None
    default = Severity.WARN if kind is CheckKind.FRESHNESS else Severity.BLOCK
    return Check(
        _name_of(item),
        kind,
        item.get("severity") or default,
        columns=tuple(column for column, _ in _named_columns(item)),
        values=tuple(item.get("accepted", "values") or ()),
        min=bounds.get("min") if bounds is not None else None,
        max=bounds.get("max") if bounds is not None else None,
        expression=item.get("expression"),
        seconds=item.get("freshness"),
    )
