"""Sources of signals: partitions of durable, ordered messages, shared by the instances of one group.

Two implementations keep one contract (tests/trigger/test_signal_source.py): `signal_source_kafka`, and
`signal_source_folder`, which needs no broker. A source does not store how far it was read: the reader stores that
together with the effects of the messages (`Offsets`), and provides it when it is assigned a partition.

A source belongs to one thread at a time. It may call its `Offsets` while it polls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

MOST_BYTES = 256 * 1024
"""A signal has a few hundred bytes; anything longer than this is a mistake."""


class Offsets(Protocol):
    """How far partitions are consumed. Stored by the reader, since only it knows the effects of the messages."""

    def stored(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Where to continue; without partitions that nobody has consumed."""

    def begin(self, offsets: Mapping[int, int]) -> Mapping[int, int]:
        """Stores where unconsumed partitions begin, so that a crash before the first batch skips nothing. Returns what
        is stored now, which may come from another instance."""

    def settle(self) -> None:
        """Partitions are about to be revoked: lets the batch in progress finish, so that it is not wasted."""


@dataclass(frozen=True, slots=True)
class Position:
    """A piece of one partition: from `expected`, the previous end, up to `next_offset`."""

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
    """When the first message was published, if the source knows."""


def _nowhere(_: int) -> tuple[int, int]:
    raise IndexError("nothing was polled")


NOTHING = Polled((), (), _nowhere)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An invalid message, and why."""

    payload: bytes
    partition: int
    offset: int
    code: str
    reason: str


class SignalSource(Protocol):
    """Raises QueueUnavailable if it cannot be reached; the call may be retried."""

    def poll(self, least: int, wait: float, most: int) -> Polled:
        """Waits for `least` messages or `wait` seconds, then returns those available, at most `most`. Empty if
        partitions were assigned or revoked in the meantime."""

    def rewind(self) -> None:
        """Continues from the stored offsets: messages polled since then do not count."""

    @property
    def generation(self) -> int:
        """Changes when partitions are assigned, or continue from another offset."""

    def history(self, seconds: float) -> Iterable[tuple[int, bytes]]:
        """Partition and payload of messages published up to this many seconds before the next polled one."""

    def lag(self) -> int:
        """Messages that are published but not polled, as far as known without a request."""

    def partitions(self) -> Collection[int]:
        """The assigned partitions."""

    def bury(self, letters: Sequence[DeadLetter]) -> int:
        """Stores messages where people can find them, within a second; returns how many were certainly stored."""

    def close(self) -> None:
        """Releases the partitions."""
