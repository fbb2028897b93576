"""Alerts: what was found, whether it was sent, and what nobody wants to hear of for a while."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from uuid import UUID

import msgspec

from traceplane.model.edges import can_map, overlapping, same_periods
from traceplane.model.json_object import JsonObject
from traceplane.model.message import LONGEST_VALUE, Kind, Message, Severity, shortened
from traceplane.model.partitions import By, Partitions
from traceplane.model.positions import Range
from traceplane.model.silences import Silences
from traceplane.operators.alerting import found_dataset
from traceplane.postgres import hot_tables
from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.registry import partitions_of

_SQL = statements("alerts")
_NO_GENERATION = UUID(int=0)

BUILDING = "building"
"""Why an alert was not sent that only a version has found that did not serve."""


@dataclass(frozen=True, slots=True)
class Route:
    """An alert of a DAG, as one of its jobs sees it."""

    org_id: UUID
    dag: str
    alert: str
    job_id: UUID | None
    generation_id: UUID
    """Of the rows that the job reads."""
    building: bool
    """The job's version does not serve yet."""
    now: datetime
    periods: Partitions = Partitions()
    """Of the positions of rows."""
    former_periods: tuple[Partitions, ...] = ()
    """Others that versions of the alert have or had, if they say something about these."""

    @property
    def identity(self) -> tuple[UUID, str, str]:
        return self.org_id, self.dag, self.alert


@dataclass(frozen=True, slots=True)
class FoundRow:
    position: int
    subject: JsonObject
    fields: JsonObject
    event_time: datetime | None
    emission: str | None


@dataclass(frozen=True, slots=True)
class KnownAlert:
    key: str
    position: int
    occurrence: int
    suppressed: str | None
    retracted: bool
    is_ours: bool
    """Whether the generation of the job has found it."""
    released: bool
    """Whether a version that found it before it served has served since; of use while nobody has routed it."""
    event_time: datetime
    is_built: bool
    """Whether a version that is being built has found it."""
    periods: str | None = None
    subject: JsonObject | None = None
    """Of an alert that was found by other periods."""

    @property
    def is_held(self) -> bool:
        """Only a version that did not serve has found it."""
        return self.suppressed == BUILDING and not self.retracted

    @property
    def is_released(self) -> bool:
        return self.is_held and self.released


@dataclass(frozen=True, slots=True)
class NewAlert:
    key: str
    position: int
    severity: str
    title: str
    body: str
    subject: JsonObject
    fields: JsonObject
    event_time: datetime
    occurrence: int
    incident: str
    suppressed: str | None


@dataclass(frozen=True, slots=True)
class SentAlert:
    """An alert as it was given to channels."""

    org_id: UUID
    dag: str
    alert: str
    position: int | None
    periods: str | None
    key: str
    incident: str
    occurrence: int
    severity: str
    title: str
    body: str
    subject: JsonObject
    fields: JsonObject
    event_time: datetime
    channels: list[str]

    def message(self, kind: Kind, scopes: Mapping[int, str]) -> Message:
        """`scopes`: positions, as they are written."""
        key = message_key(self.key, self.occurrence)
        return Message(
            key=key if kind is Kind.ALERT else f"{key}-{kind}",
            incident=self.key,
            kind=kind,
            alert=self.alert,
            severity=Severity(self.severity),
            title=self.title,
            text=self.body,
            event_time=self.event_time,
            subject=self.subject,
            fields=self.fields,
            dag=self.dag or None,
            position=self._written_position(scopes),
        )

    def _written_position(self, scopes: Mapping[int, str]) -> str | None:
        if self.position is None:
            return None
        if self.periods is not None and (periods := of_periods(self.periods)).is_time:
            return periods.name(self.position)
        return scopes.get(self.position)


def message_key(key: str, occurrence: int) -> str:
    """An alert that comes back after it was retracted is another message."""
    return key if occurrence == 1 else f"{key}-{occurrence}"


