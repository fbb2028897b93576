"""Webhook sources over real HTTP: a delivery is accepted once, answered after its commit, and refused for a reason."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from tests.control_plane import ControlPlane
from tests.gateway_http import GatewayHttp
from tests.webhooks import KEY, KEYS, VARIABLE, body, dag, digest, from_github, from_slack, from_stripe
from traceplane.auth.master_key_file import MasterKeyFile
from traceplane.auth.roles import Role
from traceplane.auth.store import create_organization
from traceplane.cli import events
from traceplane.dispatcher.loops.webhook_keys import WebhookKeys
from traceplane.errors import Conflict, SpecInvalid, UserError
from traceplane.secrets.references import SecretName
from traceplane.secrets.sealed_store import SealedStore
from traceplane.secrets.vault import Vault
from traceplane.settings import Settings

DELIVERIES = "shop.orders#deliveries"


@dataclass
class Sender:
    plane: ControlPlane
    http: GatewayHttp
    session: aiohttp.ClientSession

    async def post(
        self,
        content: Any,
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        *,
        path: str = "/hooks/default/orders",
        content_type: str = "application/json",
    ) -> tuple[int, dict[str, Any]]:
        sent = [
            ("content-type", content_type),
            *(headers.items() if isinstance(headers, Mapping) else headers),
        ]
        async with self.session.post(path, data=body(content), headers=sent) as answer:
            told = await answer.json()
            return answer.status, told.get("error", told)

    async def refused(self, content: Any, headers: Any = (), **how: Any) -> tuple[int, str]:
        status, error = await self.post(content, headers, **how)
        return status, error["code"]

    async def kept(self) -> list[tuple[int, str, str]]:
        generation = await self.plane.value(
            "select current_generation_id from datasets where dataset_id = $1", DELIVERIES
        )
        rows = await self.plane.sql(
            f"select delivery, key, body from traceplane_hot.g_{generation.hex} order by delivery"
        )
        return [tuple(row) for row in rows]

    async def webhooks(self) -> list[dict[str, Any]]:
        token = await self.http.token(Role.READER)
        _, text = await self.http.send(token, "GET", "/api/v1/webhooks")
        found: list[dict[str, Any]] = json.loads(text)["webhooks"]
        return found


@contextlib.asynccontextmanager
async def opened(url: str, folder: Path, **settings: Any) -> AsyncIterator[Sender]:
    async with (
        ControlPlane.open(url, home=folder, **{"hook_keys": KEYS, **settings}) as plane,
        GatewayHttp.open(plane) as http,
    ):
        yield Sender(plane, http, http.session)


@pytest.fixture
async def sender(database_url: str, tmp_path: Path) -> AsyncIterator[Sender]:
    async with opened(database_url, tmp_path) as found:
        yield found


async def test_a_delivery_is_a_numbered_row_an_event_and_a_task_at_once(sender: Sender) -> None:
    await sender.plane.deploy(dag())
    for number in range(3):
        content = {"id": number}
        status, answer = await sender.post(content, from_github(content, f"d-{number}"))
        assert (status, answer) == (200, {"status": "accepted", "delivery": number})
    assert await sender.kept() == [(n, f"d-{n}", json.dumps({"id": n})) for n in range(3)]
    assert len(await sender.plane.tasks("orders")) == 3
    held = await sender.plane.claim(await sender.plane.send())
    assert sorted(h.scope.first for h in held) == [0, 1, 2]


async def test_a_repeated_delivery_changes_nothing(sender: Sender) -> None:
    await sender.plane.deploy(dag())
    content = {"id": 1}
    headers = from_github(content)
    answers = await asyncio.gather(*(sender.post(content, headers) for _ in range(20)))
    assert sorted(answer["status"] for _, answer in answers) == ["accepted", *["duplicate"] * 19]
    assert {status for status, _ in answers} == {200}
    assert len(await sender.kept()) == len(await sender.plane.tasks("orders")) == 1
    assert await sender.plane.value("select count(*) from events") == 1
    (view,) = await sender.webhooks()
    assert [(r["code"], r["count"]) for r in view["refusals"]] == [("duplicate", 19)]


async def test_many_senders_at_once_get_numbers_without_gaps(sender: Sender) -> None:
    await sender.plane.deploy(dag())

    async def send(number: int) -> int:
        _, answer = await sender.post({"id": number}, from_github({"id": number}, f"d-{number}"))
        found: int = answer["delivery"]
        return found

    numbers = await asyncio.gather(*(send(n) for n in range(200)))
    assert sorted(numbers) == list(range(200))
    assert [row[0] for row in await sender.kept()] == list(range(200))
    (view,) = [d for d in (await sender.plane.status()).datasets if d.dataset == DELIVERIES]
    assert (view.rows, view.cursor) == (200, 199)
    assert len(await sender.plane.tasks("orders")) == 200


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"X-Hub-Signature-256": "sha256=" + "0" * 64}, "webhook.signature_wrong"),
        ({"X-Hub-Signature-256": "sha256=" + "0" * 63}, "webhook.signature_malformed"),
        ({"X-Hub-Signature-256": "sha1=" + "0" * 40}, "webhook.signature_malformed"),
        ({"X-Hub-Signature-256": ""}, "webhook.signature_malformed"),
        ({"X-Hub-Signature-256": None}, "webhook.signature_missing"),
    ],
)
async def test_what_is_not_signed_is_refused_and_counted(
    sender: Sender, change: dict[str, str | None], code: str
) -> None:
    await sender.plane.deploy(dag())
    content = {"id": 1}
    headers = {k: v for k, v in {**from_github(content), **change}.items() if v is not None}
    assert await sender.refused(content, headers) == (403, code)
    assert await sender.kept() == []
    assert await sender.plane.value("select count(*) from webhook_keys") == 0
    (view,) = await sender.webhooks()
    assert [(r["code"], r["count"]) for r in view["refusals"]] == [(code, 1)]


async def test_a_body_or_key_that_is_not_right_is_refused(sender: Sender) -> None:
    await sender.plane.deploy(dag())

    async def refused(content: Any, **headers: str | None) -> tuple[int, str]:
        signed = from_github(content)
        sent = {k: v for k, v in {**signed, **headers}.items() if v is not None}
        return await sender.refused(content, sent)

    assert await refused(b"{") == (400, "webhook.body_invalid")
    assert await refused(b"\xff") == (400, "webhook.body_invalid")
    assert await refused(b'{"a": NaN}') == (400, "webhook.body_invalid")
    assert await refused(b"[" * 200_000) == (400, "webhook.body_invalid")
    assert await refused(b'{"a": 1e99999999999999999999}') == (400, "webhook.body_invalid")
    assert await refused(b'{"a": 1.5e-99999999999999999999}') == (400, "webhook.body_invalid")
    assert await refused({}, **{"X-GitHub-Delivery": None}) == (400, "webhook.key_missing")
    assert await refused({}, **{"X-GitHub-Delivery": "x" * 256}) == (400, "webhook.key_invalid")
    twice = [*from_github({}).items(), ("X-GitHub-Delivery", "d-2")]
    assert await sender.refused({}, twice) == (400, "webhook.key_missing")
    twice = [*from_github({}).items(), ("X-Hub-Signature-256", "sha256=" + "0" * 64)]
    assert await sender.refused({}, twice) == (403, "webhook.signature_missing")
    assert await sender.refused({}, from_github({}), content_type="text/plain") == (
        415,
        "request.unsupported_media_type",
    )
    assert await sender.refused({}, path="/hooks/default/nobody") == (404, "webhook.unknown")
    assert await sender.refused({}, path="/hooks/other/orders") == (404, "webhook.unknown")
    assert await sender.kept() == []


async def test_a_long_body_is_refused_whether_or_not_its_length_is_told(
    database_url: str, tmp_path: Path
) -> None:
    async with (
        ControlPlane.open(database_url, home=tmp_path, hook_keys=KEYS, webhook_max_body_bytes=1000) as plane,
        GatewayHttp.open(plane) as http,
    ):
        sender = Sender(plane, http, http.session)
        await plane.deploy(dag())
        content = b'"' + b"x" * 1000 + b'"'
        assert await sender.refused(content, from_github(content)) == (413, "request.too_large")

        async def pieces() -> AsyncIterator[bytes]:
            yield content

        headers = {"content-type": "application/json", **from_github(content)}
        async with sender.session.post("/hooks/default/orders", data=pieces(), headers=headers) as answer:
            assert answer.status == 413
        assert plane.api.webhooks._bytes == 0


async def test_a_gateway_without_room_says_come_again(database_url: str, tmp_path: Path) -> None:
    async with (
        ControlPlane.open(database_url, home=tmp_path, hook_keys=KEYS, webhook_max_waiting=1) as plane,
        GatewayHttp.open(plane) as http,
    ):
        sender = Sender(plane, http, http.session)
        await plane.deploy(dag())
        contents = [{"id": n} for n in range(30)]
        answers = await asyncio.gather(*(sender.post(c, from_github(c, f"d-{c['id']}")) for c in contents))
        statuses = [status for status, _ in answers]
        assert set(statuses) == {200, 503}
        assert len(await sender.kept()) == statuses.count(200)


async def test_a_key_that_is_changed_is_known_beside_the_old_one(database_url: str, tmp_path: Path) -> None:
    keys = {VARIABLE: "old", "TRACEPLANE_HOOK_KEY_NEW": "new", "TRACEPLANE_HOOK_KEY_ACME__X": "theirs"}
    async with opened(database_url, tmp_path, hook_keys=keys) as sender:
        plane = sender.plane
        both = f"{{ env: [TRACEPLANE_HOOK_KEY_NEW, {VARIABLE}] }}"
        await plane.deploy(dag().replace(f"{{ env: {VARIABLE} }}", both))
        for number, key in enumerate(("old", "new")):
            assert (await sender.post({}, from_github({}, f"d-{number}", key=key)))[0] == 200
        assert await sender.refused({}, from_github({}, "d-3", key="other")) == (
            403,
            "webhook.signature_wrong",
        )
        # A gateway that has not read the deploy yet accepts nothing by a key that was replaced.
        await plane.deploy(dag().replace(VARIABLE, "TRACEPLANE_HOOK_KEY_NEW"))
        answers = [await sender.refused({}, from_github({}, "d-5", key="old")) for _ in range(2)]
        assert answers == [(503, "webhook.source_changed"), (403, "webhook.signature_wrong")]
        # The key of another organization is none of this one.
        await plane.deploy(dag().replace(VARIABLE, "TRACEPLANE_HOOK_KEY_ACME__X"))
        await plane.api.webhooks.refresh()
        assert await sender.refused({}, from_github({}, "d-4", key="theirs")) == (503, "webhook.no_key")
        (view,) = await sender.webhooks()
        assert view["keys_missing"] == ["TRACEPLANE_HOOK_KEY_ACME__X"]
        assert "theirs" not in json.dumps(view)


async def test_a_key_may_be_a_secret_that_is_replaced_without_a_deploy(sender: Sender) -> None:
    plane = sender.plane
    vault = Vault(SealedStore(MasterKeyFile(plane.settings.master_key_path).keys))
    named = dag().replace(f"env: {VARIABLE}", "name: [hook, hook_before]")
    with pytest.raises(UserError) as refused:
        await plane.deploy(named)
    assert refused.value.code == "deploy.secret_unknown"

    async def set_secret(name: str, value: str) -> None:
        async with plane.database.transaction() as tx:
            await vault.set(tx, "default", SecretName("user", name), value, by="ada")
        await plane.api.webhooks.refresh()

    await set_secret("hooks", "of another name")
    with pytest.raises(UserError) as refused:
        await plane.deploy(named)
    assert (refused.value.next_step or "").startswith("did you mean 'hooks'? Otherwise set it with")
    await set_secret("hook", "first")
    await set_secret("hook_before", "earlier")
    await plane.deploy(named)
    await plane.api.webhooks.refresh()
    uses = "select count(*) from secrets where last_used_at is not null"
    assert await sender.refused({}, from_github({}, "d-0", key="wrong")) == (403, "webhook.signature_wrong")
    await plane.api.webhooks.refresh()
    assert await plane.value(uses) == 0, "a gateway that only reads a key does not use it"
    for number, key in enumerate(("first", "earlier")):
        assert (await sender.post({}, from_github({}, f"d-{number}", key=key)))[0] == 200
    await plane.api.webhooks.refresh()
    assert await plane.value(uses) == 2
    await set_secret("hook", "second")
    assert (await sender.post({}, from_github({}, "d-2", key="second")))[0] == 200
    assert await sender.refused({}, from_github({}, "d-3", key="first")) == (403, "webhook.signature_wrong")
    await plane.sql("delete from secrets")
    await plane.api.webhooks.refresh()
    assert await sender.refused({}, from_github({}, "d-4", key="second")) == (503, "webhook.no_key")
    (view,) = await sender.webhooks()
    assert view["keys_missing"] == ["${secret:hook}", "${secret:hook_before}"]


async def test_stripe_and_slack_are_received_with_their_keys_and_times(sender: Sender) -> None:
    await sender.plane.deploy(dag("{ preset: stripe }"))
    event = {"id": "evt_1", "object": "event"}
    assert (await sender.post(event, from_stripe(event)))[1]["status"] == "accepted"
    assert (await sender.post(event, from_stripe(event)))[1]["status"] == "duplicate"
    assert await sender.refused(event, from_stripe(event, at=1492774577)) == (
        403,
        "webhook.timestamp_outside",
    )
    assert await sender.refused(event, {"Stripe-Signature": "v1=00"}) == (403, "webhook.signature_malformed")
    await sender.plane.deploy(dag("{ preset: slack }", "dedupe: { pointer: /trigger_id }"))
    await sender.plane.api.webhooks.refresh()
    form, kind = b"command=%2Fdeploy&text=&trigger_id=13.4", "application/x-www-form-urlencoded"
    assert (await sender.post(form, from_slack(form), content_type=kind))[1]["delivery"] == 1
    assert json.loads((await sender.kept())[1][2]) == {"command": "/deploy", "text": "", "trigger_id": "13.4"}
    test = {"type": "url_verification", "challenge": "3eZbrw1a", "token": "x"}
    assert (await sender.post(test, from_slack(test)))[1] == {"status": "answered", "challenge": "3eZbrw1a"}
    assert len(await sender.kept()) == 2


async def test_a_number_and_a_text_with_the_same_digits_are_one_key(sender: Sender) -> None:
    await sender.plane.deploy(dag("none", "dedupe: { pointer: /id }"))
    answers = [(await sender.post({"id": key}))[1]["status"] for key in (7, "7", "07")]
    assert answers == ["accepted", "duplicate", "accepted"]


async def test_a_ping_of_github_is_answered_and_not_kept(sender: Sender) -> None:
    await sender.plane.deploy(dag())
    ping = {"zen": "Keep it logically awesome."}
    assert (await sender.post(ping, from_github(ping, event="ping")))[1] == {"status": "answered"}
    assert await sender.kept() == []


async def test_any_header_and_algorithm_can_be_declared(sender: Sender) -> None:
    verify = (
        "{ header: X-Sign, algorithm: sha512, encoding: hex, prefix: 'v2 ', signed: '{timestamp}|{body}',"
        " timestamp: { header: X-Time, tolerance: 10s } }"
    )
    await sender.plane.deploy(dag(verify, "dedupe: { pointer: /a~1b/0 }", "headers: [X-Kind]"))
    now = int(await sender.plane.value("select extract(epoch from tp_now())"))
    content = {"a/b": [12345678901234567890123]}
    sign = digest(b"%d|" % now + body(content), KEY, "sha512")
    headers = {"X-Sign": f"v2 {sign}", "X-Time": str(now), "X-Kind": "sale"}
    assert (await sender.post(content, headers))[1]["status"] == "accepted"
    assert (await sender.kept())[0][1] == "12345678901234567890123"
    assert await sender.refused(content, {**headers, "X-Time": str(now - 5)}) == (
        403,
        "webhook.signature_wrong",
    )
    assert await sender.refused(content, {**headers, "X-Time": str(now - 11)}) == (
        403,
        "webhook.timestamp_outside",
    )
    for bad in ("", "1e9", "9" * 13, "-5", "٣"):
        sent = {**headers, "X-Time": bad} if bad.isascii() else {**headers, "X-Time": "\u00b2"}
        assert await sender.refused(content, sent) == (403, "webhook.timestamp_invalid")


async def test_the_command_line_prints_the_address_in_the_organization_of_the_token(
    sender: Sender, tmp_path: Path
) -> None:
    async with sender.plane.database.transaction() as tx:
        token = await create_organization(tx, "beta")
    await sender.plane.api.refresh()
    text = dag("none", "dedupe: { pointer: /id }")
    deployed = await sender.http.send(token, "POST", "/api/v1/deploy", {"text": text})
    assert deployed[0] == 200, deployed
    settings = Settings(
        home=tmp_path / "person", gateway_url=f"http://127.0.0.1:{sender.http.port}", user_token=token
    )
    done = await asyncio.to_thread(CliRunner().invoke, events.list_webhooks, [], obj=settings)
    assert done.output.startswith("POST /hooks/beta/orders  shop.orders"), done.exception or done.output


async def test_only_an_event_with_the_scope_in_the_body(sender: Sender) -> None:
    text = """
