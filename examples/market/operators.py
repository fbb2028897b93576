"""Operators of the market example: plain functions over Arrow tables, deterministic for a minute."""

from __future__ import annotations

import random
import time
from typing import Any

from traceplane.sdk import OperatorTask

SYMBOLS = ("AAPL", "BTC-USD", "ETH-USD", "MSFT")
TRADES_PER_MINUTE = 200


def synthetic_trades(minute: int) -> list[dict[str, Any]]:
    """The same minute always brings the same trades, so any run can be checked against a recomputation."""
    draw = random.Random(minute)
    return [
        {
            "minute": minute,
            "symbol": draw.choice(SYMBOLS),
            "price": draw.randint(9_000, 11_000),
            "size": draw.randint(1, 50),
        }
        for _ in range(TRADES_PER_MINUTE)
    ]


def make_bars(trades: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Open, high, low, close and volume of each symbol."""
    bars: dict[str, dict[str, Any]] = {}
    for trade in trades:
        price = trade["price"]
        bar = bars.setdefault(
            trade["symbol"],
            {
                "minute": trade["minute"],
                "symbol": trade["symbol"],
                "open": price,
                "high": price,
                "low": price,
                "close": price,
                "volume": 0,
            },
        )
        bar["high"], bar["low"], bar["close"] = max(bar["high"], price), min(bar["low"], price), price
        bar["volume"] += trade["size"]
    return [bars[symbol] for symbol in sorted(bars)]


def trades(task: OperatorTask) -> list[dict[str, Any]]:
    time.sleep(0.05)  # as if an exchange had been asked
    return synthetic_trades(task.scope.start)


def bars(task: OperatorTask) -> list[dict[str, Any]]:
    return make_bars(task.read("trades").to_pylist())


def report(task: OperatorTask) -> list[dict[str, Any]]:
    """Volume of each symbol over the range."""
    totals: dict[str, int] = {}
    for row in task.read("bars").to_pylist():
        totals[row["symbol"]] = totals.get(row["symbol"], 0) + row["volume"]
    return [
        {"first_minute": task.scope.start, "last_minute": task.scope.end, "symbol": symbol, "volume": volume}
        for symbol, volume in sorted(totals.items())
    ]
