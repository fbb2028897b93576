from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import string
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from traceplane import errors
from traceplane.auth import keyring
from traceplane.auth.capability import (
    MAX_TOKEN_BYTES,
    Capability,
    JobGrants,
    ReadGrant,
    TaskGrant,
    VerifiedCache,
    WriteGrant,
    mint,
    verify,
    write_prefix,
)
from traceplane.auth.keyring import Keyring

NOW = 1_000.0
RING = Keyring((keyring.generate(0.0),))
KEY = RING.keys[0]
TYPE = "tp-capability+jwt"
HEADER = {"alg": "ES256", "kid": KEY.kid, "typ": TYPE}
BASE64URL = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
FIRST = "0190a3c4-5b6d-7e8f-9a0b-1c2d3e4f5061"
SECOND = "0190a3c4-5b6d-7e8f-9a0b-1c2d3e4f5062"
TRANSFERS = JobGrants(
    reads=(ReadGrant("blocks-uuid", "generation-1", "s3://lake/blocks/generation-1/"),),
    writes=(WriteGrant(0, "transfers-uuid", "generation-7"),),
)
BALANCES = JobGrants(reads=(), writes=(WriteGrant(0, "balances-uuid", "generation-3"),))


def capability(**changes: Any) -> Capability:
    fields: dict[str, Any] = {
        "org": "acme",
        "tasks": (TaskGrant(FIRST, 2, 0), TaskGrant(SECOND, 1, 1)),
        "jobs": (TRANSFERS, BALANCES),
        "expires_at": NOW + 60.25,
    }
    return Capability(**{**fields, **changes})


def attempt(number: int) -> Capability:
    return capability(tasks=(TaskGrant(FIRST, number, 0),))


