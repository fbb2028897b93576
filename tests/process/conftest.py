"""The platform of the reported failures. Other tests of this folder that need a platform have their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.process.two_dispatchers import TwoDispatchers, two_dispatchers
from traceplane.postgres.embedded.server import EmbeddedPostgres


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[TwoDispatchers]:
    folder = tmp_path_factory.mktemp("reported_failures")
    async with two_dispatchers(postgres_server, template_database, folder) as platform:
        yield platform


@pytest_asyncio.fixture(loop_scope="module")
async def world(shared: TwoDispatchers) -> TwoDispatchers:
    await shared.revive()
    return shared
