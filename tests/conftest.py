"""One embedded Postgres per test process; a fresh database, cloned from the migrated template, per test."""

from __future__ import annotations

import asyncio
import itertools
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from traceplane.postgres.database import Database
from traceplane.postgres.embedded import EmbeddedPostgres, create_database, drop_database
from traceplane.postgres.migrate import migrate

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

_numbers = itertools.count(1)

# A shell starts what runs in its background with SIGINT ignored, and so would be whatever tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests want neither durability nor a long checkpoint; process tests that need both start their own server.
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "300"}

LONG_FIRST = (
    "spark",
    "process",
    "chain",
    "e2e",
    "chaos",
    "contract",
    "query",
    "trigger",
    "property",
    "test_spec",
)
"""Folders and files whose tests take long. They begin first, so that no process is left with them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        names = (item.path.parent.name, item.path.stem)
        return next((n for n, name in enumerate(LONG_FIRST) if name in names), len(LONG_FIRST))

    items.sort(key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """A file at a time, since its tests share processes; those of Spark all at once, since they share a server whose
    start takes half a minute."""
    from xdist.scheduler import LoadFileScheduling

    class ByWhatIsShared(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/spark" if nodeid.startswith("tests/spark/") else super()._split_scope(nodeid)

    return ByWhatIsShared(config, log)


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
