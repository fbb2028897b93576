"""Guarantees 5 and 6: whoever reads while versions come and go, by deploys and rollbacks through a dispatcher that is
killed at every step of it, sees one version of all datasets, complete, and never an error."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from pathlib import Path

import pytest

from tests.platform import Platform, until
from traceplane.client import Client
from traceplane.errors import UserError
from traceplane.wire.deploys import MovedResponse, RollbackRequest

ROWS = 12
BOUNDARIES = (
    None,
    "cutover.before_commit",
    "cutover.after_pointers",
    "cutover.after_jobs",
    "cutover.after_commit",
    "replay.before_commit",
    "replay.after_commit",
)
LOOK = """
select (select count(*) from many.b) as b, (select count(*) from many.c) as c, (select count(*) from many.d) as d,
       (select count(distinct version) from (select version from many.b union all select version from many.c
          union all select version from many.d)) as versions,
       (select max(version) from many.b) as version
"""


def dag(version: int) -> str:
    jobs = "".join(
        f"""
- name: {name}
  runtime: python
  operator: python
  inputs: [{{from: {{dataset: many.{reads}}}}}]
  outputs: [{{dataset: many.{name}}}]
  config: {{entrypoint: "basic:carried"}}"""
        for name, reads in (("c", "b"), ("d", "c"))
    )
    return f"""
version: 1
dag: many
defaults: {{lease: 2s, retry: {{base: 50ms}}}}
jobs:
- {{name: in, activation: source, source: {{kind: manual}}, outputs: [{{dataset: many.in}}]}}
- name: b
  runtime: python
  operator: python
  inputs: [{{from: {{dataset: many.in}}}}]
  outputs: [{{dataset: many.b}}]
  config: {{entrypoint: "basic:stamped", version: {version}}}{jobs}
"""


class Reader:
    """Reads all datasets in one query, as fast as it can."""

    def __init__(self, client: Client) -> None:
        self.client, self.stop = client, asyncio.Event()
        self.seen: list[dict] = []

    async def run(self) -> None:
        while not self.stop.is_set():
            table = await asyncio.to_thread(self.client.query, LOOK)
            self.seen += table.to_pylist()


async def moves(platform: Platform, count: int) -> None:
    draw = random.Random(11)
    boundaries = itertools.cycle(BOUNDARIES)
    dispatcher, newest = platform["dispatcher-1"], 1
    serves = "select v.number from dags d join dag_versions v on v.dag_version_id = d.active_version_id"
    for move in range(count):
        await dispatcher.kill()
        await dispatcher.start(crash_at=next(boundaries))
        if move % 3 == 2:
            with_earlier = RollbackRequest("many", draw.choice([None, max(1, newest - 1)]), drop_missing=True)
            try:
                await platform.api.call("POST", "/api/v1/rollback", MovedResponse, with_earlier)
            except UserError as error:
                assert error.code == "version.active", error  # noqa: PT017
        else:
            newest = (await platform.deploy(dag(1000 + move))).version

            async def served(wanted: int = newest) -> bool:
                if not dispatcher.alive:
                    await dispatcher.start()
                return await platform.value(serves) == wanted

            await until(served, seconds=120, what=f"version {newest} serves")
    if not dispatcher.alive:
        await dispatcher.start()


async def read_through(url: str, folder: Path, count: int) -> list[dict]:
    async with Platform.start(url, folder) as platform:
        await platform.deploy(dag(1))
        await platform.emit("many.in", range(ROWS))
        await platform.settled()
        readers = [Reader(Client(platform.gateway_url, platform.user_token)) for _ in range(2)]
        running = [asyncio.create_task(reader.run()) for reader in readers]
        try:
            await moves(platform, count)
        finally:
            for reader in readers:
                reader.stop.set()
            await asyncio.gather(*running)
        return [row for reader in readers for row in reader.seen]


def assert_all_whole(seen: list[dict]) -> None:
    assert seen
    wrong = [r for r in seen if (r["b"], r["c"], r["d"], r["versions"]) != (ROWS, ROWS, ROWS, 1)]
    assert wrong == []


@pytest.mark.timeout(900)
async def test_a_reader_sees_one_version_of_everything(database_url: str, tmp_path: Path) -> None:
    seen = await read_through(database_url, tmp_path, 5)
    assert_all_whole(seen)
    assert len({row["version"] for row in seen}) > 1


@pytest.mark.chaos
async def test_a_hundred_deploys_and_rollbacks_under_readers(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = int(os.environ.get("DEPLOYS", "100"))
    seen = await read_through(database_url, tmp_path, count)
    assert_all_whole(seen)
    with capsys.disabled():
        print(
            f"\n{len(seen)} reads of three datasets during {count} moves: none mixed, none incomplete, no error"
        )
