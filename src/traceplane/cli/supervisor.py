"""Runs the platform's processes for `traceplane up`: starts them, restarts them when they die, stops them in order.

Workers report to the dispatcher what they finished and what they hand back, so it stops after all others. A process
whose first start fails because of its settings (exit code 2) would only fail again: it stops all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from traceplane import telemetry
from traceplane.errors import InvalidInput, TraceplaneError
from traceplane.linux import kernel
from traceplane.settings import LISTS, PREFIX, Settings

_STOP_SECONDS = 20.0
"""How long a process may take to stop before it is killed, in addition to a worker's time to finish its tasks."""
_HURRY_SECONDS = 10.0
"""The same in a hurry: time for a worker to hand back its tasks."""
_EXIT_CODE_OF_USER_ERRORS = 2


@dataclass(frozen=True, slots=True)
class Service:
    """One process to keep running: its command and its settings."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    output: int | None = None
    """A file descriptor for its output."""
    stop_seconds: float = _STOP_SECONDS
    leaves_last: bool = False


_NOT_FOR_A_WORKER = frozenset({"state_url", "master_key_file", "user_token", "tls_certificate", "tls_key"})


def services(settings: Settings, *, workers: int, spark: bool = True, trigger: bool = False) -> list[Service]:
    """The processes of a laptop. A worker gets its token, and no database credentials."""
    trusted = _environment(settings)
    reachable = replace(
        settings, dispatcher_url=settings.dispatcher_address, gateway_url=settings.gateway_address
    )
    worker = _environment(reachable, without=_NOT_FOR_A_WORKER)
    stop = settings.worker_drain_seconds + _STOP_SECONDS
    return [
        Service("dispatcher", ("dispatcher",), trusted, leaves_last=True),
        Service("gateway", ("gateway",), {**trusted, **settings.hook_keys}),
        *((Service("trigger", ("trigger", "run"), trusted),) if trigger else ()),
        *(
            Service(f"worker-{n + 1}", ("worker", "--runtime", "python"), worker, stop_seconds=stop)
            for n in range(workers)
        ),
        *(
            (Service("spark-1", ("worker", "--runtime", "spark"), worker, stop_seconds=stop),)
            if spark
            else ()
        ),
    ]


def _environment(settings: Settings, without: frozenset[str] = frozenset()) -> dict[str, str]:
    """This process's environment, with exactly these settings; runtimes come from the settings file."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value is not None and field.name not in {"runtimes", "hook_keys", *without}:
            environment[f"{PREFIX}{field.name.upper()}"] = _text(field.name, value)
    return environment


def _text(name: str, value: object) -> str:
    match value:
        case tuple():
            return LISTS[name].join(_text(name, part) for part in value)
        case Path():
            return str(value.resolve())
        case bool():
            return str(value).lower()
        case _:
            return str(value)


Started = Callable[[str, int], None]
"""Called with the name and process id of every process that starts."""
Expected = Callable[[int], bool]
"""Whether whoever supervises has killed the process of this id itself."""


async def supervise(
    services: list[Service],
    stop: asyncio.Event,
    *,
    hurry: asyncio.Event | None = None,
    started: Started | None = None,
    expected: Expected | None = None,
) -> None:
    """Keeps the processes running until `stop`, or until one of them refuses its settings. At `hurry` they have a few
    seconds to stop. A death that was `expected` is no error."""
    hurry = hurry or asyncio.Event()
    others_left = asyncio.Event()
    others = [service for service in services if not service.leaves_last]
    failures: list[TraceplaneError] = []

    async def keep(service: Service, stop_it: asyncio.Event) -> None:
        try:
            await _keep_running(service, stop_it, hurry, started, expected)
        except TraceplaneError as failure:
            failures.append(failure)
            stop.set()

    async def keep_others() -> None:
        await asyncio.gather(*(keep(service, stop) for service in others), stop.wait())
        others_left.set()

    await asyncio.gather(
        keep_others(), *(keep(service, others_left) for service in services if service.leaves_last)
    )
    if failures:
        raise failures[0]


async def _keep_running(
    service: Service,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    on_start: Started | None,
    expected: Expected | None,
) -> None:
    pause = 0.2
    starts = 0
    while not stop.is_set():
        starts += 1
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # whose the folder is that it is started in, nobody knows: its modules are not imported
            "-m",
            "traceplane.cli.main",
            *service.arguments,
            env=dict(service.environment),
            start_new_session=True,  # Ctrl-C reaches only us; the children are stopped in order
            preexec_fn=_end_with_parent,
            stdout=service.output,
            stderr=service.output,
        )
        if on_start is not None:
            on_start(service.name, process.pid)
        telemetry.emit("up.process_started", process=service.name, pid=process.pid)
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            await _stop(process, ended, service.stop_seconds, hurry)
            return
        if process.returncode == _EXIT_CODE_OF_USER_ERRORS and starts == 1:
            raise InvalidInput(
                "up.process_refused",
                "a process cannot run with its settings",
                value=service.name,
                next_step="fix the error that it printed above",
            )
        lived = time.monotonic() - started
        pause = 0.2 if lived > 10 else min(pause * 2, 10.0)
        telemetry.emit(
            "up.process_died",
            "info" if expected is not None and expected(process.pid) else "error",
            process=service.name,
            code=process.returncode,
            restart_in=round(pause, 1),
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()


def _end_with_parent() -> None:
    """The process gets SIGTERM however the supervisor ends, even by SIGKILL."""
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)


async def _stop(
    process: asyncio.subprocess.Process, ended: asyncio.Task[int], seconds: float, hurry: asyncio.Event
) -> None:
    _signal(process, signal.SIGTERM)
    hurrying = asyncio.create_task(hurry.wait())
    await asyncio.wait((ended, hurrying), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    hurrying.cancel()
    if hurry.is_set() and not ended.done():
        _signal(process, signal.SIGINT)  # not SIGTERM again: two equal signals may arrive as one
        await asyncio.wait((ended,), timeout=_HURRY_SECONDS)
    if not ended.done():
        _signal(process, signal.SIGKILL)
    await ended


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
