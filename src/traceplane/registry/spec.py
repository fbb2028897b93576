"""A DAG file (YAML, version 1) becomes a `Dag`, or one `SpecInvalid` that names every problem in it.

    text ──compose──► nodes ──FIELDS──► records ──rules, links──► drafts ──► Dag

Nodes keep their line and column, so each problem points at what the user typed. The first half of this
file reads YAML by tables and knows nothing of DAGs; the second half is the DAG. Reading goes on past a
problem, and a check that could only repeat it is skipped.
"""

from __future__ import annotations

import difflib
import heapq
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from traceplane.errors import NotFound, Problem, SpecInvalid, TraceplaneError
from traceplane.model import column_types, cron, hot_table
from traceplane.model import dag as model
from traceplane.model.dag import Dag, Input, Job, Output
from traceplane.model.runtimes import POSITIONS
from traceplane.sql import virtual

VERSION = 1
MAX_BYTES = 1 << 20
MAX_EXPANDED = 4 << 20  # characters, and NODE_COST for each node, once aliases are followed
NODE_COST = 16
MAX_DEPTH = 64
MAX_PROBLEMS = 100
MAX_NAME = 63
MAX_INTEGER = 2**31 - 1
MAX_SECONDS = 366 * 86400.0

_YAML = "tag:yaml.org,2002:"


class _Loader(yaml.CSafeLoader):
    """Plain scalars as in YAML 1.2, numbers in decimal: `on`, `1:30` and an unquoted 0x address stay text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 -- PyYAML's own name and shape
        None: [
            (_YAML + "null", re.compile(r"(~|null|Null|NULL|)\Z")),
            (_YAML + "bool", re.compile(r"(true|True|TRUE|false|False|FALSE)\Z")),
            (_YAML + "int", re.compile(r"[-+]?[0-9]+\Z")),
            (_YAML + "float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")),
            (_YAML + "merge", re.compile(r"<<\Z")),
        ]
    }


At = Any  # where a problem is: a node, one of PyYAML's two kinds of mark, or (line, column)


class _Wrong(Exception):
    """A value that cannot be read; whoever reads the container records it and goes on."""

    def __init__(self, code: str, at: At, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.details = (code, at, message, suggestion)


class _Problems:
    """Every problem of one file, as they are found."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: dict[Problem, None] = {}

    def add(self, code: str, at: At, message: str, suggestion: str | None = None) -> None:
        value = at.value[:100] if isinstance(at, yaml.ScalarNode) else None
        mark = at.start_mark if isinstance(at, yaml.Node) else at
        line, column = mark if isinstance(mark, tuple) else (mark.line + 1, mark.column + 1)
        # A dict, since an aliased node is read once for each use and is still one problem.
        self._found[Problem(code, message, self.file, line, column, value, suggestion)] = None
        if len(self._found) >= MAX_PROBLEMS:
            raise self.invalid()

    def attempt(self, read: Read, node: yaml.Node) -> Any:
        """What `read` makes of the node, or None with the problem recorded."""
        try:
            return read(self, node)
        except _Wrong as wrong:
            self.add(*wrong.details)
            return None

    def invalid(self) -> SpecInvalid:
        return SpecInvalid(tuple(sorted(self._found, key=lambda p: (p.line, p.column, p.code))))

    def __bool__(self) -> bool:
        return bool(self._found)


Read = Callable[[_Problems, yaml.Node], Any]
Fields = dict[str, Read]


def _compose(text: str) -> yaml.Node:
    root: yaml.Node | None
    try:
        if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
            raise _Wrong("spec.too_large", (1, 1), f"the file has more than {MAX_BYTES} bytes")
        data = text.encode()
        _bound_expansion(data)
        root = yaml.compose(data, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        message = ", ".join(part for part in (error.context, error.problem) if part)
        raise _Wrong("spec.syntax", error.problem_mark or error.context_mark or (1, 1), message) from None
    except yaml.reader.ReaderError as error:
        before = data[: error.position].decode(errors="ignore")
        at = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise _Wrong("spec.syntax", at, error.reason) from None
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        raise _Wrong("spec.syntax", (1, 1), f"not UTF-8 text: {error.reason}") from None
    if root is None or root.tag == _YAML + "null":
        raise _Wrong("spec.empty", (1, 1), "the file is empty", "begin with version: 1")
    return root


def _bound_expansion(data: bytes) -> None:
    """Refuse, before a node is built, what is too deep or too large once its aliases are followed."""
    measured: dict[str, tuple[int, int]] = {}
    stack: list[tuple[str | None, int, int]] = [(None, 0, 0)]  # anchor, size so far, depth below
    for event in yaml.parse(data, Loader=_Loader):
        size, depth = 0, 0
        if isinstance(event, yaml.CollectionStartEvent):
            stack.append((event.anchor, NODE_COST, 0))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size, depth = stack.pop()
            measured[anchor or ""] = size, depth
        elif isinstance(event, yaml.ScalarEvent):
            size = NODE_COST + len(event.value)
            measured[event.anchor or ""] = size, depth
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _, _ in stack):
                raise _Wrong("spec.recursive_alias", event.start_mark, f"*{event.anchor} contains itself")
            size, depth = measured.get(event.anchor or "", (0, 0))
        anchor, total, below = stack[-1]
        stack[-1] = (anchor, total + size, max(below, depth + 1))
        if len(stack) + depth > MAX_DEPTH:
            raise _Wrong("spec.too_deep", event.start_mark, f"nested deeper than {MAX_DEPTH} levels")
        if total + size > MAX_EXPANDED:
            raise _Wrong("spec.too_large", event.start_mark, "too many values, aliases followed")


