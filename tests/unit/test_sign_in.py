"""What an identity provider signed for us is accepted, and nothing else; pages of other sites achieve nothing."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.oidc_provider import Key, OidcProvider, ec_key, rsa_key, unsigned
from traceplane.errors import (
    Forbidden,
    InvalidInput,
    NotFound,
    PlatformError,
    TraceplaneError,
    Unauthenticated,
)
from traceplane.http_service.outgoing import Outgoing
from traceplane.signin import browser, issuers, jwts, providers
from traceplane.signin.browser import Attempt, Site, check_next
from traceplane.signin.issuers import Issuers
from traceplane.signin.jwts import Verified, keys_of
from traceplane.signin.providers import Provider

ISSUER = "https://idp.example.com"
AUDIENCE = "traceplane-api"
NOW = 1_800_000_000.0

THEIRS = OidcProvider(url=ISSUER, keys=[rsa_key(), ec_key()])
KEYS = keys_of(json.dumps({"keys": [key.jwk for key in THEIRS.keys]}).encode())


def claims(**changes: Any) -> dict[str, Any]:
    return THEIRS.claims(**{"aud": AUDIENCE, "iat": NOW - 10, "exp": NOW + 300, **changes})


def verify(token: str, now: float = NOW) -> Verified:
    return jwts.verify(token, KEYS, issuer=ISSUER, audiences=[AUDIENCE], now=now)


def reason(token: str, now: float = NOW) -> str:
    with pytest.raises(Unauthenticated) as caught:
        verify(token, now)
    assert token not in str(caught.value)
    return caught.value.code


# JWTs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", THEIRS.keys, ids=lambda key: key.algorithm)
def test_what_the_provider_signed_is_accepted(key: Key) -> None:
    found = verify(THEIRS.sign(claims(), key))
    assert (found.issuer, found.subject) == (ISSUER, "ada-1")
    assert found.claims["groups"] == ["engineers"]


def test_a_jwt_for_several_audiences_is_accepted_if_one_is_ours() -> None:
    assert verify(THEIRS.sign(claims(aud=["other", AUDIENCE]))).subject == "ada-1"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
def test_a_jwt_without_a_signature_is_refused(algorithm: str) -> None:
    for signature in (b"", b"x"):
        token = unsigned(claims(), {"alg": algorithm, "kid": "rsa-1", "typ": "JWT"}, signature)
        assert reason(token) == "jwt.bad_algorithm"


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_public_key_is_no_shared_secret(algorithm: str) -> None:
    """Key confusion: whoever knows the public key could sign with it if the header chose the algorithm."""
    public = THEIRS.keys[0].private.public_key()
    for secret in (
        public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
        json.dumps(THEIRS.keys[0].jwk).encode(),
    ):
        unsealed = unsigned(claims(), {"alg": algorithm, "kid": "rsa-1"})[:-1]
        digest = hmac.digest(secret, unsealed.encode(), f"sha{algorithm[2:]}")
        token = unsigned(claims(), {"alg": algorithm, "kid": "rsa-1"}, digest)
        assert reason(token) == "jwt.bad_algorithm"


def test_a_key_signs_only_with_the_algorithms_of_its_kind() -> None:
    signed = THEIRS.sign(claims(), THEIRS.keys[1])
    as_rsa = unsigned(claims(), {"alg": "RS256", "kid": "ec-1"}, signed.rpartition(".")[2].encode())
    assert reason(as_rsa) == "jwt.bad_signature"
    assert reason(THEIRS.sign(claims(), Key("rsa-1", THEIRS.keys[1].private))) == "jwt.bad_signature"
    # The provider publishes the key for RS256 only.
    assert (
        reason(jwt.encode(claims(), THEIRS.keys[0].private, "PS256", {"kid": "rsa-1"})) == "jwt.bad_signature"
    )


def test_a_key_that_the_jwt_brings_along_is_ignored() -> None:
    own = ec_key("ec-1")
    for header in ({"jwk": own.jwk}, {"jku": "https://evil.example/keys"}, {"x5u": "https://evil.example/x"}):
        assert reason(THEIRS.sign(claims(), own, **header)) == "jwt.bad_signature"
    assert reason(THEIRS.sign(claims(), ec_key("own"), jwk=own.jwk)) == "jwt.unknown_key"


def test_a_changed_claim_is_noticed() -> None:
    head, _, signature = THEIRS.sign(claims()).split(".")
    other = unsigned(claims(sub="root"), {}).split(".")[1]
    assert reason(f"{head}.{other}.{signature}") == "jwt.bad_signature"
    assert reason(f"{head}.{other}.") == "jwt.bad_signature"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"aud": "other"}, "jwt.wrong_audience"),
        ({"aud": ["other", "third"]}, "jwt.wrong_audience"),
        ({"aud": []}, "jwt.wrong_audience"),
        ({"aud": AUDIENCE + "x"}, "jwt.wrong_audience"),
        ({"aud": {"x": AUDIENCE}}, "jwt.malformed"),
        ({"aud": None}, "jwt.malformed"),
        ({"iss": "https://evil.example"}, "jwt.wrong_issuer"),
        ({"iss": ISSUER + "/"}, "jwt.wrong_issuer"),
        ({"iss": None}, "jwt.malformed"),
        ({"exp": NOW - 61}, "jwt.expired"),
        ({"exp": None}, "jwt.malformed"),
        ({"exp": "never"}, "jwt.malformed"),
        ({"exp": True}, "jwt.malformed"),
        ({"nbf": NOW + 61}, "jwt.not_yet_valid"),
        ({"iat": NOW + 61}, "jwt.not_yet_valid"),
        ({"iat": None}, "jwt.malformed"),
        ({"sub": None}, "jwt.malformed"),
        ({"sub": ""}, "jwt.malformed"),
        ({"sub": "x" * 256}, "jwt.malformed"),
        ({"sub": 7}, "jwt.malformed"),
    ],
)
def test_a_jwt_for_others_or_for_another_time_is_refused(changes: dict[str, Any], code: str) -> None:
    signed = jwt.PyJWS().encode(
        json.dumps(claims(**changes)).encode(), THEIRS.keys[0].private, "RS256", {"kid": "rsa-1"}
    )
    assert reason(signed) == code


def test_clocks_may_differ_by_a_minute() -> None:
    assert verify(THEIRS.sign(claims(exp=NOW - 59))).subject == "ada-1"
    assert verify(THEIRS.sign(claims(nbf=NOW + 59, iat=NOW + 59))).subject == "ada-1"


def test_numbers_that_are_no_time_are_refused() -> None:
    for number in ("1e999", "-1e999", "NaN", "Infinity"):
        body = json.dumps(claims(exp=12345)).replace("12345", number).encode()
        signed = jwt.PyJWS().encode(body, THEIRS.keys[0].private, "RS256", {"kid": "rsa-1"})
        assert reason(signed) in ("jwt.malformed", "jwt.expired")


@pytest.mark.parametrize(
    "header",
    [
        {"kid": "gone"},
        {"kid": ""},
        {"kid": None},
        {"kid": "../../etc/passwd"},
        {"crit": ["exp"], "exp": 1},
        {"typ": "logout+jwt"},
        {"b64": False, "crit": ["b64"]},
    ],
)
def test_a_header_that_names_no_key_or_asks_for_more_is_refused(header: dict[str, Any]) -> None:
    base = {"alg": "RS256", "kid": "rsa-1", "typ": "JWT"}
    assert reason(unsigned(claims(), base | header)) in ("jwt.unknown_key", "jwt.malformed")


@pytest.mark.parametrize(
    "token",
    ["", "..", "eyJ", "eyJhbGciOiJSUzI1NiJ9..", "a.b.c", "eyJ.eyJ.x", "é.é.é", "e" * 20_000, "[" * 9000],
)
def test_what_is_no_jwt_is_refused(token: str) -> None:
    with pytest.raises(Unauthenticated):
        jwts.unverified_issuer(token)
    with pytest.raises(Unauthenticated):
        verify(token)


def test_weak_keys_and_keys_of_other_kinds_are_left_out() -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505
    good = ec_key("good").jwk
    published = [
        Key("weak", weak).jwk,
        {**good, "kid": "enc", "use": "enc"},
        {**good, "kid": "sign-only", "key_ops": ["sign"]},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared", "alg": "HS256"},
        {**good, "kid": "odd", "alg": "HS256"},
        {**good, "kid": "broken", "x": "AA"},
        {k: v for k, v in good.items() if k != "kid"},
        {"kty": 7},
        {},
        good,
    ]
    assert [key.kid for key in keys_of(json.dumps({"keys": published}).encode())] == ["good"]


def test_an_id_token_answers_one_sign_in_of_one_client() -> None:
    def check(**changes: Any) -> None:
        found = verify(THEIRS.sign(claims(**{"nonce": "n", **changes})))
        jwts.check_id_token(found, client_id=AUDIENCE, nonce="n")

    check()
    check(azp=AUDIENCE, aud=[AUDIENCE, "other"])
    for changes in ({"nonce": "m"}, {"nonce": None}, {"azp": "other"}, {"aud": [AUDIENCE, "other"]}):
        with pytest.raises(Unauthenticated):
            check(**changes)


# Providers ------------------------------------------------------------------------------------------


def provider(**changes: Any) -> Provider:
    defaults: dict[str, Any] = {
        "org": "acme",
        "name": "idp",
        "issuer": ISSUER,
        "client_id": "traceplane",
        "audience": AUDIENCE,
        "roles_claim": "groups",
        "role_map": {"engineers": "writer", "heads": "admin", "books": "finance"},
    }
    return Provider(**defaults | changes)


def said(**found: Any) -> Verified:
    return Verified(ISSUER, "ada-1", {"aud": AUDIENCE, **found})


@pytest.mark.parametrize(
    ("path", "found", "roles"),
    [
        ("groups", {"groups": ["engineers", "books", "choir"]}, {"writer", "finance"}),
        ("groups", {"groups": "heads"}, {"admin"}),
        ("realm_access.roles", {"realm_access": {"roles": ["heads"]}}, {"admin"}),
        ("https://acme.example/roles", {"https://acme.example/roles": ["heads"]}, {"admin"}),
        ("groups", {"groups": ["choir"]}, set()),
        ("groups", {"groups": "engineers heads"}, set()),
        ("groups", {"groups": [["heads"], {"heads": 1}, 7, None]}, set()),
        ("groups", {"groups": {"heads": True}}, set()),
        ("groups", {}, set()),
        ("groups.x.y", {"groups": "heads"}, set()),
    ],
)
def test_claims_mean_the_roles_of_the_map(path: str, found: dict[str, Any], roles: set[str]) -> None:
    if roles:
        assert providers.roles_of(provider(roles_claim=path), said(**found)) == roles
    else:
        with pytest.raises(Forbidden):
            providers.roles_of(provider(roles_claim=path), said(**found))
        assert providers.roles_of(provider(roles_claim=path, default_role="reader"), said(**found)) == {
            "reader"
        }


@pytest.mark.parametrize(
    ("required", "found", "accepted"),
    [
        ({}, {}, True),
        ({"hd": "acme.example"}, {"hd": "acme.example"}, True),
        ({"hd": "acme.example"}, {"hd": "ACME.example"}, False),
        ({"hd": "acme.example"}, {}, False),
        ({"groups": "team-a"}, {"groups": ["x", "team-a"]}, True),
        ({"a.b": 1}, {"a": {"b": 1}}, True),
        ({"a": 1}, {"a": True}, False),
        ({"email_verified": True}, {"email_verified": "true"}, False),
        ({"hd": "acme.example", "x": "y"}, {"hd": "acme.example"}, False),
    ],
)
def test_required_claims_are_all_required(
    required: dict[str, Any], found: dict[str, Any], accepted: bool
) -> None:
    assert providers.accepts(provider(required_claims=required), said(**found)) is accepted


def test_the_claims_choose_the_organization_and_the_caller_if_that_leaves_several() -> None:
    candidates = [
        provider(org="acme", required_claims={"tid": "a"}),
        provider(org="beta", required_claims={"tid": "b"}),
        provider(org="gamma"),
    ]
    assert providers.chosen(candidates[:2], said(tid="b"), None).org == "beta"
    assert providers.chosen(candidates, said(tid="x"), None).org == "gamma"
    with pytest.raises(InvalidInput):
        providers.chosen(candidates, said(tid="b"), None)
    assert providers.chosen(candidates, said(tid="b"), "gamma").org == "gamma"
    for org in ("acme", "nobody", ""):
        with pytest.raises(Unauthenticated):
            providers.chosen(candidates, said(tid="b"), org)


def test_a_person_signs_in_with_the_only_provider_or_the_one_that_is_named() -> None:
    both = [provider(name="one"), provider(name="two"), provider(org="beta", name="three")]
    assert providers.named(both, "beta", None).name == "three"
    assert providers.named(both, "acme", "two").name == "two"
    for org, name in (("acme", None), ("acme", "three"), ("nobody", None), ("nobody", "one")):
        with pytest.raises(NotFound) as caught:
            providers.named(both, org, name)
        step = caught.value.next_step or ""
        assert ("--org" in step) if org == "nobody" else ("one, two" in step and "--provider" in step)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"name": "Google"}, "provider.bad_name"),
        ({"name": "a/b"}, "provider.bad_name"),
        ({"issuer": ISSUER + "?x=1"}, "provider.bad_issuer"),
        ({"role_map": {"x": "king"}}, "provider.unknown_role"),
        ({"default_role": "king"}, "provider.unknown_role"),
        ({"roles_claim": None}, "provider.incomplete"),
        ({"role_map": {}}, "provider.incomplete"),
        ({"scopes": ["profile"]}, "provider.bad_scopes"),
        ({"scopes": ["openid", "a b"]}, "provider.bad_scopes"),
        ({"client_secret": "sh h!"}, "provider.bad_secret"),
    ],
)
def test_a_provider_that_cannot_work_is_refused(changes: dict[str, Any], code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        providers.check(provider(**changes), roles={"admin", "writer", "reader", "finance"})
    assert caught.value.code == code


def test_nobody_chooses_their_own_name() -> None:
    def name(**found: Any) -> str:
        return providers.display_name(provider(), said(**found))

    assert name(email="ada@example.com", email_verified=True) == "ada@example.com"
    for unvouched in (
        {"email": "ada@example.com"},
        {"email": "ada@example.com", "email_verified": "true"},
        {"email": "admin", "email_verified": True},
        {"email": "a\n@example.com", "email_verified": True},
        {"preferred_username": "admin", "name": "admin"},
    ):
        assert name(**unvouched) == "idp:ada-1"


# What issuers publish -------------------------------------------------------------------------------


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_keys_are_fetched_once_and_again_when_one_is_not_known() -> None:
    async with OidcProvider.running() as theirs:
        clock = Clock()
        known = Issuers(Outgoing([theirs.place]), clock=clock)
        for _ in range(3):
            assert [key.kid for key in await known.keys(theirs.url, "rsa-1")] == ["rsa-1"]
        assert theirs.fetched("/keys") == 1
        theirs.keys = [ec_key("ec-2")]
        clock.now += issuers.APART_SECONDS + 1
        assert [key.kid for key in await known.keys(theirs.url, "ec-2")] == ["ec-2"]
        # Anybody can send a JWT with a key that nobody knows.
        for number in range(50):
            await known.keys(theirs.url, f"made-up-{number}")
        assert theirs.fetched("/keys") == 2


async def test_a_withdrawn_key_is_forgotten_and_an_outage_is_survived_for_a_day() -> None:
    async with OidcProvider.running(keys=[rsa_key(), ec_key()]) as theirs:
        clock = Clock()
        known = Issuers(Outgoing([theirs.place]), clock=clock)
        assert len(await known.keys(theirs.url, "rsa-1")) == 2
        assert await known.refresh([theirs.url]) == 0
        assert theirs.fetched("/keys") == 1
        theirs.keys.pop()
        clock.now += issuers.FRESH_SECONDS + 1
        assert await known.refresh([theirs.url]) == 0
        assert [key.kid for key in await known.keys(theirs.url, "rsa-1")] == ["rsa-1"]
        theirs.broken = True
        clock.now += issuers.FRESH_SECONDS + 1
        assert await known.refresh([theirs.url]) == 1
        assert [key.kid for key in await known.keys(theirs.url, "rsa-1")] == ["rsa-1"]
        clock.now += issuers.USABLE_SECONDS
        with pytest.raises(PlatformError):
            await known.keys(theirs.url, "rsa-1")


async def test_a_provider_that_fails_is_not_asked_again_at_once() -> None:
    async with OidcProvider.running(broken=True) as theirs:
        known = Issuers(Outgoing([theirs.place]), clock=Clock())
        for _ in range(10):
            with pytest.raises(PlatformError):
                await known.keys(theirs.url, "rsa-1")
        assert len(theirs.requests) == 1


async def test_a_document_of_another_issuer_is_refused() -> None:
    async with OidcProvider.running(issuer_in_document="https://accounts.example.com") as theirs:
        with pytest.raises(TraceplaneError):
            await Issuers(Outgoing([theirs.place])).keys(theirs.url, "rsa-1")
        assert theirs.fetched("/keys") == 0


async def test_an_issuer_inside_the_network_is_not_called() -> None:
    async with OidcProvider.running() as theirs:
        with pytest.raises(TraceplaneError):
            await Issuers(Outgoing()).keys(theirs.url, "rsa-1")
        assert theirs.requests == []


# Browsers -------------------------------------------------------------------------------------------

SITE = Site.at("https://tp.example.com")
LOCAL = Site.at("http://127.0.0.1:7461")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "//evil.example",
        "///evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "/x\\y",
        "https://evil.example",
        "javascript:alert(1)",
        "/\t/evil.example",
        "/x\r\nset-cookie: a=b",
        "/x y",
        "/é",
        "/\0",
        " //evil.example",
        "/" + "x" * 1000,
    ],
)
def test_a_browser_is_not_sent_elsewhere(text: str) -> None:
    with pytest.raises(InvalidInput):
        check_next(text)


@pytest.mark.parametrize("text", ["/", "/datasets", "/datasets/shop.orders?tab=rows#top", "/a//b", "/@x:y"])
def test_a_browser_goes_on_to_a_path_of_the_site(text: str) -> None:
    assert check_next(text) == text


def test_cookies_are_closed_to_everybody_else() -> None:
    name, value = SITE.set_cookie("session", "abc", 60)
    assert (name, value) == (
        b"set-cookie",
        b"__Host-traceplane_session=abc; Path=/; Max-Age=60; SameSite=Lax; Secure; HttpOnly",
    )
    assert b"HttpOnly" not in SITE.set_cookie("csrf", "abc", 60, readable=True)[1]
    assert b"__Host-" not in LOCAL.set_cookie("session", "abc", 60)[1]
    with pytest.raises(InvalidInput):
        Site.at("http://tp.example.com")
    with pytest.raises(InvalidInput):
        Site.at("http://10.0.0.5:7461")


def test_a_cookie_without_the_prefix_or_sent_twice_is_no_session_over_https() -> None:
    def found(text: str) -> str | None:
        return SITE.cookie([(b"cookie", text.encode())], "session")

    assert found("a=b; __Host-traceplane_session=abc; c=d") == "abc"
    assert found("traceplane_session=abc") is None
    assert found("__Host-traceplane_session=abc; __Host-traceplane_session=def") is None
    assert found("__Host-traceplane_session=a b") is None
    assert found("__host-traceplane_session=abc") is None


def test_a_session_over_plain_http_stays_on_its_machine() -> None:
    here = [(b"host", b"127.0.0.1:7461")]
    LOCAL.check_host(here, "127.0.0.1")
    for headers, remote in (
        (here, "192.168.1.7"),
        (here, None),
        ([(b"host", b"evil.example:7461")], "127.0.0.1"),
        ([(b"host", b"127.0.0.1:7461"), (b"host", b"evil.example")], "127.0.0.1"),
        ([], "127.0.0.1"),
    ):
        with pytest.raises(Unauthenticated):
            LOCAL.check_host(headers, remote)


CSRF = "c" * 43


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"origin": "https://tp.example.com", "x-csrf-token": CSRF}, True),
        ({"origin": "https://tp.example.com", "sec-fetch-site": "same-origin", "x-csrf-token": CSRF}, True),
        ({"sec-fetch-site": "same-origin", "x-csrf-token": CSRF}, True),
        ({"x-csrf-token": CSRF}, False),
        ({"origin": "https://tp.example.com"}, False),
        ({"origin": "https://tp.example.com", "x-csrf-token": "d" * 43}, False),
        ({"origin": "https://tp.example.com", "x-csrf-token": ""}, False),
        ({"origin": "https://evil.example", "x-csrf-token": CSRF}, False),
        ({"origin": "http://tp.example.com", "x-csrf-token": CSRF}, False),
        ({"origin": "null", "x-csrf-token": CSRF}, False),
        ({"origin": "https://tp.example.com.evil.example", "x-csrf-token": CSRF}, False),
        ({"origin": "null", "sec-fetch-site": "same-origin", "x-csrf-token": CSRF}, False),
        ({"origin": "https://tp.example.com", "sec-fetch-site": "cross-site", "x-csrf-token": CSRF}, False),
        ({"sec-fetch-site": "same-site", "x-csrf-token": CSRF}, False),
        ({"sec-fetch-site": "none", "x-csrf-token": CSRF}, False),
    ],
)
def test_a_page_of_another_site_changes_nothing(headers: dict[str, str], allowed: bool) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        if allowed:
            SITE.check_from_own_page(method, raw, browser.hashed(CSRF))
        else:
            with pytest.raises(Forbidden):
                SITE.check_from_own_page(method, raw, browser.hashed(CSRF))
    SITE.check_from_own_page("GET", raw, browser.hashed(CSRF))


def test_a_sign_in_is_completed_by_the_browser_that_began_it() -> None:
    mine, other = (Attempt.begin(provider(), "/datasets", NOW) for _ in range(2))
    assert Attempt.from_cookie(mine.cookie, NOW + 599) == mine
    mine.check_state(mine.state)
    for state in (other.state, "", mine.state[:-1], mine.nonce):
        with pytest.raises(Unauthenticated):
            mine.check_state(state)
    for cookie in (None, "", "x", mine.cookie[:-9], "W10"):
        with pytest.raises(Unauthenticated):
            Attempt.from_cookie(cookie, NOW)
    for now in (NOW + 700, NOW - 100):
        with pytest.raises(Unauthenticated):
            Attempt.from_cookie(mine.cookie, now)
    # Whoever can write the cookie cannot lead the browser elsewhere with it either.
    with pytest.raises(InvalidInput):
        Attempt.from_cookie(Attempt.begin(provider(), "//evil.example", NOW).cookie, NOW)


def test_the_provider_sees_nothing_of_the_cookie() -> None:
    mine = Attempt.begin(provider(), "/", NOW)
    url = browser.authorization_url("https://idp.example.com/authorize?p=1", provider(), mine, SITE)
    assert url.startswith("https://idp.example.com/authorize?p=1&response_type=code&")
    assert "code_challenge_method=S256" in url
    for secret in (mine.secret, mine.verifier, mine.cookie):
        assert secret not in url
    digest = hashlib.sha256(mine.verifier.encode()).digest()
    assert browser.challenge(mine.verifier) == jwt.utils.base64url_encode(digest).decode()
    assert len(mine.verifier) == 43
