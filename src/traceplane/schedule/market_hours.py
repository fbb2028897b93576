"""Whether a market was open, by its hours or by the sessions of its exchange."""

from __future__ import annotations

import json
import subprocess
import sys
from bisect import bisect_right
from datetime import UTC, datetime
from functools import cache
from zoneinfo import ZoneInfo

from traceplane.model.pipeline_rules import Exchange, MarketHours

_CALENDARS = {Exchange.NYSE: "XNYS"}
"""Names of the exchanges in the library: market identifier codes."""


def is_open(market: MarketHours | Exchange, timestamp: float) -> bool:
    """The first call for a decade of an exchange takes a second or two."""
    if isinstance(market, Exchange):
        opens, closes = _sessions(market, datetime.fromtimestamp(timestamp, UTC).year // 10 * 10)
        number = bisect_right(opens, timestamp) - 1
        return number >= 0 and timestamp < closes[number]
    local = datetime.fromtimestamp(timestamp, UTC).astimezone(ZoneInfo(market.timezone))
    if local.weekday() not in market.days or local.date() in market.holidays:
        return False
    return market.opens <= local.time() < market.closes


@cache
def _sessions(exchange: Exchange, first_year: int) -> tuple[list[float], list[float]]:
    """Opening and closing times of ten years of sessions, in order."""
    command = [sys.executable, "-I", "-m", "traceplane.schedule.exchange_sessions"]
    child = subprocess.run(
        [*command, _CALENDARS[exchange], str(first_year)], capture_output=True, text=True, check=True
    )
    sessions = json.loads(child.stdout)
    return [opens for opens, _ in sessions], [closes for _, closes in sessions]
