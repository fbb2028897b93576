"""The schema is what the migrations make it, once, whoever runs them and how often."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator
from datetime import timedelta

import asyncpg
import pytest

from traceplane.errors import Conflict
from traceplane.postgres import migrate as migrating
from traceplane.postgres.database import SCHEMA
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.postgres.migrate import Migration, migrate, migrations

_numbers = itertools.count(1)


@pytest.fixture
def empty_url(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """A database without any schema of ours."""
    name = f"schema_{next(_numbers)}"
    yield create_database(postgres_server, name, template="template1")
    drop_database(postgres_server, name)


async def described(url: str) -> list[tuple[str, ...]]:
    """Every table, column, index, constraint, type and function, as the server spells it."""
    connection = await asyncpg.connect(url, server_settings={"search_path": SCHEMA})
    try:
        rows = await connection.fetch(
            """
            select 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::text,
                   coalesce(pg_get_expr(d.adbin, d.adrelid), ''), a.attgenerated::text || a.attidentity::text
            from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
            left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
            where c.relnamespace = $1::text::regnamespace and c.relkind = 'r'
            union all
            select 'table', c.relname, c.relpersistence::text, coalesce(c.reloptions::text, ''), '', '', ''
            from pg_class c where c.relnamespace = $1::text::regnamespace and c.relkind = 'r'
            union all
            select 'index', c.relname, pg_get_indexdef(c.oid), '', '', '', ''
            from pg_class c where c.relnamespace = $1::text::regnamespace and c.relkind = 'i'
            union all
            select 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), '', '', ''
            from pg_constraint where connamespace = $1::text::regnamespace
            union all
            select 'enum', t.typname, e.enumlabel, e.enumsortorder::text, '', '', ''
            from pg_type t join pg_enum e on e.enumtypid = t.oid where t.typnamespace = $1::text::regnamespace
            union all
            select 'function', proname, pg_get_functiondef(oid), '', '', '', ''
            from pg_proc where pronamespace = $1::text::regnamespace
            order by 1, 2, 3, 4
            """,
            SCHEMA,
        )
        return [tuple(row) for row in rows]
    finally:
        await connection.close()


async def applied(url: str) -> list[str]:
    connection = await asyncpg.connect(url, server_settings={"search_path": SCHEMA})
    try:
        return [r["name"] for r in await connection.fetch("select name from schema_migrations order by name")]
    finally:
        await connection.close()


async def run_sql(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url, server_settings={"search_path": SCHEMA})
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def test_migrating_a_fresh_database_applies_all_and_a_second_time_nothing(empty_url: str) -> None:
    names = tuple(m.name for m in migrations())
    assert await migrate(empty_url) == names
    before = await described(empty_url)
    assert await migrate(empty_url) == ()
    assert await described(empty_url) == before
    assert await applied(empty_url) == list(names)


async def test_the_database_that_tests_run_on_is_what_the_migrations_make(
    database_url: str, empty_url: str
) -> None:
    await migrate(empty_url)
    assert await described(database_url) == await described(empty_url)


async def test_migrators_that_start_together_take_turns(empty_url: str) -> None:
    names = [m.name for m in migrations()]
    done = await asyncio.gather(*(migrate(empty_url) for _ in range(5)))
    assert sorted(done, key=len, reverse=True) == [tuple(names), (), (), (), ()]
    assert await applied(empty_url) == names


async def test_a_migration_that_was_edited_after_it_was_applied_is_refused(empty_url: str) -> None:
    await migrate(empty_url)
    before = await described(empty_url)
    await run_sql(empty_url, "update schema_migrations set checksum = 'another'")
    with pytest.raises(Conflict) as refused:
        await migrate(empty_url)
    assert refused.value.code == "postgres.migration_changed"
    assert refused.value.value == migrations()[0].name
    assert refused.value.next_step
    assert await described(empty_url) == before


async def test_a_migration_that_fails_leaves_nothing_of_itself(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = migrations()
    broken = Migration("9999_broken", "create table half_done (id int); select 1 / 0")
    monkeypatch.setattr(migrating, "migrations", lambda: (*good, broken))
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate(empty_url)
    assert not [row for row in await described(empty_url) if "half_done" in row]
    monkeypatch.setattr(
        migrating, "migrations", lambda: (*good, Migration("9999_broken", "create table whole (id int)"))
    )
    assert await migrate(empty_url) == ("9999_broken",)


async def migrated_from(
    url: str, monkeypatch: pytest.MonkeyPatch, version: str, rows: str, query: str
) -> list[asyncpg.Record]:
    """What a query finds after all migrations, if the rows were there before the migration `version`."""
    every = migrations()
    earlier = tuple(m for m in every if m.name < version)
    monkeypatch.setattr(migrating, "migrations", lambda: earlier)
    await migrate(url)
    await run_sql(url, rows)
    monkeypatch.setattr(migrating, "migrations", lambda: every)
    await migrate(url)
    connection = await asyncpg.connect(url, server_settings={"search_path": SCHEMA})
    try:
        return await connection.fetch(query)
    finally:
        await connection.close()


DEPLOYED_BEFORE = """
insert into dags (dag_id, org_id, name) select '00000000-0000-0000-0000-00000000000d', org_id, 'old' from orgs;
insert into jobs (job_id, dag_id, name, fingerprint, activation, runtime, operator, definition, routed, priority,
                  dispatch_window, timeout, lease, max_attempts, retry_base, retry_max)
