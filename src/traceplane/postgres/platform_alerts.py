"""What the platform itself alerts on: by organization, what it is about and more of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from uuid import UUID

from traceplane.model.json_object import JsonObject
from traceplane.postgres.database import Transaction, statements

_SQL = statements("platform_alerts")


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that is the case now."""

    org_id: UUID
    subject: JsonObject
    fields: JsonObject


async def lock(tx: Transaction) -> bool:
    """Whether this process looks now; another one may be at it."""
    return bool(await tx.value(_SQL["lock"]))


async def dead_tasks(tx: Transaction) -> list[Condition]:
    return await tx.rows_as(Condition, _SQL["dead_tasks"])


async def queue_age(tx: Transaction, seconds: float) -> list[Condition]:
    """Jobs whose oldest task has waited longer."""
    return await tx.rows_as(Condition, _SQL["queue_age"], seconds)


async def failing_sources(tx: Transaction) -> list[Condition]:
    return await tx.rows_as(Condition, _SQL["failing_sources"])


async def failed_checks(tx: Transaction) -> list[Condition]:
    return await tx.rows_as(Condition, _SQL["failed_checks"])


async def stale_datasets(tx: Transaction) -> list[Condition]:
    return await tx.rows_as(Condition, _SQL["stale_datasets"])


async def dead_deliveries(tx: Transaction) -> list[Condition]:
    return await tx.rows_as(Condition, _SQL["dead_deliveries"])


async def first_org(tx: Transaction) -> UUID | None:
    """The organization that is told of what concerns the whole platform."""
    return await tx.value(_SQL["first_org"])  # type: ignore[no-any-return]


async def open_alerts(tx: Transaction) -> set[tuple[UUID, str]]:
    """Organizations, each with an alert that has not ended."""
    return {(row["org_id"], row["alert"]) for row in await tx.rows(_SQL["open_alerts"])}


async def platform_channels(tx: Transaction) -> dict[UUID, list[str]]:
    """The channels that get the platform's alerts, by organization."""
    found: defaultdict[UUID, list[str]] = defaultdict(list)
    for row in await tx.rows(_SQL["platform_channels"]):
        found[row["org_id"]].append(row["name"])
    return found
