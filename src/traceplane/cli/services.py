"""Commands that run the platform: `up`, and each process alone."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from traceplane import crash_points, telemetry
from traceplane.cli import preflight, profile, supervisor
from traceplane.cli.output import say
from traceplane.errors import TraceplaneError
from traceplane.runtime.process import run_process, run_to_end
from traceplane.settings import Settings, token_file, with_celery_broker, with_tokens


def configure(settings: Settings, service: str) -> None:
    telemetry.configure(
        settings.service_name or service,
        log_level=settings.log_level,  # type: ignore[arg-type]
        log_format=settings.log_format,  # type: ignore[arg-type]
        otlp_endpoint=settings.otlp_endpoint,
    )
    crash_points.arm(settings.crash_at)


def with_database(settings: Settings) -> Settings:
    """A process started alone on the local profile uses the embedded server that `up` or `init` made."""
    return profile.existing_postgres(settings)


@click.command()
@click.option("--workers", default=1, show_default=True, help="Worker processes to run.")
@click.option("--spark/--no-spark", default=True, show_default=True, help="Run a Spark worker too.")
@click.option("--trigger/--no-trigger", default=False, show_default=True, help="Run a trigger too.")
@click.option("--code", "code", multiple=True, type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Folder that operator code is imported from (default: ./code).")  # fmt: skip
@click.pass_obj
def up(settings: Settings, workers: int, spark: bool, trigger: bool, code: tuple[Path, ...]) -> None:
    """Run everything in one terminal: embedded Postgres, dispatcher, gateway, workers."""
    configure(settings, "up")
    chosen = preflight.checked(
        replace(settings, worker_code_paths=code or settings.worker_code_paths), trigger=trigger
    )
    failures: list[TraceplaneError] = []

    async def main(stop: asyncio.Event) -> None:
        try:
            await _run_all(chosen, stop, workers=workers, spark=spark, trigger=trigger)
        except TraceplaneError as failure:  # told as every command tells it
            failures.append(failure)

    with profile.the_only_one(chosen):
        preflight.check_ports(chosen, trigger=trigger)
        code_of_exit = run_to_end(main, grace=chosen.worker_drain_seconds + 120)
    if failures:
        raise failures[0]
    sys.exit(code_of_exit)


async def _run_all(
    settings: Settings, stop: asyncio.Event, *, workers: int, spark: bool, trigger: bool
) -> None:
    """Postgres is there before all processes, and leaves after them."""
    ready, server = await asyncio.to_thread(profile.start_postgres, settings)
    beside: list[asyncio.Task[None]] = []
    try:
        prepared = await profile.prepare(ready)
        if server is not None:
            beside.append(asyncio.create_task(profile.keep_postgres(server, prepared)))
        beside.append(asyncio.create_task(_say_when_ready(prepared)))
        beside.append(asyncio.create_task(_say_when_stopping(prepared, stop)))
        wanted = supervisor.children(prepared, workers=workers, spark=spark, trigger=trigger)
        await supervisor.supervise(wanted, stop)
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        if server is not None:
            await asyncio.to_thread(server.stop)


async def _say_when_ready(settings: Settings) -> None:
    for port in (settings.dispatcher_port, settings.gateway_port):
        await _until_it_answers(settings.host, port)
    say(f"API      {settings.gateway_address}  (token: {token_file(settings, 'user')})", err=True)
    say(f"internal {settings.dispatcher_address}", err=True)
    say("Stop with Ctrl-C.", err=True)


async def _until_it_answers(host: str, port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except OSError:
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


async def _say_when_stopping(settings: Settings, stop: asyncio.Event) -> None:
    await stop.wait()
    say(
        f"Stopping. Tasks have {settings.worker_drain_seconds:g} s to finish, or are handed back;"
        " a second Ctrl-C does not wait.",
        err=True,
    )


@click.command()
@click.pass_obj
def dispatcher(settings: Settings) -> None:
    """Run a dispatcher: events to tasks to commits. Any number may run."""
    from traceplane.dispatcher import main as process

    configure(settings, "dispatcher")
    chosen = with_database(with_celery_broker(settings))
    run_process(lambda stop: process.run(chosen, stop))


@click.command()
@click.pass_obj
def gateway(settings: Settings) -> None:
    """Run a gateway: the public API."""
    from traceplane.gateway import main as process

    configure(settings, "gateway")
    chosen = with_database(settings)
    run_process(lambda stop: process.run(chosen, stop))


@click.command()
@click.option("--runtime", default="python", show_default=True, help="Runtime whose tasks to run.")
@click.pass_obj
def worker(settings: Settings, runtime: str) -> None:
    """Run a worker: operator code in a sandbox."""
    from traceplane.worker import main as process

    configure(settings, "worker")
    chosen = with_tokens(settings)
    run_process(
        lambda stop: process.run(chosen, stop, runtime=runtime), grace=chosen.worker_drain_seconds + 60
    )


COMMANDS: tuple[Any, ...] = (up, dispatcher, gateway, worker)
