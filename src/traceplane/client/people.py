"""Who may do what in an organization: roles, members, tokens, identity providers, secrets, and who did what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

from traceplane.client.connection import Connection, every, quoted, uuid_of
from traceplane.wire.audit import AuditEntry, AuditResponse
from traceplane.wire.people import (
    GrantBody,
    IssuedToken,
    MemberBody,
    MemberKind,
    MembersResponse,
    MemberView,
    NewTokenBody,
    ReservedRole,
    RoleDeleted,
    RoleMeaningBody,
    RolesResponse,
    RoleView,
    TokenRevoked,
    TokensResponse,
    TokenView,
)
from traceplane.wire.secrets import (
    SecretRemoved,
    SecretRightsRequest,
    SecretRightsView,
    SecretSet,
    SecretsResponse,
    SecretValue,
    SecretView,
)
from traceplane.wire.sign_in import ProviderRemoved, ProviderSettings, ProvidersResponse, ProviderView

_ROLES = "/api/v1/roles"
_MEMBERS = "/api/v1/members"
_TOKENS = "/api/v1/tokens"
_PROVIDERS = "/api/v1/identity-providers"
_SECRETS = "/api/v1/secrets"


class Roles:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[RoleView]:
        return self._connection.ask("GET", _ROLES, RolesResponse).roles

    def define(self, role: str, *, includes: ReservedRole = "reader", sees_pii: bool = False) -> RoleView:
        """Adds or changes a role of the organization's own. `includes` says what its members may call."""
        request = RoleMeaningBody(includes, sees_pii)
        return self._connection.ask("PUT", f"{_ROLES}/{quoted(role)}", RoleView, request)

    def delete(self, role: str, *, force: bool = False) -> RoleDeleted:
        """`force`: even if datasets or secrets name it."""
        return self._connection.ask("DELETE", f"{_ROLES}/{quoted(role)}", RoleDeleted, force=force)


class Members:
    """People and service accounts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[MemberView]:
        return self._connection.ask("GET", _MEMBERS, MembersResponse).members

    def add(self, member: str, *, kind: MemberKind = "user", email: str | None = None) -> MemberView:
        """Adds a member, or enables one again."""
        return self._connection.ask("PUT", _member(member), MemberView, MemberBody(kind, email))

    def disable(self, member: str) -> MemberView:
        """Its tokens and sessions end at once, for good."""
        return self._connection.ask("DELETE", _member(member), MemberView)

    def grant(self, member: str, role: str, *, lasts: str | None = None) -> MemberView:
        """Gives a member a role, for a time such as `24h` or `30d`, or until it is withdrawn."""
        path = f"{_member(member)}/roles/{quoted(role)}"
        return self._connection.ask("PUT", path, MemberView, GrantBody(lasts))

    def withdraw(self, member: str, role: str) -> MemberView:
        path = f"{_member(member)}/roles/{quoted(role)}"
        return self._connection.ask("DELETE", path, MemberView)


class Tokens:
    """User tokens: an admin sees all, others their own."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[TokenView]:
        return self._connection.ask("GET", _TOKENS, TokensResponse).tokens

    def issue(
        self,
        name: str,
        *,
        member: str | None = None,
        roles: Sequence[str] | None = None,
        datasets: Sequence[str] | None = None,
        lasts: str | None = None,
    ) -> IssuedToken:
        """The token is returned once. It has the rights of `member`, or nobody's but `roles`; cut down to `roles` and
        to `datasets` (`*` stands for any text), for a time such as `30d`."""
        request = NewTokenBody(
            name,
            member,
            None if roles is None else list(roles),
            None if datasets is None else list(datasets),
            lasts,
        )
        return self._connection.ask("POST", _TOKENS, IssuedToken, request)

    def revoke(self, token_id: UUID | str) -> TokenRevoked:
        path = f"{_TOKENS}/{uuid_of(token_id, 'token_id', 'tokens.all()')}"
        return self._connection.ask("DELETE", path, TokenRevoked)


class IdentityProviders:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[ProviderView]:
        return self._connection.ask("GET", _PROVIDERS, ProvidersResponse).providers

    def get(self, name: str) -> ProviderView:
        return self._connection.ask("GET", f"{_PROVIDERS}/{quoted(name)}", ProviderView)

    def set(self, name: str, provider: ProviderSettings) -> ProviderView:
        return self._connection.ask("PUT", f"{_PROVIDERS}/{quoted(name)}", ProviderView, provider)

    def remove(self, name: str) -> ProviderRemoved:
        """The sessions of its people end."""
        return self._connection.ask("DELETE", f"{_PROVIDERS}/{quoted(name)}", ProviderRemoved)


class Secrets:
    """Values that jobs receive and nobody reads back. `platform`: in the namespace of the platform itself."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[SecretView]:
        """Those that the caller may set, without their values."""
        return self._connection.ask("GET", _SECRETS, SecretsResponse).secrets

    def set(
        self,
        name: str,
        value: str,
        *,
        platform: bool = False,
        allowed_jobs: Sequence[str] | None = None,
        any_job: bool = False,
        roles: Sequence[str] | None = None,
    ) -> SecretSet:
        """Sets a secret, or a new version of it. For the rights, see `allow`."""
        rights = _rights(allowed_jobs, any_job, roles)
        request = SecretValue(rights.allowed_jobs, rights.any_job, rights.roles, value=value)
        return self._connection.ask("PUT", _secret(name, platform), SecretSet, request)

    def allow(
        self,
        name: str,
        *,
        platform: bool = False,
        allowed_jobs: Sequence[str] | None = None,
        any_job: bool = False,
        roles: Sequence[str] | None = None,
    ) -> SecretRightsView:
        """Who may use it: `dag/job` or `dag/*`, or with `any_job` every job. Who may set it, besides admins: members
        with `roles`. What is not given stays as it is."""
        request = _rights(allowed_jobs, any_job, roles)
        path = f"{_secret(name, platform)}/rights"
        return self._connection.ask("POST", path, SecretRightsView, request)

    def remove(self, name: str, *, platform: bool = False) -> SecretRemoved:
        """With all its versions."""
        return self._connection.ask("DELETE", _secret(name, platform), SecretRemoved)


class Audit:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def each(
        self,
        *,
        principal: str | None = None,
        action: str | None = None,
        outcome: Literal["ok", "refused"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        oldest_first: bool = False,
        limit: int | None = None,
    ) -> Iterator[AuditEntry]:
        """Who changed what, and who was refused what, newest first. `action` is a part of it, such as `secrets`."""

        def page(last: int | None, size: int) -> tuple[Sequence[AuditEntry], int | None]:
            before, after = (None, last or 0) if oldest_first else (last, None)
            entries = self._connection.ask(
                "GET",
                "/api/v1/audit",
                AuditResponse,
                principal=principal,
                action=action,
                outcome=outcome,
                since=since,
                until=until,
                before=before,
                after=after,
                limit=size,
            ).entries
            return entries, entries[-1].audit_id if len(entries) == size else None

        return every(page, limit)


def _member(member: str) -> str:
    return f"{_MEMBERS}/{quoted(member)}"


def _secret(name: str, platform: bool) -> str:
    return f"{_SECRETS}/{'platform' if platform else 'user'}/{quoted(name)}"


def _rights(
    allowed_jobs: Sequence[str] | None, any_job: bool, roles: Sequence[str] | None
) -> SecretRightsRequest:
    return SecretRightsRequest(
        None if allowed_jobs is None else list(allowed_jobs), any_job, None if roles is None else list(roles)
    )
