"""Retries of calls."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from traceplane.runtime.retrying import backoff, pauses, retrying


class Flaky:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_a_pause_doubles_up_to_a_limit_and_jitter_takes_at_most_half_of_it() -> None:
    for failures, ceiling in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (1000, 5.0)):
        drawn = [backoff(failures, 1.0, 5.0) for _ in range(200)]
        assert ceiling / 2 <= min(drawn) < max(drawn) <= ceiling


def test_pauses_end_with_the_attempts_or_with_the_time() -> None:
    assert len(list(pauses(0.1, 1.0, attempts=5))) == 4
    assert list(pauses(0.1, 1.0, seconds=-1.0)) == []


async def test_a_call_is_retried_after_the_given_errors() -> None:
    call = Flaky(OSError("one"), OSError("two"))
    seen: list[tuple[str, int]] = []
    result = await retrying(
        call,
        on=OSError,
        pauses=pauses(0.0, 0.0),
        failed=lambda error, failures, pause: seen.append((str(error), failures)),
    )
    assert (result, call.calls, seen) == ("done", 3, [("one", 1), ("two", 2)])


async def test_another_error_is_raised_at_once() -> None:
    call = Flaky(KeyError("one"))
    with pytest.raises(KeyError):
        await retrying(call, on=OSError, pauses=pauses(0.0, 0.0))
    assert call.calls == 1


async def test_the_last_error_is_raised_when_no_attempt_is_left() -> None:
    call = Flaky(*(OSError(str(n)) for n in range(9)))
    with pytest.raises(OSError, match="2"):
        await retrying(call, on=OSError, pauses=pauses(0.0, 0.0, attempts=3))
    assert call.calls == 3


async def test_stopping_does_not_wait_for_the_next_attempt() -> None:
    stop, call = asyncio.Event(), Flaky(OSError("one"), OSError("two"))
    stop.set()
    with pytest.raises(OSError, match="one"):
        await retrying(call, on=OSError, pauses=pauses(3600.0, 3600.0), stop=stop)


def test_the_client_does_not_import_the_event_loop() -> None:
    program = "import sys, traceplane.client; print('asyncio' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
