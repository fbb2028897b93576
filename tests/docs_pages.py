"""The pages of the docs, and what tests read from them: tables, sections and code blocks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/traceplane"
DOCS = ROOT / "docs"
PAGES = sorted((*ROOT.glob("*.md"), *DOCS.rglob("*.md")))


def page(name: str) -> str:
    return (DOCS / name).read_text()


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def rows(text: str) -> dict[str, list[str]]:
    """The table rows of a page, by the code in their first cell."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for name in re.findall(r"`([^`]+)`", cells[0]) if cells else ():
            found.setdefault(name, cells)
    return found


def sections(text: str, level: int = 3) -> dict[str, str]:
    """The text below each heading, by the heading without its backticks."""
    parts = re.split(rf"^#{{1,{level}}} +(.*)$", text, flags=re.MULTILINE)
    return {title.replace("`", ""): body for title, body in zip(parts[1::2], parts[2::2], strict=True)}


def blocks(text: str, *languages: str) -> list[str]:
    return [
        body
        for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
        if language in languages
    ]
