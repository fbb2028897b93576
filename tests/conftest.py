"""One embedded Postgres per test process; a fresh database, cloned from the migrated template, per test."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from traceplane.postgres.database import Database
from traceplane.postgres.embedded import EmbeddedPostgres, create_database, drop_database
from traceplane.postgres.migrate import migrate

_numbers = itertools.count(1)

# Tests want neither durability nor a long checkpoint; process tests that need both start their own server.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "300"}

LONG_FIRST = ("spark", "process", "chain", "e2e", "chaos", "contract", "query", "trigger")
"""Folders whose tests take long. They begin first, so that no process is left with them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        folder = item.path.parent.name
        return LONG_FIRST.index(folder) if folder in LONG_FIRST else len(LONG_FIRST)

    items.sort(key=rank)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    with tempfile.TemporaryDirectory(prefix="tp-test-", ignore_cleanup_errors=True) as folder:
        server = EmbeddedPostgres.ensure(Path(folder) / "postgres", settings=FAST, die_with_parent=True)
        try:
            yield server
        finally:
            server.destroy()


@pytest.fixture(scope="session")
def template_database(postgres_server: EmbeddedPostgres) -> str:
    asyncio.run(migrate(postgres_server.state_url))
    return "traceplane_state"


@pytest.fixture
def database_url(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    yield create_database(postgres_server, name, template=template_database)
    drop_database(postgres_server, name)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.connect(database_url)
    yield opened
    await opened.close()
