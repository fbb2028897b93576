"""Guarantee 15: a column derived from personal data is personal data, until somebody declassifies it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.postgres.test_versions import build
from tests.query.asked import ADMIN, Asked
from tests.query.published import DAG, SECRET, Shop
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.errors import TraceplaneError
from traceplane.gateway.datasets import detail
from traceplane.postgres import pinned
from traceplane.query.datasets import AsOf
from traceplane.registry.garbage import Policy, collect

SHOP = DAG.replace(
    "  shop.items:",
    '  shop.addressed: {storage: virtual, sql: "select id, email as address, customer from shop.orders"}\n'
    '  shop.marked: {storage: virtual, sql: "select id, day from shop.orders",'
    " columns: [{name: id, type: bigint}, {name: day, type: date, pii: true}]}\n  shop.items:",
    1,
)
REPORTS = """
version: 1
dag: reports
datasets:
  reports.hashed:
    columns:
    - {name: id, type: bigint}
    - {name: buyer, type: string, declassified: "a keyed hash; the key is not stored"}
    - {name: mail, type: string}
jobs:
- name: copied
  operator: sql
  inputs: [{name: orders, from: {dataset: shop.orders}}]
  outputs: [{dataset: reports.copied}]
  config: {query: "select id, email as address, upper(customer) as c, rank() over (order by email) as r from orders"}
- name: totals
  operator: sql
  inputs: [{name: orders, from: {dataset: shop.orders}}]
  outputs: [{dataset: reports.totals}]
  config:
    query: "select customer, sum(amount) as total, count(*) as n, min(email) as first from orders group by customer"
- name: further
  operator: sql
  inputs: [{name: t, from: {job: totals}}, {name: c, from: {job: copied}}]
  outputs: [{dataset: reports.further}]
  config: {query: "with x as (select * from t) select total, n || first as f, c.id from x join c on c.c = x.first"}
- name: opaque
  operator: pyspark
  inputs: [{name: orders, from: {dataset: shop.orders}}]
  outputs: [{dataset: reports.opaque}]
  config: {entrypoint: "basic:copy"}
- name: narrow
  operator: pyspark
  inputs: [{name: orders, from: {dataset: shop.orders}, columns: [id, amount]}]
  outputs: [{dataset: reports.narrow}]
  config: {entrypoint: "basic:copy"}
- name: told
  operator: pyspark
  inputs: [{name: orders, from: {dataset: shop.orders}}]
  outputs: [{dataset: reports.told}]
  lineage: {id: [orders.id], who: [orders.customer, orders.email]}
  config: {entrypoint: "basic:copy"}
- name: hashed
  operator: pyspark
  inputs: [{name: orders, from: {dataset: shop.orders}}]
  outputs: [{dataset: reports.hashed}]
  config: {entrypoint: "basic:copy"}
- name: behind
  operator: sql
  inputs: [{name: h, from: {job: hashed}}]
  outputs: [{dataset: reports.behind}]
  config: {query: "select buyer, mail, count(*) as n from h group by all"}
- name: small
  operator: compact
  inputs: [{from: {job: copied}}]
  outputs: [{dataset: reports.small}]
- name: through
  operator: sql
  inputs: [{name: a, from: {dataset: shop.addressed}}, {name: m, from: {dataset: shop.marked}}]
  outputs: [{dataset: reports.through}]
  config: {query: "select a.id, a.address, a.customer, m.day from a join m on a.id = m.id"}
- name: strange
  operator: sql
  inputs: [{name: orders, from: {dataset: shop.orders}}]
  outputs: [{dataset: reports.strange}]
  config: {query: "select * from orders pivot (sum(amount) for customer in ('ann', 'bob'))"}
