"""Which pipelines match a batch of signals: pure, on arrays, without a database.

A pipeline with tickers and subscriptions becomes postings: one for each ticker and subscription, ordered by ticker. A
posting holds the pipeline, the signal type, the direction and the minimum confidence. A batch is first folded to the
signals that can matter. Then all signals are compared with the postings of their tickers in one step, and each pipeline
keeps its first match. For pipelines with rules, every match is judged separately (`rules`).

An `Index` is immutable; a change to pipelines makes a new one, and one assignment switches readers to it.
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
"""Pairs of signals and postings compared in one step; limits memory, not time."""


@dataclass(frozen=True, slots=True)
class SignalFilter:
    """The signals of its tickers that a pipeline subscribes to; None means any."""

    signal_type: str | None = None
    direction: str | None = None
    min_confidence: float = 0.0


@dataclass(frozen=True, slots=True)
class Watch:
    """Whose pipeline it is, and what launches it; without subscriptions, any signal of its tickers."""

    org_id: UUID
    tickers: Sequence[str]
    subscriptions: Sequence[SignalFilter] = ()
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

    def where(self, mask: NDArray[np.bool_]) -> Postings:
        return Postings(*(column[mask] for column in self.columns()))

    @classmethod
    def joined(cls, parts: Sequence[Postings]) -> Postings:
        columns = [np.concatenate(same) for same in zip(*(part.columns() for part in parts), strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return cls(*(column[order] for column in columns))


@dataclass(frozen=True, slots=True)
class Shelf:
    """Postings, and where those of each ticker start, plus one entry for the end."""

    postings: Postings
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, postings: Postings, tickers: int) -> Shelf:
        return cls(postings, np.searchsorted(postings.ticker, np.arange(tickers + 1)).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Index:
    """All pipelines at one moment, by ticker."""

    plain: Shelf
    ruled: Shelf
    """Of pipelines with rules, whose signals are judged one by one."""
    rules: Mapping[int, Rules]
    tickers: Mapping[str, int]
    signal_types: Mapping[str, int]
    directions: Mapping[str, int]
    pipelines: Sequence[UUID | None]
    """By number; None means deleted."""
    live: int
    longest_window: float
    """How many seconds back rules look."""
    orgs: Sequence[UUID]
    """Organizations of pipelines, by number."""
    org_of: Ints
    """The number of a pipeline's organization, by the number of the pipeline."""
    watched: NDArray[np.bool_]
    """For each organization, which tickers its pipelines watch."""

    @property
    def nbytes(self) -> int:
        # Measured: a UUID with its number, and an entry in the table of tickers.
        arrays = sum(s.postings.nbytes + s.starts.nbytes for s in (self.plain, self.ruled))
        arrays += self.org_of.nbytes + self.watched.nbytes
        return arrays + 112 * len(self.pipelines) + 160 * len(self.tickers)


@dataclass(frozen=True, slots=True)
class Matches:
    """Matched pipelines by number, and the position in the batch of each one's first matching signal."""

    pipelines: Ints
    signals: Ints
    of_orgs: Mapping[UUID, OrgCounts]
    """For organizations that watch something."""


@dataclass(frozen=True, slots=True)
class OrgCounts:
    """What an organization may know of a batch that others share: only what its own pipelines make of it."""

    signals: int
    """Signals on tickers that its pipelines watch."""
    matches: int
    """Its pipelines that match."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pipelines and signals that match, rules aside, in the order of the signals."""

    pipeline: Ints
    nth: Ints
    ticker: Ints


def match(
    index: Index,
    signals: Sequence[Signal | None],
    ruled: Callable[[Pairs], Iterable[tuple[int, int]]] | None = None,
) -> Matches:
    """`ruled` judges pairs of pipelines with rules and returns the (pipeline, signal) pairs that pass, in order."""
    ticker_signals = spread(index, signals)
    first = np.full(len(index.pipelines), len(signals), np.int32)
    # Later pieces first, so that the earliest signal is written to `first` last.
    for pairs in reversed(list(_pairs(index.plain, fold(ticker_signals)))):
        first[pairs.pipeline[::-1]] = pairs.nth[::-1]
    if ruled is not None and len(index.ruled.postings):
        for pairs in _pairs(index.ruled, ticker_signals):
            for pipeline, nth in ruled(pairs):
                first[pipeline] = min(first[pipeline], nth)
    matched = np.flatnonzero(first < len(signals)).astype(np.int32)
    return Matches(matched, first[matched], _of_orgs(index, ticker_signals, matched))


