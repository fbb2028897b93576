"""Further conditions before a matching signal launches a pipeline: the `rules` of a pipeline.

    {"market_hours": "NYSE",
     "signals_within": {"count": 3, "seconds": 60},
     "custom": "only_liquid"}

`market_hours` may also be {"timezone", "open", "close", "days", "holidays"}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

MOST_SIGNALS = 1000
LONGEST_WINDOW_SECONDS = 24 * 3600.0


class Exchange(StrEnum):
    """Open according to its calendar: holidays, early closes and one-off closures."""

    NYSE = "NYSE"


@dataclass(frozen=True, slots=True)
class MarketHours:
    """In the market's own time zone."""

    timezone: str
    opens: time
    closes: time
    days: frozenset[int] = frozenset(range(5))
    """0 is Monday."""
    holidays: frozenset[date] = frozenset()


@dataclass(frozen=True, slots=True)
class SignalsWithin:
    """`count` signals of one ticker within `seconds`, by the signals' own timestamps."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Rules:
    market_hours: MarketHours | Exchange | None = None
    signals_within: SignalsWithin | None = None
    custom: str | None = None
    """A function of the module that the setting `trigger_rules` names."""

    def __bool__(self) -> bool:
        return self != NO_RULES


NO_RULES = Rules()


def parse_rules(value: Any) -> Rules:
    """Raises ValueError, which says in one sentence what is wrong."""
    fields = _fields(value, "rules", {"market_hours", "signals_within", "custom"})
    custom = fields.get("custom")
    if custom is not None and not (isinstance(custom, str) and custom.isidentifier() and custom[0] != "_"):
        raise ValueError(f"rules.custom must be the name of a function, not {custom!r}")
    return Rules(_market_hours(fields.get("market_hours")), _within(fields.get("signals_within")), custom)


def _market_hours(value: Any) -> MarketHours | Exchange | None:
    if value is None:
        return None
    if isinstance(value, str) and value in list(Exchange):
        return Exchange(value)
    if isinstance(value, str):
        raise ValueError(f"rules.market_hours must be NYSE or a table of hours, not {value!r}")
    fields = _fields(
        value,
        "rules.market_hours",
        {"timezone", "open", "close", "days", "holidays"},
        {"timezone", "open", "close"},
    )
    try:
        ZoneInfo(fields["timezone"])
        days = frozenset(int(day) for day in fields.get("days", range(5)))
        holidays = frozenset(date.fromisoformat(day) for day in fields.get("holidays", ()))
        hours = MarketHours(
            fields["timezone"],
            time.fromisoformat(fields["open"]),
            time.fromisoformat(fields["close"]),
            days,
            holidays,
        )
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        raise ValueError(f"rules.market_hours is invalid: {error}") from error
    if not hours.opens < hours.closes or not days <= set(range(7)):
        raise ValueError("rules.market_hours must open before it closes, on days from 0 (Monday) to 6")
    return hours


def _within(value: Any) -> SignalsWithin | None:
    if value is None:
        return None
    fields = _fields(value, "rules.signals_within", {"count", "seconds"}, {"count", "seconds"})
    count, seconds = fields["count"], fields["seconds"]
    if type(count) is not int or not 1 <= count <= MOST_SIGNALS:
        raise ValueError(f"rules.signals_within.count must be 1 to {MOST_SIGNALS}, not {count!r}")
    if type(seconds) not in (int, float) or not 0 < seconds <= LONGEST_WINDOW_SECONDS:
        raise ValueError(
            f"rules.signals_within.seconds must be up to {LONGEST_WINDOW_SECONDS:g}, not {seconds!r}"
        )
    return SignalsWithin(count, float(seconds))


def _fields(value: Any, where: str, allowed: set[str], required: set[str] | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a table, not {value!r}")
    if unknown := set(value) - allowed:
        raise ValueError(f"{where} has an unknown field {min(map(str, unknown))!r}")
    if missing := (required or set()) - set(value):
        raise ValueError(f"{where} needs {min(missing)!r}")
    return value
