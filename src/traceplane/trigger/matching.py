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

from traceplane.trigger.messages import HIGHEST_CONFIDENCE, Signal

Ints = NDArray[np.int32]
ANY, UNKNOWN = -1, -2
_PAIRS_AT_ONCE = 2_000_000
"""Signals laid beside postings in one go: memory, not time."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a pipeline wants to hear of its tickers; None: anything."""

    signal_type: str | None = None
    direction: str | None = None
    min_confidence: float = 0.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a pipeline is launched by; without subscriptions, any signal of its tickers."""

    tickers: Sequence[str]
    subscriptions: Sequence[Subscription] = ()


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

    @classmethod
    def joined(cls, parts: Sequence[Postings]) -> Postings:
        columns = [np.concatenate(same) for same in zip(*(part.columns() for part in parts), strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column[order] for column in columns))


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
    known, type_of, direction_of = index.tickers.get, index.signal_types.get, index.directions.get
    there = [signal for signal in signals if signal is not None]
    places = [nth for nth, signal in enumerate(signals) if signal is not None]
    words = [word for signal in there for word in signal.tickers]
    widths = np.array([len(signal.tickers) for signal in there], np.int32)
    nth = np.repeat(np.array(places, np.int32), widths)
    signal_type = np.repeat(np.array([type_of(s.signal_type, UNKNOWN) for s in there], np.int32), widths)
    ticker = np.array([known(word.ticker, UNKNOWN) for word in words], np.int32)
    direction = np.array([direction_of(word.signal, UNKNOWN) for word in words], np.int32)  # type: ignore[arg-type]
    confidence = np.array([word.confidence for word in words], np.float64)
    kept = _not_outdone(ticker, signal_type, direction, confidence)
    return Folded(ticker[kept], signal_type[kept], direction[kept], confidence[kept], nth[kept])


def _not_outdone(
    ticker: Ints, signal_type: Ints, direction: Ints, confidence: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Places, in order, of the words whose confidence is above all earlier ones of their kind."""
    watched = np.flatnonzero(ticker >= 0)
    if not len(watched):
        return watched
    # Unknown types and directions have numbers below zero, hence the 2.
    kind = ticker[watched].astype(np.int64)
    kind = (kind * (int(signal_type.max()) + 3) + signal_type[watched] + 2) * (int(direction.max()) + 3)
    kind += direction[watched] + 2
    order = np.argsort(kind, kind="stable")
    kind, heights = kind[order], confidence[watched][order]
    begins = np.empty(len(kind), np.bool_)
    begins[0], begins[1:] = True, kind[1:] != kind[:-1]
    # Each kind on a storey of its own, so that one running maximum serves all of them.
    heights = heights + np.cumsum(begins) * (2.0 * HIGHEST_CONFIDENCE)
    rises = begins.copy()
    rises[1:] |= heights[1:] > np.maximum.accumulate(heights)[:-1]
    return np.sort(watched[order[rises]])


@dataclass(slots=True)
class IndexBuilder:
    """Keeps the pipelines between two indexes, so that a few changes cost little. A pipeline changes at most once
    from one index to the next."""

    _numbers: dict[UUID, int] = field(default_factory=dict)
    _pipelines: list[UUID | None] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _tickers: dict[str, int] = field(default_factory=dict)
    _signal_types: dict[str, int] = field(default_factory=dict)
    _directions: dict[str, int] = field(default_factory=dict)
    _postings: Postings = field(default_factory=lambda: Postings.of(()))
    _touched: set[int] = field(default_factory=set)
    _added: list[Postings] = field(default_factory=list)

    def change(self, pipelines: Mapping[UUID, Wanted | None]) -> None:
        """These pipelines become so; None: gone."""
        rows: list[tuple[int, int, int, int, float]] = []
        for key, wanted in pipelines.items():
            if (before := self._numbers.get(key)) is not None:
                self._touched.add(before)
            if wanted is None:
                if (gone := self._numbers.pop(key, None)) is not None:
                    self._pipelines[gone] = None
                continue
            number = self._number(key)
            words = [
                (
                    _named(self._signal_types, s.signal_type),
                    _named(self._directions, s.direction),
                    s.min_confidence,
                )
                for s in wanted.subscriptions or (Subscription(),)
            ]
            for ticker in dict.fromkeys(wanted.tickers):
                at = _named(self._tickers, ticker)
                rows += [(at, number, *word) for word in words]
        self._added.append(Postings.of(rows))

    def index(self) -> Index:
        """All pipelines as they are now."""
        kept = self._postings
        if self._touched:
            stays = np.ones(len(self._pipelines), np.bool_)
            stays[list(self._touched)] = False
            kept = kept.where(stays[kept.pipeline])
        self._postings = Postings.joined([kept, *self._added])
        self._free += [number for number in self._touched if self._pipelines[number] is None]
        self._touched, self._added = set(), []
        return Index(
            self._postings,
            np.searchsorted(self._postings.ticker, np.arange(len(self._tickers) + 1)).astype(np.int64),
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
