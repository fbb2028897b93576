from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.gateway_http import GatewayHttp
from tests.iceberg.served_shop import ServedShop
from tests.query.published import Shop
from traceplane.auth.roles import Role


@pytest_asyncio.fixture
async def served(database_url: str, tmp_path: Path) -> AsyncIterator[ServedShop]:
    async with Shop.open(database_url, tmp_path / "objects") as shop, GatewayHttp.open(shop.plane) as http:
        yield ServedShop(shop, http, await http.token(Role.ADMIN))