def _of_orgs(index: Index, ticker_signals: TickerSignals, matched: Ints) -> dict[UUID, OrgCounts]:
    matches = np.bincount(index.org_of[matched], minlength=len(index.orgs)).tolist()
    return {
        org_id: OrgCounts(_distinct_count(ticker_signals.nth[watched[ticker_signals.ticker]]), count)
        for org_id, watched, count in zip(index.orgs, index.watched, matches, strict=True)
        if watched.any()
    }


def _distinct_count(ordered: Ints) -> int:
    """Without sorting again, which `np.unique` would do for each organization."""
    return int(len(ordered) > 0) + int(np.count_nonzero(ordered[1:] != ordered[:-1]))


def all_pairs(
    index: Index, signals: Sequence[Signal | None], pipelines: Collection[int]
) -> list[tuple[int, int]]:
    """Every signal that matches one of these pipelines without rules, as (pipeline, signal), in order."""
    chosen = np.zeros(len(index.pipelines), np.bool_)
    chosen[list(pipelines)] = True
    distinct: dict[tuple[int, int], None] = {}
    for pairs in _pairs(index.plain, spread(index, signals)):
        mask = chosen[pairs.pipeline]
        distinct |= dict.fromkeys(zip(pairs.pipeline[mask].tolist(), pairs.nth[mask].tolist(), strict=True))
    return list(distinct)


def matched_tickers(index: Index, signals: Sequence[Signal | None]) -> dict[tuple[int, int], list[str]]:
    """The tickers by which pipelines and signals match, rules aside; for debug logs."""
    names = list(index.tickers)
    ticker_signals = spread(index, signals)
    by_pair: dict[tuple[int, int], dict[str, None]] = {}
    for shelf in (index.plain, index.ruled):
        for pairs in _pairs(shelf, ticker_signals):
            columns = (pairs.pipeline.tolist(), pairs.nth.tolist(), pairs.ticker.tolist())
            for pipeline, nth, ticker in zip(*columns, strict=True):
                by_pair.setdefault((pipeline, nth), {})[names[ticker]] = None
    return {pair: list(tickers) for pair, tickers in by_pair.items()}


def _pairs(shelf: Shelf, signals: TickerSignals) -> Iterator[Pairs]:
    """Compares signals with the postings of their tickers, in pieces to limit memory."""
    widths = shelf.starts[signals.ticker + 1] - shelf.starts[signals.ticker]
    ends = np.cumsum(widths)
    begin = 0
    while begin < len(ends):
        before = ends[begin - 1] if begin else 0
        end = max(int(np.searchsorted(ends, before + _PAIRS_AT_ONCE, side="right")), begin + 1)
        yield _matching(shelf, signals, widths, begin, end)
        begin = end


def _matching(shelf: Shelf, signals: TickerSignals, widths: NDArray[np.int64], begin: int, end: int) -> Pairs:
    width = widths[begin:end]
    signal = np.repeat(np.arange(begin, end, dtype=np.int32), width)
    shift = np.repeat(shelf.starts[signals.ticker[begin:end]] - (np.cumsum(width) - width), width)
    posting = np.arange(len(signal), dtype=np.int64) + shift
    postings = shelf.postings
    matches = postings.min_confidence[posting] <= signals.confidence[signal]
    signal_type = postings.signal_type[posting]
    matches &= (signal_type == ANY) | (signal_type == signals.signal_type[signal])
    direction = postings.direction[posting]
    matches &= (direction == ANY) | (direction == signals.direction[signal])
    signal = signal[matches]
    return Pairs(postings.pipeline[posting[matches]], signals.nth[signal], signals.ticker[signal])


@dataclass(frozen=True, slots=True)
class TickerSignals:
    """What signals say about watched tickers, in the order of the signals."""

    ticker: Ints
    signal_type: Ints
    direction: Ints
    confidence: NDArray[np.float64]
    nth: Ints

    def at(self, places: NDArray[Any]) -> TickerSignals:
        columns = (self.ticker, self.signal_type, self.direction, self.confidence, self.nth)
        return TickerSignals(*(column[places] for column in columns))


def spread(index: Index, signals: Sequence[Signal | None]) -> TickerSignals:
    ticker_of, type_of, direction_of = index.tickers.get, index.signal_types.get, index.directions.get
    usable = [signal for signal in signals if signal is not None]
    places = [nth for nth, signal in enumerate(signals) if signal is not None]
    ticker_signals = [one for signal in usable for one in signal.tickers]
    widths = np.array([len(signal.tickers) for signal in usable], np.int32)
    ticker = np.array([ticker_of(one.ticker, UNKNOWN) for one in ticker_signals], np.int32)
    spread = TickerSignals(
        ticker,
        np.repeat(np.array([type_of(s.signal_type, UNKNOWN) for s in usable], np.int32), widths),
        np.array([direction_of(one.signal, UNKNOWN) for one in ticker_signals], np.int32),  # type: ignore[arg-type]
        np.array([one.confidence for one in ticker_signals], np.float64),
        np.repeat(np.array(places, np.int32), widths),
    )
    return spread.at(np.flatnonzero(ticker >= 0))


