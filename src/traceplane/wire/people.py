"""People, service accounts, roles and tokens in the public API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from traceplane.wire.scalars import Text, Wire

Duration = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,6}[smhd]$", description="Such as 90s, 24h or 30d.")]
ReservedRole = Literal["admin", "writer", "reader"]
MemberKind = Literal["user", "service"]


class WhoAmI(Wire, frozen=True):
    org: str
    name: str
    kind: Literal["user", "service", "token"]
    """A person, a service account, or a token that is nobody's."""
    roles: list[str]
    sees_pii: bool
    role: ReservedRole | None = None
    """The highest that the roles include; unset: there is none."""
    datasets: list[str] | None = None
    """Patterns of names that the token is cut down to; unset: all."""
    next_step: str | None = None
    """What to do, if there is no role."""


class RoleMeaningBody(Wire, frozen=True):
    includes: ReservedRole = "reader"
    """What its members may call; the data they may read and write is said by `read_roles` and `write_roles`."""
    sees_pii: bool = False
    """Its members see columns that are marked as personal data."""


class RoleView(Wire, frozen=True):
    name: str
    includes: ReservedRole
    sees_pii: bool
    reserved: bool
    created_by: str
    created_at: datetime
    members: int


class RolesResponse(Wire, frozen=True):
    roles: list[RoleView]


class RoleDeletionQuery(Wire, frozen=True):
    force: bool = False
    """Even if datasets or secrets name it."""


class RoleDeleted(Wire, frozen=True):
    name: str


class MemberBody(Wire, frozen=True):
    kind: MemberKind = "user"
    email: Text | None = None


class GrantBody(Wire, frozen=True):
    lasts: Duration | None = None
    """The membership ends by itself after this time; unset: never."""


class GrantView(Wire, frozen=True):
    role: str
    granted_by: str
    expires_at: datetime | None = None
    by_claim: bool = False
    """A claim of the sign-in gave it."""


class MemberView(Wire, frozen=True):
    name: str
    kind: MemberKind
    created_by: str
    created_at: datetime
    roles: list[GrantView]
    email: str | None = None
    issuer: str | None = None
    """Where it signs in; unset: by tokens alone."""
    disabled_at: datetime | None = None
    last_seen_at: datetime | None = None


class MembersResponse(Wire, frozen=True):
    members: list[MemberView]


class NewTokenBody(Wire, frozen=True):
    name: Text
    member: Text | None = None
    """Whose it is: it has that member's roles, as they are at each call. Unset: it is nobody's, and needs `roles`."""
    roles: list[Text] | None = None
    """Cut down to these."""
    datasets: Annotated[list[Text], msgspec.Meta(min_length=1, max_length=100)] | None = None
    """Cut down to datasets with such names; `*` stands for any text."""
    lasts: Duration | None = None
    """Unset: until it is revoked."""


class IssuedToken(Wire, frozen=True):
    token: str
    """Shown only here: only its hash is stored."""
    warning: str | None = None
    """Why it has fewer rights than asked for."""


class TokenView(Wire, frozen=True):
    token_id: UUID
    name: str
    created_by: str
    created_at: datetime
    member: str | None = None
    roles: list[str] | None = None
    datasets: list[str] | None = None
    sees_pii: bool = False
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    """To the minute."""


class TokensResponse(Wire, frozen=True):
    tokens: list[TokenView]


class TokenRevoked(Wire, frozen=True):
    name: str
