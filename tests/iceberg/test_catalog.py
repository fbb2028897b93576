"""Which tables the catalog has, for whom and of which moment, and what it keeps in the object store."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta
from pathlib import Path

from tests.iceberg.engines import ENGINES, pyiceberg_catalog, rows_of
from tests.iceberg.served_shop import ServedShop
from tests.query.published import DAG, items, orders
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.auth.store import issue_token
from traceplane.postgres import pinned
from traceplane.query.catalog import Commit
from traceplane.registry.garbage import Policy, Round, batches

OTHERS = """
version: 1
dag: others
datasets:
  others.hot:
    storage: postgres
    write_mode: direct
    position: n
    columns: [{name: n, type: bigint}]
  others.view: {storage: virtual, sql: "select id from shop.orders"}
  others.wide:
    position: n
    columns: [{name: n, type: bigint}]
jobs:
- {name: ticks, activation: source, source: {kind: manual}, outputs: [{dataset: others.in}]}
- name: hot
  runtime: python
  operator: python
  inputs: [{from: {dataset: others.in}}]
  outputs: [{dataset: others.hot}]
  config: {entrypoint: "basic:copy"}
- name: wide
  runtime: python
  operator: python
  inputs: [{from: {dataset: others.in}}]
  outputs: [{dataset: others.wide}]
  config: {entrypoint: "basic:copy"}
