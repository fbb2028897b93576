"""How often one caller may call: a token bucket for each, in each gateway."""

from __future__ import annotations

import time
from dataclasses import dataclass

from traceplane.errors import TooManyRequests

_MOST_BUCKETS = 10_000
"""Beyond so many callers, the buckets that are full again are forgotten."""


@dataclass(slots=True)
class _Bucket:
    calls: float
    """That the caller may still make at once."""
    counted_at: float


class RateLimits:
    """`burst` calls at once, and `per_second` in the long run; none if that is 0."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._per_second, self._burst = per_second, burst
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    def count(self, org: str, caller: str, name: str) -> None:
        """Counts a call of this caller of the organization; refuses it, by the name, if there were too many."""
        if not self._per_second:
            return
        now = time.monotonic()
        bucket = self._buckets.get((org, caller))
        if bucket is None:
            if len(self._buckets) >= _MOST_BUCKETS:
                self._forget_the_full(now)
            bucket = self._buckets[org, caller] = _Bucket(self._burst, now)
        bucket.calls = min(self._burst, bucket.calls + (now - bucket.counted_at) * self._per_second)
        bucket.counted_at = now
        if bucket.calls < 1:
            raise TooManyRequests(
                "access.rate_limited",
                f"this caller may make {self._per_second:g} calls per second, and {self._burst} at once",
                value=name,
                next_step="wait as long as Retry-After says; send more per call, or ask who runs the platform"
                " to raise rate_limit_per_second",
                retry_after_seconds=(1 - bucket.calls) / self._per_second,
            )
        bucket.calls -= 1

    def _forget_the_full(self, now: float) -> None:
        fills_in = self._burst / self._per_second
        self._buckets = {
            caller: bucket for caller, bucket in self._buckets.items() if now - bucket.counted_at < fills_in
        }
