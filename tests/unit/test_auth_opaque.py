from __future__ import annotations

import string
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceplane import errors
from traceplane.auth import keyring, opaque
from traceplane.auth.capability import Capability, JobGrants, TaskGrant, VerifiedCache, mint, verify
from traceplane.auth.keyring import Keyring
from traceplane.auth.opaque import Principal, TokenBook
from traceplane.auth.roles import Role

NOW = 1_000.0
WORKER_TOKEN, WORKER = opaque.issue(Principal.WORKER, org="acme", name="spark-1", now=NOW)
USER_TOKEN, USER = opaque.issue(Principal.USER, org="acme", name="ann", now=NOW, role=Role.WRITER)
BOOK = TokenBook((WORKER, USER))
RING = Keyring((keyring.generate(0.0),))
CAPABILITY = Capability("acme", (TaskGrant("task", 1, 0),), (JobGrants((), ()),), NOW + 60)
CAPABILITY_TOKEN = mint(CAPABILITY, RING, NOW)


def refusal(
    token: str, book: TokenBook = BOOK, principal: Principal = Principal.WORKER, now: float = NOW
) -> str:
    with pytest.raises((errors.Unauthenticated, errors.Forbidden)) as refused:
        book.check(token, principal, now)
    if len(token) > 20:
        assert token not in str(refused.value), "an error must not carry the token"
    assert isinstance(refused.value, errors.TraceplaneError)
    return refused.value.code


def test_an_issued_token_is_known_by_its_hash_only() -> None:
    assert BOOK.check(WORKER_TOKEN, Principal.WORKER, NOW) == WORKER
    assert BOOK.check(USER_TOKEN, Principal.USER, NOW) == USER
    assert WORKER_TOKEN.startswith("tpw_")
    assert USER_TOKEN.startswith("tpu_")
    assert WORKER_TOKEN[4:] not in repr(BOOK)


def test_two_tokens_are_never_the_same() -> None:
    issued = {opaque.issue(Principal.WORKER, org="a", name="n", now=NOW)[0] for _ in range(100)}
    assert len(issued) == 100


def test_principals_cannot_become_each_other() -> None:
    assert refusal(USER_TOKEN, principal=Principal.WORKER) == "token.wrong_principal"
    assert refusal(WORKER_TOKEN, principal=Principal.USER) == "token.wrong_principal"
    for principal in Principal:
        assert refusal(CAPABILITY_TOKEN, principal=principal) == "token.malformed"
    for token in (USER_TOKEN, WORKER_TOKEN):
        for check in (verify, VerifiedCache(1).verify):
            with pytest.raises(errors.Unauthenticated) as refused:
                check(token, RING, NOW)
            assert refused.value.code == "token.wrong_kind"


def test_a_principal_changed_in_the_record_does_not_change_what_the_token_is() -> None:
    promoted = TokenBook((replace(WORKER, principal=Principal.USER, named_roles=("admin",)),))
    for principal in Principal:
        assert refusal(WORKER_TOKEN, promoted, principal) == "token.wrong_principal"


def test_a_swapped_prefix_is_a_malformed_token() -> None:
    assert refusal("tpw_" + USER_TOKEN[4:]) == "token.malformed"


def test_a_typo_is_distinguished_from_an_unknown_token() -> None:
    stranger, _ = opaque.issue(Principal.WORKER, org="acme", name="x", now=NOW)
    assert refusal(stranger) == "token.unknown"
    for position in range(len(WORKER_TOKEN)):
        for character in ("A", "z", "-"):
            if WORKER_TOKEN[position] != character:
                mistyped = WORKER_TOKEN[:position] + character + WORKER_TOKEN[position + 1 :]
                assert refusal(mistyped) == "token.malformed"


@pytest.mark.parametrize(
    ("token", "code"),
    [
        ("", "token.missing"),
        ("tpw_", "token.malformed"),
        (WORKER_TOKEN[:-1], "token.malformed"),
        (WORKER_TOKEN + "A", "token.malformed"),
        (WORKER_TOKEN + "\n", "token.malformed"),
        (WORKER_TOKEN.upper(), "token.malformed"),
        ("tpw_" + "ü" * 49, "token.malformed"),
        ("tpw_" + "\ud800" * 49, "token.malformed"),
        ("x" * 10_000_000, "token.malformed"),
    ],
    ids=["empty", "prefix", "short", "long", "newline", "upper", "unicode", "surrogate", "huge"],
)
def test_a_string_that_is_not_a_token_is_rejected_as_such(token: str, code: str) -> None:
    assert refusal(token) == code


