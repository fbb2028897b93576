"""How many connections messages may have at once in one process, and who may have another one.

A receiver that never answers keeps a connection for seconds, and an organization may have many channels to such ones.
The first connection of a channel needs nothing but a free one; a channel that has to wait for it is the next to get
one. For another one, a channel must have fewer than its organization could still take; and an organization could take
as many as would make its own as many as those that are free. So whoever comes finds some left, however many connections
the others would like to have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import TypeVar

from traceplane.http_service.outgoing import most_connections

Key = TypeVar("Key", bound=Hashable)


class Connections:
    def __init__(self, most: int | None = None) -> None:
        self._most = most_connections() if most is None else most
        self._taken = 0
        self._of_orgs: Counter[str] = Counter()
        self._of_channels: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, Callable[[], None]] = {}

    def take(self, org: str, channel: Hashable) -> bool:
        """Whether the channel may have another one, which it gives back."""
        own, free = self._of_channels[channel], self._most - self._taken
        if free <= 0 or (own and own >= free - self._of_orgs[org]):
            return False
        self._taken += 1
        self._of_orgs[org] += 1
        self._of_channels[channel] += 1
        return True

    def give_back(self, org: str, channel: Hashable) -> None:
        self._taken -= 1
        _decrease(self._of_orgs, org)
        _decrease(self._of_channels, channel)
        while self._waiting and self._taken < self._most:
            self._waiting.pop(next(iter(self._waiting)))()

    def wait(self, channel: Hashable, tell: Callable[[], None]) -> None:
        """`tell` is called once there is one for a channel that has none."""
        self._waiting.setdefault(channel, tell)

    def forget(self, channel: Hashable) -> None:
        """It no longer waits."""
        self._waiting.pop(channel, None)


def _decrease(counts: Counter[Key], key: Key) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
