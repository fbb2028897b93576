"""History that has ended, page by page: finished tasks, events, lineage, executions, code, refused queries, the audit
log, failed checks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("history")
_FIRST_UUID = UUID(int=0)


class Kind(StrEnum):
    """What ends, in the order in which it does."""

    DEAD_TASKS = "dead_tasks"
    TASKS = "tasks"
    EVENTS = "events"
    EXECUTIONS = "executions"
    CODE = "code"
    AUDIT = "audit"
    DEAD_LETTERS = "dead_letters"
    CHECK_FAILURES = "check_failures"
    DELIVERIES = "deliveries"
    ALERTS = "alerts"
    JOB_MEMORY = "job_memory"


Key = UUID | int | str

_BEFORE_ALL: dict[Kind, Key] = {
    Kind.DEAD_TASKS: _FIRST_UUID,
    Kind.TASKS: _FIRST_UUID,
    Kind.EVENTS: 0,
    Kind.EXECUTIONS: _FIRST_UUID,
    Kind.CODE: "",
    Kind.AUDIT: 0,
    Kind.DEAD_LETTERS: 0,
    Kind.CHECK_FAILURES: 0,
    Kind.DELIVERIES: _FIRST_UUID,
    Kind.ALERTS: _FIRST_UUID,
    Kind.JOB_MEMORY: _FIRST_UUID,
}


@dataclass(frozen=True, slots=True)
class Page:
    ended: int
    """Rows that were deleted, or would be."""
    after: Key | None
    """Where the next page begins; None: there is no more."""


async def claim_round(tx: Transaction, kind: str, lease: timedelta) -> bool:
    return bool(await tx.value(_SQL["claim_round"], kind, lease))


async def postpone_round(tx: Transaction, kind: str, pause: timedelta) -> None:
    await tx.rows(_SQL["postpone_round"], kind, pause)


async def end(
    tx: Transaction, kind: Kind, age: timedelta, after: Key | None, limit: int, *, dry_run: bool
) -> Page:
    """Deletes what is older than `age` on the page after a key; None: on the first page."""
    first = _BEFORE_ALL[kind] if after is None else after
    match kind:
        case Kind.DEAD_TASKS:
            statement = _SQL["end_dead_tasks"]
        case Kind.TASKS:
            statement = _SQL["end_tasks"]
        case Kind.EVENTS:
            statement = _SQL["end_events"]
        case Kind.EXECUTIONS:
            statement = _SQL["end_executions"]
        case Kind.CODE:
            statement = _SQL["end_code"]
        case Kind.AUDIT:
            await tx.run("select set_config('traceplane.history_ends', 'audit_log', true)")
            statement = _SQL["end_audit"]
        case Kind.DEAD_LETTERS:
            statement = _SQL["end_dead_letters"]
        case Kind.CHECK_FAILURES:
            statement = _SQL["end_check_failures"]
        case Kind.DELIVERIES:
            statement = _SQL["end_deliveries"]
        case Kind.ALERTS:
            statement = _SQL["end_alerts"]
        case Kind.JOB_MEMORY:
            statement = _SQL["end_job_memory"]
    row = await tx.row(statement, first, age, limit, dry_run)
    assert row is not None
    # A page of jobs has one job; every other page that is not full is the last.
    full = row["looked_at"] > 0 if kind is Kind.JOB_MEMORY else row["looked_at"] == limit
    return Page(row["ended"], row["last"] if full and not row["young"] else None)
