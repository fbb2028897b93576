"""Capabilities: what the tasks of one claim may read and write, signed so that no lookup is needed.

A capability covers the attempts that one worker got in one claim, so each claim costs one signature; a task claimed
alone has a token that covers nothing else. Grants are those of the jobs, each included once, and every task names its
job.

It is a JWT (ES256, `kid` in the header), signed here rather than with PyJWT because the dispatcher mints one per claim,
and only the signature itself should cost time.
"""

from __future__ import annotations

import base64
import math
from collections import OrderedDict
from functools import cached_property

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from traceplane import errors
from traceplane.auth.keyring import Keyring, SigningKey
from traceplane.auth.opaque import PREFIXES

ISSUER = "traceplane"
AUDIENCE = "traceplane/internal"
MAX_TOKEN_BYTES = 256 * 1024  # it is sent in JSON bodies; 1000 tasks of one job take a quarter of this

_ALGORITHM = "ES256"
# An explicit type (RFC 8725, 3.11): nothing else that these keys may sign one day is a capability.
_TYPE = "tp-capability+jwt"
_OPAQUE_PREFIXES = tuple(PREFIXES.values())
_ECDSA = ec.ECDSA(hashes.SHA256())
_HALF = 32  # bytes of r and of s in a P-256 signature


class ReadGrant(msgspec.Struct, frozen=True):
    dataset_uuid: str
    dataset_version: str
    storage: str


class WriteGrant(msgspec.Struct, frozen=True):
    output_index: int
    dataset_uuid: str
    dataset_version: str
    storage: str = ""
    """Where the version's files are. Empty in tokens that are older than folders of organizations."""


class JobGrants(msgspec.Struct, frozen=True):
    reads: tuple[ReadGrant, ...]
    writes: tuple[WriteGrant, ...]


