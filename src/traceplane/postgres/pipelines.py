"""Pipelines and lists of tickers in the database. Who changes one is heard of by the trigger (see 0009)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from traceplane.postgres.database import Transaction, statements

_SQL = statements("pipelines")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What its owner says of a pipeline."""

    user_id: str
    name: str
    trigger_mode: str
    scanner_tickers: list[str] | None
    scanner_list_id: UUID | None
    signal_subscriptions: list[dict[str, Any]]
    rules: dict[str, Any]
    schedule: str | None
    is_active: bool
    config: dict[str, Any]
    launches_per_hour: int | None


async def add(tx: Transaction, org: str, pipeline: Pipeline) -> UUID | None:
    """Its id; None if the user has a pipeline of this name."""
    p = pipeline
    found: UUID | None = await tx.value(
        _SQL["add"],
        *(org, p.user_id, p.name, p.trigger_mode, p.scanner_tickers, p.scanner_list_id),
        *(p.signal_subscriptions, p.rules, p.schedule, p.is_active, p.config, p.launches_per_hour),
    )
    return found


async def lock(tx: Transaction, org: str, pipeline_id: UUID) -> dict[str, Any] | None:
    row = await tx.row(_SQL["lock"], org, pipeline_id)
    return dict(row) if row is not None else None


async def name_taken(tx: Transaction, org: str, user_id: str, name: str, *, besides: UUID) -> bool:
    return bool(await tx.value(_SQL["name_taken"], org, user_id, name, besides))


async def change(tx: Transaction, org: str, pipeline_id: UUID, pipeline: Pipeline) -> None:
    p = pipeline
    await tx.rows(
        _SQL["change"],
        *(pipeline_id, p.name, p.scanner_tickers, p.scanner_list_id, p.signal_subscriptions, p.rules),
        *(p.schedule, p.is_active, p.config, p.launches_per_hour, p.trigger_mode, org),
    )


async def remove(tx: Transaction, org: str, pipeline_id: UUID) -> None:
    await tx.rows(_SQL["remove"], pipeline_id, org)


async def listing(
    tx: Transaction,
    org: str,
    *,
    pipeline_id: UUID | None = None,
    after: UUID | None = None,
    user_id: str | None = None,
    trigger_mode: str | None = None,
    is_active: bool | None = None,
    ticker: str | None = None,
    limit: int = 100,
) -> list[dict[str, Any]]:
    rows = await tx.rows(
        _SQL["list"], org, pipeline_id, after, user_id, trigger_mode, is_active, ticker, limit
    )
    return [dict(r) for r in rows]


async def job_kind(tx: Transaction, org: str, dag: str, job: str) -> str | None:
    """The source kind of a deployed job, `none` for one that is no source; None if there is no such job."""
    found: str | None = await tx.value(_SQL["job_state"], org, dag, job)
    return found


async def scanner_lists(tx: Transaction, org: str, name: str | None = None) -> list[dict[str, Any]]:
    return [dict(r) for r in await tx.rows(_SQL["lists"], org, name)]


async def set_scanner_list(tx: Transaction, org: str, name: str, tickers: Sequence[str]) -> None:
    await tx.rows(_SQL["set_list"], org, name, list(tickers))


async def scanner_list_id(tx: Transaction, org: str, name: str) -> UUID | None:
    found: UUID | None = await tx.value(_SQL["list_id"], org, name)
    return found


async def remove_scanner_list(tx: Transaction, org: str, name: str) -> bool | None:
    """Whether it is gone, or still in use; None if there is none of this name."""
    found = await tx.value(_SQL["lock_list"], org, name)
    return None if found is None else await tx.value(_SQL["remove_list"], found) is not None


async def user_limits(tx: Transaction, org: str) -> dict[str, int]:
    return {r["user_id"]: r["launches_per_hour"] for r in await tx.rows(_SQL["user_limits"], org)}


async def set_user_limit(tx: Transaction, org: str, user_id: str, launches_per_hour: int | None) -> None:
    await tx.rows(_SQL["set_user_limit"], org, user_id, launches_per_hour)