"""
COLUMNS = {
    "reports.copied": "id address c r",
    "reports.totals": "customer total n first",
    "reports.further": "total f id",
    "reports.opaque": "id x",
    "reports.narrow": "id amount",
    "reports.told": "id who more",
    "reports.hashed": "id buyer mail",
    "reports.behind": "buyer mail n",
    "reports.small": "id address c r",
    "reports.through": "id address customer day",
    "reports.strange": "id ann bob",
}
PERSONAL = {
    "reports.copied": "address r",
    "reports.totals": "first",
    "reports.further": "f",
    "reports.opaque": "id x",
    "reports.narrow": "",
    "reports.told": "more who",
    "reports.hashed": "id mail",
    "reports.behind": "mail",
    "reports.small": "address r",
    "reports.through": "address day",
    "reports.strange": "ann bob id",
}


@pytest.fixture
async def shop(database_url: str, tmp_path: Path) -> AsyncIterator[Shop]:
    async with Shop.open(database_url, tmp_path / "objects") as opened:
        await opened.plane.deploy(SHOP)
        await opened.plane.deploy(REPORTS)
        for dataset, columns in COLUMNS.items():
            await fill(opened, dataset, columns)
        yield opened


async def fill(shop: Shop, dataset: str, columns: str) -> None:
    table = pa.table({name: pa.array([f"{SECRET}-{name}"]) for name in columns.split()})
    await shop.publish(dataset, table, 1, 1)


async def personal(shop: Shop, *datasets: str) -> dict[str, str]:
    async with shop.plane.database.snapshot() as tx:
        found = await pinned.with_marks(
            tx, (await pinned.datasets(tx, "default", list(datasets or COLUMNS))).values()
        )
    return {
        d.dataset_id: " ".join(sorted(c.name for c in d.columns if c.name.lower() in d.pii)) for d in found
    }


async def test_personal_data_follows_the_columns_through_all_that_is_computed_from_it(
    shop: Shop, asked: Asked
) -> None:
    assert await personal(shop) == PERSONAL
    for dataset, columns in COLUMNS.items():
        hidden = PERSONAL[dataset].split()
        visible = [c for c in columns.split() if c not in hidden]
        if not visible:
            with pytest.raises(TraceplaneError, match="all columns of the dataset are personal data"):
                await asked.answer(f"select * from {dataset}")
            continue
        answer = await asked.answer(f"select * from {dataset}")
        assert [c["name"] for c in answer["columns"]] == visible, dataset
        for column in hidden:
            with pytest.raises(TraceplaneError, match=column):
                await asked.rows(f"select {column} from {dataset}")
        assert len((await asked.rows(f"select * from {dataset}", ADMIN))[0]) == len(columns.split())
    seen = await detail(shop.plane.database, asked.service, ADMIN, "reports.hashed")
    assert [(c.name, c.pii, c.declassified) for c in seen.columns] == [
        ("id", True, None),
        ("buyer", False, "a keyed hash; the key is not stored"),
        ("mail", True, None),
    ]


async def test_a_mark_upstream_counts_at_once_in_every_dag_that_reads_from_it(shop: Shop) -> None:
    marked = SHOP.replace("{name: customer, type: string}", "{name: customer, type: string, pii: true}")
    changed = await shop.plane.deploy(marked)
    assert not changed.building, "nothing is rebuilt"
    assert await personal(shop, "shop.items", "reports.totals", "reports.copied", "reports.through") == {
        "shop.items": "sku",
        "reports.totals": "customer first",
        "reports.copied": "address c r",
        "reports.through": "address customer day",
    }
    # What somebody declassified stays so, and what nobody marks any more is no personal data.
    assert await personal(shop, "reports.hashed") == {"reports.hashed": "id mail"}
    await shop.plane.deploy(SHOP.replace(", pii: true}", "}", 1))
    assert await personal(shop, "reports.totals", "reports.through", "reports.opaque") == {
        "reports.totals": "",
        "reports.through": "day",
        "reports.opaque": "",
    }


async def test_rows_that_were_computed_before_a_rebuild_upstream_stay_hidden(
    shop: Shop, tmp_path: Path
) -> None:
    """The email becomes something else, and is no personal data any more; but reports have rows of the time before."""
    other = SHOP.replace(", pii: true}", "}", 1).replace('"basic:copy"', '"basic:other"', 1)
    changed = await shop.plane.deploy(other)
    assert changed.building
    await build(shop.plane)
    assert (await personal(shop, "shop.orders", "reports.totals")) == {
        "shop.orders": "",
        "reports.totals": "first",
    }
    # When nothing of the version before can serve again, nobody needs to know what it was.
    store = FolderObjectStore(tmp_path / "objects")
    policy = Policy(timedelta(0), timedelta(0), keep_versions=0)
    await collect(shop.plane.database, store, policy)
    assert await personal(shop, "reports.totals") == {"reports.totals": ""}


async def test_a_lineage_that_a_job_declares_takes_effect_without_a_rebuild_and_ends_with_its_version(
    shop: Shop,
) -> None:
    without = REPORTS.replace("  lineage: {id: [orders.id], who: [orders.customer, orders.email]}\n", "")
    changed = await shop.plane.deploy(without)
    assert changed.changed
    assert not changed.building
    assert await personal(shop, "reports.told") == {"reports.told": "id more who"}
    await shop.plane.rollback("reports")
    assert await personal(shop, "reports.told") == {"reports.told": "more who"}


async def test_a_version_that_declassifies_nothing_hides_what_a_later_one_shows(
    shop: Shop, asked: Asked
) -> None:
    declassified = REPORTS.replace(
        "{name: mail, type: string}", '{name: mail, type: string, declassified: "x"}'
    )
    plan = await shop.plane.plan(declassified)
    assert "! dataset reports.hashed: the column mail is declassified: x" in plan.text
    await shop.plane.deploy(declassified)
    assert await personal(shop, "reports.hashed", "reports.behind") == {
        "reports.hashed": "id",
        "reports.behind": "",
    }
    assert await asked.rows("select buyer, mail from reports.hashed") == [
        [f"{SECRET}-buyer", f"{SECRET}-mail"]
    ]
    with pytest.raises(TraceplaneError, match="mail"):
        await asked.rows("select mail from reports.hashed", as_of=AsOf({"reports": 1}))
