"""Lengths of time as people write them: `90s`, `24h`, `30d`."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_WRITTEN = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII)
FOREVER = "forever"


class BadDuration(ValueError):
    pass


def parsed(text: str) -> timedelta:
    """Raises `BadDuration`."""
    if (match := _WRITTEN.fullmatch(text)) is None:
        raise BadDuration(f"{text!r} is not a number with a unit, for example 30m, 24h or 7d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def written(seconds: float) -> str:
    """In the largest unit that needs no fraction."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def parsed_or_forever(text: str) -> timedelta | None:
    """None for `forever`; raises `BadDuration`."""
    return None if text == FOREVER else parsed(text)
