"""The datasets of a DAG file: what stored, hot and virtual ones need, and the `Dataset`s they become."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal
from graphlib import CycleError, TopologicalSorter
from typing import Any

import yaml

from traceplane.file_sources.specs import listed_files
from traceplane.model import column_types, extents, hot_table
from traceplane.model import dag as model
from traceplane.model.compaction import Compaction
from traceplane.model.comparisons import DoesNotFit, fitted
from traceplane.model.dag import Job
from traceplane.model.near_names import near
from traceplane.model.partitions import Partitions
from traceplane.model.row_positions import WHOLE_NUMBERS, PositionColumn
from traceplane.operators import alerting, catalog
from traceplane.registry.spec import files, webhooks
from traceplane.registry.spec.jobs import Draft, refuse_repeats
from traceplane.registry.spec.yaml_reader import Problems, YamlMap, entries
from traceplane.sql import job_query, virtual
from traceplane.webhooks.specs import deliveries

_UNORDERED = ("array", "struct", "map", "list")


def check(problems: Problems, top: YamlMap, drafts: list[Draft], producers: dict[str, int]) -> None:
    declared: dict[str, YamlMap | None] = top.get("datasets") or {}
    virtual_ones = {i for i, dataset in declared.items() if dataset is not None and _is_virtual(dataset)}
    if "jobs" in top.nodes and top.lacks("jobs") and not virtual_ones and top.lacks("alerts"):
        message = "a DAG needs at least one job, virtual dataset or alert"
        problems.add("spec.no_jobs", top.at("jobs"), message, "add a job")
    keys = entries(problems, top.at("datasets")) if declared else {}
    for dataset_id, dataset in declared.items():
        unproduced = dataset_id not in producers and dataset_id not in virtual_ones
        if unproduced and all(draft.outputs_known() for draft in drafts):
            suggestion = near(dataset_id, producers.keys() - declared.keys()) or "remove it"
            message = f"no job of this file produces {dataset_id[:100]!r}"
            problems.add("spec.unproduced_dataset", keys[dataset_id][0], message, suggestion)
        if dataset is None:
            continue
        _check_virtual(problems, dataset, declared)
        if dataset_id in virtual_ones and dataset_id in producers:
            outputs = drafts[producers[dataset_id]].outputs
            item = next(item for output, item in outputs if output.dataset_id == dataset_id)
            message = f"{dataset_id[:100]!r} is virtual: its SQL produces it"
            problems.add("spec.virtual_produced", item.at("dataset"), message, "write another dataset")
        if not dataset.lacks("write_mode") and (
            dataset.lacks("storage") or dataset.has("storage", "parquet")
        ):
            message = "write_mode is only for storage: postgres"
            problems.add("spec.write_mode_needs_postgres", dataset.at("write_mode"), message, "remove it")
        if not dataset.has("storage", "postgres"):
            for name in ("unique_key", "indexes"):
                if name in dataset.nodes:
                    message = f"{name} is only for storage: postgres"
                    problems.add("spec.needs_hot_table", dataset.at(name), message, "remove it")
        columns = [(column.get("name"), column.at("name")) for column in dataset.get("columns") or ()]
        refuse_repeats(problems, "column", columns)
        _check_files(problems, dataset)
        if dataset.has("storage", "postgres"):
            _check_hot_table(problems, dataset)
    for draft in drafts:
        for used, item in draft.inputs:
            _check_columns_read(problems, item, declared.get(used.dataset_id))


def _check_files(problems: Problems, dataset: YamlMap) -> None:
    """How the files of a dataset are written and merged."""
    hot = dataset.has("storage", "postgres")
    for name in ("cluster_by", "compaction"):
        if hot and name in dataset.nodes:
            message = f"{name} is for datasets of files"
            problems.add("spec.needs_files", dataset.at(name), message, "remove it, or storage: postgres")
    nodes = dataset.at("cluster_by").value if dataset.get("cluster_by") else []
    named = [n for n in nodes if isinstance(n, yaml.ScalarNode)]
    refuse_repeats(problems, "column", [(n.value, n) for n in named])
    columns = _columns_by_name(dataset)
    for node in named if columns else ():
        if node.value not in columns:
            message = f"the dataset has no column {node.value[:100]!r}"
            problems.add("spec.unknown_column", node, message, near(node.value, columns))
        elif (columns[node.value].get("type") or "").strip().lower().startswith(_UNORDERED):
            message = f"the column {node.value[:100]!r} has no order"
            problems.add("spec.unsortable_column", node, message, "name columns of numbers, texts or times")


def _is_virtual(dataset: YamlMap) -> bool:
    return dataset.has("storage", "virtual")


def _check_virtual(problems: Problems, dataset: YamlMap, declared: dict[str, YamlMap | None]) -> None:
    if not _is_virtual(dataset):
        if "sql" in dataset.nodes and (dataset.lacks("storage") or dataset.get("storage")):
            message = "only a virtual dataset has sql"
            problems.add("spec.sql_needs_virtual", dataset.at("sql"), message, "add storage: virtual")
        return
    if "sql" not in dataset.nodes:
        message = "a virtual dataset needs sql"
        problems.add("spec.virtual_needs_sql", dataset.at("storage"), message, "add sql: select ...")
    for name in ("write_mode", "position", "retention", "cluster_by", "compaction", "checks"):
        if name in dataset.nodes:
            message = f"a virtual dataset stores nothing, so it cannot have {name}"
            problems.add("spec.virtual_not_stored", dataset.at(name), message, "remove it")
    if sql := dataset.get("sql"):
        gated = virtual.checked(sql)
        columns = {
            relation.name: _columns_stored(declared.get(relation.dataset_id)) for relation in gated.relations
        }
        for fault in job_query.unknown_columns(gated.sql, columns):
            problems.add(fault.code, dataset.at("sql"), fault.message, near(fault.word, fault.known))


def _columns_stored(dataset: YamlMap | None) -> list[str] | None:
    """None if unknown: for virtual datasets, those of other DAGs, and those that declare none."""
    return None if dataset is None or _is_virtual(dataset) else list(_columns_by_name(dataset)) or None


def read_by_virtual(problems: Problems, top: YamlMap) -> dict[str, list[str]]:
    """The datasets that each virtual dataset's SQL reads; cycles are reported as problems."""
    declared: dict[str, YamlMap | None] = top.get("datasets") or {}
    below = {
        dataset_id: virtual.reads(dataset.get("sql"))
        for dataset_id, dataset in declared.items()
        if dataset is not None and _is_virtual(dataset) and dataset.get("sql")
    }
    while True:
        graph = {dataset_id: [r for r in reads if r in below] for dataset_id, reads in below.items()}
        try:
            TopologicalSorter(graph).prepare()
            return below
        except CycleError as error:
            cycle = error.args[1][::-1]
            dataset = declared[cycle[0]]
            assert dataset is not None
            message = f"virtual datasets read each other: {' → '.join(cycle)}"
            problems.add("spec.cycle", dataset.at("sql"), message[:500], "make one read stored datasets only")
            below[cycle[0]] = [r for r in below[cycle[0]] if r != cycle[1]]


