"""The values that a field of a request may have, where they are few: an error names them."""

from __future__ import annotations

import re
from typing import Any

from msgspec import inspect


def allowed_values(kind: Any, place: str) -> list[str]:
    """Of the field `place`, such as `events[0].kind`, in a request of this type; empty if any value may do."""
    kinds = _alternatives(inspect.type_info(kind))
    for name in re.split(r"[.[]", place):
        kinds = [one for kind in kinds for below in _below(kind, name) for one in _alternatives(below)]
    return [str(value) for kind in kinds if isinstance(kind, inspect.LiteralType) for value in kind.values]


def _alternatives(kind: inspect.Type) -> list[inspect.Type]:
    match kind:
        case inspect.Metadata():
            return _alternatives(kind.type)
        case inspect.UnionType():
            return [one for member in kind.types for one in _alternatives(member)]
    return [kind]


def _below(kind: inspect.Type, name: str) -> list[inspect.Type]:
    """The type of a field, or of an item."""
    match kind:
        case inspect.StructType():
            return [field.type for field in kind.fields if field.encode_name == name]
        case inspect.ListType() | inspect.VarTupleType():
            return [kind.item_type]
        case inspect.DictType():
            return [kind.value_type]
    return []
