"""Matching on arrays finds what a scan of all pipelines finds; rules are judged on every signal, in order."""

from __future__ import annotations

from datetime import date, datetime
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceplane.model.market_hours import NYSE, nyse_early_closes, nyse_holidays
from traceplane.model.pipeline_rules import NO_RULES, Rules, SignalsWithin, parse_rules
from traceplane.trigger.matching import IndexBuilder, Subscription, Wanted, match
from traceplane.trigger.messages import Signal, TickerSignal, as_stored, decode
from traceplane.trigger.rules import Judge

TICKERS = ["A", "B", "C", "D"]
subscriptions = st.builds(
    Subscription,
    st.sampled_from([None, "cross", "rsi"]),
    st.sampled_from([None, "BULLISH", "BEARISH"]),
    st.sampled_from([0.0, 50.0, 50.5, 90.0]),
)
rules = st.sampled_from([NO_RULES, NO_RULES, Rules(signals_within=SignalsWithin(2, 10.0))])
wanted = st.builds(
    Wanted, st.lists(st.sampled_from(TICKERS), max_size=3), st.lists(subscriptions, max_size=2), rules
)
words = st.builds(
    TickerSignal,
    st.sampled_from([*TICKERS, "unknown"]),
    st.sampled_from([None, "BULLISH", "BEARISH", "SIDEWAYS"]),
    st.sampled_from([0.0, 49.0, 50.0, 50.5, 91.0, 100.0]),
)
signals = st.builds(
    Signal, st.uuids().map(str), st.integers(0, 60).map(float), st.sampled_from(["cross", "rsi", "volume"]),
    st.lists(words, min_size=1, max_size=3).map(tuple),
)  # fmt: skip


class Scan:
    """The guide's way: every pipeline is held against every signal."""

    def __init__(self) -> None:
        self.seen: dict[tuple[UUID, str], list[float]] = {}

    def matches(self, pipelines: dict[UUID, Wanted], batch: list[Signal | None]) -> dict[UUID, int]:
        found: dict[UUID, int] = {}
        for nth, signal in enumerate(batch):
            for key, pipeline in pipelines.items() if signal is not None else ():
                if self._hits(key, pipeline, signal):
                    found.setdefault(key, nth)
        return found

    def _hits(self, key: UUID, pipeline: Wanted, signal: Signal) -> bool:
        fitting = {
            word.ticker
            for word in signal.tickers
            for s in pipeline.subscriptions or (Subscription(),)
            if word.ticker in pipeline.tickers
            and s.signal_type in (None, signal.signal_type)
            and s.direction in (None, word.signal)
            and word.confidence >= s.min_confidence
        }
        within = pipeline.rules.signals_within
        if within is None:
            return bool(fitting)
        hits = False
        for ticker in fitting:
            last = self.seen.setdefault((key, ticker), [])
            last.append(signal.timestamp)
            del last[: -within.count]
            hits |= len(last) == within.count and max(last) - min(last) <= within.seconds
        return hits


@settings(max_examples=60, deadline=None)
@given(
    st.lists(wanted, max_size=8),
    st.lists(st.lists(st.one_of(st.none(), signals), max_size=12), max_size=3),
    st.data(),
)
def test_matching_on_arrays_is_a_scan_of_all_pipelines(
    first: list[Wanted], batches: list[list[Signal | None]], data: st.DataObject
) -> None:
    builder, judge, scan = IndexBuilder(), Judge({}), Scan()
    pipelines: dict[UUID, Wanted] = {}
    for batch in batches:
        change: dict[UUID, Wanted | None] = {uuid4(): w for w in first}
        first = data.draw(st.lists(wanted, max_size=2))
        for key in data.draw(st.lists(st.sampled_from(sorted(pipelines)), unique=True)) if pipelines else ():
            # A window of a pipeline that changes goes on; a scan that restarts it would differ.
            change[key] = data.draw(st.one_of(st.none(), st.just(pipelines[key])))
        builder.change(change)
        index = builder.index()
        pipelines = {k: w for k, w in (pipelines | change).items() if w is not None}
        assert index.live == len(pipelines)
        found = match(index, batch, lambda pairs, i=index, b=batch: judge.judged(i, b, lambda _: 0, pairs))
        named = {
            index.pipelines[p]: n
            for p, n in zip(found.pipelines.tolist(), found.signals.tolist(), strict=True)
        }
        assert named == scan.matches(pipelines, batch)


