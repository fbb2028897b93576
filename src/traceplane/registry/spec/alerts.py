"""Alerts: the fields of `alerts`, and the jobs that each becomes.

    dataset ──NAME (alert_evaluate, Spark)──► DAG.NAME#alerts ──NAME__route (alert_route)──► messages

With `entrypoint`, `NAME__rows` (pyspark) is in front: it finds the rows, and NAME takes all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import yaml

from traceplane.delivery.templates import BEFORE_WORDING, TextTemplate, known_names
from traceplane.errors import InvalidInput
from traceplane.model import column_types
from traceplane.model import dag as model
from traceplane.model.dag import Input, Job, Output
from traceplane.model.message import Severity
from traceplane.model.near_names import near
from traceplane.model.partitions import Partitions
from traceplane.model.row_positions import WHOLE_NUMBERS
from traceplane.operators.alerting import EVALUATE, ROUTE, Each, RouteConfig, Throttle, found_dataset
from traceplane.registry.spec import evaluation_query
from traceplane.registry.spec import yaml_reader as read
from traceplane.registry.spec.yaml_reader import BadValue, Fields, Problems, YamlMap
from traceplane.sql import alert_condition
from traceplane.sql.spark_agreement import agreed

ROUTE_SUFFIX, ROWS_SUFFIX = "__route", "__rows"
_LONGEST_NAME = 63
_MOST_SUBJECTS = 20
_LONGEST_WORDING, _MOST_PLACEHOLDERS = {"title": 500, "text": 5_000}, 50
_name = read.matching(
    rf"[a-z][a-z0-9_-]{{0,{_LONGEST_NAME - len(ROUTE_SUFFIX) - 1}}}",
    "a name: a-z, then a-z, 0-9, _ or -, up to 56 in all",
)
_channel = read.matching(r"[a-z][a-z0-9_-]{0,62}", "the name of a channel")
_label = read.matching(r"[^\s#]{1,200}", "1 to 200 characters without spaces and '#'")


def _sql(problems: Problems, node: yaml.Node) -> str:
    """Without comments: around it stands more, which a comment could go on into."""
    text: str = read.text(problems, node)
    try:
        return agreed(text)
    except InvalidInput as error:
        raise BadValue(error.code, node, error.message, error.next_step) from None


def _condition(problems: Problems, node: yaml.Node) -> str:
    text = _sql(problems, node)
    if (fault := alert_condition.fault(text)) is not None:
        raise BadValue("spec.bad_condition", node, fault.message, fault.suggestion)
    return text


THROTTLE: Fields = {"most": read.count, "per": read.duration, "each": read.choice(Each)}
ALERT: Fields = {
    "name": _name,
    "description": read.text,
    "owner": read.text,
    "dataset": _label,
    "when": _condition,
    "sql": _sql,
    "entrypoint": read.text,
    "position": _label,
    "severity": read.choice(Severity),
    "subject": read.list_of(_label),
    "columns": read.list_of(_label),
    "event_time": _label,
    "emission": _label,
    "title": read.text,
    "text": read.text,
    "channels": read.list_of(_channel),
    "stale_after": read.duration,
    "throttle": read.record(THROTTLE, "most", "per"),
    "group_above": read.count,
    "declassified": read.map_of(read.reason),
}


def check(
    problems: Problems, top: YamlMap, job_names: Collection[str], known_runtimes: Collection[str]
) -> None:
    taken = set(job_names)
    for alert in top.get("alerts") or ():
        _check_names(problems, alert, taken)
        _check_condition(problems, alert)
        dataset: YamlMap | None = (top.get("datasets") or {}).get(alert.get("dataset"))
        types = {c.get("name"): c.get("type") for c in dataset.get("columns") or ()} if dataset else {}
        _check_columns(problems, alert, types)
        _check_wording(problems, alert, types)
        if "spark" not in known_runtimes:
            message = "alerts are evaluated by Spark, and there is no runtime spark"
            problems.add("spec.unknown_runtime", alert.node, message, near("spark", known_runtimes))


def _check_names(problems: Problems, alert: YamlMap, taken: set[str]) -> None:
    name = alert.get("name") or ""
    for job in (name, f"{name}{ROUTE_SUFFIX}", f"{name}{ROWS_SUFFIX}") if name else ():
        if job in taken:
            message = f"it needs the job name {job!r}, which is taken"
            problems.add("spec.duplicate_name", alert.at("name"), message, "rename the alert")
        taken.add(job)


def _check_condition(problems: Problems, alert: YamlMap) -> None:
    given = [name for name in ("when", "sql", "entrypoint") if not alert.lacks(name)]
    if len(given) != 1:
        message = "an alert is given by one of when, sql and entrypoint"
        at = alert.at(given[1]) if given else alert.node
        problems.add("spec.bad_condition", at, message, "write for example when: value > 1000")


def _check_columns(problems: Problems, alert: YamlMap, types: Mapping[str, str | None]) -> None:
    """What `when` finds are rows of the dataset, so columns can be looked up if this file declares them. `types`: of
    the columns that it declares."""
    subject = alert.get("subject")
    if subject is not None and not 1 <= len(subject) <= _MOST_SUBJECTS:
        message = f"1 to {_MOST_SUBJECTS} columns tell alerts apart"
        problems.add("spec.out_of_range", alert.at("subject"), message, "name what an alert is about")
    sent = {*(subject or ()), *(alert.get("columns") or ()), alert.get("event_time"), alert.get("emission")}
    for name, (key, _) in (
        read.entries(problems, alert.at("declassified")).items() if alert.get("declassified") else ()
    ):
        if name not in sent:
            message = f"the alert does not send a column {name[:100]!r}"
            problems.add("spec.unknown_column", key, message, near(name, sorted(filter(None, sent))))
    columns = list(types)
    if not columns or None in columns or alert.lacks("when"):
        return
    condition = alert.get("when")
    if condition and (fault := alert_condition.fault_of_types(condition, types)) is not None:
        problems.add("spec.bad_condition", alert.at("when"), fault.message, fault.suggestion)
    named = [(name, alert.at(name)) for name in ("event_time", "emission", "position") if alert.get(name)]
    named += [
        (name, node) for name in ("subject", "columns") if alert.get(name) for node in alert.at(name).value
    ]
    for _, node in named:
        if node.value not in columns:
            message = f"the dataset {alert.get('dataset')[:100]!r} has no column {node.value[:100]!r}"
            problems.add("spec.unknown_column", node, message, near(node.value, columns))
    type_ = types.get(alert.get("event_time"))
    if type_ and not is_event_time(type_):
        message = f"the column {alert.get('event_time')[:100]!r} is {type_[:100]}, which holds no times"
        problems.add("spec.wrong_type", alert.at("event_time"), message, EVENT_TIMES)


EVENT_TIMES = (
    "name a column of type timestamp or date, or bigint with the seconds since 1970, or make one in a query: "
    "sql: select *, to_timestamp(text) as at from rows"
)


def is_event_time(declared: str) -> bool:
    """Whether Spark can take times from a column of the type. Values of text may be none, and would fail tasks then."""
    type_ = column_types.arrow_type(declared) or ""
    return type_.startswith(("timestamp", "date")) or type_ in WHOLE_NUMBERS


def _check_wording(problems: Problems, alert: YamlMap, columns: Collection[str]) -> None:
    if None in (alert.get("subject") or [None]):
        return
    sent = {*alert.get("subject"), *_fields(alert)}
    names = known_names(alert.get("subject"), _fields(alert), fixed=BEFORE_WORDING)
    for field in _LONGEST_WORDING:
        if (text := alert.get(field)) is not None:
            try:
                template = TextTemplate.parse(text, names)
            except InvalidInput as error:
                step, column = error.next_step, str(error.value)[1:-1].removeprefix("fields.")
                if error.code == "delivery.unknown_placeholder" and column in columns and column not in sent:
                    step = f"add {column} to columns of the alert, and write {{fields.{column}}}"
                problems.add("spec.bad_template", alert.at(field), error.message, step)
                continue
            longest = _LONGEST_WORDING[field]
            if len(text) > longest or template.placeholders > _MOST_PLACEHOLDERS:
                message = f"a {field} has up to {longest} characters and {_MOST_PLACEHOLDERS} placeholders"
                problems.add("spec.bad_template", alert.at(field), message, "shorten it")


def _fields(alert: YamlMap) -> list[str]:
    """Columns that are sent besides the subject."""
    return [name for name in alert.get("columns") or () if name not in (alert.get("subject") or ())]


# Jobs ---------------------------------------------------------------------------------------------------


def rows_dataset(dag: str, alert: str) -> str:
    """What a function finds."""
    return f"{dag}.{alert}#rows"


def sources(top: YamlMap) -> dict[str, str]:
    """The dataset that each alert is about, by those that its jobs write."""
    return {
        written: alert.get("dataset")
        for alert in top.get("alerts") or ()
        for written in (
            found_dataset(top.get("dag"), alert.get("name")),
            rows_dataset(top.get("dag"), alert.get("name")),
        )
    }


def build(
    top: YamlMap, execution: model.ExecutionSettings, partitions: Mapping[str, Partitions]
) -> list[Job]:
    return [job for alert in top.get("alerts") or () for job in _jobs(top, alert, execution, partitions)]


def _jobs(
    top: YamlMap,
    alert: YamlMap,
    execution: model.ExecutionSettings,
    partitions: Mapping[str, Partitions],
) -> list[Job]:
    name, dag, source = alert.get("name"), top.get("dag"), alert.get("dataset")
    found = found_dataset(dag, name)
    common: dict[str, Any] = {
        "activation": model.Activation.REACTIVE,
        "execution_strategy": model.ExecutionStrategy.PER_UPDATE,
        "update_strategy": model.UpdateStrategy.REPLACE,
    }
    before = []
    rows = source
    if not alert.lacks("entrypoint"):
        rows = rows_dataset(dag, name)
        finder = Job(
            name=f"{name}{ROWS_SUFFIX}",
            runtime="spark",
            operator="pyspark",
            config={"entrypoint": alert.get("entrypoint")},
            inputs=(Input("rows", source),),
            outputs=(Output("rows", rows),),
            execution=execution,
            generated_for=name,
            **common,
        )
        before.append(finder)
    is_by_time = partitions.get(source, Partitions()).is_time
    # A query may group, so its result need not have the dataset's columns.
    is_in_result = alert.lacks("sql") and not is_by_time
    position = alert.get("position") or (_position(top, source) if is_in_result else None)
    evaluate = Job(
        name=name,
        runtime="spark",
        operator=EVALUATE,
        config={"query": evaluation_query.of_alert(alert, _fields(alert), position)},
        inputs=(Input("rows", rows),),
        outputs=(Output("alerts", found),),
        execution=execution,
        description=alert.get("description") or "",
        generated_for=name,
        **common,
    )
    route = Job(
        name=f"{name}{ROUTE_SUFFIX}",
        runtime="dispatcher",
        operator=ROUTE,
        config=msgspec.json.decode(msgspec.json.encode(_route(alert))),
        inputs=(Input("alerts", found),),
        outputs=(),
        execution=execution.of_the_dispatcher(),
        generated_for=name,
        **common,
    )
    return [*before, evaluate, route]


def _position(top: YamlMap, dataset_id: str) -> str | None:
    """The column with the positions of rows, as far as this file declares it as a number."""
    dataset: YamlMap | None = (top.get("datasets") or {}).get(dataset_id)
    position = dataset.get("position") if dataset is not None else None
    types: Mapping[str, str] = (
        {column.get("name"): column.get("type") for column in dataset.get("columns") or ()} if dataset else {}
    )
    return position if types.get(position or "", "bigint") in ("bigint", "long", "int", "integer") else None


def with_declassified(top: YamlMap, dataset: model.Dataset) -> model.Dataset:
    """The rows that an alert found: a part of them is no personal data if none of its columns is."""
    for alert in top.get("alerts") or ():
        reasons = alert.get("declassified")
        if not reasons or found_dataset(top.get("dag"), alert.get("name")) != dataset.dataset_id:
            continue
        parts = {
            "subject": alert.get("subject"),
            "fields": _fields(alert),
            "event_time": [name] if (name := alert.get("event_time")) else [],
            "emission": [name] if (name := alert.get("emission")) else [],
        }
        why = {
            part: "; ".join(f"{name}: {reasons[name]}" for name in names)
            for part, names in parts.items()
            if names and all(name in reasons for name in names)
        }
        columns = tuple(replace(column, declassified=why.get(column.name)) for column in dataset.columns)
        return replace(dataset, columns=columns)
    return dataset


def _route(alert: YamlMap) -> RouteConfig:
    throttle: YamlMap | None = alert.get("throttle")
    return RouteConfig(
        alert=alert.get("name"),
        dataset=alert.get("dataset"),
        severity=alert.get("severity") or Severity.WARNING,
        subject=tuple(alert.get("subject")),
        fields=tuple(_fields(alert)),
        title=alert.get("title"),
        text=alert.get("text") or "",
        channels=tuple(dict.fromkeys(alert.get("channels") or ())),
        stale_after_seconds=alert.get("stale_after"),
        throttle=None
        if throttle is None
        else Throttle(throttle.get("most"), throttle.get("per"), throttle.get("each") or Each.SUBJECT),
        group_above=alert.get("group_above"),
        owner=alert.get("owner") or "",
        declassified=alert.get("declassified") or {},
    )
