"""Events as people look at them: lists, and everything that one of them caused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.control_plane import ControlPlane
from tests.dags import dag, job, source
from tests.gateway_http import GatewayHttp
from traceplane.auth.roles import Role
from traceplane.cli.effects import tree
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.postgres import generation_schemas
from traceplane.wire.events import EffectsResponse, EventList

SHOP = dag(
    "shop",
    source("shop.orders", name="orders"),
    job("clean", "shop.orders", "shop.clean"),
    job("sums", "shop.clean", "shop.sums"),
    job("secret", "shop.clean", "shop.secret"),
    job("after", "shop.secret", "shop.after"),
    job("both", ("shop.sums", "shop.after"), "shop.both"),
).replace("jobs:\n", "datasets:\n  shop.secret: {read_roles: [finance]}\njobs:\n", 1)


class Shop:
    def __init__(self, http: GatewayHttp, admin: str) -> None:
        self.http, self.admin = http, admin

    async def get(self, path: str, token: str | None = None) -> tuple[int, Any]:
        status, text = await self.http.send(token or self.admin, "GET", path)
        return status, json.loads(text)

    async def events(self, query: str = "", token: str | None = None) -> EventList:
        status, answer = await self.get(f"/api/v1/events{query}", token)
        assert status == 200, answer
        return msgspec.convert(answer, EventList)

    async def effects(self, root: str, token: str | None = None) -> EffectsResponse:
        status, answer = await self.get(f"/api/v1/{root}", token)
        assert status == 200, answer
        return msgspec.convert(answer, EffectsResponse)


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[Shop]:
    async with ControlPlane.open(database_url) as plane, GatewayHttp.open(plane) as http:
        await plane.deploy(SHOP)
        await plane.emit("shop.orders", range(30))
        await plane.run_all()
        yield Shop(http, await http.token(Role.ADMIN))


def said(answer: EffectsResponse) -> list[str]:
    """Each node with what it stands below."""
    names = [
        f"{e.event.dataset} {e.event.scope}" if e.event else f"{e.task.job} {e.task.scope}"  # type: ignore[union-attr]
        for e in answer.effects
    ]
    return [
        f"{names[e.parent]} > {name}" if e.parent is not None else name
        for e, name in zip(answer.effects, names, strict=True)
    ]


async def test_an_event_is_followed_through_everything_it_caused(shop: Shop) -> None:
    (event,) = (await shop.events("?dataset=shop.orders&start=7&end=7")).events
    assert (event.scope, event.kind, event.task_id, event.serving) == ("7", "data", None, True)
    answer = await shop.effects(f"events/{event.event_id}/effects")
    followed = said(answer)
    assert followed[:3] == [
        "shop.orders 7",
        "shop.orders 7 > clean 7",
        "clean 7 > shop.clean 7",
    ]
    assert {"shop.clean 7 > sums 7", "shop.clean 7 > secret 7", "shop.secret 7 > after 7"} <= set(followed)
    # The dispatcher joins the two: an event that it sends in its own name is one of both.
    assert {
        "both__scopes 7 > shop.both#scopes 7",
        "shop.both#scopes 7 > both 7",
        "both 7 > shop.both 7",
    } <= set(followed)
    clean = answer.effects[1].task
    assert clean is not None
    assert [(c.dataset, c.scope) for c in clean.commits] == [("shop.clean", "7")]
    # What waits for both is reached on two ways, and is followed on one.
    (again,) = (e for e in answer.effects if e.shown_at is not None)
    assert again.event is not None
    assert again.shown_at is not None
    assert (again.event.dataset, again.event) == ("shop.both#scopes", answer.effects[again.shown_at].event)
    # From its own task and commit, the same.
    assert said(await shop.effects(f"tasks/{clean.task_id}/effects"))[1:] == followed[2:]
    told = await shop.events(f"?commit_id={clean.commits[0].commit_id}")
    assert [(e.dataset, e.scope, e.job) for e in told.events] == [("shop.clean", "7", "clean")]
    assert told == await shop.events(f"?task_id={clean.task_id}")
    lines = list(tree(answer))
    assert lines[0] == f"event {event.event_id}  shop.orders 7"
    assert lines[1].startswith(f"└─ task {clean.task_id}  shop/clean 7: completed")
    assert lines[2].strip().startswith("├─ committed shop.clean 7: ")
    assert sum("(see above)" in line for line in lines) == 1


async def test_what_somebody_may_not_see_is_not_in_it_with_all_that_it_led_to(shop: Shop) -> None:
    reader = await shop.http.token(Role.READER)
    (event,) = (await shop.events("?dataset=shop.orders&start=7&end=7", reader)).events
    seen = await shop.effects(f"events/{event.event_id}/effects", reader)
    assert not [line for line in said(seen) if "secret" in line or "after" in line]
    assert "shop.clean 7 > sums 7" in said(seen)
    assert {e.dataset for e in (await shop.events("?limit=1000", reader)).events} == {
        *("shop.orders", "shop.clean", "shop.sums", "shop.after", "shop.both")
    } | {e.dataset for e in (await shop.events("?limit=1000", reader)).events if "#" in e.dataset}
    (hidden,) = (await shop.events("?dataset=shop.secret&start=7&end=7")).events
    for path, code in {
        f"events/{hidden.event_id}/effects": "event.unknown",
        f"tasks/{hidden.task_id}/effects": "task.unknown",
        "events?dataset=shop.secret": "dataset.unknown",
    }.items():
        status, answer = await shop.get(f"/api/v1/{path}", reader)
        assert (status, answer["error"]["code"]) == (404, code)
    assert (await shop.events(f"?task_id={hidden.task_id}", reader)).events == []


async def test_deep_and_wide_trees_are_cut_and_counted(shop: Shop) -> None:
    (event,) = (await shop.events("?dataset=shop.clean&start=7&end=7")).events
    deep = await shop.effects(f"tasks/{event.task_id}/effects?depth=1")
    assert said(deep) == ["clean 7", "clean 7 > shop.clean 7"]
    assert deep.effects[1].left_out == 2
    wide = await shop.effects(f"events/{event.event_id}/effects?depth=1&width=1")
    assert (len(wide.effects), wide.effects[0].left_out) == (2, 1)
    rest = await shop.effects(f"events/{event.event_id}/effects?depth=1&width=1&after={wide.effects[0].next}")
    assert {said(wide)[1], said(rest)[1]} == {"shop.clean 7 > sums 7", "shop.clean 7 > secret 7"}
    assert rest.effects[0].left_out == 0
    assert list(tree(wide))[-1] == (
        f"└─ and 1 more: traceplane effects {event.event_id} --after {wide.effects[0].next}"
    )


async def test_a_task_of_many_events_is_paged(shop: Shop) -> None:
    (event,) = (await shop.events("?dataset=shop.clean&start=7&end=7")).events
    await shop.http.plane.sql(
        "insert into events (producer_id, dataset_uuid, generation_id, kind, range_start, range_end, created_at)"
        " select producer_id, dataset_uuid, generation_id, kind, 1000 + n, 1000 + n, created_at"
        " from events, generate_series(1, 50) n where event_id = $1",
        event.event_id,
    )
    path, seen, after = f"tasks/{event.task_id}/effects?depth=1&width=20", [], ""
    left = []
    while True:
        page = await shop.effects(path + after)
        seen += said(page)[1:]
        left.append(page.effects[0].left_out)
        if page.effects[0].next is None:
            break
        after = f"&after={page.effects[0].next}"
    assert len(seen) == len(set(seen)) == 51
    assert left[0] == 31


async def test_events_are_listed_newest_first_page_by_page(shop: Shop) -> None:
    seen: list[int] = []
    before = ""
    while True:
        page = await shop.events(f"?limit=40{before}")
        seen += [event.event_id for event in page.events]
        if page.before is None:
            break
        before = f"&before={page.before}"
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == await shop.http.plane.value("select count(*) from events")
    orders = await shop.events("?dataset=shop.orders&kind=data&limit=10")
    assert [event.scope for event in orders.events] == [str(n) for n in range(29, 19, -1)]
    assert (await shop.events("?dataset=shop.orders&kind=invalidation")).events == []
    some = await shop.events("?dataset=shop.orders&start=3&end=20&limit=5")
    assert ([event.scope for event in some.events], some.more) == (["20", "19", "18", "17", "16"], True)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("events/abc/effects", "event.bad_id"),
        ("events/99999/effects", "event.unknown"),
        ("events?start=1&end=2", "event.bad_range"),
        ("events?dataset=shop.orders&start=1", "event.bad_range"),
        ("events?dataset=shop.nothing", "dataset.unknown"),
        ("events/1/effects?after=x", "event.bad_after"),
    ],
)
async def test_what_cannot_be_asked_for_is_refused(shop: Shop, path: str, code: str) -> None:
    assert (await shop.get(f"/api/v1/{path}"))[1]["error"]["code"] == code


# One column ------------------------------------------------------------------------------------------

COLUMNS = """
version: 1
dag: cash
datasets:
  cash.paid: {columns: [{name: n, type: bigint}, {name: amount, type: bigint}, {name: payer, type: string}]}
  cash.sums: {storage: virtual, sql: "select n, amount * 2 as twice, payer from cash.paid"}
  cash.top: {storage: virtual, sql: "select max(twice) as most, payer as who from cash.sums group by payer"}
  cash.hidden: {storage: virtual, read_roles: [finance], sql: "select twice as found from cash.sums"}
