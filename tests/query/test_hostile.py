"""The SQL gate and what stands behind it: hostile queries stay refused, by each line on its own."""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import sqlglot

from tests.query.published import items, orders, queries
from traceplane.errors import TraceplaneError
from traceplane.linux.confine import confine, no_network
from traceplane.query import engine_process
from traceplane.query.engine_pool import EnginePool
from traceplane.query.failures import QueryRefused
from traceplane.query.locked_duckdb import check_tree, open_locked
from traceplane.query.wire import (
    EngineColumn,
    EngineQuery,
    EngineRelation,
    EngineRequest,
    FileGroup,
    QueryLimits,
)
from traceplane.sql.gate import admit, written

GRANTED = {"shop.orders", "shop.items"}
SECRET = "the-canary-is-yellow"


@dataclass(frozen=True)
class Canary:
    """A secret in files that no query may read, and a dataset's file that none may read but through its relation."""

    path: Path
    store: Path
    orders: Path

    def hostile(self, *, without: str = "nothing") -> Iterator[str]:
        template = queries("hostile_queries.txt")
        paths = {"CANARY": self.path, "STORE": self.store, "ORDERS": self.orders}
        for raw, sql in zip(template, queries("hostile_queries.txt", **paths), strict=True):
            if without not in raw:
                yield sql

    def request(self, sql: str, relations: list[EngineRelation] | None = None) -> EngineRequest:
        return EngineRequest(self.query(sql, relations), str(self.store.parent / "spill"))

    def query(
        self,
        sql: str,
        relations: list[EngineRelation] | None = None,
        *,
        seconds: float = 30.0,
        memory_mb: int = 256,
    ) -> EngineQuery:
        kinds = {"id": "BIGINT", "customer": "VARCHAR", "amount": "DOUBLE", "day": "DATE"}
        columns = [EngineColumn(name, kind) for name, kind in kinds.items()]
        relations = relations or [
            EngineRelation(name, columns, [FileGroup([str(self.orders)])])
            for name in ("tp_orders", "tp_d0", "tp_d1")
        ]
        limits = QueryLimits(seconds, 1000, 1 << 20, memory_mb, spill_mb=64, threads=1)
        return EngineQuery(sql, relations, "json", [str(self.store)], limits)


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Canary:
    folder = tmp_path_factory.mktemp("canary")
    (folder / "spill").mkdir()
    path, store = folder / "canary", folder / "store"
    for ending, text in (("txt", SECRET), ("csv", f"a\n{SECRET}\n"), ("json", json.dumps({"a": SECRET}))):
        path.with_suffix(f".{ending}").write_text(text)
    parquet.write_table(pa.table({"a": [SECRET]}), path.with_suffix(".parquet"))
    store.mkdir()
    parquet.write_table(orders(1, 20), store / "orders.parquet")
    return Canary(path, store, store / "orders.parquet")


def test_the_gate_rejects_every_hostile_query(canary: Canary) -> None:
    let_through, reasons = [], Counter[str]()
    for sql in canary.hostile():
        try:
            unknown = set(admit(sql).dataset_ids) - GRANTED
        except TraceplaneError as error:
            reasons[error.code] += 1
        else:
            reasons["query.unknown_relation"] += 1
            if not unknown:
                let_through.append(sql)
    assert let_through == []
    assert sum(reasons.values()) >= 450
    assert len(reasons) >= 6, "the corpus has become too uniform"


@pytest.mark.parametrize(
    "type_",
    [
        "foo), getenv('HOME'), (1",  # a function
        "int), (select 1 from tp_d1), (1",  # a relation that was not named
        "int), (select 1), (1",  # another query
        "int) from tp_d0; select (1",  # another statement
        "int) from tp_d0 where (true",  # another condition
        "int",  # nothing
    ],
)
def test_the_output_of_the_gate_is_parsed_again_before_it_is_used(type_: str) -> None:
    """As if its check of trees had overlooked what a generator writes bare: the name of a type, here."""
    tree: Any = sqlglot.parse_one("select cast(id as int), 'x' from tp_d0 as o", read="duckdb")
    cast = tree.selects[0]
    cast.set("to", sqlglot.exp.DataType(this=sqlglot.exp.DType.USERDEFINED, kind=type_))
    if type_ == "int":
        assert written(tree, {"tp_d0"}) == """SELECT CAST("id" AS int), 'x' FROM "tp_d0" AS "o\""""
        return
    with pytest.raises(TraceplaneError) as refused:
        written(tree, {"tp_d0"})
    assert refused.value.code in ("query.syntax_denied", "query.function_denied")


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("""select cast(id as "foo), getenv('HOME'), (1") from shop.orders""", "foo), getenv('HOME'), (1"),
        ("select extract('year from x' from day) from shop.orders", "year from x"),
        ("select date_diff('da y', day, day) from shop.orders", "DA Y"),
    ],
)
def test_an_unknown_type_or_unit_is_rejected_with_its_value_and_a_next_step(sql: str, value: str) -> None:
    with pytest.raises(TraceplaneError) as refused:
        admit(sql)
    assert (refused.value.code, refused.value.value) == ("query.syntax_denied", value)
    assert refused.value.next_step


