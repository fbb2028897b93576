"""The pool, transactions, and the named statements. Nothing outside `postgres/` imports the driver.

Every typed query function takes a `Transaction` first; `Database.transaction()` opens one. A lost connection, a
restarting server or a serialization failure surfaces as `DatabaseUnavailable`: no commit was confirmed, and the
call may be retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Protocol, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from traceplane.crash_points import armed, crash_point
from traceplane.errors import ConcurrentChange, DatabaseUnavailable
from traceplane.runtime.retrying import happens

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)

SCHEMA = "traceplane"
ORG_ROLE = "traceplane_org"

Result = TypeVar("Result")
Row = TypeVar("Row")

# Every statement takes its rows as arrays and accesses tables by index, so one generic plan suits all
# calls (planning again costs more than running), and a sequential scan is never the right choice.
_SESSION = {
    "search_path": SCHEMA,
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "jit": "off",
    "application_name": "traceplane",
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "30s",
}

# A transaction gets an id with its first change or row lock.
_CHANGED_ANYTHING = "select pg_current_xact_id_if_assigned() is not null"

_COPY_SECONDS = 300
"""For bulk reads; the receiver may be slow."""

_READER = (
    f"set local statement_timeout = '{_COPY_SECONDS}s'; set local application_name = 'traceplane reader'"
)
"""The name says that the transaction writes nothing (`pinned.settled_moment`)."""

RETRYABLE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    # A statement sent while the server's last messages on this connection are being read.
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
HEALED_BY_REPETITION = (*RETRYABLE, asyncpg.UniqueViolationError)
"""What a transaction may meet because of others, whatever it does."""


_PREFETCHED = 5_000


@cache
def statements(table: str) -> dict[str, str]:
    """The named queries of `sql/<table>.sql`."""
    text = resources.files("traceplane.postgres").joinpath(f"sql/{table}.sql").read_text()
    parts = _NAME.split(text)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


class Readable(Protocol):
    """Bytes that are read piece by piece, until a piece is empty."""

    def read(self, size: int, /) -> bytes: ...


class Transaction:
    """One open transaction; the typed query functions of this package run their statements on it."""

    __slots__ = ("_connection",)

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self._connection = connection

    async def rows(self, statement: str, *args: object) -> list[asyncpg.Record]:
        rows: list[asyncpg.Record] = await self._connection.fetch(statement, *args)
        return rows

    async def stream(self, statement: str, *args: object) -> AsyncIterator[asyncpg.Record]:
        """Rows of one statement, and so of one snapshot, some at a time: neither all in memory nor within the time that
        one answer may take."""
        async for row in self._connection.cursor(statement, *args, prefetch=_PREFETCHED):
            yield row

    async def row(self, statement: str, *args: object) -> asyncpg.Record | None:
        return await self._connection.fetchrow(statement, *args)

    async def rows_as(self, kind: Callable[..., Row], statement: str, *args: object) -> list[Row]:
        """Rows as objects whose fields have the names of the columns."""
        return [kind(**row) for row in await self._connection.fetch(statement, *args)]

    async def row_as(self, kind: Callable[..., Row], statement: str, *args: object) -> Row | None:
        row = await self._connection.fetchrow(statement, *args)
        return kind(**row) if row is not None else None

    async def value(self, statement: str, *args: object) -> Any:
        return await self._connection.fetchval(statement, *args)

    @contextlib.asynccontextmanager
    async def planned_for_its_values(self) -> AsyncIterator[None]:
        """Statements within get a plan of their own each time: what is best for a few rows is not for all of them."""
        await self.run("set local plan_cache_mode = force_custom_plan")
        yield
        await self.run("set local plan_cache_mode = force_generic_plan")

    async def run(self, statement: str, *args: object) -> None:
        await self._connection.execute(statement, *args)

    async def copy_in(
        self, table: str, columns: Sequence[str], rows: Readable, *, schema: str | None = None
    ) -> int:
        """Adds CSV rows to a table; returns their number."""
        status = await self._connection.copy_to_table(
            table, source=rows, columns=list(columns), schema_name=schema, format="csv", timeout=_COPY_SECONDS
        )
        return int(status.rpartition(" ")[2])

    async def copy_out(self, query: str, *args: object, push: Callable[[bytes], Awaitable[None]]) -> None:
        """Sends the result of a query as CSV, in pieces."""
        await self._connection.copy_from_query(query, *args, output=push, format="csv", timeout=_COPY_SECONDS)


async def _prepare(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    for type_name in ("json", "jsonb"):
        await connection.set_type_codec(
            type_name,
            schema="pg_catalog",
            encoder=lambda value: msgspec.json.encode(value).decode(),
            decoder=msgspec.json.decode,
        )


async def _leave_as_is(connection: asyncpg.Connection[asyncpg.Record]) -> None:
    """Nothing here changes a session outside a transaction, so returning a connection needs no reset round trip."""


class _OrgConnection(asyncpg.Connection):  # type: ignore[misc]  # the driver has no types
    """A session that sees the rows of one organization, and remembers of which."""

    _org_id: UUID | None = None

    async def act_for(self, org_id: UUID) -> None:
        if self._org_id != org_id:
            self._org_id = None
            await self.execute(f"select set_config('traceplane.org', '{org_id}', false)")
            self._org_id = org_id


async def _pool(
    url: str,
    connections: int,
    session: Mapping[str, str],
    kind: type[Any] = asyncpg.Connection,
) -> asyncpg.Pool[asyncpg.Record]:
    try:
        return await asyncpg.create_pool(
            url,
            min_size=1,
            max_size=connections,
            connection_class=kind,
            init=_prepare,
            reset=_leave_as_is,
            server_settings={**_SESSION, **session},
            timeout=10,
            command_timeout=60,
            max_inactive_connection_lifetime=300,
        )
    except RETRYABLE as error:
        raise _unavailable(error) from error


class Database:
    """A pool on one database of one role."""

    def __init__(self, url: str, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self.url = url
        self._pool = pool

    @classmethod
    async def connect(
        cls, url: str, *, connections: int = 8, session: dict[str, str] | None = None
    ) -> Database:
        return cls(url, await _pool(url, connections, session or {}))

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy[asyncpg.Record]]:
        async with self._pool.acquire(timeout=10) as connection:
            yield connection

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._pool.close(), 5)
        self._pool.terminate()

    @contextlib.asynccontextmanager
    async def transaction(self, label: str = "") -> AsyncIterator[Transaction]:
        """One transaction; `label` names its crash points, where tests kill the process around the commit."""
        try:
            async with self._connection() as connection:
                async with connection.transaction():
                    yield Transaction(connection)
                    doomed = armed(label) and await connection.fetchval(_CHANGED_ANYTHING)
                    if doomed:
                        crash_point(f"{label}.before_commit")
                if doomed:
                    crash_point(f"{label}.after_commit")
        except (asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError) as error:
            raise _concurrent(error) from error
        except RETRYABLE as error:
            raise _unavailable(error) from error

    @contextlib.asynccontextmanager
    async def statement(self, label: str) -> AsyncIterator[Transaction]:
        """A transaction of a single statement, without round trips to begin and commit; an ordinary one if a
        crash point is armed around it."""
        try:
            async with self.transaction(label) if armed(label) else self.autocommit() as tx:
                yield tx
        except (asyncpg.UniqueViolationError, asyncpg.DeadlockDetectedError) as error:
            raise _concurrent(error) from error

    @contextlib.asynccontextmanager
    async def autocommit(self) -> AsyncIterator[Transaction]:
        """A connection without a transaction around it, for a single statement."""
        try:
            async with self._connection() as connection:
                yield Transaction(connection)
        except RETRYABLE as error:
            raise _unavailable(error) from error

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Transaction]:
        """A read-only transaction with one snapshot, for reads that take several statements."""
        try:
            async with (
                self._connection() as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                await connection.execute(_READER)
                yield Transaction(connection)
        except RETRYABLE as error:
            raise _unavailable(error) from error

    async def listen(
        self, channels: Sequence[str], heard: Callable[[str, str], None], stop: asyncio.Event
    ) -> None:
        """Calls `heard(channel, payload)` for every notification until `stop`; reconnects automatically.

        After each (re)connection it also calls `heard(channel, "")`, since notifications sent while nobody
        listened are lost.
        """
        while not stop.is_set():
            lost = asyncio.Event()
            try:
                connection = await asyncpg.connect(self.url, server_settings=_SESSION, timeout=10)
            except RETRYABLE:
                await happens(stop, within=0.5)
                continue
            try:
                connection.add_termination_listener(lambda _, lost=lost: lost.set())
                for channel in channels:
                    await connection.add_listener(channel, lambda _c, _p, name, text: heard(name, text))
                    heard(channel, "")
                await _either(stop, lost)
            except RETRYABLE:
                await happens(stop, within=0.5)
            finally:
                connection.terminate()


BeforeCommit = Callable[[Transaction], Awaitable[None]]


class OrgDatabase(Database):
    """The database as one organization sees it: rows of others are not there, whatever a statement asks for."""

    def __init__(
        self,
        url: str,
        pool: asyncpg.Pool[asyncpg.Record],
        org_id: UUID,
        before_commit: BeforeCommit | None = None,
    ) -> None:
        super().__init__(url, pool)
        self._org_id, self._before_commit = org_id, before_commit

    @property
    def unwatched(self) -> OrgDatabase:
        """The same, without `before_commit`."""
        return OrgDatabase(self.url, self._pool, self._org_id)

    @contextlib.asynccontextmanager
    async def transaction(self, label: str = "") -> AsyncIterator[Transaction]:
        async with super().transaction(label) as tx:
            yield tx
            if self._before_commit is not None:
                await self._before_commit(tx)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.pool.PoolConnectionProxy[asyncpg.Record]]:
        async with super()._connection() as connection:
            await connection.act_for(self._org_id)
            yield connection


class OrgDatabases:
    """One pool for all organizations, of a role to which row-level security applies (migration 0028)."""

    def __init__(self, url: str, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self._url, self._pool = url, pool

    @classmethod
    async def connect(cls, url: str, *, connections: int = 8) -> OrgDatabases:
        return cls(url, await _pool(url, connections, {"role": ORG_ROLE}, _OrgConnection))

    def of(self, org_id: UUID, before_commit: BeforeCommit | None = None) -> OrgDatabase:
        """`before_commit` is the last thing that each of its transactions does."""
        return OrgDatabase(self._url, self._pool, org_id, before_commit)

    async def close(self) -> None:
        await Database(self._url, self._pool).close()


async def retry_on_conflict(once: Callable[[], Awaitable[Result]]) -> Result:
    """Retries a transaction when another process did the same at the same time (for example, two dispatchers
    dispatching one scope): the retry sees the other's choice."""
    for _ in range(3):
        with contextlib.suppress(ConcurrentChange):
            return await once()
    return await once()


def _concurrent(error: asyncpg.PostgresError) -> ConcurrentChange:
    return ConcurrentChange(
        "postgres.concurrent_change",
        "another process made the same change at the same time; nothing of this call was kept",
        value=error.constraint_name,
        next_step="repeat the call",
    )


def _unavailable(error: BaseException) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        "postgres.unavailable",
        "Postgres did not answer; nothing of this call was kept",
        value=f"{type(error).__name__}: {error}",
        next_step="repeat the call",
    )


async def _either(*events: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