jobs:
- {name: paid, activation: source, source: {kind: manual}, outputs: [{dataset: cash.in}]}
- name: copy
  runtime: python
  operator: python
  inputs: [{from: {dataset: cash.in}}]
  outputs: [{dataset: cash.paid}]
  config: {entrypoint: "basic:copy"}
"""


async def test_a_column_is_followed_up_and_down(shop: Shop) -> None:
    await shop.http.plane.deploy(COLUMNS)
    reader = await shop.http.token(Role.READER)

    async def of(dataset: str, column: str, token: str) -> dict[str, list[str]]:
        status, answer = await shop.get(f"/api/v1/datasets/{dataset}/column-lineage?column={column}", token)
        assert status == 200, answer
        return {f"{c['dataset']}.{c['column']}": c.get("derived_from", []) for c in answer["columns"]}

    seen = {
        "cash.paid.amount": [],
        "cash.sums.twice": ["cash.paid.amount"],
        "cash.top.most": ["cash.sums.twice"],
    }
    assert await of("cash.sums", "Twice", reader) == seen
    assert await of("cash.paid", "amount", shop.admin) == seen | {"cash.hidden.found": ["cash.sums.twice"]}
    assert await of("cash.top", "most", reader) == seen
    status, answer = await shop.get("/api/v1/datasets/cash.paid/column-lineage?column=no", reader)
    assert (status, answer["error"]["code"]) == (404, "dataset.no_column")
    status, answer = await shop.get("/api/v1/datasets/cash.hidden/column-lineage?column=found", reader)
    assert (status, answer["error"]["code"]) == (404, "dataset.unknown")


PERSONS = """
version: 1
dag: people
datasets:
  people.orders:
    columns: [{name: n, type: bigint}, {name: email, type: string, pii: true}, {name: city, type: string}]
  people.alias: {storage: virtual, sql: "select email as address, city as town, n from people.orders"}
  people.next: {storage: virtual, sql: "select address as further, town from people.alias"}
  people.only: {storage: virtual, sql: "select n from people.orders where email like 'a%'"}
  people.copied:
    columns:
    - {name: mail, type: string}
    - {name: place, type: string}
    - {name: hashed, type: string, declassified: a keyed hash}
  people.last: {storage: virtual, sql: "select hashed as key, mail as late from people.copied"}
