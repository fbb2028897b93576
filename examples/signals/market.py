"""A simulated market, and what pipelines do on it."""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, datetime
from typing import Any

from traceplane.sdk import OperatorTask

TICKERS = ("AAPL", "AMZN", "GOOGL", "MSFT", "TSLA")
BEGIN = 1_699_972_200
"""14 November 2023, 9:30 in New York, when the exchange opens."""
SESSION = 390
"""Minutes until it closes, at 16:00."""


def bars(task: OperatorTask) -> list[dict[str, Any]]:
    """One bar per ticker for every minute of the task's scope."""
    assert task.scope is not None
    return [bar(ticker, n) for n in range(task.scope.start, task.scope.end + 1) for ticker in TICKERS]


def bar(ticker: str, minute: int) -> dict[str, Any]:
    """A function of the minute alone: a wave with a different phase per ticker, plus noise."""
    noise = int.from_bytes(hashlib.sha256(f"{ticker} {minute}".encode()).digest()[:4], "big") / 2**32
    wave = math.sin(2 * math.pi * (minute / 120 + TICKERS.index(ticker) / len(TICKERS)))
    return {
        "position": minute,
        "ticker": ticker,
        "close": round(100 + 10 * wave + noise, 4),
        "volume": int(1000 + 500 * noise) * (8 if noise > 0.98 else 1),
        "timestamp": float(BEGIN + 60 * minute),
        "at": datetime.fromtimestamp(BEGIN + 60 * minute, UTC),
    }


def instruments(task: OperatorTask) -> list[dict[str, Any]]:
    """The table of instruments, as it is loaded now."""
    return [
        {"ticker": ticker, "name": f"{ticker.title()} Inc.", "shares": 1_000_000 * (n + 1)}
        for n, ticker in enumerate(TICKERS)
    ]


def trade(task: OperatorTask) -> list[dict[str, Any]]:
    """What a pipeline execution does: here, it records what it would buy or sell."""
    run = task.execution
    assert run is not None
    assert run.signal is not None
    about = run.signal["tickers"][0]
    return [
        {
            "execution_id": run.execution_id,
            "pipeline": run.pipeline,
            "signal_id": run.signal["signal_id"],
            "ticker": about["ticker"],
            "side": "buy" if about["signal"] == "BULLISH" else "sell",
            "shares": run.parameters.get("shares", 1),
        }
    ]
