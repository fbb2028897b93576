"""A token that nobody knows may be a minute old or a second: the stored ones are read again before it is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from traceplane.auth.opaque import TokenRecord
from traceplane.errors import Unauthenticated

_APART_SECONDS = 0.2
"""However many strangers ask, the tokens are not read more often for them."""


class SecondLook:
    """`refresh` reads the tokens that services otherwise read every few seconds."""

    def __init__(self, refresh: Callable[[], Awaitable[object]]) -> None:
        self._refresh = refresh
        self._looked_at = 0.0
        self._one_at_a_time = asyncio.Lock()

    def check(self, check: Callable[[], TokenRecord]) -> TokenRecord | Awaitable[TokenRecord]:
        """What `check` finds; at once, unless the token is unknown."""
        try:
            return check()
        except Unauthenticated as refusal:
            if refusal.code != "token.unknown":
                raise
        return self._check_again(check)

    async def _check_again(self, check: Callable[[], TokenRecord]) -> TokenRecord:
        asked_at = time.monotonic()
        async with self._one_at_a_time:
            if self._looked_at < asked_at:
                await asyncio.sleep(self._looked_at + _APART_SECONDS - asked_at)
                self._looked_at = time.monotonic()
                await self._refresh()
        return check()
