"""`traceplane operator`."""

from __future__ import annotations

import click

from traceplane.cli.grammar import Noun
from traceplane.cli.output import say
from traceplane.errors import NotFound


@click.group(cls=Noun)
def operator() -> None:
    """The operators that are installed here."""


@operator.command("list")
def list_() -> None:
    """List them; exit code 1 if one cannot be used."""
    from traceplane.operators import catalog

    broken = False
    for listed in catalog.names():
        spec, problem = catalog.find(listed), catalog.problem(listed)
        package = catalog.package(listed)
        if problem is not None or spec is None:
            broken = True
            say(f"{listed:<16} PROBLEM  {problem.message if problem is not None else ''}")
            continue
        source = f"  ({package})" if package is not None else ""
        say(f"{listed:<16} {', '.join(sorted(spec.runtimes)):<11} {spec.summary}{source}")
    if broken:
        raise SystemExit(1)


@operator.command()
@click.argument("name")
def show(name: str) -> None:
    """Show the operator NAME with the fields of its config and its error codes."""
    from traceplane.operators import catalog, config

    if (problem := catalog.problem(name)) is not None:
        raise NotFound(problem.code, problem.message, next_step=problem.next_step)
    spec = catalog.find(name)
    assert spec is not None
    say(f"{spec.name} ({', '.join(sorted(spec.runtimes))}): {spec.summary}")
    for field in config.fields(spec):
        default = "required" if field.default is None else f"default {field.default}"
        say(f"  {field.name}: {field.allowed}; {default}")
        say(f"      {field.explanation}")
    if spec.open_config:
        say("  You may add fields of your own.")
    for error in spec.errors:
        say(f"  {error.code} ({'retried' if error.retried else 'not retried'}): {error.meaning}")
