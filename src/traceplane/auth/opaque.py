"""User and worker tokens: random strings, stored only as hashes.

    tpu_ <43 characters: 32 random bytes> <6 characters: checksum>

The prefix names the principal, for people and for leak scanners; the record decides. The checksum distinguishes a
mistyped token from a revoked one and holds no secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from uuid import UUID

from traceplane import errors
from traceplane.auth.roles import NO_RIGHTS, RESERVED, Rights, Role, rights


class Principal(StrEnum):
    USER = "user"
    WORKER = "worker"


PREFIXES = {Principal.USER: "tpu_", Principal.WORKER: "tpw_"}
_RANDOM_BYTES = 32
_CHECKSUM_CHARACTERS = 6
_TOKEN_CHARACTERS = 4 + 43 + _CHECKSUM_CHARACTERS


@dataclass(frozen=True, slots=True)
class Member:
    """Whose a token is."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token as it is stored, and the rights that it has now."""

    token_hash: str
    principal: Principal
    org: str
    name: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    sees_pii: bool = False
    """Granted to this token; its roles may grant it too."""
    named_roles: tuple[str, ...] | None = None
    """Those that it is cut down to, or that it has if it is nobody's."""
    datasets: tuple[str, ...] | None = None
    """Patterns of dataset names that it is cut down to; None: all."""
    serves: tuple[str, ...] | None = None
    """The organizations whose tasks workers with this token get; None: all."""
    created_by: str = "traceplane"
    made_from: UUID | None = None
    """The token whose end is the end of this one; nothing is made from such a one in turn."""
    member_id: UUID | None = None
    member: Member | None = None
    token_id: UUID | None = None
    """None until it is stored, like the next."""
    org_id: UUID | None = None
    rights: Rights = NO_RIGHTS

    @property
    def is_cut_down(self) -> bool:
        return self.datasets is not None or (self.member_id is not None and self.named_roles is not None)

    def __post_init__(self) -> None:
        if self.principal is Principal.WORKER and (self.named_roles or self.member_id):
            raise ValueError("a worker token has no roles")
        if self.serves is not None and (self.principal is not Principal.WORKER or not self.serves):
            raise ValueError(f"a {self.principal} token cannot serve the organizations {self.serves}")

    @property
    def counted_as(self) -> str:
        """What limits are counted by: whose it is, or if it is nobody's, the token with all that is made from it."""
        return f"member {self.member_id}" if self.member_id else f"token {self.made_from or self.token_id}"

    @property
    def role(self) -> Role | None:
        return self.rights.role

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True)
class TokenBook:
    """The stored tokens, by hash. The timing of the lookup reveals nothing, since callers do not choose hashes."""

    records: tuple[TokenRecord, ...]
    _by_hash: dict[str, TokenRecord] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_hash", {record.token_hash: record for record in self.records})

    def find(self, token: str) -> TokenRecord | None:
        """The record of a token, however it stands with it."""
        return self._by_hash.get(hash_token(token)) if token.isascii() else None

    def by_hash(self, token_hash: str) -> TokenRecord | None:
        return self._by_hash.get(token_hash)

    def check(self, token: str, principal: Principal, now: float) -> TokenRecord:
        """The record of a live token of this principal; 401 if it is not live, 403 if it is of another principal."""
        _check_shape(token)
        record = self._by_hash.get(hash_token(token))
        if record is None:
            raise errors.Unauthenticated("token.unknown", "the token was never issued here")
        # Any revocation counts, even one dated ahead of this caller's clock.
        if record.revoked_at is not None:
            raise errors.Unauthenticated("token.revoked", "the token was revoked", value=record.name)
        if record.expired(now):
            raise errors.Unauthenticated(
                "token.expired",
                "the token has expired",
                value=record.name,
                next_step=self._instead_of(record, now),
            )
        if record.principal is not principal or not token.startswith(PREFIXES[principal]):
            raise errors.Forbidden(
                "token.wrong_principal",
                f"this call needs a {principal} token, but this is a {record.principal} token",
                value=record.name,
            )
        return record

    def _instead_of(self, record: TokenRecord, now: float) -> str:
        if record.made_from is not None:
            return "sign in again: `traceplane ui` makes a link"
        return "use its successor" if self._has_successor(record, now) else "ask for a new one"

    def _has_successor(self, record: TokenRecord, now: float) -> bool:
        return any(
            (other.principal, other.org, other.name, other.member_id)
            == (record.principal, record.org, record.name, record.member_id)
            and other.revoked_at is None
            and not other.expired(now)
            for other in self.records
        )


