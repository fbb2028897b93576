"""Values sealed with keys of their own, and those with a master key that can be replaced.

Everything is AES-256-GCM, bound to the place where it is stored: what was copied to another row does not open.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from traceplane.errors import PlatformError

KEY_BYTES = 32
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Sealed:
    value: bytes
    key: bytes
    master_key_id: str


class MasterKeys:
    """The first one seals; all of them open."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {key_id(key): key for key in keys}
        self.current = key_id(keys[0])

    def seal(self, value: bytes, place: str) -> Sealed:
        key = os.urandom(KEY_BYTES)
        return Sealed(_seal(key, value, place), _seal(self._keys[self.current], key, place), self.current)

    def open(self, sealed: Sealed, place: str) -> bytes:
        return _open(self._data_key(sealed, place), sealed.value, place)

    def seal_anew(self, sealed: Sealed, place: str) -> Sealed:
        """The same value, its key sealed with the current master key."""
        key = self._data_key(sealed, place)
        return Sealed(sealed.value, _seal(self._keys[self.current], key, place), self.current)

    def _data_key(self, sealed: Sealed, place: str) -> bytes:
        master_key = self._keys.get(sealed.master_key_id)
        if master_key is None:
            raise _cannot_open(f"it is sealed with the master key {sealed.master_key_id}")
        return _open(master_key, sealed.key, place)


def key_id(key: bytes) -> str:
    """Names a master key without revealing anything of it."""
    return hashlib.sha256(b"traceplane master key" + key).hexdigest()[:16]


def _seal(key: bytes, plain: bytes, place: str) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, place.encode())


def _open(key: bytes, sealed: bytes, place: str) -> bytes:
    try:
        return AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place.encode())
    except (InvalidTag, ValueError):  # ValueError: too short to hold a nonce
        raise _cannot_open("it was changed, or is sealed with another key") from None


def _cannot_open(why: str) -> PlatformError:
    return PlatformError(
        "secret.cannot_open",
        f"a secret cannot be opened: {why}",
        next_step="give the process the master key that it was sealed with, or set the secret again",
    )
