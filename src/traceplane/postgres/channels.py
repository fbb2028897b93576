"""Channels of organizations: how messages reach people and other services."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from traceplane.errors import Conflict
from traceplane.model.json_object import JsonObject
from traceplane.operators.alerting import ROUTE
from traceplane.postgres import deliveries
from traceplane.postgres.database import Transaction, statements

_SQL = statements("channels")

MOST_CHANNELS = 200
"""Of an organization: each may keep connections to its receiver."""


@dataclass(frozen=True, slots=True)
class ListedChannel:
    channel_id: UUID
    name: str
    config: JsonObject
    platform_alerts: bool
    changed_at: datetime
    changed_by: str
    waiting: int
    dead: int


@dataclass(frozen=True, slots=True)
class ChannelInUse:
    name: str
    org: str
    config: JsonObject


@dataclass(frozen=True, slots=True)
class Depth:
    """Messages of the channels with one name."""

    channel: str
    waiting: int
    dead: int


async def set_channel(
    tx: Transaction, org_id: UUID, name: str, config: JsonObject, *, platform_alerts: bool, by: str
) -> UUID:
    """Messages that wait because of what the receiver before answered are ready."""
    await tx.rows(_SQL["lock_all"], org_id)
    # A separate statement: only now does it see what others have made.
    made = await tx.row(_SQL["set"], org_id, name, config, platform_alerts, by, MOST_CHANNELS)
    if made is None:
        raise Conflict(
            "channel.too_many",
            f"an organization has at most {MOST_CHANNELS} channels",
            value=name,
            next_step="remove one: see `traceplane channel list`",
        )
    if made["changed"]:
        await deliveries.hasten(tx, made["channel_id"])
    channel_id: UUID = made["channel_id"]
    return channel_id


async def retry_with(tx: Transaction, org_id: UUID, reference: str) -> None:
    """What a reference in configs stands for is another value now: messages that wait for the next try are ready."""
    for row in await tx.rows(_SQL["with_text"], org_id, reference):
        await deliveries.hasten(tx, row["channel_id"])


async def listed(tx: Transaction, org_id: UUID, name: str | None = None) -> list[ListedChannel]:
    """All of them, or the one with this name."""
    return await tx.rows_as(ListedChannel, _SQL["listed"], org_id, name)


async def dead_messages(tx: Transaction, org_id: UUID) -> dict[str, int]:
    """How many messages could not be delivered, by the names of the channels that have some."""
    return {row["name"]: row["messages"] for row in await tx.rows(_SQL["dead_messages"], org_id)}


async def depths(tx: Transaction) -> list[Depth]:
    return await tx.rows_as(Depth, _SQL["depths"])


async def names(tx: Transaction, org_id: UUID) -> list[str]:
    return [row["name"] for row in await tx.rows(_SQL["names"], org_id)]


async def names_in(tx: Transaction, org: str) -> list[str]:
    """The same of an organization by its name."""
    return [row["name"] for row in await tx.rows(_SQL["names_in"], org)]


async def hold(tx: Transaction, org: str, names: Sequence[str]) -> set[str]:
    """Those that exist, and will until the transaction ends."""
    return {row["name"] for row in await tx.rows(_SQL["hold"], org, list(names))}


async def named_by(tx: Transaction, org_id: UUID, name: str) -> list[tuple[str, str]]:
    """DAGs, each with a deployed alert that is sent to the channel."""
    return [(row["dag"], row["alert"]) for row in await tx.rows(_SQL["named_by"], org_id, name, ROUTE)]


async def remove(tx: Transaction, org_id: UUID, name: str, *, drop: bool) -> int | None:
    """The number of messages that wait; if there are any, the channel is removed only with `drop`. None: there is no
    such channel."""
    channel_id = await tx.value(_SQL["lock"], org_id, name)
    if channel_id is None:
        return None
    waiting: int = await tx.value(_SQL["waits"], channel_id)
    if not waiting or drop:
        await tx.run(_SQL["remove"], channel_id)
    return waiting


async def in_use(tx: Transaction, channel_id: UUID) -> ChannelInUse | None:
    """None: it was removed."""
    return await tx.row_as(ChannelInUse, _SQL["in_use"], channel_id)
