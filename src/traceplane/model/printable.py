"""Text that is safe to print to a terminal. Operators choose names and write errors, and a terminal obeys escape
sequences: they move the cursor, fill the clipboard, and disguise text.

What Python calls printable is kept. Everything else is escaped: control characters of both ranges, DEL, marks that
change the writing direction, line separators, zero-width characters.
"""

from __future__ import annotations

import re


def one_line(text: str) -> str:
    r"""Text within a line: a newline in it is escaped as `\n`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def many_lines(text: str) -> str:
    """Text of several lines, such as a traceback: its line breaks are kept, everything else is escaped."""
    return "\n".join(one_line(line) for line in text.split("\n"))


def json_text(text: str) -> str:
    """An equivalent JSON document. Only its strings need escaping: outside of them, the only characters that are not
    printable are line breaks."""
    return text if text.isprintable() else _PERHAPS_UNPRINTABLE.sub(_as_json_escape, text)


_PERHAPS_UNPRINTABLE = re.compile(r"[^\n\x20-\x7e]")


def _as_json_escape(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2))
