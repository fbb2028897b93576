"""Pages that follow what happens: events and what they caused, the graph, deploys, triggers and a task."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.ui.pages import Visitor

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_event_is_followed_through_everything_it_caused(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.go("/events")
    await expect(page.get_by_text("traceplane emit DATASET 0..9")).to_be_visible()
    await visitor.audit("events-empty")
    await visitor.world.busy()
    await visitor.go("/events")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(50)
    await page.get_by_role("button", name="Show older ones").click()
    await expect(rows).not_to_have_count(50)
    await visitor.audit("events")
    await page.get_by_label("Dataset").fill("shop.orders")
    await page.get_by_label("Dataset").press("Enter")
    await page.get_by_label("From").fill("7")
    await page.get_by_label("From").press("Enter")
    await expect(rows).to_have_count(1)
    assert page.url.endswith("/events?dataset=shop.orders&start=7&end=7")
    await rows.get_by_role("link").first.click()
    tree = page.get_by_role("tree")
    await expect(
        tree.get_by_role("treeitem", name="Task clean 7: completed, committed 120 rows")
    ).to_be_visible()
    await expect(tree.get_by_role("treeitem", name="Task signals 7")).to_be_visible()
    await visitor.audit("effects")
    # With the keyboard: into the tree, down, folded, to the task.
    await page.get_by_role("treeitem").first.focus()
    await page.keyboard.press("ArrowDown")
    clean = tree.get_by_role("treeitem", name="Task clean 7")
    await expect(clean).to_be_focused()
    await page.keyboard.press("ArrowLeft")
    await expect(clean).to_have_attribute("aria-expanded", "false")
    await expect(tree.get_by_role("treeitem", name="Event shop.clean_orders 7")).to_have_count(0)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="How it went")).to_be_visible()
    await page.get_by_role("link", name="Everything it caused").click()
    await expect(page.get_by_role("treeitem", name="Event shop.clean_orders 7")).to_be_visible()
    await visitor.go("/events/999999")
    await expect(page.get_by_role("heading", name="There is no such event or task")).to_be_visible()
    await visitor.audit("effects-unknown")
    visitor.complaints.clear()  # the browser complains about every 404