@dataclass(frozen=True, slots=True)
class _Record:
    """A map that was read: the node of every known field given, and its value, None where it is wrong."""

    node: yaml.Node
    nodes: dict[str, yaml.Node]
    values: dict[str, Any]
    has_unknown: bool

    def get(self, *path: str) -> Any:
        value = self.values.get(path[0])
        return value.get(*path[1:]) if value is not None and len(path) > 1 else value

    def at(self, name: str) -> yaml.Node:
        return self.nodes.get(name, self.node)

    def has(self, name: str, value: str) -> bool:
        return bool(self.get(name) == value)

    def lacks(self, name: str) -> bool:
        """Whether it is absent or an empty list; a wrong one is there, and has its own problem."""
        node = self.nodes.get(name)
        return node is None or (isinstance(node, yaml.SequenceNode) and not node.value)


def near(word: str, known: Iterable[str]) -> str | None:
    known = sorted(map(str, known))[:1000]
    if match := difflib.get_close_matches(word[:100], known, n=1):
        return f"did you mean {match[0]!r}?"
    return f"one of: {', '.join(known[:20])}" if known else None


def _mistyped(node: yaml.Node, expected: str) -> _Wrong:
    kinds = {
        "map": "a map",
        "seq": "a list",
        "null": "nothing",
        "bool": "true/false",
        "int": "a whole number",
    }
    found = kinds.get(node.tag.removeprefix(_YAML), "another kind of value")
    quotable = expected == "text" and isinstance(node, yaml.ScalarNode) and node.value
    suggestion = f'put it in quotes: "{node.value[:60]}"' if quotable else f"write {expected} here"
    return _Wrong("spec.wrong_type", node, f"expected {expected}, found {found}", suggestion)


_CONVERT: dict[str, Callable[[str], str | int | float | bool | None]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "null": lambda text: {"": None, "~": None, "null": None}[text.lower()],
}


def _scalar(_: _Problems, node: yaml.Node) -> str | int | float | bool | None:
    kind = node.tag.removeprefix(_YAML)
    if not isinstance(node, yaml.ScalarNode):
        raise _mistyped(node, "one value")
    if kind not in _CONVERT:
        raise _Wrong("spec.unsupported_tag", node, f"no tag {node.tag[:100]} here", "remove the tag")
    try:
        value = _CONVERT[kind](node.value)
    except (ValueError, KeyError):
        raise _Wrong("spec.wrong_type", node, f"this is not a value for the tag !!{kind}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise _Wrong("spec.out_of_range", node, "the number is too large", "quote it to keep it as text")
    if isinstance(value, str) and "\0" in value:  # Postgres cannot store it
        raise _Wrong("spec.bad_text", node, "text must not hold a NUL character")
    return value


def _typed(kind: type, expected: str) -> Read:
    def read(problems: _Problems, node: yaml.Node) -> Any:
        value = _scalar(problems, node) if isinstance(node, yaml.ScalarNode) else None
        if type(value) is not kind:  # not isinstance: True is an int
            raise _mistyped(node, expected)
        return value

    return read


_text, _whole, _boolean = _typed(str, "text"), _typed(int, "a whole number"), _typed(bool, "true or false")


def _matching(pattern: str, rule: str) -> Read:
    def read(problems: _Problems, node: yaml.Node) -> str:
        value: str = _text(problems, node)
        if not (re.fullmatch(pattern, value) and value.isprintable()):
            # Kept all the same: what refers to this name should not be called unknown as well.
            problems.add("spec.bad_name", node, f"{value[:100]!r} is not {rule}")
        return value

    return read


def _choice(options: type[StrEnum]) -> Read:
    def read(problems: _Problems, node: yaml.Node) -> StrEnum:
        if (value := _text(problems, node)) not in list(options):
            raise _Wrong("spec.unknown_value", node, f"no value {value[:100]!r} here", near(value, options))
        return options(value)

    return read


def _version(problems: _Problems, node: yaml.Node) -> int:
    if (value := int(_whole(problems, node))) != VERSION:
        raise _Wrong("spec.unsupported_version", node, "the version is unknown", f"write {VERSION}")
    return value


def _count(problems: _Problems, node: yaml.Node) -> int:
    if not 1 <= (value := int(_whole(problems, node))) <= MAX_INTEGER:
        raise _Wrong("spec.out_of_range", node, f"must be from 1 to {MAX_INTEGER}")
    return value


def _duration(problems: _Problems, node: yaml.Node) -> float:
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    value = _scalar(problems, node) if isinstance(node, yaml.ScalarNode) else None
    if found := re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ms|[smhd])", str(value)):
        value = float(found[1]) * units[found[2]]
    if isinstance(value, bool) or not isinstance(value, int | float):
        suggestion = "write 500ms, 30s, 5m, 2h, 1d or a number of seconds"
        raise _Wrong("spec.bad_duration", node, "expected a duration", suggestion)
    if not 0 < value <= MAX_SECONDS:
        raise _Wrong("spec.out_of_range", node, "a duration must be more than 0 and at most 366d")
    return float(value)


