"""`traceplane operator`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click

from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, say, say_json
from traceplane.errors import NotFound


@click.group(cls=Noun)
def operator() -> None:
    """The operators that are installed here."""


@dataclass(frozen=True, slots=True)
class Listed:
    name: str
    runtimes: list[str]
    summary: str
    package: str | None
    """None: it is built in."""
    problem: str | None
    """Why it cannot be used."""


@operator.command("list")
@as_json
def list_(as_json: bool) -> None:
    """List them; exit code 1 if one cannot be used."""
    operators = [_listed(name) for name in _names()]
    if as_json:
        say_json(operators)
    else:
        for one in operators:
            say(_line(one))
    if any(one.problem is not None for one in operators):
        raise SystemExit(1)


def _names() -> Sequence[str]:
    from traceplane.operators import catalog

    return catalog.names()


def _listed(name: str) -> Listed:
    from traceplane.operators import catalog

    spec, problem = catalog.find(name), catalog.problem(name)
    installed = catalog.package(name)
    package = None if installed is None else str(installed)
    if problem is not None or spec is None:
        return Listed(name, [], "", package, problem.message if problem is not None else "")
    return Listed(name, sorted(spec.runtimes), spec.summary, package, None)


def _line(one: Listed) -> str:
    if one.problem is not None:
        return f"{one.name:<16} PROBLEM  {one.problem}"
    source = f"  ({one.package})" if one.package is not None else ""
    return f"{one.name:<16} {', '.join(one.runtimes):<11} {one.summary}{source}"


@operator.command()
@click.argument("name")
@as_json
def show(name: str, as_json: bool) -> None:
    """Show the operator NAME with the fields of its config and its error codes."""
    from traceplane.operators import catalog, config

    if (problem := catalog.problem(name)) is not None:
        raise NotFound(problem.code, problem.message, next_step=problem.next_step)
    spec = catalog.find(name)
    assert spec is not None
    if as_json:
        say_json(
            {
                "name": spec.name,
                "runtimes": sorted(spec.runtimes),
                "summary": spec.summary,
                "fields": config.fields(spec),
                "open_config": spec.open_config,
                "errors": spec.errors,
            }
        )
        return
    say(f"{spec.name} ({', '.join(sorted(spec.runtimes))}): {spec.summary}")
    for field in config.fields(spec):
        default = "required" if field.default is None else f"default {field.default}"
        say(f"  {field.name}: {field.allowed}; {default}")
        say(f"      {field.explanation}")
    if spec.open_config:
        say("  You may add fields of your own.")
    for error in spec.errors:
        say(f"  {error.code} ({'retried' if error.retried else 'not retried'}): {error.meaning}")
