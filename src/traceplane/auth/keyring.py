"""The keys that sign capabilities, and how they are rotated.

    created ────────► activates ────────────────► retires
       published, accepted   published, accepted, signs until a younger key activates

A key is published before it signs, so that a verifier with a cached key set already knows it, and stays accepted after
it stops signing, so that the last token it signed remains valid until it expires.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from traceplane import errors

MASTER_KEY_BYTES = 32
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A P-256 key and its lifetime; `retires_at` is None until there is a successor."""

    private_key: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)
    created_at: float
    activates_at: float
    retires_at: float | None = None
    # Derived only here, so that a kid always identifies exactly this key.
    public_key: ec.EllipticCurvePublicKey = field(init=False, repr=False, compare=False)
    public_jwk: dict[str, str] = field(init=False, repr=False, compare=False)
    kid: str = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.private_key.curve, ec.SECP256R1):
            raise ValueError(f"ES256 needs a P-256 key, not {self.private_key.curve.name}")
        public_key = self.private_key.public_key()
        kid = _thumbprint(public_key)
        jwk = {**_point(public_key), "kty": "EC", "use": "sig", "alg": "ES256", "kid": kid}
        object.__setattr__(self, "public_key", public_key)
        object.__setattr__(self, "public_jwk", jwk)
        object.__setattr__(self, "kid", kid)

    def retired(self, now: float) -> bool:
        return self.retires_at is not None and self.retires_at <= now


@dataclass(frozen=True, slots=True)
class Keyring:
    keys: tuple[SigningKey, ...]

    def __post_init__(self) -> None:
        if len({key.kid for key in self.keys}) != len(self.keys):
            raise ValueError("a key is in the ring twice")

    def current(self, now: float) -> SigningKey:
        """The signing key: the one activated last. Ties break the same way in every process."""
        active = [key for key in self.accepted(now) if key.activates_at <= now]
        if not active:
            raise errors.PlatformError(
                "keyring.no_current_key", "no signing key is active", next_step="rotate the signing keys"
            )
        return max(active, key=lambda key: (key.activates_at, key.created_at, key.kid))

    def accepted(self, now: float) -> tuple[SigningKey, ...]:
        """Previous keys until they retire, the current one, and the next one before it signs."""
        return tuple(key for key in self.keys if not key.retired(now))

    def find(self, kid: str, now: float) -> SigningKey | None:
        """The accepted key with this kid."""
        return next((key for key in self.keys if key.kid == kid and not key.retired(now)), None)

    def jwks(self, now: float) -> dict[str, list[dict[str, str]]]:
        """The public halves of the accepted keys, as a JSON Web Key Set (RFC 7517)."""
        return {"keys": [dict(key.public_jwk) for key in self.accepted(now)]}


def generate(now: float) -> SigningKey:
    """A new random key that may sign from `now` on."""
    return SigningKey(ec.generate_private_key(ec.SECP256R1()), created_at=now, activates_at=now)


def rotate(keyring: Keyring, now: float, overlap_seconds: float) -> Keyring:
    """A ring with a new key that signs after one overlap; the others retire one overlap after that.

    The overlap must outlast both a verifier's cached key set and the longest token. Zero is for a
    leaked key: the new one signs immediately, and every token signed before is rejected.
    """
    if not 0 <= overlap_seconds < float("inf"):
        raise ValueError(
            f"an overlap must be a finite number of seconds, zero or more, not {overlap_seconds}"
        )
    activates_at = now + overlap_seconds
    successor = replace(generate(now), activates_at=activates_at)
    # A pending key that would activate after its successor is dropped: it has signed nothing yet, and would
    # otherwise take over from the successor and retire before its own tokens expire.
    older = (
        replace(key, retires_at=_earlier(key.retires_at, activates_at + overlap_seconds))
        for key in keyring.accepted(now)
        if key.activates_at < activates_at
    )
    return Keyring((*(key for key in older if not key.retired(now)), successor))


def seal(private_key: ec.EllipticCurvePrivateKey, master_key: bytes) -> bytes:
    """The key encrypted for storage, bound to its kid: a stolen database dump signs nothing."""
    nonce = os.urandom(_NONCE_BYTES)
    plain = private_key.private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return nonce + _cipher(master_key).encrypt(nonce, plain, _thumbprint(private_key.public_key()).encode())


def unseal(sealed: bytes, kid: str, master_keys: Sequence[bytes]) -> ec.EllipticCurvePrivateKey:
    """The key sealed under this kid and one of the master keys."""
    for master_key in master_keys:
        cipher = _cipher(master_key)
        try:
            plain = cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], kid.encode())
        except (InvalidTag, ValueError):  # ValueError: too short to hold a nonce and a tag
            continue
        private_key = serialization.load_der_private_key(plain, password=None)
        assert isinstance(private_key, ec.EllipticCurvePrivateKey)
        return private_key
    raise errors.InvalidInput(
        "keyring.unseal_failed",
        "the signing key cannot be decrypted with this master key",
        value=kid,
        next_step="set the master key it was sealed with",
    )


def _cipher(master_key: bytes) -> AESGCM:
    # AESGCM also accepts 16 and 24 bytes; a short key here is a truncated setting, not a choice.
    if len(master_key) != MASTER_KEY_BYTES:
        raise errors.InvalidInput(
            "keyring.master_key_length",
            f"the master key has {len(master_key)} bytes but needs {MASTER_KEY_BYTES}",
        )
    return AESGCM(master_key)


def _point(public_key: ec.EllipticCurvePublicKey) -> dict[str, str]:
    numbers = public_key.public_numbers()
    return {"crv": "P-256", "x": _coordinate(numbers.x), "y": _coordinate(numbers.y)}


def _coordinate(value: int) -> str:
    return base64.urlsafe_b64encode(value.to_bytes(32, "big")).rstrip(b"=").decode()


def _thumbprint(public_key: ec.EllipticCurvePublicKey) -> str:
    """RFC 7638: the hash of the required members in alphabetical order."""
    members = msgspec.json.encode({**_point(public_key), "kty": "EC"}, order="sorted")
    return base64.urlsafe_b64encode(hashlib.sha256(members).digest()).rstrip(b"=").decode()


def _earlier(current: float | None, proposed: float) -> float:
    return proposed if current is None else min(current, proposed)
