"""The web UI and the docs as files: one page for all addresses of the UI, and assets whose names change with their
content; the docs with a page for each.

The page itself is public and holds nothing of anybody: its scripts ask the API, with the session of the browser.
What is read is kept in memory, compressed too.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from traceplane.http_service.routes import Reply

BUILT = Path(__file__).with_name("ui")
"""Where `make setup` puts what it builds from the folder `ui` of the repository."""
DOCS = Path(__file__).with_name("docs")
"""Where it puts the docs site, from the folders `docs` and `docs_site`."""
ADDRESSES = frozenset(
    {
        b"graph",
        b"datasets",
        b"tasks",
        b"events",
        b"deploys",
        b"queries",
        b"triggers",
        b"alerts",
        b"dead-letters",
        b"health",
        b"people",
        b"secrets",
        b"channels",
        b"audit",
    }
)
"""The first segments of the addresses that the UI has pages for, besides `/`."""

_ASSETS = b"/assets/"
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    b" form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_PAGE_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"vary", b"accept-encoding"),
)
_REVALIDATED, _FOR_GOOD = b"no-cache", b"public, max-age=31536000, immutable"
_WORTH_COMPRESSING = 1024
_DOCS_ADDRESS = b"/docs/"
_MISSING = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Traceplane</title></head>
<body>
<h1>The web UI is not built</h1>
<p>This gateway serves its API; only the pages are missing. They are in the wheel of a release.
In a clone of the repository, <code>make setup</code> builds them, and needs the npm registry for that once:
run it again where the registry can be reached, then restart the gateway.</p>
<p>The API is described at <a href="/openapi.json">/openapi.json</a>; the command <code>traceplane</code> and the Python
client do all that the pages do.</p>
</body></html>
"""
_NO_DOCS = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Traceplane</title></head>
<body>
<h1>The docs are not built</h1>
<p>They are in the wheel of a release. In a clone of the repository, <code>make docs</code> builds them from the folder
<code>docs</code>, which can be read as it is; then restart the gateway.</p>
</body></html>
"""


def are_built(folder: Path = BUILT) -> bool:
    return (folder / "index.html").is_file()


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    compressed: bytes | None
    content_type: str
    etag: bytes
    kept: bytes

    def reply(self, headers: Mapping[bytes, bytes]) -> Reply:
        own = (*_PAGE_HEADERS, (b"cache-control", self.kept), (b"etag", self.etag))
        if headers.get(b"if-none-match") == self.etag:
            return Reply(b"", self.content_type, 304, own)
        if self.compressed is not None and b"gzip" in headers.get(b"accept-encoding", b""):
            return Reply(self.compressed, self.content_type, 200, (*own, (b"content-encoding", b"gzip")))
        return Reply(self.content, self.content_type, 200, own)


class _Docs:
    """The docs site: hundreds of files, each of which is read when somebody asks for it."""

    def __init__(self, folder: Path) -> None:
        files = [path for path in folder.rglob("*") if path.is_file()]
        self._paths = {path.relative_to(folder).as_posix().encode(): path for path in files}
        self._read: dict[bytes, _File] = {}

    def find(self, name: bytes, headers: Mapping[bytes, bytes]) -> Reply | None:
        if not self._paths:
            return _unavailable(_NO_DOCS)
        name = name or b"index.html"
        path = self._paths.get(name)
        if path is None:
            return None
        if name not in self._read:
            self._read[name] = _file(path, _REVALIDATED)
        return self._read[name].reply(headers)


class Pages:
    def __init__(self, page: _File | None, assets: Mapping[bytes, _File], docs: _Docs) -> None:
        self._page, self._assets, self._docs = page, assets, docs

    @classmethod
    def built(cls, folder: Path = BUILT, docs: Path = DOCS) -> Pages:
        """What is there; without a page, `/` says so."""
        if not are_built(folder):
            return cls(None, {}, _Docs(docs))
        files = {
            _ASSETS + path.name.encode(): _file(path, _FOR_GOOD)
            for path in sorted((folder / "assets").iterdir())
            if path.is_file()
        }
        return cls(_file(folder / "index.html", _REVALIDATED), files, _Docs(docs))

    def find(self, path: bytes, headers: Mapping[bytes, bytes]) -> Reply | None:
        """The answer to a GET of this path, if it is one of the UI's."""
        if path == _DOCS_ADDRESS[:-1]:
            return Reply(b"", "text/plain; charset=utf-8", 308, ((b"location", _DOCS_ADDRESS),))
        if path.startswith(_DOCS_ADDRESS):
            return self._docs.find(path[len(_DOCS_ADDRESS) :], headers)
        if path.startswith(_ASSETS):
            asset = self._assets.get(path)
            return None if asset is None else asset.reply(headers)
        if path != b"/" and path[1:].partition(b"/")[0] not in ADDRESSES:
            return None
        if self._page is None:
            return _unavailable(_MISSING)
        return self._page.reply(headers)


def _unavailable(page: str) -> Reply:
    return Reply(page.encode(), "text/html; charset=utf-8", 503, ((b"cache-control", b"no-store"),))


def _file(path: Path, kept: bytes) -> _File:
    content = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    is_text = kind.startswith("text/") or kind in ("application/javascript", "image/svg+xml")
    return _File(
        content,
        gzip.compress(content, 9, mtime=0) if is_text and len(content) >= _WORTH_COMPRESSING else None,
        f"{kind}; charset=utf-8" if is_text else kind,
        b'"' + hashlib.sha256(content).hexdigest()[:32].encode() + b'"',
        kept,
    )
