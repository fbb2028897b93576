"""Reads YAML by tables of fields. Each value keeps its line and column, so each problem points at what was typed.

A reader (`Read`) takes a node and returns its value, or raises `BadValue`. The reader of the container records the
problem and continues, so that all problems of a file are reported at once. Nothing here knows what a DAG is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from traceplane.errors import SpecInvalid, SpecProblem
from traceplane.model.near_names import near

MAX_BYTES = 1 << 20
MAX_EXPANDED = 4 << 20  # characters, plus NODE_COST for each node, with aliases expanded
NODE_COST = 16
MAX_DEPTH = 64
MAX_PROBLEMS = 100
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


class BadValue(Exception):
    """A value that cannot be read; the reader of the container records it and continues."""

    def __init__(self, code: str, at: At, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.details = (code, at, message, suggestion)


class Problems:
    """The problems of one file, in the order they are found."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._problems: dict[SpecProblem, None] = {}

    def add(self, code: str, at: At, message: str, suggestion: str | None = None) -> None:
        value = at.value[:100] if isinstance(at, yaml.ScalarNode) else None
        mark = at.start_mark if isinstance(at, yaml.Node) else at
        line, column = mark if isinstance(mark, tuple) else (mark.line + 1, mark.column + 1)
        # A dict, since an aliased node is read once for each use and is still one problem.
        self._problems[SpecProblem(code, message, self.file, line, column, value, suggestion)] = None
        if len(self._problems) >= MAX_PROBLEMS:
            raise self.invalid()

    def attempt(self, read: Read, node: yaml.Node) -> Any:
        """The value that `read` returns, or None with the problem recorded."""
        try:
            return read(self, node)
        except BadValue as bad:
            self.add(*bad.details)
            return None

    def invalid(self) -> SpecInvalid:
        return SpecInvalid(tuple(sorted(self._problems, key=lambda p: (p.line, p.column, p.code))))

    def __bool__(self) -> bool:
        return bool(self._problems)


Read = Callable[[Problems, yaml.Node], Any]
Fields = dict[str, Read]

_SYNTAX_ADVICE = "look here and at the line before: a bracket or quote is open, or the indentation is another"


def compose(text: str) -> yaml.Node:
    root: yaml.Node | None
    try:
        if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
            raise BadValue("spec.too_large", (1, 1), f"the file has more than {MAX_BYTES} bytes")
        data = text.encode()
        _bound_expansion(data)
        root = yaml.compose(data, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        message = ", ".join(part for part in (error.context, error.problem) if part)
        at = error.problem_mark or error.context_mark or (1, 1)
        is_open = isinstance(error, yaml.parser.ParserError)
        raise BadValue("spec.syntax", at, message, _SYNTAX_ADVICE if is_open else None) from None
    except yaml.reader.ReaderError as error:
        before = data[: error.position].decode(errors="ignore")
        at = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise BadValue("spec.syntax", at, error.reason, "remove this character") from None
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        raise BadValue("spec.syntax", (1, 1), f"not UTF-8 text: {error.reason}", "save it as UTF-8") from None
    if root is None or root.tag == _YAML + "null":
        raise BadValue("spec.empty", (1, 1), "the file is empty", "begin with version: 1")
    return root


def _bound_expansion(data: bytes) -> None:
    """Refuses text that would be too deep or too large with its aliases expanded, before any node is built."""
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
                raise BadValue("spec.recursive_alias", event.start_mark, f"*{event.anchor} contains itself")
            size, depth = measured.get(event.anchor or "", (0, 0))
        anchor, total, below = stack[-1]
        stack[-1] = (anchor, total + size, max(below, depth + 1))
        if len(stack) + depth > MAX_DEPTH:
            raise BadValue("spec.too_deep", event.start_mark, f"nested deeper than {MAX_DEPTH} levels")
        if total + size > MAX_EXPANDED:
            raise BadValue("spec.too_large", event.start_mark, "too many values once aliases are expanded")


@dataclass(frozen=True, slots=True)
class YamlMap:
    """A map that was read: the node and value of each known field; the value is None if it is invalid."""

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
        """Whether it is absent or an empty list; an invalid one counts as present and has its own problem."""
        node = self.nodes.get(name)
        return node is None or (isinstance(node, yaml.SequenceNode) and not node.value)


def wrong_type(node: yaml.Node, expected: str) -> BadValue:
    kinds = {
        "map": "a map",
        "seq": "a list",
        "null": "nothing",
        "bool": "true/false",
        "int": "a whole number",
    }
    kind = kinds.get(node.tag.removeprefix(_YAML), "another kind of value")
    quotable = expected == "text" and isinstance(node, yaml.ScalarNode) and node.value
    suggestion = f'put it in quotes: "{node.value[:60]}"' if quotable else f"write {expected} here"
    # Where a map belongs, text is easily a secret.
    tells = isinstance(node, yaml.ScalarNode) and node.value and expected not in ("a map", "a list")
    value = f" ({node.value[:60]!r})" if tells else ""
    return BadValue("spec.wrong_type", node, f"expected {expected}, found {kind}{value}", suggestion)


_CONVERT: dict[str, Callable[[str], str | int | float | bool | None]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "null": lambda text: {"": None, "~": None, "null": None}[text.lower()],
}


def scalar(_: Problems, node: yaml.Node) -> str | int | float | bool | None:
    kind = node.tag.removeprefix(_YAML)
    if not isinstance(node, yaml.ScalarNode):
        raise wrong_type(node, "one value")
    if kind not in _CONVERT:
        raise BadValue(
            "spec.unsupported_tag", node, f"the tag {node.tag[:100]} is not supported", "remove the tag"
        )
    try:
        value = _CONVERT[kind](node.value)
    except (ValueError, KeyError):
        message = f"{node.value[:60]!r} is not a value for the tag !!{kind}"
        raise BadValue("spec.wrong_type", node, message, "remove the tag") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise BadValue("spec.out_of_range", node, "the number is too large", "quote it to keep it as text")
    if isinstance(value, str) and "\0" in value:  # Postgres cannot store it
        raise BadValue("spec.bad_text", node, "text must not hold a NUL character")
    return value


def _typed(kind: type, expected: str) -> Read:
    def read(problems: Problems, node: yaml.Node) -> Any:
        value = scalar(problems, node) if isinstance(node, yaml.ScalarNode) else None
        if type(value) is not kind:  # not isinstance: True is an int
            raise wrong_type(node, expected)
        return value

    return read


text, whole, boolean = _typed(str, "text"), _typed(int, "a whole number"), _typed(bool, "true or false")


def matching(pattern: str, rule: str) -> Read:
    def read(problems: Problems, node: yaml.Node) -> str:
        value: str = text(problems, node)
        if not (re.fullmatch(pattern, value) and value.isprintable()):
            # Kept all the same, so that references to this name are not reported as unknown too.
            problems.add("spec.bad_name", node, f"{value[:100]!r} is not {rule}")
        return value

    return read


def choice(options: type[StrEnum]) -> Read:
    def read(problems: Problems, node: yaml.Node) -> StrEnum:
        if (value := text(problems, node)) not in list(options):
            raise BadValue("spec.unknown_value", node, f"no value {value[:100]!r} here", near(value, options))
        return options(value)

    return read


def count(problems: Problems, node: yaml.Node) -> int:
    if not 1 <= (value := int(whole(problems, node))) <= MAX_INTEGER:
        raise BadValue("spec.out_of_range", node, f"must be from 1 to {MAX_INTEGER}")
    return value


def duration(problems: Problems, node: yaml.Node) -> float:
    return _duration(problems, node, MAX_SECONDS)


def duration_of_years(problems: Problems, node: yaml.Node) -> float:
    """With a unit: of years, nobody thinks in seconds."""
    if isinstance(node, yaml.ScalarNode) and type(scalar(problems, node)) in (int, float):  # not bool
        message = f"{node.value[:40]} has no unit"
        raise BadValue("spec.bad_duration", node, message, f"write {node.value[:40]}d for days")
    return _duration(problems, node, 100 * MAX_SECONDS)


def _duration(problems: Problems, node: yaml.Node, most: float) -> float:
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    value = scalar(problems, node) if isinstance(node, yaml.ScalarNode) else None
    if match := re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ms|[smhd])", str(value)):
        value = float(match[1]) * units[match[2]]
    if isinstance(value, bool) or not isinstance(value, int | float):
        suggestion = "write 500ms, 30s, 5m, 2h, 1d or a number of seconds"
        raise BadValue("spec.bad_duration", node, "expected a duration", suggestion)
    if not 0 < value <= most:
        message = f"a duration must be more than 0 and at most {most / units['d']:g}d"
        raise BadValue("spec.out_of_range", node, message)
    return float(value)