def test_a_revoked_token_is_rejected_and_stays_revoked() -> None:
    revoked = opaque.revoke(WORKER, NOW + 5)
    assert refusal(WORKER_TOKEN, TokenBook((revoked,))) == "token.revoked"
    assert opaque.revoke(revoked, NOW + 50) == revoked


def test_a_token_expires_at_its_second() -> None:
    token, record = opaque.issue(Principal.WORKER, org="a", name="n", now=NOW, expires_at=NOW + 10)
    book = TokenBook((record,))
    assert book.check(token, Principal.WORKER, NOW + 9.9) == record
    assert refusal(token, book, now=NOW + 10) == "token.expired"
    successor = opaque.issue(Principal.WORKER, org="a", name="n", now=NOW, expires_at=NOW + 20)[1]
    for tokens, next_step in (((record,), "ask for a new one"), ((record, successor), "use its successor")):
        with pytest.raises(errors.Unauthenticated) as expired:
            TokenBook(tokens).check(token, Principal.WORKER, NOW + 10)
        assert expired.value.next_step == next_step


def test_the_principal_of_a_dead_token_is_not_revealed() -> None:
    assert refusal(USER_TOKEN, TokenBook((opaque.revoke(USER, NOW),))) == "token.revoked"


def test_rotation_keeps_both_tokens_until_the_overlap_ends() -> None:
    rotation = opaque.rotate(USER, NOW, 60.0, expires_at=NOW + 900)
    book = TokenBook((rotation.outgoing, rotation.record))
    assert book.check(USER_TOKEN, Principal.USER, NOW + 59.9).name == "ann"
    assert refusal(USER_TOKEN, book, Principal.USER, NOW + 60) == "token.expired"
    successor = book.check(rotation.token, Principal.USER, NOW + 60)
    assert (successor.org, successor.role, successor.expires_at) == ("acme", Role.WRITER, NOW + 900)


def test_rotation_never_prolongs_the_old_token() -> None:
    _, record = opaque.issue(Principal.WORKER, org="a", name="n", now=NOW, expires_at=NOW + 10)
    assert opaque.rotate(record, NOW, 60.0, expires_at=None).outgoing.expires_at == NOW + 10


def test_a_dead_token_cannot_be_rotated() -> None:
    for dead in (opaque.revoke(USER, NOW), replace(USER, expires_at=NOW)):
        with pytest.raises(errors.Conflict) as refused:
            opaque.rotate(dead, NOW, 60.0, expires_at=None)
        assert refused.value.code == "token.not_active"


def test_rotation_rejects_a_negative_overlap() -> None:
    with pytest.raises(ValueError, match="overlap"):
        opaque.rotate(USER, NOW, -1.0, expires_at=None)


def test_a_worker_has_no_role_and_a_user_has_one() -> None:
    with pytest.raises(ValueError, match="role"):
        opaque.issue(Principal.WORKER, org="a", name="n", now=NOW, role=Role.ADMIN)
    with pytest.raises(ValueError, match="role"):
        opaque.issue(Principal.USER, org="a", name="n", now=NOW)


def test_records_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        USER.sees_pii = True  # type: ignore[misc]


token_characters = st.text(alphabet=string.ascii_letters + string.digits + "-_.", min_size=45, max_size=53)


@settings(max_examples=500)
@given(
    st.text(max_size=80)
    | st.sampled_from(["tpu_", "tpw_"]).flatmap(
        lambda prefix: token_characters.map(lambda rest: prefix + rest)
    )
    | st.text(alphabet=st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), min_size=53, max_size=53),
    st.sampled_from(Principal),
)
def test_no_string_makes_check_raise_anything_but_a_refusal(token: str, principal: Principal) -> None:
    refusal(token, principal=principal)
