"""Queries that are handed to Spark: what is written for it is checked as what Spark will read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.query.published import queries
from traceplane.errors import NotFound, TraceplaneError
from traceplane.sql import spark_dialect
from traceplane.sql.gate import admit

GRANTED = {"shop.orders", "shop.items"}
ENV_OF_SPARK = "${env:HOME} ${system:user.name} ${spark.app.name} ${x}"

NOT_ON_SPARK = {
    "asof join": "Spark has no ASOF JOIN",
    "by name": "Spark joins the rows of a UNION by position",
    "age(": "Spark has no age()",
    "time_bucket(": "sqlglot writes it as date_bin(), which Spark has not",
    "quantile_cont(": "Spark has it with WITHIN GROUP only, which sqlglot does not write",
    "list_sum(": "Spark has no list_sum()",
    "for x in": "Spark has no list comprehension",
    "map {'k': 1}": "sqlglot writes a map that Spark cannot parse",
    "replace (amount": "Spark has only EXCLUDE for *",
    "columns(": "Spark has no COLUMNS()",
    "list(id order by": "Spark's aggregates have no ORDER BY",
    "percentile_cont(": "sqlglot writes it with an ORDER BY that Spark cannot parse",
    "from range(": "Spark reads no function as a relation here",
    "from generate_series(": "Spark reads no function as a relation here",
    "using sample": "Spark samples relations only",
    "> all (": "Spark does not compare with ALL",
    "collate nocase": "Spark has no such collation",
}


def on_spark(sql: str) -> str:
    gated = admit(sql)
    return spark_dialect.translated(gated.sql, [relation.name for relation in gated.relations])


def refusal(write: Callable[[], object]) -> TraceplaneError | None:
    try:
        write()
    except TraceplaneError as error:
        return error
    return None


def for_granted(sql: str) -> str:
    """As a call does it, which looks for the datasets first."""
    if unknown := set(admit(sql).dataset_ids) - GRANTED:
        raise NotFound("query.unknown_relation", "there is no such dataset", value=min(unknown))
    return on_spark(sql)


def test_no_hostile_query_reaches_spark() -> None:
    hostile = [*queries("hostile_for_spark.txt")]
    refused = {sql: refusal(partial(for_granted, sql)) for sql in hostile}
    assert [sql for sql, error in refused.items() if error is None] == []
    codes = Counter(error.code for error in refused.values() if error is not None)
    assert set(codes) == {
        "query.function_denied",
        "query.syntax_denied",
        "query.unknown_relation",
        "virtual.not_for_spark",
    }
    assert len(hostile) >= 60


def test_quoted_text_stays_quoted() -> None:
    for sql in queries("quoted_for_spark.txt"):
        written = on_spark(sql)
        bare = re.sub(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'", " ", written).lower()
        assert not re.search(r"reflect|version|text|passwd|getenv", bare), written


def test_hostile_spark_sql_is_rejected_whoever_wrote_it() -> None:
    hostile = [*queries("hostile_spark_sql.txt")]
    refused = {sql: refusal(partial(spark_dialect.checked, sql, {"tp_d0"})) for sql in hostile}
    assert [sql for sql, error in refused.items() if error is None] == []
    errors = [error for error in refused.values() if error is not None]
    assert {error.code for error in errors} == {"query.syntax_denied", "virtual.not_for_spark"}
    assert all(error.value and error.next_step for error in errors)
    assert len(hostile) >= 100


def test_sql_that_duckdb_must_not_run_does_not_reach_spark_either() -> None:
    hostile = queries("hostile_queries.txt", CANARY="/tmp/canary", STORE="/tmp/store", ORDERS="/tmp/x")
    assert [sql for sql in hostile if refusal(partial(for_granted, sql)) is None] == []


def test_legitimate_queries_are_translated_for_spark_or_known_to_be_missing_there() -> None:
    asked = {sql: refusal(partial(on_spark, sql)) for sql in queries("legitimate_queries.txt")}
    refused = {sql: error for sql, error in asked.items() if error is not None}
    assert {error.code for error in refused.values()} == {"virtual.not_for_spark"}
    assert [sql for sql in refused if not any(part in sql for part in NOT_ON_SPARK)] == []
    assert [part for part in NOT_ON_SPARK if not any(part in sql for sql in refused)] == []


def spark_value(literal: str) -> str:
    """A string literal as Spark reads it: a backslash escapes what follows it, and three octal digits are a code."""
    assert (literal[0], literal[-1]) == ("'", "'")
    plain = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}

    def read(escape: re.Match[str]) -> str:
        code = escape[1]
        return chr(int(code, 8)) if len(code) == 3 else plain.get(code, code)

    assert re.fullmatch(r"(?:[^'\\]|\\.)*", literal[1:-1], re.DOTALL), "the text ends where the literal ends"
    return re.sub(r"\\([01][0-7]{2}|.)", read, literal[1:-1], flags=re.DOTALL)


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text("\\'\"`$:{}%_0147nbZu\n\t\0/*-; "))
def test_a_text_means_the_same_on_spark_and_stays_within_its_quotes(text: str) -> None:
    duckdb = "'" + text.replace("'", "''") + "'"
    written = on_spark(f"select {duckdb} as x from shop.orders where customer = {duckdb}")
    found = re.fullmatch(
        r"SELECT (.*) AS `x` FROM `tp_d0` AS `orders` WHERE `customer` = (.*)", written, re.DOTALL
    )
    assert found is not None
    assert spark_value(found[1]) == spark_value(found[2]) == text
    assert "${" not in written


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.text("`'\"\\$:{}-*/; ", min_size=1))
def test_a_name_stays_within_its_quotes_on_spark(name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    sql = f"select id as {quoted} from shop.orders"
    if "${" in name:
        error = refusal(lambda: on_spark(sql))
        assert error is not None
        assert error.code == "query.syntax_denied"
    else:
        assert on_spark(sql) == f"SELECT `id` AS `{name.replace('`', '``')}` FROM `tp_d0` AS `orders`"


@pytest.mark.parametrize("written", ["'{}'", "$${}$$", "E'{}'", "concat('{}', 'x')"])
def test_spark_replaces_no_variables_in_a_text(written: str) -> None:
    """Spark replaces them in the text of a statement before it parses it, also within quotes."""
    assert "${" not in on_spark(f"select {written.format(ENV_OF_SPARK)} from shop.orders")


def test_a_column_of_the_session_is_read_only_with_its_relation() -> None:
    with pytest.raises(TraceplaneError, match="session") as refused:
        on_spark('select "user" from shop.orders')
    assert refused.value.code == "virtual.not_for_spark"
    assert on_spark('select o."user" from shop.orders o') == "SELECT `o`.`user` FROM `tp_d0` AS `o`"


def test_a_relation_that_was_not_named_is_rejected() -> None:
    gated = admit("select * from shop.orders join shop.items on true")
    with pytest.raises(TraceplaneError, match=r"query\.syntax_denied"):
        spark_dialect.translated(gated.sql, ["tp_d0"])
