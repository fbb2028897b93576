"""Messages that wait for their channels, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Literal
from uuid import UUID

from traceplane.model.json_object import JsonObject
from traceplane.model.message import Kind, Message, Severity, Value
from traceplane.postgres.database import Transaction, statements

_SQL = statements("deliveries")

CHANNEL = "traceplane_delivery"
State = Literal["waiting", "delivered", "dead", "withdrawn"]


@dataclass(frozen=True, slots=True)
class NewDelivery:
    org_id: UUID
    channel_id: UUID
    message: Message


@dataclass(frozen=True, slots=True)
class Sent:
    """An alert that a channel has got, or may have got."""

    channel_id: UUID
    message: Message


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    delivery_id: UUID
    tries: int
    """With the one that begins now; without those before somebody replayed the message."""
    message: Message
    age_seconds: float
    """Since it was queued."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of a message. One that waits again does so for some seconds."""

    delivery_id: UUID
    state: State
    code: str | None = None
    reason: str | None = None
    pause_seconds: float = 0.0
    is_unsent: bool = False
    """It was claimed, but certainly not sent: the try does not count."""
    status: int | None = None
    """Of the receiver's answer, for the log; the reason has its words, which may be personal data."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many dead messages wait again, and how many were withdrawn, since their alert is gone."""

    replayed: int
    withdrawn: int


@dataclass(frozen=True, slots=True)
class ListedDelivery:
    number: int
    delivery_id: UUID
    channel: str
    key: str
    kind: Literal["alert", "acknowledgement", "retraction"]
    alert: str
    severity: str
    title: str
    state: State
    tries: int
    created_at: datetime
    ready_at: datetime | None
    ended_at: datetime | None
    code: str | None
    reason: str | None


# Whoever has something to say ------------------------------------------------------------------------


async def queue(tx: Transaction, deliveries: Sequence[NewDelivery]) -> int:
    """In this order; how many of them are new."""
    if not deliveries:
        return 0
    messages = [delivery.message.bounded() for delivery in deliveries]
    added = await tx.value(
        _SQL["queue"],
        [delivery.org_id for delivery in deliveries],
        [delivery.channel_id for delivery in deliveries],
        [message.key for message in messages],
        [message.incident for message in messages],
        [str(message.kind) for message in messages],
        [_stored(message) for message in messages],
    )
    return added or 0


async def withdraw(tx: Transaction, org_id: UUID, incidents: Sequence[str]) -> list[Sent]:
    """Alerts whose cause is gone are not sent if they were never tried; returns the others of these incidents."""
    rows = await tx.rows(_SQL["withdraw"], org_id, list(incidents))
    return [Sent(row["channel_id"], _message(row["message"])) for row in rows]


async def sent(tx: Transaction, org_id: UUID, incidents: Sequence[str], keys: Sequence[str]) -> list[Sent]:
    """Alerts of these incidents, with these keys, that channels have got or get yet."""
    rows = await tx.rows(_SQL["sent"], org_id, list(incidents), list(keys))
    return [Sent(row["channel_id"], _message(row["message"])) for row in rows]


async def channels_by_name(tx: Transaction, org_id: UUID, names: Sequence[str]) -> dict[str, UUID]:
    """Of those that exist."""
    rows = await tx.rows(_SQL["channels_by_name"], org_id, list(names))
    return {row["name"]: row["channel_id"] for row in rows}


# Whoever sends ---------------------------------------------------------------------------------------


async def lease(tx: Transaction, holder: UUID, lasts: timedelta) -> list[UUID]:
    """The channels that this process works on, or continues to work on."""
    return [row["channel_id"] for row in await tx.rows(_SQL["lease"], holder, lasts)]


async def release(tx: Transaction, holder: UUID) -> None:
    await tx.run(_SQL["release"], holder)


async def claim(
    tx: Transaction, channel_id: UUID, leased_by: UUID, holder: UUID, most: int
) -> list[ClaimedDelivery]:
    """Must be committed before any of them is sent. `holder`: gets no message twice that it has not recorded."""
    rows = await tx.rows(_SQL["claim"], channel_id, leased_by, holder, most)
    return [
        ClaimedDelivery(row["delivery_id"], row["tries"], _message(row["message"]), row["age"])
        for row in sorted(rows, key=lambda row: row["number"])
    ]


