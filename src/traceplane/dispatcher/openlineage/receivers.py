"""Where OpenLineage events go: to an HTTP endpoint, such as that of Marquez or DataHub, or into a file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

from traceplane.errors import PlatformError
from traceplane.settings import Settings

if TYPE_CHECKING:
    import aiohttp

_SECONDS = 5.0
_USUAL_PATH = "/api/v1/lineage"
_REFUSED = (400, 409, 413, 422)
"""What is wrong is the event: it would be refused again. Anything else may pass, or can be corrected."""


class Receiver(Protocol):
    async def send(self, event: bytes) -> int | None:
        """None: the event was taken; otherwise the status with which it was refused for good. PlatformError: it could
        not be sent now."""

    async def close(self) -> None: ...


def receiver_for(settings: Settings) -> Receiver | None:
    if settings.openlineage_url is None:
        return None
    parts = urlsplit(settings.openlineage_url)
    if parts.scheme == "file":
        return FileReceiver(Path(url2pathname(parts.path)))
    url = settings.openlineage_url
    return HttpReceiver(
        url if parts.path.strip("/") else url.rstrip("/") + _USUAL_PATH, settings.openlineage_api_key
    )


class HttpReceiver:
    def __init__(self, url: str, api_key: str | None) -> None:
        self._url = url
        self._headers = {"content-type": "application/json", "user-agent": "Traceplane"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None

    async def send(self, event: bytes) -> int | None:
        import aiohttp

        try:
            async with self._opened().post(
                self._url, data=event, headers=self._headers, allow_redirects=False
            ) as answer:
                status = answer.status
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._unavailable(f"it did not answer: {type(error).__name__}") from error
        if 200 <= status < 300:
            return None
        if status in _REFUSED:
            return status
        raise self._unavailable(f"it answered {status}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=_SECONDS), cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session

    def _unavailable(self, why: str) -> PlatformError:
        return PlatformError(
            "openlineage.unavailable",
            f"the receiver of OpenLineage events takes none: {why}",
            value=self._url.partition("?")[0],
            next_step="check openlineage_url, openlineage_api_key and the receiver; no event is lost meanwhile",
        )


class FileReceiver:
    """One event is one line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def send(self, event: bytes) -> int | None:
        await asyncio.to_thread(self._append, event + b"\n")
        return None

    async def close(self) -> None:
        pass

    def _append(self, line: bytes) -> None:
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                if os.write(file, line) < len(line):
                    raise OSError("the disk is full")
            finally:
                os.close(file)
        except OSError as error:
            raise PlatformError(
                "openlineage.unavailable",
                f"OpenLineage events cannot be written: {error.strerror or error}",
                value=str(self._path),
                next_step="make the file of openlineage_url writable; no event is lost meanwhile",
            ) from error