def _schedule(problems: _Problems, node: yaml.Node) -> str:
    value: str = _text(problems, node)
    try:
        cron.parse(value)
    except ValueError:
        suggestion = "write five numeric fields, such as '*/5 * * * *'"
        raise _Wrong(
            "spec.bad_schedule", node, f"{value[:100]!r} is not a cron schedule", suggestion
        ) from None
    return value


def _entries(problems: _Problems, node: yaml.Node) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """The key and value nodes of a map, `<<` merged beneath its own keys."""
    own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    if not isinstance(node, yaml.MappingNode):
        raise _mistyped(node, "a map")
    for key, value in node.value:
        if key.tag == _YAML + "merge":
            for base in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                merged = {**_entries(problems, base), **merged}
        elif (name := problems.attempt(_text, key)) in own:
            first = own[name][0].start_mark.line + 1
            problems.add("spec.duplicate_key", key, f"{name[:100]!r} is given twice", f"see line {first}")
        elif name is not None:
            own[name] = key, value
    return {**merged, **own}


def _list_of(item: Read) -> Read:
    def read(problems: _Problems, node: yaml.Node) -> list[Any]:
        if not isinstance(node, yaml.SequenceNode):
            raise _mistyped(node, "a list")
        return [value for child in node.value if (value := problems.attempt(item, child)) is not None]

    return read


def _map_of(item: Read, key: Read = _text) -> Read:
    def read(problems: _Problems, node: yaml.Node) -> dict[str, Any]:
        entries = _entries(problems, node)
        for key_node, _ in entries.values():
            problems.attempt(key, key_node)
        return {name: problems.attempt(item, value) for name, (_, value) in entries.items()}

    return read


def _record(fields: Fields, *required: str) -> Read:
    def read(problems: _Problems, node: yaml.Node) -> _Record:
        entries = _entries(problems, node)
        for name, (key, _) in entries.items():
            if name not in fields:
                problems.add("spec.unknown_field", key, f"no field {name[:100]!r} here", near(name, fields))
        for name in required:
            if name not in entries:
                problems.add("spec.missing_field", node, f"the field {name!r} is missing", f"add {name}: ...")
        nodes = {name: entries[name][1] for name in fields if name in entries}
        values = {name: problems.attempt(fields[name], nodes[name]) for name in nodes}
        return _Record(node, nodes, values, has_unknown=len(nodes) < len(entries))

    return read


def _free(problems: _Problems, node: yaml.Node) -> Any:
    """Any value that JSON can hold."""
    if isinstance(node, yaml.SequenceNode):
        return [problems.attempt(_free, child) for child in node.value]
    return _map_of(_free)(problems, node) if isinstance(node, yaml.MappingNode) else _scalar(problems, node)


def _filter(problems: _Problems, node: yaml.Node) -> str | int | float | bool:
    if (value := _scalar(problems, node)) is None:
        raise _mistyped(node, "one value")
    return value


# ── what a DAG file holds ─────────────────────────────────────────────────────────────────────────────

_name = _matching(
    rf"[a-z][a-z0-9_-]{{0,{MAX_NAME - 1}}}", f"a name: a-z, then a-z, 0-9, _ or -, up to {MAX_NAME} in all"
)
_label = _matching(r"[^\s#]{1,200}", "1 to 200 characters without spaces and '#'")


def _type(problems: _Problems, node: yaml.Node) -> str:
    value: str = _text(problems, node)
    try:
        column_types.check(value)
    except column_types.UnknownType as error:
        elsewhere = column_types.ELSEWHERE.get(error.word.lower())
        suggestion = f"write {elsewhere}" if elsewhere else near(error.word, column_types.KNOWN)
        raise _Wrong("spec.unknown_type", node, str(error)[:300], suggestion) from None
    return value


def _select(problems: _Problems, node: yaml.Node) -> str:
    """SQL that queries may be made of: it passes the gate that they pass."""
    text: str = _text(problems, node)
    try:
        virtual.checked(text)
    except TraceplaneError as error:
        told = error.message if error.value is None else f"{error.message}: {error.value}"
        raise _Wrong("spec.sql_refused", node, told[:500], error.next_step) from None
    return text


_COLUMN: Fields = {"name": _label, "type": _type, "nullable": _boolean, "pii": _boolean}
_DATASET: Fields = {
    "storage": _choice(model.Storage),
    "write_mode": _choice(model.WriteMode),
    "description": _text,
    "position": _label,
    "columns": _list_of(_record(_COLUMN, "name", "type")),
    "sql": _select,
}
_SOURCE: Fields = {"kind": _choice(model.SourceKind), "schedule": _schedule}
_FROM: Fields = {"job": _text, "output": _text, "dataset": _label}
_INPUT: Fields = {
    "name": _label,
    "from": _record(_FROM),
    "where": _map_of(_filter),
    "columns": _list_of(_label),
}
_OUTPUT: Fields = {"name": _label, "dataset": _label}
_SCALING: Fields = {"mode": _choice(model.ScalingMode), "max_concurrency": _count}
_RETRY: Fields = {"base": _duration, "max": _duration}
_BATCH: Fields = {"size": _count, "finality": _count}
_EXECUTION: Fields = {
    "priority": _choice(model.Priority),
    "scaling": _record(_SCALING),
    "max_queue_depth": _count,
    "max_queue_age": _duration,
    "timeout": _duration,
    "lease": _duration,
    "max_attempts": _count,
    "retry": _record(_RETRY),
    "network": _boolean,
}
_JOB: Fields = {
    "name": _name,
    "description": _text,
    "activation": _choice(model.Activation),
    "source": _record(_SOURCE, "kind"),
    "runtime": _text,
    "operator": _label,
    "config": _map_of(_free),
    "inputs": _list_of(_record(_INPUT, "from")),
    "outputs": _list_of(_record(_OUTPUT, "dataset")),
    "execution_strategy": _choice(model.ExecutionStrategy),
    "update_strategy": _choice(model.UpdateStrategy),
    "unique_key": _list_of(_label),
    "batch": _record(_BATCH, "size"),
    **_EXECUTION,
}
_FILE: Fields = {
    "version": _version,
    "dag": _name,
    "description": _text,
    "datasets": _map_of(_record(_DATASET), key=_label),
    "defaults": _record(_EXECUTION),
    "jobs": _list_of(_record(_JOB, "name")),
}
FIELDS: dict[str, Fields] = {
    "file": _FILE,
    "dataset": _DATASET,
    "column": _COLUMN,
    "job": _JOB,
    "source": _SOURCE,
    "input": _INPUT,
    "from": _FROM,
    "output": _OUTPUT,
    "scaling": _SCALING,
    "retry": _RETRY,
    "batch": _BATCH,
}
"""Every field by the place it stands in; the reference page is tested against it."""

