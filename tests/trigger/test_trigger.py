"""A trigger process on a real client and a real Postgres: signals in, executions out."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from tests.platform import until
from tests.trigger.signals import TOPIC, Pipelines, mock_cluster, signal, trigger_process
from traceplane.postgres.database import Database


async def test_a_signal_launches_the_idle_pipelines_that_watch_it_and_bad_input_blocks_nobody(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    pipelines = await Pipelines.of(database)
    apple = await pipelines.add("AAPL", "TSLA")
    picky = await pipelines.add("AAPL", subscriptions=[{"signal_type": "golden_cross", "min_confidence": 90}])
    await pipelines.add("GOOGL", "AMZN")
    await pipelines.add("AAPL", is_active=False)
    celery = await pipelines.add("MSFT", "NVDA", config={"target": "celery"})
    homeless = await pipelines.add("AAPL", config={"dag": "desk", "job": "nowhere"})
    with mock_cluster() as topic:
        bad = [b"{", b"", b"[]", b'{"signal_id": 1}', b"\xff\xfe", b'"' + b"x" * 300_000 + b'"']
        future = signal("later", "AAPL", timestamp=4e12)
        topic.publish([*bad, future], partition=0)
        topic.publish(
            [signal("one", "AAPL"), signal("two", ("AAPL", "BULLISH", 95)), signal("one", "AAPL")],
            partition=0,
        )
        topic.publish([signal("three", "MSFT", "ZZZZ", extra={"deep": [1]})], partition=3)
        process = trigger_process("trigger", database_url, tmp_path, topic.brokers)
        await process.start()
        try:
            await until(pipelines.launched, what="executions")
            expected = {(apple, "one"), (picky, "two"), (celery, "three")}

            async def all_launched() -> bool:
                return await pipelines.launched() == expected

            await until(all_launched, what="the three executions")
            # A pipeline that changes is heard of at once; one that runs is not launched again.
            await pipelines.sql(
                'update pipelines set config = \'{"dag": "desk", "job": "trade"}\' where pipeline_id = $1',
                homeless,
            )
            new = await pipelines.add("AMD")

            async def cached() -> bool:
                return b"cache_pipelines 6.0" in _metrics(process.environment["TRACEPLANE_TRIGGER_PORT"])

            await until(cached, what="the new pipeline in the cache")
            topic.publish([signal("four", "AMD", "AAPL")], partition=1)
            expected |= {(new, "four"), (homeless, "four")}
            await until(all_launched, what="the two others")
            metrics = _metrics(process.environment["TRACEPLANE_TRIGGER_PORT"]).decode()
            dead = topic.read(f"{TOPIC}.dead-letter")
        finally:
            assert await process.stop() == 0
    assert "signals_consumed_total 5.0" in metrics
    assert "pipelines_enqueued_total 5.0" in metrics
    assert 'signals_refused_total{code="signal.from_the_future"} 1.0' in metrics
    assert len(dead) == 7
    assert {dict(m.headers())["code"] for m in dead} == {
        b"signal.malformed", b"signal.invalid", b"signal.from_the_future",
    }  # fmt: skip
    tasks = await pipelines.sql(
        "select task_id from tasks join executions on execution_id = task_id where state = 'queued'"
    )
    assert len(tasks) == 4
    assert len(await pipelines.sql("select 1 from celery_outbox join executions using (execution_id)")) == 1
    (row,) = await pipelines.sql("select signal from executions where signal_id = 'three'")
    assert row["signal"]["extra"] == {"deep": [1]}
    offsets = await pipelines.sql("select partition, next_offset from trigger_offsets order by 1")
    assert [tuple(r) for r in offsets] == [(0, 10), (1, 1), (2, 0), (3, 1)]


def _metrics(port: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        found: bytes = answer.read()
        return found
