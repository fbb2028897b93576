"""Loops survive errors, groups live and die together, a process stops gracefully or dies loudly."""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import pytest

from traceplane import telemetry
from traceplane.errors import DatabaseUnavailable
from traceplane.runtime import process as runtime
from traceplane.runtime.process import Activity, Outcome, run_loop, task_group


@dataclass(frozen=True, slots=True)
class Swept(Outcome):
    removed: int = 0
    kept: int = 0
    more: bool = False


@pytest.fixture(autouse=True)
def configured() -> None:
    telemetry.configure("test")


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def script(stop: asyncio.Event, *passes: Swept | Exception) -> Callable[[], Awaitable[Outcome]]:
    """A `run_once` that gives these in turn, and asks to stop with the last."""
    left = list(passes)

    async def run_once() -> Outcome:
        now = left.pop(0)
        if not left:
            stop.set()
        if isinstance(now, Exception):
            raise now
        return now

    return run_once


async def within(seconds: float, awaitable: Awaitable[None]) -> None:
    await asyncio.wait_for(awaitable, seconds)


async def test_a_loop_ticks_until_it_is_stopped() -> None:
    stop = asyncio.Event()
    await within(5, run_loop("sweep", script(stop, *[Swept()] * 5), interval=0.001, stop=stop))


async def test_a_loop_stops_at_once_however_long_its_interval() -> None:
    stop, passed = asyncio.Event(), asyncio.Event()

    async def run_once() -> Outcome:
        passed.set()
        return Swept()

    loop = asyncio.create_task(run_loop("sweep", run_once, interval=3600, stop=stop))
    await passed.wait()
    stop.set()
    await within(5, loop)


async def test_a_kick_starts_a_pass_at_once_even_one_that_came_during_a_pass() -> None:
    stop, kick = asyncio.Event(), asyncio.Event()
    passes = 0

    async def run_once() -> Outcome:
        nonlocal passes
        passes += 1
        if passes < 4:
            kick.set()
        else:
            stop.set()
        await asyncio.sleep(0)
        return Swept()

    await within(5, run_loop("sweep", run_once, interval=3600, kick=kick, stop=stop))
    assert passes == 4


async def test_idle_loops_run_less_often_and_any_activity_wakes_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "_QUIET_INTERVAL", 3600.0)
    stop, activity = asyncio.Event(), Activity(quiet_after=0.01)
    passes = {"idle": 0, "busy": 0}

    def counted(name: str, *done: int) -> Callable[[], Awaitable[Outcome]]:
        async def run_once() -> Outcome:
            passes[name] += 1
            return Swept(done[passes[name] - 1] if passes[name] <= len(done) else 0)

        return run_once

    async def until_quiet(more_than: int) -> int:
        """Both have had a pass more, and wait for a long time."""
        before = -1
        while passes["idle"] <= more_than or passes["idle"] != before:
            before = passes["idle"]
            await asyncio.sleep(0.1)
        return before

    async with asyncio.TaskGroup() as group:
        for name, run_once in (("idle", counted("idle")), ("busy", counted("busy", 0, 1))):
            group.create_task(run_loop(name, run_once, interval=0.001, activity=activity, stop=stop))
        seen = await until_quiet(0)
        activity.seen()
        assert await until_quiet(seen) > seen
        stop.set()


async def test_a_pass_that_leaves_work_is_followed_at_once() -> None:
    stop = asyncio.Event()
    run_once = script(stop, Swept(1, more=True), Swept(1, more=True), Swept(1))
    await within(5, run_loop("sweep", run_once, interval=3600, stop=stop))


async def test_passes_that_did_something_are_logged_and_empty_ones_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stop = asyncio.Event()
    run_once = script(stop, Swept(), Swept(2, 1), Swept(3), Swept(), Swept(4))
    await within(5, run_loop("sweep", run_once, interval=0.001, stop=stop))
    first, rest = events(capsys)
    assert (first["event"], first["removed"], first["kept"], first["passes"]) == ("sweep.pass", 2, 1, 1)
    assert "more" not in first
    # Within the same second the sums are held back; none is lost at the end.
    assert (rest["event"], rest["removed"], rest["kept"], rest["passes"]) == ("sweep.pass", 7, 0, 2)


