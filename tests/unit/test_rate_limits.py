"""A caller may call so often, and no more because another does not."""

from __future__ import annotations

import time

import pytest

from traceplane.errors import TooManyRequests
from traceplane.gateway.rate_limits import RateLimits


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def passed(limits: RateLimits, calls: int, org: str = "shop", name: str = "rita") -> int:
    for number in range(calls):
        try:
            limits.count(org, name, name)
        except TooManyRequests:
            return number
    return calls


def test_a_burst_passes_and_then_so_many_per_second(clock: Clock) -> None:
    limits = RateLimits(10, 50)
    assert passed(limits, 100) == 50
    clock.now += 1.05
    assert passed(limits, 100) == 10
    clock.now += 1000
    assert passed(limits, 100) == 50


def test_callers_and_organizations_do_not_share(clock: Clock) -> None:
    limits = RateLimits(10, 5)
    assert passed(limits, 10) == 5
    assert passed(limits, 10, name="otto") == 5
    assert passed(limits, 10, org="other") == 5


def test_the_refusal_says_when_a_call_passes_again(clock: Clock) -> None:
    limits = RateLimits(0.5, 1)
    limits.count("shop", "rita", "rita")
    with pytest.raises(TooManyRequests) as refused:
        limits.count("shop", "rita", "rita")
    clock.now += refused.value.retry_after_seconds
    assert passed(limits, 1) == 1


def test_zero_is_no_limit(clock: Clock) -> None:
    assert passed(RateLimits(0, 1), 1000) == 1000


def test_callers_that_are_gone_are_forgotten(clock: Clock) -> None:
    limits = RateLimits(10, 5)
    for number in range(10_000):
        limits.count("shop", f"caller-{number}", "name")
    passed(limits, 5, name="busy")
    clock.now += 0.6
    limits.count("shop", "caller-1", "name")
    limits.count("shop", "new", "name")
    assert len(limits._buckets) < 10
