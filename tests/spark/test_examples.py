"""What the examples compute on Spark, beside the same in plain Python: windows, a join, hours and days."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from examples.signals import market
from tests.operators.block_times import FORKED, GENESIS, transactions_of
from tests.platform import until
from tests.spark.conftest import SparkPlatform
from traceplane.wire.control import EmitRequest, EmitResponse, ManualEvent
from traceplane.wire.scalars import Scope

EXAMPLES = Path("examples")
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


def only(dag: str, *names: str, also: str = "", renamed: str) -> str:
    """The DAG of an example with these jobs alone, and others in place of what they read."""
    text = (EXAMPLES / dag).read_text()
    own = yaml.safe_load(text)["dag"]
    parsed = yaml.safe_load(text.replace(f"{own}.", f"{renamed}."))
    jobs = [job for job in parsed["jobs"] if job["name"] in names]
    assert len(jobs) == len(names)
    more = yaml.safe_load(also or "{datasets: {}, jobs: []}")
    datasets = parsed["datasets"] | more["datasets"]
    return yaml.safe_dump({**parsed, "dag": renamed, "datasets": datasets, "jobs": jobs + more["jobs"]})


async def scopes(spark: SparkPlatform, dag: str, job: str) -> list[str]:
    """What the tasks of a job computed, in their order."""
    rows = await spark.platform.sql(
        "select t.partition_key as scope from tasks t join jobs j using (job_id) join dags d using (dag_id)"
        " where d.name = $1 and j.name = $2 and t.state = 'completed' order by t.finished_at",
        dag,
        job,
    )
    return [row["scope"] for row in rows]


async def test_bars_are_averaged_joined_and_rolled_up_at_the_close(spark: SparkPlatform) -> None:
    platform, minutes = spark.platform, market.SESSION + 10
    code = {str(path): path.read_text() for path in (EXAMPLES / "signals").glob("[!_]*.py")}
    jobs = ("minutes", "bars", "averages", "listings", "instruments", "valued", "close", "daily")
    await platform.deploy(
        only("signals/dag.yaml", *jobs, renamed="session"),
        code=code | {"examples/__init__.py": "", "examples/signals/__init__.py": ""},
    )
    for event in (
        ManualEvent("session.minutes", Scope(partition_key=f"0-{minutes - 1}", start=0, end=minutes - 1)),
        ManualEvent("session.listings", Scope(cursor=0)),
        ManualEvent("session.closes", partition="2023-11-14"),
    ):
        await platform.api.call("POST", "/api/v1/events", EmitResponse, EmitRequest([event]))
    await platform.settled(seconds=240)
    bars = {ticker: [market.bar(ticker, n) for n in range(minutes)] for ticker in market.TICKERS}
    averages = {(r["ticker"], r["position"]): r["average"] for r in await spark.rows("session.averages")}
    assert averages == pytest.approx(
        {
            (ticker, n): fmean(bar["close"] for bar in found[max(0, n - 19) : n + 1])
            for ticker, found in bars.items()
            for n in range(minutes)
        }
    )
    values = {
        (r["ticker"], r["position"]): (r["name"], r["value"]) for r in await spark.rows("session.valued")
    }
    assert len(values) == minutes * len(market.TICKERS)
    assert values["AMZN", 7] == ("Amzn Inc.", round(bars["AMZN"][7]["close"] * 2_000_000))
    daily = {row["ticker"]: row for row in await spark.rows("session.daily")}
    for ticker, found in bars.items():
        closes = [bar["close"] for bar in found[: market.SESSION]]
        row = daily.pop(ticker)
        assert (row["day"], row["low"], row["high"], row["close"]) == (
            "2023-11-14", min(closes), max(closes), closes[-1],
        )  # fmt: skip
        assert row["volume"] == sum(bar["volume"] for bar in found[: market.SESSION])
    assert daily == {}


BLOCKS = """
datasets:
  times.transactions:
    position: block_number
    columns:
    - {name: block_number, type: bigint}
    - {name: block_timestamp, type: bigint}
    - {name: from_address, type: string}
    - {name: value, type: "decimal(38, 0)"}
jobs:
- {name: head, activation: source, source: {kind: manual}, outputs: [{dataset: times.head}]}
- name: ingest
  runtime: python
  operator: python
  inputs: [{from: {job: head}}]
  outputs: [{name: transactions, dataset: times.transactions}]
  config: {entrypoint: "block_times:transactions"}
"""


async def test_blocks_are_summed_up_by_hour_and_day_and_a_reorg_changes_exactly_its_own(
    spark: SparkPlatform,
) -> None:
    platform, blocks = spark.platform, 13
    await platform.deploy(only("chain/dag.yaml", "hourly", "daily", also=BLOCKS, renamed="times"))
    await platform.emit("times.head", range(blocks))

    async def day_is_there() -> list[dict[str, Any]]:
        await platform.settled(seconds=240)
        return await spark.rows("times.daily")

    expected = hours(blocks)
    (day,) = await until(day_is_there, seconds=240, what="the first day")
    found = {row["hour"]: row for row in await spark.rows("times.hourly")}
    assert {hour: (row["transactions"], int(row["volume"])) for hour, row in found.items()} == expected
    first_day = [counts for hour, counts in expected.items() if hour.startswith("2023-11-14")]
    assert (day["day"], day["transactions"]) == ("2023-11-14", sum(n for n, _ in first_day))
    assert int(day["volume"]) == sum(volume for _, volume in first_day)
    before = await scopes(spark, "times", "hourly")
    days = await scopes(spark, "times", "daily")
    assert set(before) == set(expected)
    assert set(days) == {"2023-11-14"}

    await platform.emit("times.head", [FORKED], kind="invalidation", emission="fork")
    await platform.settled(seconds=240)
    forked = hours(blocks, fork=True)
    found = {row["hour"]: row for row in await spark.rows("times.hourly")}
    assert {hour: int(row["volume"]) for hour, row in found.items()} == {h: v for h, (_, v) in forked.items()}
    (changed,) = [hour for hour in forked if forked[hour] != expected[hour]]
    assert (await scopes(spark, "times", "hourly"))[len(before) :] == [changed]
    assert (await scopes(spark, "times", "daily"))[len(days) :] == ["2023-11-14"]


def hours(blocks: int, *, fork: bool = False) -> dict[str, tuple[int, int]]:
    """Transactions and volume of each hour that is over."""
    rows: dict[str, list[int]] = defaultdict(list)
    for block in range(blocks):
        for row in transactions_of(block, fork=fork):
            at = datetime.fromtimestamp(row["block_timestamp"], UTC)
            rows[f"{at:%Y-%m-%dT%H}"].append(int(row["value"]))
    last = max(rows)
    assert min(rows) == f"{datetime.fromtimestamp(GENESIS, UTC):%Y-%m-%dT%H}"
    return {hour: (len(values), sum(values)) for hour, values in sorted(rows.items()) if hour != last}
