"""What else must hold before a signal that matches launches a pipeline: `rules` of a pipeline.

    {"market_hours": "NYSE",
     "signals_within": {"count": 3, "seconds": 60},
     "custom": "only_liquid"}

`market_hours` may also be {"timezone", "open", "close", "days", "holidays"}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from traceplane.model.market_hours import NYSE, MarketHours

MOST_SIGNALS = 1000
LONGEST_WINDOW_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class SignalsWithin:
    """So many signals of one ticker within so many seconds, by the signals' own timestamps."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Rules:
    market_hours: MarketHours | None = None
    signals_within: SignalsWithin | None = None
    custom: str | None = None
    """A function of the module that the setting `trigger_rules` names."""

    def __bool__(self) -> bool:
        return self != NO_RULES


NO_RULES = Rules()


def parse_rules(value: Any) -> Rules:
    """ValueError says what is wrong, in one sentence."""
    known = _fields(value, "rules", {"market_hours", "signals_within", "custom"})
    custom = known.get("custom")
    if custom is not None and not (isinstance(custom, str) and custom.isidentifier() and custom[0] != "_"):
        raise ValueError(f"rules.custom is the name of a function, not {custom!r}")
    return Rules(_market_hours(known.get("market_hours")), _within(known.get("signals_within")), custom)


def _market_hours(value: Any) -> MarketHours | None:
    if value is None:
        return None
    if value == "NYSE":
        return NYSE
    if isinstance(value, str):
        raise ValueError(f"rules.market_hours is NYSE, or a table of hours, not {value!r}")
    known = _fields(
        value,
        "rules.market_hours",
        {"timezone", "open", "close", "days", "holidays"},
        {"timezone", "open", "close"},
    )
    try:
        ZoneInfo(known["timezone"])
        days = frozenset(int(day) for day in known.get("days", range(5)))
        holidays = frozenset(date.fromisoformat(day) for day in known.get("holidays", ()))
        hours = MarketHours(
            known["timezone"],
            time.fromisoformat(known["open"]),
            time.fromisoformat(known["close"]),
            days,
            holidays,
        )
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise ValueError(f"rules.market_hours is not well formed: {error}") from error
    if not hours.opens < hours.closes or not days <= set(range(7)):
        raise ValueError("rules.market_hours opens before it closes, on days from 0 (Monday) to 6")
    return hours


def _within(value: Any) -> SignalsWithin | None:
    if value is None:
        return None
    known = _fields(value, "rules.signals_within", {"count", "seconds"}, {"count", "seconds"})
    count, seconds = known["count"], known["seconds"]
    if type(count) is not int or not 1 <= count <= MOST_SIGNALS:
        raise ValueError(f"rules.signals_within.count is 1 to {MOST_SIGNALS}, not {count!r}")
    if type(seconds) not in (int, float) or not 0 < seconds <= LONGEST_WINDOW_SECONDS:
        raise ValueError(f"rules.signals_within.seconds is up to {LONGEST_WINDOW_SECONDS:g}, not {seconds!r}")
    return SignalsWithin(count, float(seconds))


def _fields(value: Any, where: str, allowed: set[str], required: set[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is a table, not {value!r}")
    if unknown := set(value) - allowed:
        raise ValueError(f"{where} has no {sorted(map(str, unknown))[0]!r}")
    if missing := (required or set()) - set(value):
        raise ValueError(f"{where} needs {sorted(missing)[0]!r}")
    return value
