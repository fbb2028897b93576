"""A column depends on all columns that its expression names, however the query goes about it, and on no others."""

from __future__ import annotations

import pytest

from traceplane.sql.column_lineage import lineage_of

RELATIONS = (("t", ("id", "name", "amount", "tags")), ("u", ("id", "city")), ("anything", None))
BOTH = ("spark", "duckdb")


def of(sql: str, dialect: str = "spark") -> dict[str, str] | None:
    found = lineage_of(sql, RELATIONS, dialect)
    if found is None:
        return None
    columns = dict(found.columns) | ({"?": found.unnamed} if found.has_unnamed else {})
    return {name: " ".join(sorted(map(".".join, sources))) for name, sources in columns.items()}


# fmt: off
DEPENDS = [
    ("select * from u", {"id": "u.id", "city": "u.city"}),
    ("select T.ID, Name from T", {"id": "t.id", "name": "t.name"}),
    ("select upper(name) || 'x' as n from t", {"n": "t.name"}),
    ("select t.*, u.city as c from t join u on t.id = u.id",
     {"id": "t.id", "name": "t.name", "amount": "t.amount", "tags": "t.tags", "c": "u.city"}),
    ("select * from t join u using (id)",
     {"id": "t.id u.id", "name": "t.name", "amount": "t.amount", "tags": "t.tags", "city": "u.city"}),
    ("select count(*) as n, min(name) as m from t group by amount", {"n": "", "m": "t.name"}),
    ("select count(*) as n from t where name = 'ann'", {"n": ""}),
    ("select count(distinct name) as n from t", {"n": "t.name"}),
    ("select count(*) filter (where name = 'ann') as n from t", {"n": "t.name"}),
    ("select case when name = 'ann' then 1 else 0 end as is_ann from t", {"is_ann": "t.name"}),
    ("with a as (select id, name as n from t), b as (select n, n || id as m from a) select m from b",
     {"m": "t.id t.name"}),
    ("select x from (select name as x, id as y from t) s", {"x": "t.name"}),
    ("select id from t union all select city from u", {"id": "t.id u.city"}),
    ("select id from t union select city from u", {"id": "t.id u.city"}),
    ("select name from t except select city from u", {"name": "t.name u.city"}),
    ("select id, row_number() over (partition by name order by amount) as r from t",
     {"id": "t.id", "r": "t.amount t.name"}),
    ("select row_number() over w as r from t window w as (partition by name)", {"r": "t.name"}),
    ("select id, (select max(city) from u where u.id = t.id) as c from t",
     {"id": "t.id", "c": "t.id u.city u.id"}),
    ("select name in (select city from u) as here from t", {"here": "t.name u.city"}),
    ("select id from t where exists (select 1 from u where u.city = t.name)", {"id": "t.id"}),
    ("select id, l.m from t, lateral (select max(city) as m from u where u.id = t.id) l",
     {"id": "t.id", "m": "t.id u.city u.id"}),
    # A name that the query gives does not hide the column of that name.
    ("select amount as name, name as c from t", {"name": "t.amount", "c": "t.name"}),
    ("select name as n, n || '!' as m from t", {"n": "t.name", "m": "t.name"}),
    ("select transform(tags, x -> x || name) as y from t", {"y": "t.name t.tags"}),
    ("select s.name.first from t s", {"first": "t.name"}),
    ("select v.x from (values (1), (2)) v(x)", {"x": ""}),
    # How an engine names a column that the query does not name is not known here.
    ("select id, sum(amount), max(name) from t group by id", {"id": "t.id", "?": "t.amount t.name"}),
    ("select a.whatever from anything a", {"whatever": "anything.whatever"}),
]
# fmt: on


@pytest.mark.parametrize("dialect", BOTH)
@pytest.mark.parametrize(("sql", "expected"), DEPENDS)
def test_a_column_depends_on_all_that_its_expression_names(
    sql: str, expected: dict[str, str], dialect: str
) -> None:
    assert of(sql, dialect) == expected


def test_generators_carry_what_they_take_apart() -> None:
    assert of("select e from t lateral view explode(tags) z as e") == {"e": "t.tags"}
    assert of("select explode(tags) as e from t") == {"e": "t.tags"}
    assert of("select posexplode(tags) as (n, e) from t") == {"?": "t.tags"}
    assert of("select stack(2, id, name) as (x, y) from t") == {"?": "t.id t.name"}
    assert of("select e from t, unnest(tags) z(e)", "duckdb") == {"e": "t.tags"}


@pytest.mark.parametrize(
    "sql",
    [
        "select * from elsewhere",
        "select * from anything",
        "select id from db.t",
        "select nothing from t, u",
        "select id from t join u on t.id = u.id",
        "select * from t join u on t.id = u.id",
        "select * from t natural join u",
        "with t as (select id from t) select id from t",
        "with recursive r as (select 1 as n union all select n + 1 from r where n < 3) select n from r",
        "select * from t pivot (sum(amount) for name in ('ann'))",
        "drop table t",
        "select from where",
        "select (" * 500,
    ],
)
def test_what_cannot_be_analyzed_has_no_answer(sql: str) -> None:
    assert of(sql) is None


def test_what_chooses_rows_is_kept_apart() -> None:
    found = lineage_of(
        "select count(*) as n from t join u on t.id = u.id where amount > 1 group by name having min(city) > 'a'",
        RELATIONS,
        "spark",
    )
    assert found is not None
    assert found.columns["n"] == frozenset()
    assert found.rows == {("t", "id"), ("u", "id"), ("t", "amount"), ("t", "name"), ("u", "city")}
