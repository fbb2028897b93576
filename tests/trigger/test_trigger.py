"""A trigger process on a real client and a real Postgres: signals in, executions out."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

from tests.conftest import FAST
from tests.platform import Process, until
from tests.trigger.signals import TOPIC, Pipelines, mock_cluster, signal, trigger_process
from traceplane.adapters import signal_source_folder
from traceplane.postgres.database import Database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.postgres.migrate import migrate

MALFORMED = [b"{", b"", b"[]", b'{"signal_id": 1}', b"\xff\xfe", b'"' + b"x" * 300_000 + b'"']


def log_with_the_events_of_the_guide(process: Process) -> list[dict[str, Any]]:
    """The lines of a log, in which each event of the guide has the fields that the guide promises."""
    lines = [json.loads(line) for line in process.log.read_text().splitlines()]
    for event, fields in GUIDE.items():
        of_event = [line for line in lines if line["event"] == event]
        assert of_event, event
        assert fields <= of_event[0].keys(), event
    return lines


async def four_tasks_a_celery_message_and_the_offsets_are_stored(pipelines: Pipelines) -> None:
    tasks = await pipelines.sql(
        "select task_id from tasks join executions on execution_id = task_id where state = 'queued'"
    )
    assert len(tasks) == 4
    assert len(await pipelines.sql("select 1 from celery_outbox join executions using (execution_id)")) == 1
    (row,) = await pipelines.sql("select signal from executions where signal_id = 'three'")
    assert row["signal"]["extra"] == {"deep": [1]}
    offsets = await pipelines.sql("select partition, next_offset from trigger_offsets order by 1")
    assert [tuple(r) for r in offsets] == [(0, 10), (1, 1), (2, 0), (3, 1)]


async def test_a_signal_launches_the_idle_pipelines_that_watch_it_and_invalid_input_blocks_nothing(
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
        topic.publish([*MALFORMED, signal("later", "AAPL", timestamp=4e12)], partition=0)
        topic.publish(
            [signal("one", "AAPL"), signal("two", ("AAPL", "BULLISH", 95)), signal("one", "AAPL")],
            partition=0,
        )
        topic.publish([signal("three", "MSFT", "ZZZZ", extra={"deep": [1]})], partition=3)
        process = trigger_process("trigger", database_url, tmp_path, topic.brokers, LOG_LEVEL="DEBUG")
        await process.start()
        try:
            await until(pipelines.launched, what="executions")
            expected = {(apple, "one"), (picky, "two"), (celery, "three")}

            async def all_launched() -> bool:
                return await pipelines.launched() == expected

            await until(all_launched, what="the three executions")
            # A changed pipeline is noticed immediately; a running one is not launched again.
            await pipelines.sql(
                'update pipelines set config = \'{"dag": "desk", "job": "trade"}\' where pipeline_id = $1',
                homeless,
            )
            new = await pipelines.add("AMD")

            async def cached() -> bool:
                return figure(process, "cache_pipelines") == 6

            await until(cached, what="the new pipeline in the cache")
            topic.publish([signal("four", "AMD", "AAPL")], partition=1)
            expected |= {(new, "four"), (homeless, "four")}
            await until(all_launched, what="the two others")
            metrics = _metrics(process)
            dead = topic.read(f"{TOPIC}.dead-letter")
        finally:
            assert await process.stop() == 0
    assert "signals_consumed_total 5.0" in metrics
    assert "pipelines_enqueued_total 5.0" in metrics
    assert "cache_hit_rate 1.0" in metrics
    assert 'signals_refused_total{code="signal.from_the_future"} 1.0' in metrics
    assert len(dead) == 7
    assert {dict(m.headers())["code"] for m in dead} == {
        b"signal.malformed", b"signal.invalid", b"signal.from_the_future",
    }  # fmt: skip
    await four_tasks_a_celery_message_and_the_offsets_are_stored(pipelines)
    lines = log_with_the_events_of_the_guide(process)
    matched = next(line for line in lines if line.get("pipeline_id") == str(celery))
    assert (matched["signal_id"], matched["matched_tickers"]) == ("three", ["MSFT"])


GUIDE = {
    "trigger_dispatcher_starting": set(),
    "kafka_consumer_initialized": {"topic"},
    "pipeline_cache_refreshed": {"pipelines_count"},
    "signal_received": {"signal_id", "tickers"},
    "processing_signal_batch": {"batch_size"},
    "signal_matched_to_pipeline": {"pipeline_id", "matched_tickers"},
    "pipeline_execution_enqueued": {"pipeline_id"},
    "pipeline_already_running": {"action"},
    "batch_enqueue_completed": {"enqueued", "skipped_running"},
}


async def test_the_hit_rate_shows_batches_matched_with_a_stale_cache(tmp_path: Path) -> None:
    # Durable, or else a batch that was counted could be lost.
    durable = FAST | {"fsync": "on", "synchronous_commit": "on"}
    server = await asyncio.to_thread(
        EmbeddedPostgres.ensure, tmp_path / "postgres", settings=durable, die_with_parent=True
    )
    await migrate(server.state_url)
    published = 0
    process = trigger_process(
        "trigger", server.state_url, tmp_path, None, CACHE_REFRESH_INTERVAL_SECONDS="0.2", BATCH_SIZE="1"
    )

    def publish() -> None:
        nonlocal published
        published += 1
        line = json.dumps(signal(f"signal-{published}", "nobody's")).encode()
        signal_source_folder.publish(tmp_path / "signals", TOPIC, [line])

    def becomes(name: str, condition: Any) -> Any:
        async def holds() -> bool:
            return bool(condition(figure(process, name)))

        return until(holds, what=name)

    try:
        await process.start()
        await until(lambda: _answers(process), what="metrics")
        publish()
        await becomes("signals_consumed_total", lambda n: n == 1)
        assert figure(process, "cache_hit_rate") == 1
        await asyncio.to_thread(server.kill)
        await becomes("cache_refresh_failures_in_a_row", lambda n: n > 0)
        publish()
        await becomes("cache_hit_rate", lambda share: share == 0.5)
        await asyncio.to_thread(
            EmbeddedPostgres.ensure, server.folder, settings=server.settings, die_with_parent=True
        )
        await becomes("cache_refresh_failures_in_a_row", lambda n: n == 0)
        await becomes("signals_consumed_total", lambda n: n == 2)
        publish()
        await becomes("cache_hit_rate", lambda share: share > 0.6)
    finally:
        await process.kill()
        await asyncio.to_thread(server.destroy)


async def _answers(process: Process) -> bool:
    try:
        return bool(_metrics(process))
    except OSError:
        return False


def figure(process: Process, name: str) -> float:
    line = next(line for line in _metrics(process).splitlines() if line.startswith(f"{name} "))
    return float(line.rpartition(" ")[2])


def _metrics(process: Process) -> str:
    port = process.environment["TRACEPLANE_TRIGGER_PORT"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        body: bytes = answer.read()
        return body.decode()
