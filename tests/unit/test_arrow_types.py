"""Rows as declared: cast where no value is lost, refused by the first that would be."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from traceplane.columnar.arrow_types import DoesNotFit, as_declared, cast, type_of
from traceplane.model import column_types
from traceplane.model.column_types import UnknownType
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.task_payload import TaskPayload
from traceplane.operators import catalog
from traceplane.sdk import OperatorError, OperatorTask
from traceplane.worker.report import NOT_WORTH_A_RETRY

ERRORS = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


def declared(rows: Any, type_: str) -> pa.ChunkedArray:
    table = pa.table({"a": rows})
    return cast(table, as_declared(table.schema, [SchemaColumn("a", type_)]), 10).column("a")


@pytest.mark.parametrize(
    ("rows", "type_", "values"),
    [
        ([1, 2, None], "int32", [1, 2, None]),
        ([1, -128], "int8", [1, -128]),
        (pa.array([2**63 - 1], pa.uint64()), "int64", [2**63 - 1]),
        ([1, -5], "decimal128(5, 2)", [Decimal("1.00"), Decimal("-5.00")]),
        ([1], "decimal128(38, 30)", [Decimal(1)]),
        ([Decimal("1.50")], "decimal128(10, 1)", [Decimal("1.5")]),
        ([Decimal("2.00")], "int32", [2]),
        ([1, 2**53], "double", [1.0, 2.0**53]),
        ([3.0, None], "int64", [3, None]),
        (pa.array([1.5], pa.float32()), "double", [1.5]),
        (pa.array(["x", "y", "x"]).dictionary_encode(), "string", ["x", "y", "x"]),
        (pa.array(["x"], pa.large_string()), "string", ["x"]),
        (pa.array([b"x"], pa.binary(1)), "binary", [b"x"]),
        (pa.array([None, None]), "date32[day]", [None, None]),
    ],
)
def test_values_that_fit_are_cast(rows: Any, type_: str, values: list[Any]) -> None:
    found = declared(rows, type_)
    assert (found.type, found.to_pylist()) == (type_of(type_), values)


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_timestamps_are_microseconds_of_the_same_moment(unit: str, zone: str | None) -> None:
    moments = pa.array([10**9], pa.timestamp(unit, zone))
    wanted = "timestamp[us, tz=UTC]" if zone else "timestamp[us]"
    assert declared(moments, wanted).cast(pa.timestamp(unit)).cast("int64").to_pylist() == [10**9]


@pytest.mark.parametrize(
    ("rows", "type_", "told"),
    [
        ([1, 2, 2**31, 2**40], "int32", "row 13: '2147483648'"),
        ([1, 100_000], "decimal128(5, 2)", "row 12: '100000'"),
        ([Decimal("1.5"), Decimal("1.55")], "decimal128(9, 1)", "row 12: '1.55'"),
        ([1, 2**53 + 1], "double", "row 12: '9007199254740993'"),
        ([1.0, 2.5], "int32", "row 12: '2.5'"),
        (pa.array([2**64 - 1], pa.uint64()), "int64", "row 11: '18446744073709551615'"),
        (
            pa.array([1000, 2001], pa.timestamp("ns")),
            "timestamp[us]",
            "row 12: '1970-01-01 00:00:00.000002001'",
        ),
    ],
)
def test_the_first_value_that_would_change_is_named_with_its_column_and_row(
    rows: Any, type_: str, told: str
) -> None:
    with pytest.raises(DoesNotFit, match=f"column 'a', {told} does not fit"):
        declared(rows, type_)


@pytest.mark.parametrize(
    ("rows", "type_"), [(["1"], "int32"), ([True], "int64"), ([1.5], "decimal128(5, 2)"), ([1], "string")]
)
def test_a_column_of_another_kind_is_left_to_the_commit(rows: Any, type_: str) -> None:
    assert declared(rows, type_).to_pylist() == list(rows)
    assert declared(rows, type_).type == pa.table({"a": rows}).column("a").type


def task(folder: Path, columns: list[dict[str, Any]], **fields: Any) -> OperatorTask:
    (folder / "out").mkdir(parents=True)
    return OperatorTask(
        task_id="t",
        attempt=1,
        payload=msgspec.convert({"outputs": [{"name": "out", "columns": columns}], **fields}, TaskPayload),
        output_folders={"out": str(folder / "out")},
        temp_dir=str(folder),
    )


def test_an_operator_writes_declared_types_from_plain_rows_and_a_value_that_does_not_fit_is_an_error(
    tmp_path: Path,
) -> None:
    operator = task(tmp_path, [{"name": "n", "type": "int32"}, {"name": "note", "type": "string"}])
    operator.write("out", [{"n": 1, "note": None}])
    operator.write("out", [{"n": 2, "note": "x"}])  # the same columns, though Python's rows look otherwise
    assert [column.type for column in operator.written["out"].columns] == ["int32", "string"]
    with pytest.raises(OperatorError, match=r"output 'out', column 'n', row 2: '3000000000'") as refused:
        operator.write("out", [{"n": 1, "note": "x"}, {"n": 3_000_000_000, "note": "x"}])
    assert refused.value.code == "operator.value_does_not_fit"


WEI = {"name": "wei", "type": "decimal128(38, 0)"}


@pytest.mark.parametrize("rows", [[{"wei": 2**70}, {"wei": None}, {"wei": 1}], {"wei": [2**70, None, 1]}])
def test_whole_numbers_beyond_64_bits_fit_into_a_declared_decimal(tmp_path: Path, rows: Any) -> None:
    operator = task(tmp_path, [WEI])
    operator.write("out", rows)
    assert operator.written["out"].columns[0].type == "decimal128(38, 0)"
    values = parquet.read_table(tmp_path / "out")["wei"].to_pylist()
    assert values == [Decimal(2**70), None, Decimal(1)]


@pytest.mark.parametrize(
    "rows", [[{"a": 1}, {"b": 2}], [{"a": 1, "c": None}, {"b": 2}], [{"a": 1}, {"b": 2, "a": None}]]
)
def test_a_column_of_any_row_is_a_column_and_null_in_the_others(tmp_path: Path, rows: Any) -> None:
    task(tmp_path, []).write("out", rows)
    assert parquet.read_table(tmp_path / "out").to_pydict() == {"a": [1, None], "b": [None, 2]}


def test_a_column_without_a_value_waits_for_the_type_of_its_first_one(tmp_path: Path) -> None:
    operator = task(tmp_path, [])
    operator.write("out", {"n": [1, 2], "note": [None, None]})
    assert [column.name for column in operator.written["out"].columns] == ["n"]
    declared = task(tmp_path / "declared", [{"name": "note", "type": "string"}])
    declared.write("out", {"note": [None]})
    assert declared.written["out"].columns[0].type == "string"


@pytest.mark.parametrize(
    ("rows", "columns", "code", "text"),
    [
        (
            [{"wei": 1}, {"wei": 10**40}, {"wei": 10**50}],
            [WEI],
            "operator.value_does_not_fit",
            f"column 'wei', row 2: '{10**40}' does not fit into decimal128(38, 0), as the dataset declares it",
        ),
        (
            [{"n": None}, {"n": 2**70}],
            [],
            "operator.value_does_not_fit",
            f"column 'n', row 2: '{2**70}' does not fit into int64, unless the dataset declares",
        ),
        (
            [{"m": "a", "n": 1}, {"m": "b", "n": 2}, {"m": "c", "n": "x"}],
            [],
            "operator.value_does_not_fit",
            "column 'n', row 3: 'x' does not fit into int64, the type of the rows before it",
        ),
        (
            {"n": ["x", 1]},
            [],
            "operator.value_does_not_fit",
            "column 'n', row 2: '1' does not fit into string",
        ),
        ([{"n": 1j}], [], "operator.result_invalid", "column 'n', row 1: "),
        ([{"n": 1}, 2], [], "operator.result_invalid", "row 2 is int, not a mapping from column to value"),
        ([2], [], "operator.result_invalid", "row 1 is int, not a mapping from column to value"),
        ({"day": 1}, [], "operator.result_invalid", "column 'day' is int, not a list of values"),
        ({"day": [1], "n": [1, 2]}, [], "operator.result_invalid", "expected length 1 but got length 2"),
        (7, [], "operator.result_invalid", "int cannot be written as rows"),
        ([{"n": None}], [], "operator.result_invalid", "it has only nulls, so no column has a type"),
        ([{}], [], "operator.result_invalid", "row 1 has no columns"),
        ([{}, {"n": 1}], [], "operator.result_invalid", "row 1 has no columns"),
        ([{"": 3}], [], "operator.result_invalid", "the column name '' must have 1 to 512"),
        ({"": [3]}, [], "operator.result_invalid", "the column name '' must have 1 to 512"),
        ([{5: 1}], [], "operator.result_invalid", "the column name 5 is int, not text"),
        ({5: [1]}, [], "operator.result_invalid", "the column name 5 is int, not text"),
    ],
)
def test_an_invalid_row_is_named_with_its_column_and_row(
    tmp_path: Path, rows: Any, columns: list[dict[str, Any]], code: str, text: str
) -> None:
    with pytest.raises(OperatorError, match=re.escape(text)) as refused:
        task(tmp_path, columns).write_returned(rows)
    assert refused.value.code == code
    assert "output 'out'" in str(refused.value)


def test_an_input_without_files_is_an_empty_table_with_the_columns_read(tmp_path: Path) -> None:
    columns = [{"name": "n", "type": "int32"}, {"name": "at", "type": "timestamp[us, tz=UTC]"}]
    operator = task(tmp_path, [], inputs=[{"name": "in", "columns": columns}, {"name": "bare"}])
    assert operator.read("in").schema == pa.schema([("n", pa.int32()), ("at", pa.timestamp("us", "UTC"))])
    assert operator.read("in", ["at"]).column_names == ["at"]
    assert operator.read("bare").column_names == []


@pytest.mark.parametrize(
    ("spark", "arrow"),
    [
        ("BIGINT", "int64"),
        (" decimal( 38 , 0 ) ", "decimal128(38, 0)"),
        ("dec", "decimal128(10, 0)"),
        ("varchar(20)", "string"),
        (
            "array<struct<a: int, b: decimal(3,1) not null>>",
            "list<element: struct<a: int32, b: decimal128(3, 1)>>",
        ),
        ("map<string, array<timestamp_ntz>>", "map<string, list<element: timestamp[us]>>"),
        ("struct<a int, `b c` string>", "struct<a: int32, b c: string>"),
        ("interval day to second", None),
        ("variant", None),
    ],
)
def test_types_are_those_of_spark(spark: str, arrow: str | None) -> None:
    column_types.check(spark)
    assert column_types.arrow_type(spark) == arrow
    assert arrow is None or type_of(arrow) is not None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("bigintt", "bigintt"),
        ("array<bigintt>", "bigintt"),
        ("array<int", "array"),
        ("map<int>", "map"),
        ("struct<>", ">"),
        ("varchar", "varchar"),
        ("decimal(39, 0)", "decimal(39, 0)"),
        ("decimal(3, 4)", "decimal(3, 4)"),
        ("int int", "int"),
        ("int;", ";"),
        ("array<" * 50 + "int", "array"),
    ],
)
def test_a_type_that_spark_lacks_is_named(text: str, word: str) -> None:
    with pytest.raises(UnknownType) as refused:
        column_types.check(text)
    assert refused.value.word == word


def test_the_page_of_errors_names_those_that_are_not_retried() -> None:
    told = ERRORS.read_text().partition("which another attempt cannot heal: ")[2].partition("Such a task")[0]
    specs = [spec for name in catalog.BUILT_IN if (spec := catalog.find(name)) is not None]
    permanent = {error.code for spec in specs for error in spec.errors if not error.retried}
    named = {word for word in told.split("`") if "." in word and " " not in word}
    assert named == NOT_WORTH_A_RETRY | permanent
