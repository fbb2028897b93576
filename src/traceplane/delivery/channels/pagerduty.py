"""PagerDuty's Events API v2: an alert triggers an incident, its acknowledgement and its retraction follow it.

They find each other by `dedup_key`; an alert that is sent twice triggers one incident.
"""

from __future__ import annotations

import msgspec

from traceplane.delivery import posting
from traceplane.delivery.outcome import Outcome
from traceplane.delivery.secret_values import SecretValues, refer_to_secrets, secret_expected
from traceplane.errors import InvalidInput
from traceplane.http_service.outgoing import Outgoing
from traceplane.model.json_object import JsonObject
from traceplane.model.message import Kind, Message, as_json, shortened

_LONGEST_SUMMARY, _LONGEST_SOURCE = 1_024, 200
_ACTIONS = {Kind.ALERT: "trigger", Kind.ACKNOWLEDGEMENT: "acknowledge", Kind.RETRACTION: "resolve"}


class PagerDuty(
    msgspec.Struct, tag_field="kind", tag="pagerduty", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    routing_key: str
    """Of an integration with the Events API v2: `${secret:NAME}`."""
    source: str = "traceplane"
    """What PagerDuty shows as the affected system."""
    url: str = "https://events.pagerduty.com/v2/enqueue"
    """In the EU: https://events.eu.pagerduty.com/v2/enqueue."""


def check(config: PagerDuty, outgoing: Outgoing) -> None:
    """Raises InvalidInput."""
    if not refer_to_secrets([config.routing_key]):
        raise secret_expected("a routing key", "pagerduty_key")
    if not 0 < len(config.source) <= _LONGEST_SOURCE or not config.source.isprintable():
        raise InvalidInput(
            "delivery.bad_channel",
            f"the source must have 1 to {_LONGEST_SOURCE} printable characters",
            value=config.source[:100],
            next_step="correct it",
        )
    posting.check_url(config.url, outgoing)


async def send(
    message: Message, config: PagerDuty, values: SecretValues, outgoing: Outgoing, now: float
) -> Outcome:
    event: JsonObject = {
        "routing_key": values.put_into(config.routing_key),
        "event_action": _ACTIONS[message.kind],
        "dedup_key": message.incident,
    }
    if message.kind is Kind.ALERT:
        event |= _of_alert(message, config)
    return await posting.post(config.url, posting.encoded(event), message, values, outgoing, now)


def _of_alert(message: Message, config: PagerDuty) -> JsonObject:
    details: JsonObject = {"text": message.text, "count": message.count, "key": message.key}
    details |= {
        what: {name: as_json(value) for name, value in part.items()}
        for what, part in (("subject", message.subject), ("fields", message.fields))
        if part
    }
    return {
        "client": "Traceplane",
        "links": [{"href": message.link, "text": "Open"}] if message.link else [],
        "payload": {
            "summary": shortened(message.headline or message.alert, _LONGEST_SUMMARY),
            "source": config.source,
            "severity": str(message.severity),
            "timestamp": as_json(message.event_time),
            "class": message.alert,
            "custom_details": details,
        },
    }
