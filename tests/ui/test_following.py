"""Pages that follow what happens: events and what they caused, the graph, deploys, triggers and a task."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, expect

from bench.ui_frames import graph_frames
from tests.ui.pages import Visitor
from tests.ui.world import SHOP

RUNS = """
version: 1
dag: runs
jobs:
- name: run
  activation: source
  source: {kind: pipeline}
  runtime: python
  operator: python
  outputs: [{dataset: runs.out}]
  config: {entrypoint: "basic:copy"}
"""

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
    # Whatever is typed stays while the page is drawn anew.
    await visitor.world.plane.emit("shop.orders", [4321])
    await expect(rows.first.get_by_role("cell", name="4321", exact=True)).to_be_visible()
    await expect(page.get_by_label("From")).to_have_value("7")
    await page.get_by_label("From").press("Enter")
    await expect(rows).to_have_count(1)
    assert page.url.endswith("/events?dataset=shop.orders&start=7&end=7")
    await rows.get_by_role("link").first.click()
    tree = page.get_by_role("tree")
    await expect(
        tree.get_by_role("treeitem", name="Task clean 7: completed, committed 1 row")
    ).to_be_visible()
    await expect(tree.get_by_role("treeitem", name="Task enrich__scopes 7")).to_be_visible()
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
    # What the dispatcher found for a job is told in words, and has no page that it could lead to.
    await visitor.go("/tasks?dag=shop&job=enrich")
    await page.locator("tbody tr").first.get_by_role("link").first.click()
    fed = page.locator("section", has=page.get_by_role("heading", name="What fed it"))
    await expect(fed.get_by_text("scopes of shop.enrich").first).to_be_visible()
    await expect(fed.get_by_role("link", name="#scopes")).to_have_count(0)
    await visitor.go("/events/999999")
    await expect(page.get_by_role("heading", name="There is no such event or task")).to_be_visible()
    await visitor.audit("effects-unknown")
    visitor.complaints.clear()  # the browser complains about every 404


async def test_a_graph_of_500_nodes_stays_smooth_while_much_changes(
    visitor: Visitor, browser: Browser
) -> None:
    frames = await graph_frames(browser, await visitor.world.link(), seconds=3)
    assert frames.nodes == 500
    assert frames.updates_per_second >= 100
    print(
        f"\n{frames}"
    )  # how fast is measured by `make bench SUITE=ui`: here other tests run at the same time


async def test_a_file_is_planned_as_a_graph(visitor: Visitor) -> None:
    page, plane = visitor.page, visitor.world.plane
    await plane.deploy(SHOP)
    await plane.emit("shop.orders", range(3))
    await plane.run_all()
    changed = SHOP.replace("name: per_day", "name: per_week").replace("shop.days", "shop.weeks")
    changed = changed.replace("max_queue_depth: 8", "max_queue_depth: 9").replace(
        "- name: fraud\n  runtime: python\n",
        "- name: fraud\n  timeout: 9m\n  update_strategy: append\n  unique_key: [n]\n  runtime: python\n",
    )
    await visitor.go("/deploys/shop")
    await page.get_by_label("DAG file").fill(changed)
    await page.get_by_role("button", name="Plan").click()
    added = page.get_by_role("button", name=re.compile("^Job per_week of shop: .*, added$"))
    await expect(added).to_be_visible()
    await expect(
        page.get_by_role("button", name=re.compile("^Job per_day of shop: .*, removed$"))
    ).to_be_visible()
    await expect(
        page.get_by_role("button", name=re.compile("^Job clean of shop: .*, changed in place$"))
    ).to_be_visible()
    await expect(
        page.get_by_role("button", name=re.compile("^Job fraud of shop: .*, breaking change$"))
    ).to_be_visible()
    await visitor.audit("plan")
    await page.get_by_label("DAG file").fill("version: 1\ndag: shop\njobs: 7\n")
    await page.get_by_role("button", name="Plan").click()
    await expect(page.get_by_role("alert")).to_contain_text("spec.")
    await page.get_by_label("DAG file").fill(SHOP)
    await page.get_by_role("button", name="Plan").click()
    await expect(page.get_by_text("Nothing would change: version 1 is this file.")).to_be_visible()
    await plane.deploy(changed.replace("shop.days", "shop.weeks"), manual_cutover=True, drop_missing=True)
    await page.reload()
    await expect(page.get_by_role("heading", name="Version 2 is being built")).to_be_visible()
    await expect(
        page.get_by_role("button", name=re.compile("^Job per_week of shop: .*, added$"))
    ).to_be_visible()
    await visitor.audit("building")
    visitor.complaints.clear()  # the browser complains about every 400


async def test_pipelines_are_seen_and_paused(visitor: Visitor) -> None:
    page, plane = visitor.page, visitor.world.plane
    await visitor.go("/triggers")
    await expect(page.get_by_role("heading", name="No pipeline yet")).to_be_visible()
    await visitor.audit("triggers-empty")
    await plane.deploy(RUNS)
    await plane.sql(
        "insert into pipelines (org_id, user_id, name, trigger_mode, scanner_tickers, signal_subscriptions, rules,"
        " config, launches_per_hour) select org_id, 'ada', 'breakouts', 'signal', array['AAPL', 'MSFT'],"
        ' \'[{"signal_type": "BREAKOUT", "direction": "BULLISH", "min_confidence": 80}]\','
        ' \'{"market_hours": "NYSE"}\', \'{"dag": "runs", "job": "run"}\', 20 from orgs where slug = \'default\''
    )
    await plane.sql(
        "insert into executions (pipeline_id, target, signal_id, signal, status, created_at, started_at,"
        " finished_at, error)"
        ' select pipeline_id, \'task\', n::text, \'{"signal_type": "BREAKOUT", "ticker": "AAPL"}\','
        " case when n % 5 = 0 then 'FAILED' else 'COMPLETED' end, tp_now() - n * interval '7 minutes',"
        " tp_now() - n * interval '7 minutes', tp_now() - n * interval '6 minutes',"
        ' case when n % 5 = 0 then \'{"code": "operator.raised", "message": "no quote for AAPL"}\'::jsonb end'
        " from pipelines, generate_series(1, 12) n"
    )
    await page.reload()
    signals = page.get_by_role("region", name="Signals")
    await expect(signals).to_contain_text("No trigger was there in the last hour")
    await plane.sql(
        "insert into signal_minutes select org_id, date_trunc('minute', tp_now()) - ago * interval '1 minute',"
        " 600 + 100 * (ago % 7), 90 + 10 * (ago % 3), case when ago = 20 then 40 else 0.2 end"
        " from orgs, generate_series(3, 40) ago where slug = 'default'"
    )
    await page.reload()
    await expect(signals).to_contain_text(re.compile("No trigger has been there for [34] minutes"))
    await plane.sql(
        "insert into signal_minutes select org_id, date_trunc('minute', tp_now()) - ago * interval '1 minute',"
        " 600, 60, 1.5 from orgs, generate_series(0, 2) ago where slug = 'default'"
    )
    await page.reload()
    await expect(signals).to_contain_text("signals a second")
    await expect(signals).to_contain_text("1.5 s behind the topic")
    await expect(signals).not_to_contain_text("No trigger")
    await expect(signals.get_by_role("img")).to_have_count(2)
    pipelines = page.get_by_role("region", name="Pipelines")
    await expect(pipelines).to_contain_text("bullish BREAKOUT from 80 % on AAPL, MSFT")
    await expect(page.get_by_text("8 launches in the last hour, 1 failed, 0 running")).to_be_visible()
    await page.get_by_label("Status").select_option("FAILED")
    await expect(page.get_by_role("region", name="List of executions").locator("tbody tr")).to_have_count(2)
    await visitor.audit("triggers")
    await pipelines.get_by_role("button", name="Pause").click()
    await expect(pipelines.get_by_role("button", name="Resume")).to_be_visible()
    assert await plane.value("select is_active from pipelines") is False
