"""Queries over published datasets: what they see, who sees it, and that it is one consistent state."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from tests.query.asked import ADMIN, READER, Asked
from tests.query.published import DAG, SECRET, Shop, items, orders, queries
from traceplane.adapters import object_cache
from traceplane.adapters.object_cache import ObjectCache
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.errors import Conflict, NotFound, TooLarge, TooManyRequests, TraceplaneError
from traceplane.gateway.datasets import detail
from traceplane.model.partitions import By, Partitions
from traceplane.postgres import commits
from traceplane.query import catalog
from traceplane.query.datasets import NOW, AsOf
from traceplane.query.locked_duckdb import open_locked
from traceplane.query.wire import EngineRequest
from traceplane.wire.deploys import DeleteRequest


@pytest.fixture
async def shop(database_url: str, tmp_path: Path) -> AsyncIterator[Shop]:
    async with Shop.open(database_url, tmp_path / "objects") as opened:
        yield opened


@pytest.mark.parametrize("small", [0, 1 << 20])
async def test_a_store_in_s3_gives_the_same_answers_in_parts_or_from_its_cache(
    shop: Shop, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, small: int
) -> None:
    monkeypatch.setattr(object_cache, "_SMALL_BYTES", small)
    cache = await ObjectCache.open(FolderObjectStore(shop.store), tmp_path / "cache", limit_bytes=1 << 30)

    async def opened() -> ObjectCache:
        return cache

    elsewhere = Asked(shop, tmp_path / "spill2", open_cache=opened)
    try:
        first = await elsewhere.rows("select count(*) from shop.orders")
        assert first == [[60]]
        assert bool(list(cache.files.rglob("*.parquet"))) == bool(small)
        for sql in queries("legitimate_queries.txt"):
            try:
                expected = await asked.answer(sql)
            except TraceplaneError as error:
                with pytest.raises(type(error)):
                    await elsewhere.answer(sql)
                continue
            found = await elsewhere.answer(sql)
            assert found == expected or "sample" in sql, sql
    finally:
        await elsewhere.service.close()


@pytest.fixture(params=["listed", "chosen by the database"])
def however_many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the datasets had so many commits that no list of them is kept, too."""
    if request.param != "listed":
        monkeypatch.setattr(catalog, "LARGE", 0)


@pytest.mark.usefixtures("however_many")
async def test_only_files_that_can_hold_the_answer_are_read_and_the_answer_is_the_same(
    shop: Shop, asked: Asked
) -> None:
    everything = await asked.rows("select id, customer, amount, day from shop.orders order by id")
    assert len(everything) == 60
    table = orders(1, 60)
    wheres = {
        "id = 7": 1,
        "7 = id": 1,
        "id in (7, 50)": 2,
        "id = 7 or id = 50 or id = 8": 2,
        "id between 15 and 25": 2,
        "id > 55": 1,
        "55 < id": 1,
        "id >= 21 and id <= 40": 1,
        "id = -1": 0,
        "id = 7.5": 1,
        "id = 1e16": 3,  # the engine may round
        "day >= date '2024-02-15' and day < '2024-03-01'": 1,
        "day = '2024-1-5'": 3,  # not written as statistics are
        "amount < 3": 1,
        "amount > 100": 3,  # a file might hold NaN
        "customer = 'zoe'": 0,
        "customer = 'bob'": 3,
        "id = 7 and customer = 'bob'": 1,
        "id = 7 or customer = 'bob'": 3,
        "not (id = 7)": 3,
        "id + 1 = 8": 3,
        "id is null": 3,
        "ID = 7": 1,
    }
    for where, files in wheres.items():
        assert await asked.files(f"select * from shop.orders where {where}") == [files], where
    together = " union all ".join(
        f"select {n} as n, count(*) as rows, sum(id) as total from shop.orders where {where}"
        for n, where in enumerate(wheres)
    )
    unpruned = " union all ".join(
        f"select {n} as n, count(*) as rows, sum(id) as total from (select * from shop.orders) where {where}"
        for n, where in enumerate(wheres)
    )
    assert await asked.rows(f"{together} order by 1") == await asked.rows(f"{unpruned} order by 1")
    assert table.num_rows == 60

    # Where leaving rows out could change the result, nothing is left out.
    for sql in (
        "select * from shop.orders o asof join shop.orders p on o.id >= p.id where p.id < 5",
        "select * from shop.orders positional join shop.orders p where p.id = 50",
        "select * from shop.items i anti join shop.orders o on o.id = i.order_id where id = 7",
        "select id + 100 as id from shop.orders where id = 107",
        "select * from shop.orders tablesample 5 rows where id = 7",
    ):
        assert (await asked.files(sql))[-1] in (1, 3), sql
        assert 3 in await asked.files(sql), sql
    assert await asked.files(
        "select * from shop.orders o join shop.items i on i.order_id = o.id where o.id = 7"
    ) == [1, 1]
    assert await asked.files(
        "select * from shop.orders o left join shop.orders p on true where p.id = 7"
    ) == [3, 1]


