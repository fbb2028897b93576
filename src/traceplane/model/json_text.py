"""Values of a JSON text, exactly as written."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from typing import Any, NoReturn


def parsed(text: str) -> Any:
    """Of a JSON text, with all digits of its numbers and without constants that JSON does not have; raises
    ValueError."""
    try:
        return _JSON.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it is not JSON: {name} is no JSON value")


def _number(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:  # its exponent has 19 digits or more
        raise ValueError("a number has an exponent that is too large") from None


_JSON = json.JSONDecoder(parse_float=_number, parse_constant=_refuse_constant)