def claims(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(decode(mint(capability(), RING, NOW).split(".")[1]))
    return {**body, **changes}


def decode(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def encode(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signed(header: dict[str, Any], body: object) -> str:
    """A token that our key really signed, whatever its header and content say."""
    content = f"{encode(header)}.{encode(body)}"
    signature = jwt.get_algorithm_by_name("ES256").sign(content.encode(), KEY.private_key)
    return f"{content}.{encode(signature)}"


def refusal(token: str, ring: Keyring = RING, now: float = NOW) -> str:
    with pytest.raises(errors.Unauthenticated) as refused:
        verify(token, ring, now)
    assert refused.value.value is None, "an error must not carry the token"
    return refused.value.code


def test_a_minted_capability_verifies_unchanged() -> None:
    assert verify(mint(capability(), RING, NOW), RING, NOW) == capability()
    empty = capability(jobs=(JobGrants((), ()), JobGrants((), ())), org="ünï")
    assert verify(mint(empty, RING, NOW), RING, NOW) == empty


def test_each_attempt_has_the_grants_of_its_job_and_no_other_attempt_has_any() -> None:
    for granted in (capability(), verify(mint(capability(), RING, NOW), RING, NOW)):
        assert granted.grants_of(FIRST, 2) == TRANSFERS
        assert granted.grants_of(SECOND, 1) == BALANCES
        for task_id, number in ((FIRST, 1), (FIRST, 3), (SECOND, 2), ("another", 2), ("", 0)):
            assert granted.grants_of(task_id, number) is None


def test_a_changed_copy_does_not_keep_the_grants_of_the_original() -> None:
    granted = capability()
    assert granted.grants_of(FIRST, 2) == TRANSFERS
    renewed = msgspec.structs.replace(granted, expires_at=NOW + 900)
    assert renewed.grants_of(FIRST, 2) == TRANSFERS
    narrowed = msgspec.structs.replace(granted, tasks=granted.tasks[1:])
    assert narrowed.grants_of(FIRST, 2) is None


def test_looking_up_a_grant_changes_neither_equality_nor_the_token() -> None:
    granted = capability()
    before = mint(granted, RING, NOW).split(".")[1]
    granted.grants_of(FIRST, 2)
    assert granted == capability()
    assert hash(granted) == hash(capability())
    assert mint(granted, RING, NOW).split(".")[1] == before


def test_tasks_are_compact_in_the_token_and_a_job_is_included_once() -> None:
    tasks = tuple(TaskGrant(f"{FIRST[:-3]}{number:03}", 1, 0) for number in range(1000))
    body = json.loads(decode(mint(capability(tasks=tasks[:2]), RING, NOW).split(".")[1]))
    assert body["tasks"] == [[tasks[0].task_id, 1, 0], [tasks[1].task_id, 1, 0]]
    assert set(body) == {"iss", "aud", "iat", "exp", "org", "tasks", "jobs"}
    token = mint(capability(tasks=tasks), RING, NOW)
    assert len(token) < MAX_TOKEN_BYTES / 4
    assert verify(token, RING, NOW).grants_of(tasks[-1].task_id, 1) == TRANSFERS


def test_attempts_never_share_a_write_prefix() -> None:
    grant = WriteGrant(0, "transfers-uuid", "generation-7", "o/acme-uuid/transfers-uuid/generation-7/")
    assert write_prefix(grant, FIRST, 2) == f"o/acme-uuid/transfers-uuid/generation-7/staging/{FIRST}/2/"
    older = TRANSFERS.writes[0]
    assert write_prefix(older, FIRST, 2) == f"transfers-uuid/generation-7/staging/{FIRST}/2/"
    prefixes = {write_prefix(grant, task, number) for task in (FIRST, SECOND) for number in (1, 11)}
    assert len(prefixes) == 4
    assert not any(a != b and a.startswith(b) for a in prefixes for b in prefixes)


FLAWED = {
    "no task": (),
    "job past the end": (TaskGrant(FIRST, 2, 0), TaskGrant(SECOND, 1, 2)),
    "job before the start": (TaskGrant(FIRST, 2, -1),),
    "job beyond any machine word": (TaskGrant(FIRST, 2, 10**30),),
    "two jobs of one attempt": (TaskGrant(FIRST, 2, 0), TaskGrant(FIRST, 2, 1)),
}


@pytest.mark.parametrize("tasks", FLAWED.values(), ids=FLAWED)
def test_a_capability_of_no_task_or_no_clear_job_is_neither_minted_nor_accepted(
    tasks: tuple[TaskGrant, ...],
) -> None:
    with pytest.raises(ValueError, match="the capability"):
        mint(capability(tasks=tasks), RING, NOW)
    with pytest.raises(ValueError, match="the capability"):
        VerifiedCache(1).mint(capability(tasks=tasks), RING, NOW)
    compact = [[task.task_id, task.attempt, task.job] for task in tasks]
    assert refusal(signed(HEADER, claims(tasks=compact))) == "token.malformed"


def test_a_standard_library_verifies_our_token_with_the_published_key_set() -> None:
    token = mint(capability(), RING, NOW)
    published = jwt.PyJWKSet.from_dict(RING.jwks(NOW))
    key = published[jwt.get_unverified_header(token)["kid"]]
    body = jwt.decode(
        token,
        key,
        algorithms=["ES256"],
        audience="traceplane/internal",
        issuer="traceplane",
        options={"verify_exp": False},
    )
    assert body["tasks"] == [[FIRST, 2, 0], [SECOND, 1, 1]]


def test_a_token_signed_elsewhere_with_our_key_and_type_verifies() -> None:
    assert verify(signed(HEADER, claims()), RING, NOW) == capability()


def test_a_token_expires_at_its_second() -> None:
    token = mint(capability(), RING, NOW)
    assert verify(token, RING, NOW + 60.24) == capability()
    assert refusal(token, now=NOW + 60.25) == "token.expired"


@pytest.mark.parametrize("expires_at", [NOW, NOW - 1, float("inf"), float("nan")])
def test_a_capability_that_never_or_already_expired_is_not_minted(expires_at: float) -> None:
    with pytest.raises(ValueError, match="expire"):
        mint(capability(expires_at=expires_at), RING, NOW)


def test_a_capability_too_large_to_be_read_is_not_minted() -> None:
    reads = tuple(ReadGrant("u" * 36, "v" * 36, "s" * 200) for _ in range(500))
    fits, too_large = JobGrants(reads, ()), JobGrants(reads * 2, ())
    one = (TaskGrant(FIRST, 2, 0),)
    assert verify(mint(capability(tasks=one, jobs=(fits,)), RING, NOW), RING, NOW).jobs == (fits,)
    with pytest.raises(errors.TooLarge) as refused:
        mint(capability(tasks=one, jobs=(too_large,)), RING, NOW)
    assert refused.value.code == "token.too_large"


def test_the_previous_key_is_accepted_until_it_retires() -> None:
    ring = keyring.rotate(RING, NOW, overlap_seconds=100.0)
    lasting = capability(expires_at=NOW + 500)
    token = mint(lasting, ring, NOW + 99)  # the last second before the new key
    assert jwt.get_unverified_header(token)["kid"] == KEY.kid
    assert verify(token, ring, NOW + 199.9) == lasting
    assert refusal(token, ring, NOW + 200) == "token.unknown_key"


def test_the_next_key_is_accepted_before_it_is_current() -> None:
    ring = keyring.rotate(RING, NOW, overlap_seconds=100.0)
    lasting = capability(expires_at=NOW + 500)
    token = mint(lasting, ring, NOW + 100)  # by a dispatcher whose clock is ahead
    assert jwt.get_unverified_header(token)["kid"] == ring.keys[-1].kid
    assert ring.current(NOW + 1).kid == KEY.kid
    assert verify(token, ring, NOW + 1) == lasting


def test_a_key_outside_the_ring_is_unknown() -> None:
    stranger = Keyring((keyring.generate(0.0),))
    assert refusal(mint(capability(), stranger, NOW)) == "token.unknown_key"
    assert refusal(signed({**HEADER, "kid": ""}, claims())) == "token.unknown_key"


def test_another_key_under_our_kid_is_a_bad_signature() -> None:
    forger = keyring.generate(0.0)
    token = jwt.encode(claims(), forger.private_key, "ES256", headers={"kid": KEY.kid, "typ": TYPE})
    assert refusal(token) == "token.bad_signature"


@pytest.mark.parametrize("alg", ["none", "None", "", "HS256", "ES384", "RS256", "es256"])
def test_no_other_algorithm_is_accepted_even_with_a_good_signature(alg: str) -> None:
    header = {"alg": alg, "kid": KEY.kid, "typ": TYPE}
    assert refusal(f"{encode(header)}.{encode(claims())}.") == "token.bad_signature"
    assert refusal(signed(header, claims())) == "token.bad_signature"


@pytest.mark.parametrize("form", ["pem", "jwk", "point"])
def test_the_public_key_is_not_a_shared_secret(form: str) -> None:
    secret = {
        "pem": KEY.public_key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        "jwk": json.dumps(KEY.public_jwk).encode(),
        "point": KEY.public_key.public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        ),
    }[form]
    content = f"{encode({'alg': 'HS256', 'kid': KEY.kid, 'typ': TYPE})}.{encode(claims())}"
    mac = hmac.digest(secret, content.encode(), hashlib.sha256)
    assert refusal(f"{content}.{encode(mac)}") == "token.bad_signature"
    relabelled = f"{encode({'alg': 'ES256', 'kid': KEY.kid, 'typ': TYPE})}.{encode(claims())}"
    assert refusal(f"{relabelled}.{encode(mac + mac)}") == "token.bad_signature"


def test_a_swapped_payload_is_a_bad_signature() -> None:
    mine = mint(capability(), RING, NOW).split(".")
    other = mint(capability(org="another"), RING, NOW).split(".")
    assert refusal(f"{mine[0]}.{other[1]}.{mine[2]}") == "token.bad_signature"


@pytest.mark.parametrize("signature", [bytes(64), b"\xff" * 64, bytes(63), bytes(65), b""])
def test_a_degenerate_signature_is_bad(signature: bytes) -> None:
    header, body, _ = mint(capability(), RING, NOW).split(".")
    assert refusal(f"{header}.{body}.{encode(signature)}") == "token.bad_signature"


def test_a_der_signature_is_bad() -> None:
    header, body, _ = mint(capability(), RING, NOW).split(".")
    der = KEY.private_key.sign(f"{header}.{body}".encode(), ec.ECDSA(hashes.SHA256()))
    assert refusal(f"{header}.{body}.{encode(der)}") == "token.bad_signature"


@pytest.mark.parametrize(
    "changes",
    [{"aud": "traceplane/public"}, {"aud": ""}, {"iss": "elsewhere"}, {"aud": "traceplane/internal/"}],
)
def test_a_token_for_another_service_is_rejected(changes: dict[str, str]) -> None:
    assert refusal(signed(HEADER, claims(**changes))) == "token.wrong_audience"


@pytest.mark.parametrize("typ", ["JWT", "at+jwt", ""])
def test_a_token_of_another_type_signed_with_our_key_is_not_a_capability(typ: str) -> None:
    assert refusal(signed({**HEADER, "typ": typ}, claims())) == "token.wrong_kind"


@pytest.mark.parametrize("header", [{"jwk": KEY.public_jwk}, {"jku": "https://evil"}, {"crit": ["exp"]}])
def test_a_header_that_brings_its_own_rules_is_malformed(header: dict[str, Any]) -> None:
    assert refusal(signed({**HEADER, **header}, claims())) == "token.malformed"


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": None},
        {"exp": "9999999999"},
        {"aud": ["x"]},
        {"tasks": None},
        {"tasks": [{"task_id": FIRST, "attempt": 2, "job": 0}]},
        {"tasks": [[FIRST, "2", 0]]},
        {"tasks": [[FIRST, True, 0]]},
        {"tasks": [[FIRST, 2, 0.5]]},
        {"tasks": [[FIRST, 2]]},
        {"tasks": [[FIRST, 2, 0, 0]]},
        {"jobs": {}},
        {"jobs": [{"reads": []}]},
        {"jobs": [{"reads": [{"dataset_uuid": "x"}], "writes": []}] * 2},
    ],
)
def test_signed_claims_of_the_wrong_shape_are_malformed(changes: dict[str, Any]) -> None:
    assert refusal(signed(HEADER, claims(**changes))) == "token.malformed"


