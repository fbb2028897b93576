"""The tables of hot generations: created at deploy, written with a commit, read by range.

Names and types of a table come from its dataset, so these statements are built here, from quoted names and a fixed
list of types; values are always parameters. Rows go in and out as CSV, which Postgres and Arrow both read and write
without Python touching a row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import IO, Any
from uuid import UUID

import asyncpg
import msgspec

from traceplane.model.comparisons import Alternatives, DoesNotFit, alternatives, of_ranges
from traceplane.model.hot_table import HeldCommit, HotColumn, HotTable
from traceplane.postgres.database import Transaction, statements
from traceplane.postgres.registry import partitions_of

_SQL = statements("hot_tables")

SCHEMA = "traceplane_hot"

Range = tuple[UUID, int, int]
"""A generation, and positions from the first to the last."""


class RowsRefused(Exception):
    """Postgres rejected the rows; the transaction is rolled back, and the same rows would be rejected again."""


class FilterRefused(Exception):
    """A value that the column it is compared with cannot have."""


def table_name(generation_id: UUID) -> str:
    return f"g_{generation_id.hex}"


async def create(tx: Transaction, table: HotTable, indexes: Sequence[Sequence[str]] = ()) -> None:
    columns = ", ".join(
        f"{_quoted(c.name)} {c.postgres_type}{'' if c.nullable and c.name != table.position else ' not null'}"
        for c in table.columns
    )
    await tx.rows(
        _SQL["create"],
        table.generation_id,
        columns,
        _quoted(table.position),
        _list(table.key or table.unique_key),
        [_list(columns) for columns in indexes],
    )
    await tx.rows(
        _SQL["add"],
        table.generation_id,
        [msgspec.to_builtins(c) for c in table.columns],
        table.position,
        list(table.unique_key),
        list(table.key),
    )


async def drop(tx: Transaction, generation_id: UUID) -> None:
    """Drops the table of a generation that nobody reads any more."""
    await tx.run(f"drop table if exists {SCHEMA}.{table_name(generation_id)}")
    await tx.rows(_SQL["drop"], generation_id)


async def load(tx: Transaction, generation_ids: Sequence[UUID]) -> dict[UUID, HotTable]:
    return {
        r["generation_id"]: HotTable(
            r["generation_id"],
            tuple(HotColumn(**column) for column in r["columns"]),
            r["position"],
            tuple(r["unique_key"]),
            partitions_of(r["partitions"]),
            tuple(r["key"]),
            bool(r["buffered"]),
        )
        for r in await tx.rows(_SQL["load"], list(generation_ids))
    }


async def lock(tx: Transaction, generation_ids: Sequence[UUID]) -> None:
    await tx.rows(_SQL["lock"], list(generation_ids))


async def held(tx: Transaction, ranges: Sequence[Range]) -> list[list[HeldCommit]]:
    """For each range, the live commits that overlap it."""
    held: list[list[HeldCommit]] = [[] for _ in ranges]
    for r in await tx.rows(_SQL["held"], *_columns(ranges)):
        held[r["number"]].append(
            HeldCommit(r["commit_id"], r["range_start"], r["range_end"], r["row_count"], tuple(r["files"]))
        )
    return held


async def states(tx: Transaction, ranges: Sequence[Range]) -> list[str]:
    found = ["" for _ in ranges]
    for r in await tx.rows(_SQL["states"], *_columns(ranges)):
        found[r["number"]] = r["state"]
    return found


async def clear(tx: Transaction, table: HotTable, start: int, end: int) -> None:
    """Removes the rows of these positions."""
    condition, arguments = _within(table, start, end)
    await tx.run(f"delete from {_name(table)} where {condition}", *arguments)


async def write(tx: Transaction, table: HotTable, rows: IO[bytes], count: int) -> int:
    """Adds CSV rows. An `append` job adds only rows whose unique key does not exist yet; if the dataset itself has a
    key, its rows take the place of those with the same key. Returns the number of rows it added."""
    names = [c.name for c in table.columns]
    try:
        if not table.unique_key:
            added = copied = await tx.copy_in(table_name(table.generation_id), names, rows, schema=SCHEMA)
        else:
            draft = f"draft_{table.generation_id.hex}"
            await tx.run(f"create temporary table {draft} (like {_name(table)}) on commit drop")
            copied = await tx.copy_in(draft, names, rows)
            columns = _list(names)
            added = await tx.value(
                f"with added as (insert into {_name(table)} ({columns}) select {columns} from {draft}"
                f" {_on_conflict(table)} returning 1) select count(*) from added"
            )
            await tx.run(f"drop table {draft}")
    except (
        asyncpg.DataError,
        asyncpg.IntegrityConstraintViolationError,
        asyncpg.CardinalityViolationError,
    ) as error:
        detail = f": {error.detail}" if error.detail else ""
        raise RowsRefused(f"{error}{detail}") from error
    if copied != count:
        raise RowsRefused(f"only {copied} of {count} rows arrived")
    return added


async def add_deliveries(
    tx: Transaction,
    generation_id: UUID,
    first: int,
    keys: Sequence[str],
    headers: Sequence[str],
    bodies: Sequence[str],
) -> None:
    """Adds rows to the table of a webhook source (`webhooks.specs.deliveries`), numbered from `first`."""
    await tx.run(
        f"insert into {SCHEMA}.{table_name(generation_id)} (delivery, received_at, key, headers, body)"
        " select $1::bigint + n - 1, tp_now(), key, headers, body"
        " from unnest($2::text[], $3::text[], $4::text[]) with ordinality as d (key, headers, body, n)",
        first,
        list(keys),
        list(headers),
        list(bodies),
    )


async def replace_files(
    tx: Transaction, generation_id: UUID, positions: Sequence[int], partitions: Sequence[str]
) -> None:
    """Writes the files of these partitions to the table of a file source (`file_sources.specs.listed_files`)."""
    table = f"{SCHEMA}.{table_name(generation_id)}"
    await tx.run(f"delete from {table} where position = any($1::bigint[])", list(positions))
    await tx.run(
        f"insert into {table} (position, partition, path, bytes, modified_at, version)"
        " select p.position, p.name, f.path, f.bytes, f.modified_at, f.version"
        " from unnest($2::bigint[], $3::text[]) as p (position, name)"
        " join source_files f on f.generation_id = $1 and f.position = p.position",
        generation_id,
        list(positions),
        list(partitions),
    )


async def read(
    tx: Transaction,
    table: HotTable,
    start: int,
    end: int,
    push: Callable[[bytes], Awaitable[None]],
    *,
    columns: Sequence[str],
    where: Mapping[str, Any],
) -> None:
    """Sends the rows of these positions in CSV, without a header; only these columns, only rows that meet `where`."""
    condition, arguments = _within(table, start, end)
    for column in table.columns:
        if column.name in where:
            try:
                asked = alternatives(where[column.name], column.arrow_type)
            except DoesNotFit as error:
                raise FilterRefused(f"{column.name} is {column.type}; {error.suggestion}") from error
            condition += f" and {_meets(column, asked, arguments)}"
    query = f"select {', '.join(map(_quoted, columns))} from {_name(table)} where {condition}"
    await tx.copy_out(query, *arguments, push=push)


def _on_conflict(table: HotTable) -> str:
    others = [c.name for c in table.columns if c.name not in table.key]
    if not table.key or not others:
        return "on conflict do nothing"
    changes = ", ".join(f"{name} = excluded.{name}" for name in map(_quoted, others))
    return f"on conflict ({_list(table.key)}) do update set {changes}"


def _within(table: HotTable, start: int, end: int) -> tuple[str, list[str]]:
    """A condition on the position column, and its arguments."""
    position, arguments = table.position_column, list[str]()
    column = next(column for column in table.columns if column.name == table.position)
    asked = of_ranges([position.values((start, end))])
    return _meets(column, asked, arguments), arguments


def _meets(column: HotColumn, asked: Alternatives, arguments: list[str]) -> str:
    """A condition whose values are added to the arguments."""
    name = _quoted(column.name) + (' collate "C"' if column.postgres_type == "text" else "")
    # A position may be too large for the type of its column.
    type_ = "bigint" if column.postgres_type in ("smallint", "integer") else column.postgres_type
    alternatives_ = []
    for comparisons in asked:
        tests = [f"{name} is not null"]
        for sign, value in comparisons:
            arguments.append(_as_text(value))
            tests.append(f"{name} {sign} ${len(arguments)}::text::{type_}")
        alternatives_.append(" and ".join(tests))
    return "(" + " or ".join(alternatives_) + ")"


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _columns(ranges: Sequence[Range]) -> list[list[Any]]:
    return [[r[n] for r in ranges] for n in range(3)]


def _name(table: HotTable) -> str:
    return f"{SCHEMA}.{table_name(table.generation_id)}"


def _list(columns: Sequence[str]) -> str:
    return ", ".join(map(_quoted, columns))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
