"""The platform of the requests that must be refused. Other tests of this folder have their own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.attacked_platform import AttackedPlatform, attacked_platform
from traceplane.postgres.embedded.server import EmbeddedPostgres


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AttackedPlatform]:
    folder = tmp_path_factory.mktemp("refused_requests")
    async with attacked_platform(postgres_server, template_database, folder) as attacked:
        yield attacked
