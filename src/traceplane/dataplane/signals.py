"""`signal_generate`: indicators over price bars, per ticker, and the signals that they give.

Every indicator looks back over a fixed number of bars, so that a signal depends on these bars alone: a task that gets
one new bar and enough history finds what a task over all bars finds. (RSI is therefore Cutler's, over plain averages;
Wilder's depends on where one begins.)
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as f

from traceplane.sdk import OperatorError, OperatorTask


@dataclass(frozen=True, slots=True)
class Indicators:
    """The job's config."""

    history: int = 250
    """Positions before the task's scope that are read too."""
    gapless: bool = True
    """Whether positions are the numbers of bars: a hole is then a bar that is not there yet, and waited for."""
    ticker: str = "ticker"
    close: str = "close"
    volume: str = "volume"
    timestamp: str = "timestamp"
    """Unix time in seconds."""
    source: str = "signal_generate"
    """Stands in the signals and their ids: whoever has two such jobs tells them apart by it."""
    sma_fast: int = 50
    sma_slow: int = 200
    rsi_period: int = 14
    rsi_low: float = 30.0
    rsi_high: float = 70.0
    volume_period: int = 20
    volume_factor: float = 3.0


def generate(task: OperatorTask, bars: DataFrame) -> DataFrame:
    [source] = task.inputs.values()
    if source.position is None or task.scope is None:
        raise OperatorError(
            "operator.misconfigured", "signal_generate needs an input whose dataset names its position column"
        )
    wanted = configured(task.config)
    if wanted.gapless:
        _refuse_holes(bars, source.position, wanted.ticker)
    return signals(bars, source.position, task.scope.start, task.scope.end, wanted)


def _refuse_holes(bars: DataFrame, position: str, ticker: str) -> None:
    """Bars may be committed in any order; computed without one of them, signals would be others."""
    lacking = f.max(position) - f.min(position) + 1 - f.countDistinct(position)
    found = bars.groupBy(ticker).agg(lacking.alias("lacking")).filter("lacking > 0").limit(1).collect()
    for row in found:
        raise OperatorError(
            "operator.history_incomplete",
            f"{row['lacking']} bars of {row[ticker]} are not there yet; set config.gapless: false if they never come",
        )


def configured(config: dict[str, Any]) -> Indicators:
    known = {field.name: type(field.default) for field in fields(Indicators)}
    for name, value in config.items():
        if name not in known or not (
            isinstance(value, known[name]) or (known[name] is float and type(value) is int)
        ):
            raise OperatorError(
                "operator.misconfigured", f"the config says {name}: {value!r}, which is not understood"
            )
    made = Indicators(**config)
    if not 0 < made.sma_fast < made.sma_slow or min(made.rsi_period, made.volume_period) < 1:
        raise OperatorError(
            "operator.misconfigured", "periods are at least 1, and sma_fast is below sma_slow"
        )
    if made.history <= max(made.sma_slow, made.rsi_period + 1, made.volume_period):
        raise OperatorError(
            "operator.misconfigured", f"config.history must be more than the longest period, {made.sma_slow}"
        )
    return made


