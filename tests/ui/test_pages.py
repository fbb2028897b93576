"""Every page of the web UI in a real browser: what it shows, what can be done there, with the keyboard alone too."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import BrowserContext, expect

from tests.dags import dag, job, source
from tests.ui.pages import Visitor
from tests.ui.world import HOSTILE, SHOP, World
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.auth.store import issue_token
from traceplane.wire.control import ManualEvent

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_link_signs_a_browser_in_once(world: World, context: BrowserContext) -> None:
    visitor = await Visitor.of(world, context)
    link = await world.link()
    await visitor.page.goto(link)
    await expect(visitor.page.get_by_role("heading", name="Graph")).to_be_visible()
    assert "#" not in visitor.page.url
    assert visitor.complaints == []
    cookies = {c["name"]: c for c in await context.cookies()}
    session = cookies["traceplane_session"]
    assert (session["httpOnly"], session["sameSite"]) == (True, "Strict")
    assert await visitor.page.evaluate("document.cookie") == (
        f"traceplane_csrf={cookies['traceplane_csrf']['value']}"
    )
    await context.clear_cookies()
    await visitor.page.goto("about:blank")
    await visitor.page.goto(link)
    await expect(visitor.page.get_by_role("alert")).to_contain_text("This link has been used")
    await visitor.audit("sign-in")


async def test_signing_out_ends_the_session(visitor: Visitor, context: BrowserContext) -> None:
    page = visitor.page
    cookies = await context.cookies()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in to Traceplane")).to_be_visible()
    await visitor.world.plane.api.refresh()
    await context.add_cookies(cookies)  # type: ignore[arg-type]
    await page.reload()
    await expect(page.get_by_role("alert")).to_contain_text("The token was revoked")
    visitor.complaints.clear()  # the browser complains about every 401


async def test_an_empty_platform_says_what_to_do_next(visitor: Visitor) -> None:
    await expect(visitor.page.get_by_text("traceplane deploy dag.yaml")).to_be_visible()
    await visitor.audit("graph-empty")
    await visitor.go("/tasks")
    await expect(visitor.page.get_by_text("traceplane emit DATASET 0..9")).to_be_visible()
    await visitor.audit("tasks-empty")


async def test_the_graph_shows_what_is_going_on(visitor: Visitor) -> None:
    await visitor.world.busy()
    page = visitor.page
    await visitor.go("/graph")
    enrich = page.get_by_role("button", name="Job enrich of shop: ")
    await expect(enrich).to_have_accessible_name("Job enrich of shop: 1 dead task")
    await expect(page.get_by_role("button", name="Job forecast of shop: paused")).to_be_visible()
    await visitor.audit("graph")
    await enrich.click()
    panel = page.get_by_role("region", name="About enrich")
    await expect(panel).to_contain_text(f"division by zero {HOSTILE}")
    assert "at=job%3Ashop%2Fenrich" in page.url
    await visitor.audit("graph-job")
    await page.get_by_placeholder("Find jobs and datasets").fill("refund")
    await expect(page.get_by_text("2 matches")).to_be_visible()
    await page.get_by_placeholder("Find jobs and datasets").press("Enter")
    await page.get_by_label("DAG").select_option("market")
    await expect(page.get_by_role("button", name="Job clean of shop")).to_have_count(0)
    await expect(page.get_by_role("button", name="Dataset shop.days")).to_be_visible()


async def test_the_graph_follows_what_happens(visitor: Visitor) -> None:
    world, page = visitor.world, visitor.page
    await world.busy()
    await visitor.go("/graph")
    await expect(page.get_by_text("Live", exact=True)).to_be_visible()
    forecast = page.get_by_role("button", name="Job forecast of shop")
    await expect(forecast).to_have_accessible_name("Job forecast of shop: paused")
    await world.plane.resume("shop", "forecast")
    await expect(forecast).to_have_accessible_name("Job forecast of shop: idle")
    await page.get_by_role("button", name="Show all of it").click()
    await forecast.click()
    await page.get_by_role("button", name="Pause", exact=True).click()
    await expect(page.get_by_role("status").filter(has_text="forecast is paused")).to_be_visible()
    await expect(forecast).to_have_accessible_name("Job forecast of shop: paused")


async def test_tasks_are_filtered_by_the_address(visitor: Visitor) -> None:
    await visitor.world.busy()
    page = visitor.page
    await visitor.go("/tasks?state=dead")
    rows = page.locator("tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text(f"division by zero {HOSTILE}")
    await page.get_by_label("State").select_option("")
    await expect(rows).to_have_count(50)
    await page.get_by_role("button", name="Show older ones").click()
    await expect(rows).not_to_have_count(50)
    await visitor.audit("tasks")
    await page.get_by_label("DAG").select_option("market")
    await page.get_by_label("Job").select_option("average")
    assert page.url.endswith("/tasks?dag=market&job=average")
    await expect(rows).to_have_count(20)


async def test_a_dead_task_tells_why_and_is_retried(visitor: Visitor) -> None:
    await visitor.world.busy()
    page = visitor.page
    await visitor.go("/tasks?state=dead")
    await page.get_by_role("link", name="enrich").click()
    await expect(page.get_by_role("heading", name="Why it failed")).to_be_visible()
    await expect(page.locator(".own").first).to_contain_text('code/shop/enrich.py", line 41')
    await expect(page.get_by_label("Log of attempt 1")).to_contain_text(HOSTILE)
    await expect(page.get_by_role("heading", name="What fed it")).to_be_visible()
    await visitor.audit("task-dead")
    await page.get_by_role("button", name="Retry").click()
    await expect(page.get_by_role("heading", name="Why it waits")).to_be_visible()
    await expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    await visitor.audit("task-waiting")


async def test_a_reader_sees_no_buttons_that_change_something(world: World, context: BrowserContext) -> None:
    await world.busy()
    visitor = await Visitor.of(world, context)
    await visitor.sign_in(await world.link(await world.token(Role.READER)))
    await visitor.go("/tasks?state=dead")
    await visitor.page.get_by_role("link", name="enrich").click()
    await expect(visitor.page.get_by_role("heading", name="Why it failed")).to_be_visible()
    await expect(visitor.page.get_by_role("button", name="Retry")).to_have_count(0)
    assert visitor.complaints == []


async def test_the_keyboard_is_enough(visitor: Visitor) -> None:
    await visitor.world.busy()
    page = visitor.page
    await visitor.go("/graph")
    await expect(page.get_by_role("button", name="Job clean of shop")).to_be_visible()
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    await visitor.audit("keys")
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.keyboard.press("Control+k")
    await expect(page.get_by_role("combobox", name="Page, DAG, job, dataset or task id")).to_be_focused()
    await page.keyboard.type("shop/fraud")
    await expect(page.get_by_role("option", name="shop/fraud", selected=True)).to_be_visible()
    await visitor.audit("palette")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("region", name="About fraud")).to_be_visible()
    await page.locator("[data-node='job:shop/fraud']").focus()
    await page.keyboard.press("ArrowRight")
    await expect(page.locator("[data-node='dataset:shop.suspicious']")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("region", name="About shop.suspicious")).to_be_visible()
    await page.keyboard.press("g")
    await page.keyboard.press("t")
    await expect(page).to_have_title("Tasks · Traceplane")
    await page.keyboard.press("Tab")
    focused = await page.evaluate("document.activeElement.tagName")
    assert focused in ("SELECT", "INPUT", "A", "BUTTON")


async def test_a_page_that_is_not_there_leads_back(visitor: Visitor) -> None:
    await visitor.go("/tasks/0198c5a4-6a4e-7f3b-9d8e-2f6f0c1d7a55")
    await expect(visitor.page.get_by_role("heading", name="There is no such task")).to_be_visible()
    assert [re.sub(r"[^0-9]+", "", text) for text in visitor.complaints] == ["404"] * len(visitor.complaints)
    visitor.complaints.clear()


async def test_datasets_show_what_they_hold(visitor: Visitor) -> None:
    await visitor.world.busy()
    page = visitor.page
    await visitor.go("/datasets")
    await expect(page.get_by_role("link", name="shop.clean_orders")).to_be_visible()
    await visitor.audit("datasets")
    await page.get_by_placeholder("Find datasets").fill("clean")
    await page.get_by_role("link", name="shop.clean_orders").click()
    strip = page.get_by_role("slider")
    await expect(strip).to_have_attribute("aria-valuetext", re.compile("^40 of 130 present, 90 missing"))
    await strip.focus()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Why is it so?").click()
    await expect(page.get_by_text("shop.clean_orders holds all of it.")).to_be_visible()
    await page.get_by_label("What to compute").select_option("all")
    await page.get_by_role("button", name="Backfill…").click()
    await expect(page.get_by_text("This makes 1 task of clean.")).to_be_visible()
    await visitor.audit("dataset")
    await page.get_by_role("button", name="Compute").click()
    await expect(page.get_by_text("1 task of clean will compute it")).to_be_visible()


async def test_days_are_chosen_by_their_names(visitor: Visitor) -> None:
    plane, page = visitor.world.plane, visitor.page
    by_day = "datasets: {days.in: {partitions: {by: day}}, days.out: {partitions: {by: day}}}\n"
    await plane.deploy(dag("days", source("days.in"), job("copy", "days.in", "days.out")) + by_day)
    await plane.emit_events([ManualEvent("days.in", partition="2026-11-01", through="2026-11-04")])
    await plane.run_all()
    await visitor.go("/datasets/days.out")
    strip = page.get_by_role("slider")
    await expect(strip).to_have_attribute("aria-valuetext", re.compile("^4 of 4 present"))
    await strip.focus()
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("Enter")
    await page.keyboard.press("Shift+ArrowRight")
    await page.keyboard.press("Shift+ArrowRight")
    await expect(page.get_by_text("2026-11-01 to 2026-11-03", exact=True)).to_be_visible()
    await page.get_by_role("button", name="Why is it so?").click()
    await expect(page.get_by_text("days.out holds all of it.")).to_be_visible()
    await page.get_by_label("What to compute").select_option("all")
    await page.get_by_role("button", name="Backfill…").click()
    await expect(page.get_by_text("This makes 3 tasks of copy.")).to_be_visible()
    await page.get_by_role("button", name="Back", exact=True).click()
    await page.get_by_role("button", name="Zoom in").click()
    await expect(strip).to_have_attribute("aria-valuetext", re.compile("^3 of 3 present"))


async def test_an_address_that_does_not_exist_shows_a_page(visitor: Visitor) -> None:
    for path in ("/nosuch", "/nosuch/further", "/tasks/%E0%A4%A"):
        await visitor.go(path)
        await expect(
            visitor.page.get_by_role("heading", name=re.compile("^There is no such"))
        ).to_be_visible()
    await expect(visitor.page.get_by_role("navigation", name="Pages")).to_be_visible()
    assert all("status of 40" in text for text in visitor.complaints), visitor.complaints
    visitor.complaints.clear()


async def test_a_link_of_somebody_else_asks(visitor: Visitor) -> None:
    page = visitor.page
    async with visitor.world.plane.database.transaction() as tx:
        token = await issue_token(tx, Principal.USER, org="default", name="visitor", role=Role.READER)
    await visitor.world.plane.api.refresh()
    other = await page.context.new_page()
    await other.goto(visitor.world.url + "/people")
    for answer, name in (("Stay laptop", "laptop"), ("Sign in as visitor of default", "visitor")):
        await page.goto(await visitor.world.link(token))
        await expect(page.get_by_role("heading", name="Sign in as somebody else?")).to_be_visible()
        await visitor.audit("other-link")
        await page.get_by_role("button", name=answer).click()
        await expect(page.locator(".who-name")).to_contain_text(name)
    await expect(other.locator(".who-name")).to_contain_text("visitor")  # loaded anew
    assert all("status of 40" in text for text in visitor.complaints), visitor.complaints
    visitor.complaints.clear()


async def test_a_version_is_rolled_back(visitor: Visitor) -> None:
    await visitor.world.busy()
    page = visitor.page
    await visitor.world.plane.deploy(SHOP + "description: the second one\n")
    await visitor.go("/deploys")
    await visitor.audit("deploys")
    await page.get_by_role("link", name="shop", exact=True).click()
    await expect(page.get_by_role("row").filter(has_text="Serving")).to_contain_text("2")
    await page.get_by_role("button", name="Roll back to it").click()
    await visitor.audit("rollback")
    await page.get_by_role("button", name="Roll back", exact=True).click()
    await expect(page.get_by_text("Version 1 serves")).to_be_visible()


async def test_other_pages_say_what_to_do_where_there_is_nothing(visitor: Visitor) -> None:
    for path, title in {
        "/datasets": "No dataset yet",
        "/deploys": "Nothing is deployed yet",
        "/alerts": "No alert was found",
        "/dead-letters": "No dead letters",
        "/health": "All is well",
    }.items():
        await visitor.go(path)
        await expect(visitor.page.get_by_role("heading", name=title)).to_be_visible()
        await visitor.audit(f"{path[1:]}-empty")


async def test_health_names_what_needs_somebody(visitor: Visitor) -> None:
    await visitor.world.busy()
    await visitor.go("/health")
    await expect(visitor.page.get_by_role("heading", name="Dead tasks")).to_be_visible()
    paused = visitor.page.locator("section").filter(
        has=visitor.page.get_by_role("heading", name="Held and paused")
    )
    await expect(paused).to_contain_text("the model is being trained anew")
    await visitor.audit("health")
