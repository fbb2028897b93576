"""Configs of channels, as they are written and stored."""

from __future__ import annotations

import msgspec
import pytest

from tests.delivery.messages import channels
from traceplane.delivery.sending import Channel
from traceplane.model.json_object import JsonObject

WRITTEN: dict[str, JsonObject] = {
    "webhook": {
        "kind": "webhook",
        "url": "https://hooks.example/${secret:path}",
        "headers": {"Authorization": "Bearer ${secret:token}"},
        "body": [{"labels": "{subject}", "n": 1}],
        "signing_keys": ["${secret:hook_key}"],
    },
    "slack": {"kind": "slack", "url": "${secret:slack_url}"},
    "email": {
        "kind": "email",
        "host": "smtp.example",
        "from": "alerts@x.example",
        "to": ["oncall@x.example"],
        "tls": "implicit",
        "username": "ada",
        "password": "${secret:smtp}",
    },
    "pagerduty": {"kind": "pagerduty", "routing_key": "${secret:pagerduty_key}"},
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_config_is_read_and_stored_as_it_is_written(kind: str) -> None:
    channel: Channel = msgspec.convert(WRITTEN[kind], Channel)
    channels("allowed.corp:1").check(channel)
    stored = msgspec.json.encode(channel)
    assert msgspec.json.decode(stored, type=Channel) == channel
    assert WRITTEN[kind].items() <= msgspec.json.decode(stored).items()


@pytest.mark.parametrize("kind", WRITTEN)
def test_a_field_that_does_not_exist_is_refused(kind: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field `method`"):
        msgspec.convert({**WRITTEN[kind], "method": "GET"}, Channel)
