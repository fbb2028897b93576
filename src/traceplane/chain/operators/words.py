"""What was said about each height, and what has to be said next. Pure: no node, no platform.

A word is an event: its kind, and an emission that holds the block's hash, or `orphaned:` and the hash of the
block that is gone. The platform takes an emission once per height and kind; a chain may well come back to a
block it left, so from the third word on a height the emission also counts: `0x…#2`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from traceplane.chain.follow import Recorded

ORPHANED = "orphaned:"


@dataclass(frozen=True, slots=True)
class Word:
    """The last one about a height."""

    number: int
    text: str
    """The block's hash; for one that is gone, `orphaned:` and its hash."""
    kind: str
    count: int
    """How many words on this height came before."""

    @property
    def hash(self) -> str | None:
        return None if self.text.startswith(ORPHANED) else self.text

    @property
    def emission(self) -> str:
        return self.text if self.count < 2 else f"{self.text}#{self.count}"

    @classmethod
    def read(cls, number: int, emission: str, kind: str) -> Word:
        text, _, counted = emission.partition("#")
        count = int(counted) if counted.isdecimal() else int(kind == "invalidation")
        return cls(number, text, kind, count)


class Words:
    """The last word on each height that is remembered, from what the platform remembers of a source."""

    def __init__(self, resume: Iterable[tuple[int, str, str]] = ()) -> None:
        self._last = {number: Word.read(number, emission, kind) for number, emission, kind in resume}

    def of_block(self, number: int, block_hash: str) -> Word | None:
        """What to say of a canonical block; nothing if that is what was said last."""
        last = self._last.get(number)
        if last is None:
            return Word(number, block_hash, "data", 0)
        if last.hash == block_hash:
            return None
        return Word(number, block_hash, "invalidation" if last.hash else "data", last.count + 1)

    def of_orphans(self, head: int) -> list[Word]:
        """What to say of heights that the chain does not reach (any more), the highest first.

        In this order, whatever of it was said before a crash leaves the blocks below it in one piece.
        """
        gone = [word for word in self._last.values() if word.number > head and word.hash]
        return [
            Word(word.number, f"{ORPHANED}{word.hash}", "invalidation", word.count + 1)
            for word in sorted(gone, key=lambda word: -word.number)
        ]

    def said(self, word: Word, keep: int) -> None:
        self._last[word.number] = word
        while len(self._last) > keep:
            del self._last[min(self._last)]

    def blocks(self) -> list[Recorded]:
        """The blocks that stand, from the oldest height on, up to the first that is gone."""
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
        """The lowest height whose last word told of a change.

        The blocks below it were said one after the other, so they follow one another. From it on they may
        not: whoever said them may have been killed between two words on one reorg.
        """
        return min((word.number for word in self._last.values() if word.kind == "invalidation"), default=None)
