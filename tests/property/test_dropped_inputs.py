"""Nothing is computed from what an input has dropped, whatever waited, failed, was retried or rebuilt meanwhile.

Random histories of events, corrections, pauses, retries, rebuilds and retention, with random amounts of work done in
between. Every task that is handed out must get all of what its input ever had for its scope, so nothing that was
computed from all of it is replaced by something computed from less; and nothing that is kept is ever lost.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.control_plane import ControlPlane, Held, failed
from tests.dags import SOURCE, job
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.errors import Conflict
from traceplane.registry.garbage import Policy, collect

STEPS = 40
HIGHEST = 20
DAY = 86_400.0
POLICY = Policy(timedelta(hours=24), timedelta(days=3650))
BEFORE = 2
"""Positions that the window reads before its own."""
READERS = ("plain", "window", "batch")


def file(code: int) -> str:
    entrypoint = f"basic:copy_{code}"
    window = job("window", "mid", "out.window", entrypoint=entrypoint).replace(
        "{from: {dataset: mid}}", f"{{from: {{dataset: mid}}, read: {{before: {BEFORE}}}}}"
    )
    batch = job(
        "batch", "mid", "out.batch", "execution_strategy: Bulk", "batch: {size: 4}", entrypoint=entrypoint
    )
    plain = job("plain", "mid", "out.plain", entrypoint=entrypoint)
    return SOURCE + job("copy", "in", "mid") + plain + window + batch + "datasets: {mid: {retention: 40d}}\n"


class History:
    def __init__(self, plane: ControlPlane, root: Path, seed: int) -> None:
        self.plane, self.root, self.dice = plane, root, random.Random(seed)
        self.days, self.code, self.emissions = 0, 1, 0
        self.files: dict[str, int] = {}
        """Of the input: its positions by path."""
        self.ever: set[int] = set()
        """What the input ever had."""
        self.said: list[str] = []
        self.checked = 0
        self.steps = [self.emit, self.emit, self.correct, self.correct, self.work, self.work, self.work]
        self.steps += [self.age, self.age, self.pause, self.resume, self.resume, self.retry, self.rebuild]

    async def run(self) -> None:
        await self.plane.deploy(file(1))
        for _ in range(STEPS):
            before = await self.served()
            step = self.dice.choice(self.steps)
            self.said.append(step.__name__)
            await step()
            after = await self.served()
            for name, positions in before.items():
                assert positions <= after[name], f"{name} lost {positions - after[name]} after {self.said}"

    async def served(self) -> dict[str, set[int]]:
        served: dict[str, set[int]] = {name: set() for name in READERS}
        for row in await self.plane.sql(
            "select d.dataset_id, c.range_start, c.range_end from datasets d"
            " join dataset_commits c on c.generation_id = d.current_generation_id"
            " where d.dataset_id like 'out.%' and c.superseded_by is null"
        ):
            served[row["dataset_id"][4:]].update(range(row["range_start"], row["range_end"] + 1))
        return served

    async def emit(self) -> None:
        low = self.dice.randrange(HIGHEST)
        await self.plane.emit("in", range(low, low + self.dice.randrange(1, 6)))

    async def correct(self) -> None:
        self.emissions += 1
        await self.plane.emit("in", [self.dice.randrange(HIGHEST)], emission=f"again-{self.emissions}")

    async def work(self) -> None:
        for _ in range(self.dice.randrange(1, 6)):
            await self.plane.batch_closer.run_once()
            await self.plane.builds.run_once()
            await self.plane.meter()
            claimed = await self.plane.claim(await self.plane.send())
            for held in claimed:
                self.check(held)
            for held in claimed:
                if self.dice.random() < 0.1:
                    await self.plane.report((held, failed(held, retryable=self.dice.random() < 0.5)))
                    continue
                await self.plane.complete(held)
                if held.job.name == "copy":
                    self.files[held.outputs()[0].files[0].path] = held.scope.first
                    self.ever.add(held.scope.first)

    def check(self, held: Held) -> None:
        if held.job.name == "copy":
            return
        handed = {self.files[f.path] for f in held.task.input_files[0]}
        first, last = held.scope.first, held.scope.last
        reads = range(first - BEFORE if held.job.name == "window" else first, last + 1)
        lacking = self.ever.intersection(reads) - handed
        assert not lacking, f"{held.job.name} {first}-{last} was not handed {lacking} after {self.said}"
        self.checked += 1

    async def age(self) -> None:
        self.days += 15
        await self.plane.set_clock(self.days * DAY)
        await collect(self.plane.database, FolderObjectStore(self.root), POLICY, dry_run=False)

    async def pause(self) -> None:
        await self.plane.pause("main", self.dice.choice(READERS))

    async def resume(self) -> None:
        for name in READERS:
            await self.plane.resume("main", name)

    async def retry(self) -> None:
        rows = await self.plane.sql("select task_id from tasks where state in ('dead', 'canceled')")
        if rows:
            await self.plane.retry(*(row["task_id"] for row in rows))

    async def rebuild(self) -> None:
        self.code += 1
        try:
            await self.plane.deploy(file(self.code))
        except Conflict:  # one is being built
            self.code -= 1
            await self.plane.abort("main")


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        await opened.set_clock(0)
        yield opened


@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(3, 8))]
)
async def test_every_task_gets_all_that_its_input_ever_had(
    plane: ControlPlane, tmp_path: Path, seed: int
) -> None:
    history = History(plane, tmp_path / "objects", seed)
    await history.run()
    assert history.checked
