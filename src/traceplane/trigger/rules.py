"""Rules of pipelines, judged for each signal that matches otherwise.

Market hours are compared with the signal's own timestamp. "N signals of one ticker within W seconds" counts the
otherwise matching signals of one partition, so all signals of a ticker belong in one partition (publish with the ticker
as key). The counts are kept in memory only. When this instance gets new partitions, it rebuilds them from earlier
signals (`SignalSource.history`), so that they do not depend on the instance.

A custom rule is a function of the module that the setting `trigger_rules` names:

    def only_liquid(signal, ticker_signal, pipeline_id) -> bool: ...

It runs in the trigger's process, for every signal that matches a pipeline with this rule, so it must be fast and
trusted. If it raises an error, the signal does not pass.
"""

from __future__ import annotations

import importlib
import inspect
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from uuid import UUID

import numpy as np

from traceplane import telemetry
from traceplane.errors import InvalidInput
from traceplane.model.pipeline_rules import Exchange, MarketHours
from traceplane.schedule.market_hours import is_open
from traceplane.trigger.matching import Index, Pairs
from traceplane.trigger.messages import Signal, TickerSignal

Custom = Callable[[Signal, TickerSignal, UUID], bool]


def custom_rules(module: str | None) -> Mapping[str, Custom]:
    """The public functions of a module."""
    if module is None:
        return {}
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        raise InvalidInput(
            "trigger.no_rules",
            "the module of custom rules cannot be imported",
            value=f"{module}: {error}",
            next_step="put it on PYTHONPATH, or unset trigger_rules",
        ) from error
    own = inspect.getmembers(loaded, inspect.isfunction)
    return {
        name: rule for name, rule in own if not name.startswith("_") and rule.__module__ == loaded.__name__
    }


class Judge:
    """Holds the counts of windows, for one reader of signals."""

    def __init__(self, custom: Mapping[str, Custom]) -> None:
        self._custom = custom
        self._windows: dict[tuple[UUID, int, str], deque[float]] = {}

    def forget(self) -> None:
        self._windows = {}

    def judged(
        self, index: Index, signals: Sequence[Signal | None], partition_of: Callable[[int], int], pairs: Pairs
    ) -> list[tuple[int, int]]:
        """The (pipeline, signal) pairs that pass, in order. Signals must be judged once each, in order."""
        passed: dict[tuple[int, int], None] = {}
        tickers: list[str] | None = None
        for pipeline, nth, ticker in _distinct(_while_open(index, signals, pairs)):
            signal, pipeline_id, rules = signals[nth], index.pipelines[pipeline], index.rules[pipeline]
            assert signal is not None
            assert pipeline_id is not None
            if rules.custom is not None or rules.signals_within is not None:
                tickers = tickers or list(index.tickers)
                name = tickers[ticker]
                if rules.custom is not None and not self._passes(rules.custom, signal, name, pipeline_id):
                    continue
                if rules.signals_within is not None:
                    key = (pipeline_id, partition_of(nth), name)
                    window = rules.signals_within
                    times = self._windows.get(key)
                    if times is None or times.maxlen != window.count:
                        times = self._windows[key] = deque(times or (), window.count)
                    times.append(signal.timestamp)
                    if len(times) < window.count or max(times) - min(times) > window.seconds:
                        continue
            passed[pipeline, nth] = None
        return list(passed)

    def _passes(self, name: str, signal: Signal, ticker: str, pipeline_id: UUID) -> bool:
        ticker_signal = next(one for one in signal.tickers if one.ticker == ticker)
        try:
            return bool(self._custom[name](signal, ticker_signal, pipeline_id))
        except Exception as error:  # user code; it must not stop the other rules
            telemetry.count("custom_rule_errors_total", rule=name)
            telemetry.emit(
                "custom_rule_failed", "error", rule=name, pipeline_id=pipeline_id, message=repr(error)
            )
            return False


def _while_open(index: Index, signals: Sequence[Signal | None], pairs: Pairs) -> Pairs:
    """Drops the pairs of pipelines whose market was closed. Each minute is looked up once."""
    markets: dict[MarketHours | Exchange, list[int]] = {}
    for number in np.unique(pairs.pipeline).tolist():
        if (hours := index.rules[number].market_hours) is not None:
            markets.setdefault(hours, []).append(number)
    if not markets:
        return pairs
    keeps = np.ones(len(pairs.nth), np.bool_)
    minutes = np.array([-1 if s is None else int(s.timestamp // 60) for s in signals], np.int64)
    of_pipeline = np.zeros(len(index.pipelines), np.bool_)
    for hours, numbers in markets.items():
        of_pipeline[:] = False
        of_pipeline[numbers] = True
        affected = np.flatnonzero(of_pipeline[pairs.pipeline])
        distinct, which = np.unique(minutes[pairs.nth[affected]], return_inverse=True)
        open_then = np.array([is_open(hours, minute * 60.0) for minute in distinct.tolist()], np.bool_)
        keeps[affected] = open_then[which]
    return Pairs(pairs.pipeline[keeps], pairs.nth[keeps], pairs.ticker[keeps])


def _distinct(pairs: Pairs) -> Iterator[tuple[int, int, int]]:
    """(pipeline, signal, ticker), each once even if several subscriptions match, in the order of the signals."""
    return iter(
        dict.fromkeys(zip(pairs.pipeline.tolist(), pairs.nth.tolist(), pairs.ticker.tolist(), strict=True))
    )