_EXECUTION_PATHS = {
    "priority": ("priority",),
    "scaling_mode": ("scaling", "mode"),
    "max_concurrency": ("scaling", "max_concurrency"),
    "max_queue_depth": ("max_queue_depth",),
    "max_queue_age_seconds": ("max_queue_age",),
    "timeout_seconds": ("timeout",),
    "lease_seconds": ("lease",),
    "max_attempts": ("max_attempts",),
    "retry_base_seconds": ("retry", "base"),
    "retry_max_seconds": ("retry", "max"),
    "network": ("network",),
}


def _reacts(job: _Record) -> bool:
    return job.has("activation", "reactive") or "activation" not in job.nodes


def _needs_operator(job: _Record) -> bool:
    """A source that only passes on a signal from outside runs in the dispatcher if it names no code."""
    relays = not _reacts(job) and job.get("source", "kind") not in ("always_on", "pipeline")
    return not (relays and (job.lacks("runtime") or job.has("runtime", "dispatcher")))


def _has_schedule(job: _Record) -> bool:
    return job.get("source") is not None and not job.get("source").lacks("schedule")


# The code, the field it is shown at, when it is broken, what is wrong, what to do.
# fmt: off
_JOB_RULES: tuple[tuple[str, str, Callable[[_Record], bool], str, str], ...] = (
    ("spec.missing_field", "operator", lambda job: job.lacks("operator") and _needs_operator(job),
     "the field 'operator' is missing", "add operator: ..."),
    ("spec.missing_field", "source", lambda job: job.has("activation", "source") and job.lacks("source"),
     "the field 'source' is missing", "add source: { kind: ... }"),
    ("spec.source_needs_activation", "source", lambda job: _reacts(job) and not job.lacks("source"),
     "a reactive job has no source", "add activation: source"),
    ("spec.cron_needs_schedule", "source",
     lambda job: job.get("source", "kind") == "cron" and not _has_schedule(job),
     "a cron source needs a schedule", "add schedule: '*/5 * * * *'"),
    ("spec.schedule_needs_cron", "source",
     lambda job: _has_schedule(job) and job.get("source", "kind") not in (None, "cron"),
     "only a cron source has a schedule", "set kind: cron, or remove schedule"),
    ("spec.source_has_inputs", "inputs",
     lambda job: job.has("activation", "source") and not job.lacks("inputs"),
     "a source has no inputs", "remove inputs, or set activation: reactive"),
    ("spec.source_needs_outputs", "outputs",
     lambda job: job.has("activation", "source") and job.lacks("outputs")
     and job.get("source", "kind") != "pipeline",
     "a source needs an output for others to react to", "add outputs: [{ dataset: ... }]"),
    ("spec.pipeline_needs_code", "runtime",
     lambda job: job.get("source", "kind") == "pipeline" and job.has("runtime", "dispatcher"),
     "the dispatcher cannot run pipelines", "set runtime: python or spark"),
    ("spec.reactive_needs_inputs", "inputs", lambda job: _reacts(job) and job.lacks("inputs"),
     "a reactive job needs an input to react to", "add inputs, or set activation: source"),
    ("spec.append_needs_unique_key", "update_strategy",
     lambda job: job.has("update_strategy", "append") and job.lacks("unique_key"),
     "append needs a unique_key to drop duplicates by", "add unique_key: [column, ...]"),
    ("spec.bulk_needs_batch", "execution_strategy",
     lambda job: job.has("execution_strategy", "Bulk") and job.lacks("batch"),
     "Bulk needs the size of its batches", "add batch: { size: 100 }"),
    ("spec.batch_needs_bulk", "batch",
     lambda job: not job.lacks("batch")
     and (job.lacks("execution_strategy") or job.get("execution_strategy") not in (None, "Bulk")),
     "only a Bulk job has a batch", "set execution_strategy: Bulk, or remove batch"),
    ("spec.bulk_needs_inputs", "execution_strategy",
     lambda job: job.has("execution_strategy", "Bulk") and job.has("activation", "source"),
     "a source has no inputs to batch", "remove execution_strategy and batch"),
)
# fmt: on


