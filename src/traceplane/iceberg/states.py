"""Which state of the catalog a caller asks for. It is part of every path (`prefix`), so that all tables that are loaded
from one catalog belong to one moment.

    2026-11-18T11:41:08.123456Z         as of a time
    live                                what is current, at each call
    shop@3                              the datasets of version 3 of the DAG shop; with one of the above, by a comma
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from traceplane.errors import InvalidInput

LIVE = "live"
_VERSION = re.compile(r"([a-z][a-z0-9_-]*)@([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class CatalogState:
    """What `query.datasets.AsOf` is to a query, for all datasets."""

    versions: Mapping[str, int]
    at: datetime | None
    is_live: bool = False
    """Whether the caller asked for what is current at each call."""

    def __str__(self) -> str:
        moment = LIVE if self.at is None else self.at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return ",".join([moment, *(f"{dag}@{number}" for dag, number in sorted(self.versions.items()))])


def state_of(text: str) -> CatalogState:
    """From a prefix, or from what a caller calls the warehouse."""
    versions: dict[str, int] = {}
    at: datetime | None = None
    live = False
    for part in filter(None, text.split(",")):
        if (version := _VERSION.fullmatch(part)) is not None and version[1] not in versions:
            versions[version[1]] = int(version[2])
        elif part == LIVE and at is None:
            live = True
        elif at is None and not live and (time := _time(part)) is not None:
            at = time
        else:
            raise InvalidInput(
                "iceberg.unknown_state",
                "this names no state of the catalog",
                value=text,
                next_step="give a time such as 2026-11-18T12:00:00Z, `live`, DAG@VERSION, or a combination with commas;"
                " nothing for the current state, as of now",
            )
    return CatalogState(versions, at, live)


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
