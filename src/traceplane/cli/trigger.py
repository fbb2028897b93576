"""Commands of the trigger."""

from __future__ import annotations

import click

from traceplane.cli.grammar import Noun
from traceplane.cli.services import configure, with_database
from traceplane.runtime.process import run_process
from traceplane.settings import Settings, with_unprefixed


@click.group(cls=Noun)
def trigger() -> None:
    """Run and diagnose the trigger, which launches pipelines for signals."""


@trigger.command()
@click.pass_obj
def run(settings: Settings) -> None:
    """Run a trigger, which turns signals into executions. Any number may run."""
    from traceplane.trigger import main as process

    settings = with_unprefixed(settings)
    configure(settings, "trigger")
    chosen = with_database(settings)
    run_process(lambda stop: process.run(chosen, stop))
