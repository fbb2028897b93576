"""Process lifecycle: background loops, tasks that live and die together, graceful shutdown.

A process is one coroutine `main(stop)`, run by `run_process`. It starts its loops and servers in a
`task_group`; each of them ends when `stop` is set. SIGTERM or SIGINT sets `stop`; a second one exits immediately,
or sets `hurry` if the process has cleanup that must not be skipped.
No failure is silent: a task that fails stops its siblings and the process, with an error event and exit code 1,
so that a supervisor restarts it; or exit code 2 if a restart cannot help, because the caller has to fix
something. A pass of a loop may fail (the database restarts, for example): the failure is logged, and the pass is
retried after a growing pause.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
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
from traceplane.linux.confine import allow_many_open_files
from traceplane.runtime.retrying import Result, backoff, happens

LONGEST_BACKOFF = 30.0
# A kicked loop makes thousands of passes a second; one log line a second is enough.
LOG_EVERY = 1.0
_QUIET_INTERVAL = 1.0
# The kernel signals a parent's death once for each of the parent's threads, while the parent is still there.
_SIGNALS_OF_ONE_DEATH_SECONDS, _UNTIL_A_PARENT_IS_GONE_SECONDS = 1.0, 0.2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one pass did. A loop subclasses it with int fields, and may add `more: bool`: work is left, and the
    next pass should start immediately."""

    def counts(self) -> dict[str, int]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if type(value) is int}


class Activity:
    """Whether this process has seen work recently. Loops that share it poll less often while there is none, and
    immediately when work arrives, so an idle platform costs next to nothing."""

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
    """Call `run_once` every `interval` seconds until `stop` is set: less often without `activity`, immediately when
    kicked.

    A pass that is running when `stop` is set is finished. `<name>.pass` is logged when a count is not zero, at
    most once a second, with the sums since the last line.
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
                pause = backoff(failures, max(0.05, min(interval, 1.0)), LONGEST_BACKOFF)
                _report_failed_pass(name, error, failures, pause)
                await happens(stop, within=pause)
                continue
            failures = 0
            telemetry.observe("loop_seconds", time.perf_counter() - started, loop=name)
            did_something = report.add(outcome)
            if activity is not None and did_something:
                activity.seen()
            if getattr(outcome, "more", False):
                await asyncio.sleep(0)
            else:
                await happens(wake, within=interval if activity is None else activity.pause(interval))
    finally:
        waker.cancel()
        report.flush()


def _report_failed_pass(name: str, error: Exception, failures: int, pause: float) -> None:
    telemetry.count("loop_errors_total", loop=name)
    telemetry.emit(f"{name}.error", "error", **describe(error), failures=failures, retry_in=round(pause, 3))


class _PassReport:
    """Sums the counts of passes and logs them, at most every `LOG_EVERY` seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sums: dict[str, int] = {}
        self.passes = 0
        self.logged_at = -LOG_EVERY

    def add(self, outcome: Outcome) -> bool:
        """Returns whether the pass did anything."""
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
    """An error as log fields; an unexpected one includes its traceback."""
    if isinstance(error, TraceplaneError):
        log_fields: dict[str, object] = {
            "code": error.code,
            "type": type(error).__name__,
            "message": error.message,
        }
        return log_fields if error.next_step is None else {**log_fields, "next_step": error.next_step}
    return {
        "code": "internal.unexpected",
        "type": type(error).__name__,
        "message": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


async def task_group(
    stop: asyncio.Event, /, *, grace: float = 20.0, **coroutines: Coroutine[Any, Any, object]
) -> None:
    """Run the named coroutines until all have ended.

    The first failure sets `stop`. The others have `grace` seconds to end before they are canceled; then the
    first error is raised.
    """
    tasks = [asyncio.create_task(coroutine, name=name) for name, coroutine in coroutines.items()]
    errors: list[BaseException] = []

    def report(task: asyncio.Task[object]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            errors.append(error)
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
    if errors:
        raise errors[0]


async def unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of `work`; None if `stop` is set first, and then `work` was canceled and has ended."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        working.cancel()
        await asyncio.wait((working,))
    return None if working.cancelled() else working.result()


def run_process(
    main: Callable[[asyncio.Event], Awaitable[None]],
    *,
    grace: float = 30.0,
    hurry: asyncio.Event | None = None,
) -> NoReturn:
    """Run `main` to its end and exit: 0 if it returned, 1 if it failed or did not stop within `grace`, 2 if it
    failed with an error that the caller has to fix.

    With `hurry`, `main` has to end soon after `hurry` is set, and no signal ends the process earlier."""
    sys.exit(run_to_end(main, grace=grace, hurry=hurry))


def run_to_end(
    main: Callable[[asyncio.Event], Awaitable[None]], *, grace: float, hurry: asyncio.Event | None = None
) -> int:
    """Like `run_process`, but returns the exit code."""
    # What is loaded stays, and requests leave hardly any cycles: the defaults would look for them all the time.
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    allow_many_open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_supervise(main, grace, hurry))
    telemetry.shutdown()
    return code


async def _supervise(
    main: Callable[[asyncio.Event], Awaitable[None]], grace: float, hurry: asyncio.Event | None
) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals: list[signal.Signals] = []
    parent, signaled_at = os.getppid(), 0.0
    stray_errors: list[BaseException] = []

    def on_signal(number: signal.Signals) -> None:
        nonlocal signaled_at
        if not signals:
            telemetry.emit("process.stopping", signal=number.name)
            signals.append(number)
            signaled_at = time.monotonic()
            stop.set()
        elif time.monotonic() - signaled_at < _SIGNALS_OF_ONE_DEATH_SECONDS:
            loop.call_later(_UNTIL_A_PARENT_IS_GONE_SECONDS, on_impatience, number)
        else:
            on_impatience(number)

    def on_impatience(number: signal.Signals) -> None:
        if os.getppid() != parent and time.monotonic() - signaled_at < 2 * _SIGNALS_OF_ONE_DEATH_SECONDS:
            return  # nobody's: its parent died
        if hurry is None:
            telemetry.emit("process.killed", "warning", signal=number.name)
            os._exit(128 + number)
        if not hurry.is_set():
            telemetry.emit("process.hurrying", signal=number.name)
        hurry.set()

    def on_stray_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        described = describe(error) if error is not None else {}
        telemetry.emit("process.stray_error", "error", where=context["message"], **described)
        if error is not None and isinstance(context.get("future"), asyncio.Task):
            stray_errors.append(error)
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
    return 1 if stray_errors else 0


def listen(host: str, port: int, setting: str | None = None) -> socket.socket:
    """A listening socket; the error explains why it cannot be opened, and names the `setting` with the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                "service.port_in_use",
                "another process is listening on this port",
                value=f"{host}:{port}",
                next_step="stop it (is it another `traceplane up`?), or choose another port"
                + (f" with the setting {setting}" if setting is not None else ""),
            ) from error
        raise InvalidInput(
            "service.address_unusable",
            f"this process cannot listen on this address: {error.strerror or error}",
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
