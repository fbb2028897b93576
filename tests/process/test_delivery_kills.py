"""`traceplane delivery` is killed after it has sent a message and before it has recorded that: the message comes again.

It comes under the same key, so that a receiver which ignores keys that it knows gets it once. Guarantee 8 of
docs/guarantees.md.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from tests.delivery.http_receiver import HttpReceiver, http_receiver
from tests.delivery.messages import MESSAGE
from tests.platform import Platform, until
from traceplane.postgres import deliveries
from traceplane.postgres.database import Database
from traceplane.postgres.deliveries import NewDelivery


@pytest.fixture
async def platform(database_url: str, tmp_path: Path) -> AsyncIterator[Platform]:
    """Without a dispatcher, which would send too."""
    settings = {"TRACEPLANE_OUTGOING_ALLOW": "127.0.0.0/8"}
    async with Platform.start(
        database_url, tmp_path, dispatchers=0, workers=0, gateway=False, environment=settings
    ) as platform:
        yield platform


async def queue(platform: Platform, receiver: HttpReceiver) -> None:
    await platform.sql(
        "insert into channels (org_id, name, config, changed_by) select org_id, 'ops',"
        " jsonb_build_object('kind', 'webhook', 'url', $1::text), 'test' from orgs",
        receiver.url,
    )
    database = await Database.connect(platform.url, connections=1)
    async with database.transaction() as tx:
        row = await tx.row("select org_id, channel_id from channels")
        assert row is not None
        await deliveries.queue(tx, [NewDelivery(row["org_id"], row["channel_id"], MESSAGE)])
    await database.close()


async def recorded(platform: Platform) -> tuple[str, int]:
    [row] = await platform.sql("select state, tries from alert_deliveries")
    return row["state"], row["tries"]


def is_delivered(platform: Platform) -> Callable[[], Awaitable[bool]]:
    async def delivered() -> bool:
        return (await recorded(platform))[0] == "delivered"

    return delivered


async def test_a_message_that_was_answered_and_not_recorded_comes_again_under_its_key(
    platform: Platform,
) -> None:
    async with http_receiver() as receiver:
        await queue(platform, receiver)
        delivery = platform.add("delivery-1", "delivery")
        await delivery.start(crash_at="deliver.before_commit")
        assert await delivery.died(60) == -signal.SIGKILL
        assert receiver.came == {MESSAGE.key: 1}
        assert await recorded(platform) == ("waiting", 1)
        await delivery.start()
        await until(is_delivered(platform), what="delivered")
    assert receiver.came == {MESSAGE.key: 2}
    assert receiver.accepted == [MESSAGE.key]
    assert await recorded(platform) == ("delivered", 2)


async def test_another_process_sends_again_what_one_was_sending_when_it_was_killed(
    platform: Platform,
) -> None:
    sent, killed = asyncio.Event(), asyncio.Event()

    async def answer_too_late(_key: str, times: int) -> web.Response | None:
        if times == 1:
            sent.set()
            await killed.wait()
        return web.Response(status=204)

    async with http_receiver(answer_too_late) as receiver:
        await queue(platform, receiver)
        first, second = (platform.add(f"delivery-{n}", "delivery") for n in (1, 2))
        await first.start()
        async with asyncio.timeout(60):
            await sent.wait()
        await first.kill()
        killed.set()
        await second.start()
        await until(is_delivered(platform), what="delivered")
    assert receiver.came == {MESSAGE.key: 2}
    assert receiver.accepted == [MESSAGE.key]
