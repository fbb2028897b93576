"""What one version of an alert leaves to the next one: nothing is lost, and nothing is sent twice."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.control_plane import Held, failed
from tests.postgres.test_alerts import DAG, Chain, chain, found
from tests.postgres.test_scopes import day
from traceplane.model.partitions import By, Partitions

__all__ = ["chain"]


def lower(least: int) -> str:
    return DAG.replace("1000", str(least))


async def only_the_second_version_finds_it(chain: Chain) -> None:
    """Block 2 has a row that the version found while it was built. It serves now, and has yet to route it."""
    await chain.again(1, "a", (1, "a"))
    await chain.send()
    await chain.plane.deploy(lower(500))
    await chain.load(2)
    await chain.build()
    for held in await chain.worker.take("large"):
        is_new, position = "500" in held.job.config["query"], held.scope.cursor
        rows = [(1, "a")] if position == 1 else [(2, "low")] if is_new else []
        await chain.worker.store(held, found(*rows))
    await chain.plane.sink()
    await chain.plane.meter()
    assert await chain.suppressed() == [None, "building"]
    await chain.plane.builds.run_once()
    assert (await chain.plane.versions("chain"))[0].state == "active"


async def fails_for_now(chain: Chain) -> None:
    """What the version that serves is to route is retried later."""
    await chain.plane.sql(
        "update tasks set ready_at = tp_now() + interval '1 hour'"
        " where stage = 0 and job_id in (select job_id from jobs where name = 'large__route' and not building)"
    )


@pytest.mark.parametrize("finds", [True, False])
async def test_what_a_cutover_released_is_sent_once_by_the_version_that_takes_over_before_it_was(
    chain: Chain, finds: bool
) -> None:
    await only_the_second_version_finds_it(chain)
    await fails_for_now(chain)
    await chain.plane.deploy(lower(400))
    await chain.build()
    await chain.evaluate(b1=found((1, "a")), b2=found(*([(2, "low")] if finds else [])))
    assert await chain.suppressed() == [None, "building"]
    for _ in range(3):
        await chain.build()
    assert [version.state for version in await chain.plane.versions("chain")][:2] == ["active", "retired"]
    titles = [title for _, _, title in await chain.queued()]
    assert titles == ["a moved 5000"] + ["low moved 5000"] * finds
    assert [event["retracted_at"] is None for event in await chain.events()] == [True, finds]
    assert await chain.plane.sql("select 1 from alert_handovers") == []


async def test_what_a_cutover_released_and_a_rollback_stopped_is_not_sent_later(chain: Chain) -> None:
    await only_the_second_version_finds_it(chain)
    await chain.plane.rollback("chain")
    await chain.build()
    await chain.evaluate()
    await chain.build()
    assert len(await chain.queued()) == 1
    await chain.plane.deploy(lower(400))
    await chain.build()
    await chain.evaluate(b1=found((1, "a")), b2=found((2, "low")))
    await chain.build()
    assert (await chain.plane.versions("chain"))[0].state == "active"
    assert len(await chain.queued()) == 1
    assert await chain.suppressed() == [None, "backfill"]


async def test_what_a_cutover_released_and_the_version_before_finds_too_is_sent_once(chain: Chain) -> None:
    await chain.again(1, "a", (1, "a"))
    await chain.send()
    await chain.plane.deploy(lower(500))
    await chain.load(2)
    await chain.build()
    waiting = []
    for held in await chain.worker.take("large"):
        if "500" in held.job.config["query"]:
            await chain.worker.store(held, found((held.scope.cursor, "a")))  # type: ignore[arg-type]
        else:
            waiting.append(held)
    await chain.plane.sink()
    await chain.plane.meter()
    await chain.plane.builds.run_once()
    assert (await chain.plane.versions("chain"))[0].state == "active"
    for held in waiting:
        await chain.plane.report((held, failed(held)))
    await chain.plane.rollback("chain", drop_missing=True)
    for _ in range(2):
        await chain.build()
        await chain.evaluate(b2=found((2, "a")))
    await chain.build()
    assert await chain.suppressed() == [None, None]
    assert len(await chain.queued()) == 2


async def test_what_a_version_found_that_serves_is_not_history_for_one_that_is_built_meanwhile(
    chain: Chain,
) -> None:
    """It is sent when the routing that failed is retried, and only then."""
    await only_the_second_version_finds_it(chain)
    await fails_for_now(chain)
    await chain.plane.deploy(lower(400), manual_cutover=True)
    await chain.build()
    await chain.evaluate(b1=found((1, "a")), b2=found((2, "low")))
    await chain.evaluate()
    await chain.plane.sql("update tasks set ready_at = tp_now() where stage = 0")
    await chain.plane.meter()
    assert [title for _, _, title in await chain.queued()] == ["a moved 5000", "low moved 5000"]
    await chain.plane.cutover("chain")
    await chain.build()
    assert len(await chain.queued()) == 2


async def test_what_was_released_and_is_gone_for_the_version_being_built_is_still_sent(chain: Chain) -> None:
    await only_the_second_version_finds_it(chain)
    await fails_for_now(chain)
    await chain.plane.deploy(lower(400), manual_cutover=True)
    await chain.build()
    await chain.evaluate(b1=found((1, "a")), b2=found((2, "low")))
    await chain.plane.backfill("chain.large#alerts", 2, 2, only="all")
    for held in await chain.worker.take("large"):
        is_new = "400" in held.job.config["query"]
        await chain.worker.store(held, found() if is_new else found((2, "low")))
    await chain.plane.sink()
    await chain.plane.sql("update tasks set ready_at = tp_now() where stage = 0")
    await chain.plane.meter()
    assert [title for _, _, title in await chain.queued()] == ["a moved 5000", "low moved 5000"]


# Dead evaluations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("acknowledged", [False, True])
async def test_what_died_in_a_version_is_evaluated_by_the_one_that_replaces_it(
    chain: Chain, acknowledged: bool
) -> None:
    await chain.again(1, "a", (1, "a"))
    await chain.send()
    await chain.load(2)
    [held] = await chain.worker.take("large")
    assert await chain.plane.fail(held, retryable=False) == ["dead"]
    if acknowledged:  # somebody has dealt with it
        await chain.plane.sql("update tasks set acknowledged_at = tp_now() where task_id = $1", held.task_id)
    await chain.plane.deploy(lower(500))
    await chain.build()
    await chain.evaluate(b1=found((1, "a"), (1, "old")), b2=found((2, "late")))
    await chain.build()
    assert (await chain.plane.versions("chain"))[0].state == "active"
    assert await chain.suppressed() == [None, "backfill", "backfill" if acknowledged else None]
    titles = [title for _, _, title in await chain.queued()]
    assert titles == ["a moved 5000"] + ["late moved 5000"] * (not acknowledged)
    assert await chain.plane.sql("select 1 from alert_handovers") == []


async def test_what_was_done_after_it_had_died_is_history_for_the_next_version(chain: Chain) -> None:
    await chain.load(2)
    [held] = await chain.worker.take("large")
    assert await chain.plane.fail(held, retryable=False) == ["dead"]
    await chain.again(2, "b", (2, "b"))
    await chain.plane.deploy(lower(500))
    await chain.build()
    await chain.evaluate(b2=found((2, "b"), (2, "old")))
    await chain.build()
    assert (await chain.plane.versions("chain"))[0].state == "active"
    assert await chain.suppressed() == [None, "backfill"]


# Other periods --------------------------------------------------------------------------------------

DAILY = """
version: 1
dag: daily
datasets:
  days.in: {partitions: {by: day}}
  moved: {partitions: {by: PERIOD}, columns: [{name: tx, type: string}, {name: value, type: bigint}]}