def test_signed_claims_of_one_task_are_malformed() -> None:
    single = {"task": FIRST, "attempt": 2, "reads": [], "writes": []}
    body = {name: value for name, value in claims().items() if name not in ("tasks", "jobs")}
    assert refusal(signed(HEADER, {**body, **single})) == "token.malformed"


def test_signed_claims_that_are_too_deep_or_too_long_are_malformed() -> None:
    deep = b'{"later":' + b"[" * 100_000 + b"]" * 50_000
    for body in (deep, claims(org="x" * MAX_TOKEN_BYTES), b"null", b"\xff"):
        assert refusal(signed(HEADER, body)) == "token.malformed"


@pytest.mark.parametrize(
    ("token", "code"),
    [
        ("", "token.missing"),
        (".", "token.malformed"),
        ("..", "token.malformed"),
        ("a.b", "token.malformed"),
        ("a.b.c.d", "token.malformed"),
        ("ключ.b.c", "token.malformed"),
        ("\ud800.\udfff.\x00", "token.malformed"),
        (encode(b"[" * 150_000) + ".e30.e30", "token.malformed"),
        (encode(b'{"x":' + b"[" * 150_000) + ".e30.e30", "token.malformed"),
        (encode(b'{"alg":"\xff\xfe"}') + ".e30.e30", "token.malformed"),
        ("A" * 10_000_000, "token.malformed"),
        ("." * 10_000_000, "token.malformed"),
        ("tpu_" + "A" * 49, "token.wrong_kind"),
        ("tpw_" + "A" * 49, "token.wrong_kind"),
    ],
    ids=lambda value: value[:12] if value.isascii() and value.isprintable() else "garbage",
)
def test_a_string_that_is_not_a_token_is_rejected_as_such(token: str, code: str) -> None:
    assert refusal(token) == code


