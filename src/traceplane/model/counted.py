"""A number with its noun."""

from __future__ import annotations


def counted(number: int, noun: str, shown: str | None = None) -> str:
    """`1 task`, `2 tasks`. `shown`: the number as it is written, such as `1,000` or `1000+`."""
    plural = f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"
    return f"{number if shown is None else shown} {noun if number == 1 else plural}"
