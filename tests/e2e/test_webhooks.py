"""Webhook sources on a whole platform: what is delivered becomes rows, and what does not fit stays."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.platform import Platform, until
from tests.process.effects import settle
from tests.webhooks import KEYS, body, dag, from_github, from_slack, from_stripe


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
