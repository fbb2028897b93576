"""Signatures of deliveries: the examples that GitHub, Slack and Stripe document, and whatever else may be sent."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.webhooks import KEY, as_sent, digest, from_github, from_slack, from_stripe
from traceplane.model import hook_keys
from traceplane.webhooks import signatures
from traceplane.webhooks.config import Algorithm, Encoding, Preset, Timestamp, Verify
from traceplane.webhooks.signatures import SignatureRefused, read, scheme_of

GITHUB, STRIPE, SLACK = (scheme_of(Verify(preset=preset)) for preset in Preset)
NOW = 1_700_000_000.0


def code(scheme: signatures.Scheme, headers: dict[str, str], now: float = NOW) -> str:
    with pytest.raises(SignatureRefused) as refused:
        read(scheme, as_sent(headers), now)
    return refused.value.code


def test_the_example_of_github() -> None:
    """docs.github.com: validating webhook deliveries."""
    headers = {
        "X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    }
    signature = read(GITHUB, as_sent(headers), NOW)
    assert signature.matches([b"It's a Secret to Everybody"], b"Hello, World!")
    assert not signature.matches([b"It's a Secret to Everybody"], b"Hello, World! ")
    assert not signature.matches([b"it's a Secret to Everybody"], b"Hello, World!")
    assert not signature.matches([], b"Hello, World!")


def test_the_example_of_slack() -> None:
    """api.slack.com: verifying requests from Slack."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554"
        b"%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "X-Slack-Request-Timestamp": "1531420618",
        "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    signature = read(SLACK, as_sent(headers), 1531420618.0 + 299)
    assert signature.matches([b"8f742231b10e8888abcd99yyyzzz85a5"], body)
    assert code(SLACK, headers, 1531420618.0 + 301) == "webhook.timestamp_outside"
    assert code(SLACK, headers, 1531420618.0 - 301) == "webhook.timestamp_outside"


def test_the_shape_of_stripe() -> None:
    """docs.stripe.com: the header of the example, whose body and secret are not published, and one that is whole."""
    shape = (
        "t=1492774577,v1=5257a869e7ecebeda32affa62cdca3fa51cad7e77a0e56ff536d0ce8e108d8bd,"
        "v0=6ffbb59b2300aae63f272406069a9788598b792a944a07aba816edb039989a39"
    )
    signature = read(STRIPE, as_sent({"Stripe-Signature": shape}), 1492774577.0)
    assert [d.hex()[:6] for d in signature.digests] == ["5257a8"]
    assert signature.before_body == b"1492774577."
    body, key = b'{"id": "evt_1", "object": "event"}', "whsec_test_secret"
    good = hmac.new(key.encode(), b"1492774577." + body, hashlib.sha256).hexdigest()
    both = f"t=1492774577,v1={'0' * 64},v1={good}"
    assert read(STRIPE, as_sent({"Stripe-Signature": both}), 1492774577.0).matches([key.encode()], body)
    only_old = f"t=1492774577,v0={good}"
    assert code(STRIPE, {"Stripe-Signature": only_old}, 1492774577.0) == "webhook.signature_malformed"


@pytest.mark.parametrize("value", [
    "", "t=1", "v1=00", "t=1,t=1,v1=00", "t=,v1=00", "t=1;v1=00", "t=1,v1=0", "t=1,v1=zz", "t=1,v1=",
    "t=1," + ",".join(["v1=00"] * 11), "t=99999999999999999999,v1=00", "t=-1,v1=00", "t=1_0,v1=00", "t= 1,v1=00",
])  # fmt: skip
def test_no_other_shape_passes_for_one_of_stripe(value: str) -> None:
    assert code(STRIPE, {"Stripe-Signature": value}, 1.0).startswith(
        ("webhook.signature_", "webhook.timestamp_")
    )


def test_a_header_that_is_given_twice_is_none() -> None:
    headers = as_sent(from_github(b"x"))
    signature = next(h for h in headers if h[0] == b"x-hub-signature-256")
    for more in (signature, (b"x-hub-signature-256", b"sha256=00")):
        with pytest.raises(SignatureRefused, match="one header"):
            read(GITHUB, [*headers, more], NOW)
    stamped = as_sent(from_slack(b"x", at=NOW))
    with pytest.raises(SignatureRefused, match="given once"):
        read(SLACK, [*stamped, stamped[0]], NOW)


