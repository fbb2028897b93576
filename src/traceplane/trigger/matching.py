"""Which pipelines a batch of signals matches: pure, on arrays, without a database.

A pipeline with tickers and subscriptions becomes postings: one for each ticker and subscription, ordered by ticker. A
posting says which pipeline, which type, which direction and which confidence at least. A batch is first folded to what
can matter, then every signal is laid beside the postings of its tickers at once, and each pipeline keeps the first
signal that matched. Pipelines with rules keep no first signal here: what fits them is judged pair by pair (`rules`).

An `Index` never changes; a change to pipelines gives a new one, and readers go over to it by one assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from traceplane.model.pipeline_rules import NO_RULES, Rules
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
    rules: Rules = NO_RULES


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
class Shelf:
    """Postings, and where those of each ticker begin; one place more than there are tickers."""

    postings: Postings
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, postings: Postings, tickers: int) -> Shelf:
        return cls(postings, np.searchsorted(postings.ticker, np.arange(tickers + 1)).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Index:
    """All pipelines of a moment, by ticker."""

    plain: Shelf
    ruled: Shelf
    """Of pipelines with rules, whose signals have to be looked at one by one."""
    rules: Mapping[int, Rules]
    tickers: Mapping[str, int]
    signal_types: Mapping[str, int]
    directions: Mapping[str, int]
    pipelines: Sequence[UUID | None]
    """By number; None: gone."""
    live: int
    longest_window: float
    """Seconds of the past that rules look at."""

    @property
    def nbytes(self) -> int:
        # A UUID with its number, and an entry of the table of tickers; measured.
        arrays = sum(s.postings.nbytes + s.starts.nbytes for s in (self.plain, self.ruled))
        return arrays + 112 * len(self.pipelines) + 160 * len(self.tickers)


@dataclass(frozen=True, slots=True)
class Matches:
    """Matched pipelines by number, and for each the first signal that matched, by its place in the batch."""

    pipelines: Ints
    signals: Ints


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pipelines and signals that fit each other, apart from rules, in the order of the signals."""

    pipeline: Ints
    nth: Ints
    ticker: Ints


def match(
    index: Index,
    signals: Sequence[Signal | None],
    ruled: Callable[[Pairs], Iterable[tuple[int, int]]] | None = None,
) -> Matches:
    """`ruled` judges pairs of pipelines with rules: (pipeline, signal) that pass, in order."""
    words = spread(index, signals)
    first = np.full(len(index.pipelines), len(signals), np.int32)
    # Later pieces first, so that in `first` the earliest word is the last one written.
    for pairs in reversed(list(_pairs(index.plain, fold(words)))):
        first[pairs.pipeline[::-1]] = pairs.nth[::-1]
    if ruled is not None and len(index.ruled.postings):
        for pairs in _pairs(index.ruled, words):
            for pipeline, nth in ruled(pairs):
                first[pipeline] = min(first[pipeline], nth)
    matched = np.flatnonzero(first < len(signals)).astype(np.int32)
    return Matches(matched, first[matched])


def all_pairs(
    index: Index, signals: Sequence[Signal | None], pipelines: Collection[int]
) -> list[tuple[int, int]]:
    """Every signal that fits one of these pipelines without rules, as (pipeline, signal), in order."""
    chosen = np.zeros(len(index.pipelines), np.bool_)
    chosen[list(pipelines)] = True
    found: dict[tuple[int, int], None] = {}
    for pairs in _pairs(index.plain, spread(index, signals)):
        kept = chosen[pairs.pipeline]
        found.update(dict.fromkeys(zip(pairs.pipeline[kept].tolist(), pairs.nth[kept].tolist(), strict=True)))
    return list(found)


def matched_tickers(index: Index, signals: Sequence[Signal | None]) -> dict[tuple[int, int], list[str]]:
    """Which tickers bring pipelines and signals together, apart from rules; for people who want to know each."""
    names = list(index.tickers)
    words = spread(index, signals)
    found: dict[tuple[int, int], dict[str, None]] = {}
    for shelf in (index.plain, index.ruled):
        for pairs in _pairs(shelf, words):
            columns = (pairs.pipeline.tolist(), pairs.nth.tolist(), pairs.ticker.tolist())
            for pipeline, nth, ticker in zip(*columns, strict=True):
                found.setdefault((pipeline, nth), {})[names[ticker]] = None
    return {pair: list(tickers) for pair, tickers in found.items()}


def _pairs(shelf: Shelf, words: Words) -> Iterator[Pairs]:
    """Lays words beside the postings of their tickers; in pieces, for the memory's sake."""
    widths = shelf.starts[words.ticker + 1] - shelf.starts[words.ticker]
    ends = np.cumsum(widths)
    begin = 0
    while begin < len(ends):
        before = ends[begin - 1] if begin else 0
        end = max(int(np.searchsorted(ends, before + _PAIRS_AT_ONCE, side="right")), begin + 1)
        yield _fitting(shelf, words, widths, begin, end)
        begin = end


