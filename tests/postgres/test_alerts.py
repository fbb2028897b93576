"""Alerts: what an evaluation found becomes messages, once each; what is gone is taken back; history stays silent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.control_plane import ControlPlane, failed
from tests.hot_worker import HotWorker
from tests.platform import until
from traceplane.delivery.templates import TextTemplate
from traceplane.dispatcher.in_process import alert_route
from traceplane.model.message import LONGEST_TEXT, LONGEST_TITLE, LONGEST_VALUE
from traceplane.postgres import alert_handovers, alerts, deliveries, events
from traceplane.postgres.database import Transaction
from traceplane.postgres.events import AcceptedEvents, NewEvent
from traceplane.registry import cutover

DAG = """
version: 1
dag: chain
datasets:
  transfers:
    position: block
    columns: [{name: block, type: bigint}, {name: tx, type: string}, {name: value, type: bigint}]
jobs:
- {name: blocks, activation: source, source: {kind: manual}, outputs: [{dataset: blocks}]}
- name: load
  runtime: python
  operator: python
  inputs: [{from: {dataset: blocks}}]
  outputs: [{dataset: transfers}]
  config: {entrypoint: "a:b"}
alerts:
- name: large
  dataset: transfers
  when: value > 1000
  severity: critical
  subject: [tx]
  columns: [value]
  title: "{tx} moved {fields.value}"
  channels: [ops]
