"""A message, and channels that may send it to this machine."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from traceplane.delivery.outcome import Dead, Outcome, Retry
from traceplane.delivery.sending import Channel, Channels
from traceplane.errors import InvalidInput
from traceplane.http_service.outgoing import Outgoing, Resolve
from traceplane.model.message import Kind, Message, Severity
from traceplane.secrets.references import SecretName

NOW = 1_795_000_000.5
LOOPBACK = "127.0.0.0/8"
COLUMNS = ("ticker", "price", "title")

MESSAGE = Message(
    key="a1:AAPL:slack",
    incident="a1:AAPL",
    kind=Kind.ALERT,
    alert="price_drop",
    severity=Severity.CRITICAL,
    title="AAPL dropped",
    text="AAPL dropped by 5 %",
    event_time=datetime(2026, 11, 18, 6, 30, tzinfo=UTC),
    subject={"ticker": "AAPL", "price": Decimal("101.10"), "title": "a column"},
    fields={"volume": 7},
    dag="markets",
    position="2026-11-18",
    link="https://traceplane.example/alerts/1?a=1&b=2",
)


def channels(
    *allow: str,
    seconds: float = 5.0,
    resolve: Resolve | None = None,
    tls: ssl.SSLContext | None = None,
    now: float = NOW,
) -> Channels:
    outgoing = Outgoing(allow or (LOOPBACK,), seconds=seconds, resolve=resolve, tls=tls)
    return Channels(outgoing, now=lambda: now)


async def sent(
    channel: Channel, message: Message = MESSAGE, *, by: Channels | None = None, **secrets: str
) -> Outcome:
    values = {SecretName("user", name): value for name, value in secrets.items()}
    return await (by or channels()).send(message, channel, values, org="default")


def refusal(
    channel: Channel, columns: Sequence[str] = COLUMNS, *, by: Channels | None = None
) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        (by or channels()).check(channel, columns)
    assert caught.value.next_step
    return caught.value


def retry(outcome: Outcome, code: str = "delivery.unavailable") -> Retry:
    assert isinstance(outcome, Retry), outcome
    assert outcome.code == code
    return outcome


def dead(outcome: Outcome, code: str = "delivery.refused") -> Dead:
    assert isinstance(outcome, Dead), outcome
    assert outcome.code == code
    return outcome
