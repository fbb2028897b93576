"""Hot statements find their rows by the index that was made for them, however much else is stored.

The tables are filled with far more than a statement is about: finished tasks, waiting tasks of other jobs, jobs
that read other datasets. Each statement then runs with the generic plan that the services use, and may touch no
more rows than its work needs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from tests.control_plane import ControlPlane
from tests.dags import SOURCE, batches, job
from traceplane.postgres.database import statements
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres

FINISHED, WAITING, IN_FLIGHT, OTHER_JOBS = 50_000, 10_000, 3_000, 10_000
PIPELINES, EXECUTED, RUNNING = 20_000, 50_000, 10_000
PARTITIONS = 12
OWN = 100
DAG = (
    SOURCE
    + job("copy", "in", "mid")
    + job("metered", "mid", "end", "scaling: {max_concurrency: 2000}", "max_queue_depth: 20000")
    + batches("tens", "mid", "ranges", 10)
)
FILL = f"""
insert into jobs (dag_id, name, fingerprint, activation, runtime, operator, definition, routed, dispatch_window,
                  timeout, lease, max_attempts, retry_base, retry_max)
select dag_id, 'other-' || n, 'f', 'reactive', 'python', 'python', '{{}}', true, 1000, '1h', '30s', 5, '1s', '1m'
from dags, generate_series(1, {OTHER_JOBS}) n;
-- Most of them read one popular dataset, the others one of their own each.
with numbered as (
  select job_id, row_number() over () as n from jobs where name like 'other-%'
), made as (
  insert into generations (dataset_uuid, fingerprint)
  select dataset_uuid, n from datasets, generate_series(1, {OWN}) n where dataset_id = 'in'
  returning generation_id, dataset_uuid, fingerprint::int as n
)
insert into job_inputs (job_id, input_index, name, dataset_uuid, generation_id)
select job_id, 0, 'x', dataset_uuid, generation_id
from numbered j join made m on m.n = case when j.n > {OWN} then 1 else j.n end;

insert into cron_schedules (job_id, dag_id, source, settled_through, next_tick, due_at)
select job_id, dag_id, '{{}}', tp_now(), tp_now() + interval '1 hour', tp_now() + interval '1 hour'
from jobs where name like 'other-%';

insert into tasks (task_id, job_id, state, priority, kind, range_start, range_end, attempt, reported_attempt,
                   created_at, ready_at, dispatched_at, finished_at, lease_token, lease_expires_at)
select uuid7(), j.job_id, s.state::task_state, 0, 'data', s.first + n, s.first + n, 1, 1, tp_now(), tp_now(), tp_now(),
       case when s.state in ('completed', 'dead') then tp_now() end,
       case when s.state = 'running' then gen_random_uuid() end,
       case when s.state = 'running' then tp_now() + interval '1 hour' end
from (values ('copy', 'completed', 0, {FINISHED - 2000}),
             ('copy', 'dead', 100000, 1000),
             ('metered', 'completed', 0, 1000),
             ('metered', 'queued', 200000, {WAITING}),
             ('copy', 'dispatched', 300000, 500),
             ('copy', 'running', 310000, 400),
             ('metered', 'dispatched', 400000, 900),
             ('metered', 'running', 410000, 1000),
             ('tens', 'queued', 0, 200)) as s (job, state, first, count)
join jobs j on j.name = s.job, generate_series(1, s.count) n;

insert into events (producer_id, dataset_uuid, generation_id, kind, range_start, range_end, created_at)
select gen_random_uuid(), d.dataset_uuid, d.current_generation_id, 'data', n, n, tp_now()
from datasets d, generate_series(1, 20000) n where d.dataset_id = 'in';

insert into dataset_commits (task_id, output_index, generation_id, range_start, range_end, files, row_count, bytes,
                             schema_hash, committed_at)
