"""Where signals come from: partitions of messages in a lasting order, shared by the instances of one group.

Two implementations keep one contract (tests/trigger/test_signal_source.py): `signal_source_kafka`, and
`signal_source_folder`, which needs no broker. A source does not remember how far it was read: whoever reads keeps
that together with what the messages caused (`Offsets`), and names it again when a partition comes to it.

A source belongs to one thread at a time. It may call its `Offsets` while it polls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

MOST_BYTES = 256 * 1024
"""A signal has a few hundred; what is longer than this is a mistake."""


class Offsets(Protocol):
    """How far partitions are consumed; the reader's, since only it knows what came of their messages."""

    def stored(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Where partitions go on; those that nobody consumed are missing."""

    def begin(self, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Keeps where unconsumed partitions begin, so that a crash before the first batch skips nothing; what is
        stored for them now, which may be another's word."""

    def settle(self) -> None:
        """Partitions are about to be taken away: lets what is under way end, so that it is not thrown away."""


@dataclass(frozen=True, slots=True)
class Position:
    """A piece of one partition: from `expected`, where it was left, to `next_offset`, where it goes on."""

    partition: int
    expected: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Polled:
    payloads: Sequence[bytes]
    positions: Sequence[Position]
    place: Callable[[int], tuple[int, int]]
    """Partition and offset of the n-th message."""
    oldest_ms: int | None = None
    """When the first message was published, where the source knows."""


def _nowhere(_: int) -> tuple[int, int]:
    raise IndexError("nothing was polled")


NOTHING = Polled((), (), _nowhere)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that cannot be understood, and why."""

    payload: bytes
    partition: int
    offset: int
    code: str
    reason: str


class SignalSource(Protocol):
    """What cannot be reached raises QueueUnavailable; the call may be repeated."""

    def poll(self, least: int, wait: float, most: int) -> Polled:
        """Waits until there are `least` messages or `wait` seconds are over; takes what is there, `most` at most.
        Empty when partitions came or went meanwhile."""

    def rewind(self) -> None:
        """Goes on from the stored offsets: what was polled since is not to be counted on."""

    @property
    def generation(self) -> int:
        """Changes when partitions came, or when they go on from elsewhere."""

    def history(self, seconds: float) -> Iterable[tuple[int, bytes]]:
        """Partition and payload of what was published up to so many seconds before that which is polled next."""

    def lag(self) -> int:
        """Messages that were published and not polled, as far as is known without asking."""

    def partitions(self) -> Collection[int]:
        """Which are ours."""

    def bury(self, letters: Sequence[DeadLetter]) -> int:
        """Puts messages where people find them, waiting a second at most; how many are there for sure."""

    def close(self) -> None:
        """Gives the partitions back."""
