"""Commands of the trigger."""

from __future__ import annotations

from typing import Any

import click

from traceplane.cli.services import configure, with_database
from traceplane.runtime.process import run_process
from traceplane.settings import Settings, with_unprefixed


@click.group()
def trigger() -> None:
    """Signals launch pipelines."""


@trigger.command()
@click.pass_obj
def run(settings: Settings) -> None:
    """Run a trigger: signals to executions. Any number may run."""
    from traceplane.trigger import main as process

    known = with_unprefixed(settings)
    configure(known, "trigger")
    chosen = with_database(known)
    run_process(lambda stop: process.run(chosen, stop))


COMMANDS: tuple[Any, ...] = (trigger,)
