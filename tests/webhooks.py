"""Deliveries as GitHub, Stripe, Slack and others sign them, for tests of webhook sources."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

KEY = "It's a Secret to Everybody"
VARIABLE = "TRACEPLANE_HOOK_KEY_TEST"
KEYS = {VARIABLE: KEY}
COLUMNS = (
    "[{name: id, type: bigint, nullable: false}, {name: amount, type: 'decimal(10, 2)'},"
    " {name: position, type: bigint}]"
)


def dag(verify: str = "{ preset: github }", *fields: str, config: str = "", name: str = "shop") -> str:
    """A source `orders` at the path `orders`, whose deliveries become rows of `shop.orders`."""
    lines = "".join(f"\n    {field}" for field in fields)
    secret = "" if verify == "none" else f"\n    secret: {{ env: {VARIABLE} }}"
    return f"""
version: 1
dag: {name}
datasets:
  {name}.orders: {{ columns: {COLUMNS} }}
jobs:
- name: orders
  activation: source
  source:
    kind: webhook
    path: orders
    verify: {verify}{secret}{lines}
  outputs: [{{ dataset: {name}.orders }}]
  {config}
"""


def digest(signed: bytes, key: str = KEY, algorithm: str = "sha256") -> str:
    return hmac.new(key.encode(), signed, getattr(hashlib, algorithm)).hexdigest()


def body(content: Any) -> bytes:
    return content if isinstance(content, bytes) else json.dumps(content).encode()


def from_github(
    content: Any, delivery: str = "d-1", *, key: str = KEY, event: str = "push"
) -> dict[str, str]:
    return {
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": delivery,
        "X-Hub-Signature-256": f"sha256={digest(body(content), key)}",
    }


def from_stripe(content: Any, *, at: float | None = None, key: str = KEY) -> dict[str, str]:
    stamp = int(time.time() if at is None else at)
    return {"Stripe-Signature": f"t={stamp},v1={digest(b'%d.' % stamp + body(content), key)},v0=00"}


def from_slack(content: Any, *, at: float | None = None, key: str = KEY) -> dict[str, str]:
    stamp = int(time.time() if at is None else at)
    signature = f"v0={digest(b'v0:%d:' % stamp + body(content), key)}"
    return {"X-Slack-Request-Timestamp": str(stamp), "X-Slack-Signature": signature}


def as_sent(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """As an application gets them."""
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
