"""Committed signals reach triggers, whichever store they are in; recomputed history does not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from aiobotocore.session import AioSession
from msgspec.structs import replace

from tests.aws import REGION
from tests.control_plane import ControlPlane, Held, completed
from traceplane.adapters.object_store import ObjectStore
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.adapters.object_store_s3 import S3ObjectStore
from traceplane.adapters.signal_publisher import signal_publisher
from traceplane.adapters.signal_tail import signal_tail
from traceplane.dispatcher.loops import signal_publisher as signal_jobs
from traceplane.dispatcher.loops.signal_publisher import Published, SignalJobs
from traceplane.settings import Settings

DAG = """
version: 1
dag: market
jobs:
- {name: minutes, activation: source, source: {kind: manual}, outputs: [{dataset: minutes}]}
- name: signals
  runtime: python
  operator: python
  inputs: [{from: {dataset: minutes}}]
  outputs: [{dataset: signals}]
  config: {entrypoint: "a:b", version: 1}
- {name: publish, runtime: dispatcher, operator: signal_publish, inputs: [{from: {dataset: signals}}]}
"""


@pytest.fixture(params=["folder", "s3"])
async def place(
    request: pytest.FixtureRequest, aws_endpoint: str, aws_session: AioSession, tmp_path: Path
) -> Callable[[], ObjectStore]:
    """Opens the store, any number of times."""
    if request.param == "folder":
        return lambda: FolderObjectStore(tmp_path / "objects")
    name = f"bucket-{uuid4()}"
    async with aws_session.create_client("s3", region_name=REGION, endpoint_url=aws_endpoint) as client:
        await client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    return lambda: S3ObjectStore(
        name, "some/where", region=REGION, endpoint_url=aws_endpoint, session=aws_session
    )


def signal_row(position: int) -> dict[str, Any]:
    return {
        "position": position,
        "ticker": "AAPL",
        "signal_id": f"test-rsi-AAPL-{position}",
        "signal_type": "rsi",
        "signal": "BULLISH",
        "confidence": 80.0,
        "timestamp": 1000.0 + position,
        "source": "test",
        "metadata": json.dumps({"rsi": 20}),
    }


class Market:
    def __init__(self, plane: ControlPlane, place: Callable[[], ObjectStore], folder: Path) -> None:
        self.plane, self.store, self.folder = plane, place(), folder
        self.settings = Settings(home=folder)
        self.jobs = SignalJobs(plane.database, lambda: signal_publisher(self.settings), place, plane.decoders)

    async def work(self, held: Held, rows: list[dict[str, Any]] | bytes) -> None:
        """Writes a task's output, and reports it."""
        file = self.folder / uuid4().hex
        if isinstance(rows, bytes):
            file.write_bytes(rows)
        else:
            parquet.write_table(pa.Table.from_pylist(rows), file)
        size, (output,) = file.stat().st_size, held.outputs()
        written = replace(output.files[0], rows=len(rows), bytes=size)
        await self.store.put(file, written.path)
        output = replace(output, files=[written], row_count=len(rows), bytes=size)
        assert await self.plane.report((held, completed(held, outputs=[output]))) == ["committed"]

    async def make(self, *positions: int) -> None:
        await self.plane.emit("minutes", positions)
        await self.plane.meter()
        for held in await self.plane.claim(await self.plane.send()):
            assert held.task.scope is not None
            assert held.task.scope.cursor is not None
            await self.work(held, [signal_row(held.task.scope.cursor)])

    def published(self) -> list[Any]:
        return [json.loads(payload) for payload in signal_tail(self.settings, 100).payloads]


@pytest.fixture
async def market(
    database_url: str, place: Callable[[], ObjectStore], tmp_path: Path
) -> AsyncIterator[Market]:
    async with ControlPlane.open(database_url) as plane:
        await plane.deploy(DAG)
        market = Market(plane, place, tmp_path)
        yield market
        await market.store.close()


