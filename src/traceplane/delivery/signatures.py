"""Who sent a webhook, and when, as the receiver can check it: the headers of Standard Webhooks.

The key of the message, the time and the body are signed together, so none of them can be exchanged for another one.
During a change of keys there is a signature for each.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence

from traceplane.errors import InvalidInput

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
MOST_KEYS, SHORTEST_KEY = 3, 16
_IN_BASE64 = "whsec_"


def signed_headers(key: str, body: bytes, secrets: Sequence[str], now: float) -> dict[str, str]:
    stamp = str(int(now))
    signed = f"{key}.{stamp}.".encode() + body
    digests = (hmac.digest(key_bytes(secret), signed, "sha256") for secret in secrets)
    signature = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return {ID: key, TIMESTAMP: stamp} | ({SIGNATURE: signature} if signature else {})


def key_bytes(secret: str) -> bytes:
    """A secret that begins with `whsec_` is base64, as libraries for Standard Webhooks make it; others are text."""
    try:
        raw = (
            base64.b64decode(secret.removeprefix(_IN_BASE64), validate=True)
            if secret.startswith(_IN_BASE64)
            else secret.encode()
        )
    except (binascii.Error, UnicodeEncodeError, ValueError):
        raw = b""
    if len(raw) < SHORTEST_KEY:
        raise InvalidInput(
            "delivery.bad_secret",
            f"a signing key must have {SHORTEST_KEY} bytes at least, and base64 after {_IN_BASE64}",
            next_step="set the secret to something long and random",
        )
    return raw
