"""Allow or deny, as pure functions: the token in a header, and the role behind a user token."""

from __future__ import annotations

import re

from traceplane import errors
from traceplane.auth.opaque import Role, TokenRecord

_RANK = {Role.READER: 1, Role.WRITER: 2, Role.ADMIN: 3}
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


def may_see_pii(record: TokenRecord) -> bool:
    """Only admins, and tokens issued for it, see columns marked as personal data."""
    return record.role is Role.ADMIN or record.sees_pii


def may_see_config(record: TokenRecord) -> bool:
    """Only those who may deploy a DAG see its jobs' configs, which may hold addresses with keys."""
    return record.role is Role.ADMIN


def may_see_parameters(record: TokenRecord) -> bool:
    """Only those who may set the parameters of pipelines, and run Celery's executions with them, see them."""
    return record.role in (Role.WRITER, Role.ADMIN)


def require_role(record: TokenRecord, role: Role) -> None:
    """Passes if the user's role is this one or above: admin > writer > reader. A worker has none."""
    if record.role is None or _RANK[record.role] < _RANK[role]:
        raise errors.Forbidden(
            "access.role_required",
            f"this call needs the role {role}",
            value=record.role or record.principal,
            next_step="ask an admin of the organization",
        )