async def test_a_loop_survives_its_errors_and_reports_them(capsys: pytest.CaptureFixture[str]) -> None:
    stop = asyncio.Event()
    down = DatabaseUnavailable("database.unavailable", "the database does not answer")
    run_once = script(stop, down, ValueError("odd"), Swept(1))
    await within(5, run_loop("sweep", run_once, interval=0.001, stop=stop))
    known, unknown, done = events(capsys)
    assert (known["event"], known["level"], known["code"]) == ("sweep.error", "error", "database.unavailable")
    assert "traceback" not in known
    assert (unknown["code"], unknown["type"], unknown["failures"]) == ("internal.unexpected", "ValueError", 2)
    assert "odd" in unknown["traceback"]
    assert done["event"] == "sweep.pass"
    assert 'traceplane_loop_errors_total{loop="sweep"} 2.0' in telemetry.render_metrics().decode()


async def test_a_failing_loop_backs_off_and_a_kick_does_not_hurry_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "LONGEST_BACKOFF", 0.4)
    stop, kick = asyncio.Event(), asyncio.Event()
    tries: list[float] = []

    async def run_once() -> Outcome:
        tries.append(time.monotonic())
        kick.set()
        if len(tries) == 6:
            stop.set()
        raise ValueError

    await run_loop("sweep", run_once, interval=0, kick=kick, stop=stop)
    pauses = [event["retry_in"] for event in events(capsys) if "retry_in" in event]
    assert 0.025 <= pauses[0] <= 0.05
    assert 0.05 <= pauses[1] <= 0.1
    assert max(pauses) <= 0.4
    waited = [after - before for before, after in itertools.pairwise(tries)]
    assert all(seconds >= pause * 0.9 for seconds, pause in zip(waited, pauses, strict=False)), (
        waited,
        pauses,
    )


async def test_cancelling_a_loop_is_not_swallowed() -> None:
    async def run_once() -> Outcome:
        await asyncio.Event().wait()
        return Swept()

    loop = asyncio.create_task(run_loop("sweep", run_once, interval=1, stop=asyncio.Event()))
    await asyncio.sleep(0.01)
    loop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loop


# --- task_group -------------------------------------------------------------------------------------


async def test_a_group_ends_when_all_its_tasks_have_ended() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        await asyncio.sleep(0.01)
        ended.append(name)

    stop = asyncio.Event()
    await task_group(stop, first=work("first"), second=work("second"))
    assert sorted(ended) == ["first", "second"]
    assert not stop.is_set()


async def test_the_first_failure_stops_the_other_tasks_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    stop = asyncio.Event()
    ended: list[str] = []

    async def graceful() -> None:
        await stop.wait()
        await asyncio.sleep(0.01)
        ended.append("graceful")

    async def stuck() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("stuck")

    async def fails() -> None:
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        await task_group(stop, grace=0.2, graceful=graceful(), stuck=stuck(), fails=fails())
    assert ended == ["graceful", "stuck"]
    (died,) = events(capsys)
    assert (died["event"], died["task"], died["type"]) == ("process.task_died", "fails", "ValueError")


async def test_cancelling_a_group_cancels_its_tasks() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    group = asyncio.create_task(task_group(asyncio.Event(), work=work()))
    await asyncio.sleep(0.01)
    group.cancel()
    with pytest.raises(asyncio.CancelledError):
        await group
    assert ended == ["work"]


# --- run_process ------------------------------------------------------------------------------------


