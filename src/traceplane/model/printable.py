"""Text for a terminal. Operators choose names and write errors, and a terminal obeys what it is sent: escape sequences
move the cursor, fill the clipboard, and show one thing for another.

What Python calls printable stays as it is. Everything else is written as an escape: control characters of both ranges,
DEL, marks that turn the direction of writing, separators of lines, characters without a width.
"""

from __future__ import annotations

import re


def one_line(text: str) -> str:
    r"""A field of a line: a newline in it is written as `\n`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def many_lines(text: str) -> str:
    """Text that has lines of its own, such as a traceback: they stay, and nothing else does."""
    return "\n".join(one_line(line) for line in text.split("\n"))


def json_text(text: str) -> str:
    """A JSON document that means the same. Outside of its strings it has no characters that are not printable, but for
    its line ends."""
    return text if text.isprintable() else _PERHAPS_UNPRINTABLE.sub(_as_json_escape, text)


_PERHAPS_UNPRINTABLE = re.compile(r"[^\n\x20-\x7e]")


def _as_json_escape(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2))
