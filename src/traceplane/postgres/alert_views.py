"""Alerts, as people look at them, acknowledge and silence them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from traceplane.model.json_object import JsonObject
from traceplane.operators.alerting import ROUTE, found_dataset
from traceplane.postgres import personal_data
from traceplane.postgres.alerts import message_key
from traceplane.postgres.database import Transaction, statements

_SQL = statements("alert_views")

AlertState = Literal["open", "suppressed", "retracted", "acknowledged"]
About = tuple[str, str, str | None]
"""The DAG and the name of an alert, and the dataset that it is about."""


@dataclass(frozen=True, slots=True)
class Readable:
    """Whose alerts a caller may see."""

    without: Sequence[str] = ()
    """Datasets that they may not read."""
    hidden_jobs: Sequence[str] | None = ()
    """Jobs, as `dag/job`, that they may not see. None: they see nothing that is about no dataset."""

    @property
    def values(self) -> tuple[list[str], list[str] | None]:
        return list(self.without), None if self.hidden_jobs is None else list(self.hidden_jobs)


@dataclass(frozen=True, slots=True)
class ListedAlert:
    alert_id: UUID
    dag: str
    alert: str
    dataset_id: str | None
    key: str
    incident: str
    occurrence: int
    position: int | None
    state: AlertState
    severity: str
    title: str
    body: str
    subject: JsonObject
    fields: JsonObject
    owner: str
    channels: list[str]
    event_time: datetime
    found_at: datetime
    suppressed: str | None
    retracted_at: datetime | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None


@dataclass(frozen=True, slots=True)
class AlertCounts:
    """Of the alerts that were not sent for one reason; None: of those that were sent."""

    dag: str
    alert: str
    suppressed: str | None
    found: int
    retracted: int
    open: int
    last_found_at: datetime


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    delivery_id: UUID
    channel: str
    kind: Literal["alert", "acknowledgement", "retraction"]
    state: Literal["waiting", "delivered", "dead", "withdrawn"]
    tries: int
    created_at: datetime
    ended_at: datetime | None
    code: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    alert_id: UUID
    key: str
    incident: str
    occurrence: int
    suppressed: str | None

    @property
    def message_key(self) -> str:
        """Of the message that was sent: about it alone, or about a group."""
        if self.incident != self.key:
            return self.incident
        return message_key(self.key, self.occurrence)


@dataclass(frozen=True, slots=True)
class KnownAlert:
    dag: str
    alert: str
    dataset_id: str | None
    subject: list[str] | None
    """The columns; None if it is no longer deployed."""


@dataclass(frozen=True, slots=True)
class Silence:
    silence_id: UUID
    dag: str | None
    alert: str | None
    subject: JsonObject
    ends_at: datetime
    reason: str
    created_at: datetime
    created_by: str


async def listed(
    tx: Transaction,
    org_id: UUID,
    readable: Readable,
    *,
    dag: str | None = None,
    alert: str | None = None,
    state: AlertState | None = None,
    after: UUID | None = None,
    alert_id: UUID | None = None,
    limit: int,
) -> list[ListedAlert]:
    """Newest first. `after`: the last one of the page before."""
    return await tx.rows_as(
        ListedAlert,
        _SQL["listed"],
        *(org_id, dag, alert, state, after),
        *(*readable.values, alert_id, limit),
    )


async def counts(
    tx: Transaction, org_id: UUID, readable: Readable, dag: str | None, alert: str | None
) -> list[AlertCounts]:
    return await tx.rows_as(AlertCounts, _SQL["counts"], org_id, dag, alert, *readable.values)


async def messages(tx: Transaction, org_id: UUID, incidents: Collection[str]) -> list[QueuedMessage]:
    return await tx.rows_as(QueuedMessage, _SQL["messages"], org_id, list(incidents))


async def known(tx: Transaction, org_id: UUID) -> list[KnownAlert]:
    """Alerts that are deployed, or were found some time."""
    return await tx.rows_as(KnownAlert, _SQL["known"], org_id, ROUTE)


# Acknowledging and silencing -------------------------------------------------------------------------


async def acknowledge(
    tx: Transaction,
    org_id: UUID,
    readable: Readable,
    *,
    ids: Sequence[UUID] = (),
    dag: str | None = None,
    alert: str | None = None,
    most: int,
    by: str,
) -> list[Acknowledged]:
    """By their ids, or the oldest open ones of an alert; those that already were are left alone."""
    return await tx.rows_as(
        Acknowledged,
        _SQL["acknowledge"],
        *(org_id, list(ids), alert, dag),
        *(*readable.values, most, by),
    )


async def why_not_acknowledged(
    tx: Transaction, org_id: UUID, readable: Readable, ids: Sequence[UUID]
) -> dict[UUID, str]:
    """`acknowledged` before, `retracted`, or `unknown`."""
    rows = await tx.rows(_SQL["states"], org_id, list(ids), *readable.values)
    states = {row["alert_id"]: row["state"] for row in rows}
    return {alert_id: states.get(alert_id) or "unknown" for alert_id in ids}


async def silence(
    tx: Transaction,
    org_id: UUID,
    *,
    dag: str | None,
    alert: str | None,
    subject: Mapping[str, object],
    lasts: timedelta,
    reason: str,
    by: str,
    most: int,
) -> Silence | None:
    """None if as many as `most` hold already."""
    await tx.rows(_SQL["lock_silences"], org_id)
    # A separate statement: only now does it see what others have made.
    return await tx.row_as(
        Silence, _SQL["silence"], org_id, dag, alert, dict(subject), lasts, reason, by, most
    )


async def silences(tx: Transaction, org_id: UUID) -> list[Silence]:
    return await tx.rows_as(Silence, _SQL["silences"], org_id)


async def unsilence(tx: Transaction, org_id: UUID, silence_id: UUID) -> None:
    await tx.run(_SQL["unsilence"], org_id, silence_id)


# Personal data ---------------------------------------------------------------------------------------


async def personal_parts(
    tx: Transaction, org_id: UUID, alerts: Collection[About]
) -> dict[About, frozenset[str]]:
    """Which of `subject`, `fields` and `event_time` may hold personal data. What an alert found before it was changed
    counts too."""
    if not await tx.value(_SQL["has_marks"], org_id):
        return {}
    datasets = {found_dataset(dag, alert) for dag, alert, _ in alerts}
    datasets |= {dataset_id for _, _, dataset_id in alerts if dataset_id is not None}
    generations: dict[str, list[UUID]] = {}
    for row in await tx.rows(_SQL["generations"], org_id, list(datasets)):
        generations.setdefault(row["dataset_id"], []).append(row["generation_id"])
    origins = await personal_data.origins(tx, [g for of_dataset in generations.values() for g in of_dataset])
    marks = {
        dataset_id: [origins[g].effective for g in of_dataset if g in origins]
        for dataset_id, of_dataset in generations.items()
    }
    parts = {}
    for dag, alert, dataset_id in alerts:
        if (found := marks.get(found_dataset(dag, alert))) is not None:
            hidden = frozenset(part for part in PARTS if any(m.has(part) for m in found))
        elif not any(marks.get(dataset_id or "", ())):
            hidden = frozenset()
        elif dag:  # nobody knows any more what it was computed from
            hidden = PARTS
        else:  # the platform's own: a check may name values
            hidden = frozenset({"fields"})
        parts[dag, alert, dataset_id] = hidden
    return parts


PARTS = frozenset({"subject", "fields", "event_time"})