@dataclass(slots=True, eq=False)
class _Draft:
    """A job on its way to the model: what it writes and reads, each with the record that says so."""

    record: _Record
    name: str
    outputs: list[tuple[Output, _Record]] = field(default_factory=list)
    inputs: list[tuple[Input, _Record]] = field(default_factory=list)

    def outputs_known(self) -> bool:
        """Whether no output was left out for being wrong; if one was, a missing dataset may be that one."""
        return self.record.lacks("outputs") or len(self.record.at("outputs").value) == len(self.outputs)


def parse(text: str, file: str, *, known_runtimes: frozenset[str]) -> Dag:
    """The DAG this text declares; raises `SpecInvalid` with every problem, located in `file`."""
    problems = _Problems(file)
    try:
        top: _Record = _record(_FILE, "version", "dag", "jobs")(problems, _compose(text))
    except _Wrong as wrong:
        problems.add(*wrong.details)
        raise problems.invalid() from None
    drafts = _drafts(problems, top)
    _check_jobs(problems, drafts, known_runtimes)
    producers = _producers(problems, drafts)
    _check_datasets(problems, top, drafts, producers)
    below = _below_virtual(problems, top)
    ordered = _order(problems, drafts, producers, below)
    if problems:
        raise problems.invalid()
    jobs = tuple(
        job for draft in ordered for job in _with_aggregators(draft, _job(draft, top, known_runtimes))
    )
    declared = top.get("datasets") or {}
    produced: dict[str, Job | None] = {output.dataset_id: job for job in jobs for output in job.outputs}
    produced |= dict.fromkeys(below)
    read = {used.dataset_id for job in jobs for used in job.inputs}.union(*below.values())
    return Dag(
        name=top.get("dag"),
        jobs=jobs,
        datasets=tuple(
            _dataset(dataset_id, declared.get(dataset_id), producer)
            for dataset_id, producer in sorted(produced.items())
        ),
        external_datasets=tuple(sorted(read.difference(produced))),
        description=top.get("description") or "",
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with a job that only shows once the file is read: with its code, or its SQL."""

    code: str
    at: tuple[str, ...]
    """The job, and the fields that lead to what is wrong."""
    message: str
    suggestion: str | None = None


def placed(faults: Iterable[Fault], text: str, file: str) -> SpecInvalid | None:
    """The faults as problems of the file that was parsed, each at the value that has it; None if there are none."""
    problems = _Problems(file)
    if faults := list(faults):
        root = _compose(text)
        jobs = {name: job for job in _inside(root, "jobs") for name in _texts(job, "name")}
        for fault in faults:
            job, *fields = fault.at
            node = jobs[job]
            for field_ in fields:
                node = next(iter(_values(node, field_)), node)
            problems.add(fault.code, node, fault.message[:500], fault.suggestion)
    return problems.invalid() if problems else None


def _values(node: yaml.Node, field_: str) -> list[yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return []
    found = _entries(_Problems(""), node).get(field_)
    return [] if found is None else [found[1]]


def _inside(node: yaml.Node, field_: str) -> list[yaml.Node]:
    return [item for value in _values(node, field_) for item in value.value]


def _texts(node: yaml.Node, field_: str) -> list[str]:
    return [value.value for value in _values(node, field_) if isinstance(value, yaml.ScalarNode)]


def load(path: str | Path, *, known_runtimes: frozenset[str]) -> Dag:
    """`parse` of a file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotFound("spec.unreadable", f"cannot read the DAG file: {error.strerror}", value=path) from None
    # Bytes that are not UTF-8 become lone surrogates, which `parse` refuses.
    return parse(data.decode(errors="surrogateescape"), str(path), known_runtimes=known_runtimes)


def _drafts(problems: _Problems, top: _Record) -> list[_Draft]:
    """Every job with its outputs, and its inputs resolved to the datasets they mean."""
    drafts = [_Draft(job, job.get("name") or "") for job in top.get("jobs") or ()]
    for draft in drafts:
        for item in draft.record.get("outputs") or ():
            if dataset := item.get("dataset"):
                draft.outputs.append((Output(item.get("name") or dataset, dataset), item))
    by_name = {draft.name: draft for draft in reversed(drafts) if draft.name}
    for draft in drafts:
        for item in draft.record.get("inputs") or ():
            try:
                found = _resolve(item, by_name)
            except _Wrong as wrong:
                problems.add(*wrong.details)
                continue
            if found is not None:
                used = Input(
                    item.get("name") or found.name,
                    found.dataset_id,
                    item.get("where") or {},
                    tuple(item.get("columns") or ()),
                )
                draft.inputs.append((used, item))
    return drafts


def _resolve(item: _Record, by_name: dict[str, _Draft]) -> Output | None:
    """The output that an input's `from` means; None where its problem is told already."""
    origin: _Record | None = item.get("from")
    if origin is None or origin.has_unknown or None in origin.values.values():
        return None
    if origin.nodes.keys() not in ({"dataset"}, {"job"}, {"job", "output"}):
        suggestion = "write { job: ..., output: ... } or { dataset: ... }"
        raise _Wrong("spec.bad_from", origin.node, "expected a job and its output, or a dataset", suggestion)
    if dataset := origin.get("dataset"):
        return Output(dataset, dataset)
    name, wanted = origin.get("job"), origin.get("output")
    if (job := by_name.get(name)) is None:
        raise _Wrong("spec.unknown_job", origin.at("job"), f"no job {name[:100]!r}", near(name, by_name))
    matches = [output for output, _ in job.outputs if wanted in (None, output.name)]
    if len(matches) == 1 or not job.outputs_known():
        return matches[0] if len(matches) == 1 else None
    names = [output.name for output, _ in job.outputs]
    if wanted is None and matches:
        message = f"the job {name!r} has {len(matches)} outputs"
        raise _Wrong("spec.ambiguous_output", origin.node, message, f"add output: {' | '.join(names[:20])}")
    message = f"the job {name!r} has no output" + (f" {wanted[:100]!r}" if wanted else "")
    raise _Wrong("spec.unknown_output", origin.at("output"), message, near(wanted or "", names))


def _refuse_repeats(problems: _Problems, what: str, named: Iterable[tuple[str | None, yaml.Node]]) -> None:
    first: dict[str, yaml.Node] = {}
    for name, node in named:
        if name in first:
            message = f"the {what} {name[:100]!r} is there already, on line {first[name].start_mark.line + 1}"
            problems.add("spec.duplicate_name", node, message, "give it a name of its own")
        elif name:
            first[name] = node


def _check_jobs(problems: _Problems, drafts: list[_Draft], known_runtimes: frozenset[str]) -> None:
    names = {draft.name for draft in drafts}
    _refuse_repeats(problems, "job", [(draft.name, draft.record.at("name")) for draft in drafts])
    for draft in drafts:
        job = draft.record
        for code, shown_at, broken, message, suggestion in _JOB_RULES:
            if broken(job):
                problems.add(code, job.at(shown_at), message, suggestion)
        runtime = _runtime(job, known_runtimes)
        names_code = not (job.lacks("operator") and job.lacks("runtime"))
        if names_code and runtime is not None and runtime not in known_runtimes:
            message = f"no runtime {runtime[:100]!r}"
            problems.add("spec.unknown_runtime", job.at("runtime"), message, near(runtime, known_runtimes))
        keys = job.at("unique_key").value if job.get("unique_key") else ()
        _refuse_repeats(
            problems, "column", [(key.value, key) for key in keys if isinstance(key, yaml.ScalarNode)]
        )
        outputs = [
            (output.name, item.nodes.get("name", item.at("dataset"))) for output, item in draft.outputs
        ]
        _refuse_repeats(problems, "output", outputs)
        inputs = [(used.name, item.nodes.get("name", item.at("from"))) for used, item in draft.inputs]
        _refuse_repeats(problems, "input", inputs)
        for made in _aggregator_names(draft).values():
            if made in names or len(made) > MAX_NAME:
                fault = "which is taken" if made in names else f"longer than {MAX_NAME} characters"
                message = f"Bulk needs the job name {made[:200]!r}, {fault}"
                problems.add("spec.bad_batch_name", job.at("name"), message, "rename the job or its input")
            names.add(made)


def _producers(problems: _Problems, drafts: list[_Draft]) -> dict[str, int]:
    """The index of the job that produces each dataset."""
    producers: dict[str, int] = {}
    for index, draft in enumerate(drafts):
        for output, item in draft.outputs:
            if output.dataset_id in producers:
                first = drafts[producers[output.dataset_id]].name
                message = f"the job {first!r} already produces {output.dataset_id[:100]!r}"
                problems.add("spec.two_producers", item.at("dataset"), message, "write another dataset")
            producers.setdefault(output.dataset_id, index)
    return producers


def _check_datasets(
    problems: _Problems, top: _Record, drafts: list[_Draft], producers: dict[str, int]
) -> None:
    declared: dict[str, _Record | None] = top.get("datasets") or {}
    virtual_ones = {i for i, dataset in declared.items() if dataset is not None and _is_virtual(dataset)}
    if "jobs" in top.nodes and top.lacks("jobs") and not virtual_ones:
        message = "a DAG needs at least one job or virtual dataset"
        problems.add("spec.no_jobs", top.at("jobs"), message, "add a job")
    keys = _entries(problems, top.at("datasets")) if declared else {}
    for dataset_id, dataset in declared.items():
        unproduced = dataset_id not in producers and dataset_id not in virtual_ones
        if unproduced and all(draft.outputs_known() for draft in drafts):
            suggestion = near(dataset_id, producers.keys() - declared.keys()) or "remove it"
            message = f"no job of this file produces {dataset_id[:100]!r}"
            problems.add("spec.unproduced_dataset", keys[dataset_id][0], message, suggestion)
        if dataset is None:
            continue
        _check_virtual(problems, dataset)
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
        columns = [(column.get("name"), column.at("name")) for column in dataset.get("columns") or ()]
        _refuse_repeats(problems, "column", columns)
        if dataset.has("storage", "postgres") and dataset.has("write_mode", "direct"):
            _check_hot_table(problems, dataset)
    for draft in drafts:
        for used, item in draft.inputs:
            _check_columns_read(problems, item, declared.get(used.dataset_id))


def _is_virtual(dataset: _Record) -> bool:
    return dataset.has("storage", "virtual")


def _check_virtual(problems: _Problems, dataset: _Record) -> None:
    if not _is_virtual(dataset):
        if "sql" in dataset.nodes and (dataset.lacks("storage") or dataset.get("storage")):
            message = "only a virtual dataset has sql"
            problems.add("spec.sql_needs_virtual", dataset.at("sql"), message, "add storage: virtual")
        return
    if "sql" not in dataset.nodes:
        message = "a virtual dataset is its sql, which is missing"
        problems.add("spec.virtual_needs_sql", dataset.at("storage"), message, "add sql: select ...")
    for name in ("write_mode", "position"):
        if name in dataset.nodes:
            message = f"nothing of a virtual dataset is stored: it has no {name}"
            problems.add("spec.virtual_not_stored", dataset.at(name), message, "remove it")


def _below_virtual(problems: _Problems, top: _Record) -> dict[str, list[str]]:
    """By virtual dataset, what its SQL reads; those that read each other in a circle are told."""
    declared: dict[str, _Record | None] = top.get("datasets") or {}
    below = {
        dataset_id: virtual.reads(dataset.get("sql"))
        for dataset_id, dataset in declared.items()
        if dataset is not None and _is_virtual(dataset) and dataset.get("sql")
    }
    while True:
        graph = {i: [r for r in found if r in below] for i, found in below.items()}
        try:
            TopologicalSorter(graph).prepare()
            return below
        except CycleError as error:
            cycle = error.args[1][::-1]
            dataset = declared[cycle[0]]
            assert dataset is not None
            message = f"virtual datasets read each other: {' → '.join(cycle)}"
            problems.add("spec.cycle", dataset.at("sql"), message[:500], "let one read stored datasets only")
            below[cycle[0]] = [r for r in below[cycle[0]] if r != cycle[1]]


def _stored(dataset_id: str, below: dict[str, list[str]]) -> set[str]:
    """The dataset itself, or what a virtual one of this file reads in the end."""
    seen, waiting = {dataset_id}, [dataset_id]
    while waiting:
        new = set(below.get(waiting.pop(), ())) - seen
        seen |= new
        waiting += new
    return seen - below.keys()


def _check_hot_table(problems: _Problems, dataset: _Record) -> None:
    """A hot table is made from its declaration, and read by position."""
    types = {column.get("name"): column for column in dataset.get("columns") or ()}
    if dataset.lacks("columns") or dataset.lacks("position"):
        message = "a hot table needs its columns, and which of them is the position"
        suggestion = "add columns: [{ name: block, type: bigint }, ...] and position: block"
        problems.add("spec.hot_needs_position", dataset.node, message, suggestion)
    elif (position := dataset.get("position")) and position not in types:
        message = f"no column {position[:100]!r} here"
        problems.add(
            "spec.unknown_column", dataset.at("position"), message, near(position, filter(None, types))
        )
    elif position and (kind := types[position].get("type")) and not hot_table.can_be_position(kind):
        message = f"positions are whole numbers, and {position[:100]!r} is {kind[:100]}"
        problems.add("spec.hot_needs_position", dataset.at("position"), message, "name a bigint column")
    for name, column in types.items():
        if (kind := column.get("type")) and hot_table.stored_as(kind) is None:
            message = f"a hot table has no columns of the type {kind[:100]!r}"
            suggestion = f"one of: {', '.join(hot_table.SUPPORTED_TYPES)}"
            problems.add("spec.hot_type_unsupported", column.at("type"), message, suggestion)
        if name and not hot_table.can_be_column(name):
            message = f"Postgres cannot have a column {name[:100]!r}"
            problems.add("spec.bad_name", column.at("name"), message, "up to 63 bytes, and no system column")


def _check_columns_read(problems: _Problems, item: _Record, dataset: _Record | None) -> None:
    """What an input names of a dataset that this file declares must be there."""
    nodes = item.at("columns").value if item.get("columns") else []
    _refuse_repeats(problems, "column", [(n.value, n) for n in nodes if isinstance(n, yaml.ScalarNode)])
    known = {column.get("name") for column in (dataset.get("columns") if dataset else None) or ()}
    if not known or None in known:
        return
    named: list[tuple[str, yaml.Node]] = [(n.value, n) for n in nodes if isinstance(n, yaml.ScalarNode)]
    if dataset is not None and dataset.has("write_mode", "direct"):
        named += [(name, item.at("where")) for name in item.get("where") or ()]
    for name, node in named:
        if name not in known:
            problems.add("spec.unknown_column", node, f"no column {name[:100]!r} there", near(name, known))


def _order(
    problems: _Problems, drafts: list[_Draft], producers: dict[str, int], below: dict[str, list[str]]
) -> list[_Draft]:
    """Upstream first, and in the order of the file where that leaves a choice."""
    upstream = {
        index: {
            producers[read]
            for used, _ in draft.inputs
            for read in _stored(used.dataset_id, below)
            if read in producers
        }
        for index, draft in enumerate(drafts)
    }
    while True:
        sorter = TopologicalSorter(upstream)
        try:
            sorter.prepare()
            break
        except CycleError as error:
            cycle = error.args[1][1:]
            start = cycle.index(min(cycle))
            cycle = cycle[start:] + cycle[:start]
            _report_cycle(problems, [drafts[index] for index in cycle], below)
            upstream[cycle[0]].remove(cycle[-1])  # so that the next cycle is found too
    ready: list[int] = []
    order: list[_Draft] = []
    while sorter.is_active():
        for index in sorter.get_ready():
            heapq.heappush(ready, index)
        order.append(drafts[ready[0]])
        sorter.done(heapq.heappop(ready))
    return order


def _report_cycle(problems: _Problems, cycle: list[_Draft], below: dict[str, list[str]]) -> None:
    closing = {output.dataset_id for output, _ in cycle[-1].outputs}
    item = next(item for used, item in cycle[0].inputs if _stored(used.dataset_id, below) & closing)
    path = " → ".join(draft.name for draft in [*cycle, cycle[0]])
    problems.add("spec.cycle", item.at("from"), f"jobs feed each other: {path}", "remove one of these inputs")


def _runtime(job: _Record, known_runtimes: frozenset[str]) -> Any:
    if not job.lacks("runtime"):
        return job.get("runtime")
    return "dispatcher" if job.lacks("operator") else "spark" if "spark" in known_runtimes else "python"


def _job(draft: _Draft, top: _Record, known_runtimes: frozenset[str]) -> Job:
    job, source = draft.record, draft.record.get("source")
    execution = {
        attribute: value
        for attribute, path in _EXECUTION_PATHS.items()
        if (value := top.get("defaults", *path) if job.get(*path) is None else job.get(*path)) is not None
    }
    return Job(
        name=draft.name,
        activation=job.get("activation") or model.Activation.REACTIVE,
        runtime=_runtime(job, known_runtimes),
        operator=job.get("operator") or "source",
        config=job.get("config") or {},
        inputs=tuple(used for used, _ in draft.inputs),
        outputs=tuple(output for output, _ in draft.outputs),
        execution_strategy=job.get("execution_strategy") or model.ExecutionStrategy.PER_UPDATE,
        update_strategy=job.get("update_strategy") or model.UpdateStrategy.REPLACE,
        unique_key=tuple(job.get("unique_key") or ()),
        source=model.Source(**source.values) if source else None,
        execution=model.Execution(**execution),
        description=job.get("description") or "",
    )


def _aggregator_names(draft: _Draft) -> dict[str, str]:
    """The aggregator in front of a Bulk job for each dataset that it reads."""
    bulk = draft.record.has("execution_strategy", "Bulk")
    names = {used.dataset_id: re.sub("[^a-z0-9_-]", "_", used.name) for used, _ in draft.inputs if bulk}
    single = f"{draft.name}__batch"
    return {key: single if len(names) == 1 else f"{single}_{name}" for key, name in names.items()}


def _with_aggregators(draft: _Draft, job: Job) -> list[Job]:
    """A Bulk job behind its aggregators, any other alone: the graph shows all the batching there is."""
    names = _aggregator_names(draft)
    if not names:
        return [job]
    batches = {dataset_id: f"{dataset_id}#{job.name}.batches" for dataset_id in names}
    finality = draft.record.get("batch", "finality")
    # An aggregator that waits for a full range must not hold its own inputs.
    unmetered = replace(job.execution, max_concurrency=None, max_queue_depth=None, max_queue_age_seconds=None)
    aggregators = [
        Job(
            name=name,
            activation=model.Activation.REACTIVE,
            runtime="dispatcher",
            operator="aggregator",
            config={
                "size": draft.record.get("batch", "size"),
                "source_dataset": dataset_id,
                **({"finality": finality} if finality else {}),
            },
            inputs=(Input(dataset_id, dataset_id),),
            outputs=(Output("batches", batches[dataset_id]),),
            execution_strategy=model.ExecutionStrategy.PER_UPDATE,
            update_strategy=model.UpdateStrategy.REPLACE,
            execution=unmetered,
            generated_for=job.name,
        )
        for dataset_id, name in names.items()
    ]
    inputs = tuple(replace(used, dataset_id=batches[used.dataset_id]) for used in job.inputs)
    per_partition = model.ExecutionStrategy.PER_PARTITION
    return [*aggregators, replace(job, inputs=inputs, execution_strategy=per_partition)]


def _dataset(dataset_id: str, declared: _Record | None, producer: Job | None) -> model.Dataset:
    position = POSITIONS.get(producer.operator) if producer is not None else None
    if declared is None:
        return model.Dataset(dataset_id, position=position)
    storage = declared.get("storage") or model.Storage.PARQUET
    default_mode = model.WriteMode.BUFFERED if storage == model.Storage.POSTGRES else None
    return model.Dataset(
        dataset_id,
        storage=storage,
        write_mode=declared.get("write_mode") or default_mode,
        columns=tuple(model.Column(**column.values) for column in declared.get("columns") or ()),
        position=declared.get("position") or position,
        description=declared.get("description") or "",
        sql=declared.get("sql"),
    )


# ── the deployed form ─────────────────────────────────────────────────────────────────────────────────


def dump_normalized(dag: Dag) -> dict[str, Any]:
    """The DAG as plain JSON values, everything implied written out; `from_normalized` reads it back."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, StrEnum) else value

    return {"version": VERSION, **plain(asdict(dag))}


def from_normalized(data: dict[str, Any]) -> Dag:
    """The DAG that `dump_normalized` wrote; a field that is newer than the data takes its default."""
    dag: Dag = _revive(Dag, {key: value for key, value in data.items() if key != "version"})
    return dag


_hints = cache(get_type_hints)


def _revive(kind: Any, data: Any) -> Any:
    """JSON values as the dataclass, tuple or enum that the annotation `kind` asks for."""
    if hasattr(kind, "__dataclass_fields__"):
        kinds = _hints(kind)
        return kind(**{name: _revive(kinds[name], value) for name, value in data.items()})
    if isinstance(kind, UnionType):  # of something and None
        return None if data is None else _revive(get_args(kind)[0], data)
    if get_origin(kind) is tuple:
        return tuple(_revive(get_args(kind)[0], item) for item in data)
    return kind(data) if isinstance(kind, type) and issubclass(kind, StrEnum) else data
