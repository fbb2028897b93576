"""`traceplane login`, `traceplane logout`, `traceplane provider` and `traceplane ui`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from urllib.parse import quote

import click

from traceplane.cli import profile
from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, say, say_json
from traceplane.cli.whereabouts import call, explained
from traceplane.errors import InvalidInput, Unauthenticated
from traceplane.http_service.client import Caller
from traceplane.settings import Settings, signed_in_file, token_file
from traceplane.wire.sign_in import (
    BrowserLink,
    DeviceRequest,
    DeviceResponse,
    DeviceTokenRequest,
    DeviceTokenResponse,
    ProviderRemoved,
    ProviderSettings,
    ProvidersResponse,
    ProviderView,
    SignedOut,
)

_SLOWER_SECONDS = 5
_PATH = "/api/v1/identity-providers"


@click.command()
@click.option("--org", metavar="NAME", help="The organization; by default the setting org.")
@click.option("--provider", metavar="NAME", help="The identity provider, if the organization has several.")
@as_json
@click.pass_obj
def login(settings: Settings, org: str | None, provider: str | None, as_json: bool) -> None:
    """Sign in with the identity provider of the organization, in a browser on any machine. Lasts 12 hours."""
    if settings.user_token is not None:
        raise InvalidInput(
            "cli.token_is_set",
            "a user token is set, which commands would use instead of the sign-in",
            next_step="unset TRACEPLANE_USER_TOKEN, or remove user_token from the settings file",
        )

    async def run() -> DeviceTokenResponse:
        caller = Caller(settings.gateway_address, tls_ca=settings.tls_ca)
        try:
            return await _sign_in(caller, org or settings.own_org, provider, as_json=as_json)
        finally:
            await caller.close()

    with explained(settings):
        done = asyncio.run(run())
    assert done.token is not None
    _keep(settings, done.token)
    if as_json:
        say_json({"name": done.name})
    else:
        say(f"signed in as {done.name}; `traceplane logout` ends it")


async def _sign_in(caller: Caller, org: str, provider: str | None, *, as_json: bool) -> DeviceTokenResponse:
    """`as_json`: what to do goes to stderr, beside the answer."""
    begun = await caller.call("POST", "/auth/device", DeviceResponse, DeviceRequest(org, provider))
    if begun.verification_uri_complete is not None:
        # The address has the code, so not every provider shows it once more.
        say(
            f"Open {begun.verification_uri_complete} and sign in;"
            f" if the page shows a code, or asks for one, it is {begun.user_code}",
            err=as_json,
        )
    else:
        say(f"Open {begun.verification_uri} and enter the code {begun.user_code}", err=as_json)
    question = DeviceTokenRequest(org, begun.provider, begun.device_code, begun.verifier)
    pause, left = begun.interval, begun.expires_in
    while left > 0:
        await asyncio.sleep(pause)
        left -= pause
        answer = await caller.call("POST", "/auth/device/token", DeviceTokenResponse, question)
        if answer.status == "signed_in":
            return answer
        if answer.status == "slow_down":
            pause += _SLOWER_SECONDS
    raise Unauthenticated(
        "cli.sign_in_expired", "nobody signed in before the code expired", next_step="run it again"
    )


@click.command()
@as_json
@click.pass_obj
def ui(settings: Settings, as_json: bool) -> None:
    """Print a link to the web UI that signs a browser in, once and within ten minutes."""
    link = call(settings, lambda c: c.call("POST", "/auth/browser-link", BrowserLink))
    if as_json:
        say_json(link)
    else:
        say(link.url)


@click.command()
@as_json
@click.pass_obj
def logout(settings: Settings, as_json: bool) -> None:
    """End the sign-in of this folder: the platform revokes its token."""
    if not signed_in_file(settings).exists():
        raise InvalidInput(
            "cli.not_signed_in",
            "nobody is signed in from this folder",
            value=settings.home.absolute(),
            next_step="sign in with `traceplane login`",
        )
    try:
        call(settings, lambda c: c.call("POST", "/auth/logout", SignedOut))
    except Unauthenticated:
        say("the sign-in had ended before", err=True)
    _forget(settings)
    say_json({"signed_out": True}) if as_json else say("signed out")


def _keep(settings: Settings, token: str) -> None:
    """Puts the token where commands look for it; one of the folder's own platform is kept for later."""
    user, before = token_file(settings, "user"), token_file(settings, "user_before_login")
    if user.exists() and not signed_in_file(settings).exists():
        user.replace(before)
    profile.write_private(signed_in_file(settings), json.dumps({"url": settings.gateway_address}))
    profile.write_private(user, token)


