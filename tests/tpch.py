"""TPC-H: its eight tables as datasets, its 22 queries as they are published, and what they answer.

The rows, the queries and the published answers (of scale factors 0.01, 0.1 and 1) are those of DuckDB's extension
`tpch`. The tables come in through file sources, as anybody's Parquet files would: a file is a partition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

DAG = "tpch"
TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
LARGE = {
    "lineitem": 6_000_000,
    "orders": 1_500_000,
    "partsupp": 800_000,
    "part": 200_000,
    "customer": 150_000,
}
"""How many rows they have at scale factor 1."""
ROWS_OF_A_FILE = 1_000_000
_NEAR = 1e-6
"""How far two engines may be apart where one has a double or fewer digits after the point."""
_TYPES = {"VARCHAR": "string", "INTEGER": "int"}

Rows = list[tuple[Any, ...]]


@contextmanager
def bare_duckdb(**config: Any) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB of its own with the extension."""
    with duckdb.connect(config={"autoinstall_known_extensions": False, **config}) as connection:
        folder = resources.files("duckdb_extension_tpch") / "extensions" / f"v{duckdb.__version__}"
        connection.execute(f"load '{folder / 'tpch.duckdb_extension'}'")
        yield connection


def queries() -> dict[int, str]:
    """By their numbers."""
    with bare_duckdb() as connection:
        return dict(
            connection.execute("select query_nr, rtrim(query, e'; \\n') from tpch_queries()").fetchall()
        )


def published_answers(scale: float) -> dict[int, list[list[str]]]:
    """Of each query, the rows of its answer as they are printed."""
    with bare_duckdb() as connection:
        found = connection.execute(
            "select query_nr, answer from tpch_answers() where scale_factor = ?", [scale]
        ).fetchall()
    return {number: [line.split("|") for line in text.splitlines()[1:]] for number, text in found}


def write_tables(folder: Path, scale: float, *, least_files: int = 2) -> dict[str, list[Path]]:
    """The files of each table, in order of its key; what is too large for one file is in several."""
    written: dict[str, list[Path]] = {}
    with bare_duckdb() as connection:
        connection.execute(f"call dbgen(sf = {scale})")
        for table in TABLES:
            (folder / table).mkdir(parents=True)
            expected = LARGE.get(table, 0) * scale
            files = max(least_files if table in LARGE else 1, math.ceil(expected / ROWS_OF_A_FILE))
            rows = connection.execute(f"select count(*) from {table}").fetchall()[0][0]
            written[table] = []
            for number in range(files):
                path = folder / table / f"{number}.parquet"
                first, last = rows * number // files, rows * (number + 1) // files
                connection.execute(
                    f"copy (select * from {table} where rowid >= {first} and rowid < {last} order by rowid)"
                    f" to '{path}' (format parquet, compression zstd)"
                )
                written[table].append(path)
    return written


def dag_text(folder: Path) -> str:
    """A DAG that reads the files below a folder."""
    with bare_duckdb() as connection:
        connection.execute("call dbgen(sf = 0)")
        described = {table: connection.execute(f"describe {table}").fetchall() for table in TABLES}
    datasets, jobs = [], []
    for table in TABLES:
        columns = ", ".join(
            f'{{name: {name}, type: "{_TYPES.get(type_, type_.lower())}"}}'
            for name, type_, *_ in described[table]
        )
        datasets.append(f"  {table}: {{partitions: {{by: position}}, columns: [{columns}]}}")
        jobs.append(
            f"- name: {table}\n  activation: source\n  outputs: [{{dataset: {table}}}]\n"
            f"  source: {{kind: file, path: {folder}, pattern: '{table}/{{position}}.parquet', format: parquet,"
            " every: 3s, settle: 1s}"
        )
    return "\n".join(["version: 1", f"dag: {DAG}", "datasets:", *datasets, "jobs:", *jobs])


def read_files(connection: duckdb.DuckDBPyConnection, files: dict[str, list[Path]]) -> None:
    """The tables as views of their files, for a DuckDB that knows nothing of us."""
    for table, paths in files.items():
        connection.execute(f"create view {table} as from read_parquet({[str(path) for path in paths]})")


def rows_of(table: pa.Table) -> Rows:
    """Several columns may have the same name."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def difference(actual: Rows, expected: Rows) -> str | None:
    """Where two answers differ first; None where they are the same, in the same order."""
    if len(actual) != len(expected):
        return f"{len(actual)} rows instead of {len(expected)}"
    for number, (ours, theirs) in enumerate(zip(actual, expected, strict=True), 1):
        if len(ours) != len(theirs) or not all(map(_same, ours, theirs)):
            return f"row {number} is {ours} instead of {theirs}"
    return None


def difference_from_published(actual: Rows, published: list[list[str]]) -> str | None:
    """The same with an answer as it is printed, whose values have no types."""
    typed = [
        tuple(_typed(text, value) for text, value in zip(line, row, strict=True))
        for line, row in zip(published, actual, strict=False)
    ]
    return difference(actual, [*typed, *map(tuple, published[len(typed) :])])


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float | Decimal) and isinstance(theirs, float | Decimal | int):
        if isinstance(ours, Decimal) and isinstance(theirs, Decimal):
            scale = max(_digits(ours), _digits(theirs))
            if min(_digits(ours), _digits(theirs)) == scale:
                return ours == theirs
        return math.isclose(ours, theirs, rel_tol=_NEAR, abs_tol=_NEAR)
    return bool(ours == theirs)


def _digits(number: Decimal) -> int:
    """After the point."""
    return -int(number.as_tuple().exponent)


def _typed(text: str, like: Any) -> Any:
    if like is None:
        return text or None
    if isinstance(like, float | Decimal):
        return float(text)
    return (
        int(text)
        if isinstance(like, int)
        else text
        if isinstance(like, str)
        else type(like).fromisoformat(text)
    )
