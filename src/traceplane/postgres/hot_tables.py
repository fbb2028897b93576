"""The tables of hot generations: created at deploy, written with a commit, read by range.

Names and types of a table come from its dataset, so these statements are built here, from quoted names and a fixed
list of types; values are always parameters. Rows go in and out as CSV, which Postgres and Arrow both read and write
without Python touching a row.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from traceplane.model.comparisons import Alternatives, DoesNotFit, alternatives, of_ranges
from traceplane.model.hot_table import HeldCommit, HotColumn, HotTable
from traceplane.postgres.database import Readable, Transaction, statements
from traceplane.postgres.registry import partitions_of

_SQL = statements("hot_tables")

SCHEMA = "traceplane_hot"
_LONGEST_SHOWN = 100
"""Characters of a value in a message."""

Range = tuple[UUID, int, int]
"""A generation, and positions from the first to the last."""
_SHORTEN = "a row has about 2,700 bytes in a unique_key or an index: shorten the value, or leave a column out"


class RowsRefused(Exception):
    """Postgres rejected the rows; the transaction is rolled back, and the same rows would be rejected again."""


class KeyRepeated(RowsRefused):
    """Several of the rows have a key that may occur once."""


@dataclass(frozen=True, slots=True)
class RepeatedKey:
    values: dict[str, str]
    """By column, cut to a length that fits into a message."""
    rows: int
    """That have it."""
    others: int
    """Further keys that are repeated."""


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


async def write(
    tx: Transaction, table: HotTable, rows: Readable, count: int, *, keys_are_new: bool = False
) -> int:
    """Adds CSV rows. An `append` job adds only rows whose unique key does not exist yet; if the dataset itself has a
    key, its rows take the place of those with the same key. Returns the number of rows it added."""
    names = [c.name for c in table.columns]
    try:
        if table.replaces or keys_are_new:
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
    except asyncpg.ProgramLimitExceededError as error:  # of the row itself, or of one in an index
        raise RowsRefused(f"{error}; {_SHORTEN}" if "index" in str(error) else str(error)) from error
    except (asyncpg.UniqueViolationError, asyncpg.CardinalityViolationError) as error:
        raise KeyRepeated(str(error)) from error
    except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
        detail = f": {error.detail}" if error.detail else ""
        raise RowsRefused(f"{error}{detail}") from error
    if copied != count:
        raise RowsRefused(f"only {copied} of {count} rows arrived")
    return added


async def repeated_key(tx: Transaction, table: HotTable, rows: Readable) -> RepeatedKey | None:
    """The key that most of the rows have in common, if several have. Nothing is kept of them. Raises RowsRefused, if
    something else is wrong with them too."""
    key, names = table.key or table.unique_key, [c.name for c in table.columns]
    draft = f"repeated_{table.generation_id.hex}"
    await tx.run(f"create temporary table {draft} (like {_name(table)}) on commit drop")
    try:
        await tx.copy_in(draft, names, rows)
    except (
        asyncpg.DataError,
        asyncpg.IntegrityConstraintViolationError,
        asyncpg.ProgramLimitExceededError,
    ) as error:
        raise RowsRefused(str(error)) from error
    texts = ", ".join(f"left({_quoted(name)}::text, {_LONGEST_SHOWN})" for name in key)
    known = " and ".join(f"{_quoted(name)} is not null" for name in key)
    found = await tx.row(
        f"select array[{texts}] as values, count(*) as rows, count(*) over () - 1 as others from {draft}"
        f" where {known} group by {_list(key)} having count(*) > 1 order by count(*) desc, {_list(key)} limit 1"
    )
    if found is None:
        return None
    return RepeatedKey(dict(zip(key, found["values"], strict=True)), found["rows"], found["others"])


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


async def rows_at(
    tx: Transaction,
    generation_id: UUID,
    names: Sequence[str],
    position: str,
    texts: Sequence[str],
    ranges: Sequence[tuple[int, int]],
    most: int,
    most_bytes: int,
) -> list[asyncpg.Record]:
    """Rows of a table whose positions are numbers, up to so many, in the order of their positions. `fits`: whether the
    texts up to the end of the row's position have no more bytes than this; the values of other rows are not read. The
    ranges have no position in common."""
    size = " + ".join(f"coalesce(octet_length({_quoted(name)}), 0)" for name in texts)
    values = ", ".join(f"case when fits then {_quoted(name)} end as {_quoted(name)}" for name in names)
    return await tx.rows(
        f"with chosen as (select {_list([position, *names])} from unnest($1::int8[], $2::int8[]) as r (first, last)"
        f" join {SCHEMA}.{table_name(generation_id)} on {_quoted(position)} between r.first and r.last"
        f" order by {_quoted(position)} limit $3)"
        f" select {_quoted(position)}, fits, {values} from"
        f" (select *, sum({size}) over (order by {_quoted(position)}) <= $4 as fits from chosen) measured"
        f" order by {_quoted(position)}",
        [first for first, _ in ranges],
        [last for _, last in ranges],
        most,
        most_bytes,
    )


def _on_conflict(table: HotTable) -> str:
    if not table.upserts:
        return "on conflict do nothing"
    others = [c.name for c in table.columns if c.name not in table.key]
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
