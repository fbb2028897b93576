"""Values that operators were handed, left out of what they wrote: an error often repeats the address that failed.

Only text is found: as it was handed over, as Python and JSON spell it in quotes, line by line, and the parts of an
address. What an operator writes in another form, encoded or cut off, is not recognized.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

SHORTEST = 6
"""Shorter text is found in too much that has nothing to do with it."""
_SHORTEST_LINE = 16
"""The same of a line of a longer text, which may be a query."""
PLACEHOLDER = "***"
_NO_SECRET = ("entrypoint",)
"""Fields of a config that name code: tracebacks name it too."""


class HiddenValues:
    """Nothing is hidden if there are no values."""

    def __init__(self, handed: Iterable[object] = ()) -> None:
        found = {text for value in handed for text in _texts(value) if len(text) >= SHORTEST}
        longest_first = sorted(found, key=lambda text: (-len(text), text))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if found else None

    def without(self, value: Any) -> Any:
        """The JSON value with a placeholder wherever one of the values stands in it."""
        if self._pattern is None:
            return value
        match value:
            case str():
                return self._pattern.sub(PLACEHOLDER, value)
            case dict():
                return {self.without(key): self.without(item) for key, item in value.items()}
            case list():
                return [self.without(item) for item in value]
            case _:
                return value


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            lines = [line for line in value.splitlines() if len(line) >= _SHORTEST_LINE]
            for text in (value, *lines):
                yield text
                yield text.strip()
                yield repr(text)[1:-1]
                yield json.dumps(text)[1:-1]
            yield value.replace("\n", "\\n")
            yield from _parts_of_address(value)
        case dict():
            for key, item in value.items():
                if key not in _NO_SECRET:
                    yield from _texts(item)
        case list() | tuple():
            for item in value:
                yield from _texts(item)


def _parts_of_address(text: str) -> Iterator[str]:
    if "://" not in text:
        return
    try:
        address = urlsplit(text)
    except ValueError:
        return
    location = address.path + (f"?{address.query}" if address.query else "")
    parts = [address.username, address.password, location, *address.path.split("/")]
    parts += [assignment.partition("=")[2] for assignment in address.query.split("&")]
    for part in parts:
        if part:
            yield part
            yield unquote(part)
