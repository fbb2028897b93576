"""Queries as people send them: over HTTP, with the Python client and with the command line."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.ipc as ipc
import pyarrow.parquet as parquet
import pytest

from tests.platform import Platform, until
from tests.query.published import Shop
from tests.query.test_virtual import INJECTED
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.auth.store import issue_token
from traceplane.client import Client
from traceplane.errors import TooLarge, UserError
from traceplane.wire.queries import QueryTask, QueryTaskRequest

SLOW = "select count(*) from range(10000000000000) a, range(1000000) b"


async def test_queries_over_http_with_the_client_and_with_the_command_line(
    database_url: str, tmp_path: Path
) -> None:
    environment = {
        "TRACEPLANE_QUERY_CONCURRENCY": "1",
        "TRACEPLANE_QUERY_MAX_BYTES": "3000000",
        "TRACEPLANE_QUERY_THREADS": "1",
    }
    async with (
        Shop.open(database_url, tmp_path / "home" / "objects") as shop,
        Platform.start(
            database_url, tmp_path / "home", dispatchers=0, workers=0, environment=environment
        ) as platform,
    ):
        async with shop.plane.database.transaction() as tx:
            user = {"org": "default", "role": Role.READER}
            reader = await issue_token(tx, Principal.USER, name="reader", **user)  # type: ignore[arg-type]
            granted = await issue_token(tx, Principal.USER, name="granted", sees_pii=True, **user)  # type: ignore[arg-type]
        await until(lambda: _is_known(platform, granted), what="the gateway has read the new tokens")
        await _formats(platform)
        await _clients(platform, reader, granted)
        await _catalog(platform, reader)
        await _limits(platform)
        await _injected_into_spark(platform)
        await _hanging_up(platform)
        await _command_line(platform, tmp_path)


async def _is_known(platform: Platform, token: str) -> bool:
    async with (
        aiohttp.ClientSession() as session,
        session.get(
            f"{platform.gateway_url}/api/v1/dags", headers={"authorization": f"Bearer {token}"}
        ) as answer,
    ):
        return answer.status == 200


async def _ask(platform: Platform, body: dict[str, Any], **headers: str) -> tuple[int, str, bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{platform.gateway_url}/api/v1/query",
            json=body,
            headers={"authorization": f"Bearer {platform.user_token}", **headers},
        ) as answer,
    ):
        return answer.status, answer.headers["content-type"], await answer.read()


async def _formats(platform: Platform) -> None:
    sql = "select id, customer, day from shop.orders where id <= 2 order by id"
    status, kind, body = await _ask(platform, {"sql": sql})
    assert (status, kind) == (200, "application/json")
    assert json.loads(body) == {
        "columns": [
            {"name": "id", "type": "int64"},
            {"name": "customer", "type": "string"},
            {"name": "day", "type": "date32[day]"},
        ],
        "rows": [[1, "bob", "2024-01-02"], [2, "cleo", "2024-01-03"]],
        "row_count": 2,
    }
    _, kind, body = await _ask(platform, {"sql": sql, "format": "csv"})
    assert kind.startswith("text/csv")
    assert arrow_csv.read_csv(pa.BufferReader(body)).num_rows == 2
    _, _, body = await _ask(platform, {"sql": sql}, accept="application/vnd.apache.arrow.stream, */*;q=0.1")
    assert ipc.open_stream(body).read_all().column("id").to_pylist() == [1, 2]
    _, _, body = await _ask(platform, {"sql": sql, "format": "parquet"})
    assert parquet.read_table(pa.BufferReader(body)).column("customer").to_pylist() == ["bob", "cleo"]
    for bad in (
        {"sql": ""},
        {"sql": "select 1", "format": "xml"},
        {"sql": "select 1", "as_of_time": "yesterday"},
    ):
        assert (await _ask(platform, bad))[0] == 400
    both = {"sql": "select 1", "as_of_version": {"shop": 1}, "as_of_time": "2024-01-01T00:00:00Z"}
    assert (await _ask(platform, both))[0] == 400


async def _clients(platform: Platform, reader: str, granted: str) -> None:
    def query(token: str, sql: str, **options: Any) -> pa.Table:
        return Client(platform.gateway_url, token).query(sql, **options)

    everything = "select * from shop.orders"
    assert (await asyncio.to_thread(query, reader, everything)).column_names == [
        "id",
        "customer",
        "amount",
        "day",
    ]
    assert "email" in (await asyncio.to_thread(query, granted, everything)).column_names
    version = await asyncio.to_thread(
        query, reader, "select count(*) n from shop.items", as_of_version={"shop": 1}
    )
    assert version.to_pylist() == [{"n": 30}]
    client, two = Client(platform.gateway_url, reader), "select id from shop.orders where id <= 2 order by id"
    assert (await asyncio.to_thread(client.query_pandas, two))["id"].tolist() == [1, 2]
    assert (await asyncio.to_thread(client.query_polars, two))["id"].to_list() == [1, 2]
    empty = await asyncio.to_thread(query, reader, "select * from shop.orders where false")
    assert (empty.num_rows, empty.num_columns) == (0, 4)
    with pytest.raises(UserError) as denied:
        await asyncio.to_thread(query, reader, "select * from read_csv('/etc/passwd')")
    assert (denied.value.code, denied.value.status) == ("query.function_denied", 403)
    with pytest.raises(UserError) as slip:
        await asyncio.to_thread(query, reader, "select emial from shop.orders")
    assert slip.value.code == "query.invalid"
    assert "emial" in slip.value.message
    assert "tp_d0" not in slip.value.message


async def _catalog(platform: Platform, reader: str) -> None:
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {reader}"}) as session:
        async with session.get(f"{platform.gateway_url}/api/v1/datasets") as answer:
            listed = {d["dataset"]: d for d in (await answer.json())["datasets"]}
        async with session.get(f"{platform.gateway_url}/api/v1/datasets/shop.orders") as answer:
            found = await answer.json()
        async with session.get(f"{platform.gateway_url}/api/v1/datasets/shop.items") as answer:
            derived = await answer.json()
        async with session.get(f"{platform.gateway_url}/api/v1/datasets/nothing") as answer:
            assert answer.status == 404
    assert {"shop.in", "shop.orders", "shop.items", "shop.ranges"} <= set(listed)
    assert (
        listed["shop.orders"]["rows"],
        listed["shop.orders"]["commits"],
        listed["shop.orders"]["version"],
    ) == (60, 3, 1)
    assert [c["name"] for c in found["columns"]] == ["id", "customer", "amount", "day"]
    assert found["position"] == "id"
    assert (found["produced_by"], found["read_by"]) == (["shop/orders"], ["shop/items", "shop/tens"])
    assert {c["name"]: c.get("derived_from") for c in derived["columns"]} == {
        "order_id": ["shop.orders.id"],
        "sku": ["shop.orders.customer", "shop.orders.day"],
    }


async def _limits(platform: Platform) -> None:
    client = Client(platform.gateway_url, platform.user_token)
    with pytest.raises(TooLarge) as rows:
        await asyncio.to_thread(client.query, "select * from range(1000)", max_rows=999)
    assert rows.value.code == "query.too_large"
    # Once the answer has begun, an error breaks it off. Anyone sees that, and the client sees why.
    with pytest.raises(aiohttp.ClientError):
        await _ask(platform, {"sql": "select * from range(900000)"})
    with pytest.raises(TooLarge) as broken:
        await asyncio.to_thread(client.query, "select * from range(900000)")
    assert (broken.value.code, bool(broken.value.next_step)) == ("query.too_large", True)


async def _injected_into_spark(platform: Platform) -> None:
    """A writer's query for Spark whose unit of time is SQL."""
    with pytest.raises(UserError) as refused:
        await platform.api.call(
            "POST", "/api/v1/query-tasks", QueryTask, QueryTaskRequest(INJECTED, "results.leaked")
        )
    assert refused.value.code == "query.syntax_denied"
    assert str(refused.value.value).startswith("year from current_date()")
    assert await platform.sql("select 1 from datasets where dataset_id = 'results.leaked'") == []
    denied = "select count(*) from audit_log where outcome = 'query.syntax_denied'"
    async with asyncio.timeout(30):
        while await platform.value(denied) != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _hanging_up(platform: Platform) -> None:
    found = re.search(r'"query.engine_started".*?"pid": ?([0-9]+)', platform.logs("gateway"))
    assert found is not None
    children = Path(f"/proc/{found[1]}/task/{found[1]}/children")

    async def running() -> bool:
        return bool(children.read_text().split())

    async def ended() -> bool:
        return not children.read_text().split()

    asking = asyncio.create_task(_ask(platform, {"sql": SLOW}))
    await until(running, what="the slow query runs")
    asking.cancel()
    await asyncio.wait((asking,))
    await until(ended, what="its process is gone")
    # Its place is free again, and a killed server is replaced.
    assert (await _ask(platform, {"sql": "select 1"}))[0] == 200
    os.kill(int(found[1]), signal.SIGKILL)
    assert (await _ask(platform, {"sql": "select 1"}))[0] == 200


