"""The fields of a DAG file: where each may occur, and which values it takes."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable

import yaml

from traceplane.errors import TraceplaneError
from traceplane.model import (
    column_types,
    comparisons,
    edges,
    partitions,
    requirements,
    resources,
    spark_resources,
)
from traceplane.model import dag as model
from traceplane.model.checks import Severity
from traceplane.model.near_names import near
from traceplane.model.spark_resources import SparkResources
from traceplane.registry.spec import alerts, files, webhooks
from traceplane.registry.spec import yaml_reader as read
from traceplane.registry.spec.yaml_reader import BadValue, Fields, Problems
from traceplane.schedule import cron
from traceplane.secrets import references
from traceplane.sql import row_condition, virtual

VERSION = 1
MAX_NAME = 63
_SMALLEST_FILE, _LARGEST_FILE, _FEWEST_FILES = 1 << 20, 4 << 30, 2

_name = read.matching(
    rf"[a-z][a-z0-9_-]{{0,{MAX_NAME - 1}}}", f"a name: a-z, then a-z, 0-9, _ or -, up to {MAX_NAME} in all"
)
_function = read.matching(
    r"((arn:aws[a-z-]*:lambda:[a-z0-9-]{1,40}:)?[0-9]{12}:function:)?[A-Za-z0-9_-]{1,64}(:[A-Za-z0-9$_-]{1,128})?",
    "the name or ARN of a Lambda function",
)
_variable = read.matching(r"[A-Za-z_][A-Za-z0-9_]{0,99}", "a name: letters, digits and _, up to 100")
_path = read.matching(
    r"(?!/)(?!(.*/)?\.\.(/|$))[^\s]{1,300}",
    "a list of requirements, or the path of a file below the folder of the DAG file, without spaces",
)
_label = read.matching(r"[^\s#]{1,200}", "1 to 200 characters without spaces and '#'")


def _version(problems: Problems, node: yaml.Node) -> int:
    if (value := int(read.whole(problems, node))) != VERSION:
        raise BadValue("spec.unsupported_version", node, "the version is unknown", f"write {VERSION}")
    return value


def _schedule(problems: Problems, node: yaml.Node) -> str:
    value: str = read.text(problems, node)
    try:
        cron.check(value)
    except ValueError as error:
        message = f"{value[:100]!r} is not a valid cron schedule: {error}"
        raise BadValue("spec.bad_schedule", node, message, cron.FORM) from None
    return value


def _value(problems: Problems, node: yaml.Node) -> str | int | float | bool:
    if (value := read.scalar(problems, node)) is None:
        raise read.wrong_type(node, "one value")
    return value


def _condition(problems: Problems, node: yaml.Node) -> object:
    """A value, several, or bounds of a range, as `model.comparisons` has them."""
    if isinstance(node, yaml.SequenceNode):
        values: list[object] = read.list_of(_value)(problems, node)
        if not node.value:
            raise BadValue(
                "spec.bad_where", node, "no value is in an empty list", "list a value, or remove it"
            )
        return values
    if not isinstance(node, yaml.MappingNode):
        return _value(problems, node)
    bounds: read.YamlMap = read.record(_CONDITION)(problems, node)
    for words in (("at_least", "above"), ("at_most", "below")):
        if all(word in bounds.nodes for word in words):
            message = f"a range has one of {words[0]} and {words[1]}"
            raise BadValue("spec.bad_where", bounds.at(words[1]), message, "remove one of them")
    if not bounds.nodes and not bounds.has_unknown:
        suggestion = "write { at_least: ..., below: ... }"
        raise BadValue("spec.bad_where", node, "a range without bounds", suggestion)
    return {name: value for name, value in bounds.values.items() if value is not None}


def _type(problems: Problems, node: yaml.Node) -> str:
    value: str = read.text(problems, node)
    try:
        column_types.check(value)
    except column_types.UnknownType as error:
        elsewhere = column_types.ELSEWHERE.get(error.word.lower())
        suggestion = f"write {elsewhere}" if elsewhere else near(error.word, column_types.KNOWN)
        raise BadValue("spec.unknown_type", node, str(error)[:300], suggestion) from None
    return value


def _admitted(gate: Callable[[str], object]) -> read.Read:
    """SQL that runs in queries or on Spark: it must pass the gate for it."""

    def admitted(problems: Problems, node: yaml.Node) -> str:
        text: str = read.text(problems, node)
        try:
            gate(text)
        except TraceplaneError as error:
            message = error.message if error.value is None else f"{error.message}: {error.value}"
            raise BadValue("spec.sql_refused", node, message[:500], error.next_step) from None
        return text

    return admitted


def _columns(problems: Problems, node: yaml.Node) -> list[str]:
    """One column, or several."""
    if not isinstance(node, yaml.SequenceNode):
        return [_label(problems, node)]
    if not node.value:
        raise BadValue("spec.bad_check", node, "the list of columns is empty", "name a column")
    columns: list[str] = read.list_of(_label)(problems, node)
    return columns


def _accepted_values(problems: Problems, node: yaml.Node) -> list[object]:
    values: list[object] = read.list_of(_value)(problems, node)
    if not node.value:
        raise BadValue("spec.bad_check", node, "no value is in an empty list", "list the accepted values")
    return values


def _number_of_rows(problems: Problems, node: yaml.Node) -> int:
    if (value := int(read.whole(problems, node))) < 0:
        raise BadValue("spec.out_of_range", node, "a number of rows is 0 or more")
    return value


def _zone(problems: Problems, node: yaml.Node) -> str:
    value: str = read.text(problems, node)
    try:
        partitions.zone(value)
    except partitions.UnknownZone:
        message = f"there is no time zone {value[:100]!r}"
        raise BadValue(
            "spec.unknown_time_zone", node, message, near(value, zoneinfo.available_timezones())
        ) from None
    return value


def _start(problems: Problems, node: yaml.Node) -> str:
    """The name of a partition; it is read once it is known what the partitions are."""
    return str(read.scalar(problems, node))


def _extent(problems: Problems, node: yaml.Node) -> int:
    if not 0 <= (value := int(read.whole(problems, node))) <= _MOST_AROUND:
        raise BadValue("spec.out_of_range", node, f"must be from 0 to {_MOST_AROUND}")
    return value


def _what_is_read(problems: Problems, node: yaml.Node) -> edges.What | read.YamlMap:
    """A word, or a window around the scope."""
    if isinstance(node, yaml.MappingNode):
        window: read.YamlMap = read.record(_WINDOW)(problems, node)
        return window
    what: edges.What = read.choice(edges.What)(problems, node)
    return what


def _catch_up(problems: Problems, node: yaml.Node) -> model.SourceCatchUp | None:
    """A policy, alone or with its limit."""
    if not isinstance(node, yaml.MappingNode):
        return model.SourceCatchUp(read.choice(model.CatchUpPolicy)(problems, node))
    found: read.YamlMap = read.record(_CATCH_UP, "policy")(problems, node)
    given = {name: value for name, value in found.values.items() if value is not None}
    return model.SourceCatchUp(**given)


def _most_missed(problems: Problems, node: yaml.Node) -> int:
    if not 1 <= (value := int(read.whole(problems, node))) <= _MOST_MISSED:
        raise BadValue("spec.out_of_range", node, f"must be from 1 to {_MOST_MISSED}")
    return value


def _memory(problems: Problems, node: yaml.Node) -> int:
    try:
        return resources.parsed_memory(str(read.scalar(problems, node)))
    except resources.BadResources as error:
        raise BadValue("spec.bad_memory", node, str(error), resources.MEMORY_FORM) from None


def _file_size(problems: Problems, node: yaml.Node) -> int:
    size = _memory(problems, node)
    if not _SMALLEST_FILE <= size <= _LARGEST_FILE:
        raise BadValue("spec.bad_compaction", node, "a file is merged up to 1 MB to 4 GB", "for example 128m")
    return size


def _files_of_a_merge(problems: Problems, node: yaml.Node) -> int:
    if (value := read.count(problems, node)) < _FEWEST_FILES:
        raise BadValue("spec.bad_compaction", node, "fewer than 2 files cannot be merged", "write 2 or more")
    return value


def _worker_label(problems: Problems, node: yaml.Node) -> str:
    value: str = read.text(problems, node)
    if not resources.is_label(value):
        raise BadValue("spec.bad_name", node, f"{value[:100]!r} is not {resources.LABEL_RULE}")
    return value


def _requirements(problems: Problems, node: yaml.Node) -> resources.Resources:
    needed: read.YamlMap = read.record(_REQUIRES)(problems, node)
    labels = resources.sorted_labels(needed.get("labels") or ())
    return resources.Resources(needed.get("memory") or 0, needed.get("gpu") or 0, labels)


def _spark(problems: Problems, node: yaml.Node) -> SparkResources:
    asked: read.YamlMap = read.record(_SPARK)(problems, node)
    found = SparkResources(**{name: asked.get(name) for name in _SPARK})
    most = found.max_executors
    if most is not None and found.executors is not None and found.executors > most:
        message = f"{found.executors} executors are more than max_executors"
        raise BadValue("spec.bad_spark", asked.at("executors"), message, f"write executors: {most}")
    return found


def _at_most(most: int) -> Callable[[Problems, yaml.Node], int]:
    def count(problems: Problems, node: yaml.Node) -> int:
        value: int = read.count(problems, node)
        if value > most:
            raise BadValue("spec.bad_spark", node, f"must be from 1 to {most}", f"for example {min(most, 8)}")
        return value

    return count


def _heap(problems: Problems, node: yaml.Node) -> int:
    size = _memory(problems, node)
    if size < spark_resources.LEAST_MEMORY:
        raise BadValue("spec.bad_spark", node, "Spark needs at least 512m", "write 512m or more")
    return size


def _dag(problems: Problems, node: yaml.Node) -> str:
    name: str = _name(problems, node)
    if name in (references.CHANNELS, references.PROVIDERS):
        message = f"no DAG can be called {name!r}: secrets may be allowed to {name}/NAME, which is no job"
        raise BadValue("spec.bad_name", node, message, f"for example {name}s")
    return name


def _requirement(problems: Problems, node: yaml.Node) -> str:
    value: str = read.text(problems, node).strip()
    if not requirements.is_requirement(value):
        message = f"{value[:100]!r} is not a requirement"
        raise BadValue("spec.bad_requirement", node, message, requirements.FORM)
    return value


def _packages(problems: Problems, node: yaml.Node) -> list[str] | str:
    """Requirements, or the path of a file that has them."""
    if isinstance(node, yaml.MappingNode):
        raise BadValue("spec.bad_requirement", node, "expected a list, found a map", "write [polars>=1]")
    if not isinstance(node, yaml.SequenceNode):
        if re.search("[<>=~]", node.value) and requirements.is_requirement(node.value):
            message = "one requirement is a list too"
            raise BadValue("spec.bad_requirement", node, message, f"write [{node.value[:100]}]")
        return str(_path(problems, node))
    if len(node.value) > requirements.MAX_REQUIREMENTS:
        message = f"a job has at most {requirements.MAX_REQUIREMENTS} requirements"
        raise BadValue("spec.bad_requirement", node, message, "put them into a file")
    listed: list[str] = read.list_of(_requirement)(problems, node)
    return listed


def _config(problems: Problems, node: yaml.Node) -> dict[str, object]:
    config: dict[str, object] = read.map_of(read.free)(problems, node)
    if (text := references.malformed_in(config)) is not None:
        raise BadValue("spec.bad_secret", node, f"{text[:100]!r} refers to no secret", "${secret:NAME}")
    return config


_MOST_MISSED = 10_000
_MOST_AROUND = 1_000_000
_WINDOW: Fields = {"before": _extent, "after": _extent}
_PARTITIONS: Fields = {
    "by": read.choice(partitions.By),
    "time_zone": _zone,
    "start": _start,
    "names": read.list_of(_label),
}
_COLUMN: Fields = {
    "name": _label,
    "type": _type,
    "nullable": read.boolean,
    "pii": read.boolean,
    "declassified": read.reason,
}
_ACCEPTED: Fields = {"column": _label, "values": _accepted_values}
_RANGE: Fields = {"column": _label, "min": _value, "max": _value}
_ROWS: Fields = {"min": _number_of_rows, "max": _number_of_rows}
_CHECK: Fields = {
    "name": _label,
    "not_null": _columns,
    "unique": _columns,
    "accepted": read.record(_ACCEPTED, "column", "values"),
    "range": read.record(_RANGE, "column"),
    "rows": read.record(_ROWS),
    "expression": _admitted(row_condition.for_spark),
    "freshness": read.duration,
    "severity": read.choice(Severity),
}
_COMPACTION: Fields = {"enabled": read.boolean, "target": _file_size, "min_files": _files_of_a_merge}
_ROLES: Fields = {"read_roles": read.list_of(_name), "write_roles": read.list_of(_name)}
_DATASET: Fields = {
    "storage": read.choice(model.Storage),
    "write_mode": read.choice(model.WriteMode),
    "description": read.text,
    "position": _label,
    "unique_key": read.list_of(_label),
    "indexes": read.list_of(read.list_of(_label)),
    "partitions": read.record(_PARTITIONS, "by"),
    "retention": read.duration_of_years,
    "columns": read.list_of(read.record(_COLUMN, "name", "type")),
    "sql": _admitted(virtual.checked),
    "cluster_by": read.list_of(_label),
    "compaction": read.record(_COMPACTION),
    "checks": read.list_of(read.record(_CHECK)),
    **_ROLES,
}
_CATCH_UP: Fields = {"policy": read.choice(model.CatchUpPolicy), "most": _most_missed}
_SOURCE: Fields = {
    "kind": read.choice(model.SourceKind),
    "schedule": _schedule,
    "time_zone": _zone,
    "catch_up": _catch_up,
    "jitter": read.duration,
    "period": read.choice(model.Period),
    **webhooks.SOURCE,
    **files.SOURCE,
}
_FROM: Fields = {"job": read.text, "output": read.text, "dataset": _label}
_CONDITION: Fields = dict.fromkeys(comparisons.SIGNS, _value)
_INPUT: Fields = {
    "name": _label,
    "from": read.record(_FROM),
    "where": read.map_of(_condition),
    "columns": read.list_of(_label),
    "read": _what_is_read,
    "time_column": _label,
    "wait_for": read.choice(edges.WaitFor),
    "on_change": read.choice(edges.OnChange),
}
_OUTPUT: Fields = {"name": _label, "dataset": _label}
_SCALING: Fields = {"mode": read.choice(model.ScalingMode), "max_concurrency": read.count}
_RETRY: Fields = {"base": read.duration, "max": read.duration}
_BATCH: Fields = {
    "size": read.count,
    "every": read.duration,
    "all": read.boolean,
    "finality": read.count,
    "max_wait": read.duration,
}
_EXECUTION: Fields = {
    "priority": read.choice(model.Priority),
    "scaling": read.record(_SCALING),
    "max_queue_depth": read.count,
    "max_queue_age": read.duration,
    "timeout": read.duration,
    "lease": read.duration,
    "max_attempts": read.count,
    "retry": read.record(_RETRY),
    "network": read.boolean,
}
_REQUIRES: Fields = {"memory": _memory, "gpu": read.count, "labels": read.list_of(_worker_label)}
_SPARK: Fields = {
    "executors": _at_most(spark_resources.MOST_EXECUTORS),
    "max_executors": _at_most(spark_resources.MOST_EXECUTORS),
    "executor_cores": _at_most(spark_resources.MOST_CORES),
    "executor_memory": _heap,
    "executor_memory_overhead": _memory,
    "driver_memory": _heap,
    "shuffle_partitions": _at_most(spark_resources.MOST_PARTITIONS),
}
_JOB: Fields = {
    "name": _name,
    "description": read.text,
    "activation": read.choice(model.Activation),
    "source": read.record(_SOURCE, "kind"),
    "runtime": read.text,
    "function": _function,
    "requires": _requirements,
    "spark": _spark,
    "operator": _label,
    "requirements": _packages,
    "config": _config,
    "secrets": read.map_of(webhooks.secret_name, key=_variable),
    "inputs": read.list_of(read.record(_INPUT, "from")),
    "when": read.choice(model.When),
    "outputs": read.list_of(read.record(_OUTPUT, "dataset")),
    "execution_strategy": read.choice(model.ExecutionStrategy),
    "update_strategy": read.choice(model.UpdateStrategy),
    "unique_key": read.list_of(_label),
    "lineage": read.map_of(read.list_of(_label), key=_label),
    "batch": read.record(_BATCH),
    **_EXECUTION,
}
_FILE: Fields = {
    "version": _version,
    "dag": _dag,
    "description": read.text,
    "datasets": read.map_of(read.record(_DATASET), key=_label),
    "defaults": read.record(_EXECUTION),
    "requirements": _packages,
    **_ROLES,
    "jobs": read.list_of(read.record(_JOB, "name")),
    "alerts": read.list_of(read.record(alerts.ALERT, "name", "dataset", "subject", "title")),
}
FIELDS: dict[str, Fields] = {
    "file": _FILE,
    "dataset": _DATASET,
    "partitions": _PARTITIONS,
    "column": _COLUMN,
    "check": _CHECK,
    "accepted": _ACCEPTED,
    "range": _RANGE,
    "rows": _ROWS,
    "job": _JOB,
    "source": _SOURCE,
    "catch_up": _CATCH_UP,
    "verify": webhooks.VERIFY,
    "timestamp": webhooks.TIMESTAMP,
    "secret": webhooks.SECRET,
    "dedupe": webhooks.DEDUPE,
    "scope": webhooks.SCOPE,
    "input": _INPUT,
    "where": _CONDITION,
    "read": _WINDOW,
    "from": _FROM,
    "output": _OUTPUT,
    "scaling": _SCALING,
    "retry": _RETRY,
    "batch": _BATCH,
    "requires": _REQUIRES,
    "spark": _SPARK,
    "alert": alerts.ALERT,
    "throttle": alerts.THROTTLE,
}
"""Every field, by where it occurs; the reference page is tested against it."""

whole_file = read.record(_FILE, "version", "dag", "jobs")
