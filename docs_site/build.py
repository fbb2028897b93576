"""Builds the docs site into the package of the gateway, which serves it at `/docs`.

    python -m docs_site.build          where it is missing or older than what it shows
    python -m docs_site.build --again  in any case

The files also work without a gateway: open `index.html`.
"""

from __future__ import annotations

import hashlib
import html
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from docs_site import comparisons, sources
from docs_site.markdown import Rendered, render
from docs_site.site import (
    INDEX,
    ROOT,
    Entry,
    Section,
    between,
    in_order,
    markdown_files,
    navigation,
    picture_address,
    source_address,
)

BUILT = ROOT / "src/traceplane/gateway/docs"
HERE = Path(__file__).parent
ASSETS = ("site.css", "site.js", "theme.js")
STAMP = "built.json"
NOT_SEARCHED = frozenset({"CHANGELOG.md"})
"""It repeats in other words what the other pages say."""


def main() -> None:
    known = _known(BUILT)
    if "--again" not in sys.argv and known is not None and known == _fingerprint(ROOT, known):
        return
    print("building the docs site", flush=True)
    build(BUILT)


def build(folder: Path, root: Path = ROOT) -> None:
    """Into a folder beside, which then takes the place of the old one. Files of the repository that have not changed
    are taken over: to colour them takes most of the time."""
    draft = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    pages = markdown_files(root)
    texts = {name: (root / name).read_text() for name in pages}
    texts[comparisons.PAGE] += comparisons.tables(root / comparisons.RESULTS)
    template = (HERE / "page.html").read_text()
    for name in ASSETS:
        shutil.copy(HERE / name, draft / name)
    shutil.copy(root / "ui/src/icon.svg", draft / "icon.svg")
    rendered = {name: render(name, texts[name], pages[name], pages, root) for name in pages}
    sections = navigation(texts)
    for name, page in rendered.items():
        _write(draft / pages[name], _page(template, name, page, pages, sections))
    shown = sorted({source for page in rendered.values() for source in page.sources})
    pictures = sorted({picture for page in rendered.values() for picture in page.pictures})
    for picture in pictures:
        target = draft / picture_address(picture)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / picture, target)
    now, before = _fingerprint(root, [*pages, *shown, *pictures, *_own()]), _known(folder) or {}
    same_site = all(before.get(name) == now[name] for name in _own())
    for source in shown:
        target, built = draft / source_address(source), folder / source_address(source)
        if same_site and before.get(source) == now[source] and built.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(built, target)
        else:
            _write(target, _source_page(template, source, root))
    _write(draft / "search.js", _search(rendered, pages, sections))
    _write(draft / STAMP, json.dumps(now))
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)


def _page(template: str, name: str, page: Rendered, pages: dict[str, str], sections: list[Section]) -> str:
    here = pages[name]
    order = in_order(sections)
    position = next((index for index, entry in enumerate(order) if entry.path == name), None)
    around = {}
    if position is not None:
        around = {
            label: order[index]
            for label, index in (("previous", position - 1), ("next", position + 1))
            if 0 <= index < len(order)
        }
    elif name == INDEX:
        around = {"next": order[0]}
    neighbours = "".join(
        f'<a rel="{rel}" class="{rel}" href="{between(here, pages[entry.path])}">'
        f"<span>{'Previous' if label == 'previous' else 'Next'}</span>{html.escape(entry.label)}</a>"
        for label, entry in around.items()
        for rel in (("prev",) if label == "previous" else ("next",))
    )
    section = next(
        (s.title for s in sections for e in s.entries for one in (e, *e.below) if one.path == name), ""
    )
    return _filled(
        template,
        here,
        title=page.title,
        kind="home" if name == INDEX else "page",
        section=f'<p class="section">{html.escape(section)}</p>' if section else "",
        navigation=_navigation(name, here, pages, sections),
        contents=_contents(page),
        body=page.body,
        neighbours=neighbours,
    )


def _source_page(template: str, source: str, root: Path) -> str:
    here = source_address(source)
    return _filled(
        template,
        here,
        title=source,
        kind="source",
        section='<p class="section">A file of the repository</p>',
        navigation="",
        contents="",
        body=f"<h1>{html.escape(source)}</h1>"
        f'<pre class="numbered" tabindex="0" role="group" aria-label="Source"><code>'
        f"{sources.numbered(root / source)}</code></pre>",
        neighbours="",
    )


def _filled(template: str, here: str, *, title: str, **parts: str) -> str:
    root = between(here, "index.html").removesuffix("index.html")
    parts["title"] = html.escape("Traceplane" if here == "index.html" else f"{title} · Traceplane")
    text = template.replace("{{root}}", root or "./")
    for name, value in parts.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text


def _navigation(name: str, here: str, pages: dict[str, str], sections: list[Section]) -> str:
    def item(entry: Entry) -> str:
        current = ' aria-current="page"' if entry.path == name else ""
        within = entry.path == name or any(below.path == name for below in entry.below)
        inner = f"<ul>{''.join(map(item, entry.below))}</ul>" if entry.below and within else ""
        href = between(here, pages[entry.path])
        return f'<li><a href="{href}"{current}>{html.escape(entry.label)}</a>{inner}</li>'

    return "".join(
        f"<h2>{html.escape(section.title)}</h2><ul>{''.join(map(item, section.entries))}</ul>"
        for section in sections
    )


def _contents(page: Rendered) -> str:
    headings = [heading for heading in page.headings if heading.level in (2, 3)]
    if len(headings) < 2:
        return ""
    items = "".join(
        f'<li class="level{heading.level}"><a href="#{heading.anchor}">{html.escape(heading.text)}</a></li>'
        for heading in headings
    )
    return f'<h2 id="on-this-page">On this page</h2><ul>{items}</ul>'


def _search(rendered: dict[str, Rendered], pages: dict[str, str], sections: list[Section]) -> str:
    """A script and no JSON: a page that was opened as a file may not fetch, but may load scripts."""
    where = {entry.path: s.title for s in sections for e in s.entries for entry in (e, *e.below)}
    listed = [
        [pages[name], page.title, where.get(name, ""), [
            [
                found.anchor.removeprefix("row:"),
                found.title,
                " ".join(" ".join(found.text).split()),
                *([1] if found.anchor.startswith("row:") else []),
            ]
            for found in page.found
        ]]
        for name, page in rendered.items()
        if name not in NOT_SEARCHED
    ]  # fmt: skip
    return f"window.searchedPages = {json.dumps(listed, ensure_ascii=False, separators=(',', ':'))}\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _own() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in sorted(HERE.iterdir()) if path.is_file()]


def _known(folder: Path) -> dict[str, str] | None:
    stamp = folder / STAMP
    return json.loads(stamp.read_text()) if stamp.is_file() else None


def _fingerprint(root: Path, names: Iterable[str]) -> dict[str, str]:
    """What the site shows, by content: a checkout gives every file a new time."""
    return {
        name: hashlib.sha256((root / name).read_bytes()).hexdigest()[:16]
        for name in sorted({*names, *markdown_files(root), comparisons.RESULTS})
        if (root / name).is_file()
    }


if __name__ == "__main__":
    main()
