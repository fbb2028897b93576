from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.query.asked import Asked
from tests.query.published import Shop


@pytest.fixture
async def asked(shop: Shop, tmp_path: Path) -> AsyncIterator[Asked]:
    opened = Asked(shop, tmp_path / "spill")
    yield opened
    await opened.service.close()
