"""Pipelines and lists of tickers in the database. The trigger notices every change (see 0009)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from traceplane.model.json_object import JsonObject
from traceplane.postgres.database import Transaction, statements

_SQL = statements("pipelines")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The fields of a pipeline that its owner sets."""

    user_id: str
    name: str
    trigger_mode: str
    scanner_tickers: list[str] | None
    scanner_list_id: UUID | None
    signal_subscriptions: list[JsonObject]
    rules: JsonObject
    schedule: str | None
    is_active: bool
    config: JsonObject
    launches_per_hour: int | None


@dataclass(frozen=True, slots=True)
class ListedPipeline:
    pipeline_id: UUID
    user_id: str
    name: str
    trigger_mode: str
    scanner_tickers: list[str] | None
    scanner_list: str | None
    signal_subscriptions: list[JsonObject]
    rules: JsonObject
    schedule: str | None
    is_active: bool
    config: JsonObject
    launches_per_hour: int | None
    created_at: datetime
    running: UUID | None = None
    """The current execution."""


@dataclass(frozen=True, slots=True)
class ScannerList:
    name: str
    tickers: list[str]
    pipelines: int
    """How many use it."""


async def add(tx: Transaction, org: str, pipeline: Pipeline) -> UUID | None:
    """Its id; None if the user has a pipeline of this name."""
    p = pipeline
    pipeline_id: UUID | None = await tx.value(
        _SQL["add"],
        *(org, p.user_id, p.name, p.trigger_mode, p.scanner_tickers, p.scanner_list_id),
        *(p.signal_subscriptions, p.rules, p.schedule, p.is_active, p.config, p.launches_per_hour),
    )
    return pipeline_id


async def lock(tx: Transaction, org: str, pipeline_id: UUID) -> ListedPipeline | None:
    """Without the current execution."""
    return await tx.row_as(ListedPipeline, _SQL["lock"], org, pipeline_id)


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
    hidden: Collection[tuple[str, str]] = (),
) -> list[ListedPipeline]:
    """`hidden` are DAGs and jobs, whose pipelines are left out."""
    dags, jobs = [dag for dag, _ in hidden], [job for _, job in hidden]
    filters = (pipeline_id, after, user_id, trigger_mode, is_active, ticker)
    return await tx.rows_as(ListedPipeline, _SQL["list"], org, *filters, limit, dags, jobs)


async def job_kind(tx: Transaction, org: str, dag: str, job: str) -> str | None:
    """The source kind of a deployed job, `none` if it is not a source; None if there is no such job."""
    kind: str | None = await tx.value(_SQL["job_state"], org, dag, job)
    return kind


async def scanner_lists(tx: Transaction, org: str, name: str | None = None) -> list[ScannerList]:
    return await tx.rows_as(ScannerList, _SQL["lists"], org, name)


async def set_scanner_list(tx: Transaction, org: str, name: str, tickers: Sequence[str]) -> None:
    await tx.rows(_SQL["set_list"], org, name, list(tickers))


async def scanner_list_id(tx: Transaction, org: str, name: str) -> UUID | None:
    list_id: UUID | None = await tx.value(_SQL["list_id"], org, name)
    return list_id


async def remove_scanner_list(tx: Transaction, org: str, name: str) -> bool | None:
    """Whether it was deleted, or is still in use; None if there is no list of this name."""
    list_id = await tx.value(_SQL["lock_list"], org, name)
    return None if list_id is None else await tx.value(_SQL["remove_list"], list_id) is not None


async def user_limits(tx: Transaction, org: str) -> dict[str, int]:
    return {r["user_id"]: r["launches_per_hour"] for r in await tx.rows(_SQL["user_limits"], org)}


async def set_user_limit(tx: Transaction, org: str, user_id: str, launches_per_hour: int | None) -> None:
    await tx.rows(_SQL["set_user_limit"], org, user_id, launches_per_hour)