def stored_below(dataset_id: str, below: dict[str, list[str]]) -> set[str]:
    """The dataset itself, or the stored datasets that a virtual one of this file ends up reading."""
    seen, waiting = {dataset_id}, [dataset_id]
    while waiting:
        new = set(below.get(waiting.pop(), ())) - seen
        seen |= new
        waiting += new
    return seen - below.keys()


def check_positions(
    problems: Problems, top: YamlMap, partitions: Mapping[str, Partitions], unknown: Collection[str]
) -> None:
    """Queries and tasks select rows by the values of their position column.

    `unknown`: datasets whose partitions are not known here, and which may be those of any other that declares none.
    """
    for dataset_id, dataset in (top.get("datasets") or {}).items():
        if dataset is not None and not _is_virtual(dataset):
            not_known = unknown or not dataset.lacks("partitions")  # or what it declares is invalid
            own = partitions.get(dataset_id, None if not_known else Partitions())
            _check_position(problems, dataset, own)


def _check_position(problems: Problems, dataset: YamlMap, partitions: Partitions | None) -> None:
    columns = _columns_by_name(dataset)
    position = dataset.get("position")
    if not position or not columns:
        return
    if position not in columns:
        message = f"no column {position[:100]!r} here"
        problems.add("spec.unknown_column", dataset.at("position"), message, near(position, columns))
        return
    if not (type_ := columns[position].get("type")):
        return
    column = PositionColumn(position, column_types.arrow_type(type_) or "", partitions or Partitions())
    if column.type not in WHOLE_NUMBERS and not column.is_time:
        message = f"positions are whole numbers, dates or timestamps, but {position[:100]!r} is {type_[:100]}"
        suggestion = "name a bigint column" + (
            ", or a timestamp column" if partitions and partitions.is_time else ""
        )
        problems.add("spec.bad_position", dataset.at("position"), message, suggestion)
    elif partitions is not None and column.misfit is not None:
        message = f"{position[:100]!r} is {type_[:100]}, but {column.misfit}"
        suggestion = (
            "name a timestamp or bigint column"
            if partitions.is_time
            else "add partitions: { by: day }, or name a bigint column"
        )
        problems.add("spec.bad_position", dataset.at("position"), message, suggestion)


