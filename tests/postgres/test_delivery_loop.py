"""What waits for channels is sent at least once under one key, however receivers misbehave, and recorded once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from aiohttp import web

from tests.delivery.http_receiver import (
    Decide,
    HttpReceiver,
    accept,
    after,
    drop,
    hang,
    http_receiver,
    status,
)
from tests.delivery.messages import LOOPBACK
from tests.delivery.receiver import Receiver, answer, receiving, silence
from tests.platform import until
from tests.postgres.test_deliveries import Queue, alert
from traceplane import telemetry
from traceplane.delivery.connections import Connections
from traceplane.delivery.outcome import Dead, Delivered, Retry
from traceplane.delivery.sending import Channels
from traceplane.dispatcher.loops.deliveries import MOST_TRIES, Deliveries, recorded
from traceplane.http_service.outgoing import Outgoing, Resolve
from traceplane.model.json_object import JsonObject
from traceplane.model.message import Kind
from traceplane.postgres import channels
from traceplane.postgres.database import Database
from traceplane.postgres.deliveries import ClaimedDelivery
from traceplane.secrets.references import SecretName
from traceplane.secrets.sealed_store import SealedStore
from traceplane.secrets.vault import Vault

KEY = os.urandom(32)
FAST: JsonObject = {"per_second": 10_000, "burst": 10_000}


class Platform:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.vault = Vault(SealedStore(lambda: [KEY]))

    @contextlib.asynccontextmanager
    async def sending(
        self,
        *,
        seconds: float = 10,
        allow: Sequence[str] = (LOOPBACK,),
        resolve: Resolve | None = None,
        connections: int | None = None,
    ) -> AsyncIterator[Deliveries]:
        """A process that sends."""
        outgoing = Outgoing(allow, seconds=seconds, resolve=resolve, keeps_connections=True)
        loop = Deliveries(self.database, Channels(outgoing), self.vault, Connections(connections))

        async def run() -> None:
            while True:
                await loop.run_once()
                await asyncio.sleep(0.02)

        running = asyncio.create_task(run())
        try:
            yield loop
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await loop.finish()
            await outgoing.close()

    async def channel(self, name: str, receiver: HttpReceiver, **config: Any) -> Queue:
        queue = await Queue.of(self.database, name)
        async with self.database.transaction() as tx:
            settings = {"kind": "webhook", "url": receiver.url, **config}
            await channels.set_channel(tx, queue.org_id, name, settings, platform_alerts=False, by="somebody")
        return queue

    async def rows(self, statement: str) -> Sequence[Any]:
        async with self.database.autocommit() as tx:
            return await tx.rows(statement)

    async def states(self) -> dict[str, int]:
        rows = await self.rows("select state, count(*) as n from alert_deliveries group by state")
        return {row["state"]: row["n"] for row in rows}

    async def hurry(self) -> None:
        """Whatever waits for its next try is ready now."""
        await self.rows("update alert_deliveries set ready_at = tp_now() where state = 'waiting'")


@pytest.fixture
async def platform(database: Database) -> Platform:
    return Platform(database)


async def test_each_message_is_delivered_and_recorded_once(platform: Platform) -> None:
    async with http_receiver() as receiver:
        queue = await platform.channel("ops", receiver, **FAST)
        await queue.add(*(alert(f"a{n}") for n in range(500)))
        async with platform.sending(), platform.sending():
            await until(lambda: _are(platform, delivered=500))
    assert len(receiver.accepted) == 500
    assert set(receiver.came.values()) == {1}
    [row] = await platform.rows(
        "select min(tries), max(tries), count(ended_at), count(holder) from alert_deliveries"
    )
    assert tuple(row) == (1, 1, 500, 0)


async def _are(platform: Platform, **states: int) -> bool:
    return await platform.states() == states


@pytest.mark.parametrize(
    "trouble",
    [status(500), status(429, retry_after="0"), status(408), drop, hang],
    ids=["500", "429", "408", "dropped", "hangs"],
)
async def test_a_receiver_in_trouble_gets_the_message_again_under_the_same_key(
    platform: Platform, trouble: Decide
) -> None:
    async with http_receiver(after(1, trouble)) as receiver:
        queue = await platform.channel("ops", receiver, **FAST)
        await queue.add(alert("a"), alert("b"))
        async with platform.sending(seconds=1):
            await until(lambda: _tried(platform))
            await platform.hurry()
            await until(lambda: _are(platform, delivered=2))
    assert receiver.came == {"alert:a": 2, "alert:b": 2}
    assert sorted(receiver.accepted) == ["alert:a", "alert:b"]


async def _tried(platform: Platform) -> bool:
    rows = await platform.rows("select 1 from alert_deliveries where tries = 0 or holder is not null")
    return not rows


async def test_retry_after_is_the_least_that_a_message_waits(platform: Platform) -> None:
    async with http_receiver(status(429, retry_after="600")) as receiver:
        queue = await platform.channel("ops", receiver)
        await queue.add(alert("a"))
        async with platform.sending():
            await until(lambda: _tried(platform))
    [row] = await platform.rows("select ready_at - tp_now() as wait, failure from alert_deliveries")
    assert 590 < row["wait"].total_seconds() <= 600
    assert row["failure"]["code"] == "delivery.unavailable"


async def test_a_refused_message_is_dead_with_the_reason(platform: Platform) -> None:
    async with http_receiver(status(403)) as receiver:
        queue = await platform.channel("ops", receiver)
        await queue.add(alert("a"))
        async with platform.sending():
            await until(lambda: _are(platform, dead=1))
    [row] = await platform.rows("select failure from alert_deliveries")
    assert row["failure"] == {"code": "delivery.refused", "reason": "the answer was 403"}


async def test_the_log_has_the_status_of_an_answer_and_not_its_words(
    platform: Platform, capfd: pytest.CaptureFixture[str]
) -> None:
    """They may repeat what the receiver got."""
    telemetry.configure("test")
    async with receiving(answer(400, b"no such user: ada@example.com")) as receiver:
        queue = await platform.channel("ops", HttpReceiver(), url=receiver.url)
        await queue.add(alert("a"))
        async with platform.sending():
            await until(lambda: _are(platform, dead=1))
    [row] = await platform.rows("select failure from alert_deliveries")
    assert "ada@example.com" in row["failure"]["reason"]
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if "delivery.dead" in line]
    assert [(line["code"], line["status"]) for line in lines] == [("delivery.refused", 400)]
    assert "ada" not in repr(lines)


def test_twenty_tries_take_about_a_day() -> None:
    tries = [ClaimedDelivery(alert_id, n, alert("a"), 0.0) for n in range(1, MOST_TRIES + 1)]
    outcomes = [recorded(one, Retry("x", "y")) for one in tries]
    assert [one.state for one in outcomes] == ["waiting"] * (MOST_TRIES - 1) + ["dead"]
    assert 10 * 3600 < sum(one.pause_seconds for one in outcomes) < 36 * 3600
    assert recorded(tries[0], Retry("x", "y", 9999.0)).pause_seconds == 9999.0
    assert recorded(tries[0], Dead("x", "y")).state == "dead"
    assert recorded(tries[-1], Delivered()).state == "delivered"


alert_id = uuid4()


async def test_a_channel_that_hangs_holds_up_no_other(platform: Platform) -> None:
    async with http_receiver(hang) as dead_end, http_receiver() as receiver:
        for name, one in (("a", dead_end), ("b", receiver)):
            queue = await platform.channel(name, one, **FAST)
            await queue.add(*(alert(f"{name}{n}") for n in range(100)))
        async with platform.sending(seconds=8):
            async with asyncio.timeout(7):
                await until(lambda: _are(platform, waiting=100, delivered=100))
        assert len(receiver.accepted) == 100


async def test_many_silent_channels_use_up_no_connections(platform: Platform) -> None:
    async with receiving(silence) as dead_end, http_receiver() as receiver:
        for number in range(12):
            queue = await platform.channel(f"s{number}", HttpReceiver(), **FAST, url=dead_end.url)
            await queue.add(*(alert(f"s{number}-{n}") for n in range(30)))
        async with platform.sending(seconds=8, connections=24):
            await until(lambda: _connected(dead_end, 12))
            queue = await platform.channel("good", receiver, **FAST)
            await queue.add(*(alert(f"good{n}") for n in range(20)))
            async with asyncio.timeout(6):
                await until(lambda: _accepted(receiver, 20))
            assert dead_end.connections <= 23
    rows = await platform.rows("select count(*) as n from alert_deliveries where tries > 1")
    assert rows[0]["n"] == 0


async def _connected(receiver: Receiver, times: int) -> bool:
    return receiver.connections >= times


async def _accepted(receiver: HttpReceiver, times: int) -> bool:
    return len(receiver.accepted) >= times


async def test_a_channel_waits_for_its_turn_if_there_are_no_connections(platform: Platform) -> None:
    async with receiving(silence) as dead_end, http_receiver() as receiver:
        for number in range(4):
            queue = await platform.channel(f"s{number}", HttpReceiver(), **FAST, url=dead_end.url)
            await queue.add(*(alert(f"s{number}-{n}") for n in range(5)))
        async with platform.sending(seconds=2, connections=4):
            await until(lambda: _connected(dead_end, 4))
            queue = await platform.channel("good", receiver, **FAST)
            await queue.add(*(alert(f"good{n}") for n in range(20)))
            await until(lambda: _accepted(receiver, 20))
    [row] = await platform.rows("select max(tries), count(*) from alert_deliveries where state = 'delivered'")
    assert tuple(row) == (1, 20)


async def test_another_receiver_of_a_channel_does_not_wait_for_what_the_one_before_asked_for(
    platform: Platform,
) -> None:
    async with http_receiver(status(429, retry_after="86400")) as before, http_receiver() as receiver:
        queue = await platform.channel("ops", before)
        await queue.add(alert("a"))
        async with platform.sending():
            await until(lambda: _tried(platform))
            await platform.channel("ops", receiver)
            await queue.add(alert("b"))
            await until(lambda: _are(platform, delivered=2))
    assert sorted(receiver.accepted) == ["alert:a", "alert:b"]


async def test_what_waits_is_ready_with_all_its_tries_when_a_channel_leads_elsewhere(
    platform: Platform,
) -> None:
    """Also if no process knows the receiver before."""
    async with http_receiver(status(429, retry_after="86400")) as before, http_receiver() as receiver:
        queue = await platform.channel("ops", before)
        await queue.add(alert("a"))
        async with platform.sending():
            await until(lambda: _tried(platform))
        await platform.channel("ops", receiver)
        [row] = await platform.rows(
            "select ready_at <= tp_now() as ready, tries - forgiven_tries as counted from alert_deliveries"
        )
        assert tuple(row) == (True, 0)
        async with platform.sending():
            await until(lambda: _are(platform, delivered=1))


async def test_an_answer_that_comes_after_the_channel_was_changed_holds_up_nothing(
    platform: Platform,
) -> None:
    changed = asyncio.Event()

    async def late(key: str, times: int) -> web.Response | None:
        await changed.wait()
        return web.Response(status=429, headers={"retry-after": "86400"})

    async with http_receiver(late) as before, http_receiver() as receiver:
        queue = await platform.channel("ops", before)
        await queue.add(alert("a"))
        async with platform.sending():
            await until(lambda: _came(before, 1))
            await platform.channel("ops", receiver)
            changed.set()
            await until(lambda: _are(platform, delivered=1))
    assert receiver.accepted == ["alert:a"]


async def test_the_same_config_again_changes_nothing(platform: Platform) -> None:
    async with http_receiver(status(429, retry_after="600")) as receiver:
        queue = await platform.channel("ops", receiver)
        await queue.add(alert("a"))
        async with platform.sending():
            await until(lambda: _tried(platform))
            async with platform.database.transaction() as tx:
                config = {"kind": "webhook", "url": receiver.url}
                await channels.set_channel(tx, queue.org_id, "ops", config, platform_alerts=True, by="x")
    [row] = await platform.rows("select ready_at - tp_now() as wait from alert_deliveries")
    assert row["wait"].total_seconds() > 500


async def test_after_failures_a_channel_is_left_alone_and_its_messages_are_not_tried(
    platform: Platform,
) -> None:
    async with http_receiver(status(500)) as receiver:
        queue = await platform.channel("ops", receiver, per_second=10_000, burst=1)
        await queue.add(*(alert(f"a{n}") for n in range(30)))
        async with platform.sending():
            await until(lambda: _came(receiver, 5))
            await asyncio.sleep(0.5)
    assert sum(receiver.came.values()) < 15
    [row] = await platform.rows("select count(*) as n from alert_deliveries where tries = 0")
    assert row["n"] >= 15


async def _came(receiver: HttpReceiver, times: int) -> bool:
    return sum(receiver.came.values()) >= times


async def test_what_a_paused_channel_has_claimed_is_given_back(platform: Platform) -> None:
    """Hundreds are claimed ahead; when the channel fails, they are not tried, and others may withdraw them."""
    async with http_receiver(status(500)) as receiver:
        queue = await platform.channel("ops", receiver, **FAST)
        await queue.add(*(alert(f"a{n}") for n in range(400)))
        async with platform.sending():
            await until(lambda: _nothing_is_held(platform))
    [row] = await platform.rows(
        "select count(*) filter (where tries = 0) as untried, max(tries) from alert_deliveries"
    )
    assert row["untried"] >= 400 - 2 * 64
    assert sum(receiver.came.values()) == 400 - row["untried"]
    assert row["max"] == 1


async def _nothing_is_held(platform: Platform) -> bool:
    [row] = await platform.rows("select count(holder) as held, sum(tries) as tries from alert_deliveries")
    return row["tries"] > 0 and row["held"] == 0


async def test_messages_that_follow_each_other_share_connections(platform: Platform) -> None:
    async with receiving(answer(204)) as closing, http_receiver() as receiver:
        queue = await platform.channel("ops", receiver, **FAST)
        other = await platform.channel("other", HttpReceiver(port=closing.port), **FAST)
        await queue.add(*(alert(f"a{n}") for n in range(300)))
        await other.add(*(alert(f"b{n}") for n in range(30)))
        async with platform.sending():
            await until(lambda: _are(platform, delivered=330))
        assert len(receiver.connections) <= 64
        assert closing.connections == 30  # it closes each, and none of its messages is lost or sent twice
        assert len(closing.received) == 30


async def test_a_channel_keeps_its_pace(platform: Platform) -> None:
    async with http_receiver() as receiver:
        queue = await platform.channel("ops", receiver)
        await queue.add(*(alert(f"a{n}") for n in range(10)))
        async with platform.sending():
            await until(lambda: _came(receiver, 5))
            await asyncio.sleep(1.2)
            assert 5 <= len(receiver.accepted) <= 7  # a burst of five, then one a second
        assert receiver.accepted == [f"alert:a{n}" for n in range(len(receiver.accepted))]


async def test_a_retraction_never_comes_before_its_alert(platform: Platform) -> None:
    async def slow_for_alerts(key: str, times: int) -> Any:
        if key.startswith("alert:"):
            await asyncio.sleep(0.1)
            return await (status(500) if times == 1 else accept)(key, times)
        return await accept(key, times)

    async with http_receiver(slow_for_alerts) as receiver:
        queue = await platform.channel("ops", receiver, **FAST)
        names = [f"a{n}" for n in range(4)]
        await queue.add(*(alert(name) for name in names), *(alert(name, Kind.RETRACTION) for name in names))
        async with platform.sending():
            await until(lambda: _came(receiver, 4))
            await asyncio.sleep(0.3)
            assert receiver.accepted == []
            await platform.hurry()
            await until(lambda: _are(platform, delivered=8))
    for name in names:
        assert receiver.accepted.index(f"alert:{name}") < receiver.accepted.index(f"retraction:{name}")


async def test_what_a_process_left_unrecorded_is_sent_again_after_its_lease(platform: Platform) -> None:
    async with http_receiver() as receiver:
        queue = await platform.channel("ops", receiver, **FAST)
        await queue.add(alert("a"))
        await queue.lease()  # by a process that dies
        [claimed] = await queue.claim(queue.process)
        async with platform.sending():
            await asyncio.sleep(0.3)
            assert not receiver.came
            await platform.rows("update channel_leases set expires_at = tp_now() - interval '1 second'")
            await until(lambda: _are(platform, delivered=1))
    assert receiver.came == {claimed.message.key: 1}
    [row] = await platform.rows("select tries from alert_deliveries")
    assert row["tries"] == 2


async def test_a_dropped_connection_between_messages_costs_no_try(platform: Platform) -> None:
    async with http_receiver() as receiver:
        queue = await platform.channel("ops", receiver, **FAST)
        async with platform.sending():
            await queue.add(alert("a"))
            await until(lambda: _are(platform, delivered=1))
        port = receiver.port
    async with platform.sending() as loop:
        async with http_receiver(port=port) as receiver:
            await queue.add(alert("b"))
            await until(lambda: _are(platform, delivered=2))
        async with http_receiver(port=port) as receiver:  # restarted
            await queue.add(alert("c"))
            await until(lambda: _are(platform, delivered=3))
        assert loop is not None
    [row] = await platform.rows("select max(tries) as most from alert_deliveries")
    assert row["most"] == 1


async def test_secrets_are_handed_out_when_a_message_is_sent(platform: Platform) -> None:
    async with http_receiver() as receiver:
        queue = await platform.channel("ops", receiver, signing_keys=["${secret:hook_key}"])
        await queue.add(alert("a"))
        async with platform.sending():
            await until(lambda: _are(platform, dead=1))
            [row] = await platform.rows("select failure from alert_deliveries")
            assert row["failure"]["code"] == "delivery.secret_denied"
            assert "hook_key" in row["failure"]["reason"]
            await _set_secret(platform, "hook_key", ["channel/other"])
            await queue.add(alert("b"))
            await until(lambda: _are(platform, dead=2))
            await _set_secret(platform, "hook_key", ["channel/ops"])
            await asyncio.sleep(1.1)  # a sender may use what it has read for a second
            await queue.add(alert("c"))
            await until(lambda: _are(platform, dead=2, delivered=1))
    assert receiver.accepted == ["alert:c"]


async def _set_secret(platform: Platform, name: str, jobs: list[str]) -> None:
    async with platform.database.transaction() as tx:
        org = await tx.value("select slug from orgs")
        await platform.vault.set(tx, org, SecretName("user", name), "k" * 32, by="somebody", jobs=(jobs,))


async def test_another_config_is_used_for_what_waits(platform: Platform) -> None:
    async with http_receiver(status(500)) as broken, http_receiver() as working:
        queue = await platform.channel("ops", broken, **FAST)
        await queue.add(alert("a"))
        async with platform.sending():
            await until(lambda: _tried(platform))
            await platform.channel("ops", working, **FAST)
            await asyncio.sleep(1.1)
            await platform.hurry()
            await until(lambda: _are(platform, delivered=1))
    assert working.accepted == ["alert:a"]


async def test_messages_say_what_was_queued(platform: Platform) -> None:
    async with http_receiver() as receiver:
        queue = await platform.channel("ops", receiver)
        await queue.add(replace(alert("a"), title="Dropped", count=3))
        async with platform.sending():
            await until(lambda: _are(platform, delivered=1))
    [body] = receiver.bodies
    assert (body["title"], body["count"], body["subject"]["price"]) == ("Dropped", 3, "101.10")
