"""Webhooks: any JSON, with data as values only, signed so that the receiver can tell who sent it and when."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.delivery.messages import COLUMNS, MESSAGE, NOW, channels, dead, refusal, sent
from tests.delivery.receiver import Received, answer, receiving
from tests.docs_pages import blocks, page, rows
from traceplane.delivery import posting, templates
from traceplane.delivery.channels.webhook import Webhook
from traceplane.delivery.outcome import Delivered
from traceplane.delivery.sending import Channel, secrets_of
from traceplane.model.message import LONGEST_TEXT, LONGEST_VALUE, JsonScalar, Message, Value, as_json, as_text
from traceplane.secrets.references import SecretName

KEY = "a signing key that is long"
HOSTILE = (
    '"},{"x":"',
    "\\",
    "\n\r\t",
    "{title}",
    "{{",
    "${secret:token}",
    "</script>",
    "\u2028",
    "é🚨",
    "null",
)


async def received(channel: Webhook, message: Message = MESSAGE, **secrets: str) -> Received:
    async with receiving(answer(200)) as receiver:
        outcome = await sent(
            msgspec.structs.replace(channel, url=receiver.url), message, by=channels(), **secrets
        )
        assert outcome == Delivered()
    (request,) = receiver.received
    return request


async def test_without_a_template_the_whole_message_is_sent() -> None:
    request = await received(Webhook(url="http://replaced"))
    assert request.json == {
        "key": "a1:AAPL:slack",
        "incident": "a1:AAPL",
        "kind": "alert",
        "dag": "markets",
        "alert": "price_drop",
        "severity": "critical",
        "title": "AAPL dropped",
        "text": "AAPL dropped by 5 %",
        "event_time": "2026-11-18T06:30:00Z",
        "subject": {"ticker": "AAPL", "price": "101.10", "title": "a column"},
        "fields": {"volume": 7},
        "position": "2026-11-18",
        "link": "https://traceplane.example/alerts/1?a=1&b=2",
        "count": 1,
    }


async def test_the_guide_shows_every_field_of_a_message() -> None:
    request = await received(Webhook(url="http://replaced"))
    guide = page("guides/alert_webhooks.md")
    [example] = blocks(guide, "json")
    assert list(json.loads(example)) == list(request.json)
    assert list(rows(guide)) == list(request.json)


async def test_a_template_is_filled_value_by_value() -> None:
    body = {
        "summary": "{ticker}: {title} ({subject.title}, {fields.volume})",
        "labels": "{subject}",
        "times": ["{count}", "x{count}", 3, None, True, "{link}"],
        "braces": "{{ticker}}",
        "nested": [{"a": {"b": "{severity}"}}],
    }
    channels().check(Webhook(url="http://127.0.0.1/", body=body), COLUMNS, ["volume"])
    request = await received(Webhook(url="http://replaced", body=body))
    assert request.json == {
        "summary": "AAPL: AAPL dropped (a column, 7)",
        "labels": {"ticker": "AAPL", "price": "101.10", "title": "a column"},
        "times": [1, "x1", 3, None, True, MESSAGE.link],
        "braces": "{ticker}",
        "nested": [{"a": {"b": "critical"}}],
    }


@pytest.mark.parametrize("text", HOSTILE)
async def test_data_cannot_change_the_document_or_fetch_a_secret(text: str) -> None:
    message = replace(MESSAGE, subject={"ticker": text})
    body = {"only": "{ticker}", "within": "a {ticker} b", "secret": "${secret:token}!"}
    request = await received(Webhook(url="http://replaced", body=body), message, token="hunter2hunter2")
    shown = text.replace("\n\r\t", "\n\n\t")
    assert request.json == {"only": shown, "within": f"a {shown} b", "secret": "hunter2hunter2!"}


async def test_a_column_that_a_message_does_not_have_is_not_left_out_silently() -> None:
    channel = Webhook(url="http://127.0.0.1:1/", body={"x": "{market}"})
    dead(await sent(channel), "delivery.unknown_placeholder")


async def test_a_secret_that_does_not_exist_is_not_left_out_silently() -> None:
    channel = Webhook(url="http://127.0.0.1:1/", headers={"X-Token": "${secret:gone}"})
    dead(await sent(channel), "delivery.secret_missing")


async def test_a_channel_cannot_send_secrets_of_the_platform() -> None:
    channel = Webhook(url="http://127.0.0.1:1/", body={"x": "${secret:platform/kafka}"})
    assert refusal(channel).code == "delivery.bad_reference"
    secrets = {SecretName("platform", "kafka"): "hunter2hunter2"}
    outcome = await channels().send(MESSAGE, channel, secrets, org="default")
    dead(outcome, "delivery.secret_missing")


async def test_a_secret_cannot_change_the_receiver() -> None:
    async with receiving(answer(200)) as receiver:
        channel = Webhook(url="http://${secret:tenant}.hooks.example/")
        elsewhere = receiver.url.removeprefix("http://")
        outcome = dead(await sent(channel, by=channels(), tenant=elsewhere), "secret.other_host")
    assert receiver.connections == 0
    assert elsewhere not in outcome.reason


def test_the_secrets_of_a_channel_are_found_wherever_they_are() -> None:
    channel = Webhook(
        url="https://x.example/${secret:a}",
        headers={"Authorization": "Bearer ${secret:b}"},
        body={"list": [{"deep": "${secret:platform/c}"}]},
        signing_keys=["${secret:d}"],
    )
    assert {str(name) for name in secrets_of(channel)} == {"a", "b", "platform/c", "d"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"a": "{tikcer}"}, "delivery.unknown_placeholder"),
        ({"a": "{}"}, "delivery.unknown_placeholder"),
        ({"a": "{ticker!r}"}, "delivery.unknown_placeholder"),
        ({"a": "{ticker.__class__}"}, "delivery.unknown_placeholder"),
        ({"a": "{"}, "delivery.bad_template"),
        ({"a": "}"}, "delivery.bad_template"),
        ({"a": "{a{b}}"}, "delivery.bad_template"),
        ({"{ticker}": 1}, "delivery.bad_template"),
        ({"a": "\x00"}, "delivery.bad_template"),
        ({"a": "\ud800"}, "delivery.bad_template"),
        ({"a": "${secret:1}"}, "delivery.bad_reference"),
        ({"a": "${secret}"}, "delivery.bad_reference"),
        ({"a": ["x"] * 2000}, "delivery.bad_template"),
        ({"a": "x" * 30_000}, "delivery.bad_template"),
        ({"a": ["x" * 10_000] * 3}, "delivery.bad_template"),
    ],
)
def test_a_template_is_checked_when_it_is_defined(body: dict[str, Any], code: str) -> None:
    assert refusal(Webhook(url="http://127.0.0.1/", body=body)).code == code


def test_the_nearest_name_is_suggested() -> None:
    refused = refusal(Webhook(url="http://127.0.0.1/", body={"a": "x {tikcer} y"}))
    assert refused.value == "{tikcer}"
    assert refused.next_step == "did you mean {ticker}?"


def test_a_document_that_is_too_deep_is_refused() -> None:
    for depth in (30, 5000):
        body: dict[str, Any] = {}
        for _ in range(depth):
            body = {"a": body}
        assert refusal(Webhook(url="http://127.0.0.1/", body=body)).code == "delivery.bad_template"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"X-A\r\nX-B": "x"}, "delivery.bad_header"),
        ({"X-A:": "x"}, "delivery.bad_header"),
        ({"X A": "x"}, "delivery.bad_header"),
        ({"": "x"}, "delivery.bad_header"),
        ({"X-É": "x"}, "delivery.bad_header"),
        ({"X-A": "x\r\nX-B: y"}, "delivery.bad_header"),
        ({"X-A": "x\n"}, "delivery.bad_header"),
        ({"X-A": "\x00"}, "delivery.bad_header"),
        ({"X-A": "é"}, "delivery.bad_header"),
        ({"X-A": ""}, "delivery.bad_header"),
        ({"X-A": "{ticker}"}, "delivery.bad_header"),
        ({"X-A": "x" * 5000}, "delivery.bad_header"),
        ({"X-A": "x", "x-a": "y"}, "delivery.bad_header"),
        ({f"X-{number}": "x" for number in range(21)}, "delivery.bad_header"),
        ({"Host": "127.0.0.1"}, "delivery.bad_header"),
        ({"Content-Length": "0"}, "delivery.bad_header"),
        ({"Transfer-Encoding": "chunked"}, "delivery.bad_header"),
        ({"Idempotency-Key": "x"}, "delivery.bad_header"),
        ({"Webhook-Signature": "x"}, "delivery.bad_header"),
        ({"Proxy-Authorization": "x"}, "delivery.bad_header"),
        ({"Authorization": "Bearer hunter2"}, "delivery.secret_expected"),
        ({"X-Api-Key": "hunter2"}, "delivery.secret_expected"),
        ({"X-A": "${secret:1}"}, "delivery.bad_reference"),
    ],
)
def test_headers_are_checked_when_they_are_defined(headers: dict[str, str], code: str) -> None:
    refused = refusal(Webhook(url="http://127.0.0.1/", headers=headers))
    assert refused.code == code
    assert "hunter2" not in str(refused)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\x00b", "é", " a", "a "])
async def test_a_secret_cannot_add_a_header(value: str) -> None:
    async with receiving(answer(200)) as receiver:
        channel = Webhook(url=receiver.url, headers={"X-Token": "${secret:token}"})
        outcome = dead(await sent(channel, token=value), "delivery.bad_secret")
    assert receiver.connections == 0
    assert "Evil" not in outcome.reason


async def test_a_body_that_placeholders_make_too_long_is_dead() -> None:
    body = {f"k{number}": "{text}" for number in range(100)}
    message = replace(MESSAGE, text="x" * 20_000)
    dead(await sent(Webhook(url="http://127.0.0.1:1/", body=body), message), "delivery.too_large")


# --- signatures -------------------------------------------------------------------------------------


def hmac_sha256(key: bytes, text: bytes) -> bytes:
    """As RFC 2104 defines it."""
    key = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key) + text).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in key) + inner).digest()


def expected(request: Received, key: bytes) -> str:
    signed = f"{MESSAGE.key}.{int(NOW)}.".encode() + request.body
    return "v1," + base64.b64encode(hmac_sha256(key, signed)).decode()


@pytest.mark.parametrize("key", [KEY, "k" * 16, "k" * 200, "ключ, который достаточно длинный"])
async def test_a_delivery_is_signed_with_its_key_and_time(key: str) -> None:
    request = await received(Webhook(url="http://replaced", signing_keys=["${secret:hook}"]), hook=key)
    assert request.header("webhook-id") == request.header("idempotency-key") == MESSAGE.key
    assert request.header("webhook-timestamp") == str(int(NOW))
    assert request.header("webhook-signature") == expected(request, key.encode())


async def test_a_key_of_standard_webhooks_is_base64() -> None:
    raw = bytes(range(32))
    key = "whsec_" + base64.b64encode(raw).decode()
    request = await received(Webhook(url="http://replaced", signing_keys=["${secret:hook}"]), hook=key)
    assert request.header("webhook-signature") == expected(request, raw)


async def test_while_a_key_is_changed_there_is_a_signature_of_each() -> None:
    channel = Webhook(url="http://replaced", signing_keys=["${secret:old}", "${secret:new}"])
    request = await received(channel, old=KEY, new=KEY[::-1])
    signatures = [expected(request, key.encode()) for key in (KEY, KEY[::-1])]
    assert request.header("webhook-signature").split(" ") == signatures


@pytest.mark.parametrize("key", ["", "short", "whsec_", "whsec_!!!!", "whsec_c2hvcnQ=", "whsec_é" + "a" * 30])
async def test_a_key_that_is_no_key_signs_nothing(key: str) -> None:
    async with receiving(answer(200)) as receiver:
        channel = Webhook(url=receiver.url, signing_keys=["${secret:hook}"])
        dead(await sent(channel, hook=key), "delivery.bad_secret")
    assert receiver.connections == 0


def test_keys_are_secrets() -> None:
    channel: Channel = Webhook(url="http://127.0.0.1/", signing_keys=[KEY])
    refused = refusal(channel)
    assert refused.code == "delivery.secret_expected"
    assert KEY not in str(refused)
    channel = Webhook(url="http://127.0.0.1/", signing_keys=["${secret:a}"] * 4)
    assert refusal(channel).code == "delivery.bad_channel"


async def test_the_code_of_the_guide_recognizes_deliveries_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (code,) = blocks(page("guides/alert_webhooks.md"), "python")
    assert len(code.strip().splitlines()) <= 12
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    is_genuine = names["is_genuine"]
    monkeypatch.setattr("time.time", lambda: NOW + 200)
    channel = Webhook(url="http://replaced", signing_keys=["${secret:other}", "${secret:hook}"])
    request = await received(channel, hook=KEY, other=KEY + "x")
    headers = dict(request.headers)
    assert is_genuine(headers, request.body, KEY)
    assert not is_genuine(headers, request.body, KEY + "y")
    assert not is_genuine(headers, request.body + b" ", KEY)
    assert not is_genuine(headers | {"webhook-id": "another"}, request.body, KEY)
    assert not is_genuine(headers | {"webhook-timestamp": str(int(NOW) + 1)}, request.body, KEY)
    assert not is_genuine(headers | {"webhook-signature": "v1,"}, request.body, KEY)
    monkeypatch.setattr("time.time", lambda: NOW + 400)
    assert not is_genuine(headers, request.body, KEY)


@pytest.mark.parametrize(
    "body", [{"a": "{text}" * 3_000}, {"a": ["{text}"] * 900}, {"a": ["{fields}"] * 900}]
)
async def test_a_body_that_becomes_too_large_is_not_filled_to_its_end(
    body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[int] = []
    original = as_text, as_json

    def text(value: Value) -> str:
        filled.append(len(written := original[0](value)))
        return written

    def json_value(value: Value) -> JsonScalar:
        filled.append(len(str(written := original[1](value))))
        return written

    monkeypatch.setattr(templates, "as_text", text)
    monkeypatch.setattr(templates, "as_json", json_value)
    large = replace(
        MESSAGE, text="x" * LONGEST_TEXT, fields={f"f{n}": "x" * LONGEST_VALUE for n in range(40)}
    )
    dead(await sent(Webhook(url="http://127.0.0.1:1/", body=body), large), "delivery.too_large")
    assert sum(filled) < posting.LONGEST_BODY + 2 * LONGEST_TEXT
