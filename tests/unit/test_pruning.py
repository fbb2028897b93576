"""A file is skipped only if it certainly holds no matching row."""

from __future__ import annotations

from typing import Any

import pytest

from traceplane.model.committed_file import CommittedFile, StoredBounds
from traceplane.model.comparisons import may_hold

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


@pytest.mark.parametrize(
    ("statistics", "where"),
    [
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
    ],
)
def test_a_file_that_cannot_hold_the_value_is_left_out(
    statistics: dict[str, Any], where: dict[str, Any]
) -> None:
    assert not may_hold(file(**statistics), where, TYPES)


@pytest.mark.parametrize(
    ("statistics", "where"),
    [
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
    ],
)
def test_a_file_that_may_hold_the_value_stays(statistics: dict[str, Any], where: dict[str, Any]) -> None:
    assert may_hold(file(**statistics), where, TYPES)


def test_a_file_without_statistics_stays() -> None:
    assert may_hold({"path": "p", "rows": 1, "bytes": 1}, {"n": 1}, TYPES)
    assert may_hold({"path": "p", "rows": 1, "bytes": 1, "statistics": None}, {"n": 1}, TYPES)
