"""With `--no-rematerialize` batches come, go and are cut otherwise, and each position stays in the scope that it is in.

Random histories of events, corrections, deploys, rollbacks, deploys that are killed, work that is done, fails or waits,
and time that passes. After each step the tasks that were created are those of a model, which is a few sets here, and
whatever the rule was, each position that arrived is in exactly one scope that was computed or is about to be, or fills.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

import pytest

from tests.control_plane import ControlPlane, failed
from tests.dags import SOURCE, job
from tests.postgres.test_commits import span
from traceplane.model.positions import Range
from traceplane.registry import cutover

HIGHEST = 30
STEPS = 25
RULES = (None, None, "size: 3", "size: 4", "size: 7", "every: 5m", "all: true", "size: 5, max_wait: 10m")


def text(rule: str | None) -> str:
    bulk = () if rule is None else ("execution_strategy: Bulk", f"batch: {{ {rule} }}")
    return SOURCE + job("sum", "in", "out", *bulk, "max_attempts: 1")


def runs(positions: Iterable[int]) -> list[Range]:
    """Positions as ranges without gaps."""
    found: list[Range] = []
    for position in sorted(positions):
        if found and found[-1][1] == position - 1:
            found[-1] = found[-1][0], position
        else:
            found.append((position, position))
    return found


@dataclass
class Model:
    rule: str | None
    told: set[int] = field(default_factory=set)
    """What has arrived while there were batches."""
    closed: list[Range] = field(default_factory=list)
    passed: set[int] = field(default_factory=set)
    """What was computed as it came."""
    due: dict[int, int] = field(default_factory=dict)
    """By slot, when what fills is closed."""

    @property
    def size(self) -> int | None:
        return (
            int(self.rule.split(":")[1].split(",")[0]) if self.rule and self.rule.startswith("size") else None
        )

    @property
    def wait(self) -> int | None:
        if self.rule is None:
            return None
        return 300 if self.rule.startswith("every") else 600 if "max_wait" in self.rule else None

    @property
    def in_batches(self) -> set[int]:
        return {p for first, last in self.closed for p in range(first, last + 1)}

    @property
    def taken(self) -> set[int]:
        return self.in_batches | self.passed

    @property
    def fills(self) -> set[int]:
        return self.told - self.taken

    def arrives(self, first: int, last: int, now: int) -> list[str]:
        """The tasks that an event creates, and the closing of what is full."""
        positions = set(range(first, last + 1))
        tasks = [f"{a}-{b}!" for a, b in self.closed if a <= last and first <= b]
        as_it_came = positions & self.passed if self.rule is not None else positions - self.in_batches
        for a, b in runs(as_it_came):
            whole = (a, b) == (first, last)
            tasks.append(str(a) if whole and a == b else f"{a}-{b}")
        if self.rule is None:
            self.passed |= as_it_came
            return tasks
        self.told |= positions
        return tasks + self.cut(now, {p // self.size * self.size for p in positions} if self.size else {0})

    def cut(self, now: int, slots: set[int]) -> list[str]:
        if self.size is None:
            if self.fills:
                self.due.setdefault(0, now + (self.wait or 0))
            return []
        tasks = []
        for slot in sorted(slots):
            open_ = False
            for piece in runs(set(range(slot, slot + self.size)) - self.taken):
                held = self.fills & set(range(piece[0], piece[1] + 1))
                if len(held) == piece[1] - piece[0] + 1:
                    tasks.append(self.close(piece))
                elif held:
                    open_ = True
            if open_ and self.wait:
                self.due.setdefault(slot, now + self.wait)
            elif not open_:
                self.due.pop(slot, None)
        return tasks

    def close(self, batch: Range) -> str:
        self.closed.append(batch)
        return f"{batch[0]}-{batch[1]}"

    def time_passes(self, now: int, *, idle: bool) -> list[str]:
        """The batches that are closed by their time, or because the job has nothing left to do."""
        slots = [s for s, at in self.due.items() if (idle if self.rule == "all: true" else at <= now)]
        tasks = []
        for slot in sorted(slots):
            del self.due[slot]
            within = range(slot, slot + self.size) if self.size else self.between()
            for first, last in runs(set(within) - self.taken):
                if held := self.fills & set(range(first, last + 1)):
                    tasks.append(self.close((first, max(held) if self.size else last)))
        return tasks

    def between(self) -> range:
        return range(min(self.told, default=0), max(self.told, default=-1) + 1)

    def changes_to(self, rule: str | None, now: int) -> list[str]:
        if rule == self.rule:
            return []
        self.rule, self.due = rule, {}
        if rule is None:
            return [self.close(batch) for batch in runs(self.fills)]
        slots = {p // self.size * self.size for p in self.fills} if self.size else {0}
        return self.cut(now, slots)


class History:
    def __init__(self, plane: ControlPlane, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plane, self.dice, self.monkeypatch = plane, random.Random(seed), monkeypatch
        self.model = Model(self.dice.choice(RULES))
        self.versions: dict[int, str | None] = {}
        self.now, self.emissions, self.known = 0, 0, 0
        self.arrived: set[int] = set()
        self.said: list[str] = []
        self.held: list = []

    async def run(self) -> None:
        await self.plane.set_clock(0)
        await self.deployed(self.model.rule, no_rematerialize=False)
        steps = [self.emit, self.emit, self.emit, self.correct, self.switch, self.switch]
        steps += [self.killed, self.roll_back, self.work, self.work, self.wait]
        for _ in range(STEPS):
            step = self.dice.choice(steps)
            self.said.append(step.__name__)
            await self.check(await step())
        assert await self.plane.value("select count(distinct job_id) from jobs where name = 'sum'") == 1
        assert await self.plane.value("select count(*) from generations join datasets using (dataset_uuid)"
                                      " where dataset_id = 'out'") == 1  # fmt: skip

    async def check(self, expected: list[str]) -> None:
        await self.plane.meter()
        for _ in range(4):
            idle = not await self.plane.value(
                "select count(*) from tasks join jobs using (job_id) where name = 'sum' and stage in (0, 1)"
            )
            await self.plane.batch_closer.run_once()
            await self.plane.meter()
            expected = expected + self.model.time_passes(self.now, idle=idle)
        rows = await self.plane.sql(
            "select coalesce(partition_key, range_start::text) as scope, kind::text from tasks"
            " join jobs using (job_id) where name = 'sum' order by task_id"
        )
        scopes = [row["scope"] + ("!" if row["kind"] == "invalidation" else "") for row in rows]
        fresh, self.known = scopes[self.known :], len(scopes)
        assert sorted(fresh) == sorted(expected), f"{self.model} after {self.said}"
        model = self.model
        assert not model.in_batches & model.passed
        assert len(model.in_batches) == sum(b - a + 1 for a, b in model.closed), "in two batches"
        assert self.arrived <= model.taken | model.fills, f"left out after {self.said}"

    async def emit(self) -> list[str]:
        low = self.dice.randrange(HIGHEST)
        high = min(HIGHEST, low + self.dice.choice([0, 0, 1, 3]))
        return await self._emit(low, high)

    async def correct(self) -> list[str]:
        if not self.arrived:
            return []
        position = self.dice.choice(sorted(self.arrived))
        return await self._emit(position, position)

    async def _emit(self, low: int, high: int) -> list[str]:
        self.emissions += 1
        scope = low if low == high else span(low, high)
        await self.plane.emit("in", [scope], emission=str(self.emissions))
        self.arrived |= set(range(low, high + 1))
        return self.model.arrives(low, high, self.now)

    async def deployed(self, rule: str | None, *, no_rematerialize: bool) -> None:
        answer = await self.plane.deploy(text(rule), no_rematerialize=no_rematerialize)
        assert not answer.building
        self.versions[answer.version] = rule

    async def switch(self) -> list[str]:
        rule = self.dice.choice(RULES)
        await self.deployed(rule, no_rematerialize=True)
        return self.model.changes_to(rule, self.now)

    async def killed(self) -> list[str]:
        class Killed(Exception):
            pass

        def die(name: str) -> None:
            if name == step:
                raise Killed

        step = self.dice.choice(["cutover.after_pointers", "cutover.after_jobs"])
        rule = self.dice.choice([r for r in RULES if r != self.model.rule])
        with self.monkeypatch.context() as patch:
            patch.setattr(cutover, "crash_point", die)
            with pytest.raises(Killed):
                await self.plane.deploy(text(rule), no_rematerialize=True)
        return []

    async def roll_back(self) -> list[str]:
        serving = await self.plane.value("select number from dag_versions where state = 'active'")
        others = [number for number in self.versions if number != serving]
        if not others:
            return []
        number = self.dice.choice(others)
        await self.plane.rollback("main", to=number)
        return self.model.changes_to(self.versions[number], self.now)

    async def work(self) -> list[str]:
        """Some of what waits is done, some dies, and some is left running."""
        self.held += await self.plane.claim(await self.plane.send())
        self.dice.shuffle(self.held)
        done, self.held = self.held[: len(self.held) * 2 // 3 + 1], self.held[len(self.held) * 2 // 3 + 1 :]
        for held in done:
            if self.dice.random() < 0.1:
                await self.plane.report((held, failed(held, retryable=False)))
            else:
                await self.plane.complete(held)
        return []

    async def wait(self) -> list[str]:
        self.now += self.dice.choice([100, 300, 600])
        await self.plane.set_clock(self.now)
        return []


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        yield opened


@pytest.mark.parametrize("seed", range(3))
async def test_each_position_is_computed_in_one_scope_however_batches_change(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    await History(plane, seed, monkeypatch).run()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(1000, 1100))
async def test_a_hundred_histories_of_batches(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    await History(plane, seed, monkeypatch).run()
