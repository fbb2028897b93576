"""TPC-H: whoever runs its 22 queries on our datasets gets what is published, and what DuckDB says of the same files.

`make bench SUITE=query` measures the same at scale factor 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import pytest_asyncio

from tests import tpch
from tests.iceberg.engines import duckdb_catalog
from tests.platform import until
from tests.spark.conftest import SparkPlatform
from traceplane.client import Client

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

SCALE = 0.01
AT_ONCE = 2


@dataclass
class Loaded:
    """The tables as datasets, and what bare DuckDB answers from the files that they were read from."""

    client: Client
    gateway: str
    token: str
    answers: dict[int, tpch.Rows]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def loaded(spark: SparkPlatform) -> Loaded:
    platform = spark.platform
    files = await asyncio.to_thread(tpch.write_tables, spark.incoming, SCALE)
    await platform.deploy(tpch.dag_text(spark.incoming))
    with tpch.bare_duckdb() as bare:
        tpch.read_files(bare, files)
        answers = {n: tpch.rows_of(bare.execute(sql).to_arrow_table()) for n, sql in tpch.queries().items()}
    partitions = sum(map(len, files.values()))

    async def committed() -> bool:
        return partitions == await platform.value(
            "select count(*) from dataset_commits c join datasets d on d.current_generation_id = c.generation_id"
            " join dags using (dag_id) where dags.name = $1 and d.dataset_id = any($2)",
            tpch.DAG,
            tpch.TABLES,
        )

    await until(committed, what="the rows of all files")
    client = Client(platform.gateway_url, platform.user_token)
    return Loaded(client, platform.gateway_url, platform.user_token, answers)


async def differences(loaded: Loaded, ask: Callable[[str], tpch.Rows], at_once: int = 1) -> dict[int, str]:
    """By query, what it answers instead of what bare DuckDB does."""

    def all_of_them() -> dict[int, str]:
        with ThreadPoolExecutor(at_once) as threads:
            asked = {number: threads.submit(ask, sql) for number, sql in tpch.queries().items()}
            found = {n: tpch.difference(rows.result(), loaded.answers[n]) for n, rows in asked.items()}
        return {number: text for number, text in found.items() if text is not None}

    return await asyncio.to_thread(all_of_them)


async def test_duckdb_answers_what_is_published(loaded: Loaded) -> None:
    published = tpch.published_answers(SCALE)
    assert len(published) == 22
    found = {n: tpch.difference_from_published(rows, published[n]) for n, rows in loaded.answers.items()}
    assert {number: text for number, text in found.items() if text is not None} == {}


async def test_the_query_service_answers_all_22(loaded: Loaded) -> None:
    assert await differences(loaded, lambda sql: tpch.rows_of(loaded.client.query(sql))) == {}


async def test_duckdb_answers_all_22_from_the_iceberg_catalog(loaded: Loaded) -> None:
    with duckdb_catalog(loaded.gateway, loaded.token) as connection:
        connection.execute(f"use ic.{tpch.DAG}")
        ask = lambda sql: tpch.rows_of(connection.execute(sql).to_arrow_table())  # noqa: E731
        assert await differences(loaded, ask) == {}


async def test_spark_answers_all_22(loaded: Loaded) -> None:
    def ask(sql: str) -> tpch.Rows:
        return tpch.rows_of(loaded.client.query(sql, engine="spark"))

    assert await differences(loaded, ask, AT_ONCE) == {}
