"""Tables that are filled with millions of rows at once: without their indexes, which are built again at the end.

A tree that is built at once takes a fraction of the time of one that grows row by row.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

import asyncpg


@contextlib.asynccontextmanager
async def bulk_load(connection: asyncpg.Connection, tables: Sequence[str]) -> AsyncIterator[None]:
    """These tables have no indexes and are referenced by nobody until the block ends; then they are analyzed."""
    await connection.execute("set synchronous_commit = off; set maintenance_work_mem = '512MB'")
    references = await connection.fetch(_REFERENCES, list(tables), timeout=60)
    indexes = await connection.fetch(_INDEXES, list(tables), timeout=60)
    for each in (*references, *indexes):
        await connection.execute(each["remove"])
    yield
    for each in (*indexes, *references):
        await connection.execute(each["restore"], timeout=300)
    for table in tables:
        await connection.execute(f"vacuum (analyze) {table}", timeout=300)


# They depend on the primary keys.
_REFERENCES = """
select format('alter table %s drop constraint %I', c.conrelid::regclass, c.conname) as remove,
       format('alter table %s add constraint %I %s', c.conrelid::regclass, c.conname, pg_get_constraintdef(c.oid))
         as restore
from pg_constraint c join pg_class t on t.oid = c.confrelid
where c.contype = 'f' and t.relnamespace = 'traceplane'::regnamespace and t.relname = any($1::text[])
"""

# Constraints before other indexes, and the other way round when they are made again.
_INDEXES = """
select case when c.oid is not null then format('alter table %I drop constraint %I', i.tablename, i.indexname)
            else format('drop index %I', i.indexname) end as remove,
       case when c.oid is not null
            then format('alter table %I add constraint %I %s', i.tablename, i.indexname, pg_get_constraintdef(c.oid))
            else i.indexdef end as restore
from pg_indexes i left join pg_constraint c on c.conname = i.indexname and c.contype in ('p', 'u')
where i.schemaname = 'traceplane' and i.tablename = any($1::text[]) order by i.indexname
"""
