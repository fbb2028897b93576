"""Pages of admins, and what alerts lead to: people, secrets, channels, the audit log, deliveries, silences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext, expect

from tests.ui.pages import Visitor
from tests.ui.world import World
from traceplane.auth.roles import Role
from traceplane.dispatcher.loops.platform_alerts import PlatformAlerts
from traceplane.postgres import channels

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADMINS = {"/people": "People", "/channels": "Channels", "/audit": "Audit"}


async def test_people_get_roles_and_tokens_and_lose_them(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.go("/people")
    await expect(page.get_by_role("heading", name="Nobody is a member yet")).to_be_visible()
    await visitor.audit("people-empty")
    await page.get_by_role("button", name="Add a member").click()
    await page.get_by_label("Name").fill("ada")
    await visitor.audit("people-add")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("may do nothing", exact=False).first).to_be_visible()
    await page.get_by_role("button", name="Give a role to ada").click()
    await page.get_by_label("Role", exact=True).select_option("writer")
    await page.get_by_label("For", exact=True).select_option("30d")
    await page.get_by_role("button", name="Give", exact=True).click()
    await expect(page.get_by_role("listitem").filter(has_text="writer")).to_contain_text("ends in")
    await visitor.audit("people")
    await page.get_by_role("link", name="Tokens").click()
    await page.get_by_role("button", name="Issue a token").click()
    await page.get_by_label("Name").fill("nightly")
    await page.get_by_label("Of", exact=True).select_option("ada")
    await page.get_by_label("With the role").select_option("")
    await page.get_by_role("button", name="Issue", exact=True).click()
    told = page.get_by_role("dialog", name="The token")
    await expect(told.locator("code")).to_contain_text("tpu_")
    await page.get_by_role("button", name="Done").click()
    row = page.get_by_role("row").filter(has_text="nightly")
    await expect(row).to_contain_text("ada")
    await visitor.audit("people-tokens")
    await page.get_by_role("button", name="Revoke nightly").click()
    await expect(page.get_by_role("dialog", name="Revoke nightly?")).to_be_visible()
    await page.keyboard.press("Escape")  # gives up
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(row).to_have_count(1)
    await page.get_by_role("button", name="Revoke nightly").click()
    await page.get_by_role("button", name="Revoke", exact=True).click()
    await expect(row).to_have_count(0)
    await page.get_by_role("link", name="Roles").click()
    await page.get_by_role("button", name="Define a role").click()
    await page.get_by_label("Name").fill("Not a name!")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("alert")).to_be_visible()
    await page.get_by_label("Name").fill("analyst")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("row").filter(has_text="analyst")).to_contain_text("reader")
    await visitor.audit("people-roles")
    await page.get_by_role("link", name="Members").click()
    await page.get_by_role("button", name="Withdraw writer from ada").click()
    await page.get_by_role("button", name="Withdraw", exact=True).click()
    await expect(page.get_by_text("none: may do nothing")).to_be_visible()
    await page.get_by_role("button", name="Disable ada").click()
    await page.get_by_role("button", name="Disable", exact=True).click()
    await expect(page.get_by_role("button", name="Enable ada")).to_be_visible()
    visitor.complaints.clear()  # the browser complains about every 400


async def test_a_secret_goes_in_and_never_comes_out(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.go("/secrets")
    await expect(page.get_by_role("heading", name="No secret yet")).to_be_visible()
    await visitor.audit("secrets-empty")
    await page.get_by_role("button", name="Set a secret").click()
    await page.get_by_label("Name").fill("mainnet_rpc")
    await page.get_by_role("dialog").get_by_label("Value").fill("hunter2-hunter2")
    await page.keyboard.press("Enter")
    row = page.get_by_role("row").filter(has_text="mainnet_rpc")
    await expect(row).to_contain_text("every job")
    await page.get_by_role("button", name="New value for mainnet_rpc").click()
    await page.get_by_role("dialog").get_by_label("Value").fill("hunter3-hunter3")
    await page.get_by_role("button", name="Set", exact=True).click()
    await expect(row.get_by_role("cell").nth(1)).to_have_text("2")
    await page.get_by_role("button", name="Rights of mainnet_rpc").click()
    await page.get_by_label("Jobs", exact=True).select_option("some")
    await page.get_by_label("Only these jobs").fill("chain/blocks")
    await page.get_by_role("button", name="Save").click()
    await expect(row).to_contain_text("chain/blocks")
    await visitor.audit("secrets")
    assert "hunter" not in await page.content()
    await page.get_by_role("button", name="Remove mainnet_rpc").click()
    await page.get_by_role("button", name="Remove", exact=True).click()
    await expect(row).to_have_count(0)


async def test_messages_of_an_alert_are_sent_again_or_given_up(visitor: Visitor) -> None:
    page, plane = visitor.page, visitor.world.plane
    await visitor.go("/channels")
    await expect(page.get_by_role("heading", name="No channel yet")).to_be_visible()
    await visitor.audit("channels-empty")
    await page.get_by_role("button", name="Set a channel").click()
    await page.get_by_label("Name").fill("team")
    await page.get_by_label("It gets the platform's own alerts too").check()
    await visitor.audit("channels-set")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", name="team")).to_be_visible()
    await visitor.world.busy()
    await PlatformAlerts(plane.database, []).run_once()
    await plane.sql(
        "update alert_deliveries set state = 'dead', ended_at = tp_now(),"
        ' failure = \'{"code": "delivery.refused", "reason": "The receiver said no."}\''
    )
    await page.reload()
    await expect(page.get_by_role("link", name="1 message not delivered")).to_be_visible()
    await visitor.audit("channels")
    await page.get_by_role("link", name="1 message not delivered").click()
    row = page.get_by_role("row").filter(has_text="The receiver said no.")
    await expect(row).to_contain_text("team")
    await visitor.audit("deliveries")
    await page.get_by_role("button", name="Send 1 dead one again").click()
    await expect(page.get_by_role("heading", name="No message matches")).to_be_visible()
    await page.get_by_label("State").select_option("waiting")
    await page.get_by_role("button", name="Give these up").click()
    await page.get_by_role("button", name="Give them up").click()
    await expect(page.get_by_role("heading", name="No message matches")).to_be_visible()
    await page.get_by_role("link", name="By alert").click()
    await expect(page.get_by_text("1 open")).to_be_visible()
    await visitor.audit("alerts-by-alert")


async def test_an_alert_is_acknowledged_and_silenced(visitor: Visitor) -> None:
    page, plane = visitor.page, visitor.world.plane
    await visitor.world.busy()
    org_id = await plane.value("select org_id from orgs")
    hook = {"kind": "webhook", "url": "https://hooks.example.com/x"}
    async with plane.database.transaction() as tx:
        await channels.set_channel(tx, org_id, "team", hook, platform_alerts=True, by="laptop")
    await PlatformAlerts(plane.database, []).run_once()
    await visitor.go("/alerts")
    await visitor.audit("alerts")
    await page.locator("tbody a.strong").first.click()
    await page.get_by_role("button", name="Silence…").click()
    await page.get_by_label("Why").fill("The bank changes its files tonight")
    await visitor.audit("silence")
    await page.get_by_role("button", name="Silence", exact=True).click()
    await page.get_by_role("button", name="Acknowledge").click()
    await expect(page.get_by_text("acknowledged", exact=True)).to_be_visible()
    await visitor.audit("alert")
    await visitor.go("/alerts?show=silences")
    row = page.get_by_role("row").filter(has_text="The bank changes its files tonight")
    await expect(row).to_contain_text("by laptop")
    await visitor.audit("silences")
    await page.get_by_role("button", name="End it: the silence").click()
    await page.get_by_role("button", name="End it", exact=True).click()
    await expect(page.get_by_role("heading", name="Nothing is silenced")).to_be_visible()
    await visitor.audit("silences-empty")


async def test_the_audit_log_is_filtered_by_the_address_and_exported(visitor: Visitor) -> None:
    page = visitor.page
    await visitor.go("/secrets")
    await page.get_by_role("button", name="Set a secret").click()
    await page.get_by_label("Name").fill("mainnet_rpc")
    await page.get_by_role("dialog").get_by_label("Value").fill("hunter2-hunter2")
    await page.get_by_role("button", name="Set", exact=True).click()
    await expect(page.get_by_role("row").filter(has_text="mainnet_rpc")).to_be_visible()
    await visitor.world.plane.api.audit.flush()
    await visitor.go("/audit?action=secrets&outcome=ok")
    row = page.get_by_role("row").filter(has_text="mainnet_rpc")
    await expect(row).to_contain_text("laptop")
    await visitor.audit("audit")
    async with page.expect_download() as saved:
        await page.get_by_role("button", name="Export as JSON lines").click()
    lines = Path(await (await saved.value).path()).read_text().splitlines()
    assert [json.loads(line)["principal"] for line in lines] == ["laptop"]
    await page.get_by_label("Outcome").select_option("refused")
    await expect(page.get_by_role("heading", name="No entry matches")).to_be_visible()
    assert page.url.endswith("/audit?action=secrets&outcome=refused")
    await visitor.audit("audit-empty")


async def test_pages_of_admins_are_for_admins(world: World, context: BrowserContext) -> None:
    visitor = await Visitor.of(world, context)
    await visitor.sign_in(await world.link(await world.token(Role.READER)))
    pages = visitor.page.get_by_role("navigation", name="Pages")
    for path, name in ADMINS.items():
        await expect(pages.get_by_role("link", name=name)).to_have_count(0)
        await visitor.go(path)
        await expect(visitor.page.get_by_role("heading", name="This page is for admins")).to_be_visible()
    await expect(pages.get_by_role("link", name="Secrets")).to_have_count(0)
    assert visitor.complaints == []
