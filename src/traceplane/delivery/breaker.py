"""How fast a channel is used, and when it is left alone for a while.

A bucket of tokens limits the pace. After several failures in a row, nothing is sent for a while; then one message tries
whether the channel works again. If it does, all others follow; if not, the next pause is twice as long. A receiver that
asks for time with `Retry-After` gets it from all messages, not only from the one it answered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from traceplane.delivery.outcome import Dead, Delivered, Outcome, Retry

Clock = Callable[[], float]
"""Seconds that only increase."""


@dataclass(frozen=True, slots=True)
class Pace:
    per_second: float = 1.0
    """In the long run; Slack and others allow about one."""
    burst: int = 5
    failures: int = 5
    """In a row, before the first pause."""
    pause_seconds: float = 30.0
    longest_pause_seconds: float = 1800.0

    def __post_init__(self) -> None:
        if self.per_second <= 0 or self.burst < 1 or self.failures < 1:
            raise ValueError("a channel must be allowed to send")
        if not 0 < self.pause_seconds <= self.longest_pause_seconds:
            raise ValueError("the first pause must not be longer than the longest one")


class Breaker:
    """Of one channel, in one process."""

    def __init__(self, pace: Pace, clock: Clock) -> None:
        self._pace, self._clock = pace, clock
        self._tokens, self._counted_at = float(pace.burst), clock()
        self._failures = 0
        self._pauses = 0
        """In a row; 0 as long as the channel works."""
        self._paused_until = 0.0
        self._is_trying = False
        """One message is out to see whether the channel works again."""
        self._asked_to_wait_until = 0.0

    @property
    def is_paused(self) -> bool:
        """What was taken before should not be sent now."""
        now = self._clock()
        return (self._pauses > 0 and not self._is_trying) or self._asked_to_wait_until > now

    def take(self) -> float:
        """0: send one message now, and `record` what became of it. Otherwise, ask again after so many seconds."""
        now, pace = self._clock(), self._pace
        wait = max(self._paused_until if self._pauses else 0.0, self._asked_to_wait_until) - now
        if wait > 0:
            return wait
        self._tokens = min(pace.burst, self._tokens + (now - self._counted_at) * pace.per_second)
        self._counted_at = now
        if self._tokens < 1:
            return (1 - self._tokens) / pace.per_second
        self._tokens -= 1
        if self._pauses:
            # The others wait for the outcome of this one; but not for ever, in case it is never recorded.
            self._is_trying = True
            self._paused_until = now + pace.pause_seconds
        return 0.0

    def put_back(self) -> None:
        """There was no message to send after all."""
        self._tokens = min(self._pace.burst, self._tokens + 1)
        if self._is_trying:
            self._is_trying, self._paused_until = False, self._clock()

    def record(self, outcome: Outcome) -> None:
        now = self._clock()
        match outcome:
            case Retry():
                self._record_failure(outcome, now)
            case Dead(is_refusal=False):
                if self._is_trying:  # it tried nothing, so the next one does
                    self._is_trying, self._paused_until = False, now
            case Dead() | Delivered():
                # The channel answered, if only to refuse this one message.
                self._failures = self._pauses = 0
                self._is_trying = False
            case _:
                assert_never(outcome)

    def _record_failure(self, outcome: Retry, now: float) -> None:
        if outcome.after_seconds is not None:
            self._asked_to_wait_until = max(self._asked_to_wait_until, now + outcome.after_seconds)
        self._failures += 1
        # Failures of what was sent before a pause say nothing new, and must not make it longer.
        if self._is_trying or (not self._pauses and self._failures >= self._pace.failures):
            pause = self._pace.pause_seconds * 2 ** min(self._pauses, 30)
            self._paused_until = now + min(pause, self._pace.longest_pause_seconds)
            self._pauses += 1
            self._is_trying = False
