"""One embedded Postgres per test process; a fresh database, cloned from the migrated template, per test."""

from __future__ import annotations

import asyncio
import itertools
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest
from hypothesis import HealthCheck, settings

from traceplane.postgres.database import Database
from traceplane.postgres.embedded.server import PORT, EmbeddedPostgres
from traceplane.postgres.migrate import migrate

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

_numbers = itertools.count(1)

# A shell starts what runs in its background with SIGINT ignored, and so would be whatever tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's affair.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

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
    "test_spec_properties",
)
"""Folders and files whose tests take long. They begin first, so that no process is left with them at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        names = (*item.nodeid.partition("::")[0].split("/"), item.path.stem)
        return next((n for n, name in enumerate(LONG_FIRST) if name in names), len(LONG_FIRST))

    items.sort(key=rank)


SHARED = {
    "a Spark server": (
        "tests/spark/test_examples.py",
        "tests/spark/test_organizations_on_spark.py",
        "tests/spark/test_spark_bad_input.py",
        "tests/spark/test_spark_crashes.py",
        "tests/spark/test_spark_jobs.py",
        "tests/spark/test_spark_sql.py",
        "tests/spark/test_tpch.py",
    ),
    "a sandbox": ("tests/process/sandbox/",),
}
"""What takes long to start and is used by several files."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """A file at a time, since its tests share processes; files that share some with each other one after the other."""
    from xdist.scheduler import LoadFileScheduling

    class ByWhatIsShared(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            shared = (what for what, users in SHARED.items() if nodeid.startswith(users))
            return next(shared, nodeid.partition("::")[0])

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


@pytest.fixture(scope="session")
def administrator(postgres_server: EmbeddedPostgres) -> Iterator[Callable[[str], None]]:
    """Runs statements on one connection: a thousand tests copy the template, and a `psql` costs more than the copy."""
    loop = asyncio.new_event_loop()
    connection = loop.run_until_complete(
        asyncpg.connect(
            host=str(postgres_server.socket_folder),
            port=PORT,
            user="postgres",
            password=postgres_server.passwords["postgres"],
            database="postgres",
        )
    )
    yield lambda statement: loop.run_until_complete(connection.execute(statement))
    loop.run_until_complete(connection.close())
    loop.close()


@pytest.fixture
def database_url(
    postgres_server: EmbeddedPostgres, template_database: str, administrator: Callable[[str], None]
) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    # The files are copied as they are: what is copied through the log costs twice as much here.
    administrator(
        f"CREATE DATABASE {name} OWNER traceplane_state TEMPLATE {template_database} STRATEGY file_copy"
    )
    administrator(f"REVOKE ALL ON DATABASE {name} FROM PUBLIC")
    yield postgres_server.url("traceplane_state", name)
    administrator(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.connect(database_url)
    yield opened
    await opened.close()
