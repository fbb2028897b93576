from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.control_plane import ControlPlane


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        yield opened
