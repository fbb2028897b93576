"""Roles, and the rights that they give: three that every organization has, and those that it defines itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    ADMIN = "admin"
    WRITER = "writer"
    READER = "reader"


RANKS = {Role.READER: 1, Role.WRITER: 2, Role.ADMIN: 3}
"""Each role includes those below it."""


@dataclass(frozen=True, slots=True)
class RoleMeaning:
    """What a role of an organization gives, apart from the datasets that name it."""

    includes: Role
    sees_pii: bool


RESERVED = {str(role): RoleMeaning(role, role is Role.ADMIN) for role in Role}


@dataclass(frozen=True, slots=True)
class Rights:
    roles: frozenset[str] = frozenset()
    role: Role | None = None
    """The highest of admin, writer, reader that the roles include."""
    sees_pii: bool = False


NO_RIGHTS = Rights()


def rights(
    defined: Mapping[str, RoleMeaning], held: Sequence[str] | None, named: Sequence[str] | None
) -> Rights:
    """The rights of a token: the roles that its member holds now (None: it is nobody's), cut down to those that the
    token names (None: to nothing less).

    A token may name any role that its member's roles include, so an admin may have a reader's token. Roles that were
    deleted give nothing.
    """
    mine = frozenset(role for role in (named if held is None else held) or () if role in defined)
    if held is not None and named is not None:
        highest = _highest(defined, mine)
        mine = frozenset(
            role
            for role in named
            if role in mine
            or (role in defined and highest is Role.ADMIN)
            or (role in RESERVED and highest is not None and RANKS[Role(role)] <= RANKS[highest])
        )
    return Rights(mine, _highest(defined, mine), any(defined[role].sees_pii for role in mine))


def _highest(defined: Mapping[str, RoleMeaning], roles: frozenset[str]) -> Role | None:
    return max((defined[role].includes for role in roles), key=RANKS.__getitem__, default=None)
