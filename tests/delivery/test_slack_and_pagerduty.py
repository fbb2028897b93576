"""Slack and PagerDuty: what they document, and no more than they take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.delivery.messages import MESSAGE, channels, dead, refusal, retry, sent
from tests.delivery.receiver import answer, receiving
from traceplane.delivery.channels.pagerduty import PagerDuty
from traceplane.delivery.channels.slack import Slack, escaped
from traceplane.delivery.outcome import Delivered
from traceplane.model.message import Kind, Message

ROUTING_KEY = "0123456789abcdef0123456789abcdef"
HUGE = replace(
    MESSAGE,
    title="<!channel> & 🚨\x00" * 1000,
    text="<@U1>&\x01🚨" * 100_000,
    subject={f"column {number}": "&<>\x02" * 1000 for number in range(100)},
    fields={f"field {number}": "🚨\x03" * 1000 for number in range(100)},
)


async def slack(message: Message) -> Any:
    async with receiving(answer(200, b"ok")) as receiver:
        assert await sent(Slack(url="${secret:url}"), message, url=receiver.url) == Delivered()
    return receiver.received[0].json


async def pagerduty(message: Message) -> tuple[Any, int]:
    async with receiving(answer(202, b'{"status":"success"}')) as receiver:
        channel = PagerDuty(routing_key="${secret:key}", url=receiver.url)
        channels().check(channel)
        assert await sent(channel, message, key=ROUTING_KEY) == Delivered()
    (request,) = receiver.received
    return request.json, len(request.body)


async def test_slack_gets_blocks_and_a_text_for_those_who_have_none() -> None:
    body = await slack(MESSAGE)
    kinds = [block["type"] for block in body["blocks"]]
    assert kinds == ["header", "section", "section", "section"]
    assert body["blocks"][0]["text"]["text"] == "🚨 AAPL dropped"
    assert body["blocks"][1]["text"]["text"] == "AAPL dropped by 5 %"
    assert body["blocks"][3]["text"]["text"] == "<https://traceplane.example/alerts/1?a=1&amp;b=2|Open>"
    for part in (
        "AAPL dropped",
        "ticker: AAPL",
        "price: 101.10",
        "volume: 7",
        "severity: critical",
        "|Open>",
    ):
        assert part in body["text"]


async def test_slack_gets_no_more_than_it_takes() -> None:
    body = await slack(HUGE)
    assert len(body["text"]) <= 40_000
    assert len(body["blocks"]) <= 50
    header, text, fields = body["blocks"][:3]
    assert len(header["text"]["text"].encode("utf-16-le")) // 2 <= 150
    assert len(text["text"]["text"].encode("utf-16-le")) // 2 <= 3_000
    assert "characters)" in text["text"]["text"]
    assert len(fields["fields"]) <= 10
    assert all(len(field["text"]) <= 2_000 for field in fields["fields"])
    assert "more" in fields["fields"][-1]["text"]
    assert len(str(body["blocks"])) < 13_000


async def test_nothing_in_a_message_mentions_anybody_in_slack() -> None:
    message = replace(
        MESSAGE,
        title="<!channel>",
        text="<@U1> <http://evil.example|bank>",
        subject={"<!here>": "<!everyone>"},
    )
    body = await slack(replace(message, link=None))
    texts = [body["text"], body["blocks"][1]["text"]["text"]]
    texts += [field["text"] for field in body["blocks"][2]["fields"]]
    assert not any("<" in text or ">" in text for text in texts)
    assert body["blocks"][0]["text"]["type"] == "plain_text"


@given(st.text(alphabet="&<>a🚨", max_size=80), st.integers(30, 60))
def test_an_escape_is_never_cut(text: str, longest: int) -> None:
    result = escaped(text, longest)
    assert len(result.encode("utf-16-le")) // 2 <= longest
    kept = result.partition("…")[0]
    for escape, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        kept = kept.replace(escape, character)
    assert text.startswith(kept)


def test_the_address_of_a_slack_webhook_is_a_secret() -> None:
    refused = refusal(Slack(url="https://hooks.slack.com/services/T0/B0/hunter2"))
    assert refused.code == "delivery.secret_expected"
    assert "hunter2" not in str(refused)
    channels().check(Slack(url="${secret:url}"))
    channels().check(Slack(url="https://hooks.slack.com/services/${secret:path}"))
    assert refusal(Slack(url="ftp://x/${secret:path}")).code == "outgoing.bad_url"


async def test_a_slack_webhook_that_was_removed_is_dead_and_stays_secret() -> None:
    async with receiving(answer(404, b"no_service")) as receiver:
        outcome = dead(await sent(Slack(url="${secret:url}"), url=receiver.url + "/T0/B0/hunter2hunter2"))
    assert outcome.reason == "the answer was 404: no_service"
    async with receiving(answer(429, b"rate_limited", "Retry-After: 30")) as receiver:
        outcome2 = retry(await sent(Slack(url="${secret:url}"), url=receiver.url))
    assert outcome2.after_seconds == 30


async def test_an_alert_triggers_an_incident_in_pagerduty() -> None:
    event, _ = await pagerduty(MESSAGE)
    assert event == {
        "routing_key": ROUTING_KEY,
        "event_action": "trigger",
        "dedup_key": "a1:AAPL",
        "client": "Traceplane",
        "links": [{"href": MESSAGE.link, "text": "Open"}],
        "payload": {
            "summary": "AAPL dropped",
            "source": "traceplane",
            "severity": "critical",
            "timestamp": "2026-11-18T06:30:00Z",
            "class": "price_drop",
            "custom_details": {
                "text": "AAPL dropped by 5 %",
                "count": 1,
                "key": MESSAGE.key,
                "subject": {"ticker": "AAPL", "price": "101.10", "title": "a column"},
                "fields": {"volume": 7},
            },
        },
    }


@pytest.mark.parametrize(
    ("kind", "action"), [(Kind.ACKNOWLEDGEMENT, "acknowledge"), (Kind.RETRACTION, "resolve")]
)
async def test_what_follows_an_alert_finds_its_incident(kind: Kind, action: str) -> None:
    event, _ = await pagerduty(replace(MESSAGE, key="another", kind=kind))
    assert event == {"routing_key": ROUTING_KEY, "event_action": action, "dedup_key": "a1:AAPL"}


async def test_pagerduty_gets_no_more_than_it_takes() -> None:
    event, size = await pagerduty(HUGE)
    assert size <= 512_000
    assert len(event["payload"]["summary"]) <= 1024
    assert len(event["dedup_key"]) <= 255
    event, _ = await pagerduty(replace(MESSAGE, title=""))
    assert event["payload"]["summary"] == "price_drop"


def test_a_routing_key_is_a_secret() -> None:
    refused = refusal(PagerDuty(routing_key=ROUTING_KEY))
    assert refused.code == "delivery.secret_expected"
    assert ROUTING_KEY not in str(refused)
    channels("none.corp").check(PagerDuty(routing_key="${secret:key}"))
    for source in ("", "a\nb", "x" * 300):
        bad = PagerDuty(routing_key="${secret:key}", source=source)
        assert refusal(bad).code == "delivery.bad_channel"


async def test_pagerduty_repeats_no_routing_key() -> None:
    async with receiving(answer(400, f"invalid {ROUTING_KEY}".encode())) as receiver:
        channel = PagerDuty(routing_key="${secret:key}", url=receiver.url)
        outcome = dead(await sent(channel, key=ROUTING_KEY))
    assert ROUTING_KEY not in outcome.reason
