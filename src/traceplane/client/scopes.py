"""What `Client.emit` takes as scopes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from traceplane.errors import InvalidInput
from traceplane.model.scope import Cursor, Partition
from traceplane.wire.control import ManualEvent
from traceplane.wire.scalars import Position, Scope

OneScope = int | str | tuple[int, int] | Cursor | Partition | Scope


def event_of(
    dataset: str, scope: Scope | str, kind: Literal["data", "invalidation"], emission: str
) -> ManualEvent:
    if isinstance(scope, Scope):
        return ManualEvent(dataset, scope, kind, emission)
    first, _, last = scope.partition("..")
    return ManualEvent(dataset, None, kind, emission, partition=first, through=last or None)


def scopes_of(scopes: OneScope | Iterable[OneScope]) -> Iterator[Scope | str]:
    if isinstance(scopes, int | str | bytes | Cursor | Partition | Scope) or _is_pair(scopes):
        return iter([_scope(scopes)])
    try:
        return map(_scope, iter(scopes))
    except TypeError:  # a number type of another library, or not a scope at all
        return iter([_scope(scopes)])


def _is_pair(scopes: object) -> bool:
    """A tuple of two numbers is one partition; two cursors are a list."""
    return isinstance(scopes, tuple) and len(scopes) == 2 and all(hasattr(end, "__index__") for end in scopes)


def _scope(scope: object) -> Scope | str:
    try:
        match scope:
            case Scope():
                return scope
            case str() if scope and not scope.lstrip("-").isdigit():
                return scope
            case Cursor(position):
                return _cursor(position)
            case Partition(name, start, end):
                return _partition(name, start, end)
            case (first, last):
                return _partition(f"{first}-{last}", first, last)
            case _:
                return _cursor(scope)
    except (TypeError, ValueError):
        raise InvalidInput(
            "client.bad_scope",
            "a scope must be a 64-bit integer, a pair (first, last) of them, or the name of a partition",
            value=repr(scope),
            next_step="for example 30, (40, 46), range(14), [30, (40, 46)] or '2026-11-16'",
        ) from None


def _cursor(position: object) -> Scope:
    return Scope(cursor=_position(position))


def _partition(name: str, first: object, last: object) -> Scope:
    start, end = _position(first), _position(last)
    if start > end:
        raise InvalidInput(
            "client.empty_range",
            "the partition ends before it starts",
            value=f"({start}, {end})",
            next_step=f"write the smaller position first: ({end}, {start})",
        )
    return Scope(partition_key=name, start=start, end=end)


def _position(value: object) -> int:
    """Raises TypeError or ValueError."""
    if isinstance(value, bool):
        raise TypeError("a boolean is not a position")
    return msgspec.convert(operator.index(value), Position)  # type: ignore[arg-type]
