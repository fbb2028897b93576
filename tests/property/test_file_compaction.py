"""Guarantee 19: merging files changes no row that anybody reads.

Random histories of commits, corrections, rebuilds, cutovers and rollbacks, while small files are merged, in pieces, by
tasks that may be overtaken by what they merge. The model is a dict of rows by position for each build of the dataset.
After each step queries, as of now and of earlier moments, and the tasks that read the dataset see its rows; a rebuilt
job gets the scopes that were written, not those of merged files.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from tests.control_plane import ControlPlane, Held, completed
from tests.postgres.copy_jobs import COPY
from tests.postgres.test_commits import span
from tests.postgres.test_file_compaction import compaction, with_worker
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.errors import Conflict, NotFound
from traceplane.model.positions import Range, kept
from traceplane.postgres import pinned
from traceplane.postgres.database import Transaction
from traceplane.registry.garbage import Policy, collect
from traceplane.settings import Settings
from traceplane.wire.tasks import ColumnSchema, StagedFile

HIGHEST, STEPS = 16, 40
Rows = list[tuple[int, int]]
"""Positions, each with a number that no other write has."""


def dag(code_copy: int, code_after: int) -> str:
    text = COPY.replace("basic:copy", f"basic:copy_{code_copy}", 1)
    before, _, after = text.rpartition("basic:copy")
    return (
        f"{before}basic:copy_{code_after}{after}"
        "datasets:\n  mid: {position: n, columns: [{name: n, type: bigint}]}\n"
    )


class History:
    def __init__(self, plane: ControlPlane, store: Path, seed: int) -> None:
        self.plane, self.dice, self.store = plane, random.Random(seed), store
        self.compaction = compaction(plane, min_files=2)
        self.contents: dict[str, Rows] = {}
        self.rows: dict[UUID, dict[int, Rows]] = {}
        self.moments: list[tuple[datetime, UUID, dict[int, Rows]]] = []
        self.merging: list[Held] = []
        self.scopes: set[str] = set()
        self.code = (1, 1)
        self.writes, self.emissions, self.merged, self.checked = 0, 0, 0, 0
        self.said: list[str] = []

    async def run(self) -> None:
        await self.plane.deploy(dag(*self.code))
        await with_worker(self.plane)
        steps = [self.emit, self.plan_merges, self.finish_merge, self.work] * 4
        steps += [self.deploy, self.rollback, self.collect]
        for _ in range(STEPS):
            step = self.dice.choice(steps)
            self.said.append(step.__name__)
            await step()
            await self.check()
        while await self.work() or self.merging:
            await self.finish_merge()
        await self.check()

    # Steps -----------------------------------------------------------------------------------------

    async def emit(self) -> None:
        low = self.dice.randrange(HIGHEST)
        high = min(HIGHEST, low + self.dice.randrange(5))
        scopes = [span(low, high)] if self.dice.random() < 0.2 else list(range(low, high + 1))
        self.emissions += 1
        self.scopes |= {str(scope) if isinstance(scope, int) else f"{low}-{high}" for scope in scopes}
        await self.plane.emit("in", scopes, emission=f"e{self.emissions}")
        await self.work()

    async def work(self) -> int:
        """Everything but merges."""
        done = 0
        for _ in range(30):
            built = await self.plane.builds.run_once()
            moved = await self.plane.meter()
            sent = await self.plane.send()
            held = await self.plane.claim(sent)
            self.merging += await self.plane.claim(
                [task_id for task_id in sent if task_id not in {h.task_id for h in held}], runtime="spark"
            )
            for one in held:
                await self.write(one)
            done += len(held)
            if not (moved or held or built.told or built.canceled or built.cut_over):
                return done
        raise AssertionError(f"it did not come to rest after {self.said}")

    async def write(self, held: Held) -> None:
        """One task of `copy`, which writes new rows, or of `after`, which reads what `copy` wrote."""
        first, last = held.scope.first, held.scope.last
        if held.job.name == "after":
            assert str(held.scope.partition_key or held.scope.cursor) in self.scopes, self.said
            model = self.rows[held.job.inputs[0].dataset_version]
            read = [row for file in held.task.input_files[0] for row in self.read(file.path, file.kept)]
            assert Counter(read) == Counter(_between(model, first, last)), self.said
            await self.plane.complete(held)
            return
        self.writes += 1
        rows = {n: [(n, self.writes)] * self.dice.randrange(3) for n in range(first, last + 1)}
        assert await self.report(held, [row for some in rows.values() for row in some]) == ["committed"]
        self.rows.setdefault(held.job.outputs[0].dataset_version, {}).update(rows)

    async def report(self, held: Held, rows: Rows) -> list[str]:
        (output,) = held.outputs()
        path = f"{held.task.write_prefixes[0]}part-0.parquet"
        self.contents[path] = rows
        files = [StagedFile(path, len(rows), 10 * len(rows))] if rows else []
        output = structs.replace(
            output,
            files=files,
            row_count=len(rows),
            bytes=10 * len(rows),
            schema=[ColumnSchema("n", "int64", True)],
        )
        return await self.plane.report((held, completed(held, outputs=[output])))

    async def plan_merges(self) -> None:
        await self.compaction.run_once()
        await self.plane.meter()
        sent = await self.plane.send()
        self.merging += await self.plane.claim(sent, runtime="spark")
        self.plane.wake_ups.sent += [i for i in sent if i not in {h.task_id for h in self.merging}]

    async def finish_merge(self) -> None:
        """Of what was read when it was claimed, however long ago."""
        if not self.merging:
            return
        held = self.merging.pop(self.dice.randrange(len(self.merging)))
        rows = [row for file in held.task.input_files[0] for row in self.read(file.path, file.kept)]
        events = await self.plane.value("select count(*) from events")
        assert set(await self.report(held, sorted(rows))) <= {"committed", "canceled"}, self.said
        assert await self.plane.value("select count(*) from events") == events
        self.merged += await self.plane.value(
            "select count(*) from dataset_commits where task_id = $1", held.task_id
        )

    async def deploy(self) -> None:
        changed = list(self.code)
        changed[self.dice.randrange(2)] += 1
        try:
            await self.plane.deploy(dag(changed[0], changed[1]))
        except Conflict:  # one is being built
            return
        self.code = (changed[0], changed[1])
        await self.work()

    async def rollback(self) -> None:
        try:
            await self.plane.rollback("main")
        except (NotFound, Conflict):
            return
        await self.work()

    async def collect(self) -> None:
        """Files of replaced commits are gone at once; whoever reads as of a time before cannot."""
        zero = Settings().grace * 0
        await collect(
            self.plane.database, FolderObjectStore(self.store), Policy(zero, None, keep_versions=100)
        )

    # What is read ----------------------------------------------------------------------------------

    def read(self, path: str, ranges: Iterable[tuple[Any, Any]] | None) -> Rows:
        bounds = list(ranges or ())
        return [
            row
            for row in self.contents[path]
            if not bounds or any((a is None or a <= row[0]) and (b is None or row[0] < b) for a, b in bounds)
        ]

    async def check(self) -> None:
        async with self.plane.database.snapshot() as tx:
            (dataset,) = (await pinned.datasets(tx, "default", ["mid"])).values()
            now: datetime = await tx.value("select tp_now()")
            generation = dataset.generation_id
            assert generation is not None
            ids, hidden = await pinned.commits(tx, generation)
            model = self.rows.get(generation, {})
            assert Counter(await self.seen(tx, generation, ids, hidden)) == Counter(
                _between(model, 0, HIGHEST + 5)
            ), self.said
            for at, of, then in self.moments[-15:]:
                forgotten = await tx.value(
                    "select forgotten_until from generation_cursors where generation_id = $1", of
                )
                if forgotten is None or at >= forgotten:
                    ids, hidden = await pinned.commits(tx, of, at)
                    found = Counter(await self.seen(tx, of, ids, hidden))
                    assert found == Counter(_between(then, 0, HIGHEST + 5)), (at, self.said)
                    self.checked += 1
        self.moments.append((now, generation, {n: [*rows] for n, rows in model.items()}))

    async def seen(
        self, tx: Transaction, generation: UUID, ids: list[int], hidden: dict[int, list[Range]]
    ) -> Rows:
        rows: Rows = []
        for commit in await pinned.paths(tx, generation, ids):
            covered = hidden.get(commit.commit_id)
            ranges = kept((commit.first, commit.last), (-(2**63), 2**63 - 1), covered) if covered else None
            if ranges is None or ranges:
                bounds = [(first, last + 1) for first, last in ranges] if ranges else None
                rows += [row for path in commit.paths for row in self.read(path, bounds)]
        return rows


def _between(model: dict[int, Rows], first: int, last: int) -> Rows:
    return [row for n, rows in model.items() if first <= n <= last for row in rows]


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        yield opened


@pytest.mark.parametrize("seed", range(2))
async def test_merging_files_changes_no_row_that_anybody_reads(
    plane: ControlPlane, tmp_path: Path, seed: int
) -> None:
    history = History(plane, tmp_path, seed)
    await history.run()
    assert history.merged > 1
    assert history.checked > 50


@pytest.mark.chaos
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(100, 160))
async def test_merging_files_changes_no_row_in_60_histories(
    plane: ControlPlane, tmp_path: Path, seed: int
) -> None:
    history = History(plane, tmp_path, seed)
    await history.run()
    print(f"history {seed}: {history.merged} merges, {history.checked} earlier moments read")