select gen_random_uuid(), 0, d.current_generation_id, 400000 + n, 400000 + n, '[]', 1, 1, '', tp_now()
from datasets d, generate_series(1, 20000) n where d.dataset_id = 'mid';

insert into generation_cursors (generation_id, position, widest, updated_at)
select generation_id, max(range_end), max(range_end - range_start), tp_now() from dataset_commits group by 1;

insert into wake_messages (queue, task_id, receives, visible_at)
select q, gen_random_uuid(), 0, tp_now() from unnest(array['python', 'other']) q, generate_series(1, 5000);
insert into outbox (runtime, task_ids) select 'python', array[gen_random_uuid()] from generate_series(1, 1000);
insert into aggregator_positions (job_id, position)
select job_id, n from jobs, generate_series(1, 20000) n where name in ('tens', 'copy');

insert into dags (org_id, name)
select org_id, 'other-' || n from orgs, generate_series(1, 2000) n where slug = 'default';
-- Every second pipeline runs; of the others every fifth has a limit, and so has its user.
insert into pipelines (org_id, user_id, name, trigger_mode, scanner_tickers, config, launches_per_hour)
select org_id, 'user-' || n % 1000, n, 'signal', array['T' || n % 500], '{{"dag": "main", "job": "copy"}}',
       case when n % 10 = 5 then 100 end
