"""A query that cannot be parsed is refused in words of the query, not of the parser."""

from __future__ import annotations

import pytest

from traceplane.errors import InvalidInput
from traceplane.sql import gate


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("selec *", "begins with 'selec'"),
        ("selec * from t", "begins with 'selec'"),
        ("select * frm t", "near 't'"),
        ("select 1 +", "near '+', its last word (line 1, column 10)"),
        ("select * from", "near 'from', its last word"),
        ("select a\nfrom t where", "line 2, column 12"),
        ("select (1", "where ) is expected"),
        ("select 'abc", "does not end"),
    ],
)
def test_the_error_of_a_malformed_query_says_where_it_is_invalid(sql: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        gate.admit(sql)
    assert refused.value.code == "query.malformed"
    assert said in refused.value.message
    for internal in ("sqlglot", "class", "Token", "keyword"):
        assert internal not in refused.value.message


@pytest.mark.parametrize("sql", ["", "  \n", ";", "-- nothing yet"])
def test_an_empty_query_is_called_empty(sql: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        gate.admit(sql)
    assert refused.value.code == "query.empty"
    assert "select" in (refused.value.next_step or "")
