"""Types of declared columns, in Spark SQL and in Arrow.

bigint                            int64
decimal(38, 0)                    decimal128(38, 0)
array<struct<a: int, b: string>>  list<element: struct<a: int32, b: string>>
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

_ARROW_NAMES = {
    "boolean": "bool",
    "tinyint": "int8",
    "byte": "int8",
    "smallint": "int16",
    "short": "int16",
    "int": "int32",
    "integer": "int32",
    "bigint": "int64",
    "long": "int64",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date32[day]",
    "timestamp": "timestamp[us, tz=UTC]",
    "timestamp_ltz": "timestamp[us, tz=UTC]",
    "timestamp_ntz": "timestamp[us]",
}
_DECIMALS = frozenset({"decimal", "dec", "numeric"})
_SIZED = frozenset({"char", "character", "varchar"})
_NESTED = frozenset({"array", "map", "struct"})
_WITHOUT_ARROW = frozenset({"interval", "variant", "void"})
"""Spark types without an Arrow equivalent; such columns of an output are not checked."""
_OF_INTERVALS = frozenset({"year", "month", "day", "hour", "minute", "second", "to"})

KNOWN = (*sorted({*_ARROW_NAMES, *_NESTED, "decimal", "varchar"}),)
"""For suggestions."""
ELSEWHERE = {
    "bool": "boolean",
    "bytea": "binary",
    "bytes": "binary",
    "blob": "binary",
    "datetime": "timestamp",
    "float32": "float",
    "float64": "double",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "list": "array",
    "number": "decimal",
    "str": "string",
    "text": "string",
    "timestamptz": "timestamp",
    "uint32": "bigint",
    "uint64": "decimal(20, 0)",
    "utf8": "string",
}
"""Names that other systems use."""

MOST_DIGITS = 38
_DEEPEST = 32
_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|`[^`]+`|\d+|[<>(),:])")


class UnknownType(ValueError):
    """The word, or the part of the type, that is not valid Spark SQL."""

    def __init__(self, word: str, what: str) -> None:
        super().__init__(what)
        self.word = word


def check(declared: str) -> None:
    """Raises UnknownType."""
    _arrow_name(declared)


def arrow_type(declared: str) -> str | None:
    """The Arrow name of a Spark SQL type; None if Arrow has no such type."""
    try:
        return _arrow_name(declared)
    except UnknownType:
        return None  # deployed before types were checked


def is_nested(arrow_name: str) -> bool:
    return "<" in arrow_name


@lru_cache(maxsize=1024)
def _arrow_name(declared: str) -> str | None:
    words = _Words(declared)
    name = _type(words, 0)
    if (rest := words.take()) is not None:
        raise UnknownType(rest, f"unexpected {rest!r} after the type")
    return name


class _Words:
    def __init__(self, text: str) -> None:
        self._words = _split(text)
        self.next = next(self._words, None)

    def take(self) -> str | None:
        word, self.next = self.next, next(self._words, None)
        return word

    def expect(self, mark: str, after: str) -> None:
        if (word := self.take() or "").lower() != mark:
            raise UnknownType(word or after, f"{mark!r} is missing after {after!r}")


def _split(text: str) -> Iterator[str]:
    at, text = 0, text.rstrip()
    while at < len(text):
        if (match := _TOKEN.match(text, at)) is None:
            raise UnknownType(text[at : at + 20], f"{text[at : at + 20]!r} is not part of a type")
        at = match.end()
        yield match[1]


def _type(words: _Words, depth: int) -> str | None:
    name = (words.take() or "").lower()
    if depth > _DEEPEST:
        raise UnknownType(name, f"types may be nested at most {_DEEPEST} levels deep")
    if name in _ARROW_NAMES:
        return _ARROW_NAMES[name]
    if name in _DECIMALS:
        return _decimal(words, name)
    if name in _SIZED:
        if words.next != "(":
            raise UnknownType(name, f"{name} needs a length, such as {name}(20)")
        _numbers(words, name)
        return "string"
    if name in _NESTED:
        return _nested(words, name, depth)
    if name in _WITHOUT_ARROW:
        while name == "interval" and (words.next or "").lower() in _OF_INTERVALS:
            words.take()
        return None
    raise UnknownType(name, f"Spark SQL has no type {name!r}")


def _numbers(words: _Words, name: str) -> list[int]:
    """`(20)` or `(38, 0)`, if present."""
    numbers: list[int] = []
    while words.next == ("," if numbers else "("):
        words.take()
        number = words.take() or ""
        if not number.isdigit():
            raise UnknownType(number or name, f"{name} needs a number in its parentheses")
        numbers.append(int(number[:9]))
    if numbers:
        words.expect(")", name)
    return numbers


def _decimal(words: _Words, name: str) -> str:
    numbers = _numbers(words, name)
    precision, scale = (numbers + [10, 0][len(numbers) :])[:2]
    if len(numbers) > 2 or not 1 <= precision <= MOST_DIGITS or scale > precision:
        raise UnknownType(
            f"{name}({', '.join(map(str, numbers))})",
            f"{name} has 1 to {MOST_DIGITS} digits, and at most as many decimal places",
        )
    return f"decimal128({precision}, {scale})"


def _nested(words: _Words, name: str, depth: int) -> str | None:
    words.expect("<", name)
    parts: list[tuple[str, str | None]] = []
    while words.next != ">" or not parts:
        if parts:
            words.expect(",", name)
        field = ""
        if name == "struct":
            field = (words.take() or "").strip("`")
            if not field or not (field[0].isalpha() or field[0] == "_"):
                raise UnknownType(field or name, "a field of a struct needs a name, as in struct<a: int>")
            if words.next == ":":
                words.take()
        parts.append((field, _type(words, depth + 1)))
        if name == "struct" and (words.next or "").lower() == "not":
            words.take()
            words.expect("null", "not")
    words.expect(">", name)
    if len(parts) != {"array": 1, "map": 2}.get(name, len(parts)):
        raise UnknownType(name, "write array<TYPE>" if name == "array" else "write map<KEY, VALUE>")
    types = [type_ for _, type_ in parts]
    if None in types:
        return None
    if name == "array":
        return f"list<element: {types[0]}>"
    if name == "map":
        return f"map<{types[0]}, {types[1]}>"
    return f"struct<{', '.join(f'{field}: {type_}' for field, type_ in parts)}>"
