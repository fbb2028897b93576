"""Channels of an organization, as its admins set and test them.

They are for admins alone: a channel takes rows out of the organization, and its messages show them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, assert_never
from uuid import uuid4

import msgspec

from traceplane import telemetry
from traceplane.auth.callers import Caller
from traceplane.delivery.connections import Connections
from traceplane.delivery.outcome import Dead, Delivered, Outcome, Retry
from traceplane.delivery.sending import KINDS, Channel, Channels, fields_of, secrets_of
from traceplane.errors import Conflict, InvalidInput, NotFound, PlatformError, TooManyRequests
from traceplane.http_service.routes import Call, Route
from traceplane.model.counted import counted
from traceplane.model.invalid_values import in_words
from traceplane.model.message import Kind, Message, Severity
from traceplane.model.near_names import near
from traceplane.postgres import channels
from traceplane.postgres.channels import ListedChannel
from traceplane.postgres.database import Transaction
from traceplane.secrets.references import CHANNELS, SecretName
from traceplane.secrets.vault import Denied, JobNeeds, Vault
from traceplane.wire.channels import (
    ChannelRemovalQuery,
    ChannelRemoved,
    ChannelRequest,
    ChannelsResponse,
    ChannelTested,
    ChannelView,
)

ADMIN = "admin"
_ALERTS_TOLD = 5
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


class ChannelApi:
    def __init__(self, sending: Channels, vault: Vault, connections: Connections | None = None) -> None:
        self._sending, self._vault = sending, vault
        self._connections = connections or Connections()

    def routes(self) -> list[Route]:
        path = "/api/v1/channels"
        return [
            Route("GET", path, None, ChannelsResponse, self.listed, ADMIN, "Channels of the organization."),
            Route("GET", path + "/{name}", None, ChannelView, self.one, ADMIN, "One channel."),
            Route("PUT", path + "/{name}", ChannelRequest, ChannelView, self.set, ADMIN,
                  "Set a channel; messages that wait for it are sent as it says then."),
            Route("DELETE", path + "/{name}", None, ChannelRemoved, self.remove, ADMIN,
                  "Remove a channel.", query=ChannelRemovalQuery),
            Route("POST", path + "/{name}/test", None, ChannelTested, self.test, ADMIN,
                  "Send one message over a channel now."),
        ]  # fmt: skip

    async def listed(self, call: Call[None]) -> ChannelsResponse:
        async with call.principal.database.transaction() as tx:
            found = await channels.listed(tx, call.principal.org_id)
        return ChannelsResponse([_view(channel) for channel in found])

    async def one(self, call: Call[Any]) -> ChannelView:
        async with call.principal.database.transaction() as tx:
            return _view(await _stored(tx, call.principal, call.path_params["name"]))

    async def set(self, call: Call[ChannelRequest]) -> ChannelView:
        caller, asked, name = call.principal, call.body, call.path_params["name"]
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                "channel.bad_name",
                "a channel is named by a lower-case letter and up to 62 lower-case letters, digits, _ and -",
                value=name[:200],
                next_step="for example oncall",
            )
        channel = _channel(asked.config)
        self._sending.check(channel)
        async with caller.database.transaction() as tx:
            await channels.set_channel(
                tx, caller.org_id, name, asked.config, platform_alerts=asked.platform_alerts, by=caller.name
            )
            stored = await _stored(tx, caller, name)
        telemetry.emit("channel.set", name=name, org=caller.org, principal=caller.name)
        return msgspec.structs.replace(_view(stored), warnings=await self._warnings(caller, name, channel))

    async def remove(self, call: Call[None]) -> ChannelRemoved:
        caller, name, query = call.principal, call.path_params["name"], call.query
        async with caller.database.transaction() as tx:
            alerts = [] if query.force else await channels.named_by(tx, caller.org_id, name)
            if alerts:
                raise _in_use(name, alerts)
            waiting = await channels.remove(tx, caller.org_id, name, drop=query.drop)
            if waiting is None:
                raise await unknown_channel(tx, caller, name)
        if waiting and not query.drop:
            raise Conflict(
                "channel.in_use",
                f"{counted(waiting, 'message')} wait{'s' if waiting == 1 else ''} for the channel",
                value=name,
                next_step=f"wait for them, or drop them with it: `traceplane channel delete {name} --drop`",
            )
        telemetry.emit("channel.removed", name=name, org=caller.org, principal=caller.name, dropped=waiting)
        return ChannelRemoved(name, waiting)

    async def test(self, call: Call[None]) -> ChannelTested:
        caller, name = call.principal, call.path_params["name"]
        async with caller.database.transaction() as tx:
            stored = await _stored(tx, caller, name)
        channel = _channel(stored.config)
        secrets = await self._secrets(caller, name, channel, used=True)
        if isinstance(secrets, Denied):
            return _tested(name, Dead("delivery.secret_denied", str(secrets)))
        key = (caller.org, name)
        if not self._connections.take(caller.org, key):
            raise TooManyRequests(
                "channel.busy",
                "tests of channels wait for as many answers as this gateway waits for at once",
                value=name,
                next_step="try again in some seconds",
                retry_after_seconds=5.0,
            )
        try:
            outcome = await self._sending.send(_test_message(name, caller), channel, secrets, org=caller.org)
        finally:
            self._connections.give_back(caller.org, key)
        return _tested(name, outcome)

    async def _warnings(self, caller: Caller, name: str, channel: Channel) -> list[str]:
        try:
            secrets = await self._secrets(caller, name, channel, used=False)
        except PlatformError as error:
            return [f"its secrets could not be looked up: {error.message}"]
        return [str(secrets)] if isinstance(secrets, Denied) else []

    async def _secrets(
        self, caller: Caller, name: str, channel: Channel, *, used: bool
    ) -> dict[SecretName, str] | Denied:
        need = JobNeeds(caller.org, CHANNELS, name, frozenset(secrets_of(channel)))
        async with caller.database.transaction() as tx:
            lookup = await self._vault.look_up(tx, [need], used=used)
        handed = (await lookup.values())[need]
        return handed if isinstance(handed, Denied) else dict(handed)


def _in_use(name: str, alerts: Sequence[tuple[str, str]]) -> Conflict:
    named = ", ".join(f"{dag}/{alert}" for dag, alert in alerts[:_ALERTS_TOLD])
    more = f" and {len(alerts) - _ALERTS_TOLD} more" if len(alerts) > _ALERTS_TOLD else ""
    return Conflict(
        "channel.in_use",
        f"deployed alerts are sent to the channel: {named}{more}",
        value=name,
        next_step="deploy them with other channels, or remove it all the same: "
        f"`traceplane channel delete {name} --force`",
    )


async def unknown_channel(tx: Transaction, caller: Caller, name: str) -> NotFound:
    return NotFound(
        "channel.unknown",
        "the organization has no channel of this name",
        value=name[:200],
        next_step=near(name, await channels.names(tx, caller.org_id)) or "see `traceplane channel list`",
    )


async def _stored(tx: Transaction, caller: Caller, name: str) -> ListedChannel:
    found = await channels.listed(tx, caller.org_id, name)
    if not found:
        raise await unknown_channel(tx, caller, name)
    return found[0]


def _channel(config: dict[str, Any]) -> Channel:
    kind = config.get("kind")
    if kind not in KINDS:
        raise InvalidInput(
            "delivery.bad_channel",
            "the channel has no kind" if kind is None else "there is no such kind of channel",
            value=None if kind is None else str(kind)[:100],
            next_step=f"write one of: {', '.join(f'kind: {known}' for known in KINDS)}",
        )
    try:
        return msgspec.convert(config, Channel)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise InvalidInput(
            "delivery.bad_channel",
            f"the config of the channel is invalid: {in_words(error)}",
            next_step=f"the fields of kind {kind}: {', '.join(fields_of(kind))}",
        ) from None


def _test_message(name: str, caller: Caller) -> Message:
    key = f"test:{uuid4()}"
    return Message(
        key=key,
        incident=key,
        kind=Kind.ALERT,
        alert="test",
        severity=Severity.INFO,
        title=f"Test of the channel {name}",
        text=f"{caller.name} tests whether messages arrive. Nothing happened.",
        event_time=datetime.now(UTC),
    )


def _tested(name: str, outcome: Outcome) -> ChannelTested:
    match outcome:
        case Delivered(note):
            return ChannelTested(name, "delivered", None if note is None else "delivery.partial", note)
        case Retry():
            return ChannelTested(name, "retry", outcome.code, outcome.reason)
        case Dead():
            return ChannelTested(name, "dead", outcome.code, outcome.reason)
        case _:
            assert_never(outcome)


def _view(channel: ListedChannel) -> ChannelView:
    return ChannelView(
        name=channel.name,
        config=channel.config,
        changed_at=channel.changed_at,
        changed_by=channel.changed_by,
        platform_alerts=channel.platform_alerts,
        waiting=channel.waiting,
        dead=channel.dead,
    )