def at(*when: int) -> float:
    return datetime(*when, tzinfo=ZoneInfo("America/New_York")).timestamp()  # type: ignore[misc,arg-type]


def test_the_market_is_open_in_its_hours_but_not_on_its_holidays() -> None:
    assert NYSE.is_open(at(2026, 11, 16, 9, 30))
    assert not NYSE.is_open(at(2026, 11, 16, 9, 29))
    assert not NYSE.is_open(at(2026, 11, 16, 16, 0))
    assert not NYSE.is_open(at(2026, 11, 15, 12, 0)), "a Sunday"
    assert not NYSE.is_open(at(2026, 11, 26, 12, 0)), "Thanksgiving"
    assert NYSE.is_open(at(2026, 11, 27, 12, 59))
    assert not NYSE.is_open(at(2026, 11, 27, 13, 0)), "closes early"
    assert NYSE.is_open(at(2026, 7, 6, 9, 30)), "summer time"
    # As the exchange published them.
    days = ["01-01", "01-19", "02-16", "04-03", "05-25", "06-19", "07-03", "09-07", "11-26", "12-25"]
    assert nyse_holidays(2026) == {date.fromisoformat(f"2026-{d}") for d in days}
    assert date(2021, 12, 31) not in nyse_holidays(2021)
    assert date(2022, 1, 1) not in nyse_holidays(2022)
    assert nyse_early_closes(2024) == {date(2024, 7, 3), date(2024, 11, 29), date(2024, 12, 24)}
    berlin = parse_rules({"market_hours": {"timezone": "Europe/Berlin", "open": "09:00", "close": "17:30",
                                           "holidays": ["2026-12-24"]}}).market_hours  # fmt: skip
    assert berlin is not None
    assert berlin.is_open(at(2026, 11, 16, 3, 0))
    assert not berlin.is_open(at(2026, 12, 24, 5, 0))


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
def test_a_rule_that_cannot_be_understood_is_said_so(rule: object) -> None:
    with pytest.raises(ValueError, match="rules"):
        parse_rules(rule)


def test_markets_and_custom_rules_hold_back_single_signals() -> None:
    builder, closed, ours, failing = IndexBuilder(), uuid4(), uuid4(), uuid4()
    builder.change(
        {
            closed: Wanted(["A"], (), Rules(market_hours=NYSE)),
            ours: Wanted(["A"], (), Rules(custom="liquid")),
            failing: Wanted(["A"], (), Rules(custom="missing")),
        }
    )
    index = builder.index()

    def one(name: str, when: float) -> Signal:
        return Signal(name, when, "rsi", (TickerSignal("A", None, 50.0),))

    batch: list[Signal | None] = [one("sunday", at(2026, 11, 15, 12)), one("monday", at(2026, 11, 16, 12))]
    judge = Judge(
        {"liquid": lambda signal, word, pipeline: signal.signal_id == "sunday" and word.ticker == "A"}
    )
    found = match(index, batch, lambda pairs: judge.judged(index, batch, lambda _: 0, pairs))
    named = dict(zip(found.pipelines.tolist(), found.signals.tolist(), strict=True))
    assert {index.pipelines[p]: n for p, n in named.items()} == {closed: 1, ours: 0}


def test_what_postgres_cannot_hold_is_kept_without_its_extras() -> None:
    body = b'{"signal_id": "s", "timestamp": 1, "signal_type": "t", "tickers": [{"ticker": "A"}], "x": %s}'
    for extra in (b'"\\u0000"', b"1" * 5000, b'"\\ud800"', b"[" * 300 + b"]" * 300, b"1e999"):
        ((found,), refused) = decode([body % extra])
        if found is None:
            assert refused
            continue
        assert msgspec.json.decode(msgspec.json.encode(as_stored(body % extra, found))) == {
            "signal_id": "s", "timestamp": 1.0, "signal_type": "t",
            "tickers": [{"ticker": "A", "signal": None, "confidence": 100.0}],
        }  # fmt: skip