def test_every_truncation_is_rejected() -> None:
    token = mint(capability(), RING, NOW)
    for length in range(len(token)):
        refusal(token[:length])


def test_every_changed_character_is_rejected_even_by_a_cache_that_knows_the_token() -> None:
    cache = VerifiedCache(10)
    token = cache.mint(capability(), RING, NOW)
    for position in range(len(token)):
        for character in "A_=":
            changed = token[:position] + character + token[position + 1 :]
            if changed != token:
                with pytest.raises(errors.Unauthenticated):
                    cache.verify(changed, RING, NOW)
    assert len(cache) == 1


def test_a_token_has_one_spelling() -> None:
    token = mint(capability(), RING, NOW)
    for respelled in (token + "=", token + "==", token + "\n", " " + token, token.replace(".", ".\n", 1)):
        refusal(respelled)
    last = BASE64URL.index(token[-1])
    assert last % 16 == 0  # four spare bits, zero in the one accepted spelling
    for spare in range(1, 16):
        assert refusal(token[:-1] + BASE64URL[last + spare]) == "token.malformed"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
headers = st.fixed_dictionaries(
    {},
    optional={
        "alg": st.sampled_from(["ES256", "none", "HS256"]) | json_values,
        "kid": st.just(KEY.kid) | json_values,
        "typ": st.just(TYPE) | json_values,
        "jwk": json_values,
    },
)
parts = st.binary(max_size=80).map(encode) | headers.map(encode) | json_values.map(encode)
garbage = (
    st.text(max_size=200)
    | st.text(alphabet=st.characters(min_codepoint=0xD7F0, max_codepoint=0xE010), max_size=20)
    | st.lists(parts, max_size=5).map(".".join)
)


