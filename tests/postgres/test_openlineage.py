"""Runs of tasks as OpenLineage events: each change once and in order, whatever the receiver does, and as published."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web

from tests.control_plane import ControlPlane, failed
from tests.dags import dag, job, source
from tests.openlineage_schemas import check, facets
from tests.platform import until
from tests.ports import free_port
from traceplane.dispatcher.loops.openlineage import LineageTold, OpenLineage
from traceplane.dispatcher.openlineage.receivers import FileReceiver, HttpReceiver, Receiver
from traceplane.errors import PlatformError
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import TaskError

Event = dict[str, Any]


class Endpoint:
    """A receiver of OpenLineage events that keeps what it was sent."""

    def __init__(self) -> None:
        self.port = free_port()
        self.events: list[Event] = []
        self.keys: set[str | None] = set()
        self.answers: list[int] = []
        """Statuses of the next answers, before it takes events again."""
        self.hangs: asyncio.Event | None = None
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/api/v1/lineage", self._receive)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _receive(self, request: web.Request) -> web.Response:
        if self.answers and (status := self.answers.pop(0)) >= 300:
            return web.Response(status=status, text="no", headers={"location": "/elsewhere"})
        self.events.append(json.loads(await request.read()))
        self.keys.add(request.headers.get("authorization"))
        if self.hangs is not None:
            self.hangs.set()
            await asyncio.sleep(3600)
        return web.Response(status=201)

    def of(self, job: str) -> list[str]:
        """Types of the events about a job, by run in the order of their arrival."""
        return [f"{e['eventType']}" for e in self.events if e["job"]["name"].endswith(f".{job}")]


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    made = Endpoint()
    await made.start()
    yield made
    await made.stop()


@contextlib.asynccontextmanager
async def telling(
    plane: ControlPlane, receiver: Endpoint | Receiver, **more: Any
) -> AsyncIterator[OpenLineage]:
    if isinstance(receiver, Endpoint):
        receiver = HttpReceiver(f"http://127.0.0.1:{receiver.port}/api/v1/lineage", "the key")
    loop = OpenLineage(plane.database, receiver, namespace="traceplane", **more)
    try:
        yield loop
    finally:
        await loop.finish()


async def told(loop: OpenLineage, plane: ControlPlane) -> LineageTold:
    """Passes until all tasks that there are now are followed, and nothing more is to be told."""
    latest = await plane.value("select (array_agg(task_id order by task_id desc))[1] from tasks")
    sent = refused = 0

    async def quiet() -> bool:
        nonlocal sent, refused
        outcome = await loop.run_once()
        sent, refused = sent + outcome.sent, refused + outcome.refused
        return not outcome.more and await plane.value(
            "select followed_to > $1 or $1::uuid is null from openlineage_progress", latest
        )

    await until(quiet, what="everything is told")
    return LineageTold(sent, refused)


SALES = """
version: 1
dag: sales
datasets:
  orders: {description: What was sold., columns: [{name: id, type: bigint}, {name: price, type: double}]}
  totals: {partitions: {by: day, time_zone: Europe/Berlin}}
jobs:
- {name: shop, activation: source, source: {kind: manual}, outputs: [{dataset: orders}]}
- name: add
  description: Adds up.
  runtime: spark
  operator: sql
  inputs: [{name: sold, from: {dataset: orders}}]
  outputs: [{dataset: sums}]
  config: {query: "select id as number, price * 2 as twice, 'a secret' as text from sold"}
- {name: days, activation: source, source: {kind: manual}, outputs: [{dataset: totals}]}
- name: day
  runtime: python
  operator: python
  inputs: [{name: t, from: {dataset: totals}}]
  outputs: [{dataset: by_day}]
  config: {entrypoint: "basic:copy", token: "hush-hush-value"}
  lineage: {amount: [t.amount]}
  max_attempts: 2
