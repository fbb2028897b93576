"""Commands for secrets."""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import quote

import click

from traceplane.cli.output import as_json, say, say_json
from traceplane.cli.whereabouts import call
from traceplane.errors import InvalidInput
from traceplane.settings import Settings
from traceplane.wire.secrets import SecretRemoved, SecretSet, SecretsResponse, SecretValue


@click.group()
def secret() -> None:
    """Set, list and remove secrets. Nothing shows their values."""


@secret.command("set")
@click.argument("name")
@click.option(
    "--job", "jobs", multiple=True, metavar="DAG/JOB", help="A job that may use it; DAG/* for all of a DAG."
)
@click.option("--any-job", is_flag=True, help="Every job may use it.")
@as_json
@click.pass_obj
def set_(settings: Settings, name: str, jobs: tuple[str, ...], any_job: bool, as_json: bool) -> None:
    """Set the secret NAME to what is read from standard input, without the newline at its end."""
    if jobs and any_job:
        raise click.UsageError("use --job or --any-job, not both")
    value = _read_value(name)
    request = SecretValue(value, list(jobs) if jobs else None, any_job)
    answer = call(settings, lambda c: c.call("PUT", _path(name), SecretSet, request))
    if as_json:
        say_json(answer)
    else:
        say(f"{answer.name} is set, version {answer.version}; tasks that start from now on receive it")


@secret.command("list")
@as_json
@click.pass_obj
def list_(settings: Settings, as_json: bool) -> None:
    """Show the names of secrets, who set them, and when tasks last received them."""
    answer = call(settings, lambda c: c.call("GET", "/api/v1/secrets", SecretsResponse))
    if as_json:
        say_json(answer)
        return
    for one in answer.secrets:
        used = f"{one.last_used_at:%Y-%m-%d %H:%M} UTC" if one.last_used_at is not None else "never"
        jobs = "every job" if one.allowed_jobs is None else ", ".join(one.allowed_jobs)
        say(f"{one.name}  version {one.version}, set by {one.set_by} at {one.set_at:%Y-%m-%d %H:%M} UTC")
        say(f"  used by {jobs}; last used: {used}")
    if not answer.secrets:
        say("There are no secrets. Set one with `traceplane secret set NAME`.")


@secret.command("remove")
@click.argument("name")
@as_json
@click.pass_obj
def remove(settings: Settings, name: str, as_json: bool) -> None:
    """Remove the secret NAME with all its versions. Tasks that need it fail from now on."""
    answer = call(settings, lambda c: c.call("DELETE", _path(name), SecretRemoved))
    if as_json:
        say_json(answer)
    else:
        say(f"{answer.name} is removed")


def _path(name: str) -> str:
    namespace, slash, rest = name.partition("/")
    parts = (namespace, rest) if slash else ("user", name)
    return "/api/v1/secrets/" + "/".join(quote(part, safe="") for part in parts)


def _read_value(name: str) -> str:
    if sys.stdin.isatty():
        value: str = click.prompt(f"Value of {name}", hide_input=True)
        return value
    raw = sys.stdin.buffer.read()
    try:
        value = raw.decode()
    except UnicodeDecodeError:
        raise InvalidInput(
            "secret.bad_value", "a secret is text in UTF-8", next_step="encode it, for example with base64"
        ) from None
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise InvalidInput(
            "secret.bad_value", "the value is empty", next_step="check what was written to standard input"
        )
    return value


COMMANDS: tuple[Any, ...] = (secret,)
