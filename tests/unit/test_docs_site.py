"""The docs site as it is built: links that lead somewhere, nothing that the gateway's policy would refuse."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from posixpath import normpath
from urllib.parse import unquote

import pytest

from bench.results import compare, save
from docs_site import comparisons
from docs_site.build import BUILT, build
from docs_site.draw import DIAGRAMS, drawn
from docs_site.screens import SCREENS, SHOWN
from docs_site.site import ROOT, markdown_files
from tests.raised_codes import codes
from traceplane.gateway.pages import Pages


@dataclass
class Document(HTMLParser):
    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    titles: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "h1":
            self.titles += 1
        if tag in ("a", "link", "img", "script"):
            self.links.append(str(given.get("href") or given.get("src") or ""))
        if tag == "style" or (tag == "script" and "src" not in given):
            self.forbidden.append(f"<{tag}>")
        if tag != "a" and re.match(r"[a-z]+:", str(given.get("href") or given.get("src") or "")):
            self.forbidden.append(f"<{tag}> of another host")
        self.forbidden += [name for name in given if name == "style" or name.startswith("on")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    if BUILT.is_dir():
        shutil.copytree(BUILT, folder)  # coloured files of the repository are taken over
    build(folder)
    return folder


@pytest.fixture(scope="module")
def documents(site: Path) -> dict[str, Document]:
    parsed = {}
    for path in site.rglob("*.html"):
        document = parsed[path.relative_to(site).as_posix()] = Document()
        document.feed(path.read_text())
    return parsed


def test_every_markdown_file_is_a_page_with_one_title(documents: dict[str, Document]) -> None:
    addresses = markdown_files().values()
    assert len(set(addresses)) == len(addresses)
    assert {name: documents[name].titles for name in addresses} == dict.fromkeys(addresses, 1)


def test_every_link_and_anchor_leads_somewhere(site: Path, documents: dict[str, Document]) -> None:
    dead = []
    for name, document in documents.items():
        assert len(set(document.ids)) == len(document.ids), name
        for link in document.links:
            if re.match(r"[a-z]+:", link) or link == "/":
                continue
            file, _, anchor = link.partition("#")
            target = normpath(str(Path(name).parent / file)) if file else name
            if not (site / target).is_file() or (anchor and unquote(anchor) not in documents[target].ids):
                dead.append(f"{name}: {link}")
    assert dead == []


def test_no_page_has_what_the_policy_forbids(documents: dict[str, Document]) -> None:
    assert {name: document.forbidden for name, document in documents.items() if document.forbidden} == {}


def test_reading_on_and_on_passes_every_page_of_the_navigation_once(site: Path) -> None:
    index = (site / "index.html").read_text()
    listed = re.findall(r'<li><a href="([^"]+)"', index.partition("<main")[0])
    assert len(listed) == len(set(listed))
    here, passed = "index.html", []
    while found := re.search(r'<a rel="next" class="next" href="([^"]+)"', (site / here).read_text()):
        here = normpath(str(Path(here).parent / found[1]))
        assert here not in passed
        passed.append(here)
    assert set(listed) <= set(passed)
    docs = {address for name, address in markdown_files().items() if name.startswith("docs/")}
    assert docs - {"index.html"} <= set(passed)


def test_each_test_of_a_guarantee_is_a_link_to_its_line(site: Path) -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/guarantees.md").read_text()))
    page = (site / "guarantees.html").read_text()
    linked = re.findall(r'href="source/([^"#]+)\.html#L(\d+)" title="[^"]+::(\w+)"', page)
    assert {(path, name) for path, _, name in linked} == named
    for path, line, name in linked:
        assert f"def {name}(" in (ROOT / path).read_text().splitlines()[int(line) - 1]


def test_the_search_knows_every_page_and_every_error_code(site: Path) -> None:
    _, _, listed = (site / "search.js").read_text().partition(" = ")
    pages = {address: parts for address, _, _, parts in json.loads(listed)}
    assert set(pages) == set(markdown_files().values()) - {"changelog.html"}
    assert {title for _, title, *_ in pages["reference/errors.html"]} >= set(codes())


@pytest.mark.parametrize("description", sorted(DIAGRAMS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_diagram_is_what_its_description_draws(description: Path) -> None:
    svg = description.with_suffix(".svg").read_text()
    assert svg == drawn(description.read_text()), "run `python -m docs_site.draw`"


def test_every_diagram_is_shown_and_described(site: Path) -> None:
    pages = "".join(path.read_text() for path in site.rglob("*.html"))
    described = re.findall(r'<svg class="drawing" role="img" aria-label="([^"]+)"', pages)
    assert len(described) == len([*DIAGRAMS.glob("*.svg")])
    assert min(map(len, described)) > 60


def test_every_picture_of_the_web_ui_is_shown_and_described(site: Path) -> None:
    shown: dict[Path, str] = {}
    for page in site.rglob("*.html"):
        for source, alternative in re.findall(
            r'<img class="screen" src="([^"]+)" alt="([^"]*)"', page.read_text()
        ):
            shown[(page.parent / source).resolve()] = alternative
    assert {path.read_bytes() for path in shown} == {path.read_bytes() for path in SCREENS.glob("*.png")}
    assert min(map(len, shown.values())) > 60
    assert {path.stem for path in SCREENS.glob("*.png")} == set(SHOWN), "run `python -m docs_site.screens`"


def test_comparisons_are_what_was_measured_and_nothing_else(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    assert "Nothing was measured" in comparisons.tables(results)
    measured = compare(
        suite="control", name="throughput", unit="tasks/s", better="higher", ours=5210.4, peer="celery",
        theirs=670.2, bar=10,
    )  # fmt: skip
    failed = compare(
        suite="control", name="latency", unit="ms", better="lower", ours=9.1, peer="dbos", theirs=None
    )
    save("control", [measured, failed], results)
    shown = comparisons.tables(results)
    assert "| throughput (tasks/s) | celery | 5,210 | 670 | 7.77 × | 10 × | no |" in shown
    assert "latency" not in shown


def test_the_gateway_serves_the_site_under_the_policy_of_its_pages(tmp_path: Path, site: Path) -> None:
    pages = Pages.built(tmp_path, site)
    moved = pages.find(b"/docs", {})
    assert moved is not None
    assert (moved.status, dict(moved.headers)[b"location"]) == (308, b"/docs/")
    for path in (b"/docs/", b"/docs/index.html", b"/docs/reference/errors.html"):
        page = pages.find(path, {b"accept-encoding": b"gzip"})
        assert page is not None
        headers = dict(page.headers)
        assert b"script-src 'self'" in headers[b"content-security-policy"]
        assert (page.content_type, headers[b"content-encoding"]) == ("text/html; charset=utf-8", b"gzip")
    for path in (b"/docs/nothing.html", b"/docs/../pages.py", b"/docs//etc/passwd", b"/docsx"):
        assert pages.find(path, {}) is None
    missing = Pages.built(tmp_path, tmp_path / "none").find(b"/docs/", {})
    assert missing is not None
    assert (missing.status, b"make docs" in missing.body) == (503, True)
