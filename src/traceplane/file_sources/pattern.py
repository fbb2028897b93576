"""The names of files, and the partition that each belongs to.

    orders_{YYYY}-{MM}-{DD}.csv      {name}/{YYYY}{MM}/*.parquet      blocks/part-{position}.parquet

`*` is any text without a slash. What is in braces says which partition a file belongs to, so a pattern has exactly
what its dataset's partitions need.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from traceplane.model.partitions import By

_FIELDS = {
    "YYYY": r"[0-9]{4}",
    "MM": r"[0-9]{2}",
    "DD": r"[0-9]{2}",
    "HH": r"[0-9]{2}",
    "WW": r"[0-9]{2}",
    "position": r"[0-9]{1,19}",
    "name": r"[A-Za-z_][A-Za-z0-9_.-]{0,99}?",
}
_PARTITION_TEXTS = {
    By.HOUR: "{YYYY}-{MM}-{DD}T{HH}",
    By.DAY: "{YYYY}-{MM}-{DD}",
    By.WEEK: "{YYYY}-W{WW}",
    By.MONTH: "{YYYY}-{MM}",
    By.POSITION: "{position}",
    By.NAME: "{name}",
}
"""The name of a partition, from what is in braces."""
EXAMPLES = {
    By.HOUR: "orders_{YYYY}-{MM}-{DD}T{HH}.csv",
    By.DAY: "orders_{YYYY}-{MM}-{DD}.csv",
    By.WEEK: "orders_{YYYY}-W{WW}.csv",
    By.MONTH: "orders_{YYYY}-{MM}.csv",
    By.POSITION: "part-{position}.csv",
    By.NAME: "{name}.csv",
}
_PARTS = re.compile(r"\{(?P<field>[^{}]*)\}|(?P<any>\*)|(?P<text>[^{}*]+)|(?P<stray>[{}])")
_LONGEST = 500
_MOST_STARS = 8


class BadPattern(ValueError):
    pass


@dataclass(frozen=True)
class Pattern:
    """`text` and `by` go together; raises `BadPattern` otherwise."""

    text: str
    by: By

    def __post_init__(self) -> None:
        if not 0 < len(self.text) <= _LONGEST or not self.text.isprintable():
            raise BadPattern(f"a pattern has 1 to {_LONGEST} visible characters")
        if any(part in ("", ".", "..") for part in self.text.split("/")):
            raise BadPattern("a pattern is a path below the folder, without empty parts, . and ..")
        if self.text.count("*") > _MOST_STARS:
            raise BadPattern(f"a pattern has at most {_MOST_STARS} times *")
        used = set()
        for part in _PARTS.finditer(self.text):
            if part["stray"]:
                raise BadPattern("braces come in pairs, and not inside each other")
            if part["field"] is not None:
                if part["field"] not in _FIELDS:
                    known = ", ".join(f"{{{name}}}" for name in _FIELDS)
                    raise BadPattern(f"there is no {{{part['field'][:40]}}}, only {known}")
                used.add(part["field"])
        needed = set(re.findall(r"\{(\w+)\}", _PARTITION_TEXTS[self.by]))
        if used != needed:
            names = " and ".join(f"{{{name}}}" for name in _FIELDS if name in needed)
            raise BadPattern(f"for partitions by {self.by}, a pattern has {names} and nothing else in braces")

    @property
    def beginning(self) -> str:
        """What all matching paths begin with."""
        return re.split(r"[{*]", self.text, maxsplit=1)[0]

    @property
    def folders(self) -> int:
        """How many folders below the root a matching file is."""
        return self.text.count("/")

    def partition_of(self, path: str) -> str | None:
        """The name of the partition that a file belongs to, which may not exist; None: it does not match."""
        found = self._regex.fullmatch(path)
        return None if found is None else _PARTITION_TEXTS[self.by].format_map(found.groupdict())

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        """What follows a `*` is looked for once, from the left, so that no name takes long to match."""
        pieces, before = [""], set()
        for part in _PARTS.finditer(self.text):
            if (name := part["field"]) is not None:
                pieces[-1] += f"(?P={name})" if name in before else f"(?P<{name}>{_FIELDS[name]})"
                before.add(name)
            elif part["any"]:
                pieces.append("")
            else:
                pieces[-1] += re.escape(part["text"])
        first, *others = pieces
        last = f"[^/]*{others.pop()}" if others else ""
        return re.compile(first + "".join(f"(?>[^/]*?{piece})" for piece in others) + last)
