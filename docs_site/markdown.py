"""One page from Markdown to HTML that a strict content security policy accepts: no script, no style, nothing of others.

What is more than Markdown: headings, and table rows named by code, can be linked to; names of tests link to their
lines; code is coloured; drawings become part of the page, so that they follow its theme.
"""

from __future__ import annotations

import html
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from docs_site import sources
from docs_site.site import between, picture_address, resolve, source_address

_TEST = re.compile(r"^(tests/[\w/]+\.py)(?:::(\w+))?$")
_NAME = re.compile(r"^[\w.:/{}<>= -]{2,80}$")


@dataclass(frozen=True)
class Heading:
    level: int
    anchor: str
    text: str


@dataclass
class Found:
    """What the search finds: a part of a page, down to one row of a table."""

    anchor: str
    title: str
    text: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rendered:
    title: str
    body: str
    headings: list[Heading]
    found: list[Found]
    sources: set[str]
    """Files of the repository that the page links to."""
    pictures: set[str]
    """Those that it shows."""


def render(name: str, text: str, here: str, pages: dict[str, str], root: Path) -> Rendered:
    return _Renderer(name, here, pages, root).render(text)


def anchor_of(title: str) -> str:
    """As GitHub makes it, so that links work in both places."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


class _Renderer:
    def __init__(self, name: str, here: str, pages: dict[str, str], root: Path) -> None:
        self._name, self._here, self._pages, self._root = name, here, pages, root
        self._anchors = {"content", "navigation", "results"}  # the template's own
        self._sources: set[str] = set()
        self._pictures: set[str] = set()
        self._headings: list[Heading] = []
        self._found: list[Found] = [Found("", "")]
        self._markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])

    def render(self, text: str) -> Rendered:
        tokens = self._markdown.parse(text)
        self._name_headings(tokens)
        self._name_rows(tokens)
        for token in tokens:
            self._without_styles(token)
            self._to_the_site(token.children or ())
        rules: dict[str, Callable[..., str]] = {
            "fence": self._fence,
            "code_inline": self._code,
            "table_open": lambda *_: (
                '<div class="table" tabindex="0" role="group" aria-label="Table"><table>'
            ),
            "table_close": lambda *_: "</table></div>",
            "image": self._image,
            "heading_close": self._heading_close,
        }
        for rule, function in rules.items():
            self._markdown.renderer.rules[rule] = function  # type: ignore[attr-defined]
        body = self._markdown.renderer.render(tokens, self._markdown.options, {})
        title = next((h.text for h in self._headings if h.level == 1), self._name)
        self._found[0].title = title
        return Rendered(title, body, self._headings, self._found, self._sources, self._pictures)

    def _unused(self, anchor: str) -> str:
        number, free = 0, anchor
        while free in self._anchors:
            number += 1
            free = f"{anchor}-{number}"
        self._anchors.add(free)
        return free

    def _name_headings(self, tokens: Sequence[Token]) -> None:
        for token, inline in pairwise(tokens):
            if token.type == "heading_open":
                title = _plain(inline)
                anchor = self._unused(anchor_of(title))
                token.attrSet("id", anchor)
                self._headings.append(Heading(int(token.tag[1]), anchor, title))

    def _name_rows(self, tokens: Sequence[Token]) -> None:
        """What the search knows, in the order of the page; a row that a name in code begins is found by itself."""
        row: Token | None = None
        cells: list[Token] = []
        for index, token in enumerate(tokens):
            if token.type == "heading_open":
                anchor = str(token.attrGet("id"))
                if token.tag == "h1":
                    self._found[0].anchor = ""
                else:
                    self._found.append(Found(anchor, _plain(tokens[index + 1])))
            elif token.type == "tr_open":
                row, cells = token, []
            elif token.type == "inline" and row is not None:
                cells.append(token)
            elif token.type == "tr_close" and row is not None:
                self._name_row(row, cells)
                row = None
            elif token.type == "inline" and tokens[index - 1].type != "heading_open":
                self._section.text.append(_plain(token))
            elif token.type == "fence":
                self._section.text.append(token.content)

    @property
    def _section(self) -> Found:
        return next(found for found in reversed(self._found) if not found.anchor.startswith("row:"))

    def _name_row(self, row: Token, cells: Sequence[Token]) -> None:
        code = [child.content for child in cells[0].children or () if child.type == "code_inline"]
        text = " ".join(_plain(cell) for cell in cells)
        if not code or not _NAME.match(code[0]) or _TEST.match(code[0]):
            self._section.text.append(text)
            return
        anchor = self._unused(re.sub(r"[^\w.-]+", "-", code[0]).strip("-").lower() or "row")
        row.attrSet("id", anchor)
        self._found.append(Found(f"row:{anchor}", code[0], [" ".join(_plain(cell) for cell in cells[1:])]))

    def _without_styles(self, token: Token) -> None:
        style = token.attrs.pop("style", None)
        if style is not None:
            token.attrJoin("class", str(style).replace("text-align:", "to-"))

    def _to_the_site(self, children: Sequence[Token]) -> None:
        for child in children:
            if child.type == "link_open":
                child.attrSet("href", self._target(str(child.attrGet("href"))))

    def _target(self, target: str) -> str:
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return target
        file, _, anchor = target.partition("#")
        path = resolve(self._name, file)
        page = self._pages.get(path)
        link = self._source(path) if page is None else between(self._here, page)
        return f"{link}#{anchor}" if anchor else link

    def _source(self, path: str, line: int | None = None) -> str:
        self._sources.add(path)
        link = between(self._here, source_address(path))
        return link if line is None else f"{link}#L{line}"

    def _code(self, tokens: Sequence[Token], index: int, *_: object) -> str:
        content = tokens[index].content
        shown = f"<code>{html.escape(content)}</code>"
        test = _TEST.match(content)
        if test is None or not (self._root / test[1]).is_file():
            return shown
        line = sources.line_of(self._root / test[1], test[2]) if test[2] else None
        name = html.escape(test[2] or test[1])
        link = self._source(test[1], line)
        return f'<a class="test" href="{link}" title="{html.escape(content)}"><code>{name}</code></a>'

    def _fence(self, tokens: Sequence[Token], index: int, *_: object) -> str:
        token = tokens[index]
        language = token.info.split()[0] if token.info.strip() else "text"
        code = sources.coloured(token.content, language)
        return (
            f'<div class="block"><pre tabindex="0" role="group" aria-label="{_SHOWN.get(language, language)}">'
            f'<code class="language-{html.escape(language)}">{code}</code></pre></div>\n'
        )

    def _image(self, tokens: Sequence[Token], index: int, *_: object) -> str:
        token = tokens[index]
        alternative = html.escape(token.content)
        name = resolve(self._name, str(token.attrGet("src")))
        path = self._root / name
        if path.suffix == ".svg":
            return drawing(path.read_text(), alternative)
        self._pictures.add(name)
        width, height = _size(path)
        return (
            f'<img class="screen" src="{between(self._here, picture_address(name))}" alt="{alternative}"'
            f' width="{width}" height="{height}" loading="lazy">'
        )

    def _heading_close(self, tokens: Sequence[Token], index: int, *_: object) -> str:
        opened, inline = tokens[index - 2], tokens[index - 1]
        anchor, title = opened.attrGet("id"), html.escape(_plain(inline))
        if opened.tag == "h1":
            return "</h1>\n"
        return f'<a class="anchor" href="#{anchor}" aria-label="Link to {title}">#</a></{opened.tag}>\n'


_SHOWN = {"bash": "Shell", "sh": "Shell", "console": "Shell", "python": "Python", "yaml": "YAML", "json": "JSON",
          "toml": "TOML", "sql": "SQL", "ini": "Settings", "text": "Output"}  # fmt: skip


def _size(png: Path) -> tuple[int, int]:
    """As its header says it; the page keeps the room until the picture is there."""
    width, height = struct.unpack(">II", png.read_bytes()[16:24])
    return width, height


def drawing(svg: str, alternative: str) -> str:
    """Without the style that it has where it stands alone: that of the site has the same classes."""
    bare = re.sub(r"<\?xml.*?\?>|<style>.*?</style>|<title>.*?</title>", "", svg, flags=re.S).strip()
    return bare.replace("<svg ", f'<svg class="drawing" role="img" aria-label="{alternative}" ', 1)


def _plain(token: Token) -> str:
    return "".join(
        " " if child.type in ("softbreak", "hardbreak") else child.content
        for child in token.children or ()
        if child.type in ("text", "code_inline", "softbreak", "hardbreak")
    )
