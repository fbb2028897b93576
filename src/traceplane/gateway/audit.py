"""The audit log: refusals on their way to it, and what admins see of it.

A change is recorded by its own transaction (`auth.callers.Caller.act`). A refusal changes nothing, so it is recorded a
moment later, with its like: whoever is refused a thousand times a second must not make the gateway write as often,
nor whoever names another object each time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from traceplane.errors import InvalidInput
from traceplane.http_service.routes import Call, Incoming, Route
from traceplane.postgres import audit
from traceplane.postgres.audit import Act, AuditFilter, Refusal
from traceplane.postgres.database import Database, OrgDatabase, OrgDatabases, Transaction
from traceplane.runtime.process import Outcome
from traceplane.wire.audit import AuditEntry, AuditQuery, AuditResponse

FLUSH_SECONDS = 1.0
_PERIOD_SECONDS = 60.0
_MOST_ROWS_OF_A_KIND = 20
"""In a period. The rest of the refusals of one caller by one route for one reason are one row at its end, without
objects and addresses."""
_MOST_ROWS_OF_AN_ORGANIZATION = 2_000
"""The same for all refusals in an organization, so that none takes the room of another."""
_NAMES = (
    *("dag", "job", "dataset", "alert", "name", "namespace", "channel", "platform_alerts"),
    *("user_id", "to_version"),
    *("member", "roles", "datasets", "lasts", "includes", "sees_pii", "allowed_jobs", "any_job"),
)
"""Fields of requests that name what a call is about, and which rights it gives."""
_LONGEST_NAME = 200
_LONGEST_LIST = 2000
_READING = frozenset({"POST /api/v1/plan", "POST /api/v1/alerts/test"})
"""Calls that change nothing, although their method could. A query is none: one that Spark runs becomes a task."""

_Key = tuple[UUID, str, str, str, tuple[tuple[str, str], ...], str | None, str]
"""Organization, principal and its kind, action, object, address, code."""


@dataclass(frozen=True, slots=True)
class Refusals(Outcome):
    refusals: int = 0


class AuditApi:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: Counter[_Key] = Counter()
        self._request_ids: dict[_Key, str | None] = {}
        self._period_ends = time.monotonic() + _PERIOD_SECONDS
        self._rows: Counter[_Key | UUID] = Counter()
        """Of each kind and each organization, in this period."""
        self._rest: Counter[_Key] = Counter()
        """Refusals beyond those, by kind."""

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/audit", None, AuditResponse, self.listed, "admin",
                  "Who changed what, and who was refused what.", query=AuditQuery),
        ]  # fmt: skip

    async def listed(self, call: Call[None]) -> AuditResponse:
        query: AuditQuery = call.query
        for name in ("since", "until"):
            if (time := getattr(query, name)) is not None and time.tzinfo is None:
                raise InvalidInput(
                    "audit.no_time_zone",
                    f"`{name}` has no time zone",
                    value=time.isoformat(),
                    next_step="write for example 2026-11-18T09:00:00Z",
                )
        chosen = AuditFilter(
            query.principal,
            query.action,
            None if query.outcome is None else query.outcome == "refused",
            query.since,
            query.until,
        )
        async with call.principal.database.transaction() as tx:
            rows = await audit.page(
                tx, call.principal.org_id, chosen, before=query.before, after=query.after, limit=query.limit
            )
        return AuditResponse(
            [
                AuditEntry(
                    audit_id=row.audit_id,
                    at=row.at,
                    principal=row.principal,
                    kind=row.kind,
                    action=row.action,
                    object=row.object,
                    outcome=row.outcome,
                    times=row.times,
                    remote=row.remote,
                    request_id=row.request_id,
                )
                for row in rows
            ]
        )

    def refuse(self, act: Act, code: str) -> None:
        """Notes a refusal; `flush` records it."""
        key = (act.org_id, act.principal, act.kind, act.action, tuple(act.object.items()), act.remote, code)
        if key not in self._waiting:
            of_kind: _Key = (act.org_id, act.principal, act.kind, act.action, (), None, code)
            if (
                self._rows[of_kind] >= _MOST_ROWS_OF_A_KIND
                or self._rows[act.org_id] >= _MOST_ROWS_OF_AN_ORGANIZATION
            ):
                self._rest[of_kind] += 1
                return
            self._rows.update((of_kind, act.org_id))
        self._waiting[key] += 1
        self._request_ids.setdefault(key, act.request_id)

    async def flush(self, *, at_end: bool = False) -> Outcome:
        """Runs as a loop. If the database is away, the refusals wait for it."""
        if at_end or time.monotonic() >= self._period_ends:
            self._period_ends = time.monotonic() + _PERIOD_SECONDS
            self._waiting.update(self._rest)
            self._rest.clear()
            self._rows.clear()
        if not self._waiting:
            return Outcome()
        refusals = [
            Refusal(
                Act(org_id, principal, kind, action, remote, self._request_ids.get(key), dict(object_)),
                code,
                n,
            )
            for key, n in self._waiting.items()
            for org_id, principal, kind, action, object_, remote, code in (key,)
        ]
        taken, self._waiting = self._waiting, Counter()
        request_ids, self._request_ids = self._request_ids, {}
        try:
            async with self._database.transaction() as tx:
                await audit.record_refusals(tx, refusals)
        except BaseException:
            self._waiting.update(taken)
            self._request_ids |= request_ids
            raise
        return Refusals(len(refusals))


def act_of(incoming: Incoming, org_id: UUID, principal: str, kind: str) -> Act:
    return Act(
        org_id,
        principal,
        kind,
        incoming.label,
        incoming.remote,
        incoming.request_id,
        {name: value[:_LONGEST_NAME] for name, value in incoming.path_params.items()},
    )


def audited(orgs: OrgDatabases, incoming: Incoming, act: Act) -> OrgDatabase:
    """The database of a call, whose transactions record what they change."""
    if incoming.method == "GET" or incoming.label in _READING:
        return orgs.of(act.org_id)

    async def record(tx: Transaction) -> None:
        await audit.record_changes(tx, [act])

    return orgs.of(act.org_id, record)


def names_in(body: object) -> Mapping[str, str]:
    """The names of what a request is about, as far as it has them in fields of their own."""
    names = {}
    for name in _NAMES:
        match getattr(body, name, None):
            case True:
                names[name] = "true"
            case False | None:
                pass
            case str() | int() as value:
                names[name] = str(value)[:_LONGEST_NAME]
            case [*values] if all(isinstance(value, str) for value in values):
                names[name] = ", ".join(values)[:_LONGEST_LIST]
    return names