def _columns_by_name(dataset: YamlMap) -> dict[str, YamlMap]:
    """Empty if none are declared, or if one has an invalid name, which is already reported."""
    columns = {column.get("name"): column for column in dataset.get("columns") or ()}
    return {} if None in columns else columns


def _check_hot_table(problems: Problems, dataset: YamlMap) -> None:
    """A hot table is created from its declaration and read by position."""
    types = {column.get("name"): column for column in dataset.get("columns") or ()}
    if dataset.lacks("columns") or dataset.lacks("position"):
        message = "a hot table needs columns, and one of them as its position"
        suggestion = "add columns: [{ name: block, type: bigint }, ...] and position: block"
        problems.add("spec.hot_needs_position", dataset.node, message, suggestion)
    for name, column in types.items():
        if (kind := column.get("type")) and hot_table.stored_as(kind) is None:
            message = f"a hot table cannot have columns of the type {kind[:100]!r}"
            suggestion = f"one of: {', '.join(hot_table.SUPPORTED_TYPES)}"
            problems.add("spec.hot_type_unsupported", column.at("type"), message, suggestion)
        if name and not hot_table.can_be_column(name):
            message = f"Postgres cannot have a column {name[:100]!r}"
            problems.add("spec.bad_name", column.at("name"), message, "up to 63 bytes, and no system column")
    _check_keys(problems, dataset, [name for name in types if name])


def _check_keys(problems: Problems, dataset: YamlMap, columns: Collection[str]) -> None:
    """What identifies a row of a hot table, and what its readers look for."""
    keys = [dataset.at("unique_key")] if dataset.get("unique_key") else []
    for node in keys + (dataset.at("indexes").value if dataset.get("indexes") else []):
        named = [(n.value, n) for n in node.value if isinstance(n, yaml.ScalarNode)]
        refuse_repeats(problems, "column", named)
        for name, where in named:
            if columns and name not in columns:
                problems.add(
                    "spec.unknown_column",
                    where,
                    f"the dataset has no column {name[:100]!r}",
                    near(name, columns),
                )
    position = dataset.get("position")
    if keys and position and position not in dataset.get("unique_key"):
        # Or a row would vanish from its scope because another scope has its key, and nobody reading it would know.
        message = f"the position {position[:100]!r} must be a part of unique_key"
        problems.add("spec.key_without_position", keys[0], message, f"add {position[:100]}")


def _check_columns_read(problems: Problems, item: YamlMap, dataset: YamlMap | None) -> None:
    """The columns an input names must exist, if this file declares the dataset."""
    nodes = item.at("columns").value if item.get("columns") else []
    refuse_repeats(problems, "column", [(n.value, n) for n in nodes if isinstance(n, yaml.ScalarNode)])
    columns = _columns_by_name(dataset) if dataset is not None else {}
    if not columns:
        return
    for node in nodes:
        if isinstance(node, yaml.ScalarNode) and node.value not in columns:
            message = f"the dataset has no column {node.value[:100]!r}"
            problems.add("spec.unknown_column", node, message, near(node.value, columns))
    where = item.get("where") or {}
    for name, (key, node) in entries(problems, item.at("where")).items() if where else ():
        if name not in columns and not _is_field(name, columns):
            message = f"the dataset has no column {name[:100]!r}"
            problems.add("spec.unknown_column", key, message, near(name, columns))
        elif name in columns and where[name] is not None:
            _check_condition(problems, where[name], node, columns[name])


