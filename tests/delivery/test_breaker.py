"""A channel is not used faster than it may be, and is left alone while it fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceplane.delivery.breaker import Breaker, Pace
from traceplane.delivery.outcome import Dead, Delivered, Retry

FAILED = Retry("delivery.unavailable", "the answer was 500")
PACE = Pace(per_second=2, burst=3, failures=3, pause_seconds=10, longest_pause_seconds=60)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fail(breaker: Breaker, clock: Clock, times: int) -> None:
    for _ in range(times):
        clock.now += 1
        assert breaker.take() == 0
        breaker.record(FAILED)


def test_messages_are_sent_at_the_pace_of_the_channel(clock: Clock) -> None:
    breaker = Breaker(PACE, clock)
    assert [breaker.take() for _ in range(4)] == [0, 0, 0, 0.5]
    clock.now += 0.5
    assert [breaker.take() for _ in range(2)] == [0, 0.5]
    clock.now += 3600
    assert [breaker.take() for _ in range(4)] == [0, 0, 0, 0.5]


def test_after_failures_one_message_tries_and_the_others_wait(clock: Clock) -> None:
    breaker = Breaker(PACE, clock)
    fail(breaker, clock, 3)
    assert breaker.take() == 10
    clock.now += 10
    assert breaker.take() == 0
    assert breaker.take() == 10
    breaker.record(Delivered())
    assert breaker.take() == 0


def test_pauses_double_up_to_the_longest(clock: Clock) -> None:
    breaker = Breaker(PACE, clock)
    fail(breaker, clock, 3)
    waits = []
    for _ in range(5):
        waits.append(breaker.take())
        clock.now += waits[-1]
        assert breaker.take() == 0
        breaker.record(FAILED)
    assert waits == [10, 20, 40, 60, 60]


def test_failures_of_what_was_under_way_make_a_pause_no_longer(clock: Clock) -> None:
    breaker = Breaker(Pace(burst=50, failures=3, pause_seconds=10), clock)
    for _ in range(50):
        assert breaker.take() == 0
    for _ in range(50):
        breaker.record(FAILED)
    assert breaker.take() == 10


def test_a_refused_message_says_that_the_channel_works(clock: Clock) -> None:
    breaker = Breaker(PACE, clock)
    for _ in range(5):
        fail(breaker, clock, 2)
        breaker.record(Dead("delivery.refused", "the answer was 400"))
    assert breaker.take() == 0


def test_a_message_that_was_never_sent_says_nothing_about_the_channel(clock: Clock) -> None:
    breaker = Breaker(PACE, clock)
    fail(breaker, clock, 3)
    clock.now += 10
    assert breaker.take() == 0
    breaker.record(Dead("delivery.secret_missing", "the channel refers to a secret that does not exist"))
    # So the next one tries.
    assert breaker.take() == 0
    assert breaker.take() == 10
    breaker.record(FAILED)
    assert breaker.take() == 20


def test_a_try_that_is_never_recorded_does_not_block_the_channel(clock: Clock) -> None:
    breaker = Breaker(PACE, clock)
    fail(breaker, clock, 3)
    clock.now += 10
    assert breaker.take() == 0
    clock.now += 10
    assert breaker.take() == 0


def test_a_receiver_that_asks_for_time_gets_it_from_all_messages(clock: Clock) -> None:
    breaker = Breaker(PACE, clock)
    assert breaker.take() == 0
    breaker.record(Retry("delivery.unavailable", "the answer was 429", 30))
    breaker.record(Retry("delivery.unavailable", "the answer was 429", 5))
    assert breaker.take() == 30
    breaker.record(Delivered())
    assert breaker.take() == 30
    clock.now += 30
    assert breaker.take() == 0


def test_what_was_put_back_can_be_taken_again(clock: Clock) -> None:
    breaker = Breaker(Pace(burst=1, failures=3, pause_seconds=10), clock)
    assert breaker.take() == 0
    assert breaker.take() > 0
    breaker.put_back()
    assert breaker.take() == 0
    fail(breaker, clock, 3)
    assert breaker.is_paused
    clock.now += 10
    assert breaker.take() == 0
    assert not breaker.is_paused  # this one tries
    breaker.put_back()
    assert breaker.take() == 0  # so does the next
    breaker.record(Delivered())
    assert not breaker.is_paused
    breaker.record(Retry("x", "y", 5))
    assert breaker.is_paused
    clock.now += 5
    assert not breaker.is_paused


@given(st.lists(st.tuples(st.floats(0, 100), st.sampled_from([FAILED, Delivered(), None])), max_size=60))
def test_waiting_as_long_as_told_is_always_enough_in_the_end(steps: list[tuple[float, object]]) -> None:
    clock = Clock()
    breaker = Breaker(PACE, clock)
    for seconds, outcome in steps:
        clock.now += seconds
        wait = breaker.take()
        assert 0 <= wait <= PACE.longest_pause_seconds
        if wait == 0 and isinstance(outcome, (Retry, Delivered)):
            breaker.record(outcome)
    for _ in range(3):
        wait = breaker.take()
        if wait == 0:
            return
        clock.now += wait + 1e-6
    pytest.fail("it never lets a message through")


@pytest.mark.parametrize(
    "wrong", [{"per_second": 0}, {"burst": 0}, {"failures": 0}, {"pause_seconds": 0}, {"pause_seconds": 1e9}]
)
def test_a_pace_that_never_sends_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Pace(**wrong)  # type: ignore[arg-type]