def _held_commits() -> int:
    """Also by what ran before in this process."""
    gc.collect()
    return sum(isinstance(one, catalog.Commit) for one in gc.get_objects())


async def test_of_a_large_dataset_only_the_chosen_files_are_held_and_too_many_are_refused(
    shop: Shop, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "LARGE", 2)
    monkeypatch.setattr(catalog, "MOST_FILES", 2)
    before = _held_commits()
    assert await asked.rows("select count(*) from shop.orders where customer = 'bob' and amount < 3") == [[2]]
    assert _held_commits() <= before
    assert await asked.rows("select count(*) from shop.orders where id > 30") == [[30]]
    with pytest.raises(TooLarge) as refused:
        await asked.rows("select count(*) from shop.orders where customer = 'bob'")
    assert refused.value.code == "query.too_many_files"
    planned = await asked.service.plan(asked.database, READER, "select count(*) from shop.orders", NOW)
    assert (planned.too_many, planned.of_files) == (True, 3)


async def test_joins_are_planned_by_the_number_of_rows(shop: Shop, asked: Asked, tmp_path: Path) -> None:
    """Given a schema, DuckDB opens no file when it plans, and takes each for one of 1,000 rows."""

    async def planned(where: str = "") -> tuple[list[int | None], str]:
        prepared = await asked.service.prepare(asked.database, ADMIN, f'select id from "shop.orders" {where}')
        query = prepared.query
        with open_locked(EngineRequest(query, str(tmp_path))) as engine:
            ((_, plan),) = engine.execute(f"explain {query.sql}").fetchall()
        return [group.rows for group in query.relations[0].groups], plan

    rows, plan = await planned()
    assert rows == [60]
    assert "~60 rows" in plan
    assert (await planned("where id = 30"))[0] == [20]
    await shop.publish("shop.orders", orders(15, 18), 15, 18)
    rows, _ = await planned()
    assert sorted(count or 0 for count in rows) == [20, 44], "rows that are left out in reading are counted"