jobs:
- {name: days, activation: source, source: {kind: manual}, outputs: [{dataset: days.in}]}
- name: sum
  runtime: python
  operator: python
  inputs: [{from: {dataset: days.in}, wait_for: any}]
  outputs: [{dataset: moved}]
  config: {entrypoint: "a:b"}
alerts:
- name: big
  dataset: moved
  when: value > LEAST
  subject: [tx]
  columns: [value]
  title: "{tx}"
  channels: [ops]
"""
DAY, MONTH = Partitions(By.DAY), Partitions(By.MONTH)
FIRST, SECOND = DAY.position("2026-02-01"), DAY.position("2026-02-02")


class Days:
    """Two days of one month: `b` moves on the first, and `a` on the second."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.rows = chain, {FIRST: {"b"}, SECOND: set[str]()}

    async def deploy(self, period: str, least: int = 1000) -> None:
        text = DAILY.replace("PERIOD", period).replace("LEAST", str(least))
        await self.chain.plane.deploy(text)
        await self.chain.build()

    async def emit(self, name: str, emission: str = "") -> None:
        await self.chain.plane.emit("days.in", [day(name)], emission=emission)

    async def load(self) -> None:
        for held in await self.chain.worker.take("sum"):
            assert await self.chain.plane.report((held, self.chain.worker.done(held))) == ["committed"]

    async def work(self) -> None:
        for _ in range(3):
            await self.load()
            for held in await self.chain.worker.take("big"):
                assert await self.chain.worker.store(held, self.found(held)) == "buffered"
            await self.chain.plane.sink()
            await self.chain.build()

    def found(self, held: Held) -> pa.Table:
        assert held.scope.start is not None
        first, name = held.scope.start, held.scope.partition_key
        period = DAY if name == DAY.name(first) else MONTH
        days = [n for n in self.rows if n == first or MONTH.of_date(DAY.first_date(n)) == first]
        assert period.position(str(name)) == first
        return found(*((first, tx) for tx in sorted(set().union(*(self.rows[n] for n in days)))))

    async def told(self) -> list[tuple[str, str, str]]:
        rows = await self.chain.plane.sql("select message from alert_deliveries order by number")
        return [(r["message"]["kind"], r["message"]["title"], r["message"]["position"]) for r in rows]


