"""An unknown token may be only seconds old, so the stored tokens are read again before it is rejected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from traceplane.errors import Unauthenticated

Found = TypeVar("Found")

_APART_SECONDS = 0.2
"""The shortest time between two such reads, however many unknown tokens arrive."""


class SecondLook:
    """`refresh` reads the tokens, which services otherwise do every few seconds."""

    def __init__(self, refresh: Callable[[], Awaitable[object]]) -> None:
        self._refresh = refresh
        self._looked_at = 0.0
        self._one_at_a_time = asyncio.Lock()

    def check(self, check: Callable[[], Found]) -> Found | Awaitable[Found]:
        """The result of `check`, without delay unless the token is unknown."""
        try:
            return check()
        except Unauthenticated as refusal:
            if refusal.code != "token.unknown":
                raise
        return self._check_again(check)

    async def _check_again(self, check: Callable[[], Found]) -> Found:
        asked_at = time.monotonic()
        async with self._one_at_a_time:
            if self._looked_at < asked_at:
                await asyncio.sleep(self._looked_at + _APART_SECONDS - asked_at)
                self._looked_at = time.monotonic()
                await self._refresh()
        return check()
