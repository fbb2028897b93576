"""Guarantee 17: after a cutover every reader has at least what it had before, whatever happened.

Random histories of events, partitions, corrections, backfills, renamed and replaced sources, changed columns and code,
renamed jobs, changed range sizes, aborted versions and rollbacks, with random amounts of work done in between. The
model is a set of positions per dataset, taken right before each move of the pointers.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from tests.control_plane import ControlPlane
from tests.postgres.test_commits import span
from traceplane.errors import Conflict, NotFound

HIGHEST = 24
STEPS = 20


@dataclass(frozen=True)
class DagFile:
    """What a DAG file says."""

    name: str
    source: str = "numbers"
    kind: str = "manual"
    columns: str = "bigint"
    code: tuple[int, int, int, int] = (1, 1, 1, 1)
    job_b: str = "b"
    size: int = 4
    outputs: tuple[str, ...] = field(default=("a", "b", "c", "w"))

    def dataset(self, short: str) -> str:
        return f"{self.name}.{short}"

    def yaml(self) -> str:
        jobs = [("a", "in", "a", ""), (self.job_b, "a", "b", ""), ("c", "b", "c", "")]
        jobs.append(("w", "a", "w", f"\n  execution_strategy: Bulk\n  batch: {{size: {self.size}}}"))
        text = f"version: 1\ndag: {self.name}\njobs:\n"
        text += f"- {{name: {self.source}, activation: source, source: {{kind: {self.kind}}},"
        text += f" outputs: [{{dataset: {self.dataset('in')}}}]}}\n"
        for (job, reads, writes, more), code in zip(jobs, self.code, strict=True):
            text += f"- name: {job}\n  runtime: python\n  operator: python\n"
            text += f"  inputs: [{{from: {{dataset: {self.dataset(reads)}}}}}]\n"
            text += f"  outputs: [{{dataset: {self.dataset(writes)}}}]\n"
            text += f'  config: {{entrypoint: "basic:copy_{code}"}}{more}\n'
        columns = f"{{columns: [{{name: n, type: {self.columns}}}]}}"
        return text + f"datasets: {{{self.dataset('in')}: {columns}}}\n"

    def changed(self, dice: random.Random) -> DagFile:
        code = list(self.code)
        code[dice.randrange(4)] += 1
        return dice.choice(
            [
                replace(self, source=dice.choice(["numbers", "figures", "ticks"])),
                replace(self, kind=dice.choice(["manual", "webhook"])),
                replace(self, columns=dice.choice(["bigint", "string"])),
                replace(self, code=(code[0], code[1], code[2], code[3])),
                replace(self, code=(code[0], code[1], code[2], code[3]), source="renamed", columns="double"),
                replace(self, job_b=dice.choice(["b", "other_b"])),
                replace(self, size=dice.choice([2, 3, 4, 6])),
            ]
        )


class History:
    def __init__(self, plane: ControlPlane, name: str, seed: int) -> None:
        self.plane, self.dice = plane, random.Random(seed)
        self.world = DagFile(name)
        self.said: list[str] = []
        self.moves = 0
        self.steps = [self.emit, self.emit, self.backfill, self.deploy, self.deploy, self.work]
        self.steps += [self.settle, self.settle, self.rollback, self.abort]

    async def run(self) -> int:
        """How many times other pointers came to serve."""
        await self.plane.deploy(self.world.yaml())
        for _ in range(STEPS):
            step = self.dice.choice(self.steps)
            self.said.append(step.__name__)
            await step()
        await self.settle()
        return self.moves

    async def positions(self) -> dict[str, set[int]]:
        """What readers of each dataset have."""
        rows = await self.plane.sql(
            "select d.dataset_id, c.range_start, c.range_end from datasets d"
            " join dataset_commits c on c.generation_id = d.current_generation_id"
            " join dags g using (dag_id) where g.name = $1 and c.superseded_by is null",
            self.world.name,
        )
        found: dict[str, set[int]] = {}
        for row in rows:
            found.setdefault(row["dataset_id"], set()).update(range(row["range_start"], row["range_end"] + 1))
        return found

    async def active(self) -> int:
        return await self.plane.value(
            "select v.number from dags d join dag_versions v on v.dag_version_id = d.active_version_id"
            " where d.name = $1",
            self.world.name,
        )

    def check(self, before: dict[str, set[int]], after: dict[str, set[int]], what: str) -> None:
        self.moves += 1
        for dataset, had in before.items():
            lost = had - after.get(dataset, set())
            assert not lost, f"{what}: {dataset} lost {sorted(lost)} after {self.said}"

    async def emit(self) -> None:
        low = self.dice.randrange(HIGHEST)
        high = min(HIGHEST, low + self.dice.randrange(6))
        scopes = [span(low, high)] if self.dice.random() < 0.3 else list(range(low, high + 1))
        await self.plane.emit(self.world.dataset("in"), scopes, emission=self.dice.choice(["", "again"]))

    async def backfill(self) -> None:
        low = self.dice.randrange(HIGHEST)
        dataset = self.world.dataset(self.dice.choice(["a", "b", "c", "w"]))
        allow = self.dice.random() < 0.5
        await self.plane.backfill(dataset, low, low + self.dice.randrange(5), allow_gaps=allow)

    async def deploy(self) -> None:
        wanted = self.world.changed(self.dice)
        before, was = await self.positions(), await self.active()
        try:
            await self.plane.deploy(wanted.yaml())
        except Conflict:  # one is being built
            return
        self.world = wanted
        if await self.active() != was:
            self.check(before, await self.positions(), "a deploy")

    async def abort(self) -> None:
        try:
            await self.plane.abort(self.world.name)
        except Conflict:
            return

    async def rollback(self) -> None:
        before = await self.positions()
        allowed = self.dice.random() < 0.7
        try:
            await self.plane.rollback(self.world.name, drop_missing=allowed)
        except (NotFound, Conflict):
            return
        if not allowed:
            self.check(before, await self.positions(), "a rollback that drops nothing")
        await self.settle()
        before.pop(self.world.dataset("w"), None)  # whoever goes back gets the older version's ranges
        self.check(before, await self.positions(), "a rollback")

    async def work(self) -> None:
        """Some of what is to be done."""
        for _ in range(self.dice.randrange(1, 4)):
            await self.look()
            await self.plane.meter()
            held = await self.plane.claim(await self.plane.send())
            if held:
                await self.plane.complete(*held)

    async def settle(self) -> None:
        """All of it."""
        for _ in range(40):
            told = await self.look()
            if not await self.plane.run_all() and not told:
                return
        raise AssertionError(f"it did not come to rest after {self.said}")

    async def look(self) -> int:
        before, was = await self.positions(), await self.active()
        built = await self.plane.builds.run_once()
        if await self.active() != was:
            self.check(before, await self.positions(), "a cutover")
        return built.told + built.canceled + built.cut_over


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        yield opened


async def test_no_reader_has_less_after_a_cutover(plane: ControlPlane) -> None:
    moves = [await History(plane, f"h{seed}", seed).run() for seed in range(3)]
    assert sum(moves) > 2


@pytest.mark.chaos
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("group", range(10))
async def test_no_reader_has_less_after_a_cutover_in_500_histories(plane: ControlPlane, group: int) -> None:
    seeds = range(group * 50 + 100, group * 50 + 150)
    moves = [await History(plane, f"h{seed}", seed).run() for seed in seeds]
    print(f"histories {seeds.start} to {seeds.stop - 1}: {sum(moves)} moves of pointers, nothing lost")
    assert sum(moves) > 50
