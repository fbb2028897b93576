"""Which pipelines a batch of signals matches: pure, on arrays, without a database.

A pipeline with tickers and subscriptions becomes postings: one for each ticker and subscription, ordered by ticker. A
posting says which pipeline, which type, which direction and which confidence at least. A batch is first folded to what
can matter, then every signal is laid beside the postings of its tickers at once, and each pipeline keeps the first
signal that matched.

An `Index` never changes; a change to pipelines gives a new one, and readers go over to it by one assignment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from traceplane.trigger.messages import Signal

Ints = NDArray[np.int32]
ANY = -1
_PAIRS_AT_ONCE = 2_000_000
"""Signals laid beside postings in one go: memory, not time."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a pipeline wants to hear of its tickers; None: anything."""

    signal_type: str | None = None
    direction: str | None = None
    min_confidence: float = 0.0


@dataclass(frozen=True, slots=True)
class Postings:
    """Columns of equal length, ordered by ticker."""

    ticker: Ints
    pipeline: Ints
    signal_type: Ints
    direction: Ints
    min_confidence: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ticker)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns())

    def columns(self) -> tuple[NDArray[Any], ...]:
        return self.ticker, self.pipeline, self.signal_type, self.direction, self.min_confidence

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int, int, float]]) -> Postings:
        *whole, confidence = zip(*rows, strict=True) if rows else [()] * 5
        ticker, pipeline, signal_type, direction = (np.array(column, np.int32) for column in whole)
        return cls(ticker, pipeline, signal_type, direction, np.array(confidence, np.float64))

    def where(self, kept: NDArray[np.bool_]) -> Postings:
        return Postings(*(column[kept] for column in self.columns()))

    def with_more(self, others: Postings) -> Postings:
        joined = [np.concatenate(pair) for pair in zip(self.columns(), others.columns(), strict=True)]
        order = np.argsort(joined[0], kind="stable")
        return Postings(*(column[order] for column in joined))


@dataclass(frozen=True, slots=True)
class Index:
    """All pipelines of a moment, by ticker."""

    postings: Postings
    starts: NDArray[np.int64]
    """Where the postings of each ticker begin; one more than there are tickers."""
    tickers: Mapping[str, int]
    signal_types: Mapping[str, int]
    directions: Mapping[str, int]
    pipelines: Sequence[UUID | None]
    """By number; None: gone."""
    live: int = 0

    @property
    def nbytes(self) -> int:
        # A UUID with its number, and an entry of the table of tickers; measured.
        return self.postings.nbytes + self.starts.nbytes + 112 * len(self.pipelines) + 160 * len(self.tickers)


@dataclass(frozen=True, slots=True)
class Matches:
    """Matched pipelines by number, and for each the first signal that matched, by its place in the batch."""

    pipelines: Ints
    signals: Ints


NO_MATCHES = Matches(np.empty(0, np.int32), np.empty(0, np.int32))


def match(index: Index, signals: Sequence[Signal | None]) -> Matches:
    folded = fold(index, signals)
    if not len(folded.nth):
        return NO_MATCHES
    first = np.full(len(index.pipelines), len(signals), np.int32)
    widths = index.starts[folded.ticker + 1] - index.starts[folded.ticker]
    ends = np.cumsum(widths)
    # Later pieces first, so that in `first` the earliest word is the last one written.
    for begin, end in reversed(_pieces(ends)):
        _meet(index, folded, widths, begin, end, first)
    matched = np.flatnonzero(first < len(signals)).astype(np.int32)
    return Matches(matched, first[matched])


def _pieces(ends: NDArray[np.int64]) -> list[tuple[int, int]]:
    pieces, begin = [], 0
    while begin < len(ends):
        before = ends[begin - 1] if begin else 0
        end = max(int(np.searchsorted(ends, before + _PAIRS_AT_ONCE, side="right")), begin + 1)
        pieces.append((begin, end))
        begin = end
    return pieces


