"""Messages that were queued for channels, as admins look at them, replay and drop them."""

from __future__ import annotations

from dataclasses import asdict
from uuid import UUID

from traceplane.auth.callers import Caller
from traceplane.gateway.channels import ADMIN, unknown_channel
from traceplane.http_service.routes import Call, Route
from traceplane.postgres import deliveries
from traceplane.postgres.database import Transaction
from traceplane.postgres.deliveries import ListedDelivery
from traceplane.wire.channels import (
    MOST_CHANGED,
    DeliveriesChanged,
    DeliveriesResponse,
    DeliveryQuery,
    DeliverySelection,
    DeliveryView,
)


class DeliveryApi:
    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/deliveries", None, DeliveriesResponse, self.listed, ADMIN,
                  "Messages that were queued for channels, newest first.", query=DeliveryQuery),
            Route("POST", "/api/v1/deliveries/replay", DeliverySelection, DeliveriesChanged, self.replay, ADMIN,
                  "Send dead messages again, unless their alert was retracted."),
            Route("POST", "/api/v1/deliveries/drop", DeliverySelection, DeliveriesChanged, self.drop, ADMIN,
                  "Give up messages that wait or are dead."),
        ]  # fmt: skip

    async def listed(self, call: Call[None]) -> DeliveriesResponse:
        query: DeliveryQuery = call.query
        async with call.principal.database.transaction() as tx:
            found = await deliveries.listed(
                tx,
                call.principal.org_id,
                channel_id=await _channel_id(tx, call.principal, query.channel),
                state=query.state,
                before=query.before,
                limit=query.limit,
            )
        before = found[-1].number if len(found) == query.limit else None
        return DeliveriesResponse([_view(delivery) for delivery in found], before)

    async def replay(self, call: Call[DeliverySelection]) -> DeliveriesChanged:
        caller, asked = call.principal, call.body
        async with caller.database.transaction() as tx:
            channel_id = await _channel_id(tx, caller, asked.channel)
            done = await deliveries.replay(tx, caller.org_id, asked.delivery_ids, channel_id, MOST_CHANGED)
        more = done.replayed + done.withdrawn == MOST_CHANGED
        return DeliveriesChanged(done.replayed, more, done.withdrawn)

    async def drop(self, call: Call[DeliverySelection]) -> DeliveriesChanged:
        caller, asked = call.principal, call.body
        async with caller.database.transaction() as tx:
            channel_id = await _channel_id(tx, caller, asked.channel)
            changed = await deliveries.drop(
                tx, caller.org_id, asked.delivery_ids, channel_id, MOST_CHANGED, by=caller.name
            )
        return DeliveriesChanged(changed, changed == MOST_CHANGED)


async def _channel_id(tx: Transaction, caller: Caller, name: str | None) -> UUID | None:
    if name is None:
        return None
    found = await deliveries.channels_by_name(tx, caller.org_id, [name])
    if name not in found:
        raise await unknown_channel(tx, caller, name)
    return found[name]


def _view(delivery: ListedDelivery) -> DeliveryView:
    known = asdict(delivery)
    return DeliveryView(**{field: known[field] for field in DeliveryView.__struct_fields__})
