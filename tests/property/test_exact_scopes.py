"""A change recomputes exactly what reads it, at any depth, through windows, joins, roll-ups and reference tables.

Random graphs, random histories. What a task computes is a hash of everything that it read, so whatever was computed
from something old differs from a build from scratch, which is a few lines of Python here. After each step the tasks
that ran are compared with the scopes whose hash changed: none is missing, and none ran for nothing.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import pytest

from tests.control_plane import ControlPlane, Held, completed
from traceplane.model.edges import Edge, OnChange, Read, WaitFor, What
from traceplane.model.partitions import By, Partitions
from traceplane.wire.scalars import Scope

POSITIONS = Partitions(start=0)
DAYS, WEEKS = Partitions(By.DAY, start=4), Partitions(By.WEEK, start=1)  # day 4 is the Monday of week 1
_LAST = {By.POSITION: 30, By.DAY: 31, By.WEEK: 4}


@dataclass
class Node:
    """A source, or a job that writes a dataset of its own name."""

    name: str
    partitions: Partitions
    inputs: list[tuple[Node, Read]] = field(default_factory=list)
    when: str = "all"

    def yaml(self) -> str:
        if not self.inputs:
            return (
                f"  - {{name: {self.name}, activation: source, source: {{kind: manual}},"
                f" outputs: [{{dataset: d.{self.name}}}]}}\n"
            )
        inputs = "".join(
            f"      - {{name: i{n}, from: {{dataset: d.{node.name}}}, {_read(read)}}}\n"
            for n, (node, read) in enumerate(self.inputs)
        )
        return (
            f"  - name: {self.name}\n    runtime: python\n    operator: python\n    config: {{entrypoint: 'm:f'}}\n"
            f"    inputs:\n{inputs}    outputs: [{{dataset: d.{self.name}}}]\n"
        )

    def edges(self) -> Iterator[tuple[Node, Edge]]:
        for node, read in self.inputs:
            yield node, Edge(read, node.partitions, self.partitions)


def _read(read: Read) -> str:
    if read.what is What.ALL:
        return f"read: all, on_change: {read.on_change}"
    return f"read: {{before: {read.before}, after: {read.after}}}"


def graph(chance: random.Random) -> list[Node]:
    families = [[POSITIONS], [DAYS, WEEKS]]
    family = chance.choice(families)
    nodes = [Node(f"s{n}", chance.choice(family[:1])) for n in range(chance.randint(1, 2))]
    for n in range(chance.randint(2, 5)):
        inputs: list[tuple[Node, Read]] = []
        for node in chance.sample(nodes, min(len(nodes), chance.randint(1, 3))):
            read = Read(before=chance.choice([0, 0, 1, 3]), after=chance.choice([0, 0, 0, 1]))
            if inputs and chance.random() < 0.3:
                read = Read(What.ALL, wait_for=WaitFor.NOTHING, on_change=OnChange.RECOMPUTE)
            inputs.append((node, read))
        nodes.append(Node(f"j{n}", chance.choice(family), inputs))
    return nodes


def file(nodes: list[Node]) -> str:
    datasets = "".join(
        f"  d.{node.name}: {{partitions: {{by: {p.by}, start: {p.name(p.start or 0)!r}}}}}\n"
        for node in nodes
        for p in [node.partitions]
    )
    return f"version: 1\ndag: exact\ndatasets:\n{datasets}jobs:\n" + "".join(node.yaml() for node in nodes)


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


class Model:
    """What a build from scratch has, given how often each position of a source was told."""

    def __init__(self, nodes: list[Node], told: dict[str, dict[int, int]]) -> None:
        self.nodes, self.told = nodes, told
        self.contents = cache(self._contents)

    def _contents(self, name: str) -> dict[int, str]:
        """By position, what the dataset holds."""
        node = next(n for n in self.nodes if n.name == name)
        if not node.inputs:
            return {position: str(times) for position, times in self.told[name].items()}
        contents: dict[int, str] = {}
        for position in range(node.partitions.start or 0, _LAST[node.partitions.by] + 1):
            parts = [self._part(read, edge, position) for read, edge in node.edges()]
            if all(part is not None for part in parts) and self._is_scope(node, position):
                contents[position] = _hash(name, position, parts)
        return contents

    def _is_scope(self, node: Node, position: int) -> bool:
        """Whether some input has told something for the position itself."""
        scoped = [(n, e) for n, e in node.edges() if e.read.what is What.SCOPE]
        if not node.partitions.is_time:
            scoped = scoped[:1]
        return any(
            first <= p <= last
            for n, e in scoped
            for first, last in [e.own((position, position))]
            for p in self.contents(n.name)
        )

    def _part(self, node: Node, edge: Edge, position: int) -> list[tuple[int, str]] | None:
        """What a task reads of an input; None if it waits for more."""
        held = self.contents(node.name)
        first, last = edge.reads((position, position))
        if edge.read.what is What.SCOPE:
            needed = range(max(first, edge.input.start or 0), last + 1)
            if any(p not in held for p in needed):
                return None
        return sorted((p, content) for p, content in held.items() if first <= p <= last)


class World:
    """The platform, and what its files hold."""

    def __init__(self, plane: ControlPlane, nodes: list[Node]) -> None:
        self.plane, self.nodes = plane, nodes
        self.told: dict[str, dict[int, int]] = {n.name: {} for n in nodes if not n.inputs}
        self.files: dict[str, tuple[int, str]] = {}
        """By path, the position and the content of a file."""
        self.ran: list[tuple[str, int]] = []

    def model(self) -> Model:
        return Model(self.nodes, {name: dict(told) for name, told in self.told.items()})

    async def emit(self, source: str, positions: list[int], kind: str = "data") -> None:
        partitions = next(n.partitions for n in self.nodes if n.name == source)
        for position in positions:
            times = self.told[source].get(position, 0) + 1
            self.told[source][position] = times
            scope = Scope(cursor=position)
            if partitions.is_named:
                scope = Scope(partition_key=partitions.name(position), start=position, end=position)
            emission = "" if times == 1 else str(times)
            await self.plane.emit(
                f"d.{source}", [scope], kind=kind if times > 1 else "data", emission=emission
            )

    def read(self, held: Held) -> str:
        """Computes a task, by what it was handed."""
        node = next(n for n in self.nodes if n.name == held.job.name)
        position = held.scope.first
        parts = []
        for number, (source, edge) in enumerate(node.edges()):
            first, last = edge.reads((position, position))
            if source.inputs:
                handed = held.task.input_files[number]
                part = [self.files[f.path] for f in handed]
            else:
                part = [(p, str(times)) for p, times in self.told[source.name].items()]
            parts.append(sorted((p, content) for p, content in part if first <= p <= last))
            assert len(part) == len(parts[-1]) or not source.inputs, "more was handed over than is read"
        return _hash(node.name, position, parts)

    async def claim(self) -> list[tuple[Held, str]]:
        await self.plane.meter()
        return [(held, self.read(held)) for held in await self.plane.claim(await self.plane.send())]

    async def complete(self, held: Held, content: str) -> None:
        (path,) = [f.path for output in held.outputs() for f in output.files]
        outcome = await self.plane.report((held, completed(held)))
        assert outcome == ["committed"], outcome
        self.files[path] = (held.scope.first, content)
        self.ran.append((held.job.name, held.scope.first))

    async def rest(self) -> None:
        while claimed := await self.claim():
            for held, content in claimed:
                await self.complete(held, content)

    async def contents(self, name: str) -> dict[int, str]:
        """What readers of the dataset see."""
        rows = await self.plane.sql(
            "select c.range_start, c.files->0->>'path' as path from dataset_commits c"
            " join datasets d on d.current_generation_id = c.generation_id"
            " where d.dataset_id = $1 and c.superseded_by is null",
            f"d.{name}",
        )
        return {row["range_start"]: self.files[row["path"]][1] for row in rows}

    async def check(self) -> None:
        model = self.model()
        for node in self.nodes:
            if node.inputs:
                assert await self.contents(node.name) == model.contents(node.name), node.name


async def step(world: World, chance: random.Random) -> None:
    source = chance.choice(sorted(world.told))
    partitions = next(n.partitions for n in world.nodes if n.name == source)
    start, last = partitions.start or 0, _LAST[partitions.by]
    told = sorted(world.told[source])
    if told and chance.random() < 0.4:  # a correction, or a reorg
        positions = chance.sample(told, min(len(told), chance.randint(1, 3)))
        await world.emit(source, positions, chance.choice(["data", "invalidation"]))
    else:
        new = [p for p in range(start, last + 1) if p not in world.told[source]]
        count = min(len(new), chance.randint(1, 12))
        await world.emit(source, new[:count] if chance.random() < 0.7 else chance.sample(new, count))


async def exact_history(url: str, seed: int, steps: int = 12) -> int:
    chance = random.Random(seed)
    nodes = graph(chance)
    async with ControlPlane.open(url) as plane:
        world = World(plane, nodes)
        assert (await plane.deploy(file(nodes))).changed, file(nodes)
        for _ in range(steps):
            before, world.ran = world.model(), []
            await step(world, chance)
            await world.rest()
            await world.check()
            after = world.model()
            changed = {
                (node.name, position)
                for node in nodes
                if node.inputs
                for position, content in after.contents(node.name).items()
                if before.contents(node.name).get(position) != content
            }
            assert set(world.ran) == changed, (seed, file(nodes))
        return len(world.ran)


async def interleaved_history(url: str, seed: int, steps: int = 40) -> None:
    """Events come while tasks run, which end in any order."""
    chance = random.Random(seed)
    nodes = graph(chance)
    async with ControlPlane.open(url) as plane:
        world = World(plane, nodes)
        await plane.deploy(file(nodes))
        running: list[tuple[Held, str]] = []
        for _ in range(steps):
            match chance.randrange(4):
                case 0:
                    await step(world, chance)
                case 1:
                    running += await world.claim()
                case _ if running:
                    await world.complete(*running.pop(chance.randrange(len(running))))
        for held, content in running:
            await world.complete(held, content)
        await world.rest()
        await world.check()


@pytest.mark.parametrize("seed", range(6))
async def test_a_change_recomputes_exactly_what_reads_it(database_url: str, seed: int) -> None:
    await exact_history(database_url, seed)


@pytest.mark.parametrize("seed", range(100, 104))
async def test_whatever_the_order_the_end_is_that_of_a_build_from_scratch(
    database_url: str, seed: int
) -> None:
    await interleaved_history(database_url, seed)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(1000, 1200))
async def test_two_hundred_graphs_recompute_exactly_what_reads_a_change(database_url: str, seed: int) -> None:
    await exact_history(database_url, seed, steps=20)
    print(f"seed {seed}: exact")