from orgs, generate_series(1, {PIPELINES}) n where slug = 'default';
insert into trigger_user_limits (org_id, user_id, launches_per_hour)
select org_id, 'user-' || n, 100000 from orgs, generate_series(5, 999, 10) n where slug = 'default';
insert into executions (pipeline_id, target, signal_id, signal, status, created_at, finished_at)
select p.pipeline_id, 'task', 'old-' || n, '{{}}', 'COMPLETED', tp_now() - interval '1 minute' * n, tp_now()
from generate_series(1, {EXECUTED}) n join pipelines p on p.name = (n % {PIPELINES} + 1)::text;
insert into executions (pipeline_id, target, signal_id, signal, status, created_at)
select pipeline_id, 'task', 'now', '{{}}', 'PENDING', tp_now()
from pipelines where name::int % {PIPELINES // RUNNING} = 0;
insert into trigger_offsets (consumer_group, topic, partition, next_offset)
select g, t, n, 1000
from unnest(array['g', 'h']) g, unnest(array['t', 'u', 'v']) t, generate_series(1, {PARTITIONS}) n;
"""


@dataclass(frozen=True)
class Plan:
    root: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.get("Plans", [])

    @property
    def scans(self) -> list[dict[str, Any]]:
        """Nodes that read a table or an index."""
        return [n for n in self.nodes() if "Relation Name" in n or "Index Name" in n]

    @property
    def indexes(self) -> set[str]:
        return {n["Index Name"] for n in self.nodes() if "Index Name" in n}

    def read(self, table: str) -> float:
        """Rows of a table that were looked at, those that a filter threw away included."""
        return sum(
            (
                n["Actual Rows"]
                + n.get("Rows Removed by Filter", 0)
                + n.get("Rows Removed by Index Recheck", 0)
            )
            * n["Actual Loops"]
            for n in self.scans
            if n.get("Relation Name") == table and n["Node Type"] != "ModifyTable"
        )

    def conditions(self, index: str) -> list[str]:
        return [n.get("Index Cond", "") for n in self.nodes() if n.get("Index Name") == index]


@dataclass(frozen=True)
class Filled:
    url: str
    loop: asyncio.Runner
    connection: asyncpg.Connection

    def value(self, query: str) -> Any:
        return self.loop.run(self.connection.fetchval(query))

    def ids(self, job: str, state: str, count: int) -> str:
        """Ids of tasks, as an SQL literal."""
        rows = self.loop.run(
            self.connection.fetch(
                "select task_id from tasks join jobs using (job_id) where name = $1 and state::text = $2"
                " order by task_id limit $3",
                job,
                state,
                count,
            )
        )
        assert len(rows) == count
        return "'{" + ",".join(str(row[0]) for row in rows) + "}'"

    def run(self, table: str, name: str, *arguments: str) -> Plan:
        """Runs a statement by its generic plan, takes it back, and shows how it went."""
        return self.loop.run(self._run(statements(table)[name], ", ".join(arguments)))

    async def _run(self, statement: str, arguments: str) -> Plan:
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            await self.connection.execute(f"prepare planned as {statement}")
            call = f"planned({arguments})" if arguments else "planned"
            row = await self.connection.fetchval(f"explain (analyze, timing off, format json) execute {call}")
            return Plan(json.loads(row)[0]["Plan"] if isinstance(row, str) else row[0]["Plan"])
        finally:
            await transaction.rollback()
            await self.connection.execute("deallocate planned")


@pytest.fixture(scope="module")
def filled(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[Filled]:
    url = create_database(postgres_server, "query_plans", template=template_database)

    async def fill() -> asyncpg.Connection:
        async with ControlPlane.open(url, connections=1) as plane:
            await plane.deploy(DAG)
            settings = {r["name"]: r["setting"] for r in await plane.sql(
                "select name, setting from pg_settings where name in"
                " ('search_path', 'plan_cache_mode', 'enable_seqscan', 'jit')"
            )}  # fmt: skip
        assert settings["plan_cache_mode"] == "force_generic_plan"
        connection = await asyncpg.connect(url, server_settings=settings)
        await connection.execute(FILL)
        await connection.execute("vacuum analyze")
        return connection

    with asyncio.Runner() as loop:
        connection = loop.run(fill())
        yield Filled(url, loop, connection)
        loop.run(connection.close())
    drop_database(postgres_server, "query_plans")


def accept_arguments(filled: Filled, dataset: str, cursors: range) -> list[str]:
    generation = filled.value(f"select current_generation_id from datasets where dataset_id = '{dataset}'")
    count = len(cursors)

    def repeated(value: str) -> str:
        return "array[" + ",".join([value] * count) + "]"

    numbers = "array[" + ",".join(map(str, cursors)) + "]::bigint[]"
    return [
        repeated("gen_random_uuid()"),
        repeated(f"'{generation}'::uuid"),
        repeated("'data'::event_kind"),
        repeated("null::text"),
        numbers,
        numbers,
        repeated("''"),
        repeated("false"),
        repeated("null::text"),
        "true",
        "array['query']",
    ]


def no_sequential_scan(plan: Plan, *allowed: str) -> None:
    for node in plan.scans:
        assert node["Node Type"] != "Seq Scan" or node["Relation Name"] in allowed, node


# Schedules ------------------------------------------------------------------------------------------


def test_a_pass_over_schedules_of_which_none_is_due_reads_none(filled: Filled) -> None:
    plan = filled.run("cron_schedules", "take", "250")
    no_sequential_scan(plan)
    assert "cron_schedules_due" in plan.indexes
    assert plan.read("cron_schedules") == 0
    assert plan.read("jobs") == 0


# Events ---------------------------------------------------------------------------------------------


def test_routing_finds_its_jobs_by_generation_and_touches_no_others(filled: Filled) -> None:
    plan = filled.run("events", "accept", *accept_arguments(filled, "in", range(600_000, 600_010)))
    no_sequential_scan(plan)
    assert "job_inputs_by_generation" in plan.indexes
    assert plan.read("job_inputs") <= 20
    assert plan.read("jobs") <= 20


def test_routing_probes_queue_and_flight_by_job_and_scope(filled: Filled) -> None:
    plan = filled.run("events", "accept", *accept_arguments(filled, "in", range(600_000, 600_010)))
    assert {"tasks_waiting", "tasks_in_flight"} <= plan.indexes
    assert all("job_id" in condition for condition in plan.conditions("tasks_waiting"))
    flight = plan.conditions("tasks_in_flight")
    assert any("scope_key" in condition and "job_id" in condition for condition in flight), flight
    assert all("job_id" in condition for condition in flight), flight
    # The window's count reads what is in flight of this one job, and no finished or waiting task.
    assert plan.read("tasks") <= 900 + 20


def test_routing_to_a_metered_job_does_not_count_its_queue(filled: Filled) -> None:
    plan = filled.run("events", "accept", *accept_arguments(filled, "mid", range(600_000, 600_010)))
    no_sequential_scan(plan)
    assert plan.read("tasks") <= 50


def test_an_event_seen_before_is_found_by_its_unique_key(filled: Filled) -> None:
    plan = filled.run("events", "accept", *accept_arguments(filled, "in", range(600_000, 600_100)))
    assert plan.read("events") <= 200
    assert plan.read("generations") <= 200


# Leases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "job", "state", "more"),
    [
        ("why_not_claimed", "copy", "dispatched", []),
        ("lock", "copy", "running", []),
        ("lock_jobs", "copy", "running", []),
        ("revivable", "metered", "queued", []),
        ("extend", "copy", "running", ["array_fill(null::jsonb, array[20])"]),
        ("mark_completed", "copy", "running", []),
        ("mark_canceled", "copy", "running", []),
        (
            "mark_failed",
            "copy",
            "running",
            [
                "array_fill(1, array[20])",
                "array_fill('queued'::text, array[20])",
                "array_fill(null::jsonb, array[20])",
                "true",
            ],
        ),
        ("hold_fences", "copy", "running", []),
        ("cancel", "metered", "queued", ["'default'"]),
        ("cancel", "copy", "running", ["'default'"]),
        ("retry", "copy", "dead", ["'default'"]),
        ("finish_in_process", "tens", "queued", []),
        ("keep_progress", "tens", "queued", ["array_fill('{}'::jsonb, array[20])"]),
    ],
)
def test_a_call_about_tasks_finds_them_by_id(
    filled: Filled, name: str, job: str, state: str, more: list[str]
) -> None:
    plan = filled.run("tasks", name, filled.ids(job, state, 20), *more)
    no_sequential_scan(plan)
    assert "tasks_pkey" in plan.indexes
    # Some look again at what they locked, or at their scope; `revivable` counts one job's tasks in flight.
    assert plan.read("tasks") <= (20 * 1920 if name == "revivable" else 100)
    assert plan.read("jobs") <= 50


def test_a_claim_finds_its_tasks_by_id(filled: Filled) -> None:
    plan = filled.run(
        "tasks",
        "claim",
        filled.ids("copy", "dispatched", 20),
        "array_fill(0, array[20])",
        "array_fill('w'::text, array[20])",
        "array_fill('python'::text, array[20])",
        "array['python', 'python']",
        "array[1, 2]::bigint[]",
    )
    no_sequential_scan(plan)
    assert plan.conditions("tasks_pkey")
    assert plan.read("tasks") <= 40
    assert plan.conditions("wake_messages_pkey")
    assert plan.read("wake_messages") <= 2


def test_a_task_is_fetched_by_its_id(filled: Filled) -> None:
    plan = filled.run("tasks", "fetch", "gen_random_uuid()", "1", "gen_random_uuid()")
    assert plan.read("tasks") == 0


# Loops ----------------------------------------------------------------------------------------------


def test_the_valve_reads_each_queue_from_its_front(filled: Filled) -> None:
    job = filled.value("select job_id from jobs where name = 'metered'")
    plan = filled.run("tasks", "dispatch", f"'{{{job}}}'", "1000")
    no_sequential_scan(plan)
    conditions = plan.conditions("tasks_waiting")
    assert conditions
    assert all("job_id" in c and "priority" in c and "ready_at" in c for c in conditions), conditions
    # A hundred places are free: they are counted (1900 in flight), a hundred are read, probed and moved.
    assert plan.read("tasks") <= 1900 + 4 * 100


def test_the_valve_finds_waiting_jobs_by_skipping(filled: Filled) -> None:
    for name, arguments in (("waiting_jobs", ["false"]), ("waiting_kinds", [])):
        plan = filled.run("tasks", name, *arguments)
        no_sequential_scan(plan)
        assert plan.read("tasks") <= 10, name
        assert plan.read("jobs") <= 10, name


def test_the_dispatchers_own_jobs_read_their_queue_only(filled: Filled) -> None:
    job = filled.value("select job_id from jobs where name = 'tens'")
    plan = filled.run("tasks", "take_in_process", f"'{job}'", "50")
    no_sequential_scan(plan)
    assert all("job_id" in c for c in plan.conditions("tasks_waiting"))
    assert plan.read("tasks") <= 210


@pytest.mark.parametrize(
    ("name", "arguments"), [("lock_expired", ["500"]), ("resend", ["interval '1 hour'", "1000"])]
)
def test_reaping_and_resending_look_only_at_what_is_in_flight(
    filled: Filled, name: str, arguments: list[str]
) -> None:
    plan = filled.run("tasks", name, *arguments)
    no_sequential_scan(plan)
    assert "tasks_in_flight" in plan.indexes
    assert plan.read("tasks") <= IN_FLIGHT


def test_sources_are_found_by_their_name(filled: Filled) -> None:
    plan = filled.run("tasks", "start_sources")
    assert plan.read("tasks") <= 10


def test_backpressure_counts_by_job(filled: Filled) -> None:
    plan = filled.run("backpressure", "figures")
    assert all(
        "job_id" in c for index in ("tasks_waiting", "tasks_in_flight") for c in plan.conditions(index)
    )
    assert plan.read("tasks") <= WAITING + 1900 + 10


# Queue, outbox, files -------------------------------------------------------------------------------


def test_wake_ups_are_received_from_the_front_of_their_queue(filled: Filled) -> None:
    plan = filled.run("wake_messages", "receive", "'python'", "10", "interval '1 minute'", "3", "0")
    no_sequential_scan(plan)
    assert plan.conditions("wake_messages_pkey")
    assert plan.read("wake_messages") <= 40


def test_the_relay_reads_the_oldest_of_the_outbox(filled: Filled) -> None:
    plan = filled.run("outbox", "take", "20", "'{}'")
    no_sequential_scan(plan)
    assert plan.indexes == {"outbox_pkey"}
    assert plan.read("outbox") <= 20
    plan = filled.run("outbox", "move_to_local_queue", "'{python}'", "'{python}'", "20")
    assert plan.read("outbox") <= 60


def test_the_files_of_a_scope_are_found_by_generation_and_range(filled: Filled) -> None:
    generation = filled.value("select current_generation_id from datasets where dataset_id = 'mid'")
    numbers = "'{" + ",".join(str(n) for n in range(20)) + "}'"
    plan = filled.run(
        "commits", "for_tasks", f"array_fill('{generation}'::uuid, array[20])", numbers, numbers
    )
    no_sequential_scan(plan)
    conditions = plan.conditions("dataset_commits_live")
    assert conditions
    assert all("generation_id" in c and "range_start" in c for c in conditions), conditions
    assert plan.read("dataset_commits") <= 20


def test_what_an_output_holds_is_found_by_generation_and_range(filled: Filled) -> None:
    plan = filled.run("commits", "own_files", filled.ids("copy", "running", 20))
    no_sequential_scan(plan)
    conditions = plan.conditions("dataset_commits_live")
    assert conditions
    assert all("generation_id" in c and "range_start" in c for c in conditions), conditions


@pytest.mark.parametrize("name", ["held", "states"])
def test_what_a_hot_range_holds_is_found_by_generation_and_range(filled: Filled, name: str) -> None:
    generation = filled.value("select current_generation_id from datasets where dataset_id = 'mid'")
    ranges = [f"array['{generation}'::uuid]", "array[400100]::bigint[]", "array[400110]::bigint[]"]
    plan = filled.run("hot_tables", name, *ranges)
    no_sequential_scan(plan)
    assert all("range_start" in c for c in plan.conditions("dataset_commits_live"))
    assert 0 < plan.read("dataset_commits") <= 20


def test_an_aggregators_head_and_its_final_ranges_are_found_by_position(filled: Filled) -> None:
    job = filled.value("select job_id from jobs where name = 'tens'")
    assert filled.run("aggregator", "head", f"'{job}'").read("aggregator_positions") <= 1
    plan = filled.run("aggregator", "ranges_between", f"'{job}'", "101", "129", "10")
    no_sequential_scan(plan)
    assert plan.read("aggregator_positions") <= 50


def test_a_sources_last_words_are_read_from_the_highest_cursor_down(filled: Filled) -> None:
    generation = filled.value("select current_generation_id from datasets where dataset_id = 'in'")
    plan = filled.run("events", "latest_by_cursor", f"'{generation}'", "50")
    no_sequential_scan(plan)
    assert plan.indexes == {"events_by_cursor"}
    assert plan.read("events") <= 51


def test_what_a_commit_replaces_is_found_among_the_live_commits_of_its_scope(filled: Filled) -> None:
    generation = filled.value("select current_generation_id from datasets where dataset_id = 'mid'")
    plan = filled.run(
        "commits",
        "supersede",
        "'{1000001, 1000002}'",
        "array[gen_random_uuid(), gen_random_uuid()]",
        f"'{{{generation}, {generation}}}'",
        "'{400005, 400100}'",
        "'{400005, 400109}'",
    )
    no_sequential_scan(plan)
    conditions = plan.conditions("dataset_commits_live")
    assert conditions
    assert all("generation_id" in c and "range_start" in c for c in conditions), conditions
    assert plan.read("dataset_commits") <= 11 + 11


def test_schemas_are_found_by_generation(filled: Filled) -> None:
    generation = filled.value("select current_generation_id from datasets where dataset_id = 'mid'")
    plan = filled.run("generation_schemas", "load", f"'{{{generation}}}'")
    no_sequential_scan(plan)
    assert plan.read("generations") <= 1


def test_full_ranges_are_counted_by_job_and_position(filled: Filled) -> None:
    job = filled.value("select job_id from jobs where name = 'tens'")
    plan = filled.run("aggregator", "full_ranges", f"'{job}'", "'{10, 20, 30}'", "10")
    no_sequential_scan(plan)
    assert plan.read("aggregator_positions") <= 30


def test_whether_events_tell_of_commits_is_found_by_task(filled: Filled) -> None:
    plan = filled.run("aggregator", "told_of_commits", filled.ids("tens", "queued", 20))
    no_sequential_scan(plan)
    assert plan.read("events") <= 20
    assert plan.read("dataset_commits") <= 20


def test_a_backfill_reads_its_jobs_queue_once_and_its_scopes_by_index(filled: Filled) -> None:
    job = filled.value("select job_id from jobs where name = 'copy'")
    generation = filled.value("select current_generation_id from datasets where dataset_id = 'mid'")
    count = 50
    numbers = "'{" + ",".join(str(400_001 + n) for n in range(count)) + "}'"
    plan = filled.run(
        "tasks",
        "backfill",
        f"'{job}'",
        f"'{generation}'",
        f"array_fill(null::text, array[{count}])",
        numbers,
        numbers,
        "'missing'",
        "true",
        "false",
        "'{}'",
        "'{}'",
        "'{}'",
        "'{}'",
        "'{}'",
    )
    no_sequential_scan(plan)
    assert {"tasks_waiting", "tasks_in_flight", "tasks_dead", "dataset_commits_live"} <= plan.indexes
    assert all("scope_key" in c for c in plan.conditions("tasks_in_flight"))
    assert plan.read("tasks") <= 1000 + 2 * count  # the dead of the job
    assert plan.read("dataset_commits") <= 2 * count


def test_dead_tasks_are_counted_without_looking_at_others(filled: Filled) -> None:
    plan = filled.run("task_views", "deaths", "'default'", "100")
    assert "tasks_dead_open" in plan.indexes
    assert (
        plan.read("tasks") <= 3 * 100
    )  # once for what they need, once for the newest's error, and its later ones
    assert plan.read("dataset_commits") <= 100


def test_garbage_is_found_among_replaced_commits_only(filled: Filled) -> None:
    plan = filled.run("commits", "superseded", "interval '1 hour'", "null", "0", "100")
    no_sequential_scan(plan)
    assert plan.indexes == {"dataset_commits_superseded"}
    plan = filled.run("commits", "files_of_tasks", filled.ids("copy", "completed", 20), "null")
    no_sequential_scan(plan)
    assert plan.indexes == {"dataset_commits_once"}


@pytest.mark.parametrize("close", ["true", "false"])
def test_attempts_that_are_over_are_found_by_task(filled: Filled, close: str) -> None:
    ids = filled.ids("copy", "dead", 20)
    plan = filled.run("tasks", "attempts_over", ids, "array_fill(1, array[20])", "interval '1 hour'", close)
    no_sequential_scan(plan)
    assert plan.read("tasks") <= 60


# The trigger --------------------------------------------------------------------------------------------


def test_a_batch_reads_the_pipelines_that_it_matched_and_what_runs_of_them(filled: Filled) -> None:
    matched, running, limited, moved = 100, 50, 10, 4
    ids = filled.value(
        f"select array_agg(pipeline_id::text order by name::int) from pipelines where name::int <= {matched}"
    )
    plan = filled.run(
        "trigger",
        "launch",
        "'g'",
        "'u'",
        "'{12, 11, 4, 3}'",
        "'{1000, 1000, 1000, 1000}'",
        "'{1010, 1010, 1010, 1010}'",
        f"'{{{','.join(ids)}}}'",
        "'{" + ",".join(str(n % 20) for n in range(matched)) + "}'",
        "'[" + ",".join(f'{{"signal_id": "s{n}"}}' for n in range(20)) + "]'",
        "false",
    )
    no_sequential_scan(plan)
    writes = [node for node in plan.nodes() if node["Node Type"] == "ModifyTable"]
    assert {node["Relation Name"]: node["Plans"][0]["Actual Rows"] for node in writes} == {
        "executions": matched - running,
        "tasks": matched - running,
        "trigger_offsets": moved,
        "trigger_user_limits": limited,
        "celery_outbox": 0,
    }
    for index, columns in {
        "executions_one_running": ["pipeline_id"],
        "executions_once_per_signal": ["pipeline_id", "signal_id"],
        "executions_by_time": ["pipeline_id", "created_at"],
        "pipelines_pkey": ["pipeline_id"],
        "dags_org_id_name_key": ["org_id", "name"],
        "jobs_one_serving_per_name": ["dag_id", "name"],
        "trigger_offsets_pkey": ["consumer_group", "topic"],
        "trigger_user_limits_pkey": ["org_id", "user_id"],
    }.items():
        conditions = plan.conditions(index)
        assert conditions, index
        assert all(column in condition for condition in conditions for column in columns), conditions
    # Those that run, and what pipelines with a limit launched within the hour.
    assert plan.read("executions") <= running + limited
    assert plan.read("pipelines") <= matched - running
    assert plan.read("jobs") <= matched - running
    assert plan.read("dags") <= matched - running
    assert plan.read("trigger_user_limits") <= 2 * limited
    # The topic's partitions are few, and are read whole if that is cheaper.
    assert plan.read("trigger_offsets") <= 2 * PARTITIONS
    assert plan.read("tasks") == 0
