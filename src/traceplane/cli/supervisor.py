"""Runs the platform's processes for `traceplane up`: starts them, starts them again when they die."""

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
from traceplane.settings import PREFIX, Settings

_STOP_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Child:
    """One process to keep running: the words of its command, and the settings it is given."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


_NOT_FOR_A_WORKER = frozenset({"state_url", "data_url", "master_key_file", "user_token"})


def children(settings: Settings, *, workers: int, spark: bool = True, trigger: bool = False) -> list[Child]:
    """The processes of a laptop. A worker is given its token, and nothing of the database."""
    trusted = _environment(settings)
    worker = _environment(settings, without=_NOT_FOR_A_WORKER)
    return [
        Child("dispatcher", ("dispatcher",), trusted),
        Child("gateway", ("gateway",), trusted),
        *((Child("trigger", ("trigger", "run"), trusted),) if trigger else ()),
        *(Child(f"worker-{n + 1}", ("worker", "--runtime", "python"), worker) for n in range(workers)),
        *((Child("spark-1", ("worker", "--runtime", "spark"), worker),) if spark else ()),
    ]


def _environment(settings: Settings, without: frozenset[str] = frozenset()) -> dict[str, str]:
    """This process's environment, with exactly these settings; runtimes come from the settings file."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value is not None and field.name not in {"runtimes", *without}:
            kept[f"{PREFIX}{field.name.upper()}"] = _text(value)
    return kept


def _text(value: object) -> str:
    match value:
        case tuple():
            return os.pathsep.join(str(path.resolve()) for path in value)
        case Path():
            return str(value.resolve())
        case bool():
            return str(value).lower()
        case _:
            return str(value)


Started = Callable[[str, int], None]
"""Told the name and process id of every process that is started."""


async def supervise(
    wanted: list[Child], stop: asyncio.Event, *, started: Started | None = None, output: int | None = None
) -> None:
    """Keeps the processes running until `stop`; `output` is a file descriptor for what they print."""
    await asyncio.gather(*(_keep_running(child, stop, started, output) for child in wanted))


async def _keep_running(child: Child, stop: asyncio.Event, told: Started | None, output: int | None) -> None:
    pause = 0.2
    while not stop.is_set():
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "traceplane.cli.main",
            *child.arguments,
            env=dict(child.environment),
            start_new_session=True,  # Ctrl-C reaches only us; the children are stopped in order
            stdout=output,
            stderr=output,
        )
        if told is not None:
            told(child.name, process.pid)
        telemetry.emit("up.process_started", process=child.name, pid=process.pid)
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not ended.done():
            await _stop(process, ended)
            return
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


async def _stop(process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await asyncio.shield(ended)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await ended