def fold(signals: TickerSignals) -> TickerSignals:
    """Drops a signal if an earlier one of the same ticker, type and direction has the same or a higher confidence:
    whatever matches the later one also matches the earlier one."""
    if not len(signals.nth):
        return signals
    # Unknown types and directions have negative numbers, hence the 2.
    kind = signals.ticker.astype(np.int64)
    kind = (kind * (int(signals.signal_type.max()) + 3) + signals.signal_type + 2) * (
        int(signals.direction.max()) + 3
    )
    kind += signals.direction + 2
    order = np.argsort(kind, kind="stable")
    kind, heights = kind[order], signals.confidence[order]
    begins = np.empty(len(kind), np.bool_)
    begins[0], begins[1:] = True, kind[1:] != kind[:-1]
    # Each kind gets its own range of heights, so that one running maximum serves all of them.
    heights = heights + np.cumsum(begins) * (2.0 * HIGHEST_CONFIDENCE)
    rises = begins.copy()
    rises[1:] |= heights[1:] > np.maximum.accumulate(heights)[:-1]
    return signals.at(np.sort(order[rises]))


@dataclass(slots=True)
class IndexBuilder:
    """Keeps the pipelines from one index to the next, so that small changes are cheap. Between two indexes a pipeline
    changes at most once."""

    _numbers: dict[UUID, int] = field(default_factory=dict)
    _pipelines: list[UUID | None] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _orgs: dict[UUID, int] = field(default_factory=dict)
    _org_of: list[int] = field(default_factory=list)
    _tickers: dict[str, int] = field(default_factory=dict)
    _signal_types: dict[str, int] = field(default_factory=dict)
    _directions: dict[str, int] = field(default_factory=dict)
    _postings: Postings = field(default_factory=lambda: Postings.of(()))
    _rules: dict[int, Rules] = field(default_factory=dict)
    _touched: set[int] = field(default_factory=set)
    _added: list[Postings] = field(default_factory=list)

    def change(self, pipelines: Mapping[UUID, Watch | None]) -> None:
        """Replaces these pipelines; None deletes one."""
        rows: list[tuple[int, int, int, int, float]] = []
        for key, watch in pipelines.items():
            if (before := self._numbers.get(key)) is not None:
                self._touched.add(before)
                self._rules.pop(before, None)
            if watch is None:
                if (deleted := self._numbers.pop(key, None)) is not None:
                    self._pipelines[deleted] = None
                continue
            number = self._number(key)
            self._org_of[number] = self._orgs.setdefault(watch.org_id, len(self._orgs))
            if watch.rules:
                self._rules[number] = watch.rules
            filters = [
                (
                    _number_of(self._signal_types, s.signal_type),
                    _number_of(self._directions, s.direction),
                    s.min_confidence,
                )
                for s in watch.subscriptions or (SignalFilter(),)
            ]
            for ticker in dict.fromkeys(watch.tickers):
                at = _number_of(self._tickers, ticker)
                rows += [(at, number, *one) for one in filters]
        self._added.append(Postings.of(rows))

    def index(self) -> Index:
        """All pipelines as they are now."""
        unchanged = self._postings
        if self._touched:
            untouched = np.ones(len(self._pipelines), np.bool_)
            untouched[list(self._touched)] = False
            unchanged = unchanged.where(untouched[unchanged.pipeline])
        self._postings = postings = Postings.joined([unchanged, *self._added])
        self._free += [number for number in self._touched if self._pipelines[number] is None]
        self._touched, self._added = set(), []
        bound = np.zeros(len(self._pipelines), np.bool_)
        bound[list(self._rules)] = True
        ruled = bound[postings.pipeline]
        org_of = np.array(self._org_of, np.int32)
        watched = np.zeros((len(self._orgs), len(self._tickers)), np.bool_)
        watched[org_of[postings.pipeline], postings.ticker] = True
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
            orgs=tuple(self._orgs),
            org_of=org_of,
            watched=watched,
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
                self._org_of.append(0)
            self._numbers[key] = number
        return number


def _number_of(numbers: dict[str, int], name: str | None) -> int:
    return ANY if name is None else numbers.setdefault(name, len(numbers))
