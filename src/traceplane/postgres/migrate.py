"""Plain SQL files, applied in order, each in one transaction, once.

Changes are expand/contract: a migration only ever adds what the running version does not yet need, or
removes what no running version uses any more, so that old and new processes overlap during a deploy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

import asyncpg

from traceplane.errors import Conflict
from traceplane.postgres.database import RETRYABLE, SCHEMA, _unavailable

_LOCK = 7_203_115  # any fixed number: one migrator at a time


@dataclass(frozen=True, slots=True)
class Migration:
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def migrations() -> tuple[Migration, ...]:
    folder = resources.files("traceplane.postgres").joinpath("migrations")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".sql")), key=lambda f: f.name)
    return tuple(Migration(f.name.removesuffix(".sql"), f.read_text()) for f in files)


async def migrate(url: str) -> tuple[str, ...]:
    """Brings the schema up to date; returns the names of the migrations it applied."""
    try:
        connection = await asyncpg.connect(url, server_settings={"search_path": SCHEMA}, timeout=10)
    except RETRYABLE as error:
        raise _unavailable(error) from error
    try:
        await connection.execute(f"select pg_advisory_lock({_LOCK})")
        await connection.execute(f"create schema if not exists {SCHEMA}")
        await connection.execute(
            "create table if not exists schema_migrations"
            " (name text primary key, checksum text not null, applied_at timestamptz not null default now())"
        )
        applied = {
            r["name"]: r["checksum"] for r in await connection.fetch("select * from schema_migrations")
        }
        done: list[str] = []
        for migration in migrations():
            if migration.name in applied:
                _check_unchanged(migration, applied[migration.name])
                continue
            async with connection.transaction():
                await connection.execute(migration.sql)
                await connection.execute(
                    "insert into schema_migrations (name, checksum) values ($1, $2)",
                    migration.name,
                    migration.checksum,
                )
            done.append(migration.name)
        return tuple(done)
    finally:
        await connection.close()


def _check_unchanged(migration: Migration, recorded: str) -> None:
    if migration.checksum != recorded:
        raise Conflict(
            "postgres.migration_changed",
            "a migration that was already applied has been edited",
            value=migration.name,
            next_step="restore the file and write a new migration instead",
        )
