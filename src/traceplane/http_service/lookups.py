"""The addresses of hosts that users name.

A lookup cannot be stopped: if the name server of a host never answers, it keeps its thread for as long as the system's
resolver tries. So lookups have threads of their own, and whoever asks has a share of them: those who name slow hosts
wait for each other, and nobody else waits for them. A host that is being looked up is not looked up again meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from traceplane.linux.connect_supervisor import Address

MOST_LOOKUPS, MOST_OF_ONE = 256, 8
"""At a time: in all, and for one who asks."""
_PATIENCE_SECONDS = 1.0
"""A lookup that is answered takes less, so several of them at once need not fail."""


class TooManyLookups(Exception):
    """Those that are under way are not answered."""


class Lookups:
    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[Sequence[Address]]] = {}
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Each is kept by those who use it."""

    async def addresses(self, host: str, *, asker: str) -> Sequence[Address]:
        """Raises OSError, TooManyLookups. `asker`: whose share is used."""
        host = host.lower()
        if host not in self._running:
            share = self._shares.setdefault(asker, asyncio.Semaphore(MOST_OF_ONE))
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await share.acquire()
            except TimeoutError:
                raise TooManyLookups from None
            if host in self._running:
                share.release()
            elif len(self._running) >= MOST_LOOKUPS:
                share.release()
                raise TooManyLookups
            else:
                self._begin(host, share.release)
        return await asyncio.shield(self._running[host])  # others may wait for it too

    def _begin(self, host: str, ended: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        lookup: asyncio.Future[Sequence[Address]] = loop.create_future()
        lookup.add_done_callback(lambda done: done.exception())  # everybody may have left

        def end(addresses: Sequence[Address], error: Exception | None) -> None:
            del self._running[host]
            ended()
            if error is None:
                lookup.set_result(addresses)
            else:
                lookup.set_exception(error)

        def look_up() -> None:
            addresses: Sequence[Address] = ()
            error: Exception | None = None
            try:
                addresses = _looked_up(host)
            except Exception as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end, addresses, error)

        # A daemon: the end of the process does not wait for it.
        thread = threading.Thread(target=look_up, name="lookup", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more threads
            ended()
            raise TooManyLookups from None
        self._running[host] = lookup


def _looked_up(host: str) -> Sequence[Address]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ipaddress.ip_address(str(end[0]).partition("%")[0]) for *_, end in found))
