"""A task for tests of operators is what an operator gets: see docs/guides/testing.md, whose examples run too."""

from __future__ import annotations

import importlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from traceplane.errors import InvalidInput
from traceplane.sdk import Cursor, Execution, OperatorError, Partition
from traceplane.testing import operator_task


def test_a_test_task_reads_its_inputs_and_shows_its_outputs_and_events(tmp_path: Path) -> None:
    run = Execution("e", "p", "momentum", "ada", {"size": 10})
    task = operator_task(
        tmp_path,
        scope=Partition.of_range(0, 6),
        inputs={"shop.sales": {"amount": [1, 2]}, "refunds": []},
        outputs=["large", "small"],
        config={"least": 2},
        execution=run,
    )
    assert (task.scope, task.config, task.execution) == (Partition("0-6", 0, 6), {"least": 2}, run)
    assert task.read("shop.sales").to_pylist() == [{"amount": 1}, {"amount": 2}]
    assert task.read("refunds").num_rows == 0
    task.write_returned({"large": [{"amount": 2}], "small": [{"amount": 1}]})
    task.emit("small", scope=7)
    assert parquet.read_table(task.outputs["small"].folder).to_pylist() == [{"amount": 1}]
    assert [event["scope"] for event in task.emitted] == [{"cursor": 7}]
    with pytest.raises(OperatorError, match=r"the job declares refunds, shop\.sales"):
        task.read("sales")


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("2026-11-16", Partition("2026-11-16", 20_773, 20_773)),
        ("2026-11-16T05", Partition("2026-11-16T05", 20_773 * 24 + 5, 20_773 * 24 + 5)),
        ("2026-11", Partition("2026-11", 56 * 12 + 10, 56 * 12 + 10)),
        ("3", Cursor(3)),
        ("0-6", Partition.of_range(0, 6)),
        ("eu", Partition("eu", 0, 0)),
    ],
)
def test_scopes_are_written_as_everywhere(tmp_path: Path, text: str, scope: Any) -> None:
    assert operator_task(tmp_path, scope=text).scope == scope


@pytest.mark.parametrize("text", ["", "6-0", "a b", "2026-13-01"])
def test_what_names_no_scope_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match="the scope of a test task must be"):
        operator_task(tmp_path, scope=text)


def test_two_test_tasks_in_one_folder_do_not_interfere(tmp_path: Path) -> None:
    tasks = [operator_task(tmp_path, scope=Cursor(n)) for n in range(2)]
    for n, task in enumerate(tasks):
        task.write("output", [{"n": n}])
    assert [parquet.read_table(t.outputs["output"].folder)["n"].to_pylist() for t in tasks] == [[0], [1]]


@pytest.mark.parametrize(
    "rows",
    [
        [],
        (),
        {},
        {"output": []},
        pa.table({}),
        importlib.import_module("pandas").DataFrame(),
        pa.table({}).to_batches(),
    ],
)
def test_rows_that_are_none_and_have_no_columns_leave_no_file(tmp_path: Path, rows: Any) -> None:
    task = operator_task(tmp_path, scope=Cursor(1))
    task.write_returned(rows)
    assert task.written == {}
    assert list(task.outputs["output"].folder.iterdir()) == []


def test_a_file_without_rows_and_columns_is_removed(tmp_path: Path) -> None:
    task = operator_task(tmp_path, scope=Cursor(1))
    with task.open_writer("output", pa.schema([])):
        pass
    assert task.written == {}
    assert list(task.outputs["output"].folder.iterdir()) == []


def test_rows_may_follow_a_write_without_any(tmp_path: Path) -> None:
    task = operator_task(tmp_path, scope=Cursor(1))
    task.write("output", [])
    task.write("output", [{"n": 1}])
    task.write("output", [])
    assert [file.rows for file in task.written["output"].files] == [1]


@pytest.mark.parametrize("scope", [3, "x y", Cursor("x"), Partition("w", 0.5, 2)])  # type: ignore[arg-type]
def test_a_test_task_refuses_what_is_not_a_scope(tmp_path: Path, scope: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        operator_task(tmp_path, scope=scope)
    assert refused.value.code == "testing.bad_task"


def test_a_test_task_needs_an_existing_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="folder"):
        operator_task(tmp_path / "missing")


def test_nulls_are_counted_in_every_plain_column(tmp_path: Path) -> None:
    """Also if it has no bounds: a column of nulls alone, or of values that JSON does not have."""
    task = operator_task(tmp_path, scope=Cursor(1))
    schema = pa.schema([("none", pa.int64()), ("price", pa.decimal128(2, 1)), ("n", pa.int64())])
    some = pa.table([[1], [Decimal("1.5")], [7]], schema=schema)
    none = pa.table([[None], [None], [None]], schema=schema)
    task.write("output", pa.concat_tables([none, some]).set_column(0, schema[0], pa.nulls(2, pa.int64())))
    with task.open_writer("output", schema) as write:
        for table in (none, schema.empty_table(), some):
            write(table)
    facts = [
        {name: (f.min, f.max, f.null_count) for name, f in file.statistics.items()}
        for file in task.written["output"].files
    ]
    assert facts == [
        {"none": (None, None, 2), "price": (None, None, 1), "n": (7, 7, 1)},
        {"none": (1, 1, 1), "price": (None, None, 1), "n": (7, 7, 1)},
    ]
