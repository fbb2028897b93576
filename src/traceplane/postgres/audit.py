"""The audit log: who changed what, and who was refused what. Names of objects, never values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import msgspec

from traceplane.postgres.database import Transaction, statements

_SQL = statements("audit")


@dataclass(slots=True)
class Act:
    """What somebody does, as far as it is written down."""

    org_id: UUID
    principal: str
    kind: str
    """user, service or token; worker; operator: whoever has the database."""
    action: str
    """The label of a route, or a command on the database."""
    remote: str | None = None
    request_id: str | None = None
    object: dict[str, str] = field(default_factory=dict)
    """The names of what it is about. Filled as they become known, before the commit."""


@dataclass(frozen=True, slots=True)
class Refusal:
    act: Act
    code: str
    times: int


@dataclass(frozen=True, slots=True)
class AuditRow:
    audit_id: int
    at: datetime
    principal: str
    kind: str
    action: str
    object: dict[str, str]
    remote: str | None
    request_id: str | None
    outcome: str
    """ok, or the code of the refusal."""
    times: int


@dataclass(frozen=True, slots=True)
class AuditFilter:
    principal: str | None = None
    action: str | None = None
    """A part of it."""
    refused: bool | None = None
    since: datetime | None = None
    until: datetime | None = None


async def record_changes(tx: Transaction, acts: Sequence[Act]) -> None:
    """At the end of a transaction; writes nothing if it has changed nothing."""
    await tx.rows(_SQL["record_changes"], *columns(acts))


async def record_command(
    tx: Transaction, org: str, operator: str, command: str, names: Mapping[str, str]
) -> None:
    """The same of a command on the database."""
    await tx.rows(_SQL["record_command"], org, operator, command, msgspec.json.encode(names).decode())


async def record_refusals(tx: Transaction, refusals: Sequence[Refusal]) -> None:
    await tx.rows(
        _SQL["record_refusals"],
        *columns([refusal.act for refusal in refusals]),
        [refusal.code for refusal in refusals],
        [refusal.times for refusal in refusals],
    )


async def page(
    tx: Transaction, org_id: UUID, chosen: AuditFilter, *, before: int | None, after: int | None, limit: int
) -> list[AuditRow]:
    """Newest first; with `after`, oldest first."""
    statement, start = (_SQL["newest"], before) if after is None else (_SQL["oldest"], after)
    rows = await tx.rows(
        statement,
        org_id,
        start,
        chosen.principal,
        chosen.action,
        chosen.refused,
        chosen.since,
        chosen.until,
        limit,
    )
    return [AuditRow(**row) for row in rows]


def columns(acts: Sequence[Act]) -> list[list[object]]:
    """Acts as the parameters of a statement that records them."""
    return [
        [act.org_id for act in acts],
        [act.principal for act in acts],
        [act.kind for act in acts],
        [act.action for act in acts],
        [msgspec.json.encode(act.object).decode() for act in acts],
        [act.remote for act in acts],
        [act.request_id for act in acts],
    ]
