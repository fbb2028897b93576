"""The queue of messages: each is queued once, claimed before it is sent, and its outcome counts once."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from tests.delivery.messages import MESSAGE
from traceplane.model.json_object import JsonObject
from traceplane.model.message import Kind, Message, Value
from traceplane.postgres import channels, deliveries
from traceplane.postgres.database import Database, statements
from traceplane.postgres.deliveries import ClaimedDelivery, NewDelivery, Recorded

LEASE = timedelta(seconds=5)
CONFIG: JsonObject = {"kind": "webhook", "url": "https://example.com/in"}


def alert(name: str, kind: Kind = Kind.ALERT) -> Message:
    return replace(MESSAGE, key=f"{kind}:{name}", incident=name, kind=kind)


class Queue:
    """A channel, and a process that has its lease."""

    def __init__(self, database: Database, org_id: UUID, channel_id: UUID) -> None:
        self.database, self.org_id, self.channel_id = database, org_id, channel_id
        self.process = uuid4()

    @classmethod
    async def of(cls, database: Database, name: str = "ops") -> Queue:
        async with database.transaction() as tx:
            org_id = await tx.value("select org_id from orgs")
            if org_id is None:
                org_id = await tx.value("insert into orgs (slug) values ('default') returning org_id")
            channel_id = await channels.set_channel(
                tx, org_id, name, CONFIG, platform_alerts=False, by="somebody"
            )
        return cls(database, org_id, channel_id)

    async def add(self, *messages: Message) -> int:
        async with self.database.transaction() as tx:
            return await deliveries.queue(
                tx, [NewDelivery(self.org_id, self.channel_id, message) for message in messages]
            )

    async def lease(self, process: UUID | None = None) -> list[UUID]:
        async with self.database.transaction() as tx:
            return await deliveries.lease(tx, process or self.process, LEASE)

    async def claim(self, holder: UUID, most: int = 100) -> list[ClaimedDelivery]:
        async with self.database.transaction() as tx:
            return await deliveries.claim(tx, self.channel_id, self.process, holder, most)

    async def record(self, holder: UUID, *outcomes: Recorded) -> set[UUID]:
        async with self.database.transaction() as tx:
            return await deliveries.record(tx, holder, outcomes)

    async def withdraw(self, *incidents: str) -> list[str]:
        async with self.database.transaction() as tx:
            sent = await deliveries.withdraw(tx, self.org_id, incidents)
        assert {one.channel_id for one in sent} <= {self.channel_id}
        return [one.message.key for one in sent]

    async def states(self) -> dict[str, str]:
        async with self.database.transaction() as tx:
            rows = await tx.rows("select key, state from alert_deliveries order by number")
        return {row["key"]: row["state"] for row in rows}


@pytest.fixture
async def queue(database: Database) -> Queue:
    return await Queue.of(database)


def keys(claimed: list[ClaimedDelivery]) -> list[str]:
    return [one.message.incident for one in claimed]


async def test_a_message_is_stored_exactly(queue: Queue) -> None:
    values: dict[str, Value] = {
        "z": "ß \u2028",
        "int": 2**80,
        "bool": True,
        "float": 1e22,
        "nan_like": float("inf"),
        "decimal": Decimal("1.10"),
        "moment": datetime(2026, 1, 1, 12, 30, 1, 5, tzinfo=UTC),
        "day": date(2026, 1, 1),
        "a": None,
    }
    message = replace(MESSAGE, subject=values, fields=dict(reversed(values.items())), count=3)
    await queue.add(message)
    await queue.lease()
    [claimed] = await queue.claim(uuid4())
    assert claimed.message == message
    assert list(claimed.message.subject.items()) == list(values.items())
    assert [type(value) for value in claimed.message.subject.values()] == [type(v) for v in values.values()]


async def test_a_claim_tells_no_index(queue: Queue) -> None:
    """There is room for the second version of each row on its page."""
    await queue.add(*(alert(str(number)) for number in range(200)))
    await queue.lease()
    async with queue.database.transaction() as tx:
        await deliveries.claim(tx, queue.channel_id, queue.process, uuid4(), 200)
        table = "'alert_deliveries'::regclass"
        assert await tx.value(f"select pg_stat_get_xact_tuples_updated({table})") == 200
        assert await tx.value(f"select pg_stat_get_xact_tuples_hot_updated({table})") > 150


async def test_what_postgres_cannot_store_is_replaced(queue: Queue) -> None:
    await queue.add(replace(MESSAGE, title="a\x00b", text="c\ud800d", subject={"e\x00": "f\x00"}))
    await queue.lease()
    [claimed] = await queue.claim(uuid4())
    assert (claimed.message.title, claimed.message.text) == ("a\ufffdb", "c\ufffdd")
    assert claimed.message.subject == {"e\ufffd": "f\ufffd"}


async def test_a_message_is_queued_once(queue: Queue) -> None:
    assert await queue.add(alert("a"), alert("b"), alert("a")) == 2
    assert await queue.add(alert("b"), alert("c")) == 1
    assert await queue.add(alert("c")) == 0
    assert await queue.add() == 0
    assert list(await queue.states()) == ["alert:a", "alert:b", "alert:c"]


async def test_one_process_at_a_time_has_a_channel(queue: Queue, database: Database) -> None:
    assert await queue.lease() == []
    await queue.add(alert("a"))
    other = uuid4()
    assert await queue.lease() == [queue.channel_id]
    assert await queue.lease() == [queue.channel_id]
    assert await queue.lease(other) == []
    async with database.transaction() as tx:
        await deliveries.release(tx, queue.process)
    assert await queue.claim(uuid4()) == []
    assert await queue.lease(other) == [queue.channel_id]


async def test_a_claim_is_counted_before_the_message_is_sent_and_recorded_once(queue: Queue) -> None:
    await queue.add(alert("a"), alert("b"))
    await queue.lease()
    holder, successor = uuid4(), uuid4()
    claimed = await queue.claim(holder)
    assert keys(claimed) == ["a", "b"]
    assert [one.tries for one in claimed] == [1, 1]
    assert await queue.claim(holder) == []  # it has them
    a, b = (one.delivery_id for one in claimed)
    assert await queue.record(holder, Recorded(a, "delivered")) == {a}
    assert await queue.record(holder, Recorded(a, "dead", "x", "y")) == set()
    again = await queue.claim(successor)  # after a holder that died
    assert [(one.delivery_id, one.tries) for one in again] == [(b, 2)]
    assert again[0].message == claimed[1].message
    assert await queue.record(holder, Recorded(b, "delivered")) == set()
    assert await queue.record(successor, Recorded(b, "dead", "x", "y")) == {b}
    assert await queue.states() == {"alert:a": "delivered", "alert:b": "dead"}
    assert await queue.lease() == []


async def test_a_postponed_message_waits_and_holds_up_no_other(queue: Queue) -> None:
    await queue.add(alert("a"), alert("b"))
    await queue.lease()
    holder = uuid4()
    [a] = await queue.claim(holder, 1)
    await queue.record(holder, Recorded(a.delivery_id, "waiting", "x", "y", pause_seconds=60))
    [b] = await queue.claim(holder)
    assert b.message.incident == "b"
    await queue.record(holder, Recorded(b.delivery_id, "delivered"))
    assert await queue.claim(holder) == []
    assert await queue.lease() == []  # nothing is ready


async def test_messages_of_one_incident_do_not_overtake_each_other(queue: Queue) -> None:
    retraction, acknowledgement = alert("a", Kind.RETRACTION), alert("a", Kind.ACKNOWLEDGEMENT)
    again = replace(alert("a"), key="again")
    await queue.add(alert("a"), acknowledgement, retraction, again, alert("b"))
    await queue.lease()
    holder = uuid4()
    order = []
    for _ in range(4):
        claimed = await queue.claim(holder)
        order.append([one.message.key for one in claimed])
        assert await queue.claim(holder) == []
        await queue.record(holder, *(Recorded(one.delivery_id, "delivered") for one in claimed))
    assert order == [["alert:a", "alert:b"], [acknowledgement.key], [retraction.key], ["again"]]


async def test_what_was_claimed_and_not_sent_is_as_if_nobody_had_claimed_it(queue: Queue) -> None:
    await queue.add(alert("a"))
    await queue.lease()
    holder = uuid4()
    [claimed] = await queue.claim(holder)
    await queue.record(holder, Recorded(claimed.delivery_id, "waiting", is_unsent=True))
    assert await queue.withdraw("a") == []
    assert await queue.states() == {"alert:a": "withdrawn"}


@pytest.mark.parametrize("is_analyzed", [False, True])
async def test_claiming_and_recording_read_no_more_than_they_take_however_much_waits(
    queue: Queue, database: Database, *, is_analyzed: bool
) -> None:
    """Even if nobody has analyzed the table, or somebody did when it was empty a moment ago."""
    if is_analyzed:
        await queue.add(*(alert(f"before{n}") for n in range(500)))
        await queue.lease()
        holder = uuid4()
        claimed = await queue.claim(holder, 500)
        await queue.record(holder, *(Recorded(one.delivery_id, "delivered") for one in claimed))
        async with database.autocommit() as tx:
            await tx.run("analyze alert_deliveries")
    await queue.add(*(alert(f"a{n}") for n in range(3000)))
    await queue.lease()
    holder = uuid4()
    waiting = [one.delivery_id for one in await queue.claim(holder, 400)]
    ids, count = "{" + ",".join(map(str, waiting[:50])) + "}", 50
    for name, types, given in [
        ("claim", "uuid, uuid, uuid, int", f"'{queue.channel_id}', '{queue.process}', '{holder}', {count}"),
        (
            "record",
            "uuid, uuid[], text[], jsonb[], float8[], boolean[]",
            f"'{holder}', '{ids}', array_fill('delivered'::text, '{{50}}'), array_fill(null::jsonb, '{{50}}'),"
            " array_fill(0.0::float8, '{50}'), array_fill(false, '{50}')",
        ),
    ]:
        async with database.transaction() as tx:
            await tx.run("set local plan_cache_mode = force_generic_plan")
            await tx.run(f"prepare tried ({types}) as " + statements("deliveries")[name])
            rows = await tx.rows(f"explain (analyze, buffers) execute tried({given})")
            await tx.run("deallocate tried")
        plan = "\n".join(row[0] for row in rows)
        read = sum(
            float(rows) * int(loops)
            for rows, loops in re.findall(r"actual .*rows=([0-9.]+) loops=(\d+)", plan)
        )
        passed_over = sum(int(text) for text in re.findall(r"Rows Removed by .*: (\d+)", plan))
        touched = max(int(text) for text in re.findall(r"Buffers: shared hit=(\d+)", plan))
        assert read < 12 * count + 400, plan
        assert passed_over <= 400, plan  # what is in flight
        assert touched < 50 * count, plan


async def test_withdrawn_are_only_alerts_that_were_never_tried(queue: Queue) -> None:
    await queue.add(alert("delivered"), alert("tried"), alert("dead"))
    await queue.lease()
    holder = uuid4()
    delivered, _, dead = await queue.claim(holder)
    await queue.record(
        holder, Recorded(delivered.delivery_id, "delivered"), Recorded(dead.delivery_id, "dead", "x", "y")
    )
    await queue.add(alert("new"), alert("new", Kind.ACKNOWLEDGEMENT), alert("other"))
    assert await queue.withdraw("delivered", "tried", "dead", "new", "unknown") == [
        "alert:delivered",
        "alert:tried",
        "alert:dead",
    ]
    states = await queue.states()
    assert states["alert:new"] == states["acknowledgement:new"] == "withdrawn"
    assert states["alert:other"] == states["alert:tried"] == "waiting"
    assert keys(await queue.claim(uuid4())) == ["tried", "other"]
    assert await queue.withdraw("new") == []


async def test_of_a_claim_and_a_withdrawal_at_the_same_moment_one_comes_first(
    queue: Queue, database: Database
) -> None:
    """The withdrawal waits for the claim, and then knows that the alert may have been sent."""
    await queue.add(alert("a"))
    await queue.lease()
    async with database.transaction() as tx:
        [claimed] = await deliveries.claim(tx, queue.channel_id, queue.process, uuid4(), 1)
        withdrawal = asyncio.create_task(queue.withdraw("a"))
        await asyncio.sleep(0.2)
        assert not withdrawal.done()
    assert await withdrawal == [claimed.message.key]
    assert await queue.states() == {"alert:a": "waiting"}


async def test_channels_are_found_by_name_and_removed_when_nothing_waits(
    queue: Queue, database: Database
) -> None:
    async with database.transaction() as tx:
        found = await deliveries.channels_by_name(tx, queue.org_id, ["ops", "unknown"])
        assert found == {"ops": queue.channel_id}
        assert await deliveries.channels_by_name(tx, uuid4(), ["ops"]) == {}
    await queue.add(alert("a"))
    async with database.transaction() as tx:
        assert await channels.remove(tx, queue.org_id, "unknown", drop=False) is None
        assert await channels.remove(tx, queue.org_id, "ops", drop=False) == 1
        [listed] = await channels.listed(tx, queue.org_id)
        assert (listed.name, listed.config, listed.waiting, listed.dead) == ("ops", CONFIG, 1, 0)
        assert await channels.remove(tx, queue.org_id, "ops", drop=True) == 1
        assert await channels.names(tx, queue.org_id) == []
    assert await queue.states() == {}
