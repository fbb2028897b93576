"""SQL for Spark is reduced to what Spark and the parser here read alike, or refused."""

from __future__ import annotations

import pytest

from traceplane.errors import InvalidInput
from traceplane.sql.spark_agreement import agreed
from traceplane.sql.spark_text import plain

# fmt: off
SAME = [
    "select 1L, 1.5BD as x, 1e-5, .5, 1., 5d, x'1F', 'it''s', 'a' 'b', \"x\"\"y\", r'a\\' from t",
    "select /*+ repartition(2), broadcast(t) */ /*+ coalesce(1) */ n from t group  by n order\nby n",
    "select a <=> b, a || b, transform(c, x -> x + 1), !d, a == b, a div b, a >> 2, :start from `a``b`",
    "select '--', \"/*\", `/*+`, r'--\\', '\\'--', date'2020-01-01'",
    "select a:b, c::int from t;",
]
COMMENTS = [
    ("select 1 -- one\n, 2", "select 1 , 2"),
    ("select 1 -- one\\\n two\n, 2", "select 1 , 2"),
    ("select 1 -- one\r\n, 2", "select 1 , 2"),
    ("select/**/1 /* a /* b */ c\n */, 2", "select 1 , 2"),
    ("select 1 /* /*+ */, 2 -- */", "select 1 , 2"),
    ("select '/*', 1 /* ' */, '*/'", "select '/*', 1 , '*/'"),
    ("select 1\u00a0as\ta\x0b,\u20282", "select 1 as a , 2"),
]
UNCLEAR = [
    "select /*+ x -- */ n, label as a /* /* \n */ n, email as a -- */\n from rows",
    "select /*+ x('/*') */ n from rows", "select /*+ x /* */ n from rows", "select /*+ x from rows",
    "select n /*+ x */ from rows", "select hint /*+ x */ from rows", "select distinct /*+ x */ n from rows",
    "select n /* /* */ from rows", "select n */ 2 from rows", "select n */* 2 */ 3 from rows",
    "select 'a", "select 'a\\", 'select "a', "select `a", "select r'a\\'b'",
    "select n ${system:file.separator}* email */ from rows", "select '${env:HOME}'", "select `${env:HOME}`",
    "select 1_0 from rows", "select 0x1F", "select 1email", "select 1e from rows", "select 5r'\\' email'",
    "ſelect n from rows", "select emaıl from rows", "select 한글 from rows", "select a://b from rows",
    "select email\u200bx from rows", "select email\x00x from rows", "select {# email #} n", "select $$a$$",
]
TWO_WAYS = ["select 1.email from rows", "select n'x'"]
# fmt: on


@pytest.mark.parametrize("text", SAME)
def test_what_means_one_thing_stays_as_it_is(text: str) -> None:
    assert agreed(text) == plain(text) == text


@pytest.mark.parametrize(("text", "expected"), COMMENTS)
def test_comments_become_spaces_and_everything_keeps_its_place(text: str, expected: str) -> None:
    found = agreed(text)
    assert " ".join(found.split()) == expected
    assert [len(line) for line in found.split("\n")] == [len(line) for line in text.split("\n")]
    assert plain(found) == found


@pytest.mark.parametrize("text", UNCLEAR)
def test_what_is_not_certain_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        plain(text)
    assert (refused.value.code, bool(refused.value.next_step)) == ("sql.unclear", True)


@pytest.mark.parametrize("text", TWO_WAYS)
def test_words_that_the_parser_reads_otherwise_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="two ways"):
        agreed(text)
