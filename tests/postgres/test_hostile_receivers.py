"""Hostile addresses, receivers and messages on the whole way from the queue through the running delivery loop.

Channels are written into the table as they are, as if somebody had got past the check of `traceplane channel set`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.delivery.http_receiver import HttpReceiver
from tests.delivery.messages import LOOPBACK, MESSAGE
from tests.delivery.receiver import Answer, Receiver, answer, pieces, receiving, silence
from tests.platform import until
from tests.postgres.test_deliveries import Queue, alert
from tests.postgres.test_delivery_loop import FAST, Platform
from traceplane.http_service.outgoing import Resolve
from traceplane.linux.connect_supervisor import Address
from traceplane.model.message import LONGEST_TEXT, LONGEST_TITLE, MOST_VALUES, Message
from traceplane.postgres.database import Database
from traceplane.settings import Settings

OK = b"HTTP/1.1 200 OK\r\n"
NOT_ALLOWED, BAD_URL = "outgoing.not_allowed", "outgoing.bad_url"


@pytest.fixture
async def platform(database: Database) -> Platform:
    return Platform(database)


async def channel(platform: Platform, name: str, url: str, **config: Any) -> Queue:
    return await platform.channel(name, HttpReceiver(), **{"url": url, **config})


async def became(platform: Platform, *, tries: int = 1) -> tuple[str, str | None, str | None]:
    """State, code and reason of the only message, once it was tried so often."""

    async def tried() -> Sequence[Any]:
        return await platform.rows(
            f"select state, failure from alert_deliveries where tries >= {tries} and holder is null"
        )

    [row] = await until(tried, seconds=30, what="tried")
    failure = row["failure"] or {}
    return row["state"], failure.get("code"), failure.get("reason")


def resolving(*answers: str) -> Resolve:
    """One address after the other; the last one stays."""
    left = list(answers)

    async def resolve(host: str, port: int) -> list[Address]:
        return [ipaddress.ip_address(left.pop(0) if len(left) > 1 else left[0])]

    return resolve


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("https://127.0.0.1:{port}/", NOT_ALLOWED),
        ("https://0.0.0.0:{port}/", NOT_ALLOWED),
        ("https://10.0.0.1/", NOT_ALLOWED),
        ("https://169.254.169.254/latest/meta-data/", NOT_ALLOWED),
        ("https://[::1]:{port}/", NOT_ALLOWED),
        ("https://[::ffff:127.0.0.1]:{port}/", NOT_ALLOWED),
        ("https://[::ffff:7f00:1]:{port}/", NOT_ALLOWED),
        ("https://[64:ff9b::7f00:1]:{port}/", NOT_ALLOWED),
        ("https://2130706433:{port}/", BAD_URL),
        ("https://0x7f000001:{port}/", BAD_URL),
        ("https://0177.0.0.1:{port}/", BAD_URL),
        ("https://127.1:{port}/", BAD_URL),
        ("https://hooks.example@127.0.0.1:{port}/", BAD_URL),
        ("https://hooks.example\\@127.0.0.1:{port}/", BAD_URL),
        ("https://hooks.example/\r\nx-evil: 1", BAD_URL),
        ("http://127.0.0.1:{port}/", BAD_URL),
        ("file:///etc/passwd", BAD_URL),
        ("https://inside.example:{port}/", NOT_ALLOWED),
    ],
)
async def test_a_hostile_address_is_never_called(platform: Platform, url: str, code: str) -> None:
    async with receiving(answer(200)) as inside:
        queue = await channel(platform, "ops", url.format(port=inside.port))
        await queue.add(alert("a"))
        async with platform.sending(allow=Settings().outgoing_allow, resolve=resolving("127.0.0.1")):
            state, found, reason = await became(platform)
    assert (state, found) == ("dead", code)
    assert "127.0.0.1:" not in (reason or "").replace(url.format(port=inside.port), "")
    assert inside.connections == 0


async def test_a_name_that_is_bound_again_leads_nowhere_else(platform: Platform) -> None:
    async with receiving(answer(200)) as checked, receiving(answer(200), host="127.0.0.2") as inside:
        queue = await channel(platform, "ops", f"http://rebinding.example:{checked.port}/", **FAST)
        allow, resolve = [f"127.0.0.1:{checked.port}"], resolving("127.0.0.1", "127.0.0.2")
        async with platform.sending(allow=allow, resolve=resolve):
            for name in (
                "a",
                "b",
            ):  # over the address that was checked, also if the connection is another one
                await queue.add(alert(name))
                assert (await became(platform))[0] == "delivered"
                await platform.rows("delete from alert_deliveries")
        async with platform.sending(allow=allow, resolve=resolve):
            await queue.add(alert("c"))
            assert (await became(platform))[:2] == ("dead", NOT_ALLOWED)
    assert (len(checked.received), inside.connections) == (2, 0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(platform: Platform, status: int) -> None:
    async with (
        receiving(answer(200)) as inside,
        receiving(answer(status, b"", f"Location: {inside.url}")) as receiver,
    ):
        queue = await channel(platform, "ops", receiver.url)
        await queue.add(alert("a"))
        async with platform.sending():
            state, _, reason = await became(platform)
    assert state == "dead"
    assert "redirect" in (reason or "")
    assert inside.connections == 0


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (silence, "waiting"),
        (pieces(OK + b"x: y\r\n", again=0.1), "waiting"),
        (pieces(OK, b"x: y\r\n" * 10_000, again=0.0), "waiting"),
        (pieces(b"HTTP/1.1 100 Continue\r\n\r\n", again=0.05), "waiting"),
        (pieces(OK + b"content-length: 999\r\n\r\n", b"x", again=0.2), "delivered"),
        (pieces(OK + b"content-length: 999999999999\r\n\r\n", b"x" * 65536, again=0.0), "delivered"),
        (pieces(b"HTTP/1.1 500 No\r\n\r\n", b"x" * 65536, again=0.0), "waiting"),
    ],
    ids=["silence", "slow_head", "endless_head", "continue", "slow_body", "endless_body", "endless_error"],
)
async def test_a_receiver_that_never_ends_holds_up_nobody(
    platform: Platform, answer: Answer, state: str
) -> None:
    async with receiving(answer) as hostile, receiving(pieces(OK + b"content-length: 0\r\n\r\n")) as other:
        queue = await channel(platform, "ops", hostile.url, **FAST)
        await queue.add(alert("a"))
        harmless = await channel(platform, "other", other.url, **FAST)
        async with platform.sending(seconds=2):
            await harmless.add(alert("b"))
            await until(lambda: _got(other), seconds=1.8, what="the other receiver is not held up")
            await until(lambda: _states(platform, a=state, b="delivered"), seconds=20)
    assert len(hostile.received) == 1


async def _got(receiver: Receiver) -> bool:
    return bool(receiver.received)


async def _states(platform: Platform, **states: str) -> bool:
    rows = await platform.rows(
        "select incident, state from alert_deliveries where tries > 0 and holder is null"
    )
    return {row["incident"]: row["state"] for row in rows} == states


EVIL = 'x"}\r\nX-Evil: 1\r\n\r\nPOST /evil HTTP/1.1\r\n{"${secret:key}": "{title}\u202e'


@pytest.mark.parametrize("body", [None, {"said": "{title}", "of": ["{ticker}"]}], ids=["whole", "template"])
async def test_what_a_message_says_stays_in_its_body(platform: Platform, body: Any) -> None:
    message = replace(
        alert("a"), title=EVIL, text=EVIL, alert=EVIL, subject={"ticker": EVIL}, fields={EVIL: EVIL}
    )
    async with receiving(answer(200)) as receiver:
        await _deliver(platform, receiver.url, message, **({} if body is None else {"body": body}))
    [received] = receiver.received
    assert received.request == "POST /in HTTP/1.1"
    assert {name for name, _ in received.headers} <= {
        "host", "content-type", "content-length", "idempotency-key", "user-agent", "accept", "accept-encoding",
        "connection", "webhook-id", "webhook-timestamp", "webhook-signature",
    }  # fmt: skip
    assert received.header("idempotency-key") == message.key
    assert body is None or set(received.json) == set(body)
    assert "\u202e" not in received.body.decode()


async def test_a_huge_message_is_cut_to_what_receivers_take(platform: Platform) -> None:
    huge = "ß\x00\n" * 2_000_000
    fields = {f"column{number}": huge[:100_000] for number in range(200)}
    message = replace(MESSAGE, title=huge, text=huge, subject={"ticker": huge}, fields=fields)
    async with receiving(answer(200)) as receiver:
        await _deliver(platform, receiver.url, message)
    [received] = receiver.received
    document = received.json
    assert len(document["title"]) <= LONGEST_TITLE
    assert len(document["text"]) <= LONGEST_TEXT
    assert len(document["fields"]) <= MOST_VALUES
    assert len(received.body) < 256 * 1024


async def _deliver(platform: Platform, url: str, message: Message, **config: Any) -> None:
    queue = await channel(platform, "ops", url, **config)
    await queue.add(message)
    async with platform.sending(allow=[LOOPBACK]):
        assert (await became(platform))[0] == "delivered"