def test_digests_are_read_strictly() -> None:
    good = from_github(b"x")["X-Hub-Signature-256"].removeprefix("sha256=")
    for value in (f"sha256={good} ", f"sha256= {good}", f"SHA256={good}", good, f"sha256={good[:-1]}"):
        assert code(GITHUB, {"X-Hub-Signature-256": value}) == "webhook.signature_malformed"
    upper = {"X-Hub-Signature-256": f"sha256={good.upper()}"}
    assert read(GITHUB, as_sent(upper), NOW).matches([KEY.encode()], b"x")
    cut = {"X-Hub-Signature-256": f"sha256={good[:32]}"}
    assert not read(GITHUB, as_sent(cut), NOW).matches([KEY.encode()], b"x")


def test_base64_and_other_algorithms() -> None:
    scheme = scheme_of(Verify(header="X-Sign", algorithm=Algorithm.SHA512, encoding=Encoding.BASE64))
    raw = hmac.new(KEY.encode(), b"body", hashlib.sha512).digest()
    text = base64.b64encode(raw).decode()
    assert read(scheme, as_sent({"X-Sign": text}), NOW).matches([KEY.encode()], b"body")
    for bad in (text + "\n", text[:-1], "*" + text, ""):
        if bad:
            assert code(scheme, {"X-Sign": bad}) == "webhook.signature_malformed"
    assert not read(scheme, as_sent({"X-Sign": ""}), NOW).matches([KEY.encode()], b"body")


def test_the_time_is_part_of_what_is_signed() -> None:
    scheme = scheme_of(Verify(header="X-Sign", timestamp=Timestamp(header="X-Time", tolerance_seconds=10)))
    headers = {"X-Sign": digest(b"1700000000.body"), "X-Time": "1700000000"}
    assert read(scheme, as_sent(headers), NOW + 10).matches([KEY.encode()], b"body")
    later = {**headers, "X-Time": "1700000005"}
    assert not read(scheme, as_sent(later), NOW + 10).matches([KEY.encode()], b"body")
    assert code(scheme, headers, NOW + 11) == "webhook.timestamp_outside"
    assert code(scheme, {"X-Sign": headers["X-Sign"]}) == "webhook.timestamp_invalid"


@given(st.binary(max_size=200), st.binary(max_size=200), st.text(min_size=1, max_size=20))
def test_a_signature_matches_its_own_body_and_key_only(body: bytes, other: bytes, key: str) -> None:
    for scheme, headers in (
        (GITHUB, from_github(body, key=key)),
        (STRIPE, from_stripe(body, at=NOW, key=key)),
        (SLACK, from_slack(body, at=NOW, key=key)),
    ):
        signature = read(scheme, as_sent(headers), NOW)
        assert signature.matches([key.encode()], body)
        assert signature.matches([b"another", key.encode()], body)
        assert not signature.matches([key.encode() + b"x"], body)
        assert signature.matches([key.encode()], other) == (body == other)


@given(st.binary(max_size=300))
def test_whatever_is_in_the_headers_is_read_or_refused(value: bytes) -> None:
    for scheme in (GITHUB, STRIPE, SLACK):
        headers = [(scheme.header.lower().encode(), value), (b"x-slack-request-timestamp", value)]
        try:
            signature = read(scheme, headers, NOW)
        except SignatureRefused:
            continue
        assert not signature.matches([b"key"], b"body")


def test_a_key_belongs_to_the_organization_in_its_name() -> None:
    assert hook_keys.belongs_to("TRACEPLANE_HOOK_KEY_ORDERS", "default")
    assert not hook_keys.belongs_to("TRACEPLANE_HOOK_KEY_ORDERS", "acme")
    assert hook_keys.belongs_to("TRACEPLANE_HOOK_KEY_ACME__ORDERS", "acme")
    assert not hook_keys.belongs_to("TRACEPLANE_HOOK_KEY_ACME__ORDERS", "default")
    assert hook_keys.belongs_to("TRACEPLANE_HOOK_KEY_ACME_EU__ORDERS", "acme-eu")
