"""Which pages there are, where they go, and in which order one reads them: as docs/index.md lists them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

ROOT = Path(__file__).parents[1]
INDEX = "docs/index.md"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Entry:
    """A page in the navigation, with the pages that only it leads to."""

    label: str
    path: str
    below: list[Entry] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    title: str
    entries: list[Entry]


def markdown_files(root: Path = ROOT) -> dict[str, str]:
    """Every page of the site: its file in the repository, and its address in the site."""
    paths = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("examples/*/README.md")]
    names = sorted(path.relative_to(root).as_posix() for path in paths)
    return {name: address(name) for name in names}


def address(name: str) -> str:
    path = PurePosixPath(name)
    if path.parts[0] == "docs":
        inner = path.relative_to("docs")
        return str(inner.with_name("index.html") if path.stem == "README" else inner.with_suffix(".html"))
    if path.name == "README.md" and len(path.parts) > 1:
        return f"{path.parent}.html"
    return f"{path.stem.lower()}.html"


def source_address(name: str) -> str:
    return f"source/{name}.html"


def picture_address(name: str) -> str:
    return name.removeprefix("docs/")


def resolve(name: str, target: str) -> str:
    """The file of the repository that a link of a page names."""
    return normpath(str(PurePosixPath(name).parent / target))


def between(here: str, there: str) -> str:
    """The link from one address of the site to another."""
    return relpath(there, str(PurePosixPath(here).parent))


def navigation(texts: dict[str, str]) -> list[Section]:
    """The sections of the index with its links; a page that it does not name stands below the one that links to it."""
    seen = {INDEX}
    sections: list[Section] = []
    for title, body in _split(texts[INDEX]):
        entries = []
        for label, path in _links(INDEX, body, texts):
            if path not in seen:
                seen.add(path)
                entries.append(Entry(label, path))
        if entries:
            sections.append(Section(title, entries))
    for section in sections:
        for entry in section.entries:
            for _, path in _links(entry.path, texts[entry.path], texts):
                if path not in seen and path.startswith("docs/"):
                    seen.add(path)
                    entry.below.append(Entry(title_of(texts[path]), path))
    return sections


def in_order(sections: list[Section]) -> list[Entry]:
    return [entry for section in sections for first in section.entries for entry in (first, *first.below)]


def title_of(text: str) -> str:
    found = re.search(r"^# +(.+)$", text, re.M)
    return found[1].replace("`", "") if found else ""


def _split(text: str) -> Iterator[tuple[str, str]]:
    first, *parts = re.split(r"^## +(.*)$", text, flags=re.M)
    yield "Start", first
    yield from zip(parts[::2], parts[1::2], strict=True)


def _links(name: str, text: str, pages: dict[str, str]) -> Iterator[tuple[str, str]]:
    for label, target in _LINK.findall(text):
        path = resolve(name, target.partition("#")[0])
        if path in pages:
            yield label.replace("`", ""), path
