"""Commands that run the platform: `up`, and each process alone."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from traceplane import crash_points, telemetry
from traceplane.cli import profile, supervisor
from traceplane.runtime import run_process
from traceplane.settings import Settings, with_celery_broker


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
    return profile.start_postgres(settings)[0]


@click.command()
@click.option("--workers", default=1, show_default=True, help="Worker processes to run.")
@click.option("--spark/--no-spark", default=True, show_default=True, help="Run a Spark worker too.")
@click.option("--trigger/--no-trigger", default=False, show_default=True, help="Run a trigger too.")
@click.option("--code", "code", multiple=True, type=click.Path(exists=True, file_okay=False, path_type=Path),
              help="Folder that operator code is imported from (default: ./code).")  # fmt: skip
@click.pass_obj
def up(settings: Settings, workers: int, spark: bool, trigger: bool, code: tuple[Path, ...]) -> None:
    """Run everything in one terminal: embedded Postgres, dispatcher, gateway, workers."""
    chosen = replace(settings, worker_code_paths=code or settings.worker_code_paths)
    configure(chosen, "up")
    ready, server = profile.start_postgres(chosen)
    prepared = asyncio.run(profile.prepare(ready))
    click.echo(
        f"API      {prepared.gateway_address}  (token: {profile.token_file(prepared, 'user')})", err=True
    )
    click.echo(f"internal {prepared.dispatcher_address}", err=True)
    click.echo("Stop with Ctrl-C.", err=True)

    async def main(stop: asyncio.Event) -> None:
        wanted = supervisor.children(prepared, workers=workers, spark=spark, trigger=trigger)
        await supervisor.supervise(wanted, stop)

    try:
        run_process(main, grace=60.0)
    finally:
        if server is not None:
            server.stop()


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
    chosen = profile.with_tokens(settings)
    run_process(lambda stop: process.run(chosen, stop, runtime=runtime), grace=90.0)


COMMANDS: tuple[Any, ...] = (up, dispatcher, gateway, worker)