version: 1
dag: shop
datasets: { shop.days: { partitions: { by: day } } }
jobs:
- name: orders
  activation: source
  source: { kind: webhook, path: orders, verify: none, dedupe: { pointer: /id }, scope: { pointer: /day } }
  outputs: [{ dataset: shop.days }]
- name: daily
  runtime: python
  operator: python
  inputs: [{ from: { job: orders } }]
  outputs: [{ dataset: shop.daily }]
  config: { entrypoint: "basic:nothing" }
"""
    plan = await sender.plane.plan(text)
    assert "anybody may deliver to POST /hooks/default/orders, since it says verify: none" in plan.text
    await sender.plane.deploy(text)
    for id_ in (1, 2, 1):
        assert (await sender.post({"id": id_, "day": "2026-11-17"}))[0] == 200
    assert await sender.refused({"id": 3, "day": "2026-11-31"}) == (400, "scope.bad_partition")
    assert await sender.refused({"id": 4}) == (400, "webhook.scope_missing")
    assert await sender.refused({"id": None, "day": "2026-11-17"}) == (400, "webhook.key_missing")
    rows = await sender.plane.sql("select partition_key, emission from events order by event_id")
    assert [tuple(row) for row in rows] == [("2026-11-17", "1"), ("2026-11-17", "2")]
    assert len(await sender.plane.tasks("daily")) == 2


async def test_an_event_with_the_scope_in_the_body_is_a_task_of_the_operator_of_the_source(
    sender: Sender,
) -> None:
    await sender.plane.deploy(
        """