def written_periods(partitions: Partitions) -> str:
    """As an alert is stored with them."""
    has_zone = partitions.is_time and partitions.by is not By.HOUR
    return f"{partitions.by} {partitions.time_zone if has_zone else 'UTC'}"


def of_periods(written: str) -> Partitions:
    by, _, time_zone = written.partition(" ")
    return Partitions(By(by), time_zone)


async def lock_route(
    tx: Transaction, job_id: UUID, alert: str, generation_id: UUID, periods: Partitions
) -> Route:
    """`periods`: of the positions of rows."""
    row = await tx.row(_SQL["lock_route"], job_id, alert)
    assert row is not None, "a job whose task is being run exists"
    former = {of_periods(written_periods(partitions_of(one))) for one in row["periods"] or ()}
    return Route(
        row["org_id"],
        row["dag"],
        alert,
        job_id,
        generation_id,
        bool(row["building"]),
        row["now"],
        periods,
        tuple(one for one in former if can_map(periods, one) and not same_periods(periods, one)),
    )


async def platform_route(tx: Transaction, org_id: UUID, alert: str) -> Route:
    """For an alert of the platform itself, which has neither a DAG nor a dataset."""
    return Route(org_id, "", alert, None, _NO_GENERATION, False, await tx.value(_SQL["now"]))


@dataclass(frozen=True, slots=True)
class Found:
    rows: list[FoundRow]
    count: int
    """With those that were not read."""
    left_from: int | None
    """The position from which on rows were not read, as there are too many bytes."""
    refused_at: int | None
    """The first position with a subject that is too long."""


async def found_rows(
    tx: Transaction,
    generation_id: UUID,
    ranges: Sequence[Range],
    most: int,
    most_bytes: int,
    longest_subject: int,
) -> Found:
    """The rows at these positions, up to a number and so many bytes. The ranges have no position in common."""
    texts = ("subject", "fields", "emission")
    rows = await hot_tables.rows_at(
        tx, generation_id, (*texts, "event_time"), "position", texts, ranges, most, most_bytes
    )
    read = [r for r in rows if r["fits"]]
    left_from = rows[len(read)]["position"] if len(read) < len(rows) else None
    long = (r["position"] for r in read if len(r["subject"]) > longest_subject)
    if (refused_at := next(long, None)) is not None:
        return Found([], len(rows), left_from, refused_at)
    found = [
        FoundRow(
            r["position"],
            _DECODER.decode(r["subject"]),
            _fields(r["fields"]),
            r["event_time"],
            r["emission"],
        )
        for r in read
    ]
    return Found(found, len(rows), left_from, None)


def _fields(text: str) -> JsonObject:
    """What would be cut off later is not decoded: a list may have millions of parts."""
    return {name: _field(bytes(raw)) for name, raw in _RAW_DECODER.decode(text).items()}


def _field(raw: bytes) -> object:
    if raw[:1] in b"[{" or (len(raw) > LONGEST_VALUE and raw[:1] != b'"'):
        return shortened(raw.decode(), LONGEST_VALUE)
    return _DECODER.decode(raw)


async def without_events(tx: Transaction, task_ids: Sequence[UUID]) -> set[UUID]:
    """Those of these tasks that no event has made."""
    return {row["task_id"] for row in await tx.rows(_SQL["without_events"], list(task_ids))}


async def known(
    tx: Transaction, route: Route, keys: Sequence[str], ranges: Sequence[Range]
) -> dict[str, KnownAlert]:
    """What is known of these alerts, and of those at these positions, or in periods of other versions that overlap
    them, that are not gone."""
    former = [
        (written_periods(one), *overlapping(positions, route.periods, one))
        for one in route.former_periods
        for positions in ranges
    ]
    rows = await tx.rows_as(
        KnownAlert,
        _SQL["known"],
        *route.identity,
        list(keys),
        *_columns(ranges),
        route.generation_id,
        route.job_id,
        written_periods(route.periods),
        *([one[number] for one in former] for number in range(3)),
    )
    return {row.key: row for row in rows}


