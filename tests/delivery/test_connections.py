"""Connections of messages: bounded for a process, and shared so that nobody is left without."""

from __future__ import annotations

import asyncio

import pytest

from tests.delivery.messages import LOOPBACK
from tests.delivery.receiver import pieces, receiving
from traceplane.delivery.connections import Connections
from traceplane.errors import PlatformError
from traceplane.http_service import outgoing
from traceplane.http_service.outgoing import Outgoing


def taken(connections: Connections, org: str, channel: str, most: int = 1000) -> int:
    count = 0
    while count < most and connections.take(org, channel):
        count += 1
    return count


def test_a_greedy_organization_leaves_connections_to_others() -> None:
    connections = Connections(256)
    by_channel = [taken(connections, "greedy", f"c{number}", 64) for number in range(40)]
    assert min(by_channel) >= 1
    assert sum(by_channel) <= 128 + 40
    assert taken(connections, "other", "x", 64) >= 8


def test_nothing_takes_more_than_there_are() -> None:
    connections = Connections(10)
    by_channel = [taken(connections, f"org{number}", f"c{number}") for number in range(20)]
    assert sum(by_channel) == 10
    for number, count in enumerate(by_channel):
        for _ in range(count):
            connections.give_back(f"org{number}", f"c{number}")
    assert taken(connections, "a", "a") > 1


def test_a_channel_that_has_none_is_the_next() -> None:
    connections, told = Connections(2), list[str]()
    assert [connections.take("a", name) for name in "xyzw"] == [True, True, False, False]
    for name in "zw":
        connections.wait(name, lambda name=name: told.append(name) if connections.take("b", name) else None)  # type: ignore[misc]
    connections.forget("w")
    connections.give_back("a", "x")
    assert told == ["z"]
    assert not connections.take("a", "x")
    connections.give_back("a", "y")
    assert told == ["z"]


async def test_few_idle_connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "_MOST_CONNECTIONS", 2)
    kept = outgoing._KeptLines()
    lines = [outgoing._Line([], 1.0, None, stays_open=True) for _ in range(5)]
    places = [outgoing.Destination("https", f"h{number}", 443) for number in range(5)]
    assert [kept.keep(*one) for one in zip(places, lines, strict=True)] == [True, True, False, False, False]
    assert kept.take(places[0]) is lines[0]
    assert kept.keep(places[4], lines[4])
    await kept.close()
    for line in lines:
        await line.aclose()


@pytest.mark.parametrize("status", [100, 103])
async def test_an_answer_that_is_only_announced_ends_soon(status: int) -> None:
    announced = f"HTTP/1.1 {status} Soon\r\n\r\n".encode()
    async with receiving(pieces(announced * 10_000, again=0.0)) as receiver:
        with pytest.raises(PlatformError) as failed:  # and not a TimeoutError
            async with asyncio.timeout(20):
                await Outgoing((LOOPBACK,), seconds=60).post(receiver.url, headers={}, body=b"{}")
    assert failed.value.code == "outgoing.failed"


async def test_an_answer_may_be_announced() -> None:
    announced = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 3
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    async with receiving(pieces(announced + answer)) as receiver:
        told = await Outgoing((LOOPBACK,)).post(receiver.url, headers={}, body=b"{}")
    assert (told.status, told.body) == (200, b"ok")
