"""`signal_generate`: indicators over price bars, per ticker, and the signals derived from them.

Every indicator looks back over a fixed number of bars, so a signal depends on these bars alone: a task with one new bar
and enough history finds the same as a task over all bars. (So RSI is Cutler's, over plain averages; Wilder's depends on
where it starts.)
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as f
from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

from traceplane.operators.config import read
from traceplane.operators.market import Indicators
from traceplane.sdk import OperatorError, OperatorTask


def generate(task: OperatorTask, bars: DataFrame) -> DataFrame:
    [source] = task.inputs.values()
    if source.position is None or task.scope is None:
        raise OperatorError(
            "operator.misconfigured", "signal_generate needs an input whose dataset names its position column"
        )
    if isinstance(bars.schema[source.position].dataType, DateType | TimestampType | TimestampNTZType):
        raise OperatorError(
            "operator.misconfigured",
            f"signal_generate counts bars by their position, and {source.position} holds dates or times; name a "
            "column of whole numbers as the position of the input's dataset",
        )
    indicators = read(task.config, Indicators)
    if indicators.gapless:
        _reject_gaps(bars, source.position, indicators.ticker)
    return signals(bars, source.position, task.scope.start, task.scope.end, indicators)


def _reject_gaps(bars: DataFrame, position: str, ticker: str) -> None:
    """Bars may be committed in any order; without one of them, signals would differ."""
    lacking = f.max(position) - f.min(position) + 1 - f.countDistinct(position)
    incomplete = bars.groupBy(ticker).agg(lacking.alias("lacking")).filter("lacking > 0").limit(1).collect()
    for row in incomplete:
        raise OperatorError(
            "operator.history_incomplete",
            f"{row['lacking']} bars of {row[ticker]} are missing; they may come later, or set config.gapless: false",
        )


def signals(bars: DataFrame, position: str, start: int, end: int, indicators: Indicators) -> DataFrame:
    """The signals of the bars from `start` to `end`; earlier bars are history."""
    by_time = Window.partitionBy("ticker").orderBy("position")
    frame = bars.select(
        f.col(position).cast("bigint").alias("position"),
        f.col(indicators.ticker).alias("ticker"),
        f.col(indicators.close).cast("double").alias("close"),
        f.col(indicators.volume).cast("double").alias("volume"),
        f.col(indicators.timestamp).cast("double").alias("timestamp"),
    )
    frame = frame.withColumn("change", f.col("close") - f.lag("close").over(by_time))
    frame = frame.select(
        "*",
        _average("close", by_time, indicators.sma_fast).alias("fast"),
        _average("close", by_time, indicators.sma_slow).alias("slow"),
        _rsi(by_time, indicators.rsi_period).alias("rsi"),
        _average("volume", by_time, indicators.volume_period, before=True).alias("usual_volume"),
    )
    before = {name: f.lag(name).over(by_time).alias(f"{name}_before") for name in ("fast", "slow", "rsi")}
    frame = frame.select("*", *before.values()).filter(f.col("position").between(start, end))
    signals_found = frame.withColumn("found", f.explode(f.array_compact(f.array(*_rules(indicators)))))
    return signals_found.select(
        "position",
        "ticker",
        f.concat_ws(
            "/", f.lit(indicators.source), "found.signal_type", "ticker", f.col("position").cast("string")
        ).alias("signal_id"),
        f.col("found.signal_type").alias("signal_type"),
        f.col("found.signal").alias("signal"),
        f.round("found.confidence", 2).alias("confidence"),
        "timestamp",
        f.lit(indicators.source).alias("source"),
        f.to_json(f.struct("position", "close", "volume", "fast", "slow", "rsi")).alias("metadata"),
    )


def _average(column: str, by_time: WindowSpec, bars: int, *, before: bool = False) -> Column:
    """Over `bars` bars up to this one, or up to the previous one; null until there are that many."""
    last = -1 if before else 0
    window = by_time.rowsBetween(last - bars + 1, last)
    return f.when(f.count(column).over(window) == bars, f.avg(column).over(window))


def _rsi(by_time: WindowSpec, bars: int) -> Column:
    window = by_time.rowsBetween(-bars + 1, 0)
    gains = f.sum(f.greatest(f.col("change"), f.lit(0.0))).over(window)
    losses = f.sum(f.greatest(-f.col("change"), f.lit(0.0))).over(window)
    value = f.when(gains + losses == 0, f.lit(50.0)).otherwise(100.0 * gains / (gains + losses))
    return f.when(f.count("change").over(window) == bars, value)


def _rules(indicators: Indicators) -> list[Column]:
    """A signal, or null; comparisons with a missing value are null too."""
    fast, slow, rsi = f.col("fast"), f.col("slow"), f.col("rsi")
    was_above = f.col("fast_before") > f.col("slow_before")
    was_below = f.col("fast_before") < f.col("slow_before")
    # A cross has a high confidence, which grows with the distance of the averages.
    crossing = f.least(f.lit(100.0), 70.0 + 3000.0 * f.abs(fast - slow) / slow)
    beyond = f.greatest(indicators.rsi_low - rsi, rsi - indicators.rsi_high)
    times = f.col("volume") / f.col("usual_volume")
    moved = f.when(f.col("change") > 0, "BULLISH").when(f.col("change") < 0, "BEARISH").otherwise("NEUTRAL")
    return [
        _signal(~was_above & (fast > slow), "golden_cross", f.lit("BULLISH"), crossing),
        _signal(~was_below & (fast < slow), "death_cross", f.lit("BEARISH"), crossing),
        _signal(
            (f.col("rsi_before") >= indicators.rsi_low) & (rsi < indicators.rsi_low),
            "rsi_oversold",
            f.lit("BULLISH"),
            f.least(f.lit(100.0), 60.0 + 2.0 * beyond),
        ),
        _signal(
            (f.col("rsi_before") <= indicators.rsi_high) & (rsi > indicators.rsi_high),
            "rsi_overbought",
            f.lit("BEARISH"),
            f.least(f.lit(100.0), 60.0 + 2.0 * beyond),
        ),
        _signal(
            (f.col("usual_volume") > 0) & (times >= indicators.volume_factor),
            "volume_spike",
            moved,
            f.least(f.lit(100.0), 50.0 + 10.0 * (times - indicators.volume_factor)),
        ),
    ]


def _signal(holds: Column, kind: str, direction: Column, confidence: Column) -> Column:
    signal = f.struct(
        f.lit(kind).alias("signal_type"), direction.alias("signal"), confidence.alias("confidence")
    )
    return f.when(holds, signal)