def check_time_columns(
    problems: Problems, top: YamlMap, drafts: list[Draft], partitions: Mapping[str, Partitions]
) -> None:
    """The columns that say in which period of a job a row is, as far as this file declares them."""
    declared: dict[str, YamlMap | None] = top.get("datasets") or {}
    for draft in drafts:
        own = [partitions[o.dataset_id] for o, _ in draft.outputs if o.dataset_id in partitions]
        for used, item in draft.inputs:
            column, dataset = used.read.time_column, declared.get(used.dataset_id)
            if column is None or dataset is None:
                continue
            columns, node = _columns_by_name(dataset), item.at("time_column")
            if _is_virtual(dataset):
                message = "a virtual dataset has no files that say which times their rows have"
                problems.add("spec.bad_time_column", node, message, "read the datasets that its SQL reads")
            elif columns and column not in columns:
                message = f"the dataset has no column {column[:100]!r}"
                problems.add("spec.unknown_column", node, message, near(column, columns))
            elif column in columns and (type_ := columns[column].get("type")) and own:
                fault = extents.misfit(column_types.arrow_type(type_) or type_, own[0])
                if fault is not None:
                    message = f"the column {column[:100]!r} is {type_[:100]}: {fault}"
                    suggestion = "name a column of type timestamp, or bigint with the seconds since 1970"
                    problems.add("spec.bad_time_column", node, message, suggestion)


def _is_field(name: str, columns: dict[str, YamlMap]) -> bool:
    """Spark can also filter by a field of a struct, written column.field."""
    column = columns.get(name.partition(".")[0])
    return column is not None and (column.get("type") or "struct").strip().lower().startswith("struct")


def _check_condition(problems: Problems, condition: object, node: yaml.Node, column: YamlMap) -> None:
    """A value that the column cannot have would fail every task."""
    declared = column.get("type")
    type_ = column_types.arrow_type(declared) if declared else None
    if type_ is None:
        return
    name = column.get("name")[:100]
    if type_ == "bool" and isinstance(condition, dict):
        message = f"the column {name!r} is boolean, and true and false have no order"
        problems.add("spec.bad_where", node, message, "write true or false")
        return
    values: dict[str, Any] = {}
    for word, (value, at) in _values(problems, condition, node).items():
        try:
            values[word] = fitted(value, type_)
        except DoesNotFit as error:
            message = f"the column {name!r} is {declared[:100]} and cannot hold {value!r:.100}"
            problems.add("spec.wrong_type", at, message, error.suggestion)
    low, high = values.get("at_least", values.get("above")), values.get("at_most", values.get("below"))
    if low is None or high is None or not isinstance(condition, dict):
        return
    if type_.startswith("decimal"):
        low, high = Decimal(low), Decimal(high)
    if low > high or (low == high and not {"at_least", "at_most"} <= condition.keys()):
        message = f"no value is in this range: {low} is not below {high}"
        problems.add("spec.bad_where", node, message, "give the lower bound first")


def _values(problems: Problems, condition: object, node: yaml.Node) -> dict[str, tuple[Any, yaml.Node]]:
    """The values of a condition with their nodes: by the words of a range, or by number."""
    if isinstance(condition, dict):
        nodes = entries(problems, node)
        return {word: (value, nodes[word][1]) for word, value in condition.items()}
    if isinstance(condition, list):
        return {str(n): pair for n, pair in enumerate(zip(condition, node.value, strict=False))}
    return {"": (condition, node)}


def build(
    dataset_id: str, declared: YamlMap | None, producer: Job | None, partitions: Mapping[str, Partitions]
) -> model.Dataset:
    if producer is not None and webhooks.is_receiver(producer):
        return deliveries(dataset_id)
    if producer is not None and producer.operator == alerting.EVALUATE:
        return alerting.found_rows(dataset_id, partitions.get(dataset_id, Partitions()))
    if producer is not None and files.is_listing(producer):
        retention = declared.get("retention") if declared is not None else None
        return listed_files(dataset_id, partitions.get(dataset_id, Partitions()), retention)
    operator = catalog.find(producer.operator) if producer is not None else None
    position = operator.position if operator is not None else None
    own = partitions.get(dataset_id, Partitions())
    if declared is None:
        return model.Dataset(dataset_id, position=position, partitions=own)
    storage = declared.get("storage") or model.Storage.PARQUET
    default_mode = model.WriteMode.BUFFERED if storage == model.Storage.POSTGRES else None
    return model.Dataset(
        dataset_id,
        storage=storage,
        write_mode=declared.get("write_mode") or default_mode,
        columns=tuple(model.Column(**column.values) for column in declared.get("columns") or ()),
        position=declared.get("position") or position,
        unique_key=tuple(declared.get("unique_key") or ()),
        indexes=tuple(tuple(columns) for columns in declared.get("indexes") or ()),
        partitions=own,
        description=declared.get("description") or "",
        retention=declared.get("retention"),
        cluster_by=tuple(declared.get("cluster_by") or ()),
        compaction=Compaction(**{n: v for n, v in merging.values.items() if v is not None})
        if (merging := declared.get("compaction"))
        else Compaction(),
        sql=declared.get("sql"),
    )
