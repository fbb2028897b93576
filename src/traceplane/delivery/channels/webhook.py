"""Any service that takes JSON."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from traceplane.delivery import posting, signatures
from traceplane.delivery.breaker import Pace
from traceplane.delivery.outcome import Outcome
from traceplane.delivery.secret_values import SecretValues, refer_to_secrets, secret_expected
from traceplane.delivery.templates import (
    Document,
    check_document,
    filled_document,
    fillers_of,
    known_names,
)
from traceplane.errors import InvalidInput
from traceplane.http_service.outgoing import Outgoing
from traceplane.model.json_object import JsonObject
from traceplane.model.message import Message, Value, as_json
from traceplane.secrets import references

_MOST_HEADERS, _LONGEST_HEADER = 20, 4_000
_FASTEST = 10_000
"""Messages, in a second or at once."""
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE = re.compile(r"[!-~](?:[\t -~]*[!-~])?")
_OWN_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "cookie",
        "expect",
        "host",
        "idempotency-key",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        signatures.ID,
        signatures.SIGNATURE,
        signatures.TIMESTAMP,
    }
)
_HOLDS_SECRET = re.compile(r"auth|token|key|secret|password", re.IGNORECASE)


class Webhook(
    msgspec.Struct, tag_field="kind", tag="webhook", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    url: str
    headers: dict[str, str] = {}
    body: JsonObject | list[Any] | None = None
    """A JSON document with placeholders; unset: the whole message."""
    signing_keys: list[str] = []
    """References to secrets; more than one while a key is changed."""
    per_second: float | None = None
    """How many messages the receiver takes in the long run; unset: one."""
    burst: int | None = None
    """How many it takes at once; unset: five."""


def check(config: Webhook, outgoing: Outgoing, columns: Collection[str], fields: Collection[str]) -> None:
    """Raises InvalidInput."""
    posting.check_url(config.url, outgoing)
    if not refer_to_secrets(config.signing_keys):
        raise secret_expected("a signing key", "hook_key")
    if len(config.signing_keys) > signatures.MOST_KEYS:
        raise InvalidInput(
            "delivery.bad_channel",
            f"a webhook has at most {signatures.MOST_KEYS} signing keys",
            value=len(config.signing_keys),
            next_step="remove the old ones",
        )
    pace = (1 if number is None else number for number in (config.per_second, config.burst))
    if not all(0 < number <= _FASTEST for number in pace):
        raise InvalidInput(
            "delivery.bad_channel",
            f"per_second and burst must be above 0, and at most {_FASTEST}",
            value=f"per_second {config.per_second}, burst {config.burst}",
            next_step="correct them",
        )
    _check_headers(config.headers)
    if config.body is not None:
        check_document(config.body, known_names(columns, fields))


def pace_of(config: Webhook) -> Pace:
    usual = Pace()
    return Pace(
        per_second=usual.per_second if config.per_second is None else config.per_second,
        burst=usual.burst if config.burst is None else config.burst,
    )


async def send(
    message: Message, config: Webhook, values: SecretValues, outgoing: Outgoing, now: float
) -> Outcome:
    document = _whole(message)
    if config.body is not None:
        document = filled_document(config.body, fillers_of(message), values, posting.LONGEST_BODY)
    body = posting.encoded(document)
    headers = {name.lower(): values.put_into(value) for name, value in config.headers.items()}
    for name, value in headers.items():
        if not _HEADER_VALUE.fullmatch(value) or len(value) > _LONGEST_HEADER:
            raise InvalidInput(
                "delivery.bad_secret",
                f"the secret in the header {name} has characters that a header cannot have",
                next_step="set the secret again, without line breaks",
            )
    keys = [values.put_into(key) for key in config.signing_keys]
    headers |= signatures.signed_headers(message.key, body, keys, now)
    return await posting.post(config.url, body, message, values, outgoing, now, headers=headers)


def _whole(message: Message) -> Document:
    return {
        "key": message.key,
        "incident": message.incident,
        "kind": str(message.kind),
        "dag": message.dag,
        "alert": message.alert,
        "severity": str(message.severity),
        "title": message.title,
        "text": message.text,
        "event_time": as_json(message.event_time),
        "subject": _object(message.subject),
        "fields": _object(message.fields),
        "position": message.position,
        "link": message.link,
        "count": message.count,
    }


def _object(values: Mapping[str, Value]) -> JsonObject:
    return {name: as_json(value) for name, value in values.items()}


def _check_headers(headers: dict[str, str]) -> None:
    names = [name.lower() for name in headers]
    if len(names) > _MOST_HEADERS or len(set(names)) < len(names):
        raise _bad_header("", f"there are more than {_MOST_HEADERS} headers, or one is given twice")
    for name, value in headers.items():
        lower = name.lower()
        if not _HEADER_NAME.fullmatch(name):
            raise _bad_header(name, "this is not the name of a header")
        if lower in _OWN_HEADERS or lower.startswith("proxy-"):
            raise _bad_header(
                name, "this header cannot be set: the channel sets it itself, or it changes the call"
            )
        constant = references.replaced(value, dict.fromkeys(references.found_in(value), "x"))
        if not _HEADER_VALUE.fullmatch(constant) or len(value) > _LONGEST_HEADER:
            raise _bad_header(name, "the value of this header has characters that a header cannot have")
        if "{" in constant:
            raise _bad_header(name, "the value of a header cannot have placeholders")
        if _HOLDS_SECRET.search(name) and constant == value:
            raise secret_expected(f"the header {name[:100]}", "hook_token")


def _bad_header(name: str, message: str) -> InvalidInput:
    return InvalidInput(
        "delivery.bad_header", message, value=ascii(name[:100]) if name else None, next_step="correct it"
    )
