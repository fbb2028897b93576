"""Matching on arrays finds what a scan of all pipelines finds; rules are judged on every signal, in order."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from functools import partial
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceplane.model.pipeline_rules import NO_RULES, Exchange, Rules, SignalsWithin, parse_rules
from traceplane.schedule.market_hours import is_open
from traceplane.trigger.matching import IndexBuilder, OrgCounts, SignalFilter, Watch, match
from traceplane.trigger.messages import Signal, TickerSignal, as_stored, decode
from traceplane.trigger.rules import Judge

TICKERS = ["A", "B", "C", "D"]
subscriptions = st.builds(
    SignalFilter,
    st.sampled_from([None, "cross", "rsi"]),
    st.sampled_from([None, "BULLISH", "BEARISH"]),
    st.sampled_from([0.0, 50.0, 50.5, 90.0]),
)
rules = st.sampled_from([NO_RULES, NO_RULES, Rules(signals_within=SignalsWithin(2, 10.0))])
ORGS = [uuid4(), uuid4()]
watches = st.builds(
    Watch,
    st.sampled_from(ORGS),
    st.lists(st.sampled_from(TICKERS), max_size=3),
    st.lists(subscriptions, max_size=2),
    rules,
)
ticker_signals = st.builds(
    TickerSignal,
    st.sampled_from([*TICKERS, "unknown"]),
    st.sampled_from([None, "BULLISH", "BEARISH", "SIDEWAYS"]),
    st.sampled_from([0.0, 49.0, 50.0, 50.5, 91.0, 100.0]),
)
signals = st.builds(
    Signal, st.uuids().map(str), st.integers(0, 60).map(float), st.sampled_from(["cross", "rsi", "volume"]),
    st.lists(ticker_signals, min_size=1, max_size=3).map(tuple),
)  # fmt: skip


class Scan:
    """The guide's algorithm: every pipeline is compared with every signal."""

    def __init__(self) -> None:
        self.times: dict[tuple[UUID, str], list[float]] = {}

    def matches(self, pipelines: dict[UUID, Watch], batch: list[Signal | None]) -> dict[UUID, int]:
        first: dict[UUID, int] = {}
        for nth, signal in enumerate(batch):
            for key, pipeline in pipelines.items():
                if signal is not None and self._hits(key, pipeline, signal):
                    first.setdefault(key, nth)
        return first

    def _hits(self, key: UUID, pipeline: Watch, signal: Signal) -> bool:
        fitting = {
            ticker_signal.ticker
            for ticker_signal in signal.tickers
            for s in pipeline.subscriptions or (SignalFilter(),)
            if ticker_signal.ticker in pipeline.tickers
            and s.signal_type in (None, signal.signal_type)
            and s.direction in (None, ticker_signal.signal)
            and ticker_signal.confidence >= s.min_confidence
        }
        within = pipeline.rules.signals_within
        if within is None:
            return bool(fitting)
        hits = False
        for ticker in fitting:
            last = self.times.setdefault((key, ticker), [])
            last.append(signal.timestamp)
            del last[: -within.count]
            hits |= len(last) == within.count and max(last) - min(last) <= within.seconds
        return hits


@settings(max_examples=60)
@given(
    st.lists(watches, max_size=8),
    st.lists(st.lists(st.one_of(st.none(), signals), max_size=12), max_size=3),
    st.data(),
)
def test_matching_on_arrays_equals_a_scan_of_all_pipelines(
    first: list[Watch], batches: list[list[Signal | None]], data: st.DataObject
) -> None:
    builder, judge, scan = IndexBuilder(), Judge({}), Scan()
    pipelines: dict[UUID, Watch] = {}
    for batch in batches:
        change: dict[UUID, Watch | None] = {uuid4(): w for w in first}
        first = data.draw(st.lists(watches, max_size=2))
        for key in data.draw(st.lists(st.sampled_from(sorted(pipelines)), unique=True)) if pipelines else ():
            # A window of a pipeline that changes goes on; a scan that restarts it would differ.
            change[key] = data.draw(st.one_of(st.none(), st.just(pipelines[key])))
        builder.change(change)
        index = builder.index()
        pipelines = {k: w for k, w in (pipelines | change).items() if w is not None}
        assert index.live == len(pipelines)
        matches = match(index, batch, partial(judge.judged, index, batch, lambda _: 0))
        by_pipeline = {
            index.pipelines[p]: n
            for p, n in zip(matches.pipelines.tolist(), matches.signals.tolist(), strict=True)
        }
        expected = scan.matches(pipelines, batch)
        assert by_pipeline == expected
        assert matches.of_orgs == of_orgs(pipelines, batch, expected)


def of_orgs(
    pipelines: dict[UUID, Watch], batch: list[Signal | None], matches: Collection[UUID]
) -> dict[UUID, OrgCounts]:
    """What each organization is told: the signals on its own tickers, and its own matches."""
    counts = {}
    for org_id in ORGS:
        watched = {
            ticker for watch in pipelines.values() if watch.org_id == org_id for ticker in watch.tickers
        }
        hits = [s for s in batch if s is not None and any(one.ticker in watched for one in s.tickers)]
        if watched:
            counts[org_id] = OrgCounts(len(hits), sum(pipelines[key].org_id == org_id for key in matches))
    return counts


