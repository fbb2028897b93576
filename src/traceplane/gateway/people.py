"""Members, roles and tokens of an organization. Only its admins change them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from traceplane import telemetry
from traceplane.auth import store
from traceplane.auth.access import KNOWN, cut_down
from traceplane.auth.callers import Caller
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import RESERVED, Role, RoleMeaning, rights
from traceplane.errors import Conflict, InvalidInput, NotFound
from traceplane.http_service.routes import Call, Route
from traceplane.model import durations
from traceplane.model.near_names import near
from traceplane.postgres import people
from traceplane.postgres.database import Transaction
from traceplane.postgres.people import LockedMember, StoredMember
from traceplane.wire.people import (
    GrantBody,
    GrantView,
    IssuedToken,
    MemberBody,
    MembersResponse,
    MemberView,
    NewTokenBody,
    RoleDeleted,
    RoleDeletionQuery,
    RoleMeaningBody,
    RolesResponse,
    RoleView,
    TokenRevoked,
    TokensResponse,
    TokenView,
    WhoAmI,
)

READER, ADMIN = "reader", "admin"
_USES_TOLD = 5
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]{0,99}")
_ROLE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


class PeopleApi:
    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/whoami", None, WhoAmI, self.whoami, KNOWN, "Who calls, and with what rights."),
            Route("GET", "/api/v1/roles", None, RolesResponse, self.roles, READER, "Roles of the organization."),
            Route("PUT", "/api/v1/roles/{role}", RoleMeaningBody, RoleView, self.define_role, ADMIN,
                  "Define a role of the organization's own."),
            Route("DELETE", "/api/v1/roles/{role}", None, RoleDeleted, self.delete_role, ADMIN,
                  "Delete a role; nobody has it any more.", query=RoleDeletionQuery),
            Route("GET", "/api/v1/members", None, MembersResponse, self.members, ADMIN,
                  "People and service accounts."),
            Route("PUT", "/api/v1/members/{member}", MemberBody, MemberView, self.add_member, ADMIN,
                  "Add a person or a service account, or enable one again."),
            Route("DELETE", "/api/v1/members/{member}", None, MemberView, self.disable_member, ADMIN,
                  "Disable a member: its tokens and sessions end at once, for good."),
            Route("PUT", "/api/v1/members/{member}/roles/{role}", GrantBody, MemberView, self.grant, ADMIN,
                  "Give a member a role."),
            Route("DELETE", "/api/v1/members/{member}/roles/{role}", None, MemberView, self.withdraw, ADMIN,
                  "Take a role from a member."),
            Route("GET", "/api/v1/tokens", None, TokensResponse, self.tokens, READER,
                  "User tokens: an admin sees all, others their own."),
            Route("POST", "/api/v1/tokens", NewTokenBody, IssuedToken, self.issue_token, ADMIN,
                  "Issue a user token."),
            Route("DELETE", "/api/v1/tokens/{token_id}", None, TokenRevoked, self.revoke_token, READER,
                  "Revoke a user token: an admin any, others their own, a token that is cut down itself."),
        ]  # fmt: skip

    async def whoami(self, call: Call[None]) -> WhoAmI:
        caller: Caller = call.principal
        return WhoAmI(
            org=caller.org,
            name=caller.name,
            kind=caller.kind.value,
            role=None if caller.role is None else caller.role.value,
            roles=sorted(caller.roles),
            sees_pii=caller.sees_pii,
            datasets=None if caller.datasets is None else list(caller.datasets),
            next_step=None
            if caller.roles
            else f"ask an admin of the organization for a role: `traceplane member grant {caller.name} ROLE`",
        )

    # Roles -------------------------------------------------------------------------------------------

    async def roles(self, call: Call[None]) -> RolesResponse:
        async with call.principal.database.transaction() as tx:
            return RolesResponse(await _roles(tx))

    async def define_role(self, call: Call[RoleMeaningBody]) -> RoleView:
        name, by = call.path_params["role"], call.principal.name
        if not _ROLE_NAME.fullmatch(name):
            raise InvalidInput(
                "role.bad_name",
                "a role is named by a-z, then a-z, 0-9, _ and -, up to 63 in all",
                value=name[:200],
                next_step="for example finance",
            )
        _refuse_reserved(name, "means the same everywhere")
        async with call.principal.database.transaction() as tx:
            await people.define_role(tx, name, call.body.includes, sees_pii=call.body.sees_pii, by=by)
            (role,) = [role for role in await _roles(tx) if role.name == name]
        telemetry.emit(
            "role.defined", role=name, includes=role.includes, sees_pii=role.sees_pii, principal=by
        )
        return role

    async def delete_role(self, call: Call[None]) -> RoleDeleted:
        name = call.path_params["role"]
        _refuse_reserved(name, "cannot be deleted")
        query: RoleDeletionQuery = call.query
        async with call.principal.database.transaction() as tx:
            uses = await people.uses_of_role(tx, name, _USES_TOLD + 1)
            if uses and not query.force:
                more = " and more" if len(uses) > _USES_TOLD else ""
                raise Conflict(
                    "role.in_use",
                    f"the role is named by {', '.join(uses[:_USES_TOLD])}{more}",
                    value=name,
                    next_step="take it out of read_roles, write_roles and secrets first, or use --force (?force=true)",
                )
            if not await people.delete_role(tx, name):
                raise await _unknown_role(tx, name)
        telemetry.emit("role.deleted", role=name, principal=call.principal.name)
        return RoleDeleted(name)

    # Members -----------------------------------------------------------------------------------------

    async def members(self, call: Call[None]) -> MembersResponse:
        async with call.principal.database.transaction() as tx:
            return MembersResponse([_member_view(member) for member in await people.members(tx)])

    async def add_member(self, call: Call[MemberBody]) -> MemberView:
        name, asked, by = call.path_params["member"], call.body, call.principal.name
        async with call.principal.database.transaction() as tx:
            # A sign-in may have named a member otherwise, such as keycloak:1234.
            if not _NAME.fullmatch(name) and not await people.members(tx, name):
                raise InvalidInput(
                    "member.bad_name",
                    "a member is named by at most 100 letters, digits and _ . @ + -, and starts with a letter or digit",
                    value=name[:200],
                    next_step="for example ada@example.com or nightly-loads",
                )
            added = await people.add_member(tx, asked.kind, name, asked.email, by=by)
            member_id = (await _locked(tx, name)).member_id
            (member,) = await people.members(tx, name)
            if member.kind != asked.kind:
                raise Conflict(
                    "member.exists",
                    f"there is a {_KINDS[member.kind]} of this name",
                    value=name,
                    next_step="choose another name",
                )
            enabled = await people.enable_member(tx, member_id)
            (member,) = await people.members(tx, name)
        if added:
            telemetry.emit("member.added", member=name, principal=by)
        elif enabled:
            telemetry.emit("member.enabled", member=name, principal=by)
        return _member_view(member)

    async def disable_member(self, call: Call[None]) -> MemberView:
        view = await _changed(call, people.disable_member)
        telemetry.emit("member.disabled", member=view.name, principal=call.principal.name)
        return view

    async def grant(self, call: Call[GrantBody]) -> MemberView:
        role, by = call.path_params["role"], call.principal.name
        lasts = _length(call.body.lasts)

        async def grant(tx: Transaction, member_id: UUID) -> None:
            if role not in {defined.name for defined in await people.roles(tx)}:
                raise await _unknown_role(tx, role)
            await people.grant(tx, member_id, role, by=by, lasts=lasts)

        view = await _changed(call, grant)
        telemetry.emit("member.granted", member=view.name, role=role, principal=by)
        return view

    async def withdraw(self, call: Call[None]) -> MemberView:
        role = call.path_params["role"]

        async def withdraw(tx: Transaction, member_id: UUID) -> None:
            if not await people.withdraw(tx, member_id, role):
                (member,) = await people.members(tx, call.path_params["member"])
                held = ", ".join(grant.role for grant in member.roles) or "none"
                raise NotFound(
                    "member.lacks_role",
                    "the member does not have this role",
                    value=role[:200],
                    next_step=f"it has {held}",
                )

        view = await _changed(call, withdraw)
        telemetry.emit("member.withdrawn", member=view.name, role=role, principal=call.principal.name)
        return view

    # Tokens ------------------------------------------------------------------------------------------

    async def tokens(self, call: Call[None]) -> TokensResponse:
        async with call.principal.database.transaction() as tx:
            found = await people.tokens(tx, of_member=_only_own(call.principal))
        return TokensResponse(
            [
                TokenView(
                    token_id=t.token_id,
                    name=t.name,
                    member=t.member,
                    roles=t.roles,
                    datasets=t.datasets,
                    sees_pii=t.sees_pii,
                    created_by=t.created_by,
                    created_at=t.created_at,
                    expires_at=t.expires_at,
                    last_used_at=t.last_used_at,
                )
                for t in found
            ]
        )

    async def issue_token(self, call: Call[NewTokenBody]) -> IssuedToken:
        asked, caller = call.body, call.principal
        if not _NAME.fullmatch(asked.name) and asked.name != asked.member:
            raise InvalidInput(
                "token.bad_name",
                "a token is named by at most 100 letters, digits and _ . @ + -, and starts with a letter or digit",
                value=asked.name[:200],
                next_step="for example laptop or ci-deploys",
            )
        if asked.member is None and not asked.roles:
            raise InvalidInput(
                "token.needs_roles",
                "a token that is nobody's needs roles",
                next_step="name a member, or roles",
            )
        async with caller.database.transaction() as tx:
            member = None if asked.member is None else await _locked(tx, asked.member)
            if member is not None and member.disabled:
                raise Conflict(
                    "member.disabled",
                    "the member is disabled, so it cannot have tokens",
                    value=asked.member,
                    next_step=f"enable it with `traceplane member add {asked.member}`",
                )
            if asked.roles:
                defined = await people.lock_roles(tx, asked.roles)
                for role in asked.roles:
                    if role not in defined:
                        raise await _unknown_role(tx, role)
            warning = None if asked.member is None else await _warning(tx, asked.member, asked.roles)
            lasts = _length(asked.lasts)
            token = await store.issue_token(
                tx,
                Principal.USER,
                org=caller.org,
                name=asked.name,
                lifetime_seconds=None if lasts is None else lasts.total_seconds(),
                roles=asked.roles,
                datasets=asked.datasets,
                member_id=None if member is None else member.member_id,
                created_by=caller.name,
            )
        telemetry.emit("token.issued", name=asked.name, member=asked.member, principal=caller.name)
        return IssuedToken(token, warning)

    async def revoke_token(self, call: Call[None]) -> TokenRevoked:
        text, name = call.path_params["token_id"], None
        try:
            token_id = UUID(text)
        except ValueError:
            raise InvalidInput(
                "token.bad_id",
                "a token is named by its id",
                value=text[:200],
                next_step="see `traceplane token list`",
            ) from None
        caller: Caller = call.principal
        if not caller.is_admin and caller.cut_token_id not in (None, token_id):
            raise cut_down(caller.name)
        async with call.principal.database.transaction() as tx:
            name = await people.revoke_token(tx, token_id, of_member=_only_own(call.principal))
        if name is None:
            raise NotFound(
                "token.not_found",
                "no valid token has this id",
                value=text,
                next_step="see `traceplane token list`",
            )
        telemetry.emit("token.revoked", name=name, principal=call.principal.name)
        return TokenRevoked(name)


async def _changed(call: Call[Any], change: Callable[[Transaction, UUID], Awaitable[object]]) -> MemberView:
    """The member of the path, after the change."""
    name = call.path_params["member"]
    async with call.principal.database.transaction() as tx:
        await change(tx, (await _locked(tx, name)).member_id)
        (member,) = await people.members(tx, name)
    return _member_view(member)


_KINDS = {"user": "person", "service": "service account"}


_NOBODY = UUID(int=0)


def _only_own(caller: Caller) -> UUID | None:
    """The member whose tokens the caller may look after; None: everyone's. A token that is nobody's, and no admin's,
    has none."""
    return None if caller.is_admin else caller.member_id or _NOBODY


def _refuse_reserved(name: str, why: str) -> None:
    if name in RESERVED:
        raise Conflict(
            "role.reserved", f"{name} is there in every organization, and {why}", value=name,
            next_step="define a role of your own",
        )  # fmt: skip


async def _roles(tx: Transaction) -> list[RoleView]:
    return [
        RoleView(
            name=r.name,
            includes=Role(r.includes).value,
            sees_pii=r.sees_pii,
            reserved=r.name in RESERVED,
            created_by=r.created_by,
            created_at=r.created_at,
            members=r.members,
        )
        for r in await people.roles(tx)
    ]


async def _unknown_role(tx: Transaction, name: str) -> NotFound:
    names = [role.name for role in await people.roles(tx)]
    return NotFound(
        "role.unknown",
        "the organization has no such role",
        value=name[:200],
        next_step=near(name, names) or f"its roles are {', '.join(names)}",
    )


async def _warning(tx: Transaction, name: str, asked: list[str] | None) -> str | None:
    """What is to be said of a new token of a member that has fewer rights than its owner may expect."""
    defined = {role.name: RoleMeaning(Role(role.includes), role.sees_pii) for role in await people.roles(tx)}
    (member,) = await people.members(tx, name)
    granted = rights(defined, [grant.role for grant in member.roles], asked)
    if not member.roles:
        return (
            f"{name} has no roles, so the token has no rights; "
            f"give it one with `traceplane member grant {name} ROLE`"
        )
    for role in asked or ():
        if role not in granted.roles:
            return (
                f"{name} does not have the role {role}, so the token lacks it; "
                f"give it with `traceplane member grant {name} {role}`"
            )
    return None


async def _locked(tx: Transaction, name: str) -> LockedMember:
    member = await people.lock_member(tx, name)
    if member is None:
        names = [member.name for member in await people.members(tx)]
        raise NotFound(
            "member.unknown",
            "the organization has no such member",
            value=name[:200],
            next_step=near(name, names)
            or "see `traceplane member list`, or add it with `traceplane member add`",
        )
    return member


def _length(text: str | None) -> timedelta | None:
    length = None if text is None else durations.parsed(text)
    if length == timedelta():
        raise InvalidInput(
            "request.invalid", "`lasts` is no time at all", value=text, next_step="for example 24h or 30d"
        )
    return length


def _member_view(member: StoredMember) -> MemberView:
    return MemberView(
        name=member.name,
        kind="user" if member.kind == "user" else "service",
        created_by=member.created_by,
        created_at=member.created_at,
        roles=[
            GrantView(
                grant.role,
                grant.granted_by,
                None if grant.expires_at is None else datetime.fromisoformat(grant.expires_at),
                grant.by_claim,
            )
            for grant in member.roles
        ],
        email=member.email,
        issuer=member.issuer,
        disabled_at=member.disabled_at,
        last_seen_at=member.last_seen_at,
    )
