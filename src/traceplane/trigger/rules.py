"""Rules of pipelines: judged for each signal that matches otherwise.

Market hours are a matter of the signal's own timestamp. "N signals of one ticker within W seconds" counts the signals
of one partition that fit all else, so a ticker's signals belong into one partition (publish with the ticker as key).
The counts are kept in memory only; when partitions come to this instance they are made anew from the signals before
(`SignalSource.history`), so that they do not depend on who counted.

A custom rule is a function of the module that the setting `trigger_rules` names:

    def only_liquid(signal, word, pipeline_id) -> bool: ...

It runs in the trigger's own process, on every signal that fits a pipeline that names it, and so it must be quick and
trusted. One that fails lets nothing pass.
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
from traceplane.model.market_hours import MarketHours
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
    """Remembers what windows need; for one reader of signals."""

    def __init__(self, custom: Mapping[str, Custom]) -> None:
        self._custom = custom
        self._windows: dict[tuple[UUID, int, str], deque[float]] = {}

    def forget(self) -> None:
        self._windows = {}

    def judged(
        self, index: Index, signals: Sequence[Signal | None], partition_of: Callable[[int], int], pairs: Pairs
    ) -> list[tuple[int, int]]:
        """Pipelines and signals that pass, in order. Every signal is to be judged once and in order."""
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
                    wanted = rules.signals_within
                    seen = self._windows.get(key)
                    if seen is None or seen.maxlen != wanted.count:
                        seen = self._windows[key] = deque(seen or (), wanted.count)
                    seen.append(signal.timestamp)
                    if len(seen) < wanted.count or max(seen) - min(seen) > wanted.seconds:
                        continue
            passed[pipeline, nth] = None
        return list(passed)

    def _passes(self, name: str, signal: Signal, ticker: str, pipeline_id: UUID) -> bool:
        word = next(word for word in signal.tickers if word.ticker == ticker)
        try:
            return bool(self._custom[name](signal, word, pipeline_id))
        except Exception as error:  # of the user's making; it must not stop the others
            telemetry.count("custom_rule_errors_total", rule=name)
            telemetry.emit(
                "custom_rule_failed", "warning", rule=name, pipeline_id=pipeline_id, message=repr(error)
            )
            return False


def _while_open(index: Index, signals: Sequence[Signal | None], pairs: Pairs) -> Pairs:
    """Without the pairs of pipelines whose market was closed; a minute is looked up once."""
    markets: dict[MarketHours, list[int]] = {}
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
        concerned = np.flatnonzero(of_pipeline[pairs.pipeline])
        distinct, which = np.unique(minutes[pairs.nth[concerned]], return_inverse=True)
        is_open = np.array([hours.is_open(minute * 60.0) for minute in distinct.tolist()], np.bool_)
        keeps[concerned] = is_open[which]
    return Pairs(pairs.pipeline[keeps], pairs.nth[keeps], pairs.ticker[keeps])


def _distinct(pairs: Pairs) -> Iterator[tuple[int, int, int]]:
    """(pipeline, signal, ticker), each once, though several subscriptions may fit; in the order of the signals."""
    return iter(
        dict.fromkeys(zip(pairs.pipeline.tolist(), pairs.nth.tolist(), pairs.ticker.tolist(), strict=True))
    )
