"""The web UI as files: one page for all its addresses, and assets whose names change with their content.

The page itself is public and holds nothing of anybody: its scripts ask the API, with the session of the browser.
Everything is read once and kept in memory, compressed too.
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


class Pages:
    def __init__(self, page: _File | None, assets: Mapping[bytes, _File]) -> None:
        self._page, self._assets = page, assets

    @classmethod
    def built(cls, folder: Path = BUILT) -> Pages:
        """What is there; without a page, `/` says so."""
        if not are_built(folder):
            return cls(None, {})
        files = {
            _ASSETS + path.name.encode(): _file(path, _FOR_GOOD)
            for path in sorted((folder / "assets").iterdir())
            if path.is_file()
        }
        return cls(_file(folder / "index.html", _REVALIDATED), files)

    def find(self, path: bytes, headers: Mapping[bytes, bytes]) -> Reply | None:
        """The answer to a GET of this path, if it is one of the UI's."""
        if path.startswith(_ASSETS):
            asset = self._assets.get(path)
            return None if asset is None else asset.reply(headers)
        if path != b"/" and path[1:].partition(b"/")[0] not in ADDRESSES:
            return None
        if self._page is None:
            return Reply(
                _MISSING.encode(), "text/html; charset=utf-8", 503, ((b"cache-control", b"no-store"),)
            )
        return self._page.reply(headers)


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
