"""A hot dataset, its rows, and a random history of writes, reorgs and compactions of it."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import pyarrow as pa

from tests.control_plane import Held
from tests.dags import SOURCE, job
from tests.hot_worker import HotWorker, Rows
from traceplane.wire.scalars import Scope

COLUMNS = "[{name: block, type: bigint}, {name: n, type: int}, {name: name, type: string}]"
DATASETS = f"""
datasets:
  hot: {{storage: postgres, write_mode: direct, position: block, columns: {COLUMNS}}}
  seen: {{position: block}}
"""
COMPACT = """\
- name: cold
  runtime: spark
  operator: compact
  inputs: [{from: {dataset: hot}}]
  outputs: [{dataset: cold}]
  config: {delete_after_commit: true}
  execution_strategy: Bulk
  batch: {size: 5}
  max_attempts: 100
  retry: {base: 1ms, max: 1ms}
"""
DAG = SOURCE + job("store", "in", "hot") + job("reader", "hot", "seen") + COMPACT + DATASETS


def table(*rows: tuple[int, int]) -> pa.Table:
    return pa.table(
        {
            "block": pa.array([block for block, _ in rows], pa.int64()),
            "n": pa.array([n for _, n in rows], pa.int32()),
            "name": pa.array([f"n{n}" for _, n in rows], pa.string()),
        }
    )


def pairs(rows: Rows) -> list[tuple[int, int]]:
    return sorted((row["block"], row["n"]) for row in rows)


async def stored(worker: HotWorker, scope: int | Scope, *rows: tuple[int, int], emission: str = "") -> None:
    await worker.plane.emit("in", [scope], emission=emission)
    [held] = await worker.take("store")
    assert await worker.store(held, table(*rows)) == "committed"


def span(start: int, end: int) -> Scope:
    return Scope(partition_key=f"{start}-{end}", start=start, end=end)


class History:
    """Random steps on a band of positions, beside a model that is too simple to be wrong."""

    WIDTH = 15

    def __init__(self, worker: HotWorker, chance: random.Random, first: int) -> None:
        self.worker, self.chance, self.first = worker, chance, first
        self.model: dict[int, list[tuple[int, int]]] = {}
        self.held: defaultdict[str, list[tuple[Held, Any]]] = defaultdict(list)
        self.words = 0

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            await self.chance.choices(
                [self.emit, self.claim, self.store, self.start_compacting, self.finish_compacting, self.look],
                weights=[5, 4, 5, 3, 2, 2],
            )[0]()
        await self.settle()
        await self.compare()

    def position(self) -> int:
        return self.first + self.chance.randrange(self.WIDTH)

    async def emit(self) -> None:
        start = self.position()
        end = min(start + self.chance.choice([0, 0, 0, 2, 6]), self.first + self.WIDTH - 1)
        self.words += 1
        await self.worker.plane.emit(
            "in", [start if start == end else span(start, end)], emission=f"w{self.words}"
        )

    async def claim(self) -> None:
        for name in ("store", "reader", "cold"):
            self.held[name] += [(held, None) for held in await self.worker.take(name)]

    def some(self, job: str) -> tuple[Held, Any] | None:
        waiting = self.held[job]
        return waiting.pop(self.chance.randrange(len(waiting))) if waiting else None

    async def store(self) -> None:
        """One or two commits in one call."""
        reports = []
        for held, _ in filter(None, [self.some("store") for _ in range(self.chance.choice([1, 2]))]):
            scope = held.scope
            rows = [(p, self.chance.randrange(1000)) for p in range(scope.first, scope.last + 1)]
            rows = [row for row in rows for _ in range(self.chance.choice([0, 1, 2]))]
            reports.append((held, self.worker.done(held, table(*rows))))
            self.model |= {p: [r for r in rows if r[0] == p] for p in range(scope.first, scope.last + 1)}
        if reports and self.chance.random() < 0.3 and (found := self.some("reading")):
            held, (rows, local) = found
            reports.insert(
                self.chance.choice([0, len(reports)]), (held, self.worker.done(held, rows, local=local))
            )
        if reports:
            outcomes = await self.worker.plane.report(*reports)
            assert outcomes.count("retrying") <= sum(h.job.name == "cold" for h, _ in reports)

    async def start_compacting(self) -> None:
        if found := self.some("cold"):
            held, _ = found
            rows, local = await self.worker.read(held)
            assert pairs(rows.to_pylist()) == self.expected(held.scope.first, held.scope.last)
            self.held["reading"].append((held, (rows, local)))

    async def finish_compacting(self) -> None:
        if found := self.some("reading"):
            held, (rows, local) = found
            done = self.worker.done(held, rows, local=local)
            assert await self.worker.plane.report((held, done)) in (["committed"], ["retrying"])
            again = await self.worker.plane.report((held, done))
            assert again in (["committed"], ["retrying"])

    async def look(self) -> None:
        """Another job that reads the hot dataset, early or long after the rows were moved."""
        if found := self.some("reader"):
            held, _ = found
            rows, _ = await self.worker.read(held)
            assert pairs(rows.to_pylist()) == self.expected(held.scope.first, held.scope.last)
            await self.worker.store(held, rows)

    def expected(self, first: int, last: int) -> list[tuple[int, int]]:
        return sorted(row for p in range(first, last + 1) for row in self.model.get(p, []))

    async def settle(self) -> None:
        for _ in range(200):
            await self.claim()
            while any(self.held.values()):
                await self.store()
                await self.look()
                await self.start_compacting()
                await self.finish_compacting()
            states = await self.worker.plane.states()
            if not {"queued", "dispatched", "running"} & set(states):
                assert "dead" not in states
                return
        raise AssertionError(f"it does not come to rest: {states}")

    async def compare(self) -> None:
        band = range(self.first, self.first + self.WIDTH)
        full = [
            p
            for start in range(self.first, self.first + self.WIDTH, 5)
            if all(q in self.model for q in range(start, start + 5))
            for p in range(start, start + 5)
        ]
        cold = [row for row in await self.worker.files("cold") if row["block"] in band]
        assert pairs(cold) == sorted(row for p in full for row in self.model[p])
        table = [row for row in await self.worker.table("hot") if row["block"] in band]
        assert pairs(table) == sorted(row for p in self.model if p not in full for row in self.model[p])