def _forget(settings: Settings) -> None:
    user, before = token_file(settings, "user"), token_file(settings, "user_before_login")
    user.unlink(missing_ok=True)
    signed_in_file(settings).unlink(missing_ok=True)
    if before.exists():
        before.replace(user)


@click.group(cls=Noun)
def provider() -> None:
    """Identity providers: who may sign in, and how."""


@provider.command("set")
@click.argument("name")
@click.option("--issuer", required=True, metavar="URL", help="As the provider's documents write it.")
@click.option("--client-id", required=True, metavar="ID", help="Of the client that is registered there.")
@click.option("--client-secret", metavar="SECRET", help="The name of the platform secret that holds it.")
@click.option("--audience", metavar="TEXT", help="Of JWTs that machines send; without it, none is accepted.")
@click.option("--roles-claim", metavar="CLAIM", help="The claim that roles are read from.")
@click.option("--role", "roles", multiple=True, metavar="VALUE=ROLE", help="A value of it, and its role.")
@click.option("--default-role", metavar="ROLE", help="Of those whom no value gives a role.")
@click.option("--require", "required", multiple=True, metavar="CLAIM=VALUE", help="A claim that is required.")
@click.option("--scope", "scopes", multiple=True, metavar="SCOPE", help="One more to ask for.")
@as_json
@click.pass_obj
def set_(
    settings: Settings,
    name: str,
    issuer: str,
    client_id: str,
    client_secret: str | None,
    audience: str | None,
    roles_claim: str | None,
    roles: tuple[str, ...],
    default_role: str | None,
    required: tuple[str, ...],
    scopes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Let people and machines of an issuer in, with the roles that their claims mean."""
    request = ProviderSettings(
        issuer=issuer,
        client_id=client_id,
        client_secret=client_secret,
        audience=audience,
        roles_claim=roles_claim,
        role_map=_pairs(roles, "--role"),
        default_role=default_role,
        required_claims={claim: _value(text) for claim, text in _pairs(required, "--require").items()},
        scopes=list(dict.fromkeys(["openid", "profile", "email", *scopes])),
    )
    answer = call(settings, lambda c: c.call("PUT", _path(name), ProviderView, request))
    if as_json:
        say_json(answer)
        return
    say(f"{answer.name} is set; people sign in with `traceplane login`, or with a browser at")
    say(f"{settings.gateway_address}/auth/login?org={quote(answer.org)}&provider={quote(answer.name)}")


@provider.command("list")
@as_json
@click.pass_obj
def list_(settings: Settings, as_json: bool) -> None:
    """Show the identity providers of the organization."""
    answer = call(settings, lambda c: c.call("GET", _PATH, ProvidersResponse))
    if as_json:
        say_json(answer)
        return
    for one in answer.providers:
        say(f"{one.name}  {one.issuer}, client {one.client_id}, set by {one.set_by}")
        mapped = [f"{value} is {role}" for value, role in one.role_map.items()]
        mapped += [f"everybody else is {one.default_role}"] if one.default_role is not None else []
        say(f"  {one.roles_claim or 'no claim'}: {', '.join(mapped)}")
        if one.required_claims:
            say(
                f"  required: {', '.join(f'{claim}={value}' for claim, value in one.required_claims.items())}"
            )
    if not answer.providers:
        say("There are no identity providers. Set one with `traceplane provider set NAME`.")


@provider.command("delete")
@click.argument("name")
@as_json
@click.pass_obj
def delete(settings: Settings, name: str, as_json: bool) -> None:
    """Delete the identity provider NAME. Sign-ins with its issuer end."""
    answer = call(settings, lambda c: c.call("DELETE", _path(name), ProviderRemoved))
    if as_json:
        say_json(answer)
    else:
        say(f"{answer.name} is deleted, and the sessions of its people have ended")


def _path(name: str) -> str:
    return f"{_PATH}/{quote(name, safe='')}"


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Split at the last `=`: a value may have one, a role has none."""
    pairs = {}
    for text in texts:
        key, equals, value = text.rpartition("=") if option == "--role" else text.partition("=")
        if not equals or not key or not value:
            raise click.BadParameter(f"{text!r} lacks a name, = or a value", param_hint=option)
        pairs[key] = value
    return pairs


def _value(text: str) -> str | bool:
    return {"true": True, "false": False}.get(text, text)