"""
TABLE = "namespaces/shop/tables/shop.orders"


async def test_two_tables_of_a_pinned_catalog_belong_to_one_moment(served: ServedShop) -> None:
    catalog = await asyncio.to_thread(pyiceberg_catalog, served.url, served.token)
    first = await asyncio.to_thread(catalog.load_table, ("shop", "shop.orders"))
    await served.shop.publish("shop.orders", orders(61, 70), 61, 70)
    await served.shop.publish("shop.items", items(31, 40), 31, 40)
    second = await asyncio.to_thread(catalog.load_table, ("shop", "shop.items"))
    assert first.scan().to_arrow().num_rows == 60
    assert second.scan().to_arrow().num_rows == 30
    assert (await served.read("pyiceberg", "shop.items")).num_rows == 40
    assert (await served.read("pyiceberg", "shop.items", "live")).num_rows == 40


async def test_a_catalog_may_be_as_of_a_time(served: ServedShop) -> None:
    moment = await served.pinned()
    assert moment == await served.pinned(moment)
    await served.shop.publish("shop.orders", orders(10, 30).slice(0, 5), 10, 30)
    assert await served.equal("shop.orders", moment, as_of_time=moment) == 60
    assert await served.equal("shop.orders", "live") == 44


async def test_what_is_being_committed_is_not_part_of_a_moment_later(served: ServedShop) -> None:
    """A commit bears the time at which its transaction began; a moment that was pinned meanwhile is before it."""
    database = served.shop.plane.database
    async with database.transaction() as tx:
        began = await tx.value("select tp_now()")
        pinning = asyncio.create_task(pinned.settled_moment(database))
        await asyncio.sleep(0.1)
        assert not pinning.done()  # what is written soon is waited for
        assert await pinning < began
    assert await pinned.settled_moment(database) > began
    async with database.snapshot() as tx:  # who only reads holds nobody up
        began = await tx.value("select tp_now()")
        assert await pinned.settled_moment(database) > began


async def test_versions_of_a_dag(served: ServedShop) -> None:
    await served.shop.plane.deploy(DAG.replace("amount > 1", "amount > 2"), drop_missing=True)
    assert len(await served.shop.plane.versions("shop")) == 2
    for number in (1, 2):
        expected = await served.query("select * from shop.items", as_of_version={"shop": number})
        for engine in ENGINES:
            actual = await served.read(engine, "shop.items", f"shop@{number}")
            assert rows_of(actual) == rows_of(expected), (engine, number)
    assert (await served.pinned("shop@1")).endswith("Z,shop@1")
    status, body = await served.get(f"shop@7/{TABLE}")
    assert (status, body["error"]["type"]) == (404, "query.nothing_then")


async def test_a_pinned_catalog_does_not_move_with_a_cutover_or_rollback(served: ServedShop) -> None:
    plane = served.shop.plane
    before = await served.pinned()
    await plane.deploy(DAG.replace("amount > 1", "amount > 2"))
    await plane.builds.run_once()
    assert [version.state for version in await plane.versions("shop")] == ["active", "retired"]
    between = await served.pinned()
    assert (
        await served.read("duckdb", "shop.items")
    ).num_rows == 0  # the new version has computed nothing yet
    await plane.rollback("shop")
    for moment, rows in ((before, 30), (between, 0)):
        assert await served.equal("shop.items", moment, as_of_time=moment) == rows
    assert await served.equal("shop.items", "live") == 30


async def test_states_that_do_not_exist(served: ServedShop) -> None:
    for name in (
        "yesterday",
        "live,2026-11-18T12:00:00Z",
        "shop@0",
        "shop@1,shop@2",
        "2026-11-18,2026-11-19",
    ):
        status, body = await served.get(f"config?warehouse={name}")
        assert (status, body["error"]["type"]) == (400, "iceberg.unknown_state"), name
        assert "give a time" in body["error"]["message"]


async def test_what_has_no_files_is_no_table(served: ServedShop) -> None:
    await served.shop.plane.deploy(OTHERS)
    _, listed = await served.get("live/namespaces/others/tables")
    assert [t["name"] for t in listed["identifiers"]] == ["others.wide"]
    for name in ("others.hot", "others.view"):
        status, body = await served.get(f"live/namespaces/others/tables/{name}")
        assert (status, body["error"]["type"], body["error"]["code"]) == (404, "iceberg.no_files", 404)
    for path in ("live/namespaces/others/tables/none", "live/namespaces/others/tables/shop.orders"):
        status, body = await served.get(path)
        assert (status, body["error"]["type"]) == (404, "iceberg.unknown_table")
    status, body = await served.get("live/namespaces/none/tables")
    assert (status, body["error"]["type"]) == (404, "iceberg.unknown_namespace")


async def test_who_may_not_see_a_column_gets_no_table(served: ServedShop) -> None:
    reader = await served.http.token(Role.READER)
    _, listed = await served.get("live/namespaces/shop/tables", reader)
    # The items are computed from orders, but not from the column with personal data.
    assert [t["name"] for t in listed["identifiers"]] == ["shop.items"]
    for table in ("shop.orders", "shop.ranges"):  # the latter has the rows of the former
        for path in ("", "/credentials"):
            status, body = await served.get(f"live/namespaces/shop/tables/{table}{path}", reader)
            assert (status, body["error"]["type"]) == (403, "iceberg.hidden_columns")
            assert "email" not in str(body)
    async with served.shop.plane.database.transaction() as tx:
        granted = await issue_token(
            tx, Principal.USER, org="default", name="granted", role=Role.READER, sees_pii=True
        )
    await served.shop.plane.api.refresh()
    assert (await served.get(f"live/{TABLE}", granted))[0] == 200


async def test_rights_are_those_of_queries(served: ServedShop) -> None:
    restricted = DAG.replace("  shop.items:\n", "  shop.items:\n    read_roles: [stock]\n")
    await served.shop.plane.deploy(restricted)
    reader = await served.http.token(Role.READER)
    status, body = await served.get("live/namespaces/shop/tables/shop.items", reader)
    assert (status, body["error"]["type"]) == (404, "iceberg.unknown_table")
    status, body = await served.get("live/namespaces/shop/tables", reader)
    assert (status, body["error"]["type"]) == (404, "iceberg.unknown_namespace")
    status, text = await served.http.send("tpu_nobody", "GET", "/iceberg/v1/config")
    assert status == 401
    assert '"code":401' in text


async def test_derived_files_are_made_once_and_deleted_after_their_day(
    served: ServedShop, tmp_path: Path
) -> None:
    def files() -> set[Path]:
        return set((tmp_path / "objects" / "iceberg").rglob("*.*"))

    await served.shop.publish("shop.orders", orders(15, 25), 15, 25)
    answers = [await served.get(f"live/{TABLE}") for _ in range(2)]
    assert answers[0] == answers[1]
    assert len(made := files()) == 5  # metadata, a list, files, deletes, and their list
    assert files() == made
    database, store = served.shop.plane.database, FolderObjectStore(tmp_path / "objects")

    async def collected(grace: timedelta) -> int:
        found = batches(Round.LEFTOVERS, database, store, Policy(grace))
        return sum([batch.files async for batch in found])

    assert await collected(timedelta(0)) == 0  # of today
    await served.shop.plane.pass_time(timedelta(days=2).total_seconds())
    assert await collected(timedelta(days=3)) == 0
    assert (await served.get(f"live/{TABLE}"))[0] == 200
    assert await collected(timedelta(hours=1)) == 5
    assert len(files() - made) == 5
    assert await served.equal("shop.orders", "live") == 60


async def test_the_files_of_a_large_table_are_listed_in_pieces(served: ServedShop) -> None:
    """No process has more than the ids of all commits; a new commit changes the manifest that it is in."""

    def manifests() -> dict[str, int]:
        """How many files are in each."""
        table = pyiceberg_catalog(served.url, served.token, "live").load_table(("shop", "shop.orders"))
        listed = table.current_snapshot().manifests(table.io)
        return {one.manifest_path: one.existing_files_count for one in listed}

    await many_commits(served, 20_000)
    before = held_commits()
    made = await asyncio.to_thread(manifests)
    assert sum(made.values()) == 20_003
    assert 20 <= len(made) <= 80
    assert max(made.values()) <= 2000
    assert held_commits() - before < 1_000, "a list of all files"

    await served.shop.publish("shop.orders", orders(15, 15), 200_000, 200_000)
    assert len((await asyncio.to_thread(manifests)).keys() - made.keys()) == 1


def held_commits() -> int:
    """Also by what ran before in this process."""
    gc.collect()
    return sum(isinstance(one, Commit) for one in gc.get_objects())


async def many_commits(served: ServedShop, count: int) -> None:
    """Each with a file that nobody opens."""
    dataset, generation = await served.shop.generation("shop.orders")
    folder = f"{dataset}/{generation}/staging/"
    await served.shop.plane.sql(
        "insert into dataset_commits (task_id, output_index, generation_id, range_start, range_end, files, row_count,"
        " bytes, schema_hash, committed_at) select gen_random_uuid(), 0, $1, n, n, jsonb_build_array("
        " jsonb_build_object('path', $3::text || n || '/1/part-0.parquet', 'rows', 1, 'bytes', 1)),"
        " 1, 1, 'h', now() from generate_series(100000, 99999 + $2::int) n",
        generation,
        count,
        folder,
    )


async def test_nothing_can_be_changed(served: ServedShop) -> None:
    for method, path in (("POST", "namespaces"), ("DELETE", TABLE), ("POST", TABLE)):
        status, text = await served.http.send(served.token, method, f"/iceberg/v1/live/{path}", {})
        assert (status, "request.method_not_allowed" in text) == (405, True)