"""
SCHEMA = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("fields", pa.string(), nullable=False),
        pa.field("event_time", pa.timestamp("us", tz="UTC")),
        pa.field("emission", pa.string()),
    ]
)


def found(*rows: tuple[int, str], time: datetime | None = None, emission: str | None = None) -> pa.Table:
    """Rows as `alert_evaluate` writes them: a position and a transaction each."""
    return pa.Table.from_pylist(
        [
            {
                "position": position,
                "subject": json.dumps({"tx": tx}),
                "fields": json.dumps({"value": 5000}),
                "event_time": time,
                "emission": emission,
            }
            for position, tx in rows
        ],
        schema=SCHEMA,
    )


class Chain:
    def __init__(self, worker: HotWorker) -> None:
        self.worker, self.plane = worker, worker.plane

    async def load(self, *blocks: int, emission: str = "", backfill: bool = False) -> None:
        if backfill:
            await self.plane.backfill("transfers", blocks[0], blocks[-1], only="all")
        else:
            await self.plane.emit("blocks", blocks, emission=emission)
        for held in await self.worker.take("load"):
            assert await self.plane.report((held, self.worker.done(held))) == ["committed"]

    async def evaluate(self, **tables: pa.Table) -> None:
        """Completes the evaluations that wait, with these rows by block."""
        for held in await self.worker.take("large"):
            rows = tables.get(f"b{held.task.scope.cursor}")  # type: ignore[union-attr]
            assert await self.worker.store(held, *([rows] if rows is not None else [])) == "buffered"
        await self.plane.sink()
        await self.plane.meter()

    async def again(self, block: int, fork: str, *rows: tuple[int, str], **fields: Any) -> None:
        """A reorganization: the block is there once more, with these rows."""
        await self.load(block, emission=fork)
        await self.evaluate(**{f"b{block}": found(*rows, **fields)})

    async def send(self) -> None:
        """Everything that waits was sent."""
        await self.plane.sql(
            "update alert_deliveries set state = 'delivered', tries = 1, ended_at = tp_now() where state = 'waiting'"
        )

    async def silence_tx(self, tx: str) -> None:
        await self.plane.sql(
            "insert into alert_silences (org_id, alert, subject, ends_at, reason, created_by)"
            " select org_id, 'large', $1, tp_now() + interval '2 hours', 'known', 'test' from orgs",
            {"tx": tx},
        )

    async def build(self) -> None:
        """The dispatcher replays what a new version needs, and cuts over when it is there."""
        for _ in range(3):
            await self.plane.builds.run_once()
            await self.plane.meter()

    async def generations(self) -> list[str]:
        """Of the rows found, oldest version first."""
        rows = await self.plane.sql(
            "select generation_id from generations join datasets using (dataset_uuid)"
            " where dataset_id = 'chain.large#alerts' order by generation_id"
        )
        return [row["generation_id"] for row in rows]

    async def suppressed(self) -> list[str | None]:
        return [event["suppressed"] for event in await self.events()]

    async def events(self) -> list[dict[str, Any]]:
        return [
            dict(row) for row in await self.plane.sql("select * from alert_events order by position, title")
        ]

    async def places(self) -> list[tuple[str, str | None]]:
        """The DAGs and the positions that messages name."""
        rows = await self.plane.sql("select message from alert_deliveries order by number")
        return [(row["message"]["dag"], row["message"]["position"]) for row in rows]

    async def queued(self) -> list[tuple[str, str, str]]:
        rows = await self.plane.sql(
            "select kind, state, message->>'title' as title from alert_deliveries order by number"
        )
        return [(row["kind"], row["state"], row["title"]) for row in rows]


@pytest.fixture
async def chain(database_url: str, tmp_path: Path) -> AsyncIterator[Chain]:
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        await plane.sql(
            "insert into channels (org_id, name, config, changed_by)"
            " select org_id, 'ops', '{}', 'test' from orgs"
        )
        await plane.deploy(DAG)
        yield Chain(HotWorker(plane, tmp_path / "objects"))


async def test_what_is_found_is_queued_once(chain: Chain) -> None:
    await chain.load(1, 2)
    await chain.evaluate(b1=found((1, "a"), (1, "b")))
    assert await chain.queued() == [
        ("alert", "waiting", "a moved 5000"),
        ("alert", "waiting", "b moved 5000"),
    ]
    await chain.load(1, emission="again")
    await chain.evaluate(b1=found((1, "a"), (1, "b")))
    assert len(await chain.queued()) == 2
    assert [e["suppressed"] for e in await chain.events()] == [None, None]


async def test_an_alert_that_was_not_tried_yet_is_withdrawn(chain: Chain) -> None:
    await chain.again(1, "a", (1, "a"), (1, "b"))
    await chain.again(1, "b", (1, "b"))
    assert await chain.queued() == [
        ("alert", "withdrawn", "a moved 5000"),
        ("alert", "waiting", "b moved 5000"),
    ]
    assert [e["retracted_at"] is not None for e in await chain.events()] == [True, False]


async def test_an_alert_that_was_sent_is_retracted_and_may_come_back(chain: Chain) -> None:
    await chain.again(1, "a", (1, "a"))
    await chain.send()
    await chain.again(1, "b")
    assert (await chain.queued())[1:] == [("retraction", "waiting", "a moved 5000")]
    await chain.send()
    await chain.again(1, "c", (1, "a"))
    assert [kind for kind, _, _ in await chain.queued()] == ["alert", "retraction", "alert"]
    assert await chain.places() == [("chain", "1")] * 3
    rows = await chain.plane.sql("select key, incident from alert_deliveries order by number")
    assert len({row["key"] for row in rows}) == 3
    assert len({row["incident"] for row in rows}) == 1


async def test_another_emission_is_another_alert(chain: Chain) -> None:
    await chain.again(1, "a", (1, "a"), emission="0xa")
    await chain.send()
    await chain.again(1, "b", (1, "a"), emission="0xb")
    assert [kind for kind, _, _ in await chain.queued()] == ["alert", "alert", "retraction"]


async def test_a_backfill_sends_nothing(chain: Chain) -> None:
    await chain.again(1, "a", (1, "a"))
    await chain.send()
    await chain.load(1, backfill=True)
    await chain.evaluate(b1=found((1, "a"), (1, "new")))
    assert await chain.suppressed() == [None, "backfill"]
    assert len(await chain.queued()) == 1
    await chain.load(1, backfill=True)
    await chain.evaluate()
    assert len(await chain.queued()) == 1
    assert all(event["retracted_at"] for event in await chain.events())


async def test_a_new_alert_sends_nothing_for_what_was_there_before(chain: Chain) -> None:
    await chain.load(1, 2)
    await chain.evaluate()
    more = DAG + DAG[DAG.index("- name: large") :].replace("large", "huge").replace("1000", "9000")
    await chain.plane.deploy(more)
    await chain.build()
    for held in await chain.worker.take("huge"):
        await chain.worker.store(held, found((held.task.scope.cursor, "old")))  # type: ignore[union-attr,arg-type]
    await chain.plane.sink()
    await chain.plane.meter()
    assert await chain.suppressed() == ["backfill", "backfill"]
    assert await chain.queued() == []


async def test_a_rebuild_and_a_rollback_send_nothing_and_what_is_new_meanwhile_is_sent_once(
    chain: Chain,
) -> None:
    await chain.again(1, "a", (1, "a"))
    await chain.send()
    await chain.plane.deploy(DAG.replace("1000", "500"))
    await chain.build()
    await chain.load(2)
    [*tasks] = await chain.worker.take("large")
    assert len(tasks) == 3  # of both versions: history for the new one, and what is new for both
    old, new = await chain.generations()
    rows = {
        (old, 2): found((2, "both")),
        (new, 1): found((1, "a"), (1, "c")),
        (new, 2): found((2, "both"), (2, "only")),
    }
    for held in sorted(tasks, key=lambda h: h.job.outputs[0].dataset_version != new):
        key = held.job.outputs[0].dataset_version, held.task.scope.cursor  # type: ignore[union-attr]
        await chain.worker.store(held, rows[key])  # type: ignore[index]
    await chain.plane.sink()
    await chain.plane.meter()
    assert [(e["title"][:4], e["suppressed"]) for e in await chain.events()] == [
        ("a mo", None), ("c mo", "backfill"), ("both", None), ("only", "building"),
    ]  # fmt: skip
    assert [title for _, _, title in await chain.queued()] == ["a moved 5000", "both moved 5000"]
    await chain.build()
    assert (await chain.plane.versions("chain"))[0].state == "active"
    assert [title for _, _, title in await chain.queued()][2:] == ["only moved 5000"]
    assert await chain.places() == [("chain", "1"), ("chain", "2"), ("chain", "2")]
    await chain.send()
    await chain.plane.rollback("chain")
    await chain.evaluate(b1=found((1, "a")), b2=found((2, "both")))
    assert len(await chain.queued()) == 3


RULES = {
    "": ("", ["b moved 5000", "c moved 5000", "d moved 5000"], [None] * 3),
    "throttled": ("throttle: {most: 1, per: 30m, each: alert}", ["b moved 5000"], [None] + ["throttled"] * 2),
    "grouped": ("group_above: 2", ["3 alerts: large"], [None] * 3),
    "stale": ("stale_after: 50m", [], ["stale"] * 3),
    "silenced": ("", ["c moved 5000", "d moved 5000"], ["silenced", None, None]),
}


@pytest.mark.parametrize("rule", RULES)
async def test_what_a_version_found_before_it_served_is_sent_by_the_same_rules(
    chain: Chain, rule: str
) -> None:
    setting, titles, suppressed = RULES[rule]
    await chain.again(1, "a", (1, "a"))
    await chain.send()
    await chain.plane.deploy(DAG.replace("1000", "500") + f"  {setting}\n")
    await chain.load(2, 3)
    now = datetime.now(UTC)
    rows = {
        (False, 2): found((2, "old"), time=now),
        (True, 2): found((2, "b"), (2, "c"), time=now),
        (True, 3): found((3, "d"), time=now),
    }
    for held in await chain.worker.take("large"):
        is_new, position = "500" in held.job.config["query"], held.scope.cursor
        await chain.worker.store(held, rows.get((is_new, position), found()))  # type: ignore[arg-type]
    await chain.plane.sink()
    await chain.plane.meter()
    assert (await chain.suppressed())[1:] == ["building", "building", None, "building"]
    await chain.send()
    if rule == "silenced":
        await chain.silence_tx("b")
    await chain.plane.pass_time(3500)
    await chain.build()
    await chain.evaluate(b1=found((1, "a")))  # history of the new version
    await chain.build()
    assert (await chain.plane.versions("chain"))[0].state == "active"
    events = [event for event in await chain.events() if event["title"][:3] not in ("a m", "old")]
    assert [event["suppressed"] for event in events] == suppressed
    # What only the version before has found stays as it was.
    assert [(kind, title) for kind, state, title in await chain.queued() if state == "waiting"] == [
        ("alert", title) for title in titles
    ]
    await chain.build()
    assert len(await chain.queued()) == 2 + len(titles)


async def test_what_happened_too_long_ago_is_not_sent(chain: Chain) -> None:
    await chain.plane.deploy(DAG + "  stale_after: 1h\n")
    await chain.load(1, 2)
    now = datetime.now(UTC)
    await chain.evaluate(
        b1=found((1, "a"), time=datetime(2020, 1, 1, tzinfo=UTC)), b2=found((2, "b"), time=now)
    )
    assert await chain.suppressed() == ["stale", None]


@pytest.mark.parametrize(("each", "sent"), [("subject", 2), ("alert", 1)])
async def test_throttles_count_what_was_sent_in_a_while(chain: Chain, each: str, sent: int) -> None:
    await chain.plane.deploy(DAG + f"  throttle: {{most: 1, per: 1h, each: {each}}}\n")
    await chain.load(1, 2)
    await chain.evaluate(b1=found((1, "a"), (1, "b")), b2=found((2, "a")))
    assert len(await chain.queued()) == sent
    assert (await chain.suppressed()).count("throttled") == 3 - sent
    await chain.plane.pass_time(3601)
    await chain.load(3)
    await chain.evaluate(b3=found((3, "a")))
    assert len(await chain.queued()) == sent + 1


async def test_many_at_once_are_one_message(chain: Chain) -> None:
    await chain.plane.deploy(DAG + "  group_above: 2\n")
    await chain.again(1, "a", (1, "a"), (1, "b"), (1, "c"))
    assert await chain.queued() == [("alert", "waiting", "3 alerts: large")]
    assert await chain.places() == [("chain", "1")]
    await chain.send()
    await chain.again(1, "b", (1, "b"), (1, "c"))
    assert (await chain.queued())[1:] == [("retraction", "waiting", "a moved 5000")]
    await chain.again(1, "c")
    assert (await chain.queued())[-1] == ("retraction", "waiting", "3 alerts: large")
    rows = await chain.plane.sql("select incident from alert_deliveries order by number")
    assert rows[0]["incident"] == rows[-1]["incident"]


@pytest.mark.parametrize(
    ("partitions", "written"), [("{by: day}", {20000: "2024-10-04"}), ("{by: name, names: [eu, us]}", {})]
)
async def test_a_message_has_its_position_as_scopes_are_written_but_no_names_of_partitions(
    chain: Chain, partitions: str, written: dict[int, str]
) -> None:
    other = DAG.replace("    position: block\n", f"    partitions: {partitions}\n")
    other = other.replace("datasets:\n", f"datasets:\n  blocks: {{partitions: {partitions}}}\n")
    for name, instead in (("chain", "daily"), ("transfers", "days"), ("blocks", "dates")):
        other = other.replace(name, instead)
    await chain.plane.deploy(other)
    [org] = await chain.plane.sql("select org_id from orgs")
    async with chain.plane.database.transaction() as tx:
        assert await alerts.written_positions(tx, org["org_id"], "daily", "large", [20000]) == written


async def replayed(chain: Chain) -> deliveries.Replayed:
    """Everything that waits is dead, and somebody replays it."""
    await chain.plane.sql(
        "update alert_deliveries set state = 'dead', tries = tries + 1, ended_at = tp_now()"
        " where state in ('waiting', 'dead') and kind = 'alert'"
    )
    async with chain.plane.database.transaction() as tx:
        org_id, channel_id = (await chain.plane.sql("select org_id, channel_id from channels"))[0]
        return await deliveries.replay(tx, org_id, [], channel_id, 100)


@pytest.mark.parametrize("by_hand", [False, True])
async def test_an_alert_is_not_replayed_after_it_was_retracted(chain: Chain, by_hand: bool) -> None:
    await chain.again(1, "a", (1, "a"), (1, "b"))
    assert await replayed(chain) == deliveries.Replayed(2, 0)
    await replayed(chain)
    await chain.load(1, emission="b", backfill=by_hand)
    await chain.evaluate(b1=found((1, "b")))
    assert await replayed(chain) == deliveries.Replayed(1, 1)
    told = [] if by_hand else [("retraction", "waiting", "a moved 5000")]
    assert await chain.queued() == [
        ("alert", "withdrawn", "a moved 5000"),
        ("alert", "waiting", "b moved 5000"),
        *told,
    ]
    [failure] = await chain.plane.sql("select failure from alert_deliveries where state = 'withdrawn'")
    assert failure["failure"]["code"] == "delivery.retracted"
    await chain.send()
    await chain.again(1, "c", (1, "a"), (1, "b"))
    assert await replayed(chain) == deliveries.Replayed(1, 0)  # it came back under another key


async def test_a_message_about_many_alerts_is_replayed_while_one_of_them_is_left(chain: Chain) -> None:
    await chain.plane.deploy(DAG + "  group_above: 2\n")
    await chain.again(1, "a", (1, "a"), (1, "b"), (1, "c"))
    await replayed(chain)
    await chain.again(1, "b", (1, "c"))
    assert await replayed(chain) == deliveries.Replayed(1, 0)
    await replayed(chain)
    await chain.load(1, backfill=True)
    await chain.evaluate()
    assert await replayed(chain) == deliveries.Replayed(0, 1)


async def test_silenced_alerts_are_recorded_but_not_sent(chain: Chain) -> None:
    await chain.silence_tx("a")
    await chain.again(1, "a", (1, "a"), (1, "b"))
    assert await chain.suppressed() == ["silenced", None]


async def test_many_silences_and_rows_do_not_hold_up_the_dispatcher(chain: Chain) -> None:
    """3,000 silences, which are more than may be, and 9,000 rows: others have their turn all the while."""
    await chain.plane.deploy(DAG + "  throttle: {most: 1, per: 1h, each: subject}\n")
    await chain.plane.sql(
        "insert into alert_silences (org_id, alert, subject, ends_at, reason, created_by)"
        " select org_id, 'large', jsonb_build_object('tx', 't' || n * 3), tp_now() + interval '1 hour', 'r', 't'"
        " from orgs, generate_series(1, 3000) n"
    )
    await chain.load(1)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    waiting = asyncio.create_task(others())
    await chain.evaluate(b1=found(*((1, f"t{n}") for n in range(1, 9001))))
    waiting.cancel()
    suppressed = await chain.suppressed()
    assert (suppressed.count("silenced"), suppressed.count(None)) == (3000, 6000)
    assert turns > 100


async def test_a_throttle_counts_in_the_database_what_was_sent(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chain.plane.deploy(DAG + "  throttle: {most: 2, per: 1h, each: subject}\n")
    subject = "x" * 600  # messages have the beginning of it
    counts: list[list[int]] = []
    original = alerts.sent_about

    async def recorded(*arguments: Any) -> list[int]:
        counts.append(await original(*arguments))
        return counts[-1]

    monkeypatch.setattr(alerts, "sent_about", recorded)
    for block in (1, 2, 3):
        await chain.load(block)
        rows = [(block, f"b{n}") for n in range(block)] + [(block, subject)]
        await chain.evaluate(**{f"b{block}": found(*rows)})
    assert [sorted(one) for one in counts] == [[0, 0], [0, 1, 1], [0, 1, 2, 2]]
    assert (await chain.suppressed()).count("throttled") == 2


async def test_a_condition_that_finds_too_much_fails_its_task_alone(chain: Chain) -> None:
    await chain.load(1, 2)
    await chain.evaluate(b1=found(*((1, f"t{n}") for n in range(10_001))), b2=found((2, "a")))
    assert [event["title"] for event in await chain.events()] == ["a moved 5000"]
    assert await chain.plane.states("large__route") == {"completed": 1, "dead": 1}


async def test_what_came_back_and_was_not_tried_again_is_withdrawn_alone(chain: Chain) -> None:
    await chain.again(1, "a", (1, "a"))
    await chain.send()
    await chain.again(1, "b")
    await chain.send()
    await chain.again(1, "c", (1, "a"))
    await chain.again(1, "d")
    states = [(kind, state) for kind, state, _ in await chain.queued()]
    assert states == [("alert", "delivered"), ("retraction", "delivered"), ("alert", "withdrawn")]


async def test_a_backfill_that_overtakes_an_event_does_not_make_history_of_it(chain: Chain) -> None:
    await chain.again(1, "a", (1, "old"))
    await chain.send()
    await chain.plane.emit("blocks", [1], emission="b")
    [load] = await chain.worker.take("load")
    await chain.plane.backfill("chain.large#alerts", 1, 1, only="all")
    await chain.evaluate(b1=found((1, "new")))  # the backfill reads what the event has brought
    assert [title for _, _, title in await chain.queued()] == [
        "old moved 5000",
        "new moved 5000",
        "old moved 5000",
    ]
    await chain.plane.report((load, chain.worker.done(load)))
    await chain.evaluate(b1=found((1, "new")))
    assert len(await chain.queued()) == 3


async def test_what_an_earlier_version_sent_is_retracted_by_the_one_that_serves(chain: Chain) -> None:
    await chain.again(1, "a", (1, "a"))
    await chain.send()
    await chain.plane.deploy(DAG.replace("1000", "9000"))
    await chain.build()
    await chain.evaluate()  # it does not find it, which is history
    await chain.build()
    assert (await chain.plane.versions("chain"))[0].state == "active"
    assert len(await chain.queued()) == 1
    await chain.again(1, "b")
    assert [kind for kind, _, _ in await chain.queued()] == ["alert", "retraction"]


async def test_what_a_version_had_not_come_to_is_sent_by_the_next_one(chain: Chain) -> None:
    await chain.again(1, "a", (1, "a"))
    await chain.send()
    await chain.load(2)
    await chain.load(1, emission="b")
    waiting = await chain.worker.take("large")  # nobody completes them
    await chain.plane.deploy(DAG.replace("1000", "500"))
    await chain.build()
    await chain.evaluate(b1=found(), b2=found((2, "late")))
    await chain.build()
    assert (await chain.plane.versions("chain"))[0].state == "active"
    for held in waiting:
        await chain.plane.report((held, failed(held)))
    await chain.build()
    kinds = [(kind, title) for kind, _, title in await chain.queued()]
    assert kinds == [("alert", "a moved 5000"), ("alert", "late moved 5000"), ("retraction", "a moved 5000")]
    assert await chain.plane.sql("select 1 from alert_handovers") == []


async def second_version(chain: Chain) -> None:
    """Serves, with an alert of the first that was sent."""
    await chain.again(1, "a", (1, "a"))
    await chain.send()
    await chain.plane.deploy(DAG.replace("1000", "500"))
    await chain.build()
    await chain.evaluate(b1=found((1, "a")))
    await chain.build()
    assert (await chain.plane.versions("chain"))[0].state == "active"


async def test_an_event_that_comes_while_versions_change_is_no_history(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given to the version that goes, in a transaction that ends after the other one has looked what is left."""
    await second_version(chain)
    await chain.plane.emit("blocks", [2])
    [load] = await chain.worker.take("load")
    accept, accepted, committing = events.accept, asyncio.Event(), asyncio.Event()

    async def slowly(tx: Transaction, new: Sequence[NewEvent]) -> AcceptedEvents:
        monkeypatch.setattr(events, "accept", accept)
        answer = await accept(tx, new)
        accepted.set()
        await committing.wait()
        return answer

    monkeypatch.setattr(events, "accept", slowly)
    loading = asyncio.create_task(chain.plane.report((load, chain.worker.done(load))))
    await accepted.wait()
    moving = asyncio.create_task(chain.plane.rollback("chain", drop_missing=True))
    waits = "select exists (select 1 from pg_locks where relation = 'events'::regclass and not granted)"
    await until(lambda: chain.plane.value(waits), what="the rollback waits for the event")
    committing.set()
    await asyncio.gather(loading, moving)
    await chain.build()
    await chain.evaluate(b2=found((2, "new")))
    await chain.build()
    assert [title for _, _, title in await chain.queued()] == ["a moved 5000", "new moved 5000"]
    assert await chain.plane.sql("select 1 from alert_handovers") == []


