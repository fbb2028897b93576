"""The trigger as its guide describes it: for each signal a scan of all pipelines, then one query for those that run.

`python -m bench.peers.guide_trigger_peer drain --url URL --brokers B --topic T --signals N` reads N signals and
prints how many it processed in a second. It inserts executions where the guide sends Celery tasks, which is faster.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from uuid import uuid4

import asyncpg
from confluent_kafka import Consumer

BATCH_SIZE, BATCH_TIMEOUT = 50, 1.0


async def drain(url: str, brokers: str, topic: str, signals: int) -> dict[str, float]:
    connection = await asyncpg.connect(url, server_settings={"search_path": "traceplane"})
    rows = await connection.fetch(
        "select pipeline_id, scanner_tickers, signal_subscriptions from pipelines"
        " where is_active and trigger_mode = 'signal' and scanner_tickers is not null"
    )
    cache = {
        r["pipeline_id"]: (set(r["scanner_tickers"]), json.loads(r["signal_subscriptions"])) for r in rows
    }
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": str(uuid4()), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    done, started = 0, 0.0
    while done < signals:
        messages = consumer.consume(BATCH_SIZE, BATCH_TIMEOUT)
        started = started or time.perf_counter()
        matches: dict[object, str] = {}
        for message in messages:
            signal = json.loads(message.value() or b"")
            tickers = {word["ticker"]: word for word in signal["tickers"]}
            for pipeline_id, (watched, wanted) in cache.items():
                common = tickers.keys() & watched
                if common and _fits(signal, [tickers[t] for t in common], wanted):
                    matches.setdefault(pipeline_id, signal["signal_id"])
        running = await connection.fetch(
            "select pipeline_id from executions where pipeline_id = any($1) and status in ('PENDING', 'RUNNING')",
            list(matches),
        )
        busy = {r["pipeline_id"] for r in running}
        idle = {k: v for k, v in matches.items() if k not in busy}
        await connection.execute(
            "insert into executions (pipeline_id, target, signal_id, created_at)"
            " select p, 'task', s, now() from unnest($1::uuid[], $2::text[]) as u (p, s)",
            list(idle),
            list(idle.values()),
        )
        done += len(messages)
    seconds = time.perf_counter() - started
    consumer.close()
    await connection.close()
    return {"signals_per_second": done / seconds}


def _fits(signal: dict[str, object], words: list[dict[str, object]], wanted: list[dict[str, object]]) -> bool:
    return not wanted or any(
        s["signal_type"] == signal["signal_type"] and word["confidence"] >= s["min_confidence"]  # type: ignore[operator]
        for s in wanted
        for word in words
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("measurement", choices=["drain"])
    for name in ("url", "brokers", "topic"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--signals", type=int, required=True)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(drain(given.url, given.brokers, given.topic, given.signals))))


if __name__ == "__main__":
    main()