version: 1
dag: shop
datasets: { shop.daily: { partitions: { by: day } } }
jobs:
- name: orders
  activation: source
  source: { kind: webhook, path: orders, verify: none, dedupe: { pointer: /id }, scope: { pointer: /day } }
  runtime: python
  operator: python
  outputs: [{ dataset: shop.daily }]
  config: { entrypoint: "basic:copy" }
"""
    )
    for id_ in (1, 2, 1):
        assert (await sender.post({"id": id_, "day": f"2026-11-1{id_}"}))[0] == 200
    await sender.plane.run_all()
    assert await sender.plane.states("orders") == {"completed": 2}
    rows = await sender.plane.sql("select partition_key from dataset_commits order by range_start")
    assert [row["partition_key"] for row in rows] == ["2026-11-11", "2026-11-12"]


async def test_partitions_by_name_are_registered_with_the_delivery(sender: Sender) -> None:
    await sender.plane.deploy(
        """
version: 1
dag: shop
datasets: { shop.regions: { partitions: { by: name } } }
jobs:
- name: orders
  activation: source
  source: { kind: webhook, path: orders, verify: none, dedupe: { pointer: /id }, scope: { pointer: /region } }
  outputs: [{ dataset: shop.regions }]
"""
    )
    assert await sender.refused({"id": 5, "region": "e u"}) == (400, "scope.bad_partition")
    for id_, region in enumerate(("eu", "us", "eu")):
        assert (await sender.post({"id": id_, "region": region}))[1] == {"status": "accepted"}
    rows = await sender.plane.sql("select partition_key, range_start from events order by event_id")
    assert [tuple(row) for row in rows] == [("eu", 0), ("us", 1), ("eu", 0)]


async def test_the_config_of_a_source_changes_in_place(sender: Sender) -> None:
    await sender.plane.deploy(dag())
    assert (await sender.post({}, from_github({})))[1]["delivery"] == 0
    changed = dag("{ preset: stripe, timestamp: { tolerance: 1h } }").replace("path: orders", "path: sales")
    plan = await sender.plane.plan(changed)
    assert "~ job orders__deliveries" in plan.text
    assert "0 to rebuild" in plan.text
    await sender.plane.deploy(changed)
    await sender.plane.api.webhooks.refresh()
    assert await sender.refused({}, from_github({})) == (404, "webhook.unknown")
    event = {"id": "evt_1"}
    status, answer = await sender.post(event, from_stripe(event), path="/hooks/default/sales")
    assert (status, answer["delivery"]) == (200, 1)


def _and_a_reader(text: str, entrypoint: str) -> str:
    return (
        text
        + f"""
