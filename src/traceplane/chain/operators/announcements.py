"""What was announced about each height, and what to announce next. Pure: no node, no platform.

An announcement is an event: its kind, and an emission that holds the block's hash, or `orphaned:` and the hash of the
orphaned block. The platform accepts an emission once per height and kind. Since a chain may return to a block that it
left, the emission also carries a count from the third announcement of a height on: `0x…#2`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from traceplane.chain.follow import Recorded

ORPHANED = "orphaned:"


@dataclass(frozen=True, slots=True)
class Announcement:
    """The latest event about a height."""

    number: int
    text: str
    """The block's hash; if orphaned, `orphaned:` and its hash."""
    kind: str
    count: int
    """How many announcements about this height came before."""

    @property
    def hash(self) -> str | None:
        return None if self.text.startswith(ORPHANED) else self.text

    @property
    def emission(self) -> str:
        return self.text if self.count < 2 else f"{self.text}#{self.count}"

    @classmethod
    def read(cls, number: int, emission: str, kind: str) -> Announcement:
        text, _, counted = emission.partition("#")
        count = int(counted) if counted.isdecimal() else int(kind == "invalidation")
        return cls(number, text, kind, count)


class Announcements:
    """The latest announcement of each recent height, from the state that the platform keeps of a source."""

    def __init__(self, resume: Iterable[tuple[int, str, str]] = ()) -> None:
        self._last = {number: Announcement.read(number, emission, kind) for number, emission, kind in resume}

    def of_block(self, number: int, block_hash: str) -> Announcement | None:
        """What to announce about a canonical block; None if that is the latest announcement."""
        last = self._last.get(number)
        if last is None:
            return Announcement(number, block_hash, "data", 0)
        if last.hash == block_hash:
            return None
        return Announcement(number, block_hash, "invalidation" if last.hash else "data", last.count + 1)

    def of_orphans(self, head: int) -> list[Announcement]:
        """What to announce about heights that the chain does not reach (any more), highest first.

        In this order, a crash part way leaves the blocks below in one piece.
        """
        orphans = [one for one in self._last.values() if one.number > head and one.hash]
        return [
            Announcement(one.number, f"{ORPHANED}{one.hash}", "invalidation", one.count + 1)
            for one in sorted(orphans, key=lambda one: -one.number)
        ]

    def add(self, announcement: Announcement, keep: int) -> None:
        self._last[announcement.number] = announcement
        while len(self._last) > keep:
            del self._last[min(self._last)]

    def blocks(self) -> list[Recorded]:
        """The announced blocks, from the oldest height up to the first orphaned one."""
        recorded: list[Recorded] = []
        for number in itertools.count(min(self._last, default=0)):
            if number not in self._last or (block_hash := self._last[number].hash) is None:
                return recorded
            recorded.append(Recorded(number, block_hash))
        raise AssertionError("unreachable")

    @property
    def oldest(self) -> int | None:
        return min(self._last, default=None)

    @property
    def lowest_change(self) -> int | None:
        """The lowest height whose latest announcement was a change.

        The blocks below it were announced in order, so they form one chain. From it on they may not: the run may
        have been killed between two announcements of one reorg.
        """
        return min((one.number for one in self._last.values() if one.kind == "invalidation"), default=None)
