"""JSON by POST, and what the answer means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

import msgspec

from traceplane.delivery.outcome import REFUSED, Dead, Delivered, Outcome, Retry
from traceplane.delivery.secret_values import SecretValues
from traceplane.delivery.templates import Document, too_large
from traceplane.http_service.outgoing import Answer, Outgoing
from traceplane.model.message import Message
from traceplane.secrets import references

LONGEST_BODY = 512 * 1024
"""PagerDuty takes no more, and others not much more."""
LONGEST_WAIT = 86_400.0
"""That a receiver may ask for."""
_TRY_AGAIN = (408, 425, 429)
_SECONDS = re.compile(r"[0-9]{1,10}")
_HEADERS = {"content-type": "application/json", "user-agent": "Traceplane"}


def check_url(url: str, outgoing: Outgoing) -> None:
    """As far as it can be known without the secrets in it; the rest is checked before each call."""
    if not url.startswith("${secret:"):
        names = references.found_in(url)
        outgoing.check(str(references.replaced(url, dict.fromkeys(names, "x"))))


def encoded(document: Document) -> bytes:
    body = msgspec.json.encode(document)
    if len(body) > LONGEST_BODY:
        raise too_large(LONGEST_BODY)
    return body


async def post(
    url: str,
    body: bytes,
    message: Message,
    values: SecretValues,
    outgoing: Outgoing,
    now: float,
    *,
    headers: Mapping[str, str] | None = None,
) -> Outcome:
    """`url`: may refer to secrets; `headers`: may not. InvalidInput: the URL may not be called; PlatformError: there
    was no answer."""
    own = {**_HEADERS, "idempotency-key": message.key}
    answer = await outgoing.post(values.put_into(url), headers={**(headers or {}), **own}, body=body)
    return meaning_of(answer, values, now)


def meaning_of(answer: Answer, values: SecretValues, now: float) -> Outcome:
    status = answer.status
    if 200 <= status < 300:
        return Delivered()
    words = values.reason(answer.body.decode(errors="replace"))
    reason = f"the answer was {status}: {words}" if words else f"the answer was {status}"
    if 300 <= status < 400:
        return Dead(REFUSED, f"the answer was {status}, a redirect, which is not followed", status)
    if status in _TRY_AGAIN or status >= 500:
        return Retry("delivery.unavailable", reason, seconds_until(answer.retry_after, now), status)
    return Dead(REFUSED, reason, status)


def seconds_until(retry_after: str | None, now: float) -> float | None:
    """Of a header `Retry-After`: seconds, or a date. One that is neither is as good as none."""
    text = (retry_after or "").strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), LONGEST_WAIT)
    try:
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return min(max(moment.timestamp() - now, 0.0), LONGEST_WAIT)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
