"""Who calls the public API, with what rights, and the database as they may see it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from traceplane.auth.roles import Role
from traceplane.postgres.audit import Act
from traceplane.postgres.database import OrgDatabase


class CallerKind(StrEnum):
    USER = "user"
    """A person."""
    SERVICE = "service"
    """A service account."""
    TOKEN = "token"  # noqa: S105
    """A token that is nobody's: it has the roles it was issued with."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Made for one call. Whatever the call reads or changes, it does through `database`, where other organizations
    do not exist."""

    org: str
    org_id: UUID
    name: str
    counted_as: str
    """What limits are counted by: a member with all their tokens and sessions, a machine's subject, or a token that is
    nobody's. Names of tokens are not unique."""
    kind: CallerKind
    roles: frozenset[str]
    """Reserved ones and the organization's own."""
    role: Role | None
    """The highest of admin, writer, reader that the roles include; None, for calls that need no role: there is none."""
    sees_pii: bool
    datasets: tuple[str, ...] | None
    """Patterns of dataset names that the token is cut down to; None: all."""
    database: OrgDatabase
    act: Act
    """What the call does, for the audit log."""
    member_id: UUID | None = None
    """The member that calls; None: the token is nobody's. What is a member's own goes by this: names say less, since a
    token may be called like a member."""
    cut_token_id: UUID | None = None
    """The token, if it has less than all rights of its member, or reaches only some datasets."""

    @property
    def is_admin(self) -> bool:
        """Of the organization. A token for some datasets is none, whatever its role."""
        return self.role is Role.ADMIN and self.datasets is None
