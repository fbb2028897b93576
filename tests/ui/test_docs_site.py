"""The docs site in a browser, as the gateway serves it: found by keyboard, readable in both themes and on a phone."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Page, expect

from docs_site.build import BUILT
from tests import http_app
from tests.ui.pages import SCREENS, violations_of
from traceplane.gateway.pages import Pages

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOOKED_AT = (
    "index.html",
    "guarantees.html",
    "reference/cli.html",
    "guides/schedules.html",
    "architecture.html",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address() -> AsyncIterator[str]:
    if not (BUILT / "index.html").is_file():
        pytest.skip("the docs site is not built: run `make docs`")
    async with http_app.running(http_app.make_app(page=Pages.built().find)) as port:
        yield f"http://127.0.0.1:{port}/docs/"


@pytest_asyncio.fixture(loop_scope="module")
async def page(context: BrowserContext) -> AsyncIterator[Page]:
    page, complaints = await context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    assert complaints == []


async def test_pages_keep_nobody_out_in_either_theme_and_fit_a_phone(address: str, page: Page) -> None:
    SCREENS.mkdir(parents=True, exist_ok=True)
    for name in LOOKED_AT:
        await page.goto(address + name)
        for theme in ("light", "dark"):
            await page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            shown = name.replace("/", "-").removesuffix(".html")
            await page.screenshot(path=SCREENS / f"docs-{shown}-{theme}.png")
            assert await violations_of(page) == [], f"{name} ({theme})"
        await page.set_viewport_size({"width": 390, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390, name
        await page.set_viewport_size({"width": 1440, "height": 900})


async def test_a_reader_searches_with_the_keyboard_alone(address: str, page: Page) -> None:
    await page.goto(address + "index.html")
    await page.keyboard.press("/")
    await page.keyboard.type("lease expired")
    results = page.get_by_role("option")
    await expect(results.first).to_contain_text("lease.expired")
    await page.keyboard.press("ArrowDown")
    await expect(results.nth(1)).to_have_attribute("aria-selected", "true")
    assert await violations_of(page) == []
    await page.keyboard.press("ArrowUp")
    await page.keyboard.press("Enter")
    await expect(page).to_have_url(address + "reference/errors.html#lease.expired")
    await expect(page.locator("tr:target")).to_contain_text("the worker stopped sending heartbeats")
    await page.keyboard.press("/")
    await page.keyboard.type("xyzzy plugh")
    await expect(page.get_by_text("Nothing has all of these words.")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize(
    ("typed", "section"),
    [
        ("how do I retry a task", "traceplane task retry"),
        ("how do I retry a task?", "Retry"),
        ("backfill", "traceplane dataset backfill"),
        ("where are the logs", "traceplane task logs"),
        ("gateway_port", "gateway_port"),
        ("the", "the"),
    ],
)
async def test_a_question_finds_the_section_about_it_first(
    address: str, page: Page, typed: str, section: str
) -> None:
    await page.goto(address + "index.html")
    await page.keyboard.press("/")
    await page.keyboard.type(typed)
    await expect(page.get_by_role("option").first).to_be_visible()
    titles = [await result.inner_text() for result in (await page.get_by_role("option").all())[:4]]
    assert any(section in title for title in titles), titles


async def test_a_guarantee_leads_to_the_line_of_its_test(address: str, page: Page) -> None:
    await page.goto(address + "guarantees.html")
    await page.get_by_role("link", name="test_nothing_is_lost_or_doubled").first.click()
    await expect(page.locator(".line:target")).to_contain_text("def test_nothing_is_lost_or_doubled")


async def test_the_theme_that_is_chosen_stays(address: str, page: Page) -> None:
    await page.goto(address)
    await page.get_by_role("button", name="Light or dark").click()
    await page.goto(address + "guarantees.html")
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_a_phone_has_the_navigation_behind_a_button(address: str, page: Page) -> None:
    await page.set_viewport_size({"width": 390, "height": 800})
    await page.goto(address)
    navigation = page.get_by_role("navigation", name="Pages")
    await expect(navigation).to_be_hidden()
    await page.get_by_role("button", name="Menu").click()
    await navigation.get_by_role("link", name="Guarantees").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Guarantees")
