"""The operator `file_rows`: files become rows with the declared columns, exactly, or not at all."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from traceplane.columnar.arrow_types import schema_of
from traceplane.file_sources import rows
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.task_payload import DeclaredOutput, OperatorInput, TaskPayload
from traceplane.sdk import OperatorError, OperatorTask

COLUMNS = (
    SchemaColumn("id", "int64", False),
    SchemaColumn("amount", "decimal128(10, 2)", True),
    SchemaColumn("customer", "string", True),
)


def read(
    tmp_path: Path, format: str, *contents: bytes, name: str = "f", **config: Any
) -> list[dict[str, Any]]:
    (tmp_path / "out").mkdir(exist_ok=True)
    attached = {}
    for number, content in enumerate(contents):
        local = tmp_path / f"{number}-{name}"
        local.write_bytes(content)
        attached[f"/data/{number}-{name}"] = str(local)
    unique_key = config.pop("unique_key", ())
    columns = config.pop("columns", COLUMNS)
    task = OperatorTask(
        task_id="t",
        attempt=1,
        payload=TaskPayload(
            config={"format": format, **config},
            unique_key=unique_key,
            inputs=(OperatorInput("files", attached=attached),),
            outputs=(DeclaredOutput("orders", columns=columns),),
        ),
        output_folders={"orders": str(tmp_path / "out")},
        temp_dir=str(tmp_path),
    )
    rows.run(task)
    files = [tmp_path / "out" / file.name for file in task.written["orders"].files]
    found = pa.concat_tables([parquet.read_table(file) for file in files])
    expected = schema_of(columns)
    assert expected is not None
    assert (found.schema.names, found.schema.types) == (expected.names, expected.types)
    return found.to_pylist()


ROWS = [
    {"id": 1, "amount": Decimal("9.50"), "customer": "a"},
    {"id": 2, "amount": None, "customer": None},
]


def test_csv_is_read_by_its_header(tmp_path: Path) -> None:
    assert read(tmp_path, "csv", b"customer,id,amount,more\na,1,9.50,x\n,2,,y\n") == ROWS
    assert read(tmp_path, "csv", b'id;customer\n1;\n2;""\n', delimiter=";") == [
        {"id": 1, "amount": None, "customer": None},
        {"id": 2, "amount": None, "customer": ""},
    ]


def test_files_without_rows_have_none_and_several_files_are_read_in_order(tmp_path: Path) -> None:
    found = read(tmp_path, "csv", b"id\n1\n", b"", b"id\n", b"id,customer\n2,x\n")
    assert [row["id"] for row in found] == [1, 2]


def test_json_lines_keep_every_digit(tmp_path: Path) -> None:
    lines = "\n".join(
        ['{"id": 1, "amount": 9.50, "customer": "a"}', "", '{"id": 2}', '{"id": "9007199254740993"}']
    )
    assert [r["id"] for r in read(tmp_path, "json_lines", lines.encode())] == [1, 2, 9007199254740993]
    assert read(tmp_path, "json_lines", lines.encode())[:2] == ROWS


def test_parquet_is_cast_if_no_value_changes(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([1, 2], pa.int32()), "customer": ["a", None], "more": [1, 2]})
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    found = read(tmp_path, "parquet", sink.getvalue().to_pybytes())
    assert [(r["id"], r["amount"], r["customer"]) for r in found] == [(1, None, "a"), (2, None, None)]


def test_compressed_files_are_known_by_their_names(tmp_path: Path) -> None:
    assert read(tmp_path, "csv", gzip.compress(b"id\n7\n"), name="x.csv.gz")[0]["id"] == 7
    assert read(tmp_path, "json_lines", gzip.compress(b'{"id": 7}'), name="x.json.gz")[0]["id"] == 7


def test_append_drops_duplicates_among_all_files(tmp_path: Path) -> None:
    found = read(tmp_path, "csv", b"id,customer\n1,a\n", b"id,customer\n1,b\n2,c\n", unique_key=("id",))
    assert [(row["id"], row["customer"]) for row in found] == [(1, "a"), (2, "c")]


@pytest.mark.parametrize(
    ("format", "content", "code", "words"),
    [
        ("csv", b"id\nx\n", "file.value_unfit", "column 'id'"),
        ("csv", b"id\n1.5\n", "file.value_unfit", "line 2, column 'id': a value does not fit into bigint"),
        ("csv", b"id,amount\n1,1.234\n", "file.value_unfit", "column 'amount'"),
        ("csv", b"customer\na\n", "file.value_unfit", "'id'"),
        ("csv", b"id,customer\n,a\n", "file.value_unfit", "'id'"),
        ("csv", b"id,customer\n1,secret,b\n", "file.unreadable", "line 2: it has 3 values"),
        ("csv", b"ID;Customer\n1;a\n", "file.unreadable", "none of the columns"),
        ("csv", b"ID;Customer\n1;a,b\n", "file.unreadable", "its header is 'ID;Customer'; if ';' separates"),
        ("csv", b"id,amount\n1,2\n\n3,secret\n", "file.value_unfit", "line 4, column 'amount'"),
        ("csv", b'id,customer\n1,"a\nb"\n2,\xff\n', "file.value_unfit", "line 4, column 'customer'"),
        (
            "csv",
            b"id,amount\n" + b"1,1.00\n" * 25_000 + b"2,1.005\n",
            "file.value_unfit",
            "line 25002, column 'amount'",
        ),
        ("csv", b"id,amount\n1,1.005\n", "file.value_unfit", "decimal(10, 2)"),
        ("csv", b"id,customer\n1,a\n2\n", "file.unreadable", "line 3: it has 1 value, but the header has 2"),
        (
            "json_lines",
            b'{"id": 1}\n{"id": 2, "amount": 1.005}',
            "file.value_unfit",
            "line 2, column 'amount'",
        ),
        ("json_lines", b'{"id": 9223372036854775808}', "file.value_unfit", "line 1, column 'id'"),
        ("csv", b"id,id\n1,2\n", "file.unreadable", "two columns"),
        ("csv", b"id,customer\n1,\xff\n", "file.value_unfit", "column 'customer'"),
        ("json_lines", b'{"id": 1}\n{"id": ', "file.unreadable", "line 2"),
        ("json_lines", b"[1]", "file.unreadable", "line 1"),
        ("json_lines", b'{"id": 1.5}', "file.value_unfit", "line 1, column 'id'"),
        ("json_lines", b'{"id": NaN}', "file.unreadable", "NaN"),
        ("json_lines", b'{"id": 1, "amount": 123456789.12}', "file.value_unfit", "amount"),
        ("json_lines", b'{"x": 1}', "file.value_unfit", "'id'"),
        ("json_lines", b"\xff\xfe", "file.unreadable", "utf-8"),
        ("parquet", b"id,customer\n", "file.unreadable", "arquet"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(
    tmp_path: Path, format: str, content: bytes, code: str, words: str
) -> None:
    with pytest.raises(OperatorError) as refused:
        read(tmp_path, format, content)
    assert refused.value.code == code
    assert "/data/0-f" in str(refused.value)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)
    assert list((tmp_path / "out").iterdir()) == []


def test_types_are_read_from_text(tmp_path: Path) -> None:
    columns = tuple(
        SchemaColumn(name, type_, True)
        for name, type_ in [
            ("a", "bool"),
            ("b", "double"),
            ("c", "date32[day]"),
            ("d", "timestamp[us, tz=UTC]"),
            ("e", "timestamp[us]"),
        ]
    )
    csv = b"a,b,c,d,e\ntrue,1.5,2026-11-16,2026-11-16T05:00:00Z,2026-11-16T05:00:00\n"
    line = {"a": True, "b": 1.5, "c": "2026-11-16", "d": "2026-11-16T05:00:00Z", "e": "2026-11-16T05:00:00"}
    (one,) = read(tmp_path, "csv", csv, columns=columns)
    (other,) = read(tmp_path, "json_lines", json.dumps(line).encode(), columns=columns)
    assert one == other
