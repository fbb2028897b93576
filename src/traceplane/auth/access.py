"""Allow or deny, as pure functions: the token in a header, and the role behind a user token."""

from __future__ import annotations

import re

from traceplane import errors
from traceplane.auth.callers import Caller
from traceplane.auth.opaque import TokenRecord
from traceplane.auth.roles import RANKS, Role

KNOWN = "known"
"""Instead of a role: the call needs none, only somebody who is known."""
_TOKEN68 = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # RFC 9110, 11.2


def bearer(header_value: str | None) -> str:
    """The token of an `Authorization: Bearer …` header."""
    scheme, _, token = (header_value or "").strip(" \t").partition(" ")
    token = token.lstrip(" ")
    if not scheme or (scheme.lower() == "bearer" and not token):
        raise errors.Unauthenticated(
            "token.missing", "the call has no token", next_step="send Authorization: Bearer <token>"
        )
    if scheme.lower() != "bearer" or not _TOKEN68.fullmatch(token):
        raise errors.Unauthenticated(
            "token.malformed",
            "the Authorization header is not a bearer token",
            next_step="send Authorization: Bearer <token>",
        )
    return token


def check_org(what: str, org: str, expected: str | None) -> None:
    """A token or a session has one organization. A caller who expects another must not change this one."""
    if expected is not None and expected != org:
        raise errors.Forbidden(
            "access.other_org",
            f"the {what} is one of the organization {org}",
            value=expected,
            next_step=f"use a {what} of the organization that Traceplane-Org names, or leave out the header",
        )


def cut_down(token: str) -> errors.Forbidden:
    return errors.Forbidden(
        "access.cut_down",
        "this token is cut down to some datasets or roles, and this call is about more",
        value=token,
        next_step="use a token that is not cut down",
    )


def may_see_config(caller: Caller) -> bool:
    """Only those who may deploy a DAG see its jobs' configs, which may hold addresses with keys."""
    return caller.is_admin


def may_see_parameters(caller: Caller) -> bool:
    """Only those who may set the parameters of pipelines, and run Celery's executions with them, see them."""
    return caller.role in (Role.WRITER, Role.ADMIN)


def require_role(record: TokenRecord, needed: str) -> Role | None:
    """The user's role, if it is this one or above: admin > writer > reader. A worker has none."""
    return required_role(record.role, needed, record.member.name if record.member else record.name)


def required_role(held: Role | None, needed: str, caller: str) -> Role | None:
    if needed == KNOWN:
        return held
    if held is None:
        raise errors.Forbidden(
            "access.role_required",
            "you have no roles, or they have expired",
            value=caller,
            next_step="ask an admin of the organization: `traceplane member grant NAME ROLE`",
        )
    if RANKS[held] < RANKS[Role(needed)]:
        raise errors.Forbidden(
            "access.role_required",
            f"this call needs the role {needed}",
            value=held,
            next_step="ask an admin of the organization",
        )
    return held
