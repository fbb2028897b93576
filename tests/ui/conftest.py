"""A browser, and pages that must not complain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, expect

from tests import chromium
from tests.ui.pages import LAPTOP, Visitor
from tests.ui.world import World, world_of
from traceplane.gateway.pages import are_built

PATIENCE_MS = 120_000
"""How long a page takes is the machine's affair."""
expect.set_options(timeout=PATIENCE_MS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    if not are_built():
        pytest.skip("the web UI is not built: `make setup` says why")
    try:
        async with chromium.running() as browser:
            yield browser
    except chromium.ChromiumUnavailable as why:
        pytest.skip(str(why))


@pytest_asyncio.fixture(loop_scope="module")
async def world(browser: Browser, database_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(database_url, tmp_path) as world:
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """A browser of somebody who has never been here."""
    opened = await browser.new_context(viewport=LAPTOP, color_scheme="light")
    opened.set_default_timeout(PATIENCE_MS)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="module")
async def visitor(world: World, context: BrowserContext) -> AsyncIterator[Visitor]:
    """Somebody who has signed in by a link; afterwards, no page may have complained."""
    visitor = await Visitor.of(world, context)
    await visitor.sign_in(await world.link())
    yield visitor
    assert visitor.complaints == []
