"""A column depends on all columns that its expression names, however the query goes about it, and on no others."""

from __future__ import annotations

import pytest

from traceplane.model.dag import ExecutionStrategy, UpdateStrategy
from traceplane.model.job_definition import JobDefinition
from traceplane.operators.column_marks import Marks, Table, marks_of_output
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


# --- marks --------------------------------------------------------------------------------------------

# fmt: off
WITHOUT_A_NAME = [
    # Each `k` is computed from the e-mail, which the query does not name, or names as another column.
    "select to_json(struct(*)) as k from rows",
    "select to_json(struct(rows.*)) as k from rows",
    "select struct(* except (city)) as k from rows",
    "select concat(*) as k from rows",
    "select hash(*) as k from rows",
    "select xxhash64(1, *) as k from rows",
    "select coalesce(*) as k from rows",
    "select array(*)[1] as k from rows",
    "select first(struct(*)).email as k from rows",
    "select max(struct(*)) over () as k from rows",
    "select count(distinct *) as k from rows",
    "select count(*) filter (where struct(*) is not null) as k from rows",
    "select transform(array(struct(*)), x -> x.email)[0] as k from rows",
    "select from_json(to_json(struct(*)), 'email string').email as k from rows",
    "select s.email as k from (select struct(*) as s from rows)",
    "select (select first(struct(*)) from rows).email as k",
    "select stack(1, *) as (a, k, c, d) from rows",
    "select k from rows lateral view explode(array(struct(*))) t as k",
    "select k from rows, lateral inline(array(struct(*))) as t(a, k, c)",
    "select k from rows join lateral (select struct(*) as k)",
    "select k from rows, lateral (select to_json(struct(rows.*)) as k)",
    "select identifier('email') as k from rows",
    "select IDENTIFIER('em' || 'ail') as k from rows",
    "select identifier(:p) as k from rows",
    "select identifier('rows.email') as k from rows",
    "select r.identifier('email') as k from rows r",
    "select identifier('to_json')(struct(*)) as k from rows",
    "select k from (select email as k from identifier('rows'))",
    "select k from identifier('rows') as t(id, k, city)",
    "with c as (table identifier('rows')) select email as k from c",
    "select k from a_function('rows')",
    "select reflect('a.b.C', 'read', 'rows') as k from rows",
    "select k from rows as t(id, k, city)",
    "select city as k from rows as t(id, city, email)",
    "select city as k from rows tablesample (10 rows) as t(id, city, email)",
    "with c as (select * from rows) select city as k from c as t(id, city, email)",
    "select city as k from (select * from rows) as t(id, city, email)",
    "with c(id, city, email) as (select * from rows) select city as k from c",
    "execute immediate 'select email as k from rows'",
    "select k from (select transform(*) using 'cat' as (k) from rows)",
    "select k from values ((select max(email) from rows)) as t(k)",
    "select count(*) over w as k from rows window w as (partition by email)",
    "select rank() over w2 as k from rows window w1 as (order by email), w2 as w1",
    "from rows |> select email as k",
    # Spark takes the second line for a part of the comment, and the parser here the third.
    "select -- \\\n city as k from rows /*\n email as k from rows -- */",
    "from rows |> extend struct(*) as k |> select k",
    # A hint within a comment, a comment within a hint, a comment that a setting of Spark begins.
    "select id, concat(city /* /*+ */ , ' ', email -- */\n) as k from rows",
    "select /*+ x -- */ id, city as k /* /* \n */ id, email as k -- */\n from rows",
    "select id, city as k from rows ${system:file.separator}* union all select 1, email from rows -- */",
]
CLEAN = [
    "select count(*) as k from rows",
    "select hash(count(*)) as k from rows",
    "select count(*) over (partition by city) as k from rows",
    "select k from (select * except (email), city as k from rows)",
    "select sum(1) as k, to_json(struct(email)) as j from rows",
    "select k from rows, range(3) as t(k)",
    "select k from rows lateral view explode(array(city)) t as k",
    "select upper(:p || city) as k from rows",
]
# fmt: on


def has_mark(query: str) -> bool:
    """Whether a job with this query has personal data in its column `k`."""
    rows = Table(("id", "email", "city"), Marks(frozenset({"email"})))
    job = JobDefinition(
        config={"query": query},
        execution_strategy=ExecutionStrategy.PER_UPDATE,
        update_strategy=UpdateStrategy.REPLACE,
    )
    return marks_of_output("sql", job, "out", 1, {"rows": rows}, {}).has("k")


@pytest.mark.parametrize("query", WITHOUT_A_NAME)
def test_personal_data_is_marked_though_the_query_does_not_name_it(query: str) -> None:
    assert has_mark(query)


@pytest.mark.parametrize(
    "query",
    [
        "select email\u00a0k from rows",
        "select email\u2028k from rows",
        "select email\x0bk from rows",
        "select 1_0 as k from rows",
        "select concat(city, '${system:x}') as k from rows",
    ],
)
def test_what_spark_reads_in_its_own_way_is_marked_though_columns_are_not_known(query: str) -> None:
    rows = Table(None, Marks(frozenset({"email", "1_0"})))
    job = JobDefinition(
        config={"query": query},
        execution_strategy=ExecutionStrategy.PER_UPDATE,
        update_strategy=UpdateStrategy.REPLACE,
    )
    assert marks_of_output("sql", job, "out", 1, {"rows": rows}, {}).has("k")


@pytest.mark.parametrize("query", CLEAN)
def test_what_is_not_computed_from_personal_data_has_no_mark(query: str) -> None:
    assert not has_mark(query)


@pytest.mark.parametrize(
    "sql",
    [
        "select to_json(t) as k from t",
        "select t as k from t",
        "select x as k from t x",
        "select (t).name as k from t",
        "select t['name'] as k from t",
        "select k.name from (select t as k from t)",
        "select list_transform([t], lambda x: x.name) as k from t",
        "select k from t, unnest([t]) z(k)",
        "select unnest(t) from t",
        "with c as (select name from t) select to_json(c) as k from c",
        "select row(*) as k from t",
        "select struct_pack(*) as k from t",
        "select columns(*) from t",
        "select columns(['name']) from t",
        "select columns(c -> c like 'n%') as k from t",
        "select concat(*columns(*)) as k from t",
        "select *columns('n.*') from t",
        "select * like 'n%' from t",
        "select #2 as k from t",
        "select k from query('select name as k from t')",
        "select k from query_table('t') z(i, k, a, g)",
        "select k from 'file.parquet'",
        "select k from read_parquet('file.parquet')",
        "select id as k from t as z(name, id, amount, tags)",
        "select getvariable('v') as k from t",
    ],
)
def test_columns_that_duckdb_takes_without_their_names_are_not_analyzed(sql: str) -> None:
    assert of(sql, "duckdb") is None