async def _command_line(platform: Platform, tmp_path: Path) -> None:
    async def run(*arguments: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "traceplane.cli.main",
            *arguments,
            env={**platform.environment, "TRACEPLANE_USER_TOKEN": platform.user_token},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed, _ = await process.communicate()
        return process.returncode, printed.decode()

    (_, table), (_, csv), (code, refused), (_, one) = await asyncio.gather(
        run("query", "select id, email from shop.orders where id = 3"),
        run("query", "select id from shop.orders where id < 3", "--format", "csv", "--as-of", "shop@1"),
        run("query", "copy (select 1) to 'x'"),
        run("datasets", "shop.items"),
    )
    assert table.splitlines() == [
        "id  email",
        "--  ---------------------",
        "3   secret-3@mail.example",
        "(1 row)",
    ]
    assert csv.split() == ['"id"', "1", "2"]
    assert code == 2
    assert "query.not_a_select" in refused
    assert "sku  string  from shop.orders.customer, shop.orders.day" in one
    kept = tmp_path / "results" / "kept.csv"
    kept.parent.mkdir()
    kept.write_text("earlier\n")
    into = ("--format", "csv", "--output", str(kept))
    assert "query.invalid" in (await run("query", "select nope from shop.orders", *into))[1]
    assert "query.too_large" in (await run("query", "select * from range(900000)", *into))[1]
    assert (kept.read_text(), list(kept.parent.iterdir())) == ("earlier\n", [kept])
    assert (await run("query", "select id from shop.orders where id < 3", *into)) == (0, "")
    assert (kept.read_text().split(), list(kept.parent.iterdir())) == (['"id"', "1", "2"], [kept])
    await _text_of_a_file(run, tmp_path)


async def _text_of_a_file(run: Callable[..., Awaitable[tuple[int | None, str]]], folder: Path) -> None:
    asked = folder / "asked.sql"
    asked.write_text("-- the first two\nselect id from shop.orders\nwhere id < 3 order by id;\n")
    result, plain = folder / "rows.parquet", folder / "rows.txt"
    assert await run("query", "--file", str(asked), "--output", str(result)) == (0, "")
    assert parquet.read_table(result).column("id").to_pylist() == [1, 2]
    assert await run("query", "--file", str(asked), "--output", str(plain)) == (0, "")
    assert plain.read_text().splitlines() == ["id", "--", "1", "2", "(2 rows)"]
    code, said = await run("query", "--file", str(asked), "--output", str(folder / "rows.out"))
    assert (code, said.split(":")[0]) == (2, "cli.unknown_format")
    assert json.loads((await run("query", "--file", str(asked), "--json"))[1])["rows"] == [[1], [2]]
    plan = json.loads((await run("query", "--file", str(asked), "--explain", "--json"))[1])
    assert (plan["engine"], plan["of_files"]) == ("duckdb", 3)
    for wrong in (["select 1", "--file", str(asked)], [], ["select 1", "--json", "--format", "csv"]):
        code, said = await run("query", *wrong)
        assert (code, "cli.usage" in said) == (2, True), said
