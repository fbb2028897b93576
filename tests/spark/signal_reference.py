"""What `signal_generate` is to find, over all bars at once, in plain Python."""

from __future__ import annotations

from typing import Any

Bars = list[dict[str, Any]]


def signals(bars: Bars) -> dict[str, tuple[str, float]]:
    """Direction and time by signal id, with the periods of the example."""
    found: dict[str, tuple[str, float]] = {}
    for ticker in {bar["ticker"] for bar in bars}:
        own = sorted((bar for bar in bars if bar["ticker"] == ticker), key=lambda bar: bar["position"])
        for n, bar in enumerate(own):
            for kind, direction in _at(own, n):
                found[f"market/{kind}/{ticker}/{bar['position']}"] = direction, bar["timestamp"]
    return found


def _at(own: Bars, n: int) -> list[tuple[str, str]]:
    found = []
    fast, slow = _mean(own, n, 50), _mean(own, n, 200)
    fast_before, slow_before = _mean(own, n - 1, 50), _mean(own, n - 1, 200)
    if None not in (fast, slow, fast_before, slow_before):
        if fast_before <= slow_before and fast > slow:
            found.append(("golden_cross", "BULLISH"))
        if fast_before >= slow_before and fast < slow:
            found.append(("death_cross", "BEARISH"))
    rsi, before = _rsi(own, n), _rsi(own, n - 1)
    if rsi is not None and before is not None:
        if before >= 30 > rsi:
            found.append(("rsi_oversold", "BULLISH"))
        if before <= 70 < rsi:
            found.append(("rsi_overbought", "BEARISH"))
    if n >= 20 and own[n]["volume"] >= 3 * sum(bar["volume"] for bar in own[n - 20 : n]) / 20:
        rose = own[n]["close"] - own[n - 1]["close"]
        found.append(("volume_spike", "BULLISH" if rose > 0 else "BEARISH" if rose < 0 else "NEUTRAL"))
    return found


def _mean(own: Bars, n: int, count: int) -> Any:
    return sum(bar["close"] for bar in own[n - count + 1 : n + 1]) / count if n >= count - 1 else None


def _rsi(own: Bars, n: int) -> float | None:
    if n < 14:
        return None
    changes = [own[i]["close"] - own[i - 1]["close"] for i in range(n - 13, n + 1)]
    gains, losses = sum(c for c in changes if c > 0), -sum(c for c in changes if c < 0)
    return 100 * gains / (gains + losses) if gains + losses else 50.0