def signals(bars: DataFrame, position: str, start: int, end: int, wanted: Indicators) -> DataFrame:
    """The signals of the bars from `start` to `end`; bars before them are history."""
    by_time = Window.partitionBy("ticker").orderBy("position")
    frame = bars.select(
        f.col(position).cast("bigint").alias("position"),
        f.col(wanted.ticker).alias("ticker"),
        f.col(wanted.close).cast("double").alias("close"),
        f.col(wanted.volume).cast("double").alias("volume"),
        f.col(wanted.timestamp).cast("double").alias("timestamp"),
    )
    frame = frame.withColumn("change", f.col("close") - f.lag("close").over(by_time))
    frame = frame.select(
        "*",
        _average("close", by_time, wanted.sma_fast).alias("fast"),
        _average("close", by_time, wanted.sma_slow).alias("slow"),
        _rsi(by_time, wanted.rsi_period).alias("rsi"),
        _average("volume", by_time, wanted.volume_period, before=True).alias("usual_volume"),
    )
    before = {name: f.lag(name).over(by_time).alias(f"{name}_before") for name in ("fast", "slow", "rsi")}
    frame = frame.select("*", *before.values()).filter(f.col("position").between(start, end))
    found = frame.withColumn("found", f.explode(f.array_compact(f.array(*_rules(wanted)))))
    return found.select(
        "position",
        "ticker",
        f.concat_ws(
            "/", f.lit(wanted.source), "found.signal_type", "ticker", f.col("position").cast("string")
        ).alias("signal_id"),
        f.col("found.signal_type").alias("signal_type"),
        f.col("found.signal").alias("signal"),
        f.round("found.confidence", 2).alias("confidence"),
        "timestamp",
        f.lit(wanted.source).alias("source"),
        f.to_json(f.struct("position", "close", "volume", "fast", "slow", "rsi")).alias("metadata"),
    )


def _average(column: str, by_time: WindowSpec, bars: int, *, before: bool = False) -> Column:
    """Over so many bars up to this one, or up to the one before; null until there are as many."""
    last = -1 if before else 0
    window = by_time.rowsBetween(last - bars + 1, last)
    return f.when(f.count(column).over(window) == bars, f.avg(column).over(window))


def _rsi(by_time: WindowSpec, bars: int) -> Column:
    window = by_time.rowsBetween(-bars + 1, 0)
    gains = f.sum(f.greatest(f.col("change"), f.lit(0.0))).over(window)
    losses = f.sum(f.greatest(-f.col("change"), f.lit(0.0))).over(window)
    value = f.when(gains + losses == 0, f.lit(50.0)).otherwise(100.0 * gains / (gains + losses))
    return f.when(f.count("change").over(window) == bars, value)


def _rules(wanted: Indicators) -> list[Column]:
    """A signal, or null; comparisons with what is not known yet are null too."""
    fast, slow, rsi = f.col("fast"), f.col("slow"), f.col("rsi")
    was_above = f.col("fast_before") > f.col("slow_before")
    was_below = f.col("fast_before") < f.col("slow_before")
    # Crosses are sure of themselves; how far apart the averages are makes them surer.
    crossing = f.least(f.lit(100.0), 70.0 + 3000.0 * f.abs(fast - slow) / slow)
    beyond = f.greatest(wanted.rsi_low - rsi, rsi - wanted.rsi_high)
    times = f.col("volume") / f.col("usual_volume")
    moved = f.when(f.col("change") > 0, "BULLISH").when(f.col("change") < 0, "BEARISH").otherwise("NEUTRAL")
    return [
        _signal(~was_above & (fast > slow), "golden_cross", f.lit("BULLISH"), crossing),
        _signal(~was_below & (fast < slow), "death_cross", f.lit("BEARISH"), crossing),
        _signal(
            (f.col("rsi_before") >= wanted.rsi_low) & (rsi < wanted.rsi_low),
            "rsi_oversold",
            f.lit("BULLISH"),
            f.least(f.lit(100.0), 60.0 + 2.0 * beyond),
        ),
        _signal(
            (f.col("rsi_before") <= wanted.rsi_high) & (rsi > wanted.rsi_high),
            "rsi_overbought",
            f.lit("BEARISH"),
            f.least(f.lit(100.0), 60.0 + 2.0 * beyond),
        ),
        _signal(
            (f.col("usual_volume") > 0) & (times >= wanted.volume_factor),
            "volume_spike",
            moved,
            f.least(f.lit(100.0), 50.0 + 10.0 * (times - wanted.volume_factor)),
        ),
    ]


def _signal(holds: Column, kind: str, direction: Column, confidence: Column) -> Column:
    made = f.struct(
        f.lit(kind).alias("signal_type"), direction.alias("signal"), confidence.alias("confidence")
    )
    return f.when(holds, made)
