"""Deliveries to webhook sources, and these sources in the public API."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from traceplane.wire.scalars import Wire


class DeliveryResponse(Wire, frozen=True):
    status: Literal["accepted", "duplicate", "answered"]
    """`duplicate`: it was accepted before. `answered`: the sender only tested the URL, and nothing is kept."""
    delivery: int | None = None
    """The number of the delivery, if it is new and kept."""
    challenge: str | None = None
    """The challenge that Slack expects in the response."""


class RefusalView(Wire, frozen=True):
    code: str
    count: int
    last_at: datetime


class WebhookView(Wire, frozen=True):
    org: str
    path: str
    """As in `POST /hooks/{org}/{path}`."""
    dag: str
    job: str
    dataset: str
    """The dataset of its events; if deliveries are kept, the one that holds them."""
    verification: str
    """The preset, `hmac`, or `none`."""
    keys_missing: list[str]
    """Keys that the gateway which responds does not have: environment variables, or references to secrets."""
    refusals: list[RefusalView]
    """Most frequent first; `duplicate` counts repeated deliveries."""


class WebhooksResponse(Wire, frozen=True):
    webhooks: list[WebhookView]
