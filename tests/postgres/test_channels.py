"""Channels, as admins set and test them, and the messages that were queued for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import yaml
from click.testing import CliRunner

from tests.control_plane import ControlPlane
from tests.delivery.http_receiver import http_receiver, status
from tests.delivery.receiver import Receiver, receiving, silence
from tests.docs_pages import blocks, page
from tests.gateway_http import GatewayHttp
from tests.platform import until
from tests.postgres.test_deliveries import Queue, alert
from traceplane import telemetry
from traceplane.auth.roles import Role
from traceplane.cli.main import cli
from traceplane.delivery.connections import Connections
from traceplane.dispatcher.loops.gauges import Gauges
from traceplane.model.message import Kind
from traceplane.postgres import channels
from traceplane.postgres.deliveries import Recorded

HOOK = {"kind": "webhook", "url": "https://hooks.example.com/in"}
Run = Callable[..., Awaitable[tuple[int, str]]]


class Gateway:
    def __init__(self, plane: ControlPlane, http: GatewayHttp, token: str) -> None:
        self.plane, self.http, self.token = plane, http, token

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        code, text = await self.http.send(self.token, method, f"/api/v1/{path}", body)
        return code, json.loads(text)

    async def set(self, name: str, **config: Any) -> Any:
        code, answer = await self.call("PUT", f"channels/{name}", {"config": config})
        assert code == 200, answer
        return answer

    async def refused(self, method: str, path: str, body: Any = None) -> str:
        code, answer = await self.call(method, path, body)
        assert 400 <= code < 500, answer
        return str(answer["error"]["code"])

    async def queue(self, name: str) -> Queue:
        """Of a channel that was set."""
        [row] = await self.plane.sql("select org_id, channel_id from channels where name = $1", name)
        return Queue(self.plane.database, row["org_id"], row["channel_id"])


@pytest.fixture
async def gateway(database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with (
        ControlPlane.open(database_url, home=tmp_path, outgoing_allow=("127.0.0.0/8",)) as plane,
        GatewayHttp.open(plane) as http,
    ):
        yield Gateway(plane, http, await http.token(Role.ADMIN))


@pytest.fixture
def run(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setenv("TRACEPLANE_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("TRACEPLANE_GATEWAY_URL", f"http://127.0.0.1:{gateway.http.port}")
    monkeypatch.setenv("TRACEPLANE_USER_TOKEN", gateway.token)

    async def invoke(*words: str) -> tuple[int, str]:
        done = await asyncio.to_thread(CliRunner().invoke, cli, words)
        return done.exit_code, done.stdout or str(done.exception)

    return invoke


async def test_a_channel_is_set_shown_and_removed(gateway: Gateway) -> None:
    assert await gateway.call("GET", "channels") == (200, {"channels": []})
    made = await gateway.set("ops", **HOOK)
    assert (made["name"], made["config"], made["changed_by"]) == ("ops", HOOK, "default-admin")
    changed = await gateway.set("ops", **HOOK, per_second=10)
    assert changed["config"]["per_second"] == 10
    _, shown = await gateway.call("GET", "channels/ops")
    assert shown == changed
    assert await gateway.call("GET", "channels") == (200, {"channels": [shown]})
    assert await gateway.call("DELETE", "channels/ops") == (200, {"name": "ops"})
    assert await gateway.refused("GET", "channels/ops") == "channel.unknown"
    rows = await gateway.plane.sql(
        "select action, object from audit_log where action like '%channels%' order by audit_id"
    )
    put, delete = ("PUT /api/v1/channels/{name}", "DELETE /api/v1/channels/{name}")
    assert [tuple(row) for row in rows] == [
        (put, {"name": "ops"}),
        (put, {"name": "ops"}),
        (delete, {"name": "ops"}),
    ]


async def test_an_organization_has_so_many_channels(gateway: Gateway) -> None:
    await gateway.plane.sql(
        "insert into channels (org_id, name, config, changed_by)"
        " select org_id, 'c' || n, '{}', 'test' from orgs, generate_series(1, 199) n"
    )
    await gateway.set("last", **HOOK)
    assert await gateway.refused("PUT", "channels/more", {"config": HOOK}) == "channel.too_many"
    await gateway.set("last", **HOOK, per_second=10)
    await gateway.call("DELETE", "channels/c1")
    await gateway.set("more", **HOOK)


async def test_channels_that_are_made_at_once_count_each_other(gateway: Gateway) -> None:
    plane = gateway.plane
    await plane.sql(
        "insert into channels (org_id, name, config, changed_by)"
        " select org_id, 'c' || n, '{}', 'test' from orgs, generate_series(1, 199) n"
    )
    org_id = await plane.value("select org_id from orgs")
    async with plane.database.transaction() as tx:
        await channels.set_channel(tx, org_id, "last", HOOK, platform_alerts=False, by="test")
        second = asyncio.create_task(gateway.refused("PUT", "channels/more", {"config": HOOK}))
        await until(lambda: plane.waits_or_ended(second))
    assert await second == "channel.too_many"


async def test_another_value_of_its_secret_makes_what_waits_ready(gateway: Gateway) -> None:
    for name, secret in (("ops", "ops_url"), ("other", "ops_url.old")):
        await gateway.call("PUT", f"secrets/user/{secret}", {"value": "https://hooks.example.com/T/B/X"})
        await gateway.set(name, kind="slack", url=f"${{secret:{secret}}}")
        await (await gateway.queue(name)).add(alert(name))
    await gateway.plane.sql(
        "update alert_deliveries set tries = 3, ready_at = tp_now() + interval '1 hour' where state = 'waiting'"
    )
    await gateway.call("PUT", "secrets/user/ops_url", {"value": "https://hooks.example.com/T/B/Y"})
    rows = await gateway.plane.sql(
        "select name, tries - forgiven_tries as counted from alert_deliveries join channels using (channel_id)"
        " where ready_at <= tp_now()"
    )
    assert [tuple(row) for row in rows] == [("ops", 0)]


async def test_tests_of_channels_have_few_connections(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.plane.api.channels, "_connections", Connections(1))
    async with receiving(silence) as receiver:
        await gateway.set("ops", kind="webhook", url=receiver.url)
        await gateway.set("other", kind="webhook", url=receiver.url)
        first = asyncio.create_task(gateway.call("POST", "channels/ops/test"))
        await until(lambda: _connected(receiver))
        assert await gateway.refused("POST", "channels/other/test") == "channel.busy"
        first.cancel()


async def _connected(receiver: Receiver) -> bool:
    return bool(receiver.connections)


@pytest.mark.parametrize(
    ("name", "config", "code"),
    [
        ("Ops", HOOK, "channel.bad_name"),
        ("a.b", HOOK, "channel.bad_name"),
        ("ops", {}, "delivery.bad_channel"),
        ("ops", {"kind": "sms"}, "delivery.bad_channel"),
        ("ops", {**HOOK, "color": "red"}, "delivery.bad_channel"),
        ("ops", {**HOOK, "per_second": 0}, "delivery.bad_channel"),
        ("ops", {**HOOK, "burst": 1_000_000}, "delivery.bad_channel"),
        ("ops", {"kind": "webhook", "url": "http://hooks.example.com/in"}, "outgoing.bad_url"),
        ("ops", {"kind": "webhook", "url": "https://169.254.169.254/"}, "outgoing.not_allowed"),
        ("ops", {"kind": "slack", "url": "https://hooks.slack.com/T/B/X"}, "delivery.secret_expected"),
        ("ops", {"kind": "slack", "url": "${secret:platform/slack}"}, "delivery.bad_reference"),
        ("ops", {**HOOK, "body": {"text": "{ticker}"}}, "delivery.unknown_placeholder"),
    ],
)
async def test_a_channel_that_could_not_be_used_is_refused(
    database_url: str, tmp_path: Path, name: str, config: Any, code: str
) -> None:
    async with ControlPlane.open(database_url, home=tmp_path) as plane, GatewayHttp.open(plane) as http:
        gateway = Gateway(plane, http, await http.token(Role.ADMIN))
        assert await gateway.refused("PUT", f"channels/{name}", {"config": config}) == code
        assert await plane.value("select count(*) from channels") == 0


@pytest.mark.parametrize(
    ("config", "message", "step"),
    [
        ({"kind": "webhok", "url": HOOK["url"]}, "there is no such kind of channel", "kind: webhook"),
        ({"url": HOOK["url"]}, "the channel has no kind", "kind: email, kind: pagerduty, kind: slack"),
        ({"kind": ["slack"]}, "there is no such kind of channel", "kind: slack"),
        ({**HOOK, "color": "red"}, "invalid: there is no field `color`", "kind webhook: url, headers, body"),
    ],
)
async def test_a_refused_channel_is_told_what_to_write(
    gateway: Gateway, config: Any, message: str, step: str
) -> None:
    _, answer = await gateway.call("PUT", "channels/ops", {"config": config})
    assert message in answer["error"]["message"]
    assert step in answer["error"]["next_step"]


async def test_missing_secrets_are_noticed_when_a_channel_is_set(gateway: Gateway) -> None:
    slack = {"kind": "slack", "url": "${secret:slack_url}"}
    answer = await gateway.set("team", **slack)
    assert answer["warnings"] == ["the secret slack_url cannot be used: there is no such secret"]
    value = {"value": "https://hooks.slack.com/T/B/X", "allowed_jobs": ["channel/other"]}
    assert (await gateway.call("PUT", "secrets/user/slack_url", value))[1]["warnings"] == [
        "there is no channel other yet; did you mean 'channel/team'?"
    ]
    [warning] = (await gateway.set("team", **slack))["warnings"]
    assert "channel/team is not among those that may use it" in warning
    allowed = {"allowed_jobs": ["channel/team"]}
    _, rights = await gateway.call("POST", "secrets/user/slack_url/rights", allowed)
    assert "warnings" not in rights
    assert "warnings" not in await gateway.set("team", **slack)


async def test_a_test_says_what_became_of_it(gateway: Gateway) -> None:
    assert await gateway.refused("POST", "channels/ops/test") == "channel.unknown"
    async with http_receiver() as receiver:
        await gateway.set("ops", kind="webhook", url=receiver.url)
        assert await gateway.call("POST", "channels/ops/test") == (
            200,
            {"name": "ops", "outcome": "delivered"},
        )
    [body] = receiver.bodies
    assert body["title"] == "Test of the channel ops"
    async with http_receiver(status(403)) as receiver:
        await gateway.set("ops", kind="webhook", url=receiver.url)
        _, answer = await gateway.call("POST", "channels/ops/test")
    assert answer == {
        "name": "ops",
        "outcome": "dead",
        "code": "delivery.refused",
        "reason": "the answer was 403",
    }
    _, answer = await gateway.call("POST", "channels/ops/test")  # nobody is there
    assert (answer["outcome"], answer["code"]) == ("retry", "outgoing.failed")
    await gateway.set("ops", kind="slack", url="${secret:slack_url}")
    _, answer = await gateway.call("POST", "channels/ops/test")
    assert (answer["outcome"], answer["code"]) == ("dead", "delivery.secret_denied")


async def test_a_channel_with_messages_that_wait_is_removed_only_with_them(gateway: Gateway) -> None:
    await gateway.set("ops", **HOOK)
    await (await gateway.queue("ops")).add(alert("a"), alert("b"))
    assert await gateway.refused("DELETE", "channels/ops") == "channel.in_use"
    assert (await gateway.call("GET", "channels/ops"))[1]["waiting"] == 2
    assert await gateway.call("DELETE", "channels/ops?drop=true") == (200, {"name": "ops", "dropped": 2})
    assert await gateway.call("GET", "deliveries") == (200, {"deliveries": []})


async def dead(queue: Queue, *names: str) -> list[UUID]:
    await queue.add(*(alert(name) for name in names))
    await queue.lease()
    holder = uuid4()
    claimed = [one.delivery_id for one in await queue.claim(holder)]
    await queue.record(holder, *(Recorded(one, "dead", "delivery.refused", "no") for one in claimed))
    return claimed


async def test_dead_messages_are_replayed_with_all_their_tries_before_them(gateway: Gateway) -> None:
    await gateway.set("ops", **HOOK)
    queue = await gateway.queue("ops")
    first, *_ = await dead(queue, "a", "b", "c")
    replay = "deliveries/replay"
    assert await gateway.call("POST", replay, {"delivery_ids": [str(first)]}) == (200, {"changed": 1})
    assert await gateway.call("POST", replay, {"delivery_ids": [str(first)]}) == (200, {"changed": 0})
    await queue.lease()
    [again] = await queue.claim(uuid4())
    assert (again.delivery_id, again.tries) == (first, 1)
    assert again.message == alert("a")
    # That it was tried before is not forgotten: a withdrawal has to know.
    assert await queue.withdraw("a") == ["alert:a"]
    assert await gateway.call("POST", replay, {"channel": "ops"}) == (200, {"changed": 2})
    assert await gateway.refused("POST", replay, {"channel": "none"}) == "channel.unknown"
    assert await gateway.refused("POST", replay, {}) == "request.invalid"


async def test_dropped_messages_are_not_sent_and_their_keys_stay_taken(gateway: Gateway) -> None:
    await gateway.set("ops", **HOOK)
    queue = await gateway.queue("ops")
    await dead(queue, "a")
    await queue.add(alert("b"), alert("c"))
    await queue.lease()
    holder = uuid4()
    [in_flight] = await queue.claim(holder, 1)
    assert await gateway.call("POST", "deliveries/drop", {"channel": "ops"}) == (200, {"changed": 3})
    assert await queue.record(holder, Recorded(in_flight.delivery_id, "delivered")) == set()
    assert set((await queue.states()).values()) == {"withdrawn"}
    assert await queue.add(alert("a"), alert("b")) == 0
    assert await queue.withdraw("a", "b", "c") == ["alert:a", "alert:b"]  # they may have been sent
    _, answer = await gateway.call("GET", "deliveries?state=withdrawn&limit=1")
    [shown] = answer["deliveries"]
    assert (shown["code"], shown["reason"]) == ("delivery.dropped", "dropped by default-admin")


async def test_messages_are_listed_newest_first_in_pages(gateway: Gateway) -> None:
    await gateway.set("ops", **HOOK)
    await gateway.set("other", **HOOK)
    await (await gateway.queue("ops")).add(*(alert(f"a{n}") for n in range(3)))
    await (await gateway.queue("other")).add(alert("b"))
    _, page = await gateway.call("GET", "deliveries?limit=3")
    assert [one["key"] for one in page["deliveries"]] == ["alert:b", "alert:a2", "alert:a1"]
    _, rest = await gateway.call("GET", f"deliveries?limit=3&before={page['before']}")
    assert [one["key"] for one in rest["deliveries"]] == ["alert:a0"]
    assert "before" not in rest
    _, of_other = await gateway.call("GET", "deliveries?channel=other&state=waiting")
    assert [one["channel"] for one in of_other["deliveries"]] == ["other"]
    assert await gateway.refused("GET", "deliveries?channel=oter") == "channel.unknown"


async def test_the_commands(gateway: Gateway, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "ops.yaml"
    async with http_receiver() as receiver:
        file.write_text(f"kind: webhook\nurl: {receiver.url}\nsigning_keys: ['${{secret:hook_key}}']\n")
        code, text = await run("channel", "set", "ops", str(file))
        assert (code, text) == (0, "ops is set; try it with `traceplane channel test ops`\n")
        code, text = await run("channel", "test", "ops")
        assert (code, text) == (
            1,
            "not delivered: delivery.secret_denied: the secret hook_key cannot be used: there is no such secret\n",
        )
        await gateway.call("PUT", "secrets/user/hook_key", {"value": "k" * 32})
        assert await run("channel", "test", "ops") == (0, "delivered\n")
    assert await run("channel", "list") == (0, "ops  webhook, 0 waiting, 0 dead\n")
    _, text = await run("channel", "show", "ops")
    assert "changed by default-admin" in text
    assert '"${secret:hook_key}"' in text
    assert await run("deliveries", "list") == (0, "no messages\n")
    queue = await gateway.queue("ops")
    [one] = await dead(queue, "a")
    _, text = await run("deliveries", "list", "--channel", "ops", "--state", "dead")
    assert text.startswith(f"{one}  ")
    assert text.endswith("ops  alert price_drop (critical): AAPL dropped  dead  delivery.refused: no\n")
    assert await run("deliveries", "replay", str(one)) == (0, "1 message queued again\n")
    assert await run("deliveries", "replay", "--channel", "ops") == (1, "no dead messages\n")
    [*_, two] = await dead(queue, "b")
    await queue.add(replace(alert("b"), key="alert:b-retraction", kind=Kind.RETRACTION))
    gone = "0 messages queued again\n1 message withdrawn instead: the alert was retracted meanwhile\n"
    assert await run("deliveries", "replay", str(two)) == (1, gone)
    assert (await run("channel", "remove", "ops"))[0] == 1
    assert await run("deliveries", "drop", "--channel", "ops") == (0, "2 messages dropped\n")
    assert await run("channel", "remove", "ops") == (0, "ops is deleted\n")
    assert await run("channel", "list") == (
        0,
        "There are no channels. Set one with `traceplane channel set NAME FILE`.\n",
    )
    file.write_text("- a\n")
    assert "channel.bad_file" in (await run("channel", "set", "ops", str(file)))[1]
    assert (await run("deliveries", "replay"))[0] == 2


async def test_dead_messages_are_shown_with_what_to_do_about_them(gateway: Gateway, run: Run) -> None:
    await gateway.set("ops", **HOOK)
    await gateway.set("quiet", **HOOK)
    first, second = await dead(await gateway.queue("ops"), "a", "b")
    await gateway.plane.sql(
        "insert into alert_events (org_id, dag, alert, key, severity, title, body, subject, fields, event_time,"
        " incident) select org_id, '', 'disk', 'a', 'info', 't', '', '{}', '{}', tp_now(), 'a' from orgs"
    )
    _, text = await run("status")
    assert text.startswith("dead messages:\n  ops: 2; traceplane message list --channel ops --state dead\n")
    _, answer = await gateway.call("GET", "alerts")
    [alert_id] = [one["alert_id"] for one in answer["alerts"]]
    _, text = await run("alerts", "show", alert_id)
    assert text.splitlines()[-2:] == [
        "Next step for an admin: correct the channel until `traceplane channel test ops` succeeds, then run "
        f"`traceplane message replay {first}`",
        f"Next step: traceplane alert ack {alert_id}",
    ]
    _, text = await run("alerts", "summary")
    assert text.startswith(
        "disk  1 found: 1 given to channels, 0 not sent  now 1 open, 0 retracted  last found"
    )
    await run("deliveries", "replay", str(first), str(second))
    assert "dead" not in (await run("status"))[1]
    assert "replay" not in (await run("alerts", "show", alert_id))[1]


async def test_only_admins_see_which_channels_have_dead_messages(gateway: Gateway) -> None:
    await gateway.set("ops", **HOOK)
    await dead(await gateway.queue("ops"), "a")
    assert (await gateway.call("GET", "status"))[1]["dead_messages"] == {"ops": 1}
    gateway.token = await gateway.http.token(Role.WRITER)
    assert "dead_messages" not in (await gateway.call("GET", "status"))[1]


async def test_messages_that_wait_and_that_are_dead_are_gauges(gateway: Gateway) -> None:
    telemetry.configure("test")
    await gateway.set("ops", **HOOK)
    await gateway.set("quiet", **HOOK)
    queue = await gateway.queue("ops")
    await dead(queue, "a", "b")
    await queue.add(alert("c"))
    await Gauges(gateway.plane.database).run_once()
    lines = telemetry.render_metrics().decode().splitlines()
    assert {line for line in lines if line.startswith("traceplane_deliveries_") and "{channel=" in line} == {
        'traceplane_deliveries_waiting{channel="ops"} 1.0',
        'traceplane_deliveries_waiting{channel="quiet"} 0.0',
        'traceplane_deliveries_dead{channel="ops"} 2.0',
        'traceplane_deliveries_dead{channel="quiet"} 0.0',
    }


@pytest.mark.parametrize("text", blocks(page("guides/channels.md"), "yaml"))
async def test_the_channels_of_the_guide_are_accepted(gateway: Gateway, text: str) -> None:
    for name in ("slack_url", "smtp_password", "pagerduty_key", "hook_key", "chat_token"):
        await gateway.call("PUT", f"secrets/user/{name}", {"value": "https://hooks.example.com/" + "k" * 32})
    assert "warnings" not in await gateway.set("team", **yaml.safe_load(text))