def at(*when: int) -> float:
    return datetime(*when, tzinfo=ZoneInfo("America/New_York")).timestamp()  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("when", "is_it"),
    [
        ((2026, 11, 16, 9, 30), True),
        ((2026, 11, 16, 9, 29), False),
        ((2026, 11, 16, 16, 0), False),
        ((2026, 11, 15, 12, 0), False),  # a Sunday
        ((2026, 11, 26, 12, 0), False),  # Thanksgiving
        ((2026, 11, 27, 12, 59), True),
        ((2026, 11, 27, 13, 0), False),  # closes early
        ((2026, 7, 6, 9, 30), True),  # summer time
        ((2026, 7, 3, 12, 0), False),  # Independence Day is a Saturday
        ((2021, 12, 31, 12, 0), True),  # New Year is a Saturday, which moves to no other day
        ((2025, 1, 9, 12, 0), False),  # a day of mourning, which no rule foresees
        ((2012, 10, 29, 12, 0), False),  # a hurricane
        ((2019, 12, 31, 15, 59), True),
        ((2020, 1, 1, 12, 0), False),
        ((2031, 7, 4, 12, 0), False),
    ],
)
def test_an_exchange_is_open_according_to_its_calendar(when: tuple[int, ...], is_it: bool) -> None:
    assert is_open(Exchange.NYSE, at(*when)) == is_it


def test_a_market_is_open_during_its_hours_but_not_on_its_holidays() -> None:
    berlin = parse_rules({"market_hours": {"timezone": "Europe/Berlin", "open": "09:00", "close": "17:30",
                                           "holidays": ["2026-12-24"]}}).market_hours  # fmt: skip
    assert berlin is not None
    assert is_open(berlin, at(2026, 11, 16, 3, 0))
    assert not is_open(berlin, at(2026, 11, 15, 3, 0)), "a Sunday"
    assert not is_open(berlin, at(2026, 11, 16, 11, 30)), "closed for the day"
    assert not is_open(berlin, at(2026, 12, 24, 5, 0)), "a holiday"


@pytest.mark.parametrize(
    "rule",
    [
        [],
        {"market": 1},
        {"market_hours": "MARS"},
        {"market_hours": {"timezone": "Mars/Base", "open": "09:00", "close": "10:00"}},
        {"market_hours": {"timezone": "UTC", "open": "10:00", "close": "09:00"}},
        {"market_hours": {"timezone": "UTC"}},
        {"signals_within": {"count": 0, "seconds": 5}},
        {"signals_within": {"count": 3, "seconds": 1e9}},
        {"custom": "os.system"},
        {"custom": "_private"},
    ],
)
def test_an_invalid_rule_is_rejected(rule: object) -> None:
    with pytest.raises(ValueError, match="rules"):
        parse_rules(rule)


def test_market_hours_and_custom_rules_filter_single_signals() -> None:
    builder, closed, ours, failing = IndexBuilder(), uuid4(), uuid4(), uuid4()
    builder.change(
        {
            closed: Watch(ORGS[0], ["A"], (), Rules(market_hours=Exchange.NYSE)),
            ours: Watch(ORGS[0], ["A"], (), Rules(custom="liquid")),
            failing: Watch(ORGS[0], ["A"], (), Rules(custom="missing")),
        }
    )
    index = builder.index()

    def one(name: str, when: float) -> Signal:
        return Signal(name, when, "rsi", (TickerSignal("A", None, 50.0),))

    batch: list[Signal | None] = [one("sunday", at(2026, 11, 15, 12)), one("monday", at(2026, 11, 16, 12))]
    judge = Judge(
        {
            "liquid": lambda signal, ticker_signal, pipeline: (
                signal.signal_id == "sunday" and ticker_signal.ticker == "A"
            )
        }
    )
    matches = match(index, batch, lambda pairs: judge.judged(index, batch, lambda _: 0, pairs))
    numbers = dict(zip(matches.pipelines.tolist(), matches.signals.tolist(), strict=True))
    assert {index.pipelines[p]: n for p, n in numbers.items()} == {closed: 1, ours: 0}


def test_a_signal_that_postgres_cannot_hold_is_stored_without_its_extra_fields() -> None:
    body = b'{"signal_id": "s", "timestamp": 1, "signal_type": "t", "tickers": [{"ticker": "A"}], "x": %s}'
    for extra in (b'"\\u0000"', b"1" * 5000, b'"\\ud800"', b"[" * 300 + b"]" * 300, b"1e999"):
        ((signal,), refused) = decode([body % extra])
        if signal is None:
            assert refused
            continue
        assert msgspec.json.decode(msgspec.json.encode(as_stored(body % extra, signal))) == {
            "signal_id": "s", "timestamp": 1.0, "signal_type": "t",
            "tickers": [{"ticker": "A", "signal": None, "confidence": 100.0}],
        }  # fmt: skip