class Process:
    """A Python process that runs `main` as written in the test."""

    def __init__(self, main: str, options: str = "") -> None:
        code = "import asyncio\nfrom traceplane import telemetry\n"
        code += "from traceplane.runtime import process as runtime\ntelemetry.configure('p')\n"
        code += dedent(main) + f"\nruntime.run_process(main{options})\n"
        self.child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)

    def await_event(self, name: str) -> dict[str, Any]:
        assert self.child.stderr is not None
        for line in self.child.stderr:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == name:
                return event
        raise AssertionError(f"{name} was not logged")

    def signal(self, number: int) -> None:
        self.child.send_signal(number)

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        _, rest = self.child.communicate(timeout=20)
        return self.child.returncode, [json.loads(line) for line in rest.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_process_gracefully(number: signal.Signals) -> None:
    process = Process("""
        async def main(stop):
            await stop.wait()
            await asyncio.sleep(0.05)
            telemetry.emit("main.finished", loop=type(asyncio.get_running_loop()).__module__)
    """)
    process.await_event("process.started")
    process.signal(number)
    code, logged = process.end()
    assert code == 0
    assert [event["event"] for event in logged] == ["process.stopping", "main.finished", "process.stopped"]
    assert logged[1]["loop"] == "uvloop"


def test_a_process_may_open_as_many_files_as_the_system_lets_it() -> None:
    process = Process("""
        import resource
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
        async def main(stop):
            telemetry.emit("main.limits", most=most, now=resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    """)
    limits = process.await_event("main.limits")
    allowed = limits["most"] if limits["most"] != resource.RLIM_INFINITY else 1 << 16
    assert limits["now"] == min(allowed, 1 << 16)
    process.end()


def test_a_second_signal_exits_at_once() -> None:
    process = Process("""
        async def main(stop):
            await asyncio.Event().wait()
    """)
    process.await_event("process.started")
    process.signal(signal.SIGTERM)
    process.await_event("process.stopping")
    process.signal(signal.SIGTERM)
    code, logged = process.end()
    assert code == 128 + signal.SIGTERM
    assert logged[-1]["event"] == "process.killed"


def test_a_second_signal_hurries_a_process_that_can_and_a_third_does_not_end_it_early() -> None:
    process = Process(
        """
        hurry = asyncio.Event()

        async def main(stop):
            await hurry.wait()
            telemetry.emit("main.hurried")
            await asyncio.sleep(0.5)
            telemetry.emit("main.finished")
        """,
        ", hurry=hurry",
    )
    process.await_event("process.started")
    for number in (signal.SIGINT, signal.SIGTERM):
        process.signal(number)
    process.await_event("main.hurried")
    process.signal(signal.SIGINT)
    code, logged = process.end()
    assert code == 0
    assert [event["event"] for event in logged][-2:] == ["main.finished", "process.stopped"]


def test_a_main_that_returns_ends_the_process_with_success() -> None:
    assert Process("async def main(stop): pass").end()[0] == 0


def test_a_background_task_that_dies_ends_the_process_loudly() -> None:
    process = Process("""
        async def dies():
            await asyncio.sleep(0.05)
            raise ValueError("odd")

        async def main(stop):
            await runtime.task_group(stop, waits=stop.wait(), dies=dies())
    """)
    code, logged = process.end()
    assert code == 1
    assert [event["event"] for event in logged] == ["process.started", "process.task_died", "process.failed"]
    assert logged[1]["task"] == "dies"
    assert "odd" in logged[2]["traceback"]


def test_an_unawaited_task_cannot_die_silently() -> None:
    process = Process("""
        async def dies():
            raise ValueError("odd")

        async def main(stop):
            asyncio.create_task(dies())
            await stop.wait()
    """)
    code, logged = process.end()
    assert code == 1
    assert logged[1]["event"] == "process.stray_error"
    assert logged[1]["type"] == "ValueError"


def test_a_process_that_does_not_stop_is_killed() -> None:
    process = Process(
        """
        async def main(stop):
            await asyncio.Event().wait()
        """,
        ", grace=0.2",
    )
    process.await_event("process.started")
    process.signal(signal.SIGTERM)
    code, logged = process.end()
    assert code == 1
    assert "did not stop within 0.2 seconds" in logged[-1]["message"]


def test_buffered_spans_are_sent_before_the_process_ends() -> None:
    process = Process("""
        import http.server, threading

        class Collector(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                telemetry.emit("collector.received", path=self.path)
                self.send_response(200)
                self.end_headers()
            def log_message(self, *args): pass

        server = http.server.HTTPServer(("127.0.0.1", 0), Collector)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        telemetry.configure("p", otlp_endpoint=f"http://127.0.0.1:{server.server_port}")

        async def main(stop):
            with telemetry.span("work"): pass
    """)
    code, logged = process.end()
    assert code == 0
    assert "/v1/traces" in [event.get("path") for event in logged]


def test_processes_that_tests_start_can_be_interrupted() -> None:
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_the_suite_may_run_in_the_background_of_a_shell() -> None:
    """Where SIGINT is ignored, as it would be in all that tests start."""
    chosen = f"{__file__}::{test_processes_that_tests_start_can_be_interrupted.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", chosen]
    run = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout
