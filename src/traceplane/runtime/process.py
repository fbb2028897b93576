"""How a process lives: background loops, tasks that live and die together, a graceful stop.

A process is one coroutine `main(stop)`, run by `run_process`. It starts its loops and servers in a
`task_group`; each of them ends when `stop` is set. SIGTERM or SIGINT sets `stop`; a second one exits at once.
Nothing dies quietly: a task that fails stops its siblings and the process, with an error event and exit
code 1, for a supervisor to start it again; or 2 if it would only fail again, since the caller has to mend
something. A loop's pass may fail (the database restarts, say): it is reported, and tried again after a
growing pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, fields
from typing import Any, NoReturn

import uvloop

from traceplane import telemetry
from traceplane.errors import Conflict, InvalidInput, TraceplaneError, UserError

LONGEST_BACKOFF = 30.0
# A kicked loop makes thousands of passes a second; one line a second tells as much.
LOG_EVERY = 1.0
_QUIET_INTERVAL = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one pass did. A loop subclasses it with int fields, and may add `more: bool`, which says that
    work is left and the next pass should start at once."""

    def counts(self) -> dict[str, int]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if type(value) is int}


class Activity:
    """Whether anything happens in this process's world. Loops that share it look less often while nothing does, and
    at once when something does again; a platform that nobody uses costs next to nothing."""

    def __init__(self, quiet_after: float = 10.0) -> None:
        self._quiet_after = quiet_after
        self._seen_at = time.monotonic()
        self._loops: list[asyncio.Event] = []

    def seen(self) -> None:
        was_quiet, self._seen_at = self.is_quiet, time.monotonic()
        if was_quiet:
            for wake in self._loops:
                wake.set()

    @property
    def is_quiet(self) -> bool:
        return time.monotonic() - self._seen_at > self._quiet_after

    def wakes(self, loop: asyncio.Event) -> None:
        self._loops.append(loop)

    def pause(self, interval: float) -> float:
        return max(interval, _QUIET_INTERVAL) if self.is_quiet else interval


async def run_loop(
    name: str,
    run_once: Callable[[], Awaitable[Outcome]],
    *,
    interval: float,
    kick: asyncio.Event | None = None,
    activity: Activity | None = None,
    stop: asyncio.Event,
) -> None:
    """Call `run_once` every `interval` seconds, less often without `activity`, at once when kicked, until `stop` is
    set.

    A pass under way when `stop` is set is finished. `<name>.pass` is logged when a count is not zero, at
    most once a second with the sums since the last line.
    """
    wake = kick if kick is not None else asyncio.Event()
    if activity is not None:
        activity.wakes(wake)
    report = _PassReport(name)
    failures = 0

    async def wake_to_stop() -> None:
        await stop.wait()
        wake.set()

    waker = asyncio.create_task(wake_to_stop())
    try:
        while not stop.is_set():
            wake.clear()
            started = time.perf_counter()
            try:
                outcome = await run_once()
            except Exception as error:
                failures += 1
                pause = _backoff(failures, interval)
                telemetry.count("loop_errors_total", loop=name)
                telemetry.emit(
                    f"{name}.error", "error", **describe(error), failures=failures, retry_in=round(pause, 3)
                )
                await _wait(stop, pause)
                continue
            failures = 0
            telemetry.observe("loop_seconds", time.perf_counter() - started, loop=name)
            did_something = report.add(outcome)
            if activity is not None and did_something:
                activity.seen()
            if getattr(outcome, "more", False):
                await asyncio.sleep(0)
            else:
                await _wait(wake, interval if activity is None else activity.pause(interval))
    finally:
        waker.cancel()
        report.flush()


class _PassReport:
    """Sums the counts of passes and logs them, at most every `LOG_EVERY` seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sums: dict[str, int] = {}
        self.passes = 0
        self.logged_at = -LOG_EVERY

    def add(self, outcome: Outcome) -> bool:
        """Whether it did anything."""
        counts = outcome.counts()
        did_something = any(counts.values())
        if did_something:
            self.passes += 1
            for key, n in counts.items():
                self.sums[key] = self.sums.get(key, 0) + n
        if time.monotonic() - self.logged_at >= LOG_EVERY:
            self.flush()
        return did_something

    def flush(self) -> None:
        if self.passes:
            telemetry.emit(f"{self.name}.pass", "info", **self.sums, passes=self.passes)
            self.sums, self.passes, self.logged_at = {}, 0, time.monotonic()


def describe(error: BaseException) -> dict[str, object]:
    """An error as log fields; one that nobody foresaw brings its traceback."""
    if isinstance(error, TraceplaneError):
        told: dict[str, object] = {"code": error.code, "type": type(error).__name__, "message": error.message}
        return told if error.next_step is None else {**told, "next_step": error.next_step}
    return {
        "code": "internal.unexpected",
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _backoff(failures: int, interval: float) -> float:
    first = max(0.05, min(interval, 1.0))
    return min(LONGEST_BACKOFF, first * 2.0 ** min(failures - 1, 16)) * random.uniform(0.5, 1.0)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def task_group(
    stop: asyncio.Event, /, *, grace: float = 20.0, **coroutines: Coroutine[Any, Any, object]
) -> None:
    """Run the named coroutines until all have ended.

    The first that fails sets `stop`; the others have `grace` seconds to end, then they are canceled, and
    its error is raised.
    """
    tasks = [asyncio.create_task(coroutine, name=name) for name, coroutine in coroutines.items()]
    reported: list[BaseException] = []

    def report(task: asyncio.Task[object]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            reported.append(error)
            telemetry.emit("process.task_died", "error", task=task.get_name(), **describe(error))

    for task in tasks:
        task.add_done_callback(report)
    try:
        _, running = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if running:
            stop.set()
            await asyncio.wait(running, timeout=grace)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if reported:
        raise reported[0]


def run_process(main: Callable[[asyncio.Event], Awaitable[None]], *, grace: float = 30.0) -> NoReturn:
    """Run `main` to its end and exit: 0 when it returned, 1 when it failed or did not stop within `grace`, 2 when it
    failed by an error of the caller's making."""
    sys.exit(run_to_end(main, grace=grace))


def run_to_end(main: Callable[[asyncio.Event], Awaitable[None]], *, grace: float) -> int:
    """The same, and the code is returned."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_supervise(main, grace))
    telemetry.shutdown()
    return code


async def _supervise(main: Callable[[asyncio.Event], Awaitable[None]], grace: float) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals: list[signal.Signals] = []
    parent, told_at = os.getppid(), 0.0
    strays: list[BaseException] = []

    def on_signal(number: signal.Signals) -> None:
        nonlocal told_at
        if signals and os.getppid() != parent and time.monotonic() - told_at < 1.0:
            return  # the kernel tells of a parent's death once for each of its threads
        if signals:
            telemetry.emit("process.killed", "warning", signal=number.name)
            os._exit(128 + number)
        telemetry.emit("process.stopping", signal=number.name)
        signals.append(number)
        told_at = time.monotonic()
        stop.set()

    def on_stray_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        described = describe(error) if error is not None else {}
        telemetry.emit("process.stray_error", "error", where=context["message"], **described)
        if error is not None and isinstance(context.get("future"), asyncio.Task):
            strays.append(error)
            stop.set()

    loop.set_exception_handler(on_stray_error)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    started = time.monotonic()
    telemetry.emit("process.started", pid=os.getpid())
    try:
        await _until_stopped(main(stop), stop, grace)
    except (Exception, asyncio.CancelledError) as error:
        telemetry.emit("process.failed", "error", **describe(error))
        return 2 if isinstance(error, UserError) else 1
    telemetry.emit("process.stopped", seconds=round(time.monotonic() - started, 3))
    return 1 if strays else 0


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections; why there can be none is said in a sentence."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                "service.port_in_use",
                "another process listens on this port",
                value=f"{host}:{port}",
                next_step="stop it (is it another `traceplane up`?), or choose other ports with the settings"
                " gateway_port, dispatcher_port and trigger_port",
            ) from error
        raise InvalidInput(
            "service.address_unusable",
            f"this process cannot listen here: {error.strerror or error}",
            value=f"{host}:{port}",
            next_step="check the setting host and the ports",
        ) from error
    except OverflowError as error:
        raise InvalidInput("service.address_unusable", f"no such port: {error}", value=port) from error


async def _until_stopped(main: Awaitable[None], stop: asyncio.Event, grace: float) -> None:
    work = asyncio.ensure_future(main)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not work.done():
        await asyncio.wait((work,), timeout=grace)
    if not work.done():
        work.cancel()
        await asyncio.wait((work,), timeout=5.0)
        raise TimeoutError(f"the process did not stop within {grace:g} seconds")
    work.result()
