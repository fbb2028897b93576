"""The deployed form of a DAG: plain JSON values, with everything implied written out."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from traceplane.model.dag import Dag
from traceplane.registry.spec.fields import VERSION


def dump(dag: Dag) -> dict[str, Any]:
    """The DAG as plain JSON values, everything implied written out; `load` reads it back."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, StrEnum) else value

    return {"version": VERSION, **plain(asdict(dag))}


def load(data: dict[str, Any]) -> Dag:
    """The DAG that `dump` wrote; fields newer than the data take their default."""
    dag: Dag = _revive(Dag, {key: value for key, value in data.items() if key != "version"})
    return dag


_hints = cache(get_type_hints)


def _revive(kind: Any, data: Any) -> Any:
    """Converts JSON values to the dataclass, tuple or enum of the annotation `kind`."""
    if hasattr(kind, "__dataclass_fields__"):
        kinds = _hints(kind)
        return kind(**{name: _revive(kinds[name], value) for name, value in data.items()})
    if isinstance(kind, UnionType):  # of something and None
        return None if data is None else _revive(get_args(kind)[0], data)
    if get_origin(kind) is tuple:
        return tuple(_revive(get_args(kind)[0], item) for item in data)
    return kind(data) if isinstance(kind, type) and issubclass(kind, StrEnum) else data
