"""Checks of datasets that failed without stopping anything: outputs that were committed all the same, and datasets that
got no data for too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import msgspec

from traceplane.model import durations
from traceplane.model.checks import SampleRow
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Transaction, statements

_SQL = statements("check_failures")


async def generations_written(tx: Transaction, job_ids: Sequence[UUID]) -> dict[tuple[UUID, int], UUID]:
    """By job and output."""
    rows = await tx.rows(_SQL["generations_written"], list(job_ids))
    return {(row["job_id"], row["output_index"]): row["generation_id"] for row in rows}


async def add(tx: Transaction, outputs: Sequence[OutputCommit]) -> None:
    """Keeps what outputs that are being committed do not meet."""
    failed = [(output, check) for output in outputs for check in output.failed_checks]
    if not failed:
        return
    await tx.rows(
        _SQL["add"],
        [output.generation_id for output, _ in failed],
        [check.check for _, check in failed],
        [check.problem for _, check in failed],
        [check.rows for _, check in failed],
        [msgspec.json.encode(check.sample).decode() for _, check in failed],
        [output.task_id for output, _ in failed],
        [output.partition_key for output, _ in failed],
        [output.start for output, _ in failed],
        [output.end for output, _ in failed],
    )


@dataclass(frozen=True, slots=True)
class CheckFailure:
    failure_id: int
    org_id: UUID
    dag: str
    dataset_id: str
    generation_id: UUID
    name: str
    """Of the check."""
    problem: str
    rows: int | None
    """None: freshness, which is not about rows."""
    sample: list[SampleRow]
    task_id: UUID | None
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    recovered: bool
    """Of freshness: data has come again, so the failure before is over."""
    at: datetime


async def newest(tx: Transaction, after: int, most: int) -> list[CheckFailure]:
    """Of all organizations that the session sees, in the order in which they were written, after a given one. A
    transaction that is still open may add one with a lower id."""
    return [CheckFailure(**row) for row in await tx.rows(_SQL["newest"], after, most)]


async def of_task(tx: Transaction, org: str, task_id: UUID) -> list[CheckFailure]:
    return [CheckFailure(**row) for row in await tx.rows(_SQL["of_task"], org, task_id)]


@dataclass(frozen=True, slots=True)
class Standing:
    """A check that a dataset does not meet now."""

    dataset_id: str
    name: str
    scopes: int
    """In how many; 0: it is about freshness."""
    problem: str
    """The newest one."""
    task_id: UUID | None


async def standing(tx: Transaction, org: str) -> list[Standing]:
    return [Standing(**row) for row in await tx.rows(_SQL["standing"], org)]


@dataclass(frozen=True, slots=True)
class Turned:
    """A dataset that has become stale, or has rows again."""

    dataset_uuid: UUID
    generation_id: UUID
    name: str
    """Of the check."""
    seconds: float
    filled_at: datetime | None
    """When it last got rows; None: never."""
    stale: bool

    @property
    def problem(self) -> str:
        if not self.stale:
            return "rows have come again"
        last = (
            f"the last came at {self.filled_at:%Y-%m-%d %H:%M:%S} UTC" if self.filled_at else "none ever came"
        )
        return f"no rows have come for {durations.written(self.seconds)}; {last}"


async def judge_freshness(tx: Transaction) -> list[Turned]:
    """Looks at all expectations of freshness, and keeps what has changed. Does nothing while somebody else does it."""
    if not await tx.value(_SQL["lock_freshness"]):
        return []
    turned = [Turned(**row) for row in await tx.rows(_SQL["turned"])]
    if turned:
        await tx.rows(
            _SQL["add_freshness"],
            [one.dataset_uuid for one in turned],
            [one.generation_id for one in turned],
            [one.name for one in turned],
            [one.problem for one in turned],
            [not one.stale for one in turned],
        )
    return turned
