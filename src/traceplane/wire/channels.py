"""Channels of an organization, and the messages that were queued for them, in the public API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from traceplane.model.json_object import JsonObject
from traceplane.wire.scalars import Count, Text, Wire

MOST_CHANGED = 10_000
"""Messages that one call replays or drops."""

DeliveryState = Literal["waiting", "delivered", "dead", "withdrawn"]


class ChannelRequest(Wire, frozen=True):
    config: JsonObject
    """With `kind`: `webhook`, `slack`, `email` or `pagerduty`."""
    platform_alerts: bool = False
    """Whether it gets the platform's own alerts."""


class ChannelView(Wire, frozen=True):
    name: str
    config: JsonObject
    """With references to secrets, as it was set."""
    changed_at: datetime
    changed_by: str
    platform_alerts: bool = False
    waiting: int = 0
    """Messages that wait for it."""
    dead: int = 0
    """Messages that were refused, or used up their tries."""
    warnings: list[str] = []
    """Secrets that it refers to and cannot use yet."""


class ChannelsResponse(Wire, frozen=True):
    channels: list[ChannelView]


class ChannelRemovalQuery(Wire, frozen=True):
    drop: bool = False
    """With the messages that wait for it."""
    force: bool = False
    """Even if deployed alerts are sent to it."""


class ChannelRemoved(Wire, frozen=True):
    name: str
    dropped: int = 0
    """Messages that waited for it."""


class ChannelTested(Wire, frozen=True):
    name: str
    outcome: Literal["delivered", "retry", "dead"]
    """`retry`: it was not delivered, and a message that waits would be sent again."""
    code: str | None = None
    reason: str | None = None


class DeliveryQuery(Wire, frozen=True):
    channel: str | None = None
    state: DeliveryState | None = None
    before: Count | None = None
    """The `before` of the previous page."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class DeliveryView(Wire, frozen=True):
    delivery_id: UUID
    channel: str
    key: str
    """Its `Idempotency-Key`."""
    kind: Literal["alert", "acknowledgement", "retraction"]
    alert: str
    severity: str
    title: str
    state: DeliveryState
    tries: int
    created_at: datetime
    ready_at: datetime | None = None
    """When it is tried next, if it waits."""
    ended_at: datetime | None = None
    code: str | None = None
    """Why it was not delivered the last time, or at all."""
    reason: str | None = None


class DeliveriesResponse(Wire, frozen=True):
    deliveries: list[DeliveryView]
    before: int | None = None
    """Set if there may be more: the `before` of the next page."""


class DeliverySelection(Wire, frozen=True):
    """Messages by their ids, or all of a channel."""

    delivery_ids: Annotated[list[UUID], msgspec.Meta(max_length=1000)] = []
    channel: Text | None = None

    def __post_init__(self) -> None:
        if bool(self.delivery_ids) == (self.channel is not None):
            raise ValueError("give delivery_ids or a channel")


class DeliveriesChanged(Wire, frozen=True):
    changed: int
    more: bool = False
    """There may be others: repeat the call."""
    retracted: int = 0
    """Of a replay: messages that were not sent again but withdrawn, since their alert was retracted."""
