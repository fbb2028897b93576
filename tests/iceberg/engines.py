"""Engines that are not ours, as people use them: PyIceberg, DuckDB with its extension, Polars through PyIceberg."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog

Rows = list[tuple[Any, ...]]


def pyiceberg_catalog(url: str, token: str, warehouse: str = "", **properties: str) -> RestCatalog:
    named = {"warehouse": warehouse} if warehouse else {}
    return RestCatalog("traceplane", uri=f"{url}/iceberg", token=token, **named, **properties)


def by_pyiceberg(url: str, token: str, dag: str, dataset: str, warehouse: str = "") -> pa.Table:
    return pyiceberg_catalog(url, token, warehouse).load_table((dag, dataset)).scan().to_arrow()


def by_polars(url: str, token: str, dag: str, dataset: str, warehouse: str = "") -> pa.Table:
    table = pyiceberg_catalog(url, token, warehouse).load_table((dag, dataset))
    return pl.scan_iceberg(table, reader_override="pyiceberg").collect().to_arrow()


@contextmanager
def duckdb_catalog(url: str, token: str, warehouse: str = "") -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB in which the catalog is `ic`."""
    with duckdb.connect(config={"autoinstall_known_extensions": False}) as connection:
        for name in ("avro", "httpfs", "iceberg"):
            folder = resources.files(f"duckdb_extension_{name}") / "extensions" / f"v{duckdb.__version__}"
            connection.execute(f"load '{folder / f'{name}.duckdb_extension'}'")
        connection.execute("set timezone = 'UTC'")
        connection.execute(f"create secret (type iceberg, token '{token}')")
        connection.execute(f"attach '{warehouse}' as ic (type iceberg, endpoint '{url}/iceberg')")
        yield connection


def by_duckdb(url: str, token: str, dag: str, dataset: str, warehouse: str = "") -> pa.Table:
    with duckdb_catalog(url, token, warehouse) as connection:
        return connection.execute(f'select * from ic."{dag}"."{dataset}"').to_arrow_table()


def duckdb_rows(url: str, token: str, sql: str, warehouse: str = "") -> Rows:
    with duckdb_catalog(url, token, warehouse) as connection:
        return connection.execute(sql).fetchall()


ENGINES: dict[str, Callable[..., pa.Table]] = {
    "pyiceberg": by_pyiceberg,
    "duckdb": by_duckdb,
    "polars": by_polars,
}


def rows_of(table: pa.Table) -> Rows:
    """In an order that does not depend on the engine."""
    names = sorted(table.column_names)
    columns = [table.column(name).to_pylist() for name in names]
    return sorted(zip(*columns, strict=True), key=repr)
