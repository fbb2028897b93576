"""Runs the platform's processes for `traceplane up`: starts them, starts them again when they die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from traceplane import telemetry
from traceplane.settings import PREFIX, Settings

_STOP_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Child:
    """One process to keep running: the words of its command, and the settings it is given."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]


def children(settings: Settings, *, workers: int) -> list[Child]:
    """The processes of a laptop. A worker is given its token, and nothing of the database."""
    common = {
        "HOME": settings.home.resolve(),
        "HOST": settings.host,
        "DISPATCHER_PORT": settings.dispatcher_port,
        "GATEWAY_PORT": settings.gateway_port,
        "DISPATCHER_URL": settings.dispatcher_url,
        "OBJECT_STORE": settings.object_store,
        "LOG_LEVEL": settings.log_level,
        "LOG_FORMAT": settings.log_format,
        "OTLP_ENDPOINT": settings.otlp_endpoint,
        "WAKE_QUEUE": settings.wake_queue,
        "SQS_ENDPOINT_URL": settings.sqs_endpoint_url,
        "SQS_QUEUE_PREFIX": settings.sqs_queue_prefix,
        "AWS_REGION": settings.aws_region,
    }
    trusted = common | {
        "STATE_URL": settings.state_url,
        "DATA_URL": settings.data_url,
        "ORG": settings.org,
        "DISPATCH_WINDOW": settings.dispatch_window,
        "RESEND_AFTER_SECONDS": settings.resend_after_seconds,
        "REAP_GRACE_SECONDS": settings.reap_grace_seconds,
        "MASTER_KEY_FILE": settings.master_key_file,
    }
    worker = common | {
        "WORKER_TOKEN": settings.worker_token,
        "WORKER_CONCURRENCY": settings.worker_concurrency,
        "WORKER_CODE_PATHS": os.pathsep.join(str(p.resolve()) for p in settings.worker_code_paths) or None,
        "ALLOW_WEAK_SANDBOX": str(settings.allow_weak_sandbox).lower(),
    }
    return [
        Child("dispatcher", ("dispatcher",), _environment(trusted)),
        Child("gateway", ("gateway",), _environment(trusted)),
        *(
            Child(f"worker-{n + 1}", ("worker", "--runtime", "python"), _environment(worker))
            for n in range(workers)
        ),
    ]


def _environment(values: Mapping[str, object]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX) or k == f"{PREFIX}CONFIG"}
    return kept | {f"{PREFIX}{k}": str(v) for k, v in values.items() if v is not None}


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
