"""Runs the platform's processes for `traceplane up`: starts them, starts them again when they die, ends them in order.

Workers report to the dispatcher what they finished and what they hand back, so it leaves when all others have. A
process that, at its first start, says that it cannot work with what it was given (exit code 2) would only fail again:
it ends all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from traceplane import telemetry
from traceplane.errors import InvalidInput, TraceplaneError
from traceplane.linux import kernel
from traceplane.settings import LISTS, PREFIX, Settings

_STOP_SECONDS = 20.0
"""Before a process is killed that was told to stop; a worker has its time to finish tasks besides."""
_CANNOT_WORK_LIKE_THIS = 2


@dataclass(frozen=True, slots=True)
class Child:
    """One process to keep running: the words of its command, and the settings it is given."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    output: int | None = None
    """A file descriptor for what it prints."""
    stop_seconds: float = _STOP_SECONDS
    leaves_last: bool = False


_NOT_FOR_A_WORKER = frozenset({"state_url", "data_url", "master_key_file", "user_token"})


def children(settings: Settings, *, workers: int, spark: bool = True, trigger: bool = False) -> list[Child]:
    """The processes of a laptop. A worker is given its token, and nothing of the database."""
    trusted = _environment(settings)
    worker = _environment(settings, without=_NOT_FOR_A_WORKER)
    stop = settings.worker_drain_seconds + _STOP_SECONDS
    return [
        Child("dispatcher", ("dispatcher",), trusted, leaves_last=True),
        Child("gateway", ("gateway",), trusted),
        *((Child("trigger", ("trigger", "run"), trusted),) if trigger else ()),
        *(
            Child(f"worker-{n + 1}", ("worker", "--runtime", "python"), worker, stop_seconds=stop)
            for n in range(workers)
        ),
        *((Child("spark-1", ("worker", "--runtime", "spark"), worker, stop_seconds=stop),) if spark else ()),
    ]


def _environment(settings: Settings, without: frozenset[str] = frozenset()) -> dict[str, str]:
    """This process's environment, with exactly these settings; runtimes come from the settings file."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value is not None and field.name not in {"runtimes", *without}:
            kept[f"{PREFIX}{field.name.upper()}"] = _text(field.name, value)
    return kept


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
"""Told the name and process id of every process that is started."""


async def supervise(wanted: list[Child], stop: asyncio.Event, *, started: Started | None = None) -> None:
    """Keeps the processes running until `stop`, or until one of them says that it cannot work like this."""
    others_left = asyncio.Event()
    others = [child for child in wanted if not child.leaves_last]
    failures: list[TraceplaneError] = []

    async def keep(child: Child, stop_it: asyncio.Event) -> None:
        try:
            await _keep_running(child, stop_it, started)
        except TraceplaneError as failure:
            failures.append(failure)
            stop.set()

    async def keep_others() -> None:
        await asyncio.gather(*(keep(child, stop) for child in others), stop.wait())
        others_left.set()

    await asyncio.gather(keep_others(), *(keep(child, others_left) for child in wanted if child.leaves_last))
    if failures:
        raise failures[0]


async def _keep_running(child: Child, stop: asyncio.Event, told: Started | None) -> None:
    pause = 0.2
    starts = 0
    while not stop.is_set():
        starts += 1
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "traceplane.cli.main",
            *child.arguments,
            env=dict(child.environment),
            start_new_session=True,  # Ctrl-C reaches only us; the children are stopped in order
            preexec_fn=_end_with_parent,
            stdout=child.output,
            stderr=child.output,
        )
        if told is not None:
            told(child.name, process.pid)
        telemetry.emit("up.process_started", process=child.name, pid=process.pid)
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            await _stop(process, ended, child.stop_seconds)
            return
        if process.returncode == _CANNOT_WORK_LIKE_THIS and starts == 1:
            raise InvalidInput(
                "up.process_refused",
                "a process cannot work with what it was given",
                value=child.name,
                next_step="mend what the process named above",
            )
        lived = time.monotonic() - started
        pause = 0.2 if lived > 10 else min(pause * 2, 10.0)
        telemetry.emit(
            "up.process_died",
            "warning",
            process=child.name,
            code=process.returncode,
            restart_in=round(pause, 1),
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()


def _end_with_parent() -> None:
    """However the supervisor ends, SIGKILL included, its processes are told to stop."""
    if sys.platform == "linux":
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)


async def _stop(process: asyncio.subprocess.Process, ended: asyncio.Task[int], seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(seconds):
            await asyncio.shield(ended)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await ended