async def test_no_answer_depends_on_the_statistics_of_a_hidden_column(shop: Shop, asked: Asked) -> None:
    """Emails of the three files begin with `secret-1`, `secret-21` and `secret-41`; a reader has no such column."""
    attacks = [
        "select count(*) from shop.orders s, (select '' as email) t where email <= '{}' and s.id = 4",
        "select count(*) from (select '' as email) t, shop.orders s where email <= '{}' and s.id = 4",
        "select count(*) from shop.orders s, lateral (select '' as email) t where email <= '{}' and s.id = 4",
        "select count(*) from shop.orders s join (select '' as email) t on true where email <= '{}' and s.id = 4",
        "select count(*) from shop.orders s, (select {{'email': ''}} as s) t where s.email <= '{}' and id = 4",
        "with t as (select '' as email) select count(*) from shop.orders s, t where email <= '{}' and s.id = 4",
        "select count(*) from shop.orders s, unnest(['']) t(email) where email <= '{}' and s.id = 4",
        "select count(*) from (shop.orders s join (select '' as email) t on true) where email <= '{}' and s.id = 4",
        "select (select count(*) from shop.orders where email <= '{}' and id = 4) from (select '' as email)",
        "select count(*) from (select '' as email from shop.orders where email <= '{}' and id = 4)",
        "select count(*) from shop.orders s, shop.public t where email <= '{}' and s.id = 4",
    ]
    await shop.plane.deploy(DAG.replace("dag: shop", "dag: public").replace("shop.", "open.").replace(
        "open.items:", "shop.public:\n    columns: [{name: email, type: string}]\n  open.items:").replace(
        "name: tens", "name: public\n  runtime: python\n  operator: python\n  inputs: [{from: {dataset: open.in}}]\n"
        "  outputs: [{dataset: shop.public}]\n  config: {entrypoint: \"basic:copy\"}\n- name: tens"))  # fmt: skip
    await shop.publish("shop.public", pa.table({"email": [""]}), 1, 1)
    for attack in attacks:
        answers = [await asked.rows(attack.format(guess)) for guess in ("a", "secret-1@", "secret-3", "z")]
        assert answers == [[[1]]] * 4, attack
        prepared = await asked.service.prepare(asked.database, READER, attack.format("a"))
        assert 0 not in [chosen.files for chosen in prepared.chosen], attack

    # Who sees the column means it where it stands alone, and has to say which where it does not.
    assert await asked.rows("select count(*) from shop.orders where email <= 'a'", ADMIN) == [[0]]
    with pytest.raises(TraceplaneError, match=r"[Aa]mbiguous"):
        await asked.rows(attacks[0].format("a"), ADMIN)


async def test_a_condition_without_a_relation_leaves_out_files_only_if_it_is_unambiguous(
    asked: Asked,
) -> None:
    for sql, files in {
        "select * from shop.orders, shop.items where id = 7": [1, 1],
        "select * from shop.orders join shop.items on order_id = id where id = 7": [1, 1],
        "select * from shop.orders join (select order_id as id from shop.items) t using (id) where id = 7": [
            1,
            1,
        ],
        "select * from shop.orders o left join shop.orders p using (id) where id = 7": [1, 1],
        "select * from shop.orders, (select 7 as n) where amount < 3": [3],
        "with t as (select 7 as n) select * from shop.orders, t where amount < 3": [3],
        "select * from shop.orders, range(3) where amount < 3": [3],
        "select * from (shop.orders o positional join shop.items i) where o.amount < 3": [3, 1],
        "select * from shop.orders o, (select 7 as n) where o.amount < 3": [1],
    }.items():
        assert await asked.files(sql) == files, sql
    for sql, rows in {
        "select count(*) from shop.orders o, (select 1000.0 as total) where total > 500": [[60]],
        "select count(*) from shop.orders o, (select 1000 as order_id) where order_id > 500": [[60]],
        "select count(*) from shop.items i, (select 'x' as customer) where customer = 'x'": [[30]],
        "select count(*) from shop.orders o left join shop.items i on i.order_id = o.id where order_id > 500": [
            [0]
        ],
    }.items():
        assert await asked.rows(sql) == rows, sql


