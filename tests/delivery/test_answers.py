"""What the other side answers decides what becomes of a message, however it misbehaves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from email.utils import formatdate

import pytest

from tests.delivery.messages import LOOPBACK, MESSAGE, NOW, channels, dead, retry, sent
from tests.delivery.receiver import Answer, answer, pieces, receiving, silence, until_closed
from tests.ports import free_port
from traceplane.delivery.channels.webhook import Webhook
from traceplane.delivery.outcome import Delivered
from traceplane.delivery.posting import LONGEST_WAIT
from traceplane.http_service.outgoing import Outgoing

OK = b"HTTP/1.1 200 OK\r\n"
SHORT = 0.5


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_2xx_is_delivered(status: int) -> None:
    async with receiving(answer(status)) as receiver:
        assert await sent(Webhook(url=receiver.url)) == Delivered()
    (request,) = receiver.received
    assert request.request == "POST /in HTTP/1.1"
    assert request.header("content-type") == "application/json"


async def test_a_message_that_is_sent_again_has_the_same_key_and_body() -> None:
    async with receiving(answer(500)) as receiver:
        retry(await sent(Webhook(url=receiver.url)))
        retry(await sent(Webhook(url=receiver.url), by=channels(now=NOW + 60)))
    first, second = receiver.received
    assert first.header("idempotency-key") == second.header("idempotency-key") == MESSAGE.key
    assert first.body == second.body


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
async def test_what_may_pass_is_tried_again(status: int) -> None:
    async with receiving(answer(status, b"come\nback")) as receiver:
        outcome = retry(await sent(Webhook(url=receiver.url)))
    assert outcome.reason == f"the answer was {status}: come\\nback"
    assert outcome.after_seconds is None


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 422, 451])
async def test_what_will_not_pass_is_dead(status: int) -> None:
    async with receiving(answer(status, b"no")) as receiver:
        outcome = dead(await sent(Webhook(url=receiver.url)))
    assert outcome.reason == f"the answer was {status}: no"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("9999999999", LONGEST_WAIT),
        (formatdate(NOW + 90.5, usegmt=True), 90.5),
        (formatdate(NOW - 90, usegmt=True), 0.0),
        (formatdate(NOW + 10**8, usegmt=True), LONGEST_WAIT),
        ("-5", None),
        ("1e3", None),
        ("99999999999999999999", None),
        ("tomorrow", None),
        ("Wed, 99 Nov 2026 99:99:99 GMT", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_honoured(status: int, header: str, seconds: float | None) -> None:
    async with receiving(answer(status, b"", f"Retry-After: {header}")) as receiver:
        outcome = retry(await sent(Webhook(url=receiver.url)))
    assert outcome.after_seconds == pytest.approx(seconds, abs=1.0)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    async with (
        receiving(answer(200)) as target,
        receiving(answer(status, b"", f"Location: {target.url}")) as receiver,
    ):
        outcome = dead(await sent(Webhook(url=receiver.url)))
    assert "redirect" in outcome.reason
    assert target.connections == 0


@pytest.mark.parametrize(
    "answer",
    [
        pieces(),  # accepts, reads, and closes
        silence,
        pieces(b"HTTP/1.1 200"),
        pieces(OK + b"x: y\r\n", again=0.1),
        pieces(OK, b"x: y\r\n" * 10_000, again=0.0),
        pieces(OK, b"x" * 100_000, again=0.0),
        pieces(b"HTTP/1.1 100 Continue\r\n\r\n", again=0.05),
        pieces(b"SSH-2.0-OpenSSH_9.9\r\n"),
        pieces(b"\x00" * 100),
    ],
    ids=["drop", "silence", "half", "slow_head", "endless_head", "endless_line", "continue", "ssh", "zeros"],
)
async def test_without_an_answer_it_is_tried_again(answer: Answer) -> None:
    async with receiving(answer) as receiver:
        async with asyncio.timeout(10):
            retry(await sent(Webhook(url=receiver.url), by=channels(seconds=SHORT)), "outgoing.failed")


async def test_nobody_there_is_tried_again() -> None:
    retry(await sent(Webhook(url=f"http://127.0.0.1:{free_port()}/")), "outgoing.failed")


@pytest.mark.parametrize(
    "answer",
    [
        pieces(OK + b"content-length: 9\r\n\r\nhalf"),
        pieces(OK + b"content-length: 999999999999\r\n\r\n", b"x" * 65536, again=0.0),
        pieces(OK + b"\r\n", b"x" * 65536, again=0.0),
        pieces(OK + b"content-length: 999\r\n\r\n", b"x", again=0.2),
        pieces(OK + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\nxx"),
        pieces(OK + b"content-length: 5\r\n\r\n"),
    ],
    ids=["half", "huge", "endless", "trickle", "gzip", "nothing"],
)
async def test_a_message_that_was_accepted_is_not_sent_again_whatever_follows(answer: Answer) -> None:
    async with receiving(answer) as receiver:
        async with asyncio.timeout(10):
            assert await sent(Webhook(url=receiver.url), by=channels(seconds=3)) == Delivered()


async def answer_and_wait(writer: asyncio.StreamWriter) -> None:
    await answer(200)(writer)
    await asyncio.Event().wait()


@pytest.mark.parametrize("keeps", [False, True])
async def test_a_receiver_that_reads_nothing_keeps_no_connection(keeps: bool) -> None:
    async with receiving(answer_and_wait, reads_body=False) as receiver:
        too_much_for_buffers = b"x" * 20_000_000
        outgoing = Outgoing([LOOPBACK], keeps_connections=keeps)
        assert (await outgoing.post(receiver.url, headers={}, body=too_much_for_buffers)).status == 200
        await until_closed(receiver.port)


async def test_a_message_that_was_accepted_before_it_was_read_is_delivered() -> None:
    async with receiving(answer_and_wait, reads_body=False) as receiver:
        body = {f"k{number}": "{text}" for number in range(20)}
        message = replace(MESSAGE, text="x" * 20_000)
        async with asyncio.timeout(10):
            assert await sent(Webhook(url=receiver.url, body=body), message) == Delivered()
        await until_closed(receiver.port)


async def test_a_reason_has_a_limited_length() -> None:
    head = b"HTTP/1.1 400 No\r\ncontent-length: 99999999\r\n\r\n"
    async with receiving(pieces(head, b"\x1b[31m\xff" * 9999, again=0.0)) as receiver:
        outcome = dead(await sent(Webhook(url=receiver.url)))
    assert len(outcome.reason) < 400
    assert outcome.reason.isprintable()


async def test_a_reason_never_repeats_a_secret() -> None:
    token = "tok-0123456789-abcdef"
    echo = f"bad token {token}, url /in/{token}?x".encode()
    async with receiving(answer(401, echo)) as receiver:
        channel = Webhook(
            url=receiver.url + "/${secret:token}", headers={"Authorization": "Bearer ${secret:token}"}
        )
        outcome = dead(await sent(channel, token=token))
    assert receiver.received[0].request == f"POST /in/{token} HTTP/1.1"
    assert receiver.received[0].header("authorization") == f"Bearer {token}"
    assert token not in outcome.reason
    assert "***" in outcome.reason


@pytest.mark.parametrize("before", range(270, 310, 3))
async def test_a_secret_is_not_shown_where_the_reason_is_cut(before: int) -> None:
    token = "tok-0123456789-abcdef"
    async with receiving(answer(400, b"x" * before + token.encode())) as receiver:
        channel = Webhook(url=receiver.url, headers={"X-Token": "${secret:token}"})
        outcome = dead(await sent(channel, token=token))
    assert "tok-01" not in outcome.reason
