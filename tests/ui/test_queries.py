"""The page of queries: its editor, results of any length, charts, and two states beside each other."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pyarrow.ipc as ipc
import pytest
from playwright.async_api import BrowserContext, Locator, Page, expect

from tests.query import published
from tests.ui.pages import Visitor

pytestmark = pytest.mark.asyncio(loop_scope="module")

VIEW = 'datasets:\n  shop.some: {{storage: virtual, sql: "{}"}}'
FIRST = published.DAG.replace(
    "datasets:", VIEW.format("select id, customer, amount from shop.orders where id in (1, 2, 3)")
)
SECOND = published.DAG.replace(
    "datasets:",
    VIEW.format(
        "select id, customer, if(id = 2, 22.5, amount) as amount from shop.orders where id in (1, 2, 4)"
    ),
)
MILLION = "select n, n * 2 as twice, 'row ' || n as name from (select unnest(range(1000000)) as n)"


async def _run(page: Page, sql: str) -> Locator:
    editor = page.get_by_label("SQL", exact=True)
    await editor.fill(sql)
    await editor.press("Control+Enter")
    return page.get_by_role("region", name="Result")


async def test_queries_answer_with_a_table(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.page
    await visitor.go("/queries")
    await expect(page.get_by_label("SQL", exact=True)).to_be_visible()
    await visitor.audit("queries-empty")
    table = await _run(
        page,
        "select $least as n, 'x2' as text, 12.340 as price, timestamptz '2026-11-16 05:00:00.25+00' as at"
        " union all select 3, null, null, null order by n",
    )
    await page.get_by_label("$least").fill("2")
    await page.get_by_role("button", name="Run").click()
    first = table.get_by_role("row").nth(1)
    await expect(first).to_contain_text("x2")
    await expect(first).to_contain_text("12.340")
    await expect(first.get_by_text("2026-11-16T05:00:00.250000Z")).to_have_attribute(
        "title", re.compile(r"2026-11-16T05:00:00\.250Z")
    )
    await expect(page.get_by_text("2 rows in")).to_be_visible()
    await visitor.audit("queries")
    for kind, beginning in {"CSV": b"n,text", "Parquet": b"PAR1"}.items():
        async with page.expect_download() as saved:
            await page.get_by_role("button", name=kind).click()
        assert Path(await (await saved.value).path()).read_bytes().replace(b'"', b"").startswith(beginning)
    async with page.expect_download() as saved:
        await page.get_by_role("button", name="Arrow").click()
    assert ipc.open_stream(Path(await (await saved.value).path()).read_bytes()).read_all().num_rows == 2
    await _run(page, "selec 1")
    await expect(page.get_by_role("alert")).to_contain_text("query.")
    visitor.complaints.clear()  # the browser complains about every 400


async def test_a_million_rows_are_scrolled_through(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.go("/queries")
    table = await _run(page, MILLION)
    await expect(page.get_by_text("1,000,000 rows in")).to_be_visible()
    await table.focus()
    await page.keyboard.press("End")
    await expect(table.get_by_text("row 999999", exact=True)).to_be_visible()
    assert await table.get_by_role("row").count() < 100
    await page.get_by_role("button", name="Chart").click()
    await expect(page.get_by_role("img", name="twice by n").locator("canvas")).to_be_visible()
    await expect(page.get_by_text("Every 10th row is drawn.")).to_be_visible()
    assert "view=chart" in page.url


async def test_names_of_datasets_and_columns_are_completed(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.world.orders()
    await visitor.go("/queries")
    editor = page.get_by_label("SQL", exact=True)
    await editor.fill("select  from ")
    await editor.press("End")
    await editor.press_sequentially("ord")
    await page.get_by_role("option", name="shop.orders").click()
    await editor.press_sequentially(" where ")
    await editor.press_sequentially("cus")
    await expect(page.get_by_role("option", name=re.compile("customer"))).to_be_visible()
    await visitor.audit("queries-completion")
    await editor.press("Tab")
    await expect(editor).to_have_text("select  from shop.orders where customer")
    await editor.press("Escape")
    await editor.press("Tab")  # goes on: the keyboard is not caught in the editor
    await expect(editor).not_to_be_focused()


async def test_a_link_holds_the_query_and_its_chart(visitor: Visitor, context: BrowserContext) -> None:
    page = visitor.page
    await visitor.world.orders()
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    await visitor.go("/queries")
    await _run(
        page,
        "select customer, sum(amount) as total, count(*) as orders from shop.orders"
        " where id >= $least group by customer",
    )
    await page.get_by_label("$least").fill("50")
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_text("3 rows in")).to_be_visible()
    await page.get_by_role("button", name="Chart").click()
    await page.get_by_label("Draw").select_option("bars")
    await page.get_by_label("Across").select_option("customer")
    await page.get_by_role("checkbox", name="orders").check()
    await expect(page.get_by_role("img", name="total, orders by customer").locator("canvas")).to_be_visible()
    await visitor.audit("queries-chart")
    await page.get_by_role("button", name="Copy link").click()
    link = await page.evaluate("navigator.clipboard.readText()")
    await page.evaluate("localStorage.clear()")
    await page.goto(link)
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("img", name="total, orders by customer").locator("canvas")).to_be_visible()


async def test_two_versions_are_shown_side_by_side(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.world.orders(FIRST)
    await visitor.world.plane.deploy(SECOND)
    await visitor.go("/queries")
    await page.get_by_label("SQL", exact=True).fill("select * from shop.some order by id")
    await page.get_by_label("As of", exact=True).select_option("version")
    await expect(page.get_by_label("As of: version")).to_have_value("1")
    await page.get_by_label("Beside", exact=True).select_option("now")
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_label("Same row by")).to_have_value("id")
    said = page.get_by_role("status").filter(has_text="1 row changed")
    await expect(said).to_contain_text("1 only in shop@1")
    await expect(said).to_contain_text("1 only in now")
    await expect(page.locator("td.cell-changed")).to_have_text(["1", "22.5"])
    await expect(page.locator("td.cell-before")).to_have_text(["3", "ann", "1.5"])
    await expect(page.locator("td.cell-after")).to_have_text(["4", "bob", "2"])
    await visitor.audit("queries-side-by-side")
    await page.get_by_label("Differences only").check()
    await expect(page.get_by_role("region", name="Result").get_by_role("row")).to_have_count(4)
    assert "as_of=shop%401" in page.url
    assert "versus=now" in page.url


async def test_a_plan_says_what_would_be_read(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.world.orders()
    await visitor.go("/queries")
    await page.get_by_label("SQL", exact=True).fill("select * from shop.orders where id <= 10")
    await page.get_by_role("button", name="Plan").click()
    await expect(page.get_by_role("heading", name="DuckDB would run it")).to_be_visible()
    await expect(page.get_by_text("1 of 3 files")).to_be_visible()
    await visitor.audit("queries-plan")


async def test_a_query_is_stopped(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.go("/queries")
    release = asyncio.Event()

    async def held(route: object) -> None:
        await release.wait()

    await page.route("**/api/v1/query", held)
    await _run(page, "select 1 as one")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.get_by_role("alert")).to_contain_text("It was stopped")
    release.set()
    await page.unroute_all(behavior="ignoreErrors")