class TaskGrant(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One attempt and its job, as an index into `Capability.jobs`; `[task_id, attempt, job]` in the token."""

    task_id: str
    attempt: int
    job: int


class Capability(msgspec.Struct, frozen=True, dict=True):  # dict: holds the cached index
    org: str
    tasks: tuple[TaskGrant, ...]
    jobs: tuple[JobGrants, ...]
    expires_at: float

    def grants_of(self, task_id: str, attempt: int) -> JobGrants | None:
        """What this attempt may read and write; None if the token does not cover it."""
        return self._grants.get((task_id, attempt))

    @cached_property
    def _grants(self) -> dict[tuple[str, int], JobGrants]:
        return {(task.task_id, task.attempt): self.jobs[task.job] for task in self.tasks}

    def _flaw(self) -> str | None:
        """Why this is not a valid capability; None if it is."""
        if not self.tasks:
            return "covers no task"
        if not all(0 <= task.job < len(self.jobs) for task in self.tasks):
            return "names a job that it does not contain"
        if len(self._grants) != len(self.tasks):
            return "names an attempt twice"
        return None


def write_prefix(grant: WriteGrant, task_id: str, attempt: int) -> str:
    """Where an attempt with this grant may write."""
    storage = grant.storage or f"{grant.dataset_uuid}/{grant.dataset_version}/"
    return f"{storage}staging/{task_id}/{attempt}/"


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unknown members are rejected, among them `crit`, and `jwk` or `jku`, which bring their own key."""

    alg: str = ""
    kid: str = ""
    typ: str = ""


class _Claims(msgspec.Struct, frozen=True):
    iss: str
    aud: str
    iat: float
    exp: float
    org: str
    tasks: tuple[TaskGrant, ...]
    jobs: tuple[JobGrants, ...]


_encode_json = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(_Header).decode
_decode_claims = msgspec.json.Decoder(_Claims).decode


def mint(capability: Capability, keyring: Keyring, now: float) -> str:
    """The capability as a token, signed with the current key."""
    return _sign(capability, keyring.current(now), now)


def verify(token: str, keyring: Keyring, now: float) -> Capability:
    """What the token grants; raises Unauthenticated with the reason."""
    return _open(token, keyring, now)[1]


class VerifiedCache:
    """Capabilities minted or verified here, so that each token costs ES256 only once.

    Keyed by the whole token: only a string that was itself signed or verified is ever found. Expiry and the
    key's place in the ring are checked at each use. The least recently used are dropped first.
    For one event loop; not shared between threads.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"the capacity of a cache must be positive, not {capacity}")
        self._capacity = capacity
        self._entries: OrderedDict[str, tuple[str, Capability]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def mint(self, capability: Capability, keyring: Keyring, now: float) -> str:
        key = keyring.current(now)
        token = _sign(capability, key, now)
        self._remember(token, key.kid, capability)
        return token

    def verify(self, token: str, keyring: Keyring, now: float) -> Capability:
        entry = self._entries.get(token)
        if entry is not None:
            kid, capability = entry
            if now < capability.expires_at and keyring.find(kid, now) is not None:
                self._entries.move_to_end(token)
                return capability
            del self._entries[token]
        kid, capability = _open(token, keyring, now)  # also raises the error for an entry just dropped
        self._remember(token, kid, capability)
        return capability

    def _remember(self, token: str, kid: str, capability: Capability) -> None:
        self._entries[token] = (kid, capability)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)


def _sign(capability: Capability, key: SigningKey, now: float) -> str:
    if not (now < capability.expires_at < math.inf):
        raise ValueError(f"a capability must expire after now ({now}), not at {capability.expires_at}")
    if flaw := capability._flaw():
        raise ValueError(f"the capability {flaw}")
    claims = _Claims(
        iss=ISSUER,
        aud=AUDIENCE,
        iat=now,
        exp=capability.expires_at,
        org=capability.org,
        tasks=capability.tasks,
        jobs=capability.jobs,
    )
    header = _Header(alg=_ALGORITHM, kid=key.kid, typ=_TYPE)
    signed = _encode_part(_encode_json(header)) + b"." + _encode_part(_encode_json(claims))
    der = key.private_key.sign(signed, _ECDSA)
    r, s = utils.decode_dss_signature(der)
    token = signed + b"." + _encode_part(r.to_bytes(_HALF, "big") + s.to_bytes(_HALF, "big"))
    if len(token) > MAX_TOKEN_BYTES:
        raise errors.TooLarge(
            "token.too_large",
            f"the claim has too many tasks and datasets for one capability ({len(token)} bytes)",
            value=len(capability.tasks),
            next_step=f"claim fewer tasks at once: a capability has at most {MAX_TOKEN_BYTES} bytes",
        )
    return token.decode("ascii")


def _open(token: str, keyring: Keyring, now: float) -> tuple[str, Capability]:
    """The kid and the capability. Claims are read only after the signature is verified."""
    header_part, claims_part, signature_part = _split(token)
    header = _read_header(header_part)
    if header.typ != _TYPE:
        raise _refused("wrong_kind", "the token is not a capability")
    if header.alg != _ALGORITHM:
        raise _refused("bad_signature", "the token is not signed with ES256")
    key = keyring.find(header.kid, now)
    if key is None:
        raise _refused("unknown_key", "the token is signed with a key that is retired or unknown")
    _check_signature(key, header_part + b"." + claims_part, _decode_part(signature_part))
    return key.kid, _read_claims(claims_part, now)


def _split(token: str) -> tuple[bytes, bytes, bytes]:
    if not token:
        raise _refused("missing", "the call has no token")
    if token.startswith(_OPAQUE_PREFIXES):
        raise _refused("wrong_kind", "a user or worker token is not a capability")
    if len(token) > MAX_TOKEN_BYTES or not token.isascii():
        raise _malformed()
    parts = token.encode("ascii").split(b".", 3)
    if len(parts) != 3:
        raise _malformed()
    return parts[0], parts[1], parts[2]


def _read_header(part: bytes) -> _Header:
    raw = _decode_part(part)
    try:
        return _decode_header(raw)
    except ValueError:  # msgspec's errors and UnicodeDecodeError are ValueErrors
        raise _malformed() from None


def _check_signature(key: SigningKey, signed: bytes, signature: bytes) -> None:
    if len(signature) != 2 * _HALF:
        raise _refused("bad_signature", "the token's signature has the wrong length")
    r = int.from_bytes(signature[:_HALF], "big")
    s = int.from_bytes(signature[_HALF:], "big")
    try:
        key.public_key.verify(utils.encode_dss_signature(r, s), signed, _ECDSA)
    except InvalidSignature:
        raise _refused("bad_signature", "the token's signature does not match its content") from None


def _read_claims(part: bytes, now: float) -> Capability:
    raw = _decode_part(part)
    try:
        claims = _decode_claims(raw)
    except (ValueError, RecursionError):  # unknown claims are skipped, however deep
        raise _malformed() from None
    if claims.iss != ISSUER or claims.aud != AUDIENCE:
        raise _refused("wrong_audience", "the token is for another service")
    if not now < claims.exp:
        raise _refused("expired", "the token has expired", next_step="claim the task again")
    capability = Capability(claims.org, claims.tasks, claims.jobs, claims.exp)
    if capability._flaw():
        raise _malformed()
    return capability


def _encode_part(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def _decode_part(part: bytes) -> bytes:
    try:
        raw = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    except ValueError:
        raise _malformed() from None
    # The decoder skips foreign bytes and spare bits; a token must have exactly one spelling.
    if _encode_part(raw) != part:
        raise _malformed()
    return raw


def _malformed() -> errors.Unauthenticated:
    return _refused("malformed", "the token is not a valid capability")


def _refused(reason: str, message: str, *, next_step: str | None = None) -> errors.Unauthenticated:
    """The token itself is never the error's value: errors are logged."""
    return errors.Unauthenticated(f"token.{reason}", message, next_step=next_step)
