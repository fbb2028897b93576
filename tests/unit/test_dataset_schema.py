"""Which schemas are compatible with those of earlier commits."""

from __future__ import annotations

import pytest

from traceplane.model.dataset_schema import (
    Incompatible,
    Schema,
    SchemaColumn,
    as_arrow,
    merge,
    same_in_sql,
    undeclared,
)


def schema(**columns: str) -> Schema:
    """`a="int64!"` is a column that is never null."""
    return tuple(SchemaColumn(n, t.removesuffix("!"), not t.endswith("!")) for n, t in columns.items())


@pytest.mark.parametrize(
    ("known", "new", "merged"),
    [
        (None, schema(a="int64!", b="string"), schema(a="int64!", b="string")),
        (schema(a="int64!"), schema(a="int64!"), schema(a="int64!")),
        (schema(a="int64"), schema(b="string"), schema(a="int64", b="string")),
        (schema(a="int64"), schema(a="int64", b="string!"), schema(a="int64", b="string")),
        (schema(a="int64", b="string"), schema(b="string"), schema(a="int64", b="string")),
        (schema(a="int64", b="string"), schema(b="string", a="int64"), schema(a="int64", b="string")),
        (schema(a="int64"), schema(a="int64!"), schema(a="int64")),
        (schema(a="int32"), schema(a="int64"), schema(a="int64")),
        (schema(a="int64"), schema(a="int32"), schema(a="int64")),
        (schema(a="float!"), schema(a="double!"), schema(a="double!")),
        (schema(a="double"), schema(a="float"), schema(a="double")),
        (schema(a="int64"), (), schema(a="int64")),
        ((), schema(a="int64!"), schema(a="int64")),
    ],
)
def test_a_compatible_schema_extends_the_known_one(known: Schema | None, new: Schema, merged: Schema) -> None:
    assert merge(known, new) == merged


@pytest.mark.parametrize(
    ("known", "new", "misfit"),
    [
        (schema(a="int64"), schema(a="string"), Incompatible("a", "int64", "string")),
        (schema(a="int64"), schema(a="double"), Incompatible("a", "int64", "double")),
        (schema(a="int32"), schema(a="double"), Incompatible("a", "int32", "double")),
        (schema(a="int64!", b="string"), schema(b="string"), Incompatible("a", "int64 not null", "missing")),
        (schema(a="int64!"), schema(a="int64"), Incompatible("a", "int64 not null", "int64")),
    ],
)
def test_an_incompatible_schema_is_reported_by_column(
    known: Schema | None, new: Schema, misfit: Incompatible
) -> None:
    assert merge(known, new) == misfit


def test_columns_that_sql_cannot_tell_apart_are_named() -> None:
    assert same_in_sql(None, schema(a="int64", b="string")) is None
    assert same_in_sql(schema(a="int64"), schema(a="int64", b="string")) is None
    assert same_in_sql(None, (*schema(a="int64", b="string"), *schema(b="string"))) == ("b", "b")
    assert same_in_sql(None, schema(D="int64", d="int64")) == ("D", "d")
    assert same_in_sql(schema(D="int64"), schema(a="int64", d="int64")) == ("D", "d")


def test_a_compatible_schema_stays_compatible_after_others_extend_it() -> None:
    """A commit that changes nothing takes no lock: it may be checked against a schema that is about to grow."""
    known = schema(a="int32", b="float")
    for other in (schema(a="int64"), schema(c="string!"), schema(a="int64", b="double", c="string")):
        grown = merge(known, other)
        assert isinstance(grown, tuple)
        for mine in (known, schema(a="int32"), schema(b="float"), ()):
            assert merge(known, mine) == known
            assert merge(grown, mine) == grown


@pytest.mark.parametrize(
    ("declared", "found", "nulls", "misfit"),
    [
        ({"a": "bigint!", "b": "string"}, {"a": "int64", "b": "string"}, {"b": 3}, None),
        ({"a": "bigint", "b": "string"}, {"a": "int32"}, {}, None),
        (
            {"a": "DECIMAL(38, 0)", "b": "varchar(20)"},
            {"a": "decimal128(20, 0)", "b": "large_string"},
            {},
            None,
        ),
        ({"a": "timestamp"}, {"a": "timestamp[ns, tz=Europe/Berlin]"}, {}, None),
        ({"a": "array<int>"}, {"a": "list<element: int32>"}, {}, None),
        ({"a": "string"}, {"a": "null"}, {}, None),
        ({"a": "int"}, {"a": "int64"}, {}, Incompatible("a", "int", "int64")),
        (
            {"a": "timestamp"},
            {"a": "timestamp[us]"},
            {},
            Incompatible(
                "a",
                "timestamp",
                "timestamp[us], which has no time zone,",
                "use UTC datetimes, or declare `timestamp_ntz`",
            ),
        ),
        ({"a": "timestamp_ntz"}, {"a": "timestamp[us]"}, {}, None),
        (
            {"a": "decimal(9, 2)"},
            {"a": "decimal128(9, 3)"},
            {},
            Incompatible("a", "decimal(9, 2)", "decimal128(9, 3)"),
        ),
        ({"a": "bigint!"}, {}, {}, Incompatible("a", "bigint not null", "missing")),
        ({"a": "bigint!"}, {"a": "int64"}, {"a": 2}, Incompatible("a", "bigint not null", "2 nulls")),
        ({"a": "bigint"}, {"a": "int64", "b": "string"}, {}, Incompatible("b", "no such column", "string")),
    ],
)
def test_an_output_has_the_declared_columns_and_no_others(
    declared: dict[str, str], found: dict[str, str], nulls: dict[str, int], misfit: Incompatible | None
) -> None:
    assert undeclared(schema(**declared), schema(**found), nulls) == misfit


def test_declared_columns_say_what_files_will_have() -> None:
    assert as_arrow(schema(a="bigint!", b="decimal(38, 0)")) == schema(a="int64!", b="decimal128(38, 0)")
    nested = as_arrow(schema(a="array<int>", b="map<string, struct<c: date>>"))
    assert nested == schema(a="list<element: int32>", b="map<string, struct<c: date32[day]>>")
    assert as_arrow(schema(a="variant")) is None
    assert as_arrow(()) is None