jobs:
- {name: in, activation: source, source: {kind: manual}, outputs: [{dataset: people.in}]}
- name: orders
  runtime: python
  operator: python
  inputs: [{from: {dataset: people.in}}]
  outputs: [{dataset: people.orders}]
  config: {entrypoint: "basic:copy"}
- name: copied
  runtime: spark
  operator: sql
  inputs: [{name: o, from: {dataset: people.orders}}]
  outputs: [{dataset: people.copied}]
  config: {query: "select o.email as mail, o.city as place, sha2(o.email || o.city, 256) as hashed from o"}
"""


@pytest.fixture
async def people(shop: Shop) -> Shop:
    """Whose orders have files, from which the columns of what is computed from them are known."""
    plane = shop.http.plane
    await plane.deploy(PERSONS)
    generation = await plane.value(
        "select generation_id from generations join datasets using (dataset_uuid) where dataset_id = 'people.orders'"
    )
    columns = (
        SchemaColumn("n", "int64", True),
        *(SchemaColumn(c, "string", True) for c in ("email", "city")),
    )
    async with plane.database.transaction() as tx:
        known = (await generation_schemas.load(tx, [generation]))[generation]
        await generation_schemas.save(tx, {generation: (columns, known.revision)})
    return shop


async def test_names_of_personal_data_are_in_no_lineage_of_those_who_may_not_see_it(people: Shop) -> None:
    """Also of columns that no definition marks, since they are computed from one that is marked."""
    reader = await people.http.token(Role.READER)
    trusted = await people.http.token(Role.READER, name="trusted", sees_pii=True)

    async def of(column: str, token: str) -> dict[str, list[str]] | str:
        dataset, _, name = column.rpartition(".")
        status, answer = await people.get(f"/api/v1/datasets/{dataset}/column-lineage?column={name}", token)
        if status != 200:
            assert (status, answer["error"]["code"]) == (404, "dataset.no_column")
            return str(answer["error"]["next_step"])
        return {f"{c['dataset']}.{c['column']}": c.get("derived_from", []) for c in answer["columns"]}

    assert await of("people.orders.email", reader) == "it has n, city"
    assert await of("people.alias.address", reader) == "it has town, n"
    assert await of("people.next.nothing", reader) == "it has town"
    assert await of("people.copied.mail", reader) == "it has place, hashed"
    assert await of("people.only.n", reader) == "nothing is known of its columns yet"
    assert await of("people.last.late", reader) == "it has key"
    assert await of("people.last.key", reader) == {
        "people.copied.hashed": ["people.orders.city"],
        "people.last.key": ["people.copied.hashed"],
        "people.orders.city": [],
    }
    seen = await of("people.orders.city", reader)
    assert set(seen) == {
        *("people.orders.city", "people.alias.town", "people.next.town", "people.copied.place"),
        *("people.copied.hashed", "people.last.key"),
    }
    assert set(await of("people.orders.email", trusted)) == {
        *("people.orders.email", "people.alias.address", "people.next.further"),
        *("people.copied.mail", "people.last.late", "people.copied.hashed", "people.last.key"),
    }


async def test_a_dataset_names_no_personal_data_that_its_columns_are_computed_from(people: Shop) -> None:
    reader = await people.http.token(Role.READER)
    trusted = await people.http.token(Role.READER, name="trusted", sees_pii=True)

    async def of(token: str) -> dict[str, list[str]]:
        _, answer = await people.get("/api/v1/datasets/people.copied", token)
        return {c["name"]: c.get("derived_from", []) for c in answer["columns"]}

    assert await of(reader) == {"place": ["people.orders.city"], "hashed": ["people.orders.city"]}
    assert (await of(trusted))["hashed"] == ["people.orders.city", "people.orders.email"]
