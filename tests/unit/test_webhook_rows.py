"""Bodies of deliveries: JSON and forms, pointers into them, and rows with the declared types, exactly or not at all."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceplane.columnar.json_values import ValueUnfit, as_json, converted
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.task_payload import DeclaredOutput, OperatorInput, TaskPayload
from traceplane.sdk import OperatorError, OperatorTask
from traceplane.webhooks import bodies, rows
from traceplane.webhooks.bodies import NotABody, find, parse, pointer_problem

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)


def places(value: Any, pointer: str = "") -> list[tuple[str, Any]]:
    """Every value inside, with its pointer."""
    found = [(pointer, value)]
    if isinstance(value, dict):
        for name, item in value.items():
            found += places(item, f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += places(item, f"{pointer}/{index}")
    return found


@given(JSON_VALUES)
def test_a_pointer_finds_every_value(value: Any) -> None:
    body = parse(json.dumps(value).encode(), form=False)
    for pointer, wanted in places(value):
        assert pointer_problem(pointer) is None
        assert find(body.value, pointer) == wanted


@given(JSON_VALUES, st.text(max_size=20))
def test_a_pointer_finds_a_value_or_says_that_there_is_none(value: Any, pointer: str) -> None:
    if pointer_problem(pointer) is None:
        try:
            found = find(value, pointer)
        except LookupError:
            return
        assert (pointer, found) in places(value) or any(p == pointer for p, _ in places(value))


@pytest.mark.parametrize("pointer", ["a", "/~", "/~2", "#/a", "/a/~"])
def test_what_is_no_pointer(pointer: str) -> None:
    assert pointer_problem(pointer) is not None


@pytest.mark.parametrize("pointer", ["/a/-1", "/a/01", "/a/2", "/a/-", "/a/x", "/b", "/a/0/c", "/"])
def test_where_there_is_nothing(pointer: str) -> None:
    with pytest.raises(LookupError):
        find({"a": [1, 2]}, pointer)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_body_or_are_not(raw: bytes) -> None:
    for form in (False, True):
        try:
            body = parse(raw, form=form)
        except NotABody:
            continue
        assert bodies.value_of(body.text) == body.value


def test_a_form_is_an_object_of_texts() -> None:
    body = parse(b"a=1&b=&c=x&c=y&d=%C3%BC", form=True)
    assert json.loads(body.text) == body.value == {"a": "1", "b": "", "c": ["x", "y"], "d": "ü"}
    for bad in (b"a=%FF", b"&".join(b"a=1" for _ in range(1001)), b"\xff=1"):
        with pytest.raises(NotABody):
            parse(bad, form=True)


NOON = datetime(2026, 11, 17, 12, tzinfo=UTC)


@pytest.mark.parametrize(("value", "type_", "wanted"), [
    (1, pa.int64(), 1), (Decimal("1.0"), pa.int64(), 1), ("12", pa.int32(), 12), (True, pa.bool_(), True),
    ("true", pa.bool_(), True), (Decimal("0.10"), pa.decimal128(5, 2), Decimal("0.10")), ("x", pa.string(), "x"),
    (12, pa.string(), "12"), ({"a": [Decimal("0.10")]}, pa.string(), '{"a":[0.10]}'), (2, pa.float64(), 2.0),
    ("2026-11-17T12:00:00Z", pa.timestamp("us", "UTC"), NOON), (int(NOON.timestamp()), pa.timestamp("us", "UTC"), NOON),
    ("2026-11-17T13:00:00+01:00", pa.timestamp("us", "UTC"), NOON), ("2026-11-17", pa.date32(), date(2026, 11, 17)),
    ("2026-11-17 12:00", pa.timestamp("us"), NOON.replace(tzinfo=None)), ("aGk=", pa.binary(), b"hi"),
    ([1, "2"], pa.list_(pa.int64()), [1, 2]), ({"a": "1"}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    ({"a": 1, "z": 2}, pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 1, "b": None}),
    (None, pa.int64(), None),
])  # fmt: skip
def test_a_value_becomes_what_its_column_is(value: Any, type_: pa.DataType, wanted: Any) -> None:
    assert converted(value, type_) == wanted
    pa.array([converted(value, type_)], type_)


@pytest.mark.parametrize(("value", "type_"), [
    (Decimal("1.5"), pa.int64()), ("x", pa.int64()), (True, pa.int64()), (1, pa.bool_()), ("1", pa.bool_()),
    ([], pa.bool_()), ({}, pa.int64()), ("NaN", pa.float64()), ("1e400", pa.float64()), ("1e999999", pa.int64()),
    ("17.11.2026", pa.date32()), ("2026-11-17T12:00:00", pa.timestamp("us", "UTC")),
    ("2026-11-17T12:00:00Z", pa.timestamp("us")), (1, pa.timestamp("us")), (10**30, pa.timestamp("us", "UTC")),
    ("%%", pa.binary()), ([1], pa.struct([("a", pa.int64())])), ({}, pa.list_(pa.int64())),
    ([[]], pa.list_(pa.int64())),
])  # fmt: skip
def test_a_value_that_does_not_fit_is_never_bent(value: Any, type_: pa.DataType) -> None:
    with pytest.raises(ValueUnfit) as refused:
        converted(value, type_)
    assert str(value) not in str(refused.value) or len(str(value)) < 3


@given(JSON_VALUES)
def test_a_column_of_text_takes_anything_as_json(value: Any) -> None:
    if value is not None and not isinstance(value, str):
        assert json.loads(converted(value, pa.string())) == value
    assert json.loads(as_json(value)) == value


COLUMNS = (
    SchemaColumn("id", "int64", False),
    SchemaColumn("repository", "string", True),
    SchemaColumn("event", "string", True),
    SchemaColumn("number", "int64", True),
    SchemaColumn("at", "timestamp[us, tz=UTC]", True),
)
CONFIG = {
    "columns": {
        "repository": "/repository/full_name",
        "event": "header:X-GitHub-Event",
        "number": "delivery",
        "at": "received_at",
    }
}


def written(tmp_path: Path, body: Any, config: dict[str, Any]) -> list[dict[str, Any]]:
    deliveries = pa.table(
        {
            "delivery": pa.array([7], pa.int64()),
            "received_at": pa.array([NOON], pa.timestamp("us", "UTC")),
            "key": ["d-7"],
            "headers": ['{"x-github-event": "push"}'],
            "body": [body if isinstance(body, str) else json.dumps(body)],
        }
    )
    parquet.write_table(deliveries, tmp_path / "in.parquet")
    task = _task(tmp_path, config)
    rows.run(task)
    found: list[dict[str, Any]] = []
    for name, output in task.written.items():
        for file in output.files:
            found += parquet.read_table(task.outputs[name].folder / file.name).to_pylist()
    return found


def _task(tmp_path: Path, config: dict[str, Any]) -> OperatorTask:
    payload = TaskPayload(
        operator="webhook_rows",
        config=config,
        cursor=7,
        inputs=(OperatorInput("deliveries", files=(str(tmp_path / "in.parquet"),)),),
        outputs=(DeclaredOutput("orders", columns=COLUMNS),),
    )
    return OperatorTask(
        task_id="t",
        attempt=1,
        payload=payload,
        output_folders={"orders": str(tmp_path)},
        temp_dir=str(tmp_path),
    )


def test_a_delivery_becomes_a_row_with_values_from_where_the_config_says(tmp_path: Path) -> None:
    body = {"id": 1, "repository": {"full_name": "octo/hello"}, "undeclared": True}
    wanted = {"id": 1, "repository": "octo/hello", "event": "push", "number": 7, "at": NOON}
    assert written(tmp_path, body, CONFIG) == [wanted]


def test_a_list_becomes_several_rows(tmp_path: Path) -> None:
    body = {"of": "x", "items": [{"id": 1}, {"id": "2"}]}
    found = written(tmp_path, body, {"rows": "/items", "columns": {"repository": "body:/of"}})
    assert [(row["id"], row["repository"]) for row in found] == [(1, "x"), (2, "x")]


def test_an_empty_list_is_no_row(tmp_path: Path) -> None:
    assert written(tmp_path, [], {}) == []


@pytest.mark.parametrize(
    ("body", "config", "code"),
    [
        ({"id": "secret-value"}, {}, "webhook.value_unfit"),
        ({"id": 2**63}, {}, "webhook.value_unfit"),
        ({}, {}, "webhook.value_unfit"),
        ([1], {}, "webhook.not_rows"),
        ("5", {}, "webhook.not_rows"),
        ({"id": 1}, {"rows": "/items"}, "webhook.not_rows"),
    ],
)
def test_what_does_not_fit_fails_the_task_without_a_row(
    tmp_path: Path, body: Any, config: dict[str, Any], code: str
) -> None:
    with pytest.raises(OperatorError) as failed:
        written(tmp_path, body, config)
    assert failed.value.code == code
    assert "delivery 7" in str(failed.value)
    assert "secret-value" not in str(failed.value)


@pytest.mark.parametrize("value", [Decimal("1.005"), "1.005", Decimal("123456789"), Decimal("1E+20")])
def test_a_decimal_that_would_lose_a_digit_is_refused_by_its_declared_type(value: Any) -> None:
    with pytest.raises(ValueUnfit, match=r"does not fit into decimal\(10, 2\)$"):
        converted(value, pa.decimal128(10, 2))


@pytest.mark.parametrize(
    "value", [Decimal("1.500"), "12345678.90", Decimal("1E+7"), Decimal("0E+9"), 0, -7, "1." + "0" * 60]
)
def test_a_decimal_that_loses_no_digit_is_kept(value: Any) -> None:
    type_ = pa.decimal128(10, 2)
    assert pa.array([converted(value, type_)], type_).to_pylist() == [Decimal(value)]
