"""Commands that run the platform: `up`, and each process alone."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import click

from traceplane import crash_points, telemetry
from traceplane.cli import browser, preflight, profile, supervisor
from traceplane.cli.output import is_terminal, note
from traceplane.cli.whereabouts import with_user_token
from traceplane.client.local_platform import running_here
from traceplane.errors import TraceplaneError
from traceplane.http_service.client import Caller
from traceplane.runtime.process import run_process, run_to_end
from traceplane.settings import Settings, token_file, with_celery_broker, with_offers, with_tokens
from traceplane.wire.sign_in import BrowserLink


def configure(settings: Settings, service: str) -> None:
    telemetry.configure(
        settings.service_name or service,
        log_level=settings.log_level,  # type: ignore[arg-type]
        log_format=settings.log_format,  # type: ignore[arg-type]
        otlp_endpoint=settings.otlp_endpoint,
    )
    crash_points.arm(settings.crash_at)


def with_database(settings: Settings) -> Settings:
    """A process started on its own in the local profile uses the embedded server that `up` or `init` created."""
    return profile.existing_postgres(settings)


with_code_folders = click.option(
    "--code",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder that operator code is imported from (default: ./code).",
)


@click.command()
@click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Worker processes to run."
)
@click.option("--spark/--no-spark", default=True, show_default=True, help="Run a Spark worker too.")
@click.option("--trigger/--no-trigger", default=False, show_default=True, help="Run a trigger too.")
@with_code_folders
@click.pass_obj
def up(settings: Settings, workers: int, spark: bool, trigger: bool, code: tuple[Path, ...]) -> None:
    """Run everything in one terminal: embedded Postgres, dispatcher, gateway, workers."""
    run_platform(settings, code, workers=workers, spark=spark, trigger=trigger)


def run_platform(
    settings: Settings,
    code: tuple[Path, ...],
    beside: Callable[[Settings], Awaitable[None]] | None = None,
    *,
    with_browser: bool = False,
    workers: int,
    spark: bool,
    trigger: bool,
) -> NoReturn:
    """`beside`: what else this process does once the platform answers, until it stops. `with_browser`: show the web UI
    there, if somebody sits at this machine."""
    configure(settings, "up")
    chosen = preflight.checked(
        replace(settings, worker_code_paths=code or settings.worker_code_paths), trigger=trigger
    )
    failures: list[TraceplaneError] = []
    hurry = asyncio.Event()

    async def main(stop: asyncio.Event) -> None:
        try:
            await _run_all(
                chosen,
                stop,
                hurry,
                beside,
                with_browser=with_browser,
                workers=workers,
                spark=spark,
                trigger=trigger,
            )
        except TraceplaneError as failure:  # raised below, as in every command
            failures.append(failure)

    if running_here(chosen) is None:  # otherwise the ports are its own
        preflight.check_ports(chosen, trigger=trigger)
    with profile.the_only_one(chosen):
        exit_code = run_to_end(main, grace=chosen.worker_drain_seconds + 120, hurry=hurry)
    if failures:
        raise failures[0]
    sys.exit(exit_code)


async def _run_all(
    settings: Settings,
    stop: asyncio.Event,
    hurry: asyncio.Event,
    beside: Callable[[Settings], Awaitable[None]] | None,
    *,
    with_browser: bool,
    workers: int,
    spark: bool,
    trigger: bool,
) -> None:
    """Postgres starts before all processes and stops after them, even in a hurry."""
    note("up.starting", "Starting; it takes some seconds.")
    ready, server = await asyncio.to_thread(profile.start_postgres, settings)
    background: list[asyncio.Task[None]] = []
    try:
        prepared = await profile.prepare(ready)
        if server is not None:
            background.append(asyncio.create_task(profile.keep_postgres(server, prepared)))
        ready_task = asyncio.create_task(_when_ready(prepared, beside, with_browser))
        ready_task.add_done_callback(lambda ended: None if _went_well(ended) else stop.set())
        background.append(ready_task)
        background.append(asyncio.create_task(_say_when_stopping(prepared, stop)))
        services = supervisor.services(prepared, workers=workers, spark=spark, trigger=trigger)
        await supervisor.supervise(services, stop, hurry=hurry)
    finally:
        for task in background:
            task.cancel()
        outcomes = await asyncio.gather(*background, return_exceptions=True)
        if server is not None:
            await asyncio.to_thread(server.stop, "immediate" if hurry.is_set() else "fast")
        note("up.stopped", "Stopped.")
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


def _went_well(ended: asyncio.Task[None]) -> bool:
    return ended.cancelled() or ended.exception() is None


async def _when_ready(
    settings: Settings, beside: Callable[[Settings], Awaitable[None]] | None, with_browser: bool
) -> None:
    for port in (settings.dispatcher_port, settings.gateway_port):
        await _until_it_answers(settings.host, port)
    token = token_file(settings, "user")
    link = await _link(settings)
    note(
        "up.ready",
        *(
            [f"web UI   {link}", "         (signs you in, once; `traceplane ui` prints another link)"]
            if link
            else []
        ),
        f"API      {settings.gateway_address}  (token: {token})",
        f"internal {settings.dispatcher_address}",
        "Stop with Ctrl-C.",
        api=settings.gateway_address,
        internal=settings.dispatcher_address,
        token_file=token,
    )
    if link and with_browser and browser.is_there(os.environ, at_terminal=is_terminal()):
        own = await _link(settings)  # each signs in once
        if own is not None:
            await asyncio.to_thread(browser.show, own)
    if beside is not None:
        await beside(settings)


async def _link(settings: Settings) -> str | None:
    """To the web UI; it is not logged, since it signs in whoever opens it. None: there is no UI, or browsers cannot
    sign in here."""
    from traceplane.gateway import pages

    if not pages.are_built():
        return None
    try:
        chosen, token = with_user_token(settings)
        caller = Caller(chosen.gateway_address, token, tls_ca=chosen.tls_ca)
        try:
            return (await caller.call("POST", "/auth/browser-link", BrowserLink)).url
        finally:
            await caller.close()
    except TraceplaneError:
        return None


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
    note(
        "up.stopping",
        f"Stopping. Tasks have {settings.worker_drain_seconds:g} s to finish, then they are handed back;"
        " a second Ctrl-C hands them back immediately.",
        drain_seconds=settings.worker_drain_seconds,
    )


@click.command()
@click.pass_obj
def dispatcher(settings: Settings) -> None:
    """Run a dispatcher, which turns events into tasks and commits. Any number may run."""
    from traceplane.dispatcher import main as process

    configure(settings, "dispatcher")
    chosen = with_database(with_celery_broker(settings))
    run_process(lambda stop: process.run(chosen, stop))


@click.command()
@click.pass_obj
def sink(settings: Settings) -> None:
    """Run a sink, which writes buffered datasets. Any number may run; dispatchers do the same by default."""
    from traceplane.dispatcher import main as process

    configure(settings, "sink")
    chosen = with_database(settings)
    run_process(lambda stop: process.run_sink(chosen, stop))


@click.command()
@click.pass_obj
def delivery(settings: Settings) -> None:
    """Run a delivery process, which sends messages over channels. Any number may run; dispatchers do the same by
    default."""
    from traceplane.dispatcher import main as process

    configure(settings, "delivery")
    chosen = with_database(settings)
    run_process(lambda stop: process.run_delivery(chosen, stop))


@click.command()
@click.pass_obj
def gateway(settings: Settings) -> None:
    """Run a gateway, which serves the public API."""
    from traceplane.gateway import main as process

    configure(settings, "gateway")
    chosen = with_database(settings)
    run_process(lambda stop: process.run(chosen, stop))


@click.command()
@click.option("--runtime", default="python", show_default=True, help="Runtime whose tasks to run.")
@click.option("--offers", help="What each task may use: memory=16g,gpu=1,label=eu.")
@click.pass_obj
def worker(settings: Settings, runtime: str, offers: str | None) -> None:
    """Run a worker, which runs operator code in a sandbox."""
    from traceplane.worker import main as process

    configure(settings, "worker")
    chosen = with_tokens(settings if offers is None else with_offers(settings, offers))
    hurry = asyncio.Event()
    run_process(
        lambda stop: process.run(chosen, stop, hurry=hurry, runtime=runtime),
        grace=chosen.worker_drain_seconds + 60,
        hurry=hurry,
    )