async def record(tx: Transaction, holder: UUID, outcomes: Sequence[Recorded]) -> set[UUID]:
    """Those that it counted for: others may have been claimed by another holder, withdrawn or dropped since."""
    rows = await tx.rows(
        _SQL["record"],
        holder,
        [outcome.delivery_id for outcome in outcomes],
        [outcome.state for outcome in outcomes],
        [_failure(outcome) for outcome in outcomes],
        [outcome.pause_seconds for outcome in outcomes],
        [outcome.is_unsent for outcome in outcomes],
    )
    return {row["delivery_id"] for row in rows}


async def hasten(tx: Transaction, channel_id: UUID) -> None:
    """What waits because of the receiver's answers is ready: the channel leads to another one now."""
    await tx.run(_SQL["hasten"], channel_id)


def _failure(outcome: Recorded) -> JsonObject | None:
    return None if outcome.code is None else {"code": outcome.code, "reason": outcome.reason}


# Whoever looks after them ----------------------------------------------------------------------------


async def listed(
    tx: Transaction,
    org_id: UUID,
    *,
    channel_id: UUID | None,
    state: str | None,
    before: int | None,
    limit: int,
) -> list[ListedDelivery]:
    """Newest first."""
    return await tx.rows_as(ListedDelivery, _SQL["listed"], org_id, channel_id, state, before, limit)


async def replay(
    tx: Transaction, org_id: UUID, ids: Sequence[UUID], channel_id: UUID | None, most: int
) -> Replayed:
    """Sends dead messages again: those with these ids, or the oldest of a channel. A message about an alert that was
    retracted is withdrawn instead: it would be believed for good, since its retraction does not come again."""
    locked = await tx.rows(_SQL["lock_dead"], org_id, list(ids), channel_id, most)
    failure = {"code": "delivery.retracted", "reason": "its alert was retracted before it was sent again"}
    # A statement of its own: it sees what was committed while the first one waited for a lock.
    row = await tx.row(_SQL["replay"], [one["delivery_id"] for one in locked], failure)
    assert row is not None
    return Replayed(row["replayed"], row["withdrawn"])


async def drop(
    tx: Transaction, org_id: UUID, ids: Sequence[UUID], channel_id: UUID | None, most: int, *, by: str
) -> int:
    """How many messages are not sent any more, that waited or were dead."""
    failure = {"code": "delivery.dropped", "reason": f"dropped by {by}"}
    dropped: int = await tx.value(_SQL["drop"], org_id, list(ids), channel_id, most, failure)
    return dropped


# Messages as they are stored -------------------------------------------------------------------------


def _stored(message: Message) -> JsonObject:
    return {
        "key": message.key,
        "incident": message.incident,
        "kind": str(message.kind),
        "alert": message.alert,
        "severity": str(message.severity),
        "title": message.title,
        "text": message.text,
        "event_time": message.event_time.isoformat(),
        "subject": _stored_values(message.subject),
        "fields": _stored_values(message.fields),
        "link": message.link,
        "count": message.count,
        "dag": message.dag,
        "position": message.position,
    }


def _message(stored: JsonObject) -> Message:
    return Message(
        key=stored["key"],
        incident=stored["incident"],
        kind=Kind(stored["kind"]),
        alert=stored["alert"],
        severity=Severity(stored["severity"]),
        title=stored["title"],
        text=stored["text"],
        event_time=datetime.fromisoformat(stored["event_time"]),
        subject=_values(stored["subject"]),
        fields=_values(stored["fields"]),
        link=stored["link"],
        count=stored["count"],
        dag=stored.get("dag"),  # those that an older version queued have none
        position=stored.get("position"),
    )


def _stored_values(values: Mapping[str, Value]) -> list[JsonObject]:
    """A list, since JSON in Postgres forgets the order of names; numbers as texts, since it has one type of them."""
    return [{"name": name, **_stored_value(value)} for name, value in values.items()]


def _stored_value(value: Value) -> JsonObject:
    match value:
        case bool() | str() | None:
            return {"value": value}
        case datetime():
            return {"type": "datetime", "value": value.isoformat()}
        case date():
            return {"type": "date", "value": value.isoformat()}
        case int() | float() | Decimal():
            return {"type": type(value).__name__, "value": str(value)}


_TYPES: dict[str, Callable[[str], Value]] = {
    "int": int,
    "float": float,
    "Decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
}


def _values(stored: Sequence[JsonObject]) -> dict[str, Value]:
    return {
        one["name"]: _TYPES[one["type"]](one["value"]) if "type" in one else one["value"] for one in stored
    }