PERIODS = [("day", "month"), ("month", "day")]


@pytest.mark.parametrize(("before", "after"), PERIODS)
async def test_what_was_not_evaluated_is_sent_once_by_a_version_with_other_periods_and_the_rest_retracted(
    chain: Chain, before: str, after: str
) -> None:
    days = Days(chain)
    names = {"day": ("2026-02-01", "2026-02-02"), "month": ("2026-02", "2026-02")}
    await days.deploy(before)
    await days.emit("2026-02-01")
    await days.work()
    told = [("alert", "b", names[before][0])]
    assert await days.told() == told
    await days.chain.send()
    days.rows[SECOND] = {"a"}
    await days.emit("2026-02-02")
    await days.load()
    waiting = await chain.worker.take("big")
    assert len(waiting) == 1
    await days.deploy(after)
    await days.work()
    assert (await chain.plane.versions("daily"))[0].state == "active"
    for held in waiting:
        await chain.plane.report((held, failed(held)))
    await days.work()
    told.append(("alert", "a", names[after][1]))
    assert await days.told() == told
    assert await chain.plane.sql("select 1 from alert_handovers") == []
    await days.chain.send()
    await days.emit("2026-02-02", "again")  # it has the same rows
    await days.work()
    assert await days.told() == told
    days.rows[FIRST] = set()
    await days.emit("2026-02-01", "again")
    await days.work()
    told.append(("retraction", "b", names[before][0]))
    assert await days.told() == told


async def test_what_is_on_its_way_by_day_is_no_history_of_its_month(chain: Chain) -> None:
    """A backfill of the month overtakes the event of the day."""
    days = Days(chain)
    await days.deploy("month")
    await days.emit("2026-02-01")
    await days.work()
    days.rows[SECOND] = {"a"}
    await days.emit("2026-02-02")
    await chain.plane.meter()
    [load] = await chain.worker.take("sum")
    await chain.plane.backfill("daily.big#alerts", "2026-02", "2026-02", only="all")
    for held in await chain.worker.take("big"):  # it reads what the event has brought
        await chain.worker.store(held, days.found(held))
    await chain.plane.sink()
    await chain.plane.meter()
    assert [title for _, title, _ in await days.told()] == ["b", "a"]
    await chain.plane.report((load, chain.worker.done(load)))
    await days.work()
    assert [title for _, title, _ in await days.told()] == ["b", "a"]