def _fitting(shelf: Shelf, words: Words, widths: NDArray[np.int64], begin: int, end: int) -> Pairs:
    width = widths[begin:end]
    word = np.repeat(np.arange(begin, end, dtype=np.int32), width)
    shift = np.repeat(shelf.starts[words.ticker[begin:end]] - (np.cumsum(width) - width), width)
    posting = np.arange(len(word), dtype=np.int64) + shift
    kept = shelf.postings
    fits = kept.min_confidence[posting] <= words.confidence[word]
    wanted = kept.signal_type[posting]
    fits &= (wanted == ANY) | (wanted == words.signal_type[word])
    wanted = kept.direction[posting]
    fits &= (wanted == ANY) | (wanted == words.direction[word])
    word = word[fits]
    return Pairs(kept.pipeline[posting[fits]], words.nth[word], words.ticker[word])


@dataclass(frozen=True, slots=True)
class Words:
    """What signals say of tickers that somebody watches, in the order of the signals."""

    ticker: Ints
    signal_type: Ints
    direction: Ints
    confidence: NDArray[np.float64]
    nth: Ints

    def at(self, places: NDArray[Any]) -> Words:
        columns = (self.ticker, self.signal_type, self.direction, self.confidence, self.nth)
        return Words(*(column[places] for column in columns))


def spread(index: Index, signals: Sequence[Signal | None]) -> Words:
    known, type_of, direction_of = index.tickers.get, index.signal_types.get, index.directions.get
    there = [signal for signal in signals if signal is not None]
    places = [nth for nth, signal in enumerate(signals) if signal is not None]
    words = [word for signal in there for word in signal.tickers]
    widths = np.array([len(signal.tickers) for signal in there], np.int32)
    ticker = np.array([known(word.ticker, UNKNOWN) for word in words], np.int32)
    spread = Words(
        ticker,
        np.repeat(np.array([type_of(s.signal_type, UNKNOWN) for s in there], np.int32), widths),
        np.array([direction_of(word.signal, UNKNOWN) for word in words], np.int32),  # type: ignore[arg-type]
        np.array([word.confidence for word in words], np.float64),
        np.repeat(np.array(places, np.int32), widths),
    )
    return spread.at(np.flatnonzero(ticker >= 0))


def fold(words: Words) -> Words:
    """Drops words that an earlier one of the same ticker, type and direction outdid: whoever is content with the
    later one was content with the earlier one."""
    if not len(words.nth):
        return words
    # Unknown types and directions have numbers below zero, hence the 2.
    kind = words.ticker.astype(np.int64)
    kind = (kind * (int(words.signal_type.max()) + 3) + words.signal_type + 2) * (
        int(words.direction.max()) + 3
    )
    kind += words.direction + 2
    order = np.argsort(kind, kind="stable")
    kind, heights = kind[order], words.confidence[order]
    begins = np.empty(len(kind), np.bool_)
    begins[0], begins[1:] = True, kind[1:] != kind[:-1]
    # Each kind on a storey of its own, so that one running maximum serves all of them.
    heights = heights + np.cumsum(begins) * (2.0 * HIGHEST_CONFIDENCE)
    rises = begins.copy()
    rises[1:] |= heights[1:] > np.maximum.accumulate(heights)[:-1]
    return words.at(np.sort(order[rises]))


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
    _rules: dict[int, Rules] = field(default_factory=dict)
    _touched: set[int] = field(default_factory=set)
    _added: list[Postings] = field(default_factory=list)

    def change(self, pipelines: Mapping[UUID, Wanted | None]) -> None:
        """These pipelines become so; None: gone."""
        rows: list[tuple[int, int, int, int, float]] = []
        for key, wanted in pipelines.items():
            if (before := self._numbers.get(key)) is not None:
                self._touched.add(before)
                self._rules.pop(before, None)
            if wanted is None:
                if (gone := self._numbers.pop(key, None)) is not None:
                    self._pipelines[gone] = None
                continue
            number = self._number(key)
            if wanted.rules:
                self._rules[number] = wanted.rules
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
        self._postings = postings = Postings.joined([kept, *self._added])
        self._free += [number for number in self._touched if self._pipelines[number] is None]
        self._touched, self._added = set(), []
        bound = np.zeros(len(self._pipelines), np.bool_)
        bound[list(self._rules)] = True
        ruled = bound[postings.pipeline]
        windows = [r.signals_within.seconds for r in self._rules.values() if r.signals_within is not None]
        return Index(
            plain=Shelf.of(postings.where(~ruled), len(self._tickers)),
            ruled=Shelf.of(postings.where(ruled), len(self._tickers)),
            rules=dict(self._rules),
            tickers=dict(self._tickers),
            signal_types=dict(self._signal_types),
            directions=dict(self._directions),
            pipelines=tuple(self._pipelines),
            live=len(self._numbers),
            longest_window=max(windows, default=0.0),
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
