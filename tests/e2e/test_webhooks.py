"""Webhook sources on a whole platform: what is delivered becomes rows, and what does not fit stays."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.platform import Platform, until
from tests.process.effects import settle
from tests.terminal import Terminal, blocks
from tests.webhooks import KEYS, body, dag, from_github, from_slack, from_stripe

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
async def platform(database_url: str, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(database_url, tmp_path, environment=KEYS) as started:
        yield started


async def post(
    platform: Platform, content: Any, headers: Mapping[str, str], kind: str = "application/json"
) -> dict[str, Any]:
    url = f"{platform.gateway_url}/hooks/default/orders"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body(content), headers={"content-type": kind, **headers}) as answer,
    ):
        assert answer.status == 200, await answer.text()
        told: dict[str, Any] = await answer.json()
        return told


async def rows(platform: Platform, query: str) -> list[list[Any]]:
    headers = {"authorization": f"Bearer {platform.user_token}"}
    async with (
        aiohttp.ClientSession(platform.gateway_url, headers=headers) as session,
        session.post("/api/v1/query", json={"sql": query}) as answer,
    ):
        assert answer.status == 200, await answer.text()
        found: list[list[Any]] = json.loads(await answer.text())["rows"]
        return found


async def test_deliveries_become_typed_rows(platform: Platform) -> None:
    await platform.deploy(dag())
    for number in range(5):
        content = [{"id": number, "amount": 12.5}, {"id": number + 100, "amount": "0.10"}]
        assert (await post(platform, content, from_github(content, f"d-{number}")))["delivery"] == number
    assert await settle(platform) == {"completed": 5}
    found = await rows(platform, "select id, amount from shop.orders order by id")
    assert found == [[n, 12.5] for n in range(5)] + [[n + 100, 0.1] for n in range(5)]
    kept = await rows(platform, 'select delivery, key from "shop.orders#deliveries" order by delivery')
    assert kept == [[n, f"d-{n}"] for n in range(5)]


async def test_a_delivery_that_does_not_fit_is_kept_and_its_task_is_dead(platform: Platform) -> None:
    await platform.deploy(dag())
    for number, amount in enumerate((1, "much", 3)):
        content = {"id": number, "amount": amount}
        await post(platform, content, from_github(content, f"d-{number}"))
    assert await settle(platform) == {"completed": 2, "dead": 1}
    (error,) = await platform.sql("select error from tasks where state = 'dead'")
    assert json.loads(error["error"])["code"] == "webhook.value_unfit"
    assert "much" not in error["error"]
    assert await rows(platform, "select id from shop.orders order by id") == [[0], [2]]
    # With a column that takes it, the rows of all deliveries are computed anew.
    await platform.deploy(dag().replace("'decimal(10, 2)'", "string"), drop_missing=True)

    async def rebuilt() -> bool:
        return await rows(platform, "select amount from shop.orders order by id") == [["1"], ["much"], ["3"]]

    await until(rebuilt, seconds=60, what="the rows are computed anew")


async def test_an_operator_of_ones_own_reads_deliveries(platform: Platform) -> None:
    text = dag(
        "{ preset: stripe }",
        config='operator: python\n  runtime: python\n  config: {entrypoint: "basic:copy"}',
    )
    await platform.deploy(text.replace("  shop.orders: { columns: ", "  shop.orders: { description: x } #"))
    event = {"id": "evt_1", "object": "event"}
    await post(platform, event, from_stripe(event))
    assert await settle(platform) == {"completed": 1}
    assert await rows(platform, "select * from shop.orders") == [[0]]


async def test_a_command_of_slack_becomes_a_row(platform: Platform) -> None:
    columns = "config: {columns: {id: delivery, amount: /text}}"
    await platform.deploy(dag("{ preset: slack }", "dedupe: { pointer: /trigger_id }", config=columns))
    form = b"command=%2Fpay&text=12.50&trigger_id=13345224609.738474920.8088930838d88f008e0"
    await post(platform, form, from_slack(form), "application/x-www-form-urlencoded")
    assert await settle(platform) == {"completed": 1}
    assert await rows(platform, "select id, amount from shop.orders") == [[0, 12.5]]


@pytest.mark.timeout(600)
def test_the_first_webhook_of_the_guide_is_received_once(tmp_path: Path) -> None:
    page = (DOCS / "guides/webhooks.md").read_text()
    terminal = Terminal(tmp_path)
    for text in (*blocks(page, "yaml"), *blocks((DOCS / "operators/webhook_rows.md").read_text(), "yaml")):
        (name,) = re.findall(r"^dag: (\w+)$", text, re.M)
        (tmp_path / f"{name}.yaml").write_text(text)
    up, deliver, look = blocks(page, "bash")
    export, command = up.strip().splitlines()
    name, _, key = export.removeprefix("export ").partition("=")
    terminal.environment[name] = key
    process = terminal.start(f"{command} --no-spark")
    try:
        terminal.until("traceplane status")
        deliver = deliver.replace("http://127.0.0.1:7461", terminal.gateway)
        assert '{"status":"accepted","delivery":0}' in terminal.run(deliver)
        assert '{"status":"duplicate"}' in terminal.run(deliver)
        query, webhooks = look.strip().splitlines()
        assert "12.50" in terminal.until(query, "Ada")
        shown = terminal.run(webhooks)
        assert "POST /hooks/default/orders  sales.orders, verified: hmac" in shown
        assert "duplicate: 1" in shown
        assert "verify: none" in terminal.run("traceplane deploy files.yaml")
        body = '{"id": 7, "day": "2026-11-17"}'
        post = (
            f"curl -sS {terminal.gateway}/hooks/default/files -H 'content-type: application/json' -d '{body}'"
        )
        assert '{"status":"accepted"}' in terminal.run(post)
        terminal.run("traceplane deploy repository.yaml")
        assert "lacks the key TRACEPLANE_HOOK_KEY_GITHUB" in terminal.run(webhooks)
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(120)
    assert code == 0, terminal.log()
