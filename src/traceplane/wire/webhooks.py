"""Deliveries to webhook sources, and what the public API shows of these sources."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from traceplane.wire.scalars import Wire


class DeliveryResponse(Wire, frozen=True):
    status: Literal["accepted", "duplicate", "answered"]
    """`duplicate`: it was accepted before; `answered`: the sender only tests the URL, and nothing is kept."""
    delivery: int | None = None
    """Its number, if it is kept and new."""
    challenge: str | None = None
    """What Slack wants to be sent back."""


class RefusalView(Wire, frozen=True):
    code: str
    count: int
    last_at: datetime


class WebhookView(Wire, frozen=True):
    path: str
    """As in `POST /hooks/{org}/{path}`."""
    dag: str
    job: str
    dataset: str
    """What its events are of; the deliveries themselves, where they are kept."""
    verification: str
    """The preset, `hmac`, or `none`."""
    keys_missing: list[str]
    """Variables that the gateway which answers does not have."""
    refusals: list[RefusalView]
    """Most frequent first; `duplicate` counts repetitions."""


class WebhooksResponse(Wire, frozen=True):
    webhooks: list[WebhookView]
