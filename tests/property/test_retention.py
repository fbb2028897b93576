"""Guarantee 18: whatever retention deletes, deploys, rollbacks and repeated events find what they need.

Two platforms live through the same random history. On one of them all history ends after each step, at once. After
each step both have the same data, answer a repeated event alike, and have done the same work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.control_plane import ControlPlane
from tests.postgres.test_commits import span
from tests.property.test_never_less import HIGHEST, STEPS, History
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.registry.garbage import Policy, collect
from traceplane.wire.scalars import Scope

AT_ONCE = Policy(timedelta(0), timedelta(0), keep_versions=100)


class Life(History):
    def __init__(self, plane: ControlPlane, name: str, seed: int) -> None:
        super().__init__(plane, name, seed)
        self.emissions = 0
        self.last: tuple[list[int | Scope], str] = ([], "")
        self.answers: list[tuple[int, int]] = []

    async def emit(self) -> None:
        """Something new, or the last events again."""
        if not self.last[0] or self.dice.random() < 0.7:
            low = self.dice.randrange(HIGHEST)
            high = min(HIGHEST, low + self.dice.randrange(6))
            self.emissions += 1
            scopes: list[int | Scope] = [span(low, high)]
            if self.dice.random() < 0.7:
                scopes = [*range(low, high + 1)]
            self.last = scopes, f"e{self.emissions}"
        scopes, emission = self.last
        answer = await self.plane.emit(self.world.dataset("in"), scopes, emission=emission)
        self.answers.append((answer.accepted, answer.duplicates))

    async def step(self) -> None:
        step = self.dice.choice(self.steps)
        self.said.append(step.__name__)
        await step()

    async def created(self) -> int:
        """How many tasks have been made for jobs with data of their own."""
        return await self.plane.value("select last_value from dataset_commits_commit_id_seq")


@pytest.fixture
async def planes(
    postgres_server: EmbeddedPostgres, template_database: str
) -> AsyncIterator[tuple[ControlPlane, ControlPlane]]:
    names = ("retention_keeps", "retention_ends")
    urls = [create_database(postgres_server, name, template=template_database) for name in names]
    async with ControlPlane.open(urls[0]) as keeps, ControlPlane.open(urls[1]) as ends:
        yield keeps, ends
    for name in names:
        drop_database(postgres_server, name)


async def lives_alike(planes: tuple[ControlPlane, ControlPlane], store: Path, seed: int) -> int:
    """Returns how many rows ended."""
    keeps, ends = (Life(plane, f"h{seed}", seed) for plane in planes)
    ended = 0
    for life in (keeps, ends):
        await life.plane.deploy(life.world.yaml())
    for number in range(STEPS + 1):
        for life in (keeps, ends):
            await (life.step() if number < STEPS else life.settle())
        gone = await collect(ends.plane.database, FolderObjectStore(store), AT_ONCE)
        ended += gone.tasks + gone.events
        assert ends.said == keeps.said
        assert ends.answers == keeps.answers, keeps.said
        assert await ends.positions() == await keeps.positions(), keeps.said
        assert await ends.created() == await keeps.created(), keeps.said
    return ended


async def test_a_platform_without_history_does_what_one_with_all_of_it_does(
    planes: tuple[ControlPlane, ControlPlane], tmp_path: Path
) -> None:
    assert sum([await lives_alike(planes, tmp_path, seed) for seed in range(2)]) > 50


@pytest.mark.chaos
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("group", range(5))
async def test_a_platform_without_history_does_what_one_with_all_of_it_does_in_200_histories(
    planes: tuple[ControlPlane, ControlPlane], tmp_path: Path, group: int
) -> None:
    seeds = range(group * 40 + 100, group * 40 + 140)
    assert sum([await lives_alike(planes, tmp_path, seed) for seed in seeds]) > 1000
