"""Files arrive and change while dispatchers, the worker and Postgres are killed: each partition ends with exactly the
rows of its files, and no file is announced twice.

Guarantee 12 of docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiobotocore.session import get_session

from tests.aws import CREDENTIALS, REGION, aws_server
from tests.platform import Platform, until
from tests.process.effects import settle, stored_rows
from traceplane.adapters.watched_files import WatchedFile, WatchedFiles
from traceplane.errors import PlatformError
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.postgres.migrate import migrate
from traceplane.settings import Settings

SETTINGS = {"fsync": "off"}
DAG = """
version: 1
dag: shop
defaults: {{lease: 3s, retry: {{base: 50ms}}}}
datasets:
  shop.orders:
    partitions: {{by: position}}
    columns: [{{name: id, type: bigint, nullable: false}}, {{name: amount, type: "decimal(10, 2)"}}]
jobs:
- name: orders
  activation: source
  source: {{kind: file, path: {path}, pattern: "orders_{{position}}.csv", every: 300ms, settle: {settle}, format: csv}}
  outputs: [{{dataset: shop.orders}}]
"""


def written(folder: Path, position: int, version: int) -> list[tuple[int, str]]:
    """Writes the file of a position, as a careful writer does; its rows."""
    rows = [(position * 1000 + n, f"{version}.{n:02}") for n in range(5)]
    draft = folder / f".{position}"
    draft.write_text("id,amount\n" + "".join(f"{i},{amount}\n" for i, amount in rows))
    draft.rename(folder / f"orders_{position}.csv")
    return rows


async def kill_until(
    done: asyncio.Event, platform: Platform, folder: Path, draw: random.Random, *, at_least: int
) -> dict[str, int]:
    kills = {"dispatcher": 0, "postgres": 0}
    server = EmbeddedPostgres.ensure(folder, settings=SETTINGS, die_with_parent=True)
    while not done.is_set() or sum(kills.values()) < at_least:
        await asyncio.sleep(draw.uniform(0.2, 1.5))
        if draw.random() < 0.3:
            await asyncio.to_thread(server.kill)
            server = await asyncio.to_thread(
                EmbeddedPostgres.ensure, folder, settings=SETTINGS, die_with_parent=True
            )
            kills["postgres"] += 1
        else:
            name = draw.choice(["dispatcher-1", "dispatcher-2"])
            await platform[name].kill()
            await platform[name].start()
            await platform.ready(name)
            kills["dispatcher"] += 1
    return kills


async def announced(platform: Platform) -> list[tuple[int, str]]:
    rows = await platform.sql(
        "select range_start, kind::text as kind from events e join datasets d using (dataset_uuid)"
        " where d.dataset_id = 'shop.orders#files' order by event_id"
    )
    return [(row["range_start"], row["kind"]) for row in rows]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("files", [40, pytest.param(200, marks=pytest.mark.chaos)])
async def test_each_file_is_announced_once_while_dispatchers_and_postgres_are_killed(
    tmp_path: Path, files: int
) -> None:
    draw = random.Random(9)
    incoming, folder = tmp_path / "in", tmp_path / "postgres"
    incoming.mkdir()
    server = EmbeddedPostgres.ensure(folder, settings=SETTINGS, die_with_parent=True)
    try:
        await migrate(server.state_url)
        allowed = {"TRACEPLANE_FILE_SOURCE_ALLOW": str(incoming)}
        async with Platform.start(
            server.state_url, tmp_path / "home", environment=allowed, dispatchers=2
        ) as platform:
            await platform.deploy(DAG.format(path=incoming, settle="200ms"))
            done = asyncio.Event()
            killing = asyncio.create_task(kill_until(done, platform, folder, draw, at_least=3))
            expected: dict[int, list[tuple[int, str]]] = {}
            for position in range(files):
                expected[position] = written(incoming, position, 1)
                await asyncio.sleep(draw.uniform(0, 0.15))
            done.set()
            kills = await killing
            print(f"kills: {kills}")
            # A dispatcher that was killed holds the source for a minute, which nothing is learned from.
            await platform.sql("update file_sources set held_until = tp_now()")

            async def all_announced() -> bool:
                return len(await announced(platform)) >= files

            await until(all_announced, seconds=90)
            assert await settle(platform, seconds=200) == {"completed": files}
            assert sorted(await announced(platform)) == [(n, "data") for n in range(files)]
            expected[7] = written(incoming, 7, 2)
            await until(lambda: _count(platform, files + 1), seconds=60)
            await settle(platform, seconds=60)
            assert (await announced(platform))[-1] == (7, "invalidation")
            for position in (0, 7, files - 1):
                rows = await stored_rows(platform, "shop.orders", position, position)
                found = sorted((row["id"], str(row["amount"])) for row in rows)
                assert found == expected[position]
    finally:
        EmbeddedPostgres.ensure(folder, settings=SETTINGS, die_with_parent=True).destroy()


async def _count(platform: Platform, count: int) -> bool:
    return len(await announced(platform)) == count


@pytest.fixture
async def bucket() -> AsyncIterator[tuple[str, Any]]:
    session = get_session()
    session.set_credentials(CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
    with aws_server() as endpoint:
        async with session.create_client("s3", endpoint_url=endpoint, region_name=REGION) as s3:
            place = {"LocationConstraint": REGION}
            await s3.create_bucket(Bucket="incoming", CreateBucketConfiguration=place)
            yield endpoint, s3


async def test_an_object_that_is_gone_is_a_missing_file_of_the_source(
    tmp_path: Path, bucket: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, _ = bucket
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    allowed = ("s3://incoming/shop",)
    files = WatchedFiles(Settings(aws_region=REGION, s3_endpoint_url=endpoint, file_source_allow=allowed))
    gone = WatchedFile("s3://incoming/shop/orders_1.csv", 5, "etag", datetime.now(UTC))
    try:
        with pytest.raises(PlatformError) as refused:
            await files.get(gone, tmp_path / "copy")
    finally:
        await files.close()
    assert (refused.value.code, refused.value.value) == ("files.missing", gone.path)


@pytest.mark.timeout(300)
async def test_objects_in_s3_become_rows_and_a_changed_one_its_partition_anew(
    database_url: str, tmp_path: Path, bucket: tuple[str, Any]
) -> None:
    endpoint, s3 = bucket
    environment = {
        **CREDENTIALS,
        "TRACEPLANE_AWS_REGION": REGION,
        "TRACEPLANE_S3_ENDPOINT_URL": endpoint,
        "TRACEPLANE_FILE_SOURCE_ALLOW": "s3://incoming/shop",
    }

    async def put(position: int, amount: str) -> None:
        body = f"id,amount\n{position},{amount}\n".encode()
        await s3.put_object(Bucket="incoming", Key=f"shop/orders_{position}.csv", Body=body)

    for position in range(1200):
        if position < 1150:  # more than one page of a listing, most of them of no interest
            await s3.put_object(Bucket="incoming", Key=f"shop/other_{position}", Body=b"")
        else:
            await put(position, "1.00")
    await s3.put_object(Bucket="incoming", Key="elsewhere/orders_1.csv", Body=b"")
    async with Platform.start(database_url, tmp_path / "home", environment=environment) as platform:
        await platform.deploy(DAG.format(path="s3://incoming/shop", settle="0"))
        await until(lambda: _count(platform, 50), seconds=60)
        assert await settle(platform, seconds=120) == {"completed": 50}
        await put(1199, "2.00")
        await until(lambda: _count(platform, 51), seconds=60)
        await settle(platform, seconds=60)
        (row,) = await stored_rows(platform, "shop.orders", 1199, 1199)
        assert (row["id"], str(row["amount"])) == (1199, "2.00")
        assert (await announced(platform))[-1] == (1199, "invalidation")


OWN = """
version: 1
dag: logs
defaults: {{retry: {{base: 50ms}}}}
datasets: {{logs.lines: {{partitions: {{by: day}}}}}}
jobs:
- name: logs
  activation: source
  source: {{kind: file, path: {path}, pattern: "{{YYYY}}/{{MM}}-{{DD}}/*", every: 300ms, settle: 0}}
  runtime: python
  operator: python
  config: {{entrypoint: "watched:lines"}}
  outputs: [{{dataset: logs.lines}}]
"""


@pytest.mark.timeout(200)
async def test_an_operator_of_ones_own_gets_the_files_of_its_partition(
    database_url: str, tmp_path: Path
) -> None:
    incoming = tmp_path / "in"
    (incoming / "2026" / "11-16").mkdir(parents=True)
    for number in range(3):
        (incoming / "2026" / "11-16" / f"{number}.log").write_text("x\n" * number)
    allowed = {"TRACEPLANE_FILE_SOURCE_ALLOW": str(incoming)}
    async with Platform.start(database_url, tmp_path / "home", environment=allowed) as platform:
        await platform.deploy(OWN.format(path=incoming))
        await until(platform.states, seconds=30)
        assert await settle(platform, seconds=60) == {"completed": 1}
        rows = await stored_rows(platform, "logs.lines", 20773, 20773)
        found = [(row["path"], row["lines"]) for row in rows]
        assert sorted(found) == [(f"{incoming}/2026/11-16/{n}.log", n) for n in range(3)]
        copies = list((tmp_path / "home" / "objects").rglob("*.log"))
        assert copies == [], "copies are removed with the attempt"
