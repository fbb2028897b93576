"""Instances, Postgres and the broker die under load, and partitions move; exactly the signals of the topic launch."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import FAST
from tests.kafka import KafkaBroker, KafkaUnavailable
from tests.platform import Process, until
from tests.trigger.signals import PARTITIONS, TOPIC, Pipelines, Topic, mock_cluster, signal, trigger_process
from traceplane.errors import PlatformError
from traceplane.postgres.database import Database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.postgres.migrate import migrate

HOT = 10
"""Pipelines that many signals launch repeatedly; the others have one signal each."""


class KillableTriggers:
    """Triggers on a topic and a server, all of which may be killed."""

    def __init__(self, server: EmbeddedPostgres, topic: Topic, pipelines: Pipelines, folder: Path) -> None:
        self.server, self.topic, self.pipelines, self.folder = server, topic, pipelines, folder
        self.instances: list[Process] = []
        self.published: list[dict[str, Any]] = []
        self.done: Counter[str] = Counter()

    async def scale(self, count: int) -> None:
        while len(self.instances) > count:
            await self.instances.pop(0).stop()
        while len(self.instances) < count:
            name = f"trigger-{sum(self.done.values())}-{len(self.instances)}"
            process = trigger_process(
                name,
                self.server.state_url,
                self.folder,
                self.topic.brokers,
                TRACEPLANE_KAFKA_SESSION_TIMEOUT_SECONDS="4",  # librdkafka's cluster lets a group wait for three
            )
            await process.start()
            self.instances.append(process)
        self.done[f"scaled to {count}"] += 1

    async def all_have_partitions(self) -> None:
        async def assigned() -> bool:
            return all(b'"kafka_partitions_assigned"' in p.log.read_bytes() for p in self.instances)

        await until(assigned, seconds=120, what="every instance has partitions")

    async def kill_instance(self, draw: random.Random) -> None:
        await draw.choice(self.instances).kill()
        self.done["instance killed"] += 1

    async def kill_postgres(self) -> None:
        await asyncio.to_thread(self.server.kill)
        self.done["postgres killed"] += 1
        await asyncio.to_thread(
            EmbeddedPostgres.ensure, self.server.folder, settings=self.server.settings, die_with_parent=True
        )

    async def publish(self, draw: random.Random, count: int) -> None:
        """Signals, each for its own pipeline and sometimes for the hot ones; a few are sent twice."""
        first = len(self.published)
        fresh = []
        for n in range(first, first + count):
            tickers = [f"own-{n}", "nobody's", *(["HOT"] if n % 5 == 0 else [])]
            fresh.append(signal(f"signal-{n}", *tickers))
            if n % 50 == 0:
                fresh.append(fresh[-1])
        self.published += [s for s in fresh if s not in self.published]
        draw.shuffle(fresh)
        await asyncio.to_thread(self.topic.publish, fresh)

    async def look_after(self, stop: asyncio.Event) -> None:
        """Restarts dead processes, as a supervisor does, and ends executions of the hot pipelines, as a worker does, so
        that they may be launched again."""
        while not stop.is_set():
            for process in self.instances:
                if not process.alive:
                    await process.start()
            try:
                await self.pipelines.sql(
                    "update executions set status = 'COMPLETED', finished_at = now()"
                    " where status = 'PENDING' and pipeline_id in (select pipeline_id from pipelines"
                    " where scanner_tickers = array['HOT'])"
                )
            except PlatformError:
                self.done["waited for postgres"] += 1
            await asyncio.sleep(0.05)

    async def consumed(self, total: Callable[[], int]) -> None:
        async def all_behind() -> bool:
            try:
                rows = await self.pipelines.sql("select sum(next_offset)::bigint as n from trigger_offsets")
            except PlatformError:
                return False
            return bool(rows[0]["n"] == total())

        await until(all_behind, seconds=240, what="all signals are consumed")

    async def account(self) -> None:
        """Every match in the topic was launched once, and nothing else was."""
        messages = await asyncio.to_thread(self.topic.contents)
        hot = {p for p, (tickers, _) in self.pipelines.watched.items() if "HOT" in tickers}
        expected = {
            (pipeline, message["signal_id"])
            for message in messages
            for pipeline in self.pipelines.matching(message)
        }
        rows = await self.pipelines.sql("select pipeline_id, signal_id, status from executions")
        launched = [(r["pipeline_id"], r["signal_id"]) for r in rows]
        assert len(launched) == len(set(launched)), "a signal launched a pipeline twice"
        of_hot = {pair for pair in launched if pair[0] in hot}
        assert set(launched) - of_hot == {pair for pair in expected if pair[0] not in hot}
        assert of_hot <= expected
        assert {pipeline for pipeline, _ in of_hot} == hot
        tasks = await self.pipelines.sql("select task_id from tasks")
        executions = await self.pipelines.sql("select execution_id from executions")
        assert {r["task_id"] for r in tasks} == {r["execution_id"] for r in executions}
        print(f"{len(messages)} signals, {len(launched)} executions, {dict(sorted(self.done.items()))}")


@contextlib.asynccontextmanager
async def looked_after(
    topic: Topic, folder: Path, *, owners: int, settings: dict[str, str] | None = None
) -> AsyncIterator[KillableTriggers]:
    """A separate server with pipelines, this many of which have one signal each, and a supervisor."""
    server = await asyncio.to_thread(
        EmbeddedPostgres.ensure, folder / "postgres", settings=settings, die_with_parent=True
    )
    async with contextlib.AsyncExitStack() as ends:
        ends.push_async_callback(asyncio.to_thread, server.destroy)
        await migrate(server.state_url)
        database = await Database.connect(server.state_url, connections=4)
        ends.push_async_callback(database.close)
        pipelines = await Pipelines.of(database)
        await pipelines.add_many([((f"own-{n}",), ()) for n in range(owners)] + [(("HOT",), ())] * HOT)
        world = KillableTriggers(server, topic, pipelines, folder)
        stop = asyncio.Event()
        keeper = asyncio.create_task(world.look_after(stop))
        try:
            yield world
        finally:
            stop.set()
            await keeper
            await asyncio.gather(*(p.kill() for p in world.instances))


async def test_kills_and_rebalances_launch_exactly_what_the_topic_says(tmp_path: Path) -> None:
    draw = random.Random(5)
    durable = FAST | {"fsync": "on"}
    with mock_cluster() as topic:
        async with looked_after(topic, tmp_path, owners=600, settings=durable) as world:
            await world.scale(1)
            await world.publish(draw, 150)
            await world.all_have_partitions()
            await world.scale(3)
            await world.publish(draw, 150)
            await world.all_have_partitions()
            await world.publish(draw, 150)
            await world.kill_instance(draw)
            await world.kill_postgres()
            await world.publish(draw, 150)
            await world.scale(1)
            await world.consumed(lambda: sum(topic.ends().values()))
            await world.account()


@pytest.mark.chaos
@pytest.mark.timeout(1200)
async def test_minutes_of_kills_of_instances_postgres_and_broker(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"\nseed {seed}")
    draw = random.Random(seed)
    try:
        broker = await asyncio.to_thread(KafkaBroker.in_folder, tmp_path / "kafka")
        await asyncio.to_thread(broker.start)
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    try:
        await asyncio.to_thread(broker.create_topic, TOPIC, PARTITIONS)
        topic = Topic.at(broker.address)
        async with looked_after(topic, tmp_path, owners=20_000) as world:

            async def kill_broker() -> None:
                await asyncio.to_thread(broker.kill)
                world.done["broker killed"] += 1
                await asyncio.to_thread(broker.start)

            await world.scale(1)
            for count in (1, 2, 4, 3, 4, 2, 1):
                await world.scale(count)
                for _ in range(3):
                    await world.publish(draw, 500)
                    await draw.choice([lambda: world.kill_instance(draw), world.kill_postgres, kill_broker])()
            await world.consumed(lambda: sum(topic.ends().values()))
            await world.account()
    finally:
        await asyncio.to_thread(broker.stop)