async def publish_all(market: Market) -> Published:
    """On a busy machine a pass leaves some to the next."""
    done = Published(more=True)
    while done.more:
        one = await market.jobs.run_once()
        done = Published(
            done.tasks + one.tasks,
            done.published + one.published,
            done.suppressed + one.suppressed,
            more=one.more,
        )
    return done


async def test_committed_signals_are_published_from_either_store(market: Market) -> None:
    plane = market.plane
    await market.make(1, 2, 3)
    done = await publish_all(market)
    assert (done.tasks, done.published, done.suppressed) == (3, 3, 0)
    assert await plane.states("publish") == {"completed": 3}
    published = market.published()
    assert [signal["signal_id"] for signal in published] == [f"test-rsi-AAPL-{n}" for n in (1, 2, 3)]
    assert published[0] == {
        "signal_id": "test-rsi-AAPL-1",
        "timestamp": 1001.0,
        "signal_type": "rsi",
        "source": "test",
        "tickers": [{"ticker": "AAPL", "signal": "BULLISH", "confidence": 80.0}],
        "metadata": {"rsi": 20},
    }


async def test_history_that_a_deploy_recomputes_is_not_published(market: Market) -> None:
    plane = market.plane
    await market.make(1, 2)
    await publish_all(market)
    await plane.deploy(DAG.replace("version: 1}", "version: 2}"))
    await plane.builds.run_once()
    await market.make()
    while (done := await market.jobs.run_once()).tasks:
        assert done.published == 0
    assert set(await plane.states("publish")) == {"completed"}
    assert len(market.published()) == 2


@pytest.mark.parametrize(
    "written",
    [
        b"not a Parquet file",
        [{**signal_row(1), "position": "first"}],
        [{**signal_row(1), "signal_id": None}],
        [{**signal_row(1), "ticker": 7}],
        [{**signal_row(1), "metadata": 7}],
        [{**signal_row(1), "confidence": {"in": ["a", "struct"]}}],
    ],
)
async def test_an_invalid_file_fails_only_its_own_tasks(
    market: Market, written: list[dict[str, Any]] | bytes
) -> None:
    plane = market.plane
    await plane.emit("minutes", [1, 2])
    await plane.meter()
    wrong, right = await plane.claim(await plane.send())
    await market.work(wrong, written)
    await market.work(right, [signal_row(2)])
    assert (await publish_all(market)).published == 1
    assert await plane.states("publish") == {"completed": 1, "queued": 1}
    assert [signal["signal_id"] for signal in market.published()] == ["test-rsi-AAPL-2"]


async def test_signals_beyond_one_pass_are_published_by_the_next(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal_jobs, "PASS_BYTES", 1)
    await market.make(1, 2, 3)
    for number in (1, 2, 3):
        done = await market.jobs.run_once()
        assert (done.tasks, done.published, done.more) == (1, 1, number < 3)
    assert await market.plane.states("publish") == {"completed": 3}
    assert [signal["signal_id"] for signal in market.published()] == [f"test-rsi-AAPL-{n}" for n in (1, 2, 3)]


async def test_invalid_signals_fail_only_their_own_tasks(market: Market) -> None:
    plane = market.plane
    await plane.emit("minutes", [1, 2])
    await plane.meter()
    wrong, right = await plane.claim(await plane.send())
    await market.work(wrong, [{"position": 1, "price": 2.0}])
    await market.work(right, [signal_row(2)])
    assert (await publish_all(market)).published == 1
    assert await plane.states("publish") == {"completed": 1, "queued": 1}  # retried later
    for _ in range(4):
        await plane.pass_time(600)
        assert (await publish_all(market)).published == 0
    (task,) = await plane.tasks("publish", "dead")
    error = await plane.value("select error from tasks where task_id = $1", task)
    assert error["code"] == "operator.misconfigured"
    assert "signal_id" in error["message"]
    assert [signal["signal_id"] for signal in market.published()] == ["test-rsi-AAPL-2"]
