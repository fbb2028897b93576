"""Incoming webhooks of Slack, and of services that take the same JSON.

Whatever a message says is text: `<`, `>` and `&` are escaped, so nothing in it can mention a channel or disguise a
link. Services that do not know blocks show `text`, which has everything too.
"""

from __future__ import annotations

import msgspec

from traceplane.delivery import posting
from traceplane.delivery.outcome import Outcome
from traceplane.delivery.secret_values import SecretValues, refer_to_secrets, secret_expected
from traceplane.http_service.outgoing import Outgoing
from traceplane.model.json_object import JsonObject
from traceplane.model.message import Message

_LONGEST_TEXT = 4_000
"""Slack advises it; it cuts a text at 40,000."""
_LONGEST_HEADER, _LONGEST_SECTION, _LONGEST_FIELD, _MOST_FIELDS = 150, 3_000, 200, 10
"""Of Slack's blocks; fields could have 2,000. All blocks together must stay below about 13,000."""
_MARKS = {"info": "ℹ️", "warning": "⚠️", "error": "❗", "critical": "🚨"}


class Slack(
    msgspec.Struct, tag_field="kind", tag="slack", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    url: str
    """Whoever knows it can post, so it is a secret: `${secret:NAME}`."""


def check(config: Slack, outgoing: Outgoing) -> None:
    """Raises InvalidInput."""
    if not refer_to_secrets([config.url]):
        raise secret_expected("the address of an incoming webhook", "slack_url")
    posting.check_url(config.url, outgoing)


async def send(
    message: Message, config: Slack, values: SecretValues, outgoing: Outgoing, now: float
) -> Outcome:
    body = posting.encoded({"text": _text(message), "blocks": _blocks(message)})
    return await posting.post(config.url, body, message, values, outgoing, now)


def _text(message: Message) -> str:
    lines = [f"{_MARKS[message.severity]} {message.headline}", message.text]
    lines += [f"{name}: {value}" for name, value in message.facts()]
    text = escaped("\n".join(line for line in lines if line), _LONGEST_TEXT)
    return f"{text}\n{_link(message.link)}" if message.link else text


def _blocks(message: Message) -> list[JsonObject]:
    title = shortened_to_units(f"{_MARKS[message.severity]} {message.headline}", _LONGEST_HEADER)
    blocks: list[JsonObject] = [
        {"type": "header", "text": {"type": "plain_text", "text": title, "emoji": False}}
    ]
    if message.text.strip():
        blocks.append({"type": "section", "text": _markdown(escaped(message.text, _LONGEST_SECTION))})
    facts = message.facts()
    shown = facts if len(facts) <= _MOST_FIELDS else facts[: _MOST_FIELDS - 1]
    cells = [
        _markdown(f"*{escaped(name, 60)}*\n{escaped(value, _LONGEST_FIELD) or '–'}") for name, value in shown
    ]
    if len(shown) < len(facts):
        cells.append(_markdown(f"… and {len(facts) - len(shown)} more"))
    blocks.append({"type": "section", "fields": cells})
    if message.link:
        blocks.append({"type": "section", "text": _markdown(_link(message.link))})
    return blocks


def _markdown(text: str) -> JsonObject:
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def _link(link: str | None) -> str:
    """Its characters were checked: it has none that ends it."""
    return f"<{(link or '').replace('&', '&amp;')}|Open>"


def escaped(text: str, longest: int) -> str:
    """Never cut within an escape."""
    characters = [_ESCAPES.get(character, character) for character in text]
    return _joined(characters, longest)


def shortened_to_units(text: str, longest: int) -> str:
    return _joined(list(text), longest)


def _joined(characters: list[str], longest: int) -> str:
    """As much as fits, counted like JavaScript does: it is the largest of the usual ways."""
    if sum(map(_units, characters)) <= longest:
        return "".join(characters)
    note = f"… ({len(characters)} characters)"
    left = longest - len(note)
    kept: list[str] = []
    for character in characters:
        left -= _units(character)
        if left < 0:
            break
        kept.append(character)
    return "".join(kept) + note


def _units(text: str) -> int:
    return sum(2 if ord(character) > 0xFFFF else 1 for character in text)


_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
