"""History by hand: tasks for the scopes of a range, where they are wanted and not under way.

The tasks are made some thousand at a time, each time in a transaction that locks the job, so that two commands take
turns. One that breaks off half way is repeated and goes on: what is done, or under way, is left alone.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from traceplane import telemetry
from traceplane.errors import InvalidInput, NotFound
from traceplane.model import backfill as model
from traceplane.model.scope import Scope
from traceplane.postgres import events, registry, tasks
from traceplane.postgres.database import Database, again_if_concurrent
from traceplane.wire.control import BackfillRequest, BackfillResponse, LackingView

_SCOPES_AT_ONCE = 5_000
_GAPS_TOLD = 20


async def backfill(database: Database, org: str, request: BackfillRequest) -> BackfillResponse:
    async with database.transaction() as tx:
        target = _checked(await registry.backfill_target(tx, org, request.dataset), request)
    wanted = _scopes(target, request)
    counts: Counter[str] = Counter()
    for position in range(0, len(wanted), _SCOPES_AT_ONCE):
        chunk = wanted[position : position + _SCOPES_AT_ONCE]

        async def once(chunk: list[Scope] = chunk) -> dict[str, int]:
            async with database.transaction() as tx:
                if not request.dry_run:
                    await tasks.lock_routed_job(tx, target["job_id"])
                found = await tasks.backfill(
                    tx,
                    target["job_id"],
                    target["generation_id"],
                    chunk,
                    wanted=request.only,
                    allow_gaps=request.allow_gaps,
                    create=not request.dry_run,
                )
                if not request.dry_run and found["created"]:
                    await events.notify_dispatchers(tx)
                return found

        counts.update(await again_if_concurrent(once))
    gaps: list[dict[str, Any]] = []
    if counts["left_out"]:
        async with database.transaction() as tx:
            everything = wanted[0].start, wanted[-1].end
            gaps = await tasks.backfill_gaps(tx, target["job_id"], everything, _GAPS_TOLD)
    if not request.dry_run:
        telemetry.emit(
            "backfill.started", dataset=request.dataset, scopes=len(wanted), tasks=counts["created"]
        )
    return BackfillResponse(
        dataset=request.dataset,
        job=target["job"],
        scopes=len(wanted),
        created=counts["created"],
        unfinished=counts["unfinished"] + (0 if request.dry_run else counts["created"]),
        missing=counts["missing"],
        failed=counts["failed"],
        left_out=counts["left_out"],
        gaps=tuple(LackingView(g["dataset_id"], g["first"], g["last"]) for g in gaps),
    )


def _checked(target: dict[str, Any] | None, request: BackfillRequest) -> dict[str, Any]:
    if target is None or target["job_id"] is None:
        raise NotFound(
            "dataset.unknown",
            "there is no such dataset",
            value=request.dataset,
            next_step="deploy its DAG first",
        )
    if target["activation"] == "source":
        raise InvalidInput(
            "backfill.source_dataset",
            f"the dataset is what the source {target['job']} emits; there is nothing to compute it from",
            value=request.dataset,
            next_step="backfill a dataset that is computed from it, or emit its events",
        )
    if target["runtime"] == "dispatcher":
        raise InvalidInput(
            "backfill.no_rows",
            f"the dataset only groups the events of another; {target['job']} computes nothing",
            value=request.dataset,
            next_step="backfill the dataset that is read from it, or the one it groups",
        )
    if request.partition_size is not None and target["range_size"] is not None:
        raise InvalidInput(
            "backfill.fixed_size",
            f"job {target['job']} is fed with ranges of {target['range_size']} positions",
            value=request.partition_size,
            next_step="leave the partition size out",
        )
    return target


def _scopes(target: dict[str, Any], request: BackfillRequest) -> list[Scope]:
    try:
        return model.scopes(
            request.start,
            request.end,
            partition_size=request.partition_size,
            range_size=target["range_size"],
        )
    except ValueError as error:
        raise InvalidInput(
            "backfill.bad_range",
            f"the range cannot be worked off: {error}",
            value=f"{request.start}:{request.end}",
            next_step=f"give a range A:B of at most {model.MAX_SCOPES} scopes, or larger partitions",
        ) from None
