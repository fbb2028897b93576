"""JSON and form bodies as text and values, and JSON pointers (RFC 6901) into them.

A form becomes a JSON object of texts, so that whoever reads a delivery later has one form to read. Numbers keep all
their digits: two long ids that differ in the last digit are two ids.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from traceplane.model.json_text import parsed

FORM = "application/x-www-form-urlencoded"
_MOST_FIELDS = 1000
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)*")
_INDEX = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class NotABody(ValueError):
    """The bytes are not a body of their content type."""


@dataclass(frozen=True, slots=True)
class Body:
    text: str
    """JSON."""
    value: Any


def is_form(content_type: str) -> bool:
    return _media_type(content_type) == FORM


def is_json(content_type: str) -> bool:
    kind = _media_type(content_type)
    return kind == "application/json" or kind.endswith("+json")


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def parse(raw: bytes, *, form: bool) -> Body:
    """Raises `NotABody`."""
    try:
        text = raw.decode()
        if form:
            value = _form(text)
            return Body(json.dumps(value, ensure_ascii=False), value)
        return Body(text, value_of(text))
    except UnicodeDecodeError as error:
        raise NotABody(f"it is not UTF-8: {error.reason} at byte {error.start}") from None


def value_of(text: str) -> Any:
    """Of a JSON text, without constants that JSON does not have; raises `NotABody`."""
    try:
        return parsed(text)
    except ValueError as error:
        raise NotABody(str(error)) from None


def _form(text: str) -> dict[str, str | list[str]]:
    try:
        fields = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except UnicodeDecodeError:
        raise NotABody("a field of the form is not UTF-8") from None
    except ValueError:
        raise NotABody(f"the form has more than {_MOST_FIELDS} fields") from None
    return {name: values[0] if len(values) == 1 else values for name, values in fields.items()}


def pointer_problem(pointer: str) -> str | None:
    if _POINTER.fullmatch(pointer):
        return None
    return "a JSON pointer is empty, or begins with / and has ~ only as ~0 and ~1"


def find(value: Any, pointer: str) -> Any:
    """What a pointer refers to; raises LookupError if there is nothing."""
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        match value:
            case dict():
                value = value[name]
            case list() if _INDEX.fullmatch(name):
                value = value[int(name)]
            case _:
                raise LookupError(pointer)
    return value