- name: copy
  runtime: python
  operator: python
  inputs: [{{from: {{job: orders}}}}]
  outputs: [{{dataset: copied}}]
  config: {{entrypoint: "basic:{entrypoint}"}}
"""
    )


async def test_what_a_version_says_of_a_source_holds_while_it_serves(sender: Sender) -> None:
    """Neither before its cutover, nor once it was aborted or rolled back."""
    plane, sales = sender.plane, "/hooks/default/sales"
    signed = _and_a_reader(dag(), "copy")
    opened = dag("none", "dedupe: { pointer: /id }").replace("path: orders", "path: sales")
    unsigned = _and_a_reader(opened, "copy_2")

    async def answers(number: int) -> tuple[int, int, int]:
        """To a signed delivery at the first path, and to unsigned ones at both."""
        await plane.api.webhooks.refresh()
        content = {"id": number}
        key = f"d-{number}"
        return (
            (await sender.post(content, from_github(content, key)))[0],
            (await sender.post({"id": -number}))[0],
            (await sender.post({"id": -number}, path=sales))[0],
        )

    await plane.deploy(signed)
    assert await answers(1) == (200, 403, 404)
    assert (await plane.deploy(unsigned, manual_cutover=True)).building
    assert await answers(2) == (200, 403, 404)
    with pytest.raises(Conflict, match=r"deploy\.webhook_path_taken"):  # it is about to have it
        await plane.deploy(dag(name="other").replace("path: orders", "path: sales"))
    await plane.abort("shop")
    assert await answers(3) == (200, 403, 404)
    assert not (await plane.deploy(signed)).changed

    await plane.deploy(unsigned)
    await plane.run_all()
    for _ in range(5):
        await plane.builds.run_once()
        await plane.run_all()
    assert await answers(4) == (404, 404, 200)
    await plane.rollback("shop", drop_missing=True)
    assert await answers(5) == (200, 403, 404)


async def test_a_renamed_source_keeps_its_deliveries_their_keys_and_their_numbers(sender: Sender) -> None:
    plane = sender.plane
    await plane.deploy(dag())
    for number in range(3):
        await sender.post({"id": number}, from_github({"id": number}, f"d-{number}"))
    await plane.run_all()
    renamed = dag().replace("name: orders", "name: sales")
    assert "No longer served" not in (await plane.plan(renamed)).text
    await plane.deploy(renamed)
    for _ in range(3):
        await plane.builds.run_once()
        await plane.run_all()
    assert [version.state for version in await plane.versions("shop")] == ["active", "retired"]
    (view,) = [d for d in (await plane.status()).datasets if d.dataset == "shop.orders"]
    assert view.rows == 3
    assert (await sender.webhooks())[0]["job"] == "sales"
    assert (await sender.post({"id": 1}, from_github({"id": 1}, "d-1")))[1] == {"status": "duplicate"}
    _, answer = await sender.post({"id": 3}, from_github({"id": 3}, "d-3"))
    assert answer == {"status": "accepted", "delivery": 3}
    assert len(await sender.kept()) == 4


async def test_a_path_belongs_to_one_source_of_an_organization(sender: Sender) -> None:
    await sender.plane.deploy(dag())
    with pytest.raises(Conflict) as refused:
        await sender.plane.deploy(dag(name="other"))
    assert refused.value.code == "deploy.webhook_path_taken"
    # A rollback may bring a path back that another source has by now: then nobody gets it.
    await sender.plane.deploy(dag().replace("path: orders", "path: free"))
    await sender.plane.deploy(dag(name="other"))
    await sender.plane.rollback("shop")
    await sender.plane.api.webhooks.refresh()
    assert await sender.refused({}, from_github({})) == (503, "webhook.path_ambiguous")


async def test_a_deleted_source_keeps_nothing_and_says_so(sender: Sender) -> None:
    await sender.plane.deploy(dag())
    assert (await sender.post({}, from_github({})))[0] == 200
    known = sender.plane.api.webhooks._sources
    await sender.plane.sql("update jobs set routed = false")
    status, code = await sender.refused({}, from_github({}, "d-2"))
    assert (status, code) == (503, "webhook.source_changed")
    assert not known.endpoints
    assert await sender.refused({}, from_github({}, "d-2")) == (404, "webhook.unknown")
    assert len(await sender.kept()) == 1


async def test_keys_are_forgotten_after_their_time(sender: Sender) -> None:
    await sender.plane.deploy(dag())
    await sender.post({}, from_github({}, "old"))
    await sender.plane.sql("update webhook_keys set received_at = tp_now() - interval '8 days'")
    await sender.post({}, from_github({}, "new"))
    assert (await WebhookKeys(sender.plane.database, days=7).run_once()).keys == 1
    assert [row["key"] for row in await sender.plane.sql("select key from webhook_keys")] == ["new"]


@pytest.mark.parametrize(
    ("old", "new", "code", "at"),
    [
        ("verify: { preset: github }", "", "spec.missing_field", "'verify'"),
        ("preset: github", "preset: gitlab", "spec.unknown_value", "gitlab"),
        ("preset: github", "preset: github, header: X", "spec.verify_incomplete", "header"),
        ("preset: github", "preset: github, timestamp: {}", "spec.verify_incomplete", "no timestamp"),
        ("preset: github", "header: X", "spec.missing_field", "'dedupe'"),
        ("preset: github", "algorithm: md5", "spec.unknown_value", "md5"),
        ("preset: github", "header: X, signed: '{timestamp}.{body}'", "spec.verify_incomplete", "timestamp"),
        ("preset: github", "header: X, signed: '{body}.'", "spec.verify_incomplete", "end with"),
        (f"secret: {{ env: {VARIABLE} }}", "", "spec.missing_field", "'secret'"),
        (f"env: {VARIABLE}", "env: MY_KEY", "spec.bad_name", "MY_KEY"),
        ("path: orders", "path: a/b", "spec.bad_name", "a/b"),
        ("path: orders", "", "spec.field_needs_path", "verify"),
        ("path: orders", "path: orders\n    dedupe: { pointer: id }", "spec.bad_pointer", "begins with /"),
        ("path: orders", "path: orders\n    dedupe: {}", "spec.wrong_type", "identified"),
        ("columns: [", "partitions: { by: day }, columns: [", "spec.partitions_differ", "numbered"),
    ],
)
async def test_a_source_that_cannot_work_is_refused_at_its_place(
    sender: Sender, old: str, new: str, code: str, at: str
) -> None:
    assert old in dag()
    with pytest.raises(SpecInvalid) as refused:
        await sender.plane.deploy(dag().replace(old, new))
    assert code in {problem.code for problem in refused.value.problems}
    assert any(at in problem.message for problem in refused.value.problems)


async def test_the_clock_is_that_of_the_database(sender: Sender) -> None:
    await sender.plane.deploy(dag("{ preset: stripe }"))
    await sender.plane.set_clock(0)
    event, then = {"id": "evt_1"}, 1893456000  # 2030
    assert (await sender.post(event, from_stripe(event, at=then + 200)))[0] == 200
    assert await sender.refused(event, from_stripe(event)) == (403, "webhook.timestamp_outside")


async def test_a_plan_says_which_key_the_gateway_lacks(sender: Sender) -> None:
    assert "does not have the key" not in (await sender.plane.plan(dag())).text
    missing = dag().replace(VARIABLE, "TRACEPLANE_HOOK_KEY_LATER")
    said = (await sender.plane.plan(missing)).text
    assert "! job orders: the gateway does not have the key in TRACEPLANE_HOOK_KEY_LATER" in said
