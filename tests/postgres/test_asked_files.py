"""Of a commit's files, the database gives those that can hold what is asked. A file is left out only if it certainly
holds no matching row."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from traceplane.model import pruning
from traceplane.model.committed_file import CommittedFile, StoredBounds
from traceplane.model.comparisons import asked_columns
from traceplane.model.pruning import AskedColumn
from traceplane.postgres.database import Database

TYPES = {
    "n": "int64",
    "x": "double",
    "r": "float",
    "s": "string",
    "b": "bool",
    "d": "date32[day]",
    "t": "timestamp[us, tz=UTC]",
    "m": "decimal128(9, 2)",
}


def file(rows: int = 10, **statistics: StoredBounds) -> CommittedFile:
    return {"path": "p", "rows": rows, "bytes": 1, "statistics": statistics}


async def stay(database: Database, files: list[Any], asked: list[list[AskedColumn]]) -> list[bool]:
    """For each file, whether it can hold what is asked of it."""
    async with database.autocommit() as tx:
        rows = await tx.rows(
            "select coalesce(jsonb_path_exists(jsonb_build_array(f), a::jsonpath), f->'rows' <> '0') as stays"
            " from rows from (jsonb_array_elements($1), unnest($2::text[])) as r (f, a)",
            files,
            [pruning.asked(columns) for columns in asked],
        )
    return [row["stays"] for row in rows]


LEFT_OUT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"n": {"min": 3, "max": 7}}, {"n": 2}),
    ({"n": {"min": 3, "max": 7}}, {"n": 8}),
    ({"n": {"min": 3}}, {"n": 2}),
    ({"x": {"min": 0.5, "max": 0.75}}, {"x": 1}),
    ({"s": {"min": "b", "max": "d"}}, {"s": "a"}),
    ({"s": {"min": "b", "max": "d"}}, {"s": "é"}),
    ({"b": {"min": False, "max": False}}, {"b": True}),
    ({"n": {"null_count": 10}}, {"n": 1}),
    ({"d": {"null_count": 10}}, {"d": "2026-01-01"}),
    ({"n": {"min": 3, "max": 7}}, {"n": [1, 2, 8]}),
    ({"n": {"min": 3, "max": 7}}, {"n": {"at_least": 8, "below": 10}}),
    ({"x": {"min": 3.0, "max": 7.0}}, {"x": {"above": 8, "at_most": 9}}),
    ({"s": {"min": "b", "max": "d"}}, {"s": {"below": "a"}}),
    ({"t": {"min": "2026-01-02T00:00:00+00:00"}}, {"t": {"below": "2026-01-02T00:59:00+01:00"}}),
    ({"n": {"min": 3, "max": 7}, "s": {"min": "a", "max": "z"}}, {"s": "q", "n": 9}),
]
STAY: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"n": 1}),
    ({"n": {}}, {"n": 1}),
    ({"n": {"min": 3, "max": 7}}, {}),
    ({"n": {"min": 3, "max": 7}}, {"n": 3}),
    ({"n": {"min": 3, "max": 7}}, {"n": 7}),
    ({"n": {"min": 3, "max": 7}}, {"m": 1}),
    ({"n": {"min": 3, "max": 7}}, {"n": None}),
    ({"n": {"min": 3, "max": 7}}, {"n": "1"}),
    ({"n": {"min": 3, "max": 7}}, {"n": True}),
    ({"n": {"min": 3, "max": 7}}, {"n": [1, 5]}),
    ({"n": {"min": 3, "max": 7}}, {"n": {"at_least": 7}}),
    ({"n": {"min": 3, "max": 7}}, {"n": {"above": 2, "below": 9}}),
    ({"x": {"min": 3.0, "max": 7.0}}, {"x": {"above": 9}}),  # it might have NaN
    ({"t": {"min": "2026-01-02T00:00:00+00:00"}}, {"t": {"below": "2026-01-02T01:00:00+01:00"}}),
    ({"m": {"min": 3.0, "max": 7.0}}, {"m": {"above": 9}}),
    ({"n": {"min": "3", "max": "7"}}, {"n": 1}),
    ({"n": {"null_count": 9}}, {"n": 1}),
    ({"r": {"min": 0.10000000149011612}}, {"r": 0.1}),
    ({"d": {"min": "2026-01-02T00:00:00"}}, {"d": "2026-01-02"}),
    ({"unknown": {"min": 3, "max": 7}}, {"unknown": 1}),
    ({"n": {"max": 7}}, {"n": 7.5}),  # its reader refuses it
    ({"x": {"min": 2.0**53, "max": 2.0**53}}, {"x": 2**53 + 1}),
]


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.connect(database_url, connections=1)
    yield opened
    await opened.close()


async def test_a_file_is_left_out_if_it_cannot_hold_the_value(database: Database) -> None:
    for cases, expected in ((LEFT_OUT, False), (STAY, True)):
        files = [file(**statistics) for statistics, _ in cases]
        asked = [asked_columns(where, TYPES) for _, where in cases]
        for case, stays in zip(cases, await stay(database, files, asked), strict=True):
            assert stays == expected, case


async def test_files_without_statistics_stay_and_those_without_rows_do_not(database: Database) -> None:
    asked = asked_columns({"n": 1}, TYPES)
    bare = {"path": "p", "rows": 1, "bytes": 1}
    assert await stay(database, [bare, {**bare, "statistics": None}], [asked, asked]) == [True, True]
    assert await stay(database, [{**bare, "rows": 0}], [asked]) == [False]


def value(drawn: random.Random, type_: str) -> Any:
    """One of a few, so that bounds are met exactly."""
    match type_:
        case "int64":
            return drawn.choice([-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1])
        case "double":
            return drawn.choice([-1e300, -0.0, 0.0, 0.1, 1.0, 1.5, 1e22, 1e300, 2.0**53])
        case "string":
            return drawn.choice(
                ["", "A", "Z", "a", "a b", "a\nb", "ab", "é", "z", "\U0001f600", "\uffff", "2026-01-01"]
            )
        case "bool":
            return drawn.choice([False, True])
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(
        microseconds=drawn.choice([-1, 0, 1, 500_000, 86_400_000_000])
    )
    if type_.startswith("date"):
        return moment.date().isoformat()
    return (moment if "tz" in type_ else moment.replace(tzinfo=None)).isoformat()


async def test_the_database_decides_as_queries_do(database: Database) -> None:
    drawn = random.Random(7)
    cases: list[tuple[str, StoredBounds, list[Any]]] = []
    for type_ in (
        "int64",
        "double",
        "string",
        "bool",
        "date32[day]",
        "timestamp[us]",
        "timestamp[us, tz=UTC]",
        "float",
    ):
        for _ in range(300):
            ends = [value(drawn, type_) for _ in range(2)]
            known: StoredBounds = {"null_count": drawn.choice([0, 10, None])}
            if drawn.random() < 0.9:
                known["min"], known["max"] = min(ends), max(ends)
            spans = [
                tuple(drawn.choice([None, value(drawn, type_)]) for _ in range(2))
                for _ in range(drawn.choice([1, 1, 2]))
            ]
            cases.append((type_, known, spans))
    stays = await stay(
        database,
        [file(c=known) for _, known, _ in cases],
        [[AskedColumn("c", type_, tuple(spans))] for type_, _, spans in cases],
    )
    for (type_, known, spans), stayed in zip(cases, stays, strict=True):
        bounds = pruning.bounds(known, type_, 10)
        assert stayed == bool(pruning.narrowed((0,), [bounds], spans, type_)), (type_, known, spans)
    assert 0.2 < sum(stays) / len(stays) < 0.9


async def test_the_end_of_a_period_is_not_part_of_it(database: Database) -> None:
    day = "2026-01-02T00:00:00"
    known: StoredBounds = {"min": day, "max": "2026-01-02T12:00:00"}
    for until, stays in ((day, False), ("2026-01-02T00:00:00.000001", True)):
        asked = AskedColumn("c", "timestamp[us]", (("2026-01-01T00:00:00", until),), before=True)
        assert await stay(database, [file(c=known)], [[asked]]) == [stays]