async def still_there(tx: Transaction, route: Route, asked: Sequence[tuple[KnownAlert, Range]]) -> set[str]:
    """The keys of those alerts about whose subjects the generation of the job finds something at these positions."""
    if not asked:
        return set()
    rows = await tx.rows(
        _SQL["still_there"],
        *route.identity,
        [alert.key for alert, _ in asked],
        [alert.subject for alert, _ in asked],
        *_columns([positions for _, positions in asked]),
        route.generation_id,
        written_periods(route.periods),
    )
    return {row["key"] for row in rows}


async def add(
    tx: Transaction,
    route: Route,
    alerts: Sequence[NewAlert],
    dataset_id: str | None,
    owner: str,
    channels: Sequence[str],
) -> None:
    """Alerts that are new, or found again after they were gone. `dataset_id`: what they are about."""
    await tx.rows(
        _SQL["add"],
        *route.identity,
        owner,
        list(channels),
        dataset_id,
        route.generation_id,
        written_periods(route.periods) if route.job_id is not None else None,
        *([getattr(alert, name) for alert in alerts] for name in NewAlert.__slots__),
    )


async def see_again(tx: Transaction, route: Route, keys: Sequence[str]) -> None:
    await tx.rows(_SQL["see_again"], *route.identity, list(keys), route.generation_id)


async def retract(tx: Transaction, route: Route, keys: Sequence[str]) -> list[SentAlert]:
    """Those of them that were sent."""
    return await tx.rows_as(SentAlert, _SQL["retract"], *route.identity, list(keys))


async def written_positions(
    tx: Transaction, org_id: UUID, dag: str, alert: str, positions: Iterable[int]
) -> dict[int, str]:
    """Positions of an alert as scopes are written, for messages. None of partitions by name, nor of the platform's own
    alerts, which have no positions."""
    if not dag:
        return {}
    partitions = partitions_of(await tx.value(_SQL["partitions"], org_id, found_dataset(dag, alert)))
    return {} if partitions.by is By.NAME else {position: partitions.name(position) for position in positions}


async def ended_incidents(tx: Transaction, route: Route, incidents: Sequence[str]) -> list[str]:
    """Those of which no alert is left."""
    rows = await tx.rows(_SQL["ended_incidents"], *route.identity, list(incidents))
    return [row["incident"] for row in rows]


async def hold(tx: Transaction, route: Route, keys: Sequence[str]) -> None:
    """For the version that is being built, which still finds what the one that serves has just retracted."""
    await tx.run(_SQL["hold"], *route.identity, list(keys), route.job_id)


async def forget_by_generation(tx: Transaction, route: Route, keys: Sequence[str]) -> None:
    await tx.rows(_SQL["forget_by_generation"], *route.identity, list(keys), route.generation_id)


async def sent_since(tx: Transaction, route: Route, seconds: float, most: int) -> int:
    """How many were sent in these last seconds; more than `most` are not counted."""
    return int(await tx.value(_SQL["sent_since"], *route.identity, seconds, most))


async def sent_about(
    tx: Transaction, route: Route, seconds: float, most: int, subjects: Sequence[JsonObject]
) -> list[int]:
    """The same for each of these subjects."""
    rows = await tx.rows(_SQL["sent_about"], *route.identity, seconds, most, list(subjects))
    return [row["sent"] for row in rows]


async def silences(tx: Transaction, route: Route) -> Silences:
    return Silences(row["subject"] for row in await tx.rows(_SQL["silences"], *route.identity))


def _columns(ranges: Sequence[Range]) -> tuple[list[int], list[int]]:
    return [first for first, _ in ranges], [last for _, last in ranges]


_DECODER = msgspec.json.Decoder(float_hook=Decimal)
"""Exact: a decimal must not become another number on its way to whoever is told."""
_RAW_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
