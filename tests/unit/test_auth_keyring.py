from __future__ import annotations

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from traceplane import errors
from traceplane.auth import keyring
from traceplane.auth.keyring import Keyring, SigningKey

MASTER = bytes(range(32))


def test_rotation_publishes_then_signs_then_retires() -> None:
    first = keyring.generate(0.0)
    ring = keyring.rotate(Keyring((first,)), now=100.0, overlap_seconds=50.0)
    old, new = ring.keys
    assert old.kid == first.kid

    assert ring.current(149.9).kid == old.kid
    assert ring.current(150.0).kid == new.kid
    assert {key.kid for key in ring.accepted(100.0)} == {old.kid, new.kid}
    assert {key.kid for key in ring.accepted(199.9)} == {old.kid, new.kid}
    assert [key.kid for key in ring.accepted(200.0)] == [new.kid]
    assert ring.find(old.kid, 199.9) == old
    assert ring.find(old.kid, 200.0) is None


def test_rotation_does_not_change_the_old_ring() -> None:
    ring = Keyring((keyring.generate(0.0),))
    keyring.rotate(ring, now=10.0, overlap_seconds=5.0)
    assert ring.keys[0].retires_at is None


def test_rotation_never_prolongs_a_key_that_is_already_retiring() -> None:
    ring = keyring.rotate(Keyring((keyring.generate(0.0),)), now=0.0, overlap_seconds=10.0)
    again = keyring.rotate(ring, now=12.0, overlap_seconds=1000.0)
    assert again.keys[0].kid == ring.keys[0].kid
    assert again.keys[0].retires_at == 20.0


def test_rotation_without_overlap_drops_every_older_key_immediately() -> None:
    ring = keyring.rotate(Keyring((keyring.generate(0.0),)), now=10.0, overlap_seconds=60.0)
    emergency = keyring.rotate(ring, now=20.0, overlap_seconds=0.0)
    assert len(emergency.keys) == 1
    assert emergency.keys[0].kid not in {key.kid for key in ring.keys}
    assert emergency.current(20.0) == emergency.keys[0]


def test_a_pending_key_never_takes_over_from_a_younger_one() -> None:
    ring = keyring.rotate(Keyring((keyring.generate(0.0),)), now=0.0, overlap_seconds=15.0)
    pending = ring.keys[-1]
    sooner = keyring.rotate(ring, now=0.0, overlap_seconds=10.0)
    assert pending.kid not in {key.kid for key in sooner.keys}
    assert sooner.current(15.0).kid == sooner.keys[-1].kid


@pytest.mark.parametrize("overlap", [-1.0, float("nan"), float("inf")])
def test_rotation_rejects_an_invalid_overlap(overlap: float) -> None:
    with pytest.raises(ValueError, match="overlap"):
        keyring.rotate(Keyring((keyring.generate(0.0),)), now=0.0, overlap_seconds=overlap)


LIFE = 10.0
rotations = st.lists(
    st.tuples(st.floats(0.0, 40.0), st.floats(LIFE, 60.0)),  # seconds since the last one, overlap
    max_size=6,
)


@settings(max_examples=60)
@given(rotations)
def test_no_rotation_shortens_a_token_that_expires_within_the_overlap(
    steps: list[tuple[float, float]],
) -> None:
    ring, now = Keyring((keyring.generate(0.0),)), 0.0
    signed: list[tuple[float, str]] = []
    for wait, overlap in steps:
        # Sign once a second up to the rotation, and at its very moment.
        moments = [now + tick for tick in range(int(wait) + 1)] + [now + wait]
        signed += [(at, ring.current(at).kid) for at in moments]
        now += wait
        ring = keyring.rotate(ring, now, overlap)
        for at, kid in signed:
            if now < at + LIFE:
                assert ring.find(kid, at + LIFE - 0.001) is not None
    for tick in range(150):
        signing = ring.current(now + tick)
        assert ring.find(signing.kid, now + tick + LIFE - 0.001) is not None


def test_the_key_set_is_public_and_includes_the_next_key() -> None:
    ring = keyring.rotate(Keyring((keyring.generate(0.0),)), now=0.0, overlap_seconds=60.0)
    published = ring.jwks(1.0)
    assert [jwk["kid"] for jwk in published["keys"]] == [key.kid for key in ring.keys]
    for jwk in published["keys"]:
        assert set(jwk) == {"kty", "crv", "x", "y", "use", "alg", "kid"}
    assert len(jwt.PyJWKSet.from_dict(published).keys) == 2


def test_the_key_set_handed_out_is_a_copy() -> None:
    ring = Keyring((keyring.generate(0.0),))
    ring.jwks(0.0)["keys"][0]["kid"] = "other"
    assert ring.jwks(0.0)["keys"][0]["kid"] == ring.keys[0].kid


def test_a_ring_without_an_active_key_is_an_error() -> None:
    with pytest.raises(errors.PlatformError) as refused:
        Keyring(()).current(0.0)
    assert refused.value.code == "keyring.no_current_key"


def test_a_ring_rejects_the_same_key_twice() -> None:
    key = keyring.generate(0.0)
    with pytest.raises(ValueError, match="twice"):
        Keyring((key, key))


def test_only_p256_keys_sign() -> None:
    with pytest.raises(ValueError, match="P-256"):
        SigningKey(ec.generate_private_key(ec.SECP384R1()), created_at=0.0, activates_at=0.0)


def test_a_key_does_not_print_its_secret() -> None:
    assert "private" not in repr(keyring.generate(0.0))


def test_a_sealed_key_opens_to_the_same_key() -> None:
    key = keyring.generate(0.0)
    sealed = keyring.seal(key.private_key, MASTER)
    opened = keyring.unseal(sealed, key.kid, [MASTER])
    assert SigningKey(opened, key.created_at, key.activates_at) == key
    assert keyring.seal(key.private_key, MASTER) != sealed  # a nonce is never used twice


def test_a_sealed_key_cannot_be_opened_with_another_master_key_kid_or_content() -> None:
    key = keyring.generate(0.0)
    sealed = keyring.seal(key.private_key, MASTER)
    flipped = sealed[:-1] + bytes([sealed[-1] ^ 1])
    attempts = [
        (sealed, key.kid, bytes(32)),
        (sealed, keyring.generate(0.0).kid, MASTER),
        (flipped, key.kid, MASTER),
        (sealed[:20], key.kid, MASTER),
        (b"", key.kid, MASTER),
    ]
    for blob, kid, master in attempts:
        with pytest.raises(errors.InvalidInput) as refused:
            keyring.unseal(blob, kid, [master])
        assert refused.value.code == "keyring.unseal_failed"


@pytest.mark.parametrize("length", [0, 16, 24, 31, 33])
def test_a_master_key_has_32_bytes(length: int) -> None:
    with pytest.raises(errors.InvalidInput) as refused:
        keyring.seal(keyring.generate(0.0).private_key, bytes(length))
    assert refused.value.code == "keyring.master_key_length"
