"""A platform that has been in use for long, for the suite `ui`: 10,000 jobs in 40 DAGs, and what they left behind.

One DAG is deployed like any other; the rest is written by set-based SQL, as the platform would have written it. One
dataset holds a million partitions, and one of the sources a million events; the others share what is left.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import asyncpg

from bench.bulk_load import bulk_load
from traceplane.model.runtimes import DEFAULT_RUNTIMES
from traceplane.postgres.database import SCHEMA, Database
from traceplane.postgres.migrate import migrate
from traceplane.registry import apply
from traceplane.registry.spec.dag_file import parse

BUSY_DAG, BUSY_JOB, LARGE_DATASET = "dag00", "j1", "dag00.r1"
"""A DAG of 500 nodes, the job with the most tasks, and the dataset with the most partitions."""
DEFINING = (
    *("dags", "dag_versions", "dag_activations", "datasets", "generations", "dag_version_datasets"),
    *("jobs", "dag_version_jobs", "job_inputs", "job_outputs"),
)
TABLES = ("tasks", "events", "task_inputs", "dataset_commits", "generation_coverage", "alert_events")


@dataclass(frozen=True)
class Size:
    dags: int = 40
    jobs_each: int = 250
    """The source of a DAG included; as many datasets."""
    partitions: int = 1_000_000
    """Of the large dataset."""
    tasks: int = 1_000_000
    events: int = 10_000_000
    alerts: int = 20_000
    dead_jobs: int = 20
    waiting_jobs: int = 50
    flying_jobs: int = 100


def dag(jobs: int) -> str:
    """A source, and a tree of jobs below it, each of which feeds three others."""
    name = BUSY_DAG
    lines = [
        "version: 1",
        f"dag: {name}",
        "jobs:",
        f"- {{name: source, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}.r0}}]}}",
    ]
    for n in range(1, jobs):
        lines.append(
            f"- {{name: j{n}, runtime: python, operator: python,"
            f" inputs: [{{from: {{dataset: {name}.r{(n - 1) // 3}}}}}],"
            f' outputs: [{{dataset: {name}.r{n}}}], config: {{entrypoint: "operators:one"}}}}'
        )
    return "\n".join(lines) + "\n"


async def deploy(url: str, size: Size, text: str = "") -> None:
    """One DAG is deployed, `text` or else `dag`; the others are copies of its rows, with ids and names of their own."""
    await migrate(url)
    database = await Database.connect(url, connections=1)
    try:
        parsed = parse(text or dag(size.jobs_each), "dag.yaml", known_runtimes=frozenset(DEFAULT_RUNTIMES))
        await apply.deploy(database, "default", parsed, runtimes=DEFAULT_RUNTIMES, window=1000)
    finally:
        await database.close()
    connection = await asyncpg.connect(url, server_settings={"search_path": SCHEMA})
    try:
        await connection.execute("set session_replication_role = replica")  # rows refer to rows that follow
        for table in DEFINING:
            columns = await connection.fetchval(_COLUMNS, table)
            await connection.execute(
                _COPY.format(table=table, columns=columns, first=BUSY_DAG, last=size.dags - 1), timeout=120
            )
    finally:
        await connection.close()


async def fill(url: str, size: Size) -> None:
    connection = await asyncpg.connect(url, server_settings={"search_path": SCHEMA})
    try:
        async with bulk_load(connection, TABLES):
            await connection.execute(_NUMBERED)
            for statement in (_TASKS, _COMMITS, _EVENTS, _INPUTS, _CURSORS, _COVERAGE, _ALERTS):
                await connection.execute(statement.format_map(asdict(size)), timeout=300)
        await connection.execute("analyze", timeout=300)
    finally:
        await connection.close()


_COLUMNS = """
select string_agg(quote_ident(column_name), ', ' order by ordinal_position) from information_schema.columns
where table_schema = 'traceplane' and table_name = $1 and is_generated = 'NEVER' and is_identity = 'NO'
"""

# All ids of the rows were made within the last hours, so they begin alike.
_COPY = """
insert into {table} ({columns})
select {columns} from (
  select y.* from {table} x cross join generate_series(1, {last}) k
  cross join lateral jsonb_populate_record(null::{table}, regexp_replace(
    replace(to_jsonb(x)::text, '{first}', 'dag' || lpad(k::text, 2, '0')),
    '"01([0-9a-f]{{6}}-[0-9a-f]{{4}}-7)', '"' || lpad(to_hex(k + 1), 2, '0') || '\\1', 'g')::jsonb
    || case when to_jsonb(x) ? 'org_id' then jsonb_build_object('org_id', to_jsonb(x)->'org_id') else '{{}}' end) y
) z
"""

# Jobs and what they write, numbered: the first job with an output of its own is the busy one.
_NUMBERED = f"""
create temporary table numbered as
select row_number() over (order by d.name, j.job_id) - 1 as n, j.job_id, x.dataset_uuid, x.generation_id,
       s.dataset_id = '{LARGE_DATASET}' as large, j.activation = 'source' as source
