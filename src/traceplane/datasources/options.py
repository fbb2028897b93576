"""Options of a reader: text, checked and converted like the config of an operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec
import pyarrow as pa

from traceplane.errors import InvalidInput

Chosen = TypeVar("Chosen", bound=msgspec.Struct)
_WITH_COMMAS = ("columns", "endpoints")


def read(options: Mapping[str, str], kind: type[Chosen], aliases: Mapping[str, str]) -> Chosen:
    named = {aliases.get(name.lower(), name.lower()): value for name, value in options.items()}
    values: dict[str, object] = {
        name: [one.strip() for one in value.split(",") if one.strip()] if name in _WITH_COMMAS else value
        for name, value in named.items()
    }
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        known = ", ".join(sorted({*(field.name for field in msgspec.structs.fields(kind)), *aliases}))
        raise InvalidInput(
            "datasource.bad_option",
            f"an option cannot be used: {error}",
            next_step=f"the options are {known}",
        ) from None


def selected(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """The named columns, or all."""
    if unknown := [name for name in columns if name not in schema.names]:
        raise InvalidInput(
            "datasource.bad_option",
            "there is no such column",
            value=unknown[0],
            next_step=f"the columns are {', '.join(schema.names)}",
        )
    return pa.schema([schema.field(name) for name in columns]) if columns else schema
