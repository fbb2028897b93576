"""The worker renews the credentials of a task for S3, for those who have its token."""

from __future__ import annotations

import asyncio
import http.client
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from traceplane.adapters.object_store import BucketAccess
from traceplane.worker.renewals import Renewals


async def test_credentials_are_renewed_at_half_time_and_only_while_the_attempt_runs() -> None:
    made: list[BucketAccess] = []
    lasts = timedelta(seconds=3600)

    async def make() -> BucketAccess:
        expires = datetime.now(UTC) + lasts
        made.append(BucketAccess(f"key{len(made)}", "secret", "session", expires, "eu", None))
        return made[-1]

    renewals, stop = Renewals("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(renewals.serve(stop))
    async with renewals.renewing(make, await make()) as renewal:
        asked = [await asyncio.to_thread(ask, renewal.url, renewal.token) for _ in range(2)]
        assert [(status, lines[0]) for status, lines in asked] == [(200, "key0")] * 2
        assert 1700 < int(asked[0][1][3]) <= 1800
        assert (await asyncio.to_thread(ask, renewal.url, "another"))[0] == 401
        assert (await asyncio.to_thread(ask, renewal.url, None))[0] == 401
    lasts = timedelta(seconds=0)
    async with renewals.renewing(make, await make()) as later:
        assert (await asyncio.to_thread(ask, renewal.url, renewal.token))[0] == 401, "the attempt has ended"
        lasts = timedelta(seconds=3600)
        assert (await asyncio.to_thread(ask, later.url, later.token))[1][0] == "key2"
    stop.set()
    await serving


def ask(url: str, token: str | None) -> tuple[int, list[str]]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        connection.request("GET", parts.path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode().split("\n")
    finally:
        connection.close()
