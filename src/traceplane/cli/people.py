"""Commands for members of an organization, their roles and their tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import quote

import click

from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, say, say_json
from traceplane.cli.whereabouts import call
from traceplane.model import durations
from traceplane.settings import Settings
from traceplane.wire.people import (
    GrantBody,
    IssuedToken,
    MemberBody,
    MembersResponse,
    MemberView,
    NewTokenBody,
    RoleDeleted,
    RoleMeaningBody,
    RolesResponse,
    RoleView,
    TokenRevoked,
    TokensResponse,
    WhoAmI,
)


def _checked_length(context: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None:
        try:
            durations.parsed(text)
        except durations.BadDuration:
            raise click.BadParameter(f"{text!r} is not a number with a unit, for example 30d") from None
    return text


_lasts = click.option(
    "--lasts", metavar="TIME", callback=_checked_length, help="For how long, such as 24h or 30d."
)


@click.command()
@as_json
@click.pass_obj
def whoami(settings: Settings, as_json: bool) -> None:
    """Show who you are to the platform, and with what rights."""
    answer = call(settings, lambda c: c.call("GET", "/api/v1/whoami", WhoAmI))
    if as_json:
        say_json(answer)
        return
    kind = {"user": "a person", "service": "a service account", "token": "a token"}[answer.kind]
    roles = f"with the roles {', '.join(answer.roles)}" if answer.roles else "without any role"
    say(f"{answer.name}, {kind} of {answer.org}, {roles}")
    if answer.next_step is not None:
        say(f"next: {answer.next_step}")
        return
    if answer.datasets is not None:
        say(f"only for datasets named {', '.join(answer.datasets)}")
    say("sees personal data" if answer.sees_pii else "does not see personal data")


@click.group(cls=Noun)
def role() -> None:
    """Define, list and delete roles of the organization."""


@role.command("list")
@as_json
@click.pass_obj
def list_roles(settings: Settings, as_json: bool) -> None:
    """Show the roles, what they include, and how many members have them."""
    answer = call(settings, lambda c: c.call("GET", "/api/v1/roles", RolesResponse))
    if as_json:
        say_json(answer)
        return
    for one in answer.roles:
        say(_role_line(one))


@role.command("set")
@click.argument("name")
@click.option(
    "--includes",
    type=click.Choice(["reader", "writer", "admin"]),
    default="reader",
    help="What its members may call; reader if not given.",
)
@click.option("--pii", is_flag=True, help="Its members see columns marked as personal data.")
@as_json
@click.pass_obj
def set_role(settings: Settings, name: str, includes: Any, pii: bool, as_json: bool) -> None:
    """Define the role NAME, or what it means from now on."""
    body = RoleMeaningBody(includes, pii)
    answer = call(settings, lambda c: c.call("PUT", f"/api/v1/roles/{_path(name)}", RoleView, body))
    if as_json:
        say_json(answer)
    else:
        say(_role_line(answer))


@role.command("delete")
@click.argument("name")
@click.option("--force", is_flag=True, help="Even if datasets or secrets name it.")
@as_json
@click.pass_obj
def delete_role(settings: Settings, name: str, force: bool, as_json: bool) -> None:
    """Delete the role NAME. Its members have it no more."""
    path, query = f"/api/v1/roles/{_path(name)}", {"force": "true"} if force else None
    answer = call(settings, lambda c: c.call("DELETE", path, RoleDeleted, query=query))
    if as_json:
        say_json(answer)
    else:
        say(f"{answer.name} is deleted")


@click.group(cls=Noun)
def member() -> None:
    """Add people and service accounts, and give them roles and tokens."""


@member.command("list")
@as_json
@click.pass_obj
def list_members(settings: Settings, as_json: bool) -> None:
    """Show the members and their roles."""
    answer = call(settings, lambda c: c.call("GET", "/api/v1/members", MembersResponse))
    if as_json:
        say_json(answer)
        return
    for one in answer.members:
        say(_member_line(one))
    if not answer.members:
        say("There are no members. Add one with `traceplane member add NAME`.")


@member.command("add")
@click.argument("name")
@click.option("--service", is_flag=True, help="A service account, not a person.")
@click.option("--email")
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="A role to begin with.")
@as_json
@click.pass_obj
def add_member(
    settings: Settings, name: str, service: bool, email: str | None, roles: tuple[str, ...], as_json: bool
) -> None:
    """Add NAME, or enable a member that was disabled."""
    body = MemberBody("service" if service else "user", email)
    path = f"/api/v1/members/{_path(name)}"
    answer = call(settings, lambda c: c.call("PUT", path, MemberView, body))
    for role in roles:
        answer = _grant(settings, name, role, None)
    _say_member(answer, as_json)


@member.command("disable")
@click.argument("name")
@as_json
@click.pass_obj
def disable_member(settings: Settings, name: str, as_json: bool) -> None:
    """Refuse NAME until it is added again. Its tokens end for good."""
    _say_member(
        call(settings, lambda c: c.call("DELETE", f"/api/v1/members/{_path(name)}", MemberView)), as_json
    )


@member.command("grant")
@click.argument("name")
@click.argument("role")
@_lasts
@as_json
@click.pass_obj
def grant(settings: Settings, name: str, role: str, lasts: str | None, as_json: bool) -> None:
    """Give NAME the ROLE."""
    _say_member(_grant(settings, name, role, lasts), as_json)


@member.command("withdraw")
@click.argument("name")
@click.argument("role")
@as_json
@click.pass_obj
def withdraw(settings: Settings, name: str, role: str, as_json: bool) -> None:
    """Take the ROLE from NAME."""
    path = f"/api/v1/members/{_path(name)}/roles/{_path(role)}"
    _say_member(call(settings, lambda c: c.call("DELETE", path, MemberView)), as_json)


@member.command("token")
@click.argument("name")
@click.option(
    "--name", "token_name", metavar="TOKEN", help="The token's own name; the member's if not given."
)
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="Cut it down to this role.")
@click.option("--dataset", "datasets", multiple=True, metavar="PATTERN", help="Cut it down to such datasets.")
@_lasts
@as_json
@click.pass_obj
def issue_token(
    settings: Settings,
    name: str,
    token_name: str | None,
    roles: tuple[str, ...],
    datasets: tuple[str, ...],
    lasts: str | None,
    as_json: bool,
) -> None:
    """Print a new token of NAME. It is shown only once: only its hash is stored."""
    body = NewTokenBody(
        token_name or name,
        member=name,
        roles=list(roles) or None,
        datasets=list(datasets) or None,
        lasts=lasts,
    )
    issued = call(settings, lambda c: c.call("POST", "/api/v1/tokens", IssuedToken, body))
    if issued.warning is not None:
        say(f"warning: {issued.warning}", err=True)
    say_json(issued) if as_json else say(issued.token)


@click.command("list")
@as_json
@click.pass_obj
def list_tokens(settings: Settings, as_json: bool) -> None:
    """Show valid user tokens, when each was last used, and when it expires. Nothing shows the tokens themselves."""
    answer = call(settings, lambda c: c.call("GET", "/api/v1/tokens", TokensResponse))
    if as_json:
        say_json(answer)
        return
    for one in answer.tokens:
        say(
            f"{one.token_id}  {one.name}"
            + (f" of {one.member}" if one.member not in (None, one.name) else "")
        )
        cut = [*(one.roles or ["all roles of its member"]), *(one.datasets or [])]
        say(
            f"  {', '.join(cut)}; issued by {one.created_by}; last used: {_time(one.last_used_at, 'never')};"
            f" expires: {_time(one.expires_at, 'never')}"
        )


@click.command("revoke-id")
@click.argument("token_id")
@as_json
@click.pass_obj
def revoke_by_id(settings: Settings, token_id: str, as_json: bool) -> None:
    """Refuse the token with this id, as `token list` shows it, from now on."""
    answer = call(settings, lambda c: c.call("DELETE", f"/api/v1/tokens/{_path(token_id)}", TokenRevoked))
    if as_json:
        say_json(answer)
    else:
        say(f"{answer.name} is revoked")


def _grant(settings: Settings, name: str, role: str, lasts: str | None) -> MemberView:
    path = f"/api/v1/members/{_path(name)}/roles/{_path(role)}"
    return call(settings, lambda c: c.call("PUT", path, MemberView, GrantBody(lasts)))


def _path(text: str) -> str:
    return quote(text, safe="")


def _role_line(one: RoleView) -> str:
    includes = "reserved" if one.reserved else f"includes {one.includes}, defined by {one.created_by}"
    return f"{one.name}  {includes}{'; sees personal data' if one.sees_pii else ''}; members: {one.members}"


def _say_member(one: MemberView, as_json: bool) -> None:
    if as_json:
        say_json(one)
    else:
        say(_member_line(one))


def _member_line(one: MemberView) -> str:
    held = ", ".join(
        grant.role + (f" until {_time(grant.expires_at, '')}" if grant.expires_at is not None else "")
        for grant in one.roles
    )
    kind = "" if one.kind == "user" else ", a service account"
    if one.kind == "service" and one.issuer is not None:
        held = f"the roles of its JWTs{', ' if held else ''}{held}"
    seen = "" if one.last_seen_at is None else f", last seen {_time(one.last_seen_at, '')}"
    return (
        f"{one.name}{kind}: {held or 'no roles'}{', disabled' if one.disabled_at is not None else ''}{seen}"
    )


def _time(moment: datetime | None, otherwise: str) -> str:
    return otherwise if moment is None else f"{moment:%Y-%m-%d %H:%M} UTC"
