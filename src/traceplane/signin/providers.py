"""The providers that an organization trusts, and which roles their claims mean."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from traceplane.errors import Forbidden, InvalidInput, NotFound, Unauthenticated
from traceplane.model.near_names import near
from traceplane.signin.jwts import Claims, Verified

SCOPES = ("openid", "profile", "email")

Scalar = str | int | bool

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,100}")
_EMAIL = re.compile(r"[!-~]{1,100}@[!-~]{1,100}")
_SECRET = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """An issuer, as one organization trusts it."""

    org: str
    name: str
    issuer: str
    client_id: str
    client_secret: str | None = None
    """The platform secret that holds it; unset: a public client."""
    audience: str | None = None
    """Of JWTs that machines send; unset: it accepts none."""
    roles_claim: str | None = None
    role_map: Mapping[str, str] = {}
    """Values of that claim, and the roles that they mean."""
    default_role: str | None = None
    """Of those whom no value gives a role; unset: they are refused."""
    required_claims: Mapping[str, Scalar] = {}
    scopes: Sequence[str] = SCOPES


def check(provider: Provider, *, roles: Collection[str]) -> None:
    """Whether this can be a provider of an organization with these roles; raises InvalidInput."""
    if not _NAME.fullmatch(provider.name):
        raise InvalidInput(
            "provider.bad_name",
            "a provider is named by a-z, then a-z, 0-9, _ and -, up to 63 in all",
            value=provider.name[:100],
            next_step="for example google or keycloak",
        )
    if "?" in provider.issuer or "#" in provider.issuer:
        raise InvalidInput(
            "provider.bad_issuer", "an issuer has no query and no fragment", value=provider.issuer[:200]
        )
    for role in sorted({*provider.role_map.values(), *filter(None, [provider.default_role])}):
        if role not in roles:
            raise InvalidInput(
                "provider.unknown_role",
                "the organization has no role of this name",
                value=role,
                next_step=near(role, sorted(roles)) or f"use one of {', '.join(sorted(roles))}",
            )
    if provider.role_map and provider.roles_claim is None:
        raise InvalidInput(
            "provider.incomplete",
            "the roles are to be read from a claim that is not named",
            next_step="set roles_claim (--roles-claim), for example to groups",
        )
    if not provider.role_map and provider.default_role is None:
        raise InvalidInput(
            "provider.incomplete",
            "nobody could sign in: no claim gives a role, and there is no default role",
            next_step="set role_map (--role VALUE=ROLE) or default_role (--default-role)",
        )
    if "openid" not in provider.scopes or not all(_SCOPE.fullmatch(scope) for scope in provider.scopes):
        raise InvalidInput(
            "provider.bad_scopes",
            "the scopes must be words without blanks, and openid must be one of them",
            value=" ".join(provider.scopes)[:200],
        )
    if provider.client_secret is not None and not _SECRET.fullmatch(provider.client_secret):
        raise InvalidInput(
            "provider.bad_secret",
            "client_secret is the name of a platform secret, not its value",
            next_step="set the value with `traceplane secret set platform/NAME`, and give NAME here",
        )


def claim(claims: Claims, path: str) -> object:
    """The claim of this name, or, as in `realm_access.roles`, one inside another; None if there is none."""
    if path in claims:
        return claims[path]
    value: object = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def accepts(provider: Provider, verified: Verified) -> bool:
    """Whether the claims are those that the organization requires."""
    return provider.issuer == verified.issuer and all(
        any(_same(value, required) for value in _values(claim(verified.claims, path)))
        for path, required in provider.required_claims.items()
    )


def roles_of(provider: Provider, verified: Verified) -> frozenset[str]:
    """The roles that the claims mean; raises Forbidden if there is none."""
    values = [] if provider.roles_claim is None else _values(claim(verified.claims, provider.roles_claim))
    roles = {provider.role_map[v] for v in values if isinstance(v, str) and v in provider.role_map}
    if not roles and provider.default_role is not None:
        roles = {provider.default_role}
    if not roles:
        raise Forbidden(
            "sign_in.no_role",
            "no claim of this person or machine means a role here",
            value=verified.subject,
            next_step="ask an admin of the organization to add a group to the provider's role map",
        )
    return frozenset(roles)


def chosen(candidates: Sequence[Provider], verified: Verified, org: str | None) -> Provider:
    """The provider that a JWT is used with: the claims decide, and the caller if that leaves several organizations."""
    fitting = [provider for provider in _addressed(candidates, verified, org) if accepts(provider, verified)]
    if not fitting:
        raise Unauthenticated(
            "jwt.not_accepted",
            "no organization accepts these claims",
            value=org,
            next_step="check the required claims of the provider, and the header Traceplane-Org",
        )
    if len({provider.org for provider in fitting}) > 1:
        # Nobody is told which: the caller knows its organization, and others are no concern of it.
        raise InvalidInput(
            "jwt.org_ambiguous",
            "several organizations accept this JWT",
            next_step="name the organization with the header Traceplane-Org",
        )
    return fitting[0]


def meant(candidates: Sequence[Provider], verified: Verified, org: str | None) -> Provider | None:
    """The provider that a JWT was meant for, whether or not it accepts the claims; None if that is not clear."""
    addressed = _addressed(candidates, verified, org)
    return addressed[0] if len({provider.org for provider in addressed}) == 1 else None


def _addressed(candidates: Sequence[Provider], verified: Verified, org: str | None) -> list[Provider]:
    return [
        provider
        for provider in candidates
        if provider.audience in verified.audiences and org in (None, provider.org)
    ]


def named(providers: Sequence[Provider], org: str, name: str | None) -> Provider:
    """The provider that a person chose, or the only one of the organization."""
    of_org = [provider for provider in providers if provider.org == org]
    if name is None and len(of_org) == 1:
        return of_org[0]
    for provider in of_org:
        if provider.name == name:
            return provider
    if not of_org:
        # The same answer whether or not there is such an organization.
        raise NotFound(
            "sign_in.unknown_provider",
            "no organization of this name has an identity provider",
            value=org,
            next_step="check the name of the organization (`--org`, or the setting org), "
            "or ask an admin of it to set a provider",
        )
    names = [provider.name for provider in of_org]
    raise NotFound(
        "sign_in.unknown_provider",
        "the organization has no such identity provider"
        if name
        else "the organization has several identity providers, and none was named",
        value=name or org,
        next_step=f"name one with `--provider`, or `provider=` in a browser: {', '.join(names)}",
    )


def display_name(provider: Provider, verified: Verified) -> str:
    """What a person is called here. Only an address that the provider vouches for: others can be chosen freely."""
    return verified_email(verified) or machine_name(provider, verified)


def verified_email(verified: Verified) -> str | None:
    email = verified.claims.get("email")
    vouched_for = verified.claims.get("email_verified") is True
    return email if isinstance(email, str) and vouched_for and _EMAIL.fullmatch(email) else None


def machine_name(provider: Provider, verified: Verified) -> str:
    return f"{provider.name}:{verified.subject}"


def _values(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _same(value: object, required: Scalar) -> bool:
    return value == required and isinstance(value, bool) is isinstance(required, bool)