async def test_what_was_handed_over_and_died_is_no_history_when_it_is_retried(chain: Chain) -> None:
    await second_version(chain)
    await chain.load(2)
    await chain.worker.take("large")  # nobody completes it
    await chain.plane.rollback("chain", drop_missing=True)
    await chain.build()
    [held] = await chain.worker.take("large")
    assert await chain.plane.fail(held, retryable=False) == ["dead"]
    await chain.build()
    await chain.plane.retry(held.task_id)
    await chain.evaluate(b2=found((2, "new")))
    await chain.build()
    assert [title for _, _, title in await chain.queued()] == ["a moved 5000", "new moved 5000"]
    assert await chain.plane.sql("select 1 from alert_handovers") == []


async def test_what_was_handed_over_and_cannot_go_on_holds_up_nothing_else(chain: Chain) -> None:
    await chain.load(1)
    await chain.plane.sql(
        "insert into alert_handovers (job_id, range_start, range_end)"
        " select job_id, n, n from jobs, unnest('{1, 2}'::int[]) as n where operator = 'alert_route'"
    )
    async with chain.plane.database.transaction() as tx:
        settled = [await alert_handovers.settle(tx, 1) for _ in range(100)]
    assert sum(settled) == 1
    [left] = await chain.plane.sql("select range_start from alert_handovers")
    assert left["range_start"] == 1