from jobs j join dags d using (dag_id) join job_outputs x using (job_id) join datasets s using (dataset_uuid);
create unique index on numbered (n);
analyze numbered
"""

# Of a hundred tasks, 88 are completed, 10 wait, one is dead and one was canceled; some are in flight. Their ids have
# the time at which they were made, evenly spread over a month.
_TASKS = """
insert into tasks (task_id, job_id, state, priority, kind, range_start, range_end, attempt, reported_attempt,
                   lease_token, lease_expires_at, worker_id, created_at, ready_at, dispatched_at, started_at,
                   finished_at, error)
select (lpad(to_hex((extract(epoch from t.at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(k % 4096), 3, '0') || '8'
        || substr(md5(k::text), 1, 15))::uuid,
       j.job_id, t.state::task_state, 0, 'data', k, k, t.attempt, t.attempt,
       case when t.state = 'running' then gen_random_uuid() end,
       case when t.state = 'running' then now() + interval '1 day' end,
       case when t.attempt > 0 then 'worker-' || k % 8 end, t.at, t.at,
       case when t.attempt > 0 then t.at end, case when t.attempt > 0 then t.at end,
       case when t.state in ('completed', 'dead', 'canceled') then t.at + interval '1 second' end,
       case when t.state = 'dead' then
         jsonb_build_object('code', 'operator.raised', 'message', 'ValueError: the till of row ' || k || ' was broken')
       end
from generate_series(0, {tasks} - 1) as g (k)
cross join lateral (select case
  when k >= {tasks} - 200 then 'running' when k % 100 < 10 then 'queued' when k % 100 = 10 then 'dead'
  when k % 100 = 11 then 'canceled' else 'completed' end as state, (k % 100 >= 10)::int as attempt,
  now() - interval '30 days' * (1 - k / {tasks}::float8) - interval '1 minute' as at) t
cross join lateral (select case t.state
  when 'running' then 1 + k % {flying_jobs} when 'queued' then 1 + k / 100 % {waiting_jobs}
  when 'dead' then 1 + k / 100 % {dead_jobs} else k % (select count(*) from numbered) end as n) w
join numbered j on j.n = w.n
"""

_COMMITS = """
insert into dataset_commits (task_id, output_index, generation_id, range_start, range_end, files, row_count, bytes,
                             schema_hash, committed_at)
select gen_random_uuid(), 0, j.generation_id, k, k,
       jsonb_build_array(jsonb_build_object('path', j.dataset_uuid || '/' || k, 'rows', 100, 'bytes', 10000)),
       100, 10000, 'x', now() - interval '30 days' * (1 - k / {partitions}::float8)
from numbered j
cross join lateral generate_series(1, case when j.large then {partitions} else least(10, {partitions}) end) k
where not j.source and not (j.large and k % 1000 = 7)
"""

# A tenth is of one source, a tenth of the large dataset; two fifths are of the other sources.
_EVENTS = """
insert into events (event_id, producer_id, dataset_uuid, generation_id, kind, range_start, range_end, emission,
                    created_at)
overriding system value
select nextval('events_event_id_seq'), gen_random_uuid(), j.dataset_uuid, j.generation_id, 'data', k, k,
       case when j.source then k::text else '' end, now() - interval '30 days' * (1 - k / c.events::float8)
from numbered j
cross join lateral (select case
  when j.n = (select min(n) from numbered where source) then {events} / 10
  when j.large then least({partitions}, {events} / 10)
  when j.source then ({events} * 0.4 / (select count(*) from numbered where source))::int
  else ({events} * 0.42 / (select count(*) from numbered where not source))::int end as events) c
cross join lateral generate_series(1, c.events) k
"""

# What fed the tasks: the first events.
_INPUTS = """
insert into task_inputs (event_id, job_id, task_id)
select t.n, t.job_id, t.task_id from (select row_number() over () as n, job_id, task_id from tasks) t
"""

_CURSORS = """
insert into generation_cursors (generation_id, position, widest, updated_at, filled_at)
select generation_id, max(range_end), 0, now(), now() from dataset_commits group by generation_id
on conflict (generation_id) do nothing
"""

_COVERAGE = """
insert into generation_coverage (generation_id, bucket, positions)
select generation_id, coverage_bucket(range_start, range_end), range_agg(coverage_range(range_start, range_end))
from dataset_commits group by 1, 2
"""

_ALERTS = """
insert into alert_events (org_id, dag, alert, key, dataset_id, position, severity, title, body, subject, fields, owner,
                          event_time, found_at, incident, acknowledged_at, acknowledged_by)
select o.org_id, 'dag00', 'large-' || n % 20, n::text, 'dag00.r2', n, 'warning', 'Row ' || n || ' is large', '',
       jsonb_build_object('n', n), jsonb_build_object('value', n), 'desk', a.at, a.at, n::text,
       case when n % 50 <> 0 then a.at end, case when n % 50 <> 0 then 'somebody' end
from orgs o, generate_series(1, {alerts}) n
cross join lateral (select now() - interval '30 days' * (1 - n / {alerts}::float8) as at) a
where o.slug = 'default'
"""
