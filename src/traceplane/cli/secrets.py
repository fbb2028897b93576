"""Commands for secrets."""

from __future__ import annotations

import sys
from urllib.parse import quote

import click

from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, say, say_json
from traceplane.cli.whereabouts import call
from traceplane.errors import InvalidInput
from traceplane.settings import Settings
from traceplane.wire.secrets import (
    SecretRemoved,
    SecretRightsRequest,
    SecretRightsView,
    SecretSet,
    SecretsResponse,
    SecretValue,
)


@click.group(cls=Noun)
def secret() -> None:
    """Set, list and remove secrets. Nothing shows their values."""


_job = click.option(
    "--job", "jobs", multiple=True, metavar="DAG/JOB", help="A job that may use it; DAG/* for all of a DAG."
)
_any_job = click.option("--any-job", is_flag=True, help="Every job may use it.")
_role = click.option(
    "--role", "roles", multiple=True, metavar="ROLE", help="A role whose members may set and list it."
)


@secret.command("set")
@click.argument("name")
@_job
@_any_job
@_role
@as_json
@click.pass_obj
def set_(
    settings: Settings, name: str, jobs: tuple[str, ...], any_job: bool, roles: tuple[str, ...], as_json: bool
) -> None:
    """Set the secret NAME to what is read from standard input, without the newline at its end."""
    _check_jobs(jobs, any_job)
    path = _path(name)
    value = _read_value(name)
    request = SecretValue(
        value=value, allowed_jobs=list(jobs) or None, any_job=any_job, roles=list(roles) or None
    )
    answer = call(settings, lambda c: c.call("PUT", path, SecretSet, request))
    _warn(answer.warnings)
    if as_json:
        say_json(answer)
    else:
        say(f"{answer.name} is set, version {answer.version}; tasks that start from now on receive it")


@secret.command("allow")
@click.argument("name")
@_job
@_any_job
@_role
@click.option("--no-role", is_flag=True, help="Only admins may set and list it.")
@as_json
@click.pass_obj
def allow(
    settings: Settings,
    name: str,
    jobs: tuple[str, ...],
    any_job: bool,
    roles: tuple[str, ...],
    no_role: bool,
    as_json: bool,
) -> None:
    """Change which jobs may use the secret NAME, and which roles may set it. Its value stays."""
    _check_jobs(jobs, any_job)
    if roles and no_role:
        raise click.UsageError("use --role or --no-role, not both")
    if not (jobs or any_job or roles or no_role):
        raise click.UsageError("use --job, --any-job, --role or --no-role")
    request = SecretRightsRequest(list(jobs) or None, any_job, [] if no_role else list(roles) or None)
    answer = call(settings, lambda c: c.call("POST", f"{_path(name)}/rights", SecretRightsView, request))
    _warn(answer.warnings)
    if as_json:
        say_json(answer)
    else:
        say(f"{answer.name} is used by {_users(answer.allowed_jobs)}; {_setters(answer.roles)}")


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
        known = [
            f"version {one.version}" if one.version is not None else None,
            f"set by {one.set_by}" if one.set_by is not None else None,
            f"set at {one.set_at:%Y-%m-%d %H:%M} UTC" if one.set_at is not None else None,
        ]
        say(f"{one.name}  {', '.join(text for text in known if text)}".rstrip())
        say(f"  used by {_users(one.allowed_jobs)}; {_setters(one.roles)}; last used: {used}")
    if not answer.secrets:
        say("There are no secrets that you may set. An admin sets one with `traceplane secret set NAME`.")


def _warn(warnings: list[str]) -> None:
    for warning in warnings:
        say(f"warning: {warning}", err=True)


def _check_jobs(jobs: tuple[str, ...], any_job: bool) -> None:
    if jobs and any_job:
        raise click.UsageError("use --job or --any-job, not both")


def _users(allowed_jobs: list[str] | None) -> str:
    return "every job" if allowed_jobs is None else ", ".join(allowed_jobs) or "no job"


def _setters(roles: list[str]) -> str:
    return f"set by admins{''.join(f', {role}' for role in roles)}"


@secret.command("delete")
@click.argument("name")
@as_json
@click.pass_obj
def delete(settings: Settings, name: str, as_json: bool) -> None:
    """Delete the secret NAME with all its versions. Tasks that need it fail from now on."""
    answer = call(settings, lambda c: c.call("DELETE", _path(name), SecretRemoved))
    if as_json:
        say_json(answer)
    else:
        say(f"{answer.name} is deleted")


def _path(name: str) -> str:
    namespace, slash, rest = name.partition("/")
    parts = (namespace, rest) if slash else ("user", name)
    if not all(parts):  # no path of the gateway
        raise InvalidInput(
            "secret.bad_name",
            "the name of a secret is empty",
            value=name,
            next_step="for example mainnet_rpc or platform/mainnet_rpc",
        )
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
