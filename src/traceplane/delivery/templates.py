"""Placeholders in texts and in JSON documents.

`{ticker}` stands for a column of the subject, `{title}` for a part of the message, `{{` for a brace. A document is
filled value by value: what a column holds can become a text in it, and nothing else. A text that is only a placeholder
becomes the value itself, so `"{count}"` is a number in the result and `"{subject}"` an object. Values are not looked
at again: a column that holds `{title}` or `${secret:NAME}` stays that text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from traceplane.delivery.secret_values import SecretValues
from traceplane.errors import InvalidInput
from traceplane.model.json_object import JsonObject
from traceplane.model.message import (
    LONGEST_TEXT,
    LONGEST_TITLE,
    MOST_VALUES,
    Message,
    Value,
    as_json,
    as_text,
    cleaned,
    short_values,
)
from traceplane.model.near_names import closest
from traceplane.secrets.references import SecretName, parse_name

Document = JsonObject | list[Any]
Filler = Value | dict[str, Value]

LONGEST_TEMPLATE, DEEPEST_DOCUMENT, MOST_PARTS = 20_000, 20, 1_000
BEFORE_WORDING = frozenset({"alert", "count", "event_time", "fields", "kind", "link", "severity", "subject"})
"""What titles and texts are made from."""
OF_MESSAGES = BEFORE_WORDING | {"incident", "key", "text", "title"}
"""What the bodies of webhooks are made from."""
_OF_SUBJECT, _OF_FIELDS = "subject.", "fields."
_SPECIAL = re.compile(r"\{\{|\}\}|\$\{secret:(?P<secret>[^{}]*)\}|\{(?P<name>[^{}]*)\}|[{}]")


@dataclass(frozen=True, slots=True)
class Placeholder:
    name: str


Piece = str | Placeholder | SecretName


def known_names(
    columns: Collection[str], fields: Collection[str] = (), *, fixed: Collection[str] = OF_MESSAGES
) -> frozenset[str]:
    """A column that is named like a part of the message is `{subject.NAME}`."""
    of_subject = (_OF_SUBJECT + column for column in columns)
    return frozenset({*fixed, *columns, *of_subject, *(_OF_FIELDS + name for name in fields)})


def fillers_of(message: Message) -> dict[str, Filler]:
    """By the names that stand for them."""
    fixed: dict[str, Filler] = {
        "alert": message.alert,
        "count": message.count,
        "event_time": message.event_time,
        "fields": dict(message.fields),
        "incident": message.incident,
        "key": message.key,
        "kind": str(message.kind),
        "link": message.link,
        "severity": str(message.severity),
        "subject": dict(message.subject),
        "text": message.text,
        "title": message.title,
    }
    of_subject = {_OF_SUBJECT + name: value for name, value in message.subject.items()}
    of_fields = {_OF_FIELDS + name: value for name, value in message.fields.items()}
    return {**message.subject, **of_subject, **of_fields, **fixed}


@dataclass(frozen=True, slots=True)
class TextTemplate:
    """Of a title or a text."""

    pieces: tuple[Piece, ...]

    @classmethod
    def parse(cls, text: str, names: Collection[str]) -> TextTemplate:
        """Raises InvalidInput."""
        pieces = _parsed(text, names)
        for piece in pieces:
            if isinstance(piece, SecretName):
                raise InvalidInput(
                    "delivery.secret_in_text",
                    "a title or a text cannot contain a secret: everybody who receives it would read it",
                    value=f"${{secret:{piece}}}",
                    next_step="remove it",
                )
        return cls(pieces)

    @property
    def placeholders(self) -> int:
        return sum(isinstance(piece, Placeholder) for piece in self.pieces)

    def filled(self, fillers: Mapping[str, Filler], longest: int = LONGEST_TEXT) -> str:
        text = _joined(self.pieces, fillers, None, longest)
        return text if len(text) <= longest else text[: longest - 1] + "…"


def worded(
    message: Message,
    title: TextTemplate,
    text: TextTemplate | None = None,
    *,
    longest_text: int = LONGEST_TEXT,
) -> Message:
    """The message with its title and text, all of it bounded. Values are cut before anything is filled."""
    short = replace(message, subject=short_values(message.subject), fields=short_values(message.fields))
    fillers = fillers_of(short)
    return replace(
        short,
        title=title.filled(fillers, LONGEST_TITLE),
        text="" if text is None else text.filled(fillers, longest_text),
    ).bounded()


def check_document(document: Document, names: Collection[str]) -> None:
    """Raises InvalidInput, for a document that `filled_document` could not fill."""
    size = 0
    for text in _texts(document):
        size += len(text)
        if size > LONGEST_TEMPLATE:
            raise _bad(text, f"the document has more than {LONGEST_TEMPLATE} characters", "shorten it")
        _parsed(text, names)


def filled_document(
    document: Document, fillers: Mapping[str, Filler], secrets: SecretValues, longest: int
) -> Document:
    """Raises InvalidInput once its values have more characters than `longest`, rather than fill all of it."""
    room = longest

    def fill(text: str) -> Any:
        nonlocal room
        value = _value(_parsed(text, fillers), fillers, secrets, room)
        room -= sum(len(str(v)) for v in value.values()) if isinstance(value, dict) else len(str(value))
        if room < 0:
            raise too_large(longest)
        return value

    return _mapped(document, fill)  # type: ignore[no-any-return]


def too_large(longest: int) -> InvalidInput:
    return InvalidInput(
        "delivery.too_large",
        f"the body of the message has more than {longest} bytes",
        next_step="use fewer placeholders in the channel's body",
    )


def _parsed(text: str, names: Collection[str]) -> tuple[Piece, ...]:
    if len(text) > LONGEST_TEMPLATE:
        raise _bad(text, f"it has more than {LONGEST_TEMPLATE} characters", "shorten it")
    if cleaned(text) != text.replace("\r\n", "\n"):
        raise _bad(ascii(text), "it has control characters", "remove them")
    pieces: list[Piece] = []
    end = 0
    for match in _SPECIAL.finditer(text):
        pieces.append(text[end : match.start()])
        pieces.append(_piece(match, names))
        end = match.end()
    pieces.append(text[end:])
    return tuple(piece for piece in pieces if piece != "")


def _piece(match: re.Match[str], names: Collection[str]) -> Piece:
    if match[0] in ("{{", "}}"):
        return match[0][0]
    if match["secret"] is not None:
        secret = parse_name(match["secret"])
        if secret is None:
            raise InvalidInput(
                "delivery.bad_reference",
                "this refers to no secret",
                value=match[0][:100],
                next_step="write ${secret:NAME}; a name is a letter, then letters, digits, _, . and -",
            )
        return secret
    if match["name"] is None:
        raise _bad(match[0], "a brace belongs to no placeholder", "write {{ or }} for a brace itself")
    if match["name"] not in names:
        raise InvalidInput(
            "delivery.unknown_placeholder",
            f"there is no placeholder {match[0][:100]}",
            value=match[0][:100],
            next_step=_suggested(match["name"], names),
        )
    return Placeholder(match["name"])


def _suggested(name: str, names: Collection[str]) -> str:
    """A column is often written without the `fields.` that it needs, or with one that it does not need."""
    by_last_part = {known.rpartition(".")[2]: known for known in sorted(names, key=len, reverse=True)}
    last_part = closest(name.rpartition(".")[2], by_last_part)
    meant = by_last_part[last_part] if last_part is not None else closest(name, names)
    if meant is not None:
        return f"did you mean {{{meant}}}?"
    return f"one of: {', '.join(f'{{{known}}}' for known in sorted(names)[:20])}; {{{{ stands for a brace"


def _value(
    pieces: tuple[Piece, ...], fillers: Mapping[str, Filler], secrets: SecretValues, longest: int
) -> Any:
    match pieces:
        case (Placeholder(name),):
            filler = fillers[name]
            if isinstance(filler, dict):
                return {key: as_json(value) for key, value in filler.items()}
            return as_json(filler)
        case _:
            return _joined(pieces, fillers, secrets, longest)


def _joined(
    pieces: tuple[Piece, ...], fillers: Mapping[str, Filler], secrets: SecretValues | None, longest: int
) -> str:
    """Up to the piece with which it is longer than `longest`: a few placeholders could make gigabytes otherwise."""
    texts: list[str] = []
    length = 0
    for piece in pieces:
        texts.append(_text(piece, fillers, secrets))
        length += len(texts[-1])
        if length > longest:
            break
    return "".join(texts)


def _text(piece: Piece, fillers: Mapping[str, Filler], secrets: SecretValues | None) -> str:
    match piece:
        case str():
            return piece
        case SecretName():
            assert secrets is not None  # those of texts are refused when they are parsed
            return secrets[piece]
        case Placeholder(name):
            filler = fillers[name]
            if isinstance(filler, dict):
                items = itertools.islice(filler.items(), MOST_VALUES)
                return ", ".join(f"{key}: {as_text(value)}" for key, value in items)
            return as_text(filler)


def _mapped(part: Any, fill: Callable[[str], Any]) -> Any:
    match part:
        case str():
            return fill(part)
        case dict():
            return {key: _mapped(value, fill) for key, value in part.items()}
        case list():
            return [_mapped(value, fill) for value in part]
        case _:
            return part


def _texts(document: Document) -> Iterator[str]:
    """The texts among the values; refuses what is too deep or too large, and keys with placeholders."""
    parts: list[tuple[Any, int]] = [(document, 0)]
    seen = 0
    while parts:
        part, depth = parts.pop()
        seen += 1
        if depth > DEEPEST_DOCUMENT or seen > MOST_PARTS:
            limits = f"{DEEPEST_DOCUMENT} levels or {MOST_PARTS} values"
            raise _bad("", f"the document has more than {limits}", "simplify it")
        match part:
            case str():
                yield part
            case dict():
                for key in part:
                    if not isinstance(key, str) or "{" in key or cleaned(key) != key:
                        raise _bad(
                            str(key), "a key of a document must be plain text", "use placeholders in values"
                        )
                parts += ((value, depth + 1) for value in part.values())
            case list():
                parts += ((value, depth + 1) for value in part)
            case None | bool() | int() | float():
                pass
            case _:
                raise _bad(
                    str(part), "the document has a value that JSON does not have", "write it as a text"
                )


def _bad(text: str, message: str, next_step: str) -> InvalidInput:
    return InvalidInput("delivery.bad_template", message, value=text[:100] or None, next_step=next_step)