@settings(max_examples=500)
@given(garbage)
def test_no_string_makes_verify_raise_anything_but_unauthenticated(token: str) -> None:
    refusal(token)
    with pytest.raises(errors.Unauthenticated):
        VerifiedCache(1).verify(token, RING, NOW)


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(sorted(claims())), json_values, min_size=1))
def test_signed_nonsense_is_rejected_or_read_and_never_crashes(changes: dict[str, Any]) -> None:
    with contextlib.suppress(errors.Unauthenticated):
        assert isinstance(verify(signed(HEADER, claims(**changes)), RING, NOW), Capability)


def test_a_cache_checks_each_token_once_and_a_minted_one_never() -> None:
    cache, granted = VerifiedCache(10), capability()
    minted = cache.mint(granted, RING, NOW)
    foreign = mint(attempt(3), RING, NOW)
    read = cache.verify(foreign, RING, NOW)
    assert read == attempt(3)
    # The very same objects: reading a token again would have built new ones.
    assert cache.verify(minted, RING, NOW) is granted
    assert cache.verify(foreign, RING, NOW) is read


def test_a_cache_never_returns_an_expired_capability() -> None:
    cache = VerifiedCache(10)
    token = cache.mint(capability(), RING, NOW)
    with pytest.raises(errors.Unauthenticated) as refused:
        cache.verify(token, RING, NOW + 60.25)
    assert refused.value.code == "token.expired"
    assert len(cache) == 0


def test_a_cache_drops_a_token_when_its_key_leaves_the_ring() -> None:
    cache = VerifiedCache(10)
    token = cache.mint(capability(), RING, NOW)
    rotated = keyring.rotate(RING, NOW, overlap_seconds=0.0)
    with pytest.raises(errors.Unauthenticated) as refused:
        cache.verify(token, rotated, NOW)
    assert refused.value.code == "token.unknown_key"
    assert len(cache) == 0


def test_a_cache_drops_a_token_when_its_key_retires() -> None:
    cache = VerifiedCache(10)
    lasting = capability(expires_at=NOW + 500)
    token = cache.mint(lasting, RING, NOW)
    rotated = keyring.rotate(RING, NOW, overlap_seconds=10.0)
    assert cache.verify(token, rotated, NOW + 19.9) is lasting
    with pytest.raises(errors.Unauthenticated) as refused:
        cache.verify(token, rotated, NOW + 20)
    assert refused.value.code == "token.unknown_key"


def test_a_rejected_token_is_not_cached() -> None:
    cache = VerifiedCache(10)
    for token in ("", "a.b.c", mint(capability(), Keyring((keyring.generate(0.0),)), NOW)):
        with pytest.raises(errors.Unauthenticated):
            cache.verify(token, RING, NOW)
    assert len(cache) == 0


def test_a_cache_is_bounded_and_forgets_the_least_recently_used() -> None:
    cache, first, second = VerifiedCache(2), attempt(1), attempt(2)
    heartbeating = cache.mint(first, RING, NOW)
    finished = cache.mint(second, RING, NOW)
    cache.verify(heartbeating, RING, NOW)
    cache.mint(attempt(3), RING, NOW)
    assert len(cache) == 2
    assert cache.verify(heartbeating, RING, NOW) is first
    assert cache.verify(finished, RING, NOW) is not second


def test_a_cache_holds_at_least_one_token() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        VerifiedCache(0)
