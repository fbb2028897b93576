"""All channels: their configs are checked, their messages are sent."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import assert_never, get_args

import msgspec

from traceplane.delivery.breaker import Pace
from traceplane.delivery.channels import mail, pagerduty, slack, webhook
from traceplane.delivery.channels.mail import Mail
from traceplane.delivery.channels.pagerduty import PagerDuty
from traceplane.delivery.channels.slack import Slack
from traceplane.delivery.channels.webhook import Webhook
from traceplane.delivery.outcome import Dead, Outcome, Retry
from traceplane.delivery.secret_values import SecretValues, check_references
from traceplane.errors import InvalidInput, PlatformError
from traceplane.http_service.outgoing import Outgoing
from traceplane.model.message import Message
from traceplane.secrets import references
from traceplane.secrets.references import SecretName

Channel = Webhook | Slack | Mail | PagerDuty
_OF_KIND = {str(kind.__struct_config__.tag): kind for kind in get_args(Channel)}
KINDS = tuple(sorted(_OF_KIND))
"""What `kind` of a config may be."""
Sender = Callable[[Message], Awaitable[Outcome]]


class Channels:
    """`now`: in seconds since 1970, for signatures and dates."""

    def __init__(self, outgoing: Outgoing, *, now: Callable[[], float] = time.time) -> None:
        self._outgoing, self._now = outgoing, now

    def check(self, channel: Channel, columns: Collection[str] = (), fields: Collection[str] = ()) -> None:
        """Raises InvalidInput, for a channel that could not be used for alerts with these columns of subjects."""
        try:
            check_references(msgspec.to_builtins(channel))
        except RecursionError:
            raise InvalidInput(
                "delivery.bad_template", "the body is nested too deeply", next_step="simplify it"
            ) from None
        match channel:
            case Webhook():
                webhook.check(channel, self._outgoing, columns, fields)
            case Slack():
                slack.check(channel, self._outgoing)
            case Mail():
                mail.check(channel, self._outgoing)
            case PagerDuty():
                pagerduty.check(channel, self._outgoing)
            case _:
                assert_never(channel)

    async def send(
        self, message: Message, channel: Channel, secrets: Mapping[SecretName, str], *, org: str
    ) -> Outcome:
        """`secrets`: the values of `secrets_of(channel)`; `org`: whose channel it is."""
        return await self.sender(channel, secrets, org=org)(message.bounded())

    def sender(self, channel: Channel, secrets: Mapping[SecretName, str], *, org: str) -> Sender:
        """For many messages, which are bounded, as those that were queued."""
        values, outgoing = SecretValues(secrets), self._outgoing.of(org)

        async def send(message: Message) -> Outcome:
            try:
                return await self._send(message, channel, values, outgoing)
            except InvalidInput as error:
                return Dead(error.code, values.reason(error.message))
            except PlatformError as error:
                return Retry(error.code, values.reason(error.message))

        return send

    async def _send(
        self, message: Message, channel: Channel, values: SecretValues, outgoing: Outgoing
    ) -> Outcome:
        now = self._now()
        match channel:
            case Webhook():
                return await webhook.send(message, channel, values, outgoing, now)
            case Slack():
                return await slack.send(message, channel, values, outgoing, now)
            case Mail():
                return await mail.send(message, channel, values, outgoing, now)
            case PagerDuty():
                return await pagerduty.send(message, channel, values, outgoing, now)
            case _:
                assert_never(channel)


def pace_of(channel: Channel) -> Pace:
    """How fast a channel is used."""
    return webhook.pace_of(channel) if isinstance(channel, Webhook) else Pace()


def fields_of(kind: str) -> list[str]:
    """What a config of this kind may have, with the fields that it must have first."""
    fields = sorted(msgspec.structs.fields(_OF_KIND[kind]), key=lambda field: not field.required)
    return [field.encode_name for field in fields]


def secrets_of(channel: Channel) -> set[SecretName]:
    return references.found_in(msgspec.to_builtins(channel))