def test_the_engine_rejects_queries_that_got_past_the_gate(canary: Canary) -> None:
    """The raw text, as if there were no gate: DuckDB's own tree names a function or relation that is not listed."""
    let_through = []
    connection = open_locked(canary.request(""))
    for sql in canary.hostile():
        try:
            check_tree(connection, sql, {"tp_d0", "tp_d1"})
        except (QueryRefused, duckdb.Error):
            continue
        let_through.append(sql)
    # The names of the engine's own relations are good here; before, they meant nothing.
    harmless = [sql for sql in let_through if " tp_d" in sql or " tp_c" in sql or not _reads(sql)]
    assert [sql for sql in let_through if sql not in harmless] == []
    for sql in harmless:
        assert SECRET not in _attempt(connection, sql)


def _reads(sql: str) -> bool:
    return "from" in sql.lower()


def test_a_locked_duckdb_reveals_nothing_even_to_raw_sql(canary: Canary) -> None:
    """No gate and no tree: whatever runs, no file outside of the relations is read or written, no setting changes."""
    before = sorted(canary.store.parent.rglob("*"))
    connection = open_locked(canary.request(""))
    for sql in canary.hostile(without="sleep"):
        assert SECRET not in _attempt(connection, sql), sql
    settings = dict(connection.execute("select name, value from duckdb_settings()").fetchall())
    assert (settings["enable_external_access"], settings["lock_configuration"]) == ("false", "true")
    assert settings["threads"] == "1"
    assert sorted(canary.store.parent.rglob("*")) == before
    assert [name for name in ("x", "x.csv", "x.db", "x.parquet") if Path("/tmp", name).exists()] == []


def _attempt(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    cursor = connection.cursor()
    try:
        return str(cursor.execute(sql).fetchmany(100))
    except (duckdb.Error, UnicodeError, RuntimeError, ValueError) as error:
        return str(error)


def test_the_process_of_a_query_has_no_files_and_no_network(canary: Canary) -> None:
    """The last line: even a DuckDB that is not locked down reaches nothing in there."""
    barriers = no_network()
    if barriers.landlock_abi == 0:
        pytest.skip("Landlock is not available here")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    tries = {
        "file": f"open({str(canary.path.with_suffix('.txt'))!r}).read()",
        "write": f"open({str(canary.store / 'made')!r}, 'w')",
        "folder": "__import__('os').listdir('/')",
        "network": f"socket.create_connection(('127.0.0.1', {port}))",
        "program": "__import__('os').execv('/bin/true', ['true'])",
        "process": "__import__('os').fork() or __import__('os')._exit(0)",
        "limits": "__import__('resource').prlimit(__import__('os').getppid(), 0)",
    }
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        found = {}
        try:
            confine(engine_process.allowed(canary.request("")), barriers)
            for name, code in tries.items():
                try:
                    eval(code, {"socket": socket, "open": open, "__builtins__": __builtins__})  # noqa: S307
                    found[name] = "worked"
                except Exception as error:
                    found[name] = type(error).__name__
            theirs.sendall(json.dumps(found).encode())
        finally:
            os._exit(0)
    theirs.close()
    os.waitpid(pid, 0)
    found = json.loads(ours.recv(4096))
    assert {name: answer for name, answer in found.items() if answer == "worked"} == {}
    ours.close()
    listener.close()


async def test_bombs_hit_a_limit_and_harm_no_other_query(canary: Canary, tmp_path: Path) -> None:
    engines = EnginePool(spill_root=tmp_path, concurrency=1)
    codes = Counter[str]()
    try:
        for sql in queries("bomb_queries.txt"):
            query = canary.query(admit(sql).sql, seconds=0.5, memory_mb=200)
            with pytest.raises(TraceplaneError) as raised:
                async for _ in engines.run(query):
                    pass
            codes[raised.value.code] += 1
        answer = b"".join([p async for p in engines.run(canary.query("select 42 as x", seconds=60))])
        assert json.loads(answer)["rows"] == [[42]]
        assert set(codes) <= {"query.timeout", "query.out_of_memory", "query.too_large", "query.invalid"}, (
            codes
        )
        assert list(tmp_path.iterdir()) == [], "spill folders are gone"
    finally:
        await engines.close()


def test_legitimate_queries_pass_the_gate_and_run(canary: Canary) -> None:
    sold = canary.store / "items.parquet"
    parquet.write_table(items(1, 20), sold)
    of_items = [EngineColumn("order_id", "BIGINT"), EngineColumn("sku", "VARCHAR")]
    query = canary.query("")
    known = {
        "shop.orders": query.relations[0],
        "shop.items": EngineRelation("tp_items", of_items, [FileGroup([str(sold)])]),
    }
    connection = open_locked(canary.request("", list(known.values())))
    failed = {}
    for sql in queries("legitimate_queries.txt"):
        try:
            gated = admit(sql)
            for relation in gated.relations:
                rows = f"select * from {known[relation.dataset_id].name}"
                connection.execute(f"create or replace temp view {relation.name} as {rows}")
            check_tree(connection, gated.sql, {relation.name for relation in gated.relations})
            connection.execute(gated.sql).fetchall()
        except (TraceplaneError, QueryRefused, duckdb.Error) as error:
            failed[sql] = str(error)[:200]
    assert failed == {}
