"""What `Client.emit` takes as scopes: docs/reference/client.md."""

from __future__ import annotations

from typing import Any

import pytest

from traceplane import client
from traceplane.client import Client
from traceplane.errors import InvalidInput
from traceplane.model.scope import Cursor, Partition
from traceplane.wire.control import EmitRequest, EmitResponse
from traceplane.wire.scalars import Scope

FORTIES = Scope(partition_key="40-46", start=40, end=46)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[EmitRequest]:
    """What is sent to the gateway."""
    sent: list[EmitRequest] = []

    def ask(_: Client, method: str, path: str, kind: object, body: EmitRequest) -> EmitResponse:
        sent.append(body)
        return EmitResponse(len(body.events), 0)

    monkeypatch.setattr(client.Client, "_ask", ask)
    return sent


def emit(scopes: Any) -> EmitResponse:
    return Client("http://127.0.0.1:1", "token").emit("shop.days", scopes)


@pytest.mark.parametrize(
    ("scopes", "events"),
    [
        (30, [Scope(cursor=30)]),
        (-5, [Scope(cursor=-5)]),
        ((40, 46), [FORTIES]),
        (Cursor(30), [Scope(cursor=30)]),
        (Partition.of_range(40, 46), [FORTIES]),
        (FORTIES, [FORTIES]),
        ([40, 46], [Scope(cursor=40), Scope(cursor=46)]),
        ([(40, 46), 3], [FORTIES, Scope(cursor=3)]),
        (((40, 46), 3), [FORTIES, Scope(cursor=3)]),
        (range(2), [Scope(cursor=0), Scope(cursor=1)]),
        ((n for n in (1, 2)), [Scope(cursor=1), Scope(cursor=2)]),
        ([], []),
    ],
)
def test_one_scope_or_many_can_be_emitted(
    requests: list[EmitRequest], scopes: Any, events: list[Scope]
) -> None:
    assert emit(scopes).accepted == len(events)
    assert [event.scope for request in requests for event in request.events] == events


@pytest.mark.parametrize(
    ("scopes", "code"),
    [
        ("3", "client.bad_scope"),
        (["3"], "client.bad_scope"),
        ("31", "client.bad_scope"),
        (None, "client.bad_scope"),
        (True, "client.bad_scope"),
        (1.5, "client.bad_scope"),
        (2**63, "client.bad_scope"),
        ([(1, 2, 3)], "client.bad_scope"),
        ([("a", 2)], "client.bad_scope"),
        ((5, 2), "client.empty_range"),
        ([(5, 2)], "client.empty_range"),
    ],
)
def test_an_invalid_scope_is_refused_and_nothing_is_sent(
    requests: list[EmitRequest], scopes: Any, code: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        emit(scopes)
    assert refused.value.code == code
    assert refused.value.value
    assert refused.value.next_step
    assert requests == []
