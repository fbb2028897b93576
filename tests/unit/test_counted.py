"""Output counts one task, and two tasks."""

from __future__ import annotations

from traceplane.cli.coverage import contents, describe
from traceplane.model.counted import counted
from traceplane.wire.control import CoverageView, DatasetView


def test_one_is_singular_and_everything_else_plural() -> None:
    assert [counted(n, "task") for n in (0, 1, 2)] == ["0 tasks", "1 task", "2 tasks"]
    assert [counted(n, "launch") for n in (1, 2)] == ["1 launch", "2 launches"]
    assert counted(1000, "row", "1,000") == "1,000 rows"


def test_what_a_dataset_holds_is_counted() -> None:
    assert contents(DatasetView("a", 1, 1, 1)) == "1 commit, 1 row, 1 byte"
    assert contents(DatasetView("a", 2, 1, 10, at_most=True)) == "2 commits, up to 1 row, 10 bytes"
    assert contents(DatasetView("a", 0, 0, 0, cursor=4, events=1)) == "1 event, the last at 4"
    held = CoverageView(0, 9, 4, ((1, 1), (3, 3), (5, 5)), dead=1)
    assert describe(held) == ", positions 0-9 except 1, 3, 5 and 1 more gap, 1 scope dead"