def _meet(index: Index, folded: Folded, widths: NDArray[np.int64], begin: int, end: int, first: Ints) -> None:
    """Lays signals beside the postings of their tickers."""
    width = widths[begin:end]
    word = np.repeat(np.arange(begin, end, dtype=np.int32), width)
    shift = np.repeat(index.starts[folded.ticker[begin:end]] - (np.cumsum(width) - width), width)
    posting = np.arange(len(word), dtype=np.int64) + shift
    kept = index.postings
    fits = kept.min_confidence[posting] <= folded.confidence[word]
    wanted = kept.signal_type[posting]
    fits &= (wanted == ANY) | (wanted == folded.signal_type[word])
    wanted = kept.direction[posting]
    fits &= (wanted == ANY) | (wanted == folded.direction[word])
    chosen = kept.pipeline[posting[fits]]
    first[chosen[::-1]] = folded.nth[word[fits]][::-1]


@dataclass(frozen=True, slots=True)
class Folded:
    """Words about tickers that can be the first to match something, in the order of the signals."""

    ticker: Ints
    signal_type: Ints
    direction: Ints
    confidence: NDArray[np.float64]
    nth: Ints


def fold(index: Index, signals: Sequence[Signal | None]) -> Folded:
    """Drops tickers that nobody watches, and words that an earlier one of the same ticker, type and direction
    outdid: whoever is content with the later one was content with the earlier one."""
    known = index.tickers.get
    type_of, direction_of = index.signal_types.get, index.directions.get
    best: dict[tuple[int, int, int], float] = {}
    outdoes = best.get
    rows: list[tuple[int, int, int]] = []
    confidences: list[float] = []
    places: list[int] = []
    for nth, signal in enumerate(signals):
        if signal is None:
            continue
        signal_type = type_of(signal.signal_type, -2)
        for word in signal.tickers:
            ticker = known(word.ticker)
            if ticker is None:
                continue
            key = (ticker, signal_type, direction_of(word.signal, -2))  # type: ignore[arg-type]
            if word.confidence > outdoes(key, -1.0):
                best[key] = word.confidence
                rows.append(key)
                confidences.append(word.confidence)
                places.append(nth)
    table = np.array(rows, np.int32).reshape(-1, 3)
    return Folded(
        table[:, 0], table[:, 1], table[:, 2], np.array(confidences, np.float64), np.array(places, np.int32)
    )


@dataclass(slots=True)
class IndexBuilder:
    """Keeps the pipelines between two indexes, so that a few changes cost little."""

    _numbers: dict[UUID, int] = field(default_factory=dict)
    _pipelines: list[UUID | None] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _tickers: dict[str, int] = field(default_factory=dict)
    _signal_types: dict[str, int] = field(default_factory=dict)
    _directions: dict[str, int] = field(default_factory=dict)
    _postings: Postings = field(default_factory=lambda: Postings.of(()))

    def change(self, pipelines: Mapping[UUID, tuple[Sequence[str], Sequence[Subscription]] | None]) -> Index:
        """The index after these pipelines became so; None: gone."""
        touched = [number for key in pipelines if (number := self._numbers.get(key)) is not None]
        kept = self._postings
        if touched:
            stays = np.ones(len(self._pipelines), np.bool_)
            stays[touched] = False
            kept = kept.where(stays[kept.pipeline])
        rows: list[tuple[int, int, int, int, float]] = []
        for key, wanted in pipelines.items():
            if wanted is None:
                if (number := self._numbers.pop(key, None)) is not None:
                    self._pipelines[number] = None
                    self._free.append(number)
                continue
            number = self._number(key)
            words = [
                (
                    _named(self._signal_types, s.signal_type),
                    _named(self._directions, s.direction),
                    s.min_confidence,
                )
                for s in wanted[1] or (Subscription(),)
            ]
            for ticker in dict.fromkeys(wanted[0]):
                at = _named(self._tickers, ticker)
                rows += [(at, number, *word) for word in words]
        self._postings = kept.with_more(Postings.of(rows)) if rows else kept
        starts = np.searchsorted(self._postings.ticker, np.arange(len(self._tickers) + 1))
        return Index(
            self._postings,
            starts.astype(np.int64),
            dict(self._tickers),
            dict(self._signal_types),
            dict(self._directions),
            tuple(self._pipelines),
            len(self._numbers),
        )

    def _number(self, key: UUID) -> int:
        number = self._numbers.get(key)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._pipelines[number] = key
            else:
                number = len(self._pipelines)
                self._pipelines.append(key)
            self._numbers[key] = number
        return number


def _named(numbers: dict[str, int], name: str | None) -> int:
    return ANY if name is None else numbers.setdefault(name, len(numbers))
