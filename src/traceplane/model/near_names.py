"""The name that somebody probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_NAMES = 1000
"""More are not compared: a comparison takes about 20 microseconds."""


def near(word: str, names: Iterable[str]) -> str | None:
    """A suggestion: the name that was probably meant, or the list of names."""
    names = sorted(map(str, names))[:MOST_NAMES]
    if suggestion := nearest(word, names):
        return suggestion
    return f"one of: {', '.join(names[:20])}" if names else None


def nearest(word: str, names: Iterable[str]) -> str | None:
    """A suggestion, only if one of the names is similar."""
    name = closest(word, names)
    return f"did you mean {name!r}?" if name is not None else None


def closest(word: str, names: Iterable[str]) -> str | None:
    """The most similar of the names, if one is similar."""
    return next(iter(difflib.get_close_matches(word[:100], list(names)[:MOST_NAMES], n=1)), None)
