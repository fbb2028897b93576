"""The contract of every wake queue, on Postgres and on SQS; then SQS's own behaviour."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

import pytest
from aiobotocore.session import AioSession
from aiohttp import web

from tests.contract.gate import Gate
from traceplane.adapters.wake_queue import MAX_RECEIVES, Depth, Message, WakeQueue
from traceplane.adapters.wake_queue_postgres import PostgresWakeQueue
from traceplane.adapters.wake_queue_sqs import SqsWakeQueue
from traceplane.errors import QueueUnavailable
from traceplane.postgres.database import Database

REGION = "eu-central-1"
QUEUE = "python"


class Broker:
    """Where the queues are. Each `connect` is like another process: it shares nothing but the server."""

    def __init__(self, gate: Gate, connect: Callable[[], Awaitable[WakeQueue]]) -> None:
        self.gate = gate
        self.connect = connect


@contextlib.asynccontextmanager
async def postgres_broker(database_url: str) -> AsyncIterator[Broker]:
    url = urlsplit(database_url)
    place = parse_qs(url.query)
    path = f"{place['host'][0]}/.s.PGSQL.{place['port'][0]}"
    gate = Gate(lambda: asyncio.open_unix_connection(path))
    await gate.open()
    stop = asyncio.Event()
    async with contextlib.AsyncExitStack() as opened, asyncio.TaskGroup() as listeners:
        opened.callback(stop.set)

        async def connect() -> WakeQueue:
            through_gate = f"postgresql://{url.username}:{url.password}@127.0.0.1:{gate.port}{url.path}"
            database = await Database.connect(through_gate, connections=4)
            opened.push_async_callback(database.close)
            queue = PostgresWakeQueue(database)
            listeners.create_task(queue.listen(stop))
            return queue

        yield Broker(gate, connect)
        stop.set()
    await gate.shut()


@contextlib.asynccontextmanager
async def sqs_broker(endpoint: str, session: AioSession) -> AsyncIterator[Broker]:
    port = urlsplit(endpoint).port
    gate = Gate(lambda: asyncio.open_connection("127.0.0.1", port))
    await gate.open()
    prefix = f"{uuid4().hex}-"
    async with contextlib.AsyncExitStack() as opened:

        async def connect() -> WakeQueue:
            queue = SqsWakeQueue(
                region=REGION,
                queue_prefix=prefix,
                endpoint_url=f"http://127.0.0.1:{gate.port}",
                session=session,
            )
            opened.push_async_callback(queue.close)
            return queue

        yield Broker(gate, connect)
    await gate.shut()


@pytest.fixture(params=["postgres", "sqs"])
def place(request: pytest.FixtureRequest) -> contextlib.AbstractAsyncContextManager[Broker]:
    if request.param == "postgres":
        return postgres_broker(request.getfixturevalue("database_url"))
    return sqs_broker(request.getfixturevalue("aws_endpoint"), request.getfixturevalue("aws_session"))


@pytest.fixture
async def broker(place: contextlib.AbstractAsyncContextManager[Broker]) -> AsyncIterator[Broker]:
    async with place as broker:
        yield broker


@pytest.fixture
async def queue(broker: Broker) -> WakeQueue:
    return await broker.connect()


async def receive(
    queue: WakeQueue, limit: int = 10, *, wait: float = 0.0, visibility: float = 30.0, name: str = QUEUE
) -> list[Message]:
    return await queue.receive(name, limit, wait_seconds=wait, visibility_seconds=visibility)


def tasks(messages: list[Message]) -> list[UUID]:
    return sorted(m.task_id for m in messages)


def new_tasks(count: int) -> list[UUID]:
    return sorted(uuid4() for _ in range(count))


async def test_a_sent_task_is_received_until_it_is_deleted(queue: WakeQueue) -> None:
    sent = new_tasks(3)
    await queue.send(QUEUE, sent)
    assert await queue.depth(QUEUE) == Depth(visible=3, hidden=0, dead=0)
    messages = await receive(queue)
    assert tasks(messages) == sent
    assert {m.receives for m in messages} == {1}
    assert await queue.depth(QUEUE) == Depth(visible=0, hidden=3, dead=0)
    await queue.delete(QUEUE, [m.receipt for m in messages])
    assert await queue.depth(QUEUE) == Depth(visible=0, hidden=0, dead=0)


async def test_an_empty_queue_returns_nothing_after_the_wait(queue: WakeQueue) -> None:
    await receive(queue)
    started = time.monotonic()
    assert await receive(queue, wait=1.0) == []
    assert time.monotonic() - started >= 0.9


async def test_calls_without_tasks_or_receipts_are_allowed(queue: WakeQueue) -> None:
    await queue.send(QUEUE, [])
    await queue.delete(QUEUE, [])
    await queue.release(QUEUE, [])
    assert await queue.extend(QUEUE, [], 10) == 0


async def test_queues_do_not_mix(queue: WakeQueue) -> None:
    (here,) = new_tasks(1)
    await queue.send("spark", [here])
    assert await receive(queue) == []
    assert tasks(await receive(queue, name="spark")) == [here]


async def test_a_waiting_receiver_gets_what_another_process_sends(broker: Broker) -> None:
    waiting, sending = await broker.connect(), await broker.connect()
    assert await receive(waiting) == []
    waiter = asyncio.create_task(receive(waiting, wait=120))
    await asyncio.sleep(0.3)  # no condition says that the other side waits
    assert not waiter.done()
    (sent,) = new_tasks(1)
    await sending.send(QUEUE, [sent])
    async with asyncio.timeout(60):
        assert tasks(await waiter) == [sent]


async def test_a_message_not_deleted_comes_back_when_its_visibility_ends(queue: WakeQueue) -> None:
    (sent,) = new_tasks(1)
    await queue.send(QUEUE, [sent])
    (first,) = await receive(queue, visibility=60)
    assert await receive(queue) == []
    # Shortened only now: a slow machine may take a second between two calls.
    assert await queue.extend(QUEUE, [first.receipt], 1) == 1
    (second,) = await receive(queue, wait=10)
    assert (second.task_id, second.receives) == (first.task_id, 2)


async def test_an_extended_message_stays_hidden(queue: WakeQueue) -> None:
    await queue.send(QUEUE, new_tasks(1))
    (message,) = await receive(queue, visibility=1)
    assert await queue.extend(QUEUE, [message.receipt], 30) == 1
    assert await receive(queue, wait=2) == []
    assert (await queue.depth(QUEUE)).hidden == 1


async def test_a_released_message_is_visible_immediately(queue: WakeQueue) -> None:
    await queue.send(QUEUE, new_tasks(1))
    (message,) = await receive(queue, visibility=60)
    await queue.release(QUEUE, [message.receipt])
    (again,) = await receive(queue)
    assert again.task_id == message.task_id


async def test_a_message_received_too_often_is_a_dead_letter(queue: WakeQueue) -> None:
    await queue.send(QUEUE, new_tasks(1))
    for receives in range(1, MAX_RECEIVES + 1):
        (message,) = await receive(queue, limit=1, visibility=0, wait=5)
        assert message.receives == receives
    async with asyncio.timeout(120):
        while (await queue.depth(QUEUE)).dead == 0:  # buried by whoever receives next, within a second
            assert await receive(queue) == []
    assert await queue.depth(QUEUE) == Depth(visible=0, hidden=0, dead=1)


async def test_a_call_may_exceed_the_servers_batch_size(queue: WakeQueue) -> None:
    sent = new_tasks(37)
    await queue.send(QUEUE, sent)
    some = await receive(queue, limit=12)
    assert len(some) == 12
    rest = await receive(queue, limit=100)
    assert tasks(some + rest) == sent
    receipts = [m.receipt for m in some + rest]
    assert await queue.extend(QUEUE, receipts, 60) == 37
    await queue.release(QUEUE, receipts[:20])
    assert (await queue.depth(QUEUE)).visible == 20
    await queue.delete(QUEUE, receipts)
    assert await queue.depth(QUEUE) == Depth(visible=0, hidden=0, dead=0)


async def test_two_receivers_share_the_messages(broker: Broker) -> None:
    one, other = await broker.connect(), await broker.connect()
    sent = new_tasks(30)
    await one.send(QUEUE, sent)

    async def drain(queue: WakeQueue) -> list[Message]:
        taken: list[Message] = []
        while messages := await receive(queue, limit=5):
            taken += messages
        return taken

    first = [await receive(one, limit=5), await receive(other, limit=5)]
    assert all(first)
    drained = await asyncio.gather(drain(one), drain(other))
    received = tasks([m for taken in (*first, *drained) for m in taken])
    # A queue may repeat a message, which the claim makes harmless; none may be missing.
    assert sorted(set(received)) == sent


async def test_an_invalid_receipt_is_ignored(queue: WakeQueue) -> None:
    await queue.send(QUEUE, new_tasks(2))
    gone, kept = await receive(queue)
    await queue.delete(QUEUE, [gone.receipt])
    odd = [gone.receipt, "123456789", "9" * 40, "nonsense"]
    await queue.delete(QUEUE, odd)
    await queue.release(QUEUE, odd)
    assert await queue.extend(QUEUE, [*odd, kept.receipt], 60) == 1
    assert await queue.depth(QUEUE) == Depth(visible=0, hidden=1, dead=0)


async def test_a_queue_that_is_down_is_unavailable_until_it_returns(broker: Broker) -> None:
    queue = await broker.connect()
    (before, after) = new_tasks(2)
    await queue.send(QUEUE, [before])
    await broker.gate.shut()
    calls: list[Awaitable[object]] = [
        queue.send(QUEUE, [after]),
        receive(queue),
        queue.delete(QUEUE, ["1"]),
        queue.extend(QUEUE, ["1"], 10),
        queue.release(QUEUE, ["1"]),
        queue.depth(QUEUE),
    ]
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, QueueUnavailable)
        assert outcome.code == "queue.unavailable"
    await broker.gate.open()
    await eventually(lambda: queue.send(QUEUE, [after]))
    assert set(tasks(await receive(queue, wait=5))) >= {before}


async def eventually(call: Callable[[], Awaitable[None]]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            return await call()
        except QueueUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


# SQS's own ------------------------------------------------------------------------------------------


@pytest.fixture
async def sqs(aws_endpoint: str, aws_session: AioSession) -> AsyncIterator[Any]:
    """A plain client, to look at the queues from outside."""
    async with aws_session.create_client("sqs", region_name=REGION, endpoint_url=aws_endpoint) as client:
        yield client


@pytest.fixture
async def sqs_queue(aws_endpoint: str, aws_session: AioSession) -> AsyncIterator[SqsWakeQueue]:
    queue = SqsWakeQueue(
        region=REGION, queue_prefix=f"{uuid4().hex}-", endpoint_url=aws_endpoint, session=aws_session
    )
    yield queue
    await queue.close()


async def url_of(sqs: Any, suffix: str) -> str:
    urls = (await sqs.list_queues()).get("QueueUrls", [])
    return str(next(url for url in reversed(urls) if url.endswith(suffix)))


async def test_sqs_bodies_are_the_task_id_and_nothing_else(sqs: Any, sqs_queue: SqsWakeQueue) -> None:
    (sent,) = new_tasks(1)
    await sqs_queue.send("bodies", [sent])
    answer = await sqs.receive_message(QueueUrl=await url_of(sqs, "-bodies"))
    assert [json.loads(m["Body"]) for m in answer["Messages"]] == [{"task_id": str(sent)}]


async def test_sqs_queues_are_created_with_their_dead_letters(sqs: Any, sqs_queue: SqsWakeQueue) -> None:
    await sqs_queue.send("created", new_tasks(1))
    names = ["QueueArn", "RedrivePolicy", "MessageRetentionPeriod", "FifoQueue"]
    queue = await sqs.get_queue_attributes(QueueUrl=await url_of(sqs, "-created"), AttributeNames=names)
    dead = await sqs.get_queue_attributes(QueueUrl=await url_of(sqs, "-created-dead"), AttributeNames=names)
    assert json.loads(queue["Attributes"]["RedrivePolicy"]) == {
        "deadLetterTargetArn": dead["Attributes"]["QueueArn"],
        "maxReceiveCount": MAX_RECEIVES,
    }
    assert "FifoQueue" not in queue["Attributes"]
    assert int(dead["Attributes"]["MessageRetentionPeriod"]) > int(
        queue["Attributes"]["MessageRetentionPeriod"]
    )


async def test_sqs_foreign_messages_are_deleted_and_logged(
    sqs: Any, sqs_queue: SqsWakeQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    (sent,) = new_tasks(1)
    await sqs_queue.send("strangers", [sent])
    url = await url_of(sqs, "-strangers")
    for body in ("hello", "{}", '{"task_id": "x"}', f'{{"task_id": "{sent}", "more": 1}}', "[" * 2000):
        await sqs.send_message(QueueUrl=url, MessageBody=body)
    assert tasks(await receive(sqs_queue, name="strangers")) == [sent]
    assert await sqs_queue.depth("strangers") == Depth(visible=0, hidden=1, dead=0)
    assert capsys.readouterr().err.count("wake.foreign_message") == 5


async def test_sqs_a_deleted_queue_is_created_again(sqs: Any, sqs_queue: SqsWakeQueue) -> None:
    (sent,) = new_tasks(1)
    await sqs_queue.send("deleted", new_tasks(1))
    await sqs.delete_queue(QueueUrl=await url_of(sqs, "-deleted"))
    with pytest.raises(QueueUnavailable):
        await sqs_queue.send("deleted", [sent])
    await sqs_queue.send("deleted", [sent])
    assert tasks(await receive(sqs_queue, name="deleted")) == [sent]


async def test_sqs_failed_entries_of_a_batch_are_sent_again(aws_session: AioSession) -> None:
    """moto never fails in part, so a server that does so answers here."""
    arrived: list[str] = []
    calls = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal calls
        operation = request.headers["x-amz-target"].removeprefix("AmazonSQS.")
        body = await request.json()
        if operation == "GetQueueUrl":
            return web.json_response({"QueueUrl": f"http://{request.host}/1/{body['QueueName']}"})
        calls += 1
        good = [
            e for i, e in enumerate(body["Entries"]) if i % 2 == 0 and body["QueueUrl"].endswith("/flaky")
        ]
        bad = [e for e in body["Entries"] if e not in good]
        arrived.extend(json.loads(e["MessageBody"])["task_id"] for e in good)
        return web.json_response(
            {
                "Successful": [{"Id": e["Id"], "MessageId": "m", "MD5OfMessageBody": "0"} for e in good],
                "Failed": [{"Id": e["Id"], "SenderFault": False, "Code": "InternalError"} for e in bad],
            },
            content_type="application/x-amz-json-1.0",
        )

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    queue = SqsWakeQueue(region=REGION, endpoint_url=f"http://127.0.0.1:{port}", session=aws_session)
    try:
        sent = new_tasks(4)
        await queue.send("flaky", sent)  # 4 → 2 arrive → 1 → 1
        assert sorted(arrived) == [str(t) for t in sent]
        assert calls == 3
        with pytest.raises(QueueUnavailable, match="InternalError"):
            await queue.send("broken", sent)
    finally:
        await queue.close()
        await runner.cleanup()
