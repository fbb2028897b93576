"""What `Client.emit` takes as scopes: docs/reference/client.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from traceplane.client import Client
from traceplane.client.connection import Connection
from traceplane.errors import InvalidInput
from traceplane.model.scope import Cursor, Partition
from traceplane.wire.control import EmitRequest, EmitResponse
from traceplane.wire.deploys import DeployRequest
from traceplane.wire.scalars import Scope

FORTIES = Scope(partition_key="40-46", start=40, end=46)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[EmitRequest]:
    """What is sent to the gateway."""
    sent: list[EmitRequest] = []

    def ask(_: Connection, method: str, path: str, kind: object, body: EmitRequest) -> EmitResponse:
        sent.append(body)
        return EmitResponse(len(body.events), 0)

    monkeypatch.setattr(Connection, "ask", ask)
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
    ("scopes", "partitions"),
    [
        ("2026-11-16", [("2026-11-16", None)]),
        ("2026-11-01..2026-11-16", [("2026-11-01", "2026-11-16")]),
        (["eu", "us"], [("eu", None), ("us", None)]),
    ],
)
def test_partitions_are_emitted_by_name(
    requests: list[EmitRequest], scopes: Any, partitions: list[tuple[str, str | None]]
) -> None:
    emit(scopes)
    events = [event for request in requests for event in request.events]
    assert [(event.scope, event.partition, event.through) for event in events] == [
        (None, first, last) for first, last in partitions
    ]


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


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda c: c.query("select 1", as_of_version="x"), "as_of_version"),
        (lambda c: c.query("select 1", as_of_version={"shop": "x"}), "as_of_version"),
        (lambda c: c.query("select 1", as_of_time="yesterday"), "as_of_time"),
        (lambda c: c.query("select 1", max_rows="many"), "max_rows"),
        (lambda c: c.query(3), "sql"),
        (lambda c: c.query(object()), "object"),
        (lambda c: c.emit(3, 1), "dataset"),
        (lambda c: c.explain("the first"), "task_id"),
        (lambda c: c.logs("a/../b"), "task_id"),
    ],
)
def test_an_argument_of_the_wrong_shape_is_refused_before_anything_is_sent(
    call: Callable[[Client], object], named: str
) -> None:
    client = Client("http://127.0.0.1:9", "tpu_x")
    with pytest.raises(InvalidInput) as refused:
        call(client)
    assert refused.value.code == "client.bad_argument"
    assert named in refused.value.message
    assert refused.value.value is not None
    assert refused.value.next_step is not None


@pytest.mark.parametrize("url", ["localhost:7461", "ftp://x", "http://"])
def test_an_address_must_be_of_http(url: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Client(url, "tpu_x")
    assert (refused.value.code, refused.value.value) == ("client.bad_argument", url)


def test_code_may_be_one_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent: list[DeployRequest] = []
    monkeypatch.setattr(Connection, "ask", lambda *arguments, **_: sent.append(arguments[-1]))
    (tmp_path / "days.py").write_text("def run(task): ...\n")
    dag = tmp_path / "dag.yaml"
    dag.write_text(
        "version: 1\ndag: shop\njobs:\n"
        "- {name: days, activation: source, source: {kind: manual}, outputs: [{dataset: shop.days}]}\n"
        "- {name: sales, runtime: python, operator: python, config: {entrypoint: 'days:run'},"
        " inputs: [{from: {job: days}}], outputs: [{dataset: shop.sales}]}\n"
    )
    for code in (str(tmp_path), tmp_path, [tmp_path]):
        Client("http://127.0.0.1:9", "tpu_x").deploy(dag, code=code)
    assert [list(request.code or {}) for request in sent] == [["days.py"]] * 3
