"""Small files end by themselves: makes tasks of the operator `compact` for datasets with many of them.

A dataset is looked through a page of its commits at a time, in the order of their positions, again whenever it has
changed; `model.compaction` decides what is merged. There is a job per generation, in a DAG of the platform, with a few
tasks at a time. If one of them fails for good, the dataset is left alone until somebody retries or acknowledges it.

Two dispatchers may make tasks for the same files. Of these, one counts: the other then finds that its files are gone
(`leases.file_compaction`).
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from traceplane import telemetry
from traceplane.model.compaction import Policy, Run, open_from, runs
from traceplane.model.dag import (
    Activation,
    ExecutionSettings,
    ExecutionStrategy,
    Job,
    Priority,
    UpdateStrategy,
)
from traceplane.model.job_definition import OperatorFacts
from traceplane.model.json_object import JsonObject
from traceplane.operators.processing import COMPACT
from traceplane.postgres import compaction, registry
from traceplane.postgres.compaction import Candidate, Key
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.events import notify_dispatchers
from traceplane.registry import job_rows
from traceplane.runtime.process import Outcome

DAG = "~compaction"
"""No DAG file can have this name."""
_RUNTIME = "spark"
_PAGE = 20_000
_TASKS_AT_ONCE = 16
_CONCURRENCY = 2
_TIMEOUT_SECONDS = 3600.0
_BEGINNING: Key = (-(2**63), 0)
_KEPT_BY_SPARK = re.compile(
    r"bool|int(8|16|32|64)|float|double|string|binary|date32\[day\]|timestamp\[us(, tz=UTC)?\]|decimal128\(\d+, \d+\)"
)
"""The types of columns that Spark writes as it reads them."""


@dataclass(frozen=True, slots=True)
class Planned(Outcome):
    tasks: int = 0
    more: bool = False


@dataclass(frozen=True, slots=True)
class _Seen:
    row_version: str
    after: Key | None
    """How far it has been looked through; None: to its end."""
    young: bool
    """Whether it had commits that were left alone for their age."""
    at: float

    def is_done(self, row_version: str, pause: float) -> bool:
        """Whether there is nothing to look at, or it was looked at a moment ago."""
        if self.after is not None:
            return False
        return (self.row_version == row_version and not self.young) or time.monotonic() - self.at < pause


class FileCompaction:
    """`age`: how long commits are left alone, in which most of what is corrected is corrected."""

    def __init__(self, database: Database, defaults: Policy, *, age: timedelta, page: int = _PAGE) -> None:
        self._database, self._defaults, self._age, self._page = database, defaults, age, page
        self._seen: dict[UUID, _Seen] = {}

    async def run_once(self) -> Planned:
        async with self._database.autocommit() as tx:
            candidates = await compaction.candidates(tx, _RUNTIME)
        made, more = 0, False
        for candidate in candidates:
            if not all(_KEPT_BY_SPARK.fullmatch(column.type) for column in candidate.columns):
                continue
            seen = self._seen.get(candidate.generation_id)
            if seen is not None and seen.is_done(candidate.row_version, self._age.total_seconds()):
                continue
            tasks, unfinished = await self._look(candidate, seen)
            made += tasks
            more |= unfinished and not tasks
        telemetry.count("compactions_planned_total", made)
        return Planned(made, more)

    async def _look(self, candidate: Candidate, seen: _Seen | None) -> tuple[int, bool]:
        """Looks through the next page; returns how many tasks were made, and whether there are more pages."""
        policy = self._policy(candidate)
        generation = candidate.generation_id
        is_first = seen is None or seen.after is None
        after = _BEGINNING if seen is None or seen.after is None else seen.after
        async with self._database.transaction() as tx:
            commits, young = await compaction.page(tx, generation, after, self._age, self._page)
            covered = await compaction.covered(tx, generation)
            at_end = len(commits) < self._page
            pending = None if at_end else open_from(commits, covered, policy)
            if pending is not None and pending is not commits[0]:  # the next page begins with it
                commits = commits[: commits.index(pending)]
            found = runs(commits, covered, policy)
            if found:
                await self._create(tx, candidate, policy, found[:_TASKS_AT_ONCE])
        young |= seen is not None and not is_first and seen.young
        next_: Key | None = None if at_end else commits[-1].key
        if len(found) > _TASKS_AT_ONCE:
            next_ = after  # the rest of it comes once these are done
        self._seen[generation] = _Seen(candidate.row_version, next_, young, time.monotonic())
        return min(len(found), _TASKS_AT_ONCE), next_ is not None

    def _policy(self, candidate: Candidate) -> Policy:
        return Policy(
            candidate.policy.get("target") or self._defaults.target_bytes,
            candidate.policy.get("min_files") or self._defaults.min_files,
        )

    async def _create(self, tx: Transaction, candidate: Candidate, policy: Policy, chosen: list[Run]) -> None:
        config: JsonObject = {
            "sort": list(candidate.cluster_by) or [candidate.position],
            "target_file_mb": max(1, policy.target_bytes >> 20),
        }
        known = await compaction.job(tx, candidate.generation_id)
        if known is None:
            job_id = await _add_job(tx, candidate, config)
        else:
            job_id, before = known
            if before != config:
                await compaction.configure(tx, job_id, config)
        await compaction.create(tx, job_id, candidate.generation_id, chosen)
        await notify_dispatchers(tx)


async def _add_job(tx: Transaction, candidate: Candidate, config: JsonObject) -> UUID:
    dag_id, _ = await registry.lock_dag(tx, candidate.org, DAG)
    await compaction.retire(tx, candidate.dataset_uuid)
    job = Job(
        name=candidate.dataset_id,
        activation=Activation.REACTIVE,
        runtime=_RUNTIME,
        operator=COMPACT.name,
        config=config,
        inputs=(),
        outputs=(),
        execution_strategy=ExecutionStrategy.PER_UPDATE,
        update_strategy=UpdateStrategy.REPLACE,
        execution=ExecutionSettings(
            max_concurrency=_CONCURRENCY, priority=Priority.BACKFILL, timeout_seconds=_TIMEOUT_SECONDS
        ),
    )
    job_id = await job_rows.add_job(
        tx,
        dag_id,
        job,
        fingerprint=str(candidate.generation_id),
        window=_CONCURRENCY,
        reads=[],
        writes=[],
        facts=OperatorFacts(compacts_files=True),
    )
    await compaction.begin(tx, job_id, candidate.generation_id)
    return job_id