def issue(
    principal: Principal,
    *,
    org: str,
    name: str,
    now: float,
    role: Role | None = None,
    expires_at: float | None = None,
    sees_pii: bool = False,
    roles: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    member_id: UUID | None = None,
    created_by: str = "traceplane",
    serves: Sequence[str] | None = None,
) -> tuple[str, TokenRecord]:
    """A new token, to be shown once, and its record, to be stored."""
    secret = base64.urlsafe_b64encode(os.urandom(_RANDOM_BYTES)).rstrip(b"=").decode()
    body = PREFIXES[principal] + secret
    token = body + _checksum(body)
    named = tuple(roles) if roles is not None else (str(role),) if role is not None else None
    if principal is Principal.USER and named is None and member_id is None:
        raise ValueError("a user token has roles, or is a member's")
    record = TokenRecord(
        token_hash=hash_token(token),
        principal=principal,
        org=org,
        name=name,
        created_at=now,
        expires_at=expires_at,
        sees_pii=sees_pii,
        named_roles=named,
        datasets=None if datasets is None else tuple(datasets),
        created_by=created_by,
        member_id=member_id,
        serves=None if serves is None else tuple(serves),
        rights=rights(RESERVED, None, named),
    )
    return token, record


@dataclass(frozen=True, slots=True)
class Rotation:
    token: str
    record: TokenRecord
    outgoing: TokenRecord
    """The old record, which now ends with the overlap; both must be stored together."""


def rotate(record: TokenRecord, now: float, overlap_seconds: float, *, expires_at: float | None) -> Rotation:
    """A successor with the same rights; the old token works until the overlap ends at the latest."""
    if record.revoked_at is not None or record.expired(now):
        raise errors.Conflict(
            "token.not_active",
            "a revoked or expired token cannot be rotated",
            value=record.name,
            next_step="issue a new token",
        )
    if not overlap_seconds >= 0:
        raise ValueError(f"an overlap must be zero seconds or more, not {overlap_seconds}")
    end = now + overlap_seconds
    token, successor = issue(
        record.principal,
        org=record.org,
        name=record.name,
        now=now,
        roles=record.named_roles,
        expires_at=expires_at,
        sees_pii=record.sees_pii,
        datasets=record.datasets,
        member_id=record.member_id,
        created_by=record.created_by,
        serves=record.serves,
    )
    outgoing = replace(record, expires_at=end if record.expires_at is None else min(record.expires_at, end))
    return Rotation(token=token, record=successor, outgoing=outgoing)


def revoke(record: TokenRecord, now: float) -> TokenRecord:
    """The record revoked from now on; a second revocation keeps the first time."""
    return record if record.revoked_at is not None else replace(record, revoked_at=now)


def hash_token(token: str) -> str:
    """The hash that is stored and looked up. 32 random bytes need no salt and no slow hash."""
    return hashlib.sha256(token.encode("ascii")).hexdigest()


def _check_shape(token: str) -> None:
    if not token:
        raise errors.Unauthenticated("token.missing", "the call has no token")
    body, checksum = token[:-_CHECKSUM_CHARACTERS], token[-_CHECKSUM_CHARACTERS:]
    if (
        len(token) != _TOKEN_CHARACTERS
        or not token.isascii()
        or not token.startswith(tuple(PREFIXES.values()))
        or _checksum(body) != checksum
    ):
        raise errors.Unauthenticated(
            "token.malformed",
            "the token is not a user or worker token, or is mistyped or truncated",
            next_step="copy it again, completely",
        )


def _checksum(body: str) -> str:
    crc = binascii.crc32(body.encode("ascii")).to_bytes(4, "big")
    return base64.urlsafe_b64encode(crc).rstrip(b"=").decode()