"""


async def test_events_are_as_published_and_say_what_a_run_read_and_wrote(
    database_url: str, endpoint: Endpoint
) -> None:
    async with ControlPlane.open(database_url) as plane, telling(plane, endpoint) as loop:
        await told(loop, plane)
        await plane.deploy(SALES)
        await plane.emit("orders", [7])
        await plane.meter()
        (held,) = await plane.claim(await plane.send(), runtime="spark")
        await told(loop, plane)
        assert endpoint.of("add") == ["START"]
        await plane.complete(held)
        await told(loop, plane)
        assert endpoint.of("add") == ["START", "COMPLETE"]
        for event in endpoint.events:
            check(event)
        assert endpoint.keys == {"Bearer the key"}
        start, complete = endpoint.events
        assert start["run"]["runId"] == complete["run"]["runId"] == str(held.task_id)
        assert complete["job"]["namespace"] == "traceplane/default"
        assert complete["job"]["facets"]["documentation"]["description"] == "Adds up."
        parent = complete["run"]["facets"]["parent"]
        version = await plane.value("select active_version_id from dags")
        assert (parent["run"]["runId"], parent["job"]["name"]) == (str(version), "sales")
        (orders,), (sums,) = complete["inputs"], complete["outputs"]
        assert orders["name"] == "orders"
        assert orders["facets"]["documentation"]["description"] == "What was sold."
        assert [(f["name"], f["type"]) for f in orders["facets"]["schema"]["fields"]] == [
            ("id", "bigint"),
            ("price", "double"),
        ]
        lineage = sums["facets"]["columnLineage"]["fields"]
        assert {c: [(f["name"], f["field"]) for f in v["inputFields"]] for c, v in lineage.items()} == {
            "number": [("orders", "id")],
            "twice": [("orders", "price")],
            "text": [],
        }
        assert sums["outputFacets"]["outputStatistics"] | {"_producer": 0, "_schemaURL": 0} == {
            "rowCount": 1,
            "size": 10,
            "fileCount": 1,
            "_producer": 0,
            "_schemaURL": 0,
        }
        assert "outputFacets" not in start["outputs"][0]
        assert "a secret" not in json.dumps(endpoint.events), "SQL may hold secrets"


async def test_a_failed_run_ends_once_and_a_repeated_one_is_another_run(
    database_url: str, endpoint: Endpoint
) -> None:
    async with ControlPlane.open(database_url) as plane, telling(plane, endpoint) as loop:
        await told(loop, plane)
        await plane.deploy(SALES)
        day = (date(2026, 3, 29) - date(1970, 1, 1)).days
        await plane.emit("totals", [Scope(partition_key="2026-03-29", start=day, end=day)])
        for _ in range(2):
            await plane.meter()
            (held,) = await plane.claim(await plane.send())
            await told(loop, plane)
            error = TaskError("operator.failed", "token hush-hush-value was refused", retryable=True)
            await plane.report((held, failed(held, error=error)))
            await plane.pass_time(60)
        await told(loop, plane)
        assert endpoint.of("day") == ["START", "FAIL"], "an attempt that is repeated is no end"
        await plane.retry(held.task_id)
        await plane.meter()
        (again,) = await plane.claim(await plane.send())
        await plane.cancel(held.task_id)
        await plane.complete(again)
        await told(loop, plane)
        assert endpoint.of("day") == ["START", "FAIL", "START", "ABORT"]
        for event in endpoint.events:
            check(event)
        runs = [event["run"]["runId"] for event in endpoint.events]
        assert runs[0] == runs[1] == str(held.task_id)
        assert runs[2] == runs[3] != runs[0]
        last = endpoint.events[1]["run"]["facets"]
        assert last["errorMessage"]["message"] == "operator.failed: token *** was refused"
        assert last["nominalTime"]["nominalStartTime"] == "2026-03-28T23:00:00Z"
        assert last["nominalTime"]["nominalEndTime"] == "2026-03-29T22:00:00Z", "23 hours"
        tags = {tag["key"]: tag["value"] for tag in last["tags"]["tags"]}
        assert (tags["attempts"], tags["scope"]) == ("2", "2026-03-29")
        lineage = endpoint.events[1]["outputs"][0]["facets"]["columnLineage"]["fields"]["amount"]
        assert [(f["name"], f["field"]) for f in lineage["inputFields"]] == [("totals", "amount")]


PEOPLE = """
version: 1
dag: people
datasets:
  persons: {columns: [{name: id, type: bigint}, {name: email, type: string, pii: true}]}
  counts: {columns: [{name: n, type: bigint}]}
jobs:
- {name: sign_up, activation: source, source: {kind: manual}, outputs: [{dataset: persons}]}
- {name: clicks, activation: source, source: {kind: manual}, outputs: [{dataset: counts}]}
- name: greet
  runtime: python
  operator: python
  inputs: [{name: p, from: {dataset: persons}}]
  outputs: [{dataset: greeted}]
  config: {entrypoint: "basic:copy"}
  max_attempts: 1
- name: count
  runtime: python
  operator: python
  inputs: [{name: c, from: {dataset: counts}}]
  outputs: [{dataset: counted}]
  config: {entrypoint: "basic:copy"}
  max_attempts: 1
