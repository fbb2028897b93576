"""The base of all messages, and the field types that the contracts share."""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_BATCH = 1000

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Position = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Written = Annotated[int, msgspec.Meta(ge=0, le=10**15)]
"""Rows or bytes of an output: more than a task can write, yet Postgres can add up thousands of them."""
AttemptNumber = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Traceparent = Annotated[str, msgspec.Meta(pattern="^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")]
Scalar = Annotated[str, msgspec.Meta(max_length=1024)] | Position | float | bool | None
ColumnName = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Scope(Wire, frozen=True):
    """A cursor, or a partition with its inclusive ends."""

    cursor: Position | None = None
    partition_key: Text | None = None
    start: Position | None = None
    end: Position | None = None

    def __post_init__(self) -> None:
        if (self.cursor is None) == (self.partition_key is None):
            raise ValueError("a scope is either a cursor or a partition_key with start and end")
        if self.cursor is not None:
            if self.start is not None or self.end is not None:
                raise ValueError("a cursor has neither start nor end")
        elif self.start is None or self.end is None or self.end < self.start:
            raise ValueError("a partition needs start and end, and start must not lie after end")

    @property
    def first(self) -> int:
        return self.cursor if self.cursor is not None else self.start  # type: ignore[return-value]

    @property
    def last(self) -> int:
        return self.cursor if self.cursor is not None else self.end  # type: ignore[return-value]
