"""Whatever happens, what receivers believe in the end is what the model says, and nobody is told of history.

Random histories of blocks, reorganizations, corrections, backfills, deploys with another condition, cutovers, rollbacks
and aborts, while evaluations, sinks, route passes and deliveries proceed one step at a time, in any order, and some
fail, die, are put off or are left unrecorded. The model knows nothing of versions: a row that every version finds is
open from the event that brought it until the event that removed it, whichever version happened to serve.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.control_plane import ControlPlane, Held, failed
from tests.hot_worker import HotWorker
from tests.postgres.test_alerts import DAG, SCHEMA
from traceplane.errors import UserError
from traceplane.postgres import deliveries
from traceplane.postgres.deliveries import Recorded

STEPS = 60
LOW, HIGH = 500, 1000
"""The two conditions that versions have."""
VALUES = {"a": 2000, "b": 2000, "c": 2000, "sometimes": 700, "never": 100}
"""Of transactions: both conditions meet them, one, or none."""
REASONS = {"building", "backfill"}

Key = tuple[int, str, str | None]
"""Position, transaction and, if the alert has one, the emission."""
Expected = Literal["open", "closed", "silent", "any"]
BELIEFS: dict[Expected, list[tuple[str | None, list[str]]]] = {
    "open": [("sent", ["alert"])],
    "closed": [("retracted", ["retraction"]), ("retracted", []), (None, [])],
    "silent": [("backfill", [])],
}
"""What an alert may be, and what its receivers may have heard last, by what the model expects."""


@dataclass
class Block:
    fork: int
    rows: set[str]


@dataclass
class Model:
    """What receivers should believe of the rows that every version finds."""

    by_emission: bool
    blocks: dict[int, Block] = field(default_factory=dict)
    expected: dict[Key, Expected] = field(default_factory=dict)
    repeated: set[Key] = field(default_factory=set)
    """Taken back by a correction of history, so nobody was told; it may be sent again."""

    def keys(self, position: int) -> set[Key]:
        block = self.blocks.get(position)
        if block is None:
            return set()
        emission = str(block.fork) if self.by_emission else None
        return {(position, tx, emission) for tx in block.rows if VALUES[tx] > HIGH}

    def happens(self, position: int, block: Block, *, settled: bool) -> None:
        """A new event. `settled`: everything before it at this position has been routed."""
        before = self.keys(position)
        self.blocks[position] = block
        now = self.keys(position)
        for key in before - now:
            self.expected[key] = "closed" if self.expected[key] != "any" else "any"
        for key in now - before:
            self.expected[key] = "open"
        for key in now & before:
            if self.expected[key] == "silent" and not settled:
                self.expected[key] = "any"

    def is_rewritten(self, position: int, rows: set[str]) -> None:
        """Other rows that no event tells of, only a backfill."""
        before = self.keys(position)
        self.blocks[position] = Block(self.blocks[position].fork, rows)
        now = self.keys(position)
        for key in before - now:
            self.expected[key] = "any" if self.expected[key] == "open" else self.expected[key]
            self.repeated.add(key)
        for key in now - before:
            self.expected[key] = "any" if self.expected.get(key, "silent") != "silent" else "silent"


class History:
    def __init__(self, plane: ControlPlane, other: ControlPlane, folder: Path, seed: int) -> None:
        self.plane, self.other = plane, other
        self.worker = HotWorker(plane, folder / "objects")
        self.dice = random.Random(seed)
        self.model = Model(by_emission=self.dice.random() < 0.5)
        self.loaded: dict[int, Block] = {}
        self.forks = 0
        self.said: list[str] = []

    # What happens ------------------------------------------------------------------------------------

    async def run(self) -> None:
        await self.deploy()
        steps = [
            self.block,
            self.block,
            self.block,
            self.reorganize,
            self.reorganize,
            self.correct,
            self.rewrite,
        ]
        steps += [self.backfill, self.deploy, self.roll_back, self.abort, self.build]
        steps += [self.load, self.load, self.evaluate, self.evaluate, self.evaluate, self.sink, self.sink]
        steps += [self.route, self.route, self.route_twice, self.put_off, self.send, self.send, self.send]
        for _ in range(STEPS):
            step = self.dice.choice(steps)
            self.said.append(step.__name__)
            await step()
        await self.rest()
        assert not await self._dead()
        await self.check()
        await self.check_that_history_is_silent()
        await self.check()

    async def block(self) -> None:
        await self._happens(len(self.model.blocks) + 1)

    async def reorganize(self) -> None:
        """The last blocks are there once more, with other rows."""
        height = len(self.model.blocks)
        for position in range(max(1, height - self.dice.choice([0, 1, 3])), height + 1):
            await self._happens(position)

    async def correct(self) -> None:
        if self.model.blocks:
            await self._happens(self.dice.choice(sorted(self.model.blocks)))

    async def _happens(self, position: int) -> None:
        self.forks += 1
        settled = not await self._unsettled(position)
        self.model.happens(position, Block(self.forks, self._rows()), settled=settled)
        await self.plane.emit("blocks", [position], emission=str(self.forks))

    def _rows(self) -> set[str]:
        return {tx for tx in VALUES if self.dice.random() < 0.6}

    async def _unsettled(self, position: int | None) -> int:
        """How much is on its way, at a position or at all."""
        count: int = await self.plane.value(
            "with coming as (select range_start, range_end from tasks where stage < 2"
            " union all select range_start, range_end from dead_tasks where standing = 'open'"
            " union all select range_start, range_end from alert_handovers)"
            " select (select count(*) from coming where $1::bigint is null or $1 between range_start and range_end)"
            " + (select count(*) from replays)",
            position,
        )
        return count

    async def rewrite(self) -> None:
        """Rows of the past are other ones, and somebody backfills them."""
        if not self.model.blocks:
            return
        position = self.dice.choice(sorted(self.model.blocks))
        if not await self._unsettled(position):
            self.model.is_rewritten(position, self._rows())
            await self.plane.backfill("transfers", position, position, only="all")

    async def backfill(self) -> None:
        if self.model.blocks:
            first, last = sorted(self.dice.choices(sorted(self.model.blocks), k=2))
            dataset = self.dice.choice(["transfers", "chain.large#alerts"])
            if await self._dead(first, last):  # computed by hand, it would be history
                return
            await self._attempt(self.plane.backfill(dataset, first, last, only="all"))

    async def deploy(self) -> None:
        text = DAG.replace("value > 1000", f"value > {self.dice.choice([LOW, HIGH])}")
        text = text.replace("channels: [ops]", "channels: [ops, pager]")
        text = text.replace("datasets:", "defaults: {max_attempts: 1000}\ndatasets:", 1)
        if self.model.by_emission:
            text = text.replace("type: bigint}]", "type: bigint}, {name: fork, type: string}]")
            text = text.replace("columns: [value]", "columns: [value, fork]") + "  emission: fork\n"
        await self._attempt(self.plane.deploy(text))

    async def roll_back(self) -> None:
        await self._attempt(self.plane.rollback("chain"))

    async def abort(self) -> None:
        await self._attempt(self.plane.abort("chain"))

    async def build(self) -> None:
        await self.plane.builds.run_once()

    async def _attempt(self, change: Any) -> None:
        try:
            await change
        except UserError as error:
            self.said.append(error.code)

    async def load(self) -> None:
        for held in await self.worker.take("load"):
            if self.dice.random() < 0.6:
                position = held.scope.cursor
                assert position is not None
                (outcome,) = await self.plane.report((held, self.worker.done(held)))
                assert outcome == "committed"
                self.loaded[position] = self.model.blocks[position]
            else:
                await self._fail(held)

    async def _fail(self, held: Held) -> None:
        await self.plane.report((held, failed(held)))
        await self.plane.sql("update tasks set ready_at = tp_now() where stage = 0")

    async def evaluate(self) -> None:
        for held in await self.worker.take("large"):
            fate = self.dice.random()
            if fate < 0.7:
                await self.worker.store(held, self._found(held))
            elif fate < 0.9:
                await self._fail(held)
            else:
                await self.plane.fail(held, retryable=False)

    def _found(self, held: Held) -> pa.Table:
        """What Spark would find."""
        position = held.scope.cursor
        assert position is not None
        [condition] = re.findall(r"value > (\d+)", held.job.config["query"])
        block = self.loaded[position]
        rows = [
            {
                "position": position,
                "subject": json.dumps({"tx": tx}),
                "fields": json.dumps(
                    {"value": VALUES[tx]} | ({"fork": str(block.fork)} if self.model.by_emission else {})
                ),
                "event_time": None,
                "emission": str(block.fork) if self.model.by_emission else None,
            }
            for tx in sorted(block.rows)
            if VALUES[tx] > int(condition)
        ]
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    async def sink(self) -> None:
        await self.plane.sink()

    async def _dead(self, first: int = 0, last: int = 1 << 62) -> list[Any]:
        """Tasks of versions that serve or are being built."""
        return [
            row["task_id"]
            for row in await self.plane.sql(
                "select task_id from dead_tasks where standing = 'open' and range_start <= $2 and range_end >= $1",
                first,
                last,
            )
        ]

    async def put_off(self) -> None:
        """What waits to be routed is retried later, after an error."""
        await self.plane.sql(
            "update tasks set ready_at = tp_now() + interval '1 day' where stage = 0"
            " and job_id in (select job_id from jobs where name = 'large__route')"
        )

    async def route(self) -> None:
        await self.plane.in_process.run_once()

    async def route_twice(self) -> None:
        await asyncio.gather(self.plane.in_process.run_once(), self.other.in_process.run_once())

    async def send(self) -> None:
        """Some of what waits is delivered, some fails, and of some nobody knows."""
        for channel_id in await self._channels():
            process = holder = uuid4()
            async with self.plane.database.transaction() as tx:
                await tx.run("delete from channel_leases")
                await deliveries.lease(tx, process, timedelta(seconds=5))
            async with self.plane.database.transaction() as tx:
                claimed = await deliveries.claim(tx, channel_id, process, holder, self.dice.randrange(1, 5))
            outcomes = [
                Recorded(one.delivery_id, "delivered" if self.dice.random() < 0.6 else "waiting")
                for one in claimed
                if self.dice.random() < 0.7
            ]
            async with self.plane.database.transaction() as tx:
                await deliveries.record(tx, holder, outcomes)

    async def _channels(self) -> list[Any]:
        return [row["channel_id"] for row in await self.plane.sql("select channel_id from channels")]

    async def rest(self) -> None:
        """Everything that is under way comes to its end."""
        for _ in range(60):
            await self.plane.sql("update tasks set ready_at = tp_now() where stage = 0")
            if dead := await self._dead():
                await self.plane.retry(*dead)
            await self.build()
            await self.load()
            await self.evaluate()
            await self.sink()
            await self.plane.meter()
            if not await self._unsettled(None) and not await self._building():
                break
        else:
            raise AssertionError(f"it does not come to rest: {await self.plane.states()}, {self.said}")
        while await self.plane.value("select count(*) from alert_deliveries where state = 'waiting'"):
            await self.send()

    async def _building(self) -> bool:
        return bool(await self.plane.value("select count(*) from dag_versions where state = 'building'"))

    # What must hold ----------------------------------------------------------------------------------

    async def check(self) -> None:
        rows = await self.plane.sql(
            "select d.channel_id, d.key, d.kind, d.state, d.tries, e.position, e.subject->>'tx' as tx,"
            " e.alert_event_id from alert_deliveries d left join alert_events e on e.key = d.incident order by d.number"
        )
        events = await self.plane.sql("select *, subject->>'tx' as tx from alert_events")
        tries = {(row["channel_id"], row["key"]): row["tries"] for row in rows}
        assert len(tries) == len(rows), "a key was queued twice"
        heard: dict[Any, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            assert row["alert_event_id"] is not None
            assert (row["state"] == "withdrawn") == (row["tries"] == 0)
            if row["kind"] == "retraction":
                alert = row["key"].removesuffix("-retraction")
                assert tries[row["channel_id"], alert], f"never sent, but retracted: {row}\n{self.said}"
            if row["tries"]:
                heard[row["alert_event_id"]][row["channel_id"]].append(row["kind"])
        queued = {key for _, key in tries}
        for event in events:
            number = event["occurrence"]
            message = event["key"] if number == 1 else f"{event['key']}-{number}"
            assert (message in queued) == (event["suppressed"] is None), f"{event}\n{self.said}"
            assert event["suppressed"] is None or event["suppressed"] in REASONS
        held = await self.plane.sql(
            "select e.* from alert_events e join job_inputs i on i.generation_id = any(e.generations)"
            " join jobs j using (job_id) where e.suppressed = 'building' and j.routed and not j.building"
            " and e.retracted_at is null"
        )
        assert held == [], f"found by the version that serves, and not sent: {held}\n{self.said}"
        await self._check_beliefs(events, heard)

    async def _check_beliefs(self, events: list[Any], heard: Any) -> None:
        by_key = {self._key(event): event for event in events}
        assert len(by_key) == len(events)
        for key, expected in self.model.expected.items():
            event = by_key.get(key)
            state = event and ("retracted" if event["retracted_at"] else event["suppressed"] or "sent")
            for channel in await self._channels():
                kinds = heard[event["alert_event_id"]][channel] if event is not None else []
                turns = ["alert", "retraction"] * len(kinds)
                told = f"{key} should be {expected}: {kinds}, {event}\n{self.said}"
                assert expected == "any" or (state, kinds[-1:]) in BELIEFS[expected], told
                assert kinds == turns[: len(kinds)] or key in self.model.repeated, told

    def _key(self, event: Any) -> Key:
        # The emission is a part of the key that no column repeats; a fork's rows are told apart by their texts.
        return event["position"], event["tx"], event["fields"].get("fork")

    async def check_that_history_is_silent(self) -> None:
        async def queued() -> int:
            count: int = await self.plane.value("select count(*) from alert_deliveries")
            return count

        before = await queued()
        if not self.model.blocks:
            return
        await self._attempt(self.plane.backfill("transfers", 1, len(self.model.blocks), only="all"))
        await self.rest()
        assert await queued() == before, f"a backfill sent something\n{self.said}"
        for step in (self.deploy, self.deploy, self.deploy, self.roll_back):
            await step()
            await self.rest()
            assert await queued() == before, f"{step.__name__} sent something\n{self.said}"


@pytest.fixture
async def history(
    database_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[History]:
    async with (
        ControlPlane.open(database_url, home=tmp_path) as plane,
        ControlPlane.open(database_url, home=tmp_path) as other,
    ):
        await plane.sql(
            "insert into channels (org_id, name, config, changed_by)"
            " select org_id, name, '{}', 'test' from orgs, unnest('{ops, pager}'::text[]) as n (name)"
        )
        yield History(plane, other, tmp_path, request.getfixturevalue("seed"))


@pytest.mark.parametrize("seed", range(6))
async def test_receivers_believe_what_is_so_and_hear_nothing_of_history(history: History, seed: int) -> None:
    await history.run()


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(1000, 1100))
async def test_a_hundred_histories_of_alerts(history: History, seed: int) -> None:
    await history.run()