def entries(problems: Problems, node: yaml.Node) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """The key and value nodes of a map, `<<` merged beneath its own keys."""
    own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    if not isinstance(node, yaml.MappingNode):
        raise wrong_type(node, "a map")
    for key, value in node.value:
        if key.tag == _YAML + "merge":
            for base in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                merged = {**entries(problems, base), **merged}
        elif (name := problems.attempt(text, key)) in own:
            first = own[name][0].start_mark.line + 1
            problems.add("spec.duplicate_key", key, f"{name[:100]!r} is given twice", f"see line {first}")
        elif name is not None:
            own[name] = key, value
    return {**merged, **own}


def list_of(item: Read) -> Read:
    def read(problems: Problems, node: yaml.Node) -> list[Any]:
        if not isinstance(node, yaml.SequenceNode):
            raise wrong_type(node, "a list")
        return [value for child in node.value if (value := problems.attempt(item, child)) is not None]

    return read


_LONGEST_REASON = 500


def reason(problems: Problems, node: yaml.Node) -> str:
    """Why a column is no personal data."""
    value: str = text(problems, node)
    if not 1 <= len(value.strip()) <= _LONGEST_REASON:
        message = f"a reason has 1 to {_LONGEST_REASON} characters"
        raise BadValue("spec.bad_reason", node, message, "say why it is no personal data")
    return value.strip()


def map_of(item: Read, key: Read = text) -> Read:
    def read(problems: Problems, node: yaml.Node) -> dict[str, Any]:
        items = entries(problems, node)
        for key_node, _ in items.values():
            problems.attempt(key, key_node)
        return {name: problems.attempt(item, value) for name, (_, value) in items.items()}

    return read


def record(fields: Fields, *required: str) -> Read:
    def read(problems: Problems, node: yaml.Node) -> YamlMap:
        items = entries(problems, node)
        for name, (key, _) in items.items():
            if name not in fields:
                problems.add("spec.unknown_field", key, f"no field {name[:100]!r} here", near(name, fields))
        for name in required:
            if name not in items:
                problems.add("spec.missing_field", node, f"the field {name!r} is missing", f"add {name}: ...")
        nodes = {name: items[name][1] for name in fields if name in items}
        values = {name: problems.attempt(fields[name], nodes[name]) for name in nodes}
        return YamlMap(node, nodes, values, has_unknown=len(nodes) < len(items))

    return read


def free(problems: Problems, node: yaml.Node) -> Any:
    """Any value that JSON can hold."""
    if isinstance(node, yaml.SequenceNode):
        return [problems.attempt(free, child) for child in node.value]
    return map_of(free)(problems, node) if isinstance(node, yaml.MappingNode) else scalar(problems, node)
