"""The operators that make and publish market signals."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from traceplane.model.advice import Cause, Remedy
from traceplane.operators.spec import ColumnsFrom, Config, ErrorCode, OperatorSpec, Ports

_Period = Annotated[int, Meta(ge=1)]


# fmt: off
class Indicators(Config, frozen=True, kw_only=True):
    history: Annotated[_Period, Meta(
        description="Number of positions before the scope to read as well; more than the longest period.")] = 250
    gapless: Annotated[bool, Meta(
        description="Whether every ticker has a bar at every position. If so, a gap is a bar that has not arrived yet, "
        "and the task is retried. With `false`, gaps are ignored.")] = True
    ticker: Annotated[str, Meta(description="Column of the bars.")] = "ticker"
    close: Annotated[str, Meta(description="Column of the bars.")] = "close"
    volume: Annotated[str, Meta(description="Column of the bars.")] = "volume"
    timestamp: Annotated[str, Meta(description="Column of the bars: Unix time in seconds.")] = "timestamp"
    source: Annotated[str, Meta(
        description="Part of the signals and their ids; distinguishes two such jobs.")] = "signal_generate"
    sma_fast: Annotated[_Period, Meta(description="Bars of the fast average; fewer than the slow one's.")] = 50
    sma_slow: Annotated[_Period, Meta(description="Bars of the slow average.")] = 200
    rsi_period: Annotated[_Period, Meta(description="Bars of the RSI.")] = 14
    rsi_low: Annotated[float, Meta(description="Below it is oversold.")] = 30.0
    rsi_high: Annotated[float, Meta(description="Above it is overbought.")] = 70.0
    volume_period: Annotated[_Period, Meta(description="Bars of the usual volume.")] = 20
    volume_factor: Annotated[float, Meta(description="How many times the usual volume is a spike.")] = 3.0

    def __post_init__(self) -> None:
        if self.sma_fast >= self.sma_slow:
            raise ValueError("sma_fast must be below sma_slow")
        longest = max(self.sma_slow, self.rsi_period + 1, self.volume_period)
        if self.history <= longest:
            raise ValueError(f"history must be more than the longest period, {longest}")
# fmt: on


SIGNAL_GENERATE = OperatorSpec(
    name="signal_generate",
    summary="Computes indicators over price bars, and writes the resulting signals.",
    runtimes=frozenset({"spark"}),
    entrypoint="traceplane.dataplane.task:signal_generate",
    config=Indicators,
    history_field="history",
    inputs=Ports(least=1, most=1),
    outputs=Ports(least=1, most=1),
    errors=(
        ErrorCode(
            "operator.history_incomplete",
            "bars before the scope are missing",
            remedy=Remedy(Cause.PASSING, "see its page"),
        ),
    ),
    position="position",
)

SIGNAL_PUBLISH = OperatorSpec(
    name="signal_publish",
    summary="Gives committed signals to triggers.",
    runtimes=frozenset({"dispatcher"}),
    columns_from=ColumnsFrom.OUTSIDE,
    inputs=Ports(least=1),
    publishes_signals=True,
)