DAYS = Partitions(By.DAY, "Europe/Berlin")
KINDS = {"date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
BY_DAY = """
version: 1
dag: days
datasets:
  days.in: {partitions: {by: day, time_zone: Europe/Berlin}}
  days.rows: {position: at, columns: [{name: at, type: KIND}, {name: n, type: bigint}]}
jobs:
- {name: days, activation: source, source: {kind: manual}, outputs: [{dataset: days.in}]}
- {name: rows, runtime: python, operator: python, config: {entrypoint: "basic:copy"},
   inputs: [{from: {dataset: days.in}}], outputs: [{dataset: days.rows}]}
"""


def by_day(kind: str, first: int, last: int, n: int) -> pa.Table:
    """The first and last moment of each day in Berlin."""
    at: list[Any] = []
    for day in range(first, last + 1):
        if kind == "timestamp":
            at += [DAYS.starts_at(day), DAYS.starts_at(day + 1) - timedelta(microseconds=1)]
        else:
            start = datetime.combine(DAYS.first_date(day), datetime.min.time())
            at += [start, start + timedelta(days=1, microseconds=-1)]
    at = [moment.date() for moment in at] if kind == "date" else at
    return pa.table({"at": pa.array(at, KINDS[kind]), "n": pa.array([n] * len(at), pa.int64())})


@pytest.mark.usefixtures("however_many")
@pytest.mark.parametrize("kind", list(KINDS))
async def test_newer_commits_of_days_hide_exactly_the_rows_of_these_days(
    shop: Shop, asked: Asked, kind: str
) -> None:
    await shop.plane.deploy(BY_DAY.replace("KIND", kind))
    first = DAYS.position("2026-10-24")  # the next day has 25 hours
    await shop.publish("days.rows", by_day(kind, first, first + 3, 1), first, first + 3)
    await shop.publish("days.rows", by_day(kind, first + 1, first + 1, 100), first + 1, first + 1)
    await shop.publish("days.rows", by_day(kind, first + 3, first + 5, 10_000), first + 3, first + 5)
    assert await asked.rows("select sum(n) from days.rows") == [[2 * 2 + 2 * 100 + 6 * 10_000]]
    files = {
        "at < date '2026-10-23'": 0,
        "at >= '2026-10-28' and at < '2026-10-29'": 1,
        "at between timestamp '2026-10-26 00:00:00' and '2026-10-26 12:00:00.5'": 1 if kind != "date" else 3,
        "at > timestamptz '2026-10-26T02:00:00+02:00'": 2 if kind != "date" else 3,
        "at < '2026-10-24 01:00:00+02:00'": {"date": 3, "timestamp": 1, "timestamp_ntz": 3}[kind],
    }
    for where, expected in files.items():
        assert await asked.files(f"select * from days.rows where {where}") == [expected], where
        pruned = await asked.rows(f"select sum(n) from days.rows where {where}")
        assert pruned == await asked.rows(f"select sum(n) from (select * from days.rows) where {where}")


@pytest.mark.usefixtures("however_many")
async def test_newer_commits_hide_exactly_their_positions_and_new_columns_are_null_before(
    shop: Shop, asked: Asked
) -> None:
    fresh = orders(15, 24).append_column("note", pa.array(["new"] * 10))
    await shop.publish("shop.orders", fresh, 15, 24)
    assert await asked.rows("select count(*), count(distinct id), count(note) from shop.orders") == [
        [60, 60, 10]
    ]
    assert await asked.rows("select id from shop.orders where note is null and id between 13 and 26 order by 1") == [
        [13], [14], [25], [26]
    ]  # fmt: skip
    assert await asked.files("select * from shop.orders where id = 16") == [2]
    # A dataset of ranges has no rows of its own: it is read from what it groups.
    assert await asked.rows("select count(*) from shop.ranges") == [[60]]
    assert await asked.rows("select * from shop.ranges limit 0") == []


async def test_a_declared_column_that_no_file_has_yet_is_null(shop: Shop, asked: Asked) -> None:
    more = """
    - {name: venue, type: string}
    - {name: fee, type: "decimal(10, 2)"}
    - {name: legs, type: "map<string, bigint>"}
    - {name: phone, type: string, pii: true}"""
    marked = "{name: email, type: string, pii: true}"
    virtual = '  shop.venues: {storage: virtual, sql: "select venue, count(*) as n from shop.orders group by venue"}'
    changed = DAG.replace(marked, marked + more).replace("  shop.items:", f"{virtual}\n  shop.items:", 1)
    await shop.plane.deploy(changed.replace("dag: shop", "dag: new").replace("shop.", "new."))
    for first in (1, 21):
        await shop.publish("new.orders", orders(first, first + 19), first, first + 19)
    await shop.publish("new.orders", orders(11, 30), 11, 30)  # hides some positions of both
    assert await asked.rows("select count(*), count(venue), sum(fee), count(legs) from new.orders") == [
        [40, 0, None, 0]
    ]
    assert await asked.rows("select count(*) from new.orders where venue is null and fee is null") == [[40]]
    assert await asked.rows("select * from new.orders where venue = 'x'") == []
    assert await asked.rows("select * from new.venues") == [[None, 40]]
    assert await asked.rows("select typeof(venue), typeof(fee) from new.orders limit 1") == [
        ["VARCHAR", "DECIMAL(10,2)"]
    ]
    names = [c["name"] for c in (await asked.answer("select * from new.orders limit 1"))["columns"]]
    assert names == ["id", "customer", "amount", "day", "venue", "fee", "legs"]
    with pytest.raises(TraceplaneError, match="phone"):
        await asked.rows("select phone from new.orders")
    assert await asked.rows("select count(phone) from new.orders", ADMIN) == [[0]]
    seen = await detail(shop.plane.database, asked.service, READER, "new.orders")
    assert [(c.name, c.type) for c in seen.columns][-3:-1] == [
        ("venue", "string"),
        ("fee", "decimal128(10, 2)"),
    ]
    await shop.publish(
        "new.orders",
        orders(41, 60).append_column("Venue", pa.array(["here"] * 20)),
        41,
        60,
    )
    assert await asked.rows("select count(*), count(venue) from new.orders") == [[60, 20]]


async def test_a_dataset_that_is_no_longer_served_says_why(shop: Shop, asked: Asked) -> None:
    plane, kept = shop.plane, DAG[: DAG.index("- name: items")]
    kept = kept[: kept.index("  shop.items:")] + kept[kept.index("jobs:") :]
    await plane.deploy(kept, drop_missing=True)
    with pytest.raises(NotFound, match=r"version 2 of DAG shop.*version 1.*rollback shop --to 1"):
        await asked.rows("select * from shop.items")
    await plane.deploy(kept.replace("name: numbers", "name: ticks"))
    with pytest.raises(Conflict, match="events of source ticks"):
        await asked.rows("select * from shop.in")
    await plane.api.deploys.delete(plane._call(DeleteRequest("shop")))
    with pytest.raises(NotFound, match=r"query\.nothing_then.*DAG shop was deleted"):
        await asked.rows("select * from shop.orders")


async def test_the_declared_columns_of_a_dataset_without_files_have_their_types(
    shop: Shop, asked: Asked
) -> None:
    await shop.plane.deploy(DAG.replace("dag: shop", "dag: new").replace("shop.", "new."))
    assert await asked.rows("select sum(id), max(day), sum(amount) from new.orders") == [[None, None, None]]
    assert await asked.rows("select typeof(sum(amount)) from new.orders") == [["DOUBLE"]]


async def test_a_file_without_columns_keeps_nobody_from_reading_the_others(shop: Shop, asked: Asked) -> None:
    none, (_, generation) = pa.table({}), await shop.generation("shop.orders")
    await shop.publish("shop.orders", none, 61, 80)
    assert await asked.rows("select count(*), max(id) from shop.orders") == [[60, 60]]
    # One file of several, and a later list that is made from an earlier one.
    await shop.publish("shop.orders", none, 81, 100)
    await shop.publish("shop.orders", orders(101, 120), 101, 120)
    await shop.plane.sql(
        "update dataset_commits set files = files || (select files from dataset_commits where range_start = 81)"
        " where range_start = 101 and generation_id = $1",
        generation,
    )
    assert await asked.rows("select count(*), max(id) from shop.orders where id > 50") == [[30, 120]]
    assert await asked.files("select * from shop.orders where id > 50") == [2]


@pytest.mark.usefixtures("however_many")
async def test_a_query_is_as_of_a_version_or_a_time(shop: Shop, asked: Asked) -> None:
    async def at_once() -> datetime:
        return await shop.plane.value("select clock_timestamp()")

    before_any = datetime(2020, 1, 1, tzinfo=UTC)
    first = await at_once()
    await shop.publish("shop.orders", orders(15, 24).slice(0, 5), 15, 24)  # 20 to 24 are gone
    second = await at_once()
    await shop.publish("shop.orders", orders(1, 60).slice(0, 3), 1, 60)
    total = "select count(*), sum(id) from shop.orders"
    assert await asked.rows(total) == [[3, 6]]
    assert await asked.rows(total, as_of=AsOf({}, second)) == [[55, sum(range(1, 61)) - sum(range(20, 25))]]
    assert await asked.rows(total, as_of=AsOf({}, first)) == [[60, sum(range(1, 61))]]
    with pytest.raises(NotFound) as nothing:
        await asked.rows(total, as_of=AsOf({}, before_any))
    assert nothing.value.code == "query.nothing_then"

    # A second version with a generation of its own, and the way back.
    uuid, old = await shop.generation("shop.orders")
    new = await _second_version(shop, uuid)
    await shop.publish("shop.orders", orders(1, 5), 1, 5, generation=new)
    third = await at_once()
    assert await asked.rows(total) == [[5, 15]]
    assert await asked.rows(total, as_of=AsOf({"shop": 1})) == [[3, 6]]
    assert await asked.rows(total, as_of=AsOf({"shop": 2})) == [[5, 15]]
    assert await asked.rows(total, as_of=AsOf({}, second)) == [[55, sum(range(1, 61)) - sum(range(20, 25))]]
    await _point_back(shop, uuid, old)
    assert await asked.rows(total) == [[3, 6]]
    assert await asked.rows(total, as_of=AsOf({}, third)) == [[5, 15]]
    for wrong, code in (({"shop": 9}, "query.nothing_then"), ({"zoo": 1}, "query.version_of_nothing")):
        with pytest.raises(TraceplaneError) as refused:
            await asked.rows(total, as_of=AsOf(wrong))
        assert refused.value.code == code

    # What was collected cannot be asked for, rather than be answered without it.
    async with shop.plane.database.transaction() as tx:
        gone = await tx.rows("select commit_id from dataset_commits where superseded_by is not null")
        await commits.forget(tx, [row["commit_id"] for row in gone])
    with pytest.raises(Conflict) as collected:
        await asked.rows(total, as_of=AsOf({}, second))
    assert collected.value.code == "query.history_gone"


async def _second_version(shop: Shop, dataset_uuid: UUID) -> UUID:
    """What a cutover does to the tables: a version, its pointer set, and both pointers in one transaction."""
    async with shop.plane.database.transaction() as tx:
        new: UUID = await tx.value(
            "insert into generations (dataset_uuid, fingerprint, position_column) values ($1, 'x', 'id')"
            " returning generation_id",
            dataset_uuid,
        )
        version = await tx.value(
            "insert into dag_versions (dag_id, number, spec, job_fingerprints, definition_fingerprints, state)"
            " select dag_id, number + 1, spec, job_fingerprints, definition_fingerprints, 'retired' from dag_versions"
            " returning dag_version_id"
        )
        await tx.run(
            "insert into dag_version_datasets select $1, dataset_uuid, case when dataset_uuid = $2 then $3 else"
            " current_generation_id end, definition from datasets",
            version,
            dataset_uuid,
            new,
        )
        await tx.run("update dags set active_version_id = $1", version)
        await tx.run(
            "update datasets set current_generation_id = $1 where dataset_uuid = $2", new, dataset_uuid
        )
    return new


async def _point_back(shop: Shop, dataset_uuid: UUID, generation: UUID) -> None:
    async with shop.plane.database.transaction() as tx:
        await tx.run(
            "update dags set active_version_id = (select dag_version_id from dag_versions where number = 1)"
        )
        await tx.run(
            "update datasets set current_generation_id = $1 where dataset_uuid = $2", generation, dataset_uuid
        )


async def test_a_reader_sees_one_consistent_set_of_generations(shop: Shop, asked: Asked) -> None:
    """Guarantee 5: while pointers of two datasets move together, no query sees one moved and the other not."""
    pointers: list[tuple[UUID, UUID, UUID]] = []
    for dataset, table in (("shop.orders", orders(1, 7)), ("shop.items", items(1, 7))):
        uuid, old = await shop.generation(dataset)
        position = "id" if dataset == "shop.orders" else "order_id"
        new = await shop.plane.value(
            "insert into generations (dataset_uuid, fingerprint, position_column) values ($1, 'x', $2)"
            " returning generation_id",
            uuid,
            position,
        )
        await shop.publish(dataset, table, 1, 7, generation=new)
        pointers.append((uuid, old, new))
    stop = asyncio.Event()
    swaps = 0

    async def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            async with shop.plane.database.transaction() as tx:
                for uuid, old, new in pointers:
                    target = new if swaps % 2 == 0 else old
                    await tx.run(
                        "update datasets set current_generation_id = $1 where dataset_uuid = $2", target, uuid
                    )
                    await asyncio.sleep(0)
            swaps += 1

    swapping = asyncio.create_task(swap())
    seen = set()
    sql = "select (select count(*) from shop.orders), (select count(*) from shop.items)"
    try:
        # Pointers and file lists are what could be mixed; the engine only reads the files it is told.
        for _ in range(120):
            prepared = await asked.service.prepare(asked.database, READER, sql)
            seen.add(tuple(str(d.generation_id) for _, d in sorted(prepared.datasets.items())))
            assert [c.of_files for c in prepared.chosen] in ([3, 1], [1, 1])
        answers = {tuple((await asked.rows(sql))[0]) for _ in range(10)}
    finally:
        stop.set()
        await swapping
    assert swaps > 10
    assert answers <= {(60, 30), (7, 7)}
    items_old, items_new = (str(g) for g in pointers[1][1:])
    orders_old, orders_new = (str(g) for g in pointers[0][1:])
    assert seen == {(items_old, orders_old), (items_new, orders_new)}


async def test_personal_data_is_absent_without_the_grant_in_every_query(shop: Shop, asked: Asked) -> None:
    """Every relation is built without the column, so there is nothing to be tricked into showing it."""
    for sql in queries("personal_data_queries.txt"):
        try:
            query = (await asked.service.prepare(asked.database, READER, sql)).query
        except TraceplaneError:
            continue
        for relation in query.relations:
            assert "email" not in {column.name for column in relation.columns}, sql
    # What is built like that is run for some of them.
    for sql in [*queries("personal_data_queries.txt")][::9]:
        try:
            shown = json.dumps(await asked.answer(sql))
        except TraceplaneError as error:
            shown = str(error)
        assert SECRET not in shown, sql
    assert await asked.rows("select email from shop.orders where id = 1", ADMIN) == [
        [f"{SECRET}-1@mail.example"]
    ]
    assert [len(await asked.rows("select * from shop.ranges where id = 1", c)) for c in (READER, ADMIN)] == [
        1,
        1,
    ]
    assert len((await asked.rows("select * from shop.ranges where id = 1", READER))[0]) == 4
    # The mark of the version that is read counts, and so does that of the newest definition.
    await shop.plane.sql(
        "update datasets set definition = jsonb_set(definition, '{columns,4,pii}', 'false')"
        " where dataset_id = 'shop.orders'"
    )
    assert len((await asked.rows("select * from shop.orders where id = 1"))[0]) == 4
    assert "pii: true" in DAG


async def test_a_constant_may_be_infinite_and_a_slip_has_a_next_step(asked: Asked) -> None:
    sql = "select 1e400 as a, id < 1e400 as b, 'nan'::double as c from shop.orders where id = 1"
    assert await asked.rows(sql) == [[None, True, None]], "JSON has no number for them"
    with pytest.raises(TraceplaneError) as slip:
        await asked.rows("select nothing from shop.orders")
    assert slip.value.code == "query.invalid"
    assert slip.value.next_step is not None


async def test_one_caller_cannot_keep_others_from_their_queries(shop: Shop, tmp_path: Path) -> None:
    asked = Asked(shop, tmp_path / "spill", of_one_caller=1, wait_seconds=0.5)
    try:
        # Longer than what is held back, so that it holds its slot until somebody reads it.
        long = "select repeat('x', 1500000) as text from shop.orders where id = 1"
        result = await asked.service.run(asked.database, READER, long, format_="json")
        with pytest.raises(TooManyRequests, match="1 queries of this caller") as refused:
            await asked.rows("select count(*) from shop.orders")
        assert refused.value.code == "query.too_many"
        assert await asked.rows("select count(*) from shop.orders", ADMIN) == [[60]]
        assert len(b"".join([piece async for piece in result.pieces])) > 1_500_000
        assert await asked.rows("select count(*) from shop.orders") == [[60]]
    finally:
        await asked.service.close()