values ('00000000-0000-0000-0000-00000000000b', '00000000-0000-0000-0000-00000000000d', 'copy', 'f', 'reactive',
        'python', 'python', '{}', true, 0, 64, '1h', '30s', 5, '2s', '5m'),
       ('00000000-0000-0000-0000-00000000000c', '00000000-0000-0000-0000-00000000000d', 'unsaid', 'f', 'reactive',
        'python', 'python', '{}', true, 0, 32, '2h', '40s', 6, '3s', '6m');
insert into dag_versions (dag_version_id, dag_id, number, spec, job_fingerprints, definition_fingerprints)
values ('00000000-0000-0000-0000-00000000000f', '00000000-0000-0000-0000-00000000000d', 1, $said$ {"jobs": [
  {"name": "other", "execution": {}},
  {"name": "copy", "execution": {"priority": "backfill", "scaling_mode": "steady", "max_concurrency": 3,
    "max_queue_depth": null, "max_queue_age_seconds": 1.5, "timeout_seconds": 60.0, "lease_seconds": 7.0,
    "max_attempts": 2, "retry_base_seconds": 0.5, "retry_max_seconds": 9.0}}]} $said$, '{}', '{}');
insert into dag_version_jobs values ('00000000-0000-0000-0000-00000000000f', '00000000-0000-0000-0000-00000000000b'),
                                    ('00000000-0000-0000-0000-00000000000f', '00000000-0000-0000-0000-00000000000c');
"""


async def test_versions_that_were_deployed_before_are_metered_as_they_said(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, unsaid = await migrated_from(
        empty_url, monkeypatch, "0012", DEPLOYED_BEFORE, "select * from dag_version_jobs order by job_id"
    )
    assert tuple(unsaid)[2:] == (
        0, None, 32, None, None, timedelta(hours=2), timedelta(seconds=40), 6,
        timedelta(seconds=3), timedelta(minutes=6), False, None, None, None, None, None,
        '{"checks": {}, "lineage": null}',
    )  # fmt: skip
    assert tuple(said)[2:] == (
        1, 3, 64, None, timedelta(seconds=1.5), timedelta(seconds=60), timedelta(seconds=7), 2,
        timedelta(seconds=0.5), timedelta(seconds=9), False, None, None, None, None, None,
        '{"checks": {}, "lineage": null}',
    )  # fmt: skip


JOBS_BEFORE = """
insert into dags (dag_id, org_id, name) select '00000000-0000-0000-0000-00000000000d', org_id, 'old' from orgs;
insert into jobs (job_id, dag_id, name, fingerprint, activation, runtime, operator, definition, routed, priority,
                  dispatch_window, timeout, lease, max_attempts, retry_base, retry_max)
select gen_random_uuid(), '00000000-0000-0000-0000-00000000000d', name, 'f', 'reactive', 'python', operator,
       jsonb_build_object('config', config::jsonb), true, 0, 64, '1h', '30s', 5, '2s', '5m'
from (values ('a', 'range_ingest', '{}'), ('b', 'signal_generate', '{}'), ('c', 'signal_generate', '{"history": 300}'),
             ('d', 'compact', '{"delete_after_commit": true}'), ('e', 'compact', '{}'), ('f', 'python', '{}'))
     as j (name, operator, config);
"""


async def test_jobs_that_were_deployed_before_hand_their_tasks_what_they_did(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = await migrated_from(
        empty_url,
        monkeypatch,
        "0016",
        JOBS_BEFORE,
        "select (definition - 'config')::text as facts from jobs order by name",
    )
    assert [row["facts"] for row in rows] == [
        '{"needs_emission": true}',
        '{"history": 250}',
        '{"history": 300}',
        '{"deletes_inputs": true}',
        "{}",
        "{}",
    ]


CHANGED_BEFORE = """
insert into dags (dag_id, org_id, name) select '00000000-0000-0000-0000-00000000000d', org_id, 'old' from orgs;
insert into jobs (job_id, dag_id, name, fingerprint, activation, runtime, operator, definition, routed, priority,
                  dispatch_window, timeout, lease, max_attempts, retry_base, retry_max)
