"""Deletes a DAG, in one transaction.

From then on its datasets cannot be found, its jobs receive no events, and its unfinished tasks are canceled, as when a
version is given up. The next garbage collection deletes the data; the history (events, tasks, lineage) stays readable.
The names of the DAG and its datasets may be used again.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from traceplane.errors import Conflict
from traceplane.postgres import cron_schedules, job_pauses, registry, tasks, versions
from traceplane.postgres.database import Database, Transaction, retry_on_conflict
from traceplane.postgres.events import notify_dispatchers
from traceplane.registry import cutover
from traceplane.sql import virtual

_CANCELED_AT_ONCE = 500
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Deleted:
    datasets: tuple[str, ...]
    readers: tuple[str, ...]
    """Who read its datasets or ran its jobs, as text."""


async def delete(database: Database, org: str, dag: str, *, force: bool) -> Deleted:
    """Refuses while others read its datasets or run its jobs, unless `force`."""

    async def once() -> Deleted:
        async with database.transaction("cutover") as tx:
            locked = await cutover.lock(tx, org, dag)
            datasets, readers = await _datasets_and_readers(tx, org, dag, locked.dag_id)
            if readers and not force:
                more = f" and {len(readers) - _NAMED} more" if len(readers) > _NAMED else ""
                raise Conflict(
                    "dag.in_use",
                    f"others read its datasets or run its jobs: {', '.join(readers[:_NAMED])}{more}",
                    value=dag,
                    next_step="delete or change those first, or delete it with --force",
                )
            await cron_schedules.forget(tx, locked.dag_id)
            retired_jobs = await versions.delete(tx, locked.dag_id)
            await job_pauses.forget(tx, locked.dag_id)
            if retired_jobs:
                await registry.clear_pressure(tx, retired_jobs)
                await versions.forget_replays(tx, retired_jobs)
                await tasks.cancel_retired(tx, _CANCELED_AT_ONCE)  # the dispatcher cancels the rest
                await versions.stop_the_stream(tx)
            await notify_dispatchers(tx)
            return Deleted(tuple(datasets), tuple(readers))

    return await retry_on_conflict(once)


async def _datasets_and_readers(
    tx: Transaction, org: str, dag: str, dag_id: UUID
) -> tuple[list[str], list[str]]:
    rows = await registry.datasets_of_dag(tx, org, dag_id)
    datasets = [row.dataset_id for row in rows if row.own]
    readers = [
        f"{row.dag}/{row.job} reads {row.dataset_id}"
        for row in await versions.readers_elsewhere(tx, org, datasets)
    ]
    readers += [
        f"{row.dag}/{row.job} reads a virtual dataset of it"
        for row in await registry.readers_of_virtual(tx, org, dag, datasets)
    ]
    for row in rows:
        if row.own or row.sql is None:
            continue
        if read := set(virtual.reads(row.sql)) & set(datasets):
            readers.append(f"the virtual dataset {row.dataset_id} of {row.dag} reads {min(read)}")
    readers += [
        f"the pipeline {row.name} of {row.user_id} runs it"
        for row in await registry.pipelines_of_dag(tx, org, dag)
    ]
    return datasets, readers