"""


async def test_what_code_wrote_about_personal_data_is_not_sent(database_url: str, endpoint: Endpoint) -> None:
    """The API hides such messages from readers, and a receiver has readers of its own."""
    async with ControlPlane.open(database_url) as plane, telling(plane, endpoint) as loop:
        await told(loop, plane)
        await plane.deploy(PEOPLE)
        for dataset in ("persons", "counts"):
            await plane.emit(dataset, [7])
        await plane.meter()
        for held in await plane.claim(await plane.send()):
            error = TaskError("operator.failed", "no mail to ada@example.com", retryable=False)
            await plane.report((held, failed(held, error=error)))
        await told(loop, plane)
        messages = {
            event["job"]["name"]: event["run"]["facets"]["errorMessage"]["message"]
            for event in endpoint.events
            if event["eventType"] == "FAIL"
        }
        assert messages == {
            "people.greet": "operator.failed: the job handles personal data, so what its code wrote about it is"
            " not sent",
            "people.count": "operator.failed: no mail to ada@example.com",
        }


CHAIN = dag("main", source("in"), job("copy", "in", "mid"), job("after", "mid", "out"))


async def test_nothing_is_lost_or_told_twice_while_the_receiver_comes_and_goes(
    database_url: str, endpoint: Endpoint
) -> None:
    async with ControlPlane.open(database_url) as plane:
        await plane.deploy(CHAIN)
        await plane.emit("in", range(5))
        async with telling(plane, endpoint) as loop, telling(plane, endpoint) as second:
            await loop.run_once()
            assert await second.run_once() == LineageTold(), "one dispatcher at a time tells of them"
            await endpoint.stop()
            await plane.run_all()
            with pytest.raises(PlatformError, match="takes none") as down:
                await told(loop, plane)
            assert down.value.code == "openlineage.unavailable"
            await plane.emit("in", range(5, 10))
            await plane.run_all()
            await endpoint.start()
            endpoint.answers = [200, 200, 503, 401, 302, 200, 429]
            for _ in range(20):
                with contextlib.suppress(PlatformError):
                    await told(loop, plane)
        # Another one goes on where this one stopped.
        async with telling(plane, endpoint) as third:
            await plane.emit("in", [10])
            await plane.run_all()
            await told(third, plane)
        runs: dict[str, list[str]] = {}
        for event in endpoint.events:
            check(event)
            runs.setdefault(event["run"]["runId"], []).append(event["eventType"])
        assert Counter(map(tuple, runs.values())) == {("START", "COMPLETE"): 22}
        assert {UUID(run) for run in runs} == set(await plane.tasks("copy")) | set(await plane.tasks("after"))
        assert await plane.value("select count(*) from openlineage_runs") == 0


async def test_an_event_whose_record_is_lost_in_a_crash_is_sent_again_as_it_was(
    database_url: str, endpoint: Endpoint
) -> None:
    async with ControlPlane.open(database_url) as plane:
        await plane.deploy(CHAIN)
        async with telling(plane, endpoint) as loop:
            await told(loop, plane)
            await plane.emit("in", [1])
            await plane.run_all()
            endpoint.hangs = asyncio.Event()
            crashing = asyncio.create_task(told(loop, plane))
            await endpoint.hangs.wait()
            crashing.cancel()
            await asyncio.wait([crashing])
            endpoint.hangs, before = None, list(endpoint.events)
            await told(loop, plane)
        assert before
        for event in before:
            assert endpoint.events.count(event) == 2, "byte for byte, so that a receiver can tell"
        assert len(endpoint.events) == 4 + len(before)


async def test_a_refused_event_holds_up_no_other_and_organizations_that_are_not_named_are_left_out(
    database_url: str, endpoint: Endpoint
) -> None:
    async with ControlPlane.open(database_url) as plane:
        await plane.deploy(CHAIN)
        async with telling(plane, endpoint, orgs=["another"]) as loop:
            await told(loop, plane)
            await plane.emit("in", [1])
            await plane.run_all()
            assert await told(loop, plane) == LineageTold()
        async with telling(plane, endpoint) as loop:
            await plane.emit("in", [2])
            await plane.run_all()
            endpoint.answers = [400]
            assert await told(loop, plane) == LineageTold(sent=3, refused=1)


async def test_events_in_a_file_are_lines(database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "lineage.jsonl"
    async with (
        ControlPlane.open(database_url) as plane,
        telling(plane, FileReceiver(path)) as loop,
    ):
        await told(loop, plane)
        await plane.deploy(CHAIN)
        await plane.emit("in", [1])
        await plane.run_all()
        await told(loop, plane)
        for line in path.read_text().splitlines():
            check(json.loads(line))
        assert len(path.read_text().splitlines()) == 4
        assert path.stat().st_mode & 0o777 == 0o600
        nowhere = FileReceiver(tmp_path / "missing" / "lineage.jsonl")
        with pytest.raises(PlatformError, match="cannot be written: No such file"):
            await nowhere.send(b"{}")


async def test_the_check_of_events_fails_for_what_is_not_as_published(
    database_url: str, endpoint: Endpoint
) -> None:
    async with ControlPlane.open(database_url) as plane, telling(plane, endpoint) as loop:
        await told(loop, plane)
        await plane.deploy(CHAIN)
        await plane.emit("in", [1])
        await plane.run_all()
        await told(loop, plane)
        event = endpoint.events[0]
        check(event)
        assert {key for _, key, _ in facets(event)} >= {"parent", "processing_engine", "jobType", "version"}
        broken: list[Event] = [
            event | {"eventType": "BEGIN"},
            event | {"eventTime": "yesterday"},
            event | {"job": {"name": "a"}},
            event | {"run": event["run"] | {"runId": "7"}},
            event | {"run": event["run"] | {"facets": {"parent": {"_producer": "x:y"}}}},
            event | {"outputs": [{"namespace": "a", "name": 3}]},
            event | {"outputs": [{"namespace": "a", "name": "b", "facet": {}}]},
        ]
        for wrong in broken:
            with pytest.raises((AssertionError, ValueError, TypeError, KeyError)):
                check(wrong)