values ('00000000-0000-0000-0000-00000000000b', '00000000-0000-0000-0000-00000000000d', 'hook', 'f', 'reactive',
        'dispatcher', 'webhook', '{"config": {"path": "new"}, "history": 3}', true, 0, 64, '1h', '30s', 5, '2s', '5m');
insert into dag_versions (dag_version_id, dag_id, number, spec, job_fingerprints, definition_fingerprints, state)
select v.id::uuid, '00000000-0000-0000-0000-00000000000d', v.number, v.spec::jsonb, '{}', '{}', v.state
from (values
  ('00000000-0000-0000-0000-000000000001', 1, 'active',
   '{"jobs": [{"name": "hook", "execution_strategy": "PerUpdate", "config": {"path": "old"}}]}'),
  ('00000000-0000-0000-0000-000000000002', 2, 'building',
   '{"jobs": [{"name": "hook", "execution_strategy": "PerUpdate", "config": {"path": "new"}}]}')
) as v (id, number, state, spec);
update dags set active_version_id = '00000000-0000-0000-0000-000000000001';
insert into dag_version_jobs (dag_version_id, job_id, priority, dispatch_window, timeout, lease, max_attempts,
                              retry_base, retry_max)
select dag_version_id, '00000000-0000-0000-0000-00000000000b', 0, 64, '1h', '30s', 5, '2s', '5m' from dag_versions;
"""


async def test_a_job_has_the_config_of_the_version_that_serves_after_an_upgrade(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = await migrated_from(
        empty_url,
        monkeypatch,
        "0026",
        CHANGED_BEFORE,
        "select v.in_place->'config'->>'path' as says, j.definition->'config'->>'path' as has,"
        " j.definition->>'history' as facts"
        " from dag_version_jobs v join jobs j using (job_id) order by v.dag_version_id",
    )
    assert [tuple(row) for row in rows] == [("old", "old", "3"), ("new", "old", "3")]


def test_migrations_are_numbered_without_a_gap_or_a_repetition() -> None:
    numbers = [int(re.match(r"(\d{4})_\w+$", m.name)[1]) for m in migrations()]  # type: ignore[index]
    assert numbers == list(range(1, len(numbers) + 1))


# What the schema itself refuses ---------------------------------------------------------------------


INSERT_TASK = """
insert into tasks (task_id, job_id, state, priority, kind, range_start, range_end, created_at, ready_at,
                   lease_token, lease_expires_at, finished_at, attempt, reported_attempt)
values (gen_random_uuid(), '00000000-0000-0000-0000-000000000001', $1, 0, 'data', $2, $2, now(), now(),
        $3, case when $3::uuid is null then null else now() end, case when $4 then now() end, 1, $5)
"""
TOKEN = "00000000-0000-0000-0000-00000000000a"


@pytest.mark.parametrize(
    ("state", "token", "finished", "reported", "constraint"),
    [
        ("running", None, False, 0, "a running task has a lease"),
        ("completed", TOKEN, False, 1, "a finished task has an end"),
        ("dead", TOKEN, False, 1, "a finished task has an end"),
        ("canceled", None, False, 0, "a finished task has an end"),
        ("completed", TOKEN, True, 2, "no attempt is reported before it is made"),
    ],
)
async def test_an_impossible_task_is_refused_by_the_schema(
    database_url: str, state: str, token: str | None, finished: bool, reported: int, constraint: str
) -> None:
    connection = await asyncpg.connect(database_url, server_settings={"search_path": SCHEMA})
    try:
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(INSERT_TASK, state, 1, token, finished, reported)
    finally:
        await connection.close()


async def test_one_scope_of_one_job_is_out_once_and_may_wait_often(database_url: str) -> None:
    connection = await asyncpg.connect(database_url, server_settings={"search_path": SCHEMA})
    try:
        for state in ("queued", "queued", "dispatched"):
            await connection.execute(INSERT_TASK, state, 1, None, False, 0)
        for state, token in (("dispatched", None), ("running", TOKEN)):
            with pytest.raises(asyncpg.UniqueViolationError):
                await connection.execute(INSERT_TASK, state, 1, token, False, 0)
        await connection.execute(INSERT_TASK, "running", 2, TOKEN, False, 0)
    finally:
        await connection.close()
