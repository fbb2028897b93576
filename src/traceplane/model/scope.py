"""The scope of a change: one position of an ordered stream, or a named range of positions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """One ordered position, for example a block number."""

    position: int

    @property
    def key(self) -> str:
        return f"c:{self.position}"

    @property
    def start(self) -> int:
        return self.position

    @property
    def end(self) -> int:
        return self.position

    def __str__(self) -> str:
        return str(self.position)


@dataclass(frozen=True, slots=True)
class Partition:
    """A named range of positions; both ends belong to it."""

    name: str
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"partition {self.name!r} ends at {self.end}, before its start {self.start}")

    @classmethod
    def of_range(cls, start: int, end: int) -> Partition:
        return cls(f"{start}-{end}", start, end)

    @property
    def key(self) -> str:
        return f"p:{self.name}"

    def __str__(self) -> str:
        return self.name


Scope = Cursor | Partition
