"""Files of the repository as pages, with a number to link to at each line."""

from __future__ import annotations

import html
import re
from functools import cache
from pathlib import Path

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

_FORMATTER = HtmlFormatter(nowrap=True)


def coloured(code: str, language: str) -> str:
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return html.escape(code)
    return str(highlight(code, lexer, _FORMATTER))


def numbered(path: Path) -> str:
    code = path.read_text()
    try:
        shown = str(highlight(code, get_lexer_for_filename(path.name, stripnl=False), _FORMATTER))
    except ClassNotFound:
        shown = html.escape(code)
    return "".join(
        f'<span class="line" id="L{number}"><a href="#L{number}" class="number">{number}</a>{line}\n</span>'
        for number, line in enumerate(shown.rstrip("\n").split("\n"), 1)
    )


def line_of(path: Path, function: str) -> int | None:
    return _lines(path).get(function)


@cache
def _lines(path: Path) -> dict[str, int]:
    """Where each function of a file begins."""
    found = re.compile(r"^\s*(?:async )?def (\w+)")
    lines: dict[str, int] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if (match := found.match(line)) is not None:
            lines.setdefault(match[1], number)
    return lines
