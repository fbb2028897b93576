"""Values of a JSON text, exactly as written."""

from __future__ import annotations

import json
from decimal import Decimal
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


_JSON = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse_constant)