async def test_a_version_that_was_given_up_says_nothing_for_the_one_that_serves(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even before all of its tasks are canceled."""
    plane = chain.plane
    await plane.deploy(DAG.replace("1000", "9000"))
    await chain.load(1)
    built, serving = sorted(await chain.worker.take("large"), key=lambda held: held.job.config["query"])[::-1]
    await chain.worker.store(serving, found((1, "a")))
    await plane.sink()
    await plane.meter()
    await chain.send()
    await chain.worker.store(built, found())
    await plane.sink()
    monkeypatch.setattr(cutover, "_CANCELED_AT_ONCE", 0)
    await plane.abort("chain")
    await plane.meter()
    assert await chain.queued() == [("alert", "delivered", "a moved 5000")]
    await plane.builds.run_once()
    assert set(await plane.states()) == {"completed", "canceled"}


async def test_what_a_dataset_of_another_dag_was_about_to_get_when_its_version_changed_is_no_history(
    chain: Chain,
) -> None:
    plane, worker = chain.plane, chain.worker
    alert = (
        DAG[DAG.index("alerts:") :]
        .replace("large", "huge")
        .replace("subject:", "position: block\n  subject:")
    )
    await plane.deploy(f"version: 1\ndag: watch\njobs: []\n{alert}")
    await chain.build()

    async def evaluate(**tables: pa.Table) -> None:
        for held in await worker.take("huge"):
            await worker.store(held, tables[f"b{held.scope.cursor}"])
        await chain.evaluate()

    await chain.load(1)
    await evaluate(b1=found((1, "a")))
    await plane.deploy(DAG.replace('"a:b"', '"a:c"'))
    await chain.build()
    await plane.emit("blocks", [2])
    for held in await worker.take("load"):
        if held.job.config["entrypoint"] == "a:c":  # what serves does not come to it
            await plane.report((held, worker.done(held)))
    await chain.evaluate()
    await chain.build()
    assert (await plane.versions("chain"))[0].state == "active"
    for _ in range(2):
        await evaluate(b1=found((1, "a"), (1, "old")), b2=found((2, "b")))
        await chain.build()
    assert [title for _, _, title in await chain.queued()] == ["a moved 5000", "b moved 5000"]
    assert await chain.suppressed() == [None, "backfill", None]
    assert await plane.sql("select 1 from alert_handovers") == []


async def test_what_a_version_had_found_that_was_given_up_is_history_for_the_next_one(chain: Chain) -> None:
    await chain.again(1, "a")
    await chain.plane.deploy(DAG.replace("1000", "500"))
    await chain.load(2)
    for held in await chain.worker.take("large"):
        is_new = "500" in held.job.config["query"]
        await chain.worker.store(held, found((2, "low")) if is_new else found())
    await chain.plane.sink()
    await chain.plane.meter()
    assert await chain.suppressed() == ["building"]
    await chain.plane.abort("chain")
    await chain.plane.deploy(DAG.replace("1000", "400"))
    await chain.build()
    await chain.evaluate(b2=found((2, "low")))
    await chain.build()
    assert (await chain.plane.versions("chain"))[0].state == "active"
    assert await chain.suppressed() == ["backfill"]
    assert await chain.queued() == []


def large_row(position: int, subject: dict[str, Any], fields: dict[str, Any]) -> pa.Table:
    row = {"position": position, "subject": json.dumps(subject), "fields": json.dumps(fields)}
    return pa.Table.from_pylist([row], schema=SCHEMA)


async def test_a_row_of_megabytes_is_cut_before_a_template_is_filled(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chain.plane.deploy(
        DAG.replace('"{tx} moved {fields.value}"', '"' + "{fields.value}" * 30 + '"')
        + '  text: "' + "{fields}" * 50 + '"\n'
    )  # fmt: skip
    filled: list[int] = []
    original = TextTemplate.filled

    def measured(template: TextTemplate, fillers: dict[str, Any], *bounds: int) -> str:
        filled.extend(len(str(filler)) for filler in fillers.values())
        text = original(template, fillers, *bounds)
        filled.append(len(text))
        return text

    monkeypatch.setattr(TextTemplate, "filled", measured)
    await chain.load(1, 2)
    await chain.evaluate(
        b1=large_row(1, {"tx": "a"}, {"value": "x" * 2_000_000}),
        b2=large_row(2, {"tx": "b"}, {"value": [0.5] * 100_000}),
    )
    assert max(filled) <= LONGEST_TEXT
    events = await chain.events()
    assert [len(event["title"]) for event in events] == [LONGEST_TITLE] * 2
    assert all(len(event["body"]) <= LONGEST_TEXT for event in events)
    values = [event["fields"]["value"] for event in events]
    assert values[0].endswith("… (2000000 characters)")
    assert values[1].startswith("[0.5,")
    assert max(map(len, values)) <= LONGEST_VALUE


async def test_a_pass_reads_so_many_bytes_and_leaves_the_rest_for_the_next_one(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_route, "MOST_BYTES", 2_500)
    reads: list[list[int]] = []
    original = alerts.found_rows

    async def recorded(*arguments: Any) -> alerts.Found:
        found = await original(*arguments)
        reads.append([row.position for row in found.rows])
        return found

    monkeypatch.setattr(alerts, "found_rows", recorded)
    await chain.load(1, 2, 3, 4, 5)
    await chain.evaluate(
        **{f"b{n}": large_row(n, {"tx": str(n)}, {"value": "x" * 1000}) for n in range(1, 6)}
    )
    assert [read for read in reads if read] == [[1, 2], [3, 4], [5]]
    assert len(await chain.queued()) == 5
    assert await chain.plane.states("large__route") == {"completed": 5}


async def test_a_task_of_many_bytes_takes_several_passes(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chain.load(1, 2, 3)
    await chain.evaluate(
        **{f"b{n}": large_row(n, {"tx": str(n)}, {"value": "x" * 1000}) for n in range(1, 4)}
    )
    await chain.plane.sql("delete from alert_events")
    await chain.plane.sql(
        "update tasks set state = 'queued', finished_at = null, range_end = 3 where range_start = 1"
        " and job_id in (select job_id from jobs where name = 'large__route')"
    )
    monkeypatch.setattr(alert_route, "MOST_BYTES", 2_500)
    await chain.plane.meter()
    assert [event["position"] for event in await chain.events()] == [1, 2, 3]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (large_row(1, {"tx": "x" * 10_001}, {}), "alert.subject_too_long"),
        (large_row(1, {"tx": "a"}, {"value": "x" * (17 << 20)}), "alert.too_large"),
    ],
)
async def test_a_row_that_cannot_be_told_apart_or_read_fails_its_task_alone(
    chain: Chain, row: pa.Table, code: str
) -> None:
    await chain.load(1, 2)
    await chain.evaluate(b1=row, b2=found((2, "a")))
    assert [event["title"] for event in await chain.events()] == ["a moved 5000"]
    (dead,) = await chain.plane.sql("select error from tasks where state = 'dead'")
    assert dead["error"]["code"] == code
