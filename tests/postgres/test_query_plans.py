"""Hot statements find their rows by the index that was made for them, however much else is stored.

Each statement runs with the generic plan that the services use, and may touch no more rows than its work needs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import asyncpg
import pytest

from tests.control_plane import ControlPlane
from tests.postgres.filled_tables import (
    DAG,
    FILL,
    IN_FLIGHT,
    PARTITIONS,
    WAITING,
    Filled,
    Plan,
    no_sequential_scan,
)
from traceplane.postgres.database import ORG_ROLE, statements
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres


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
        *["'{}'"] * 7,
    ]


# Tables of history ----------------------------------------------------------------------------------


def test_no_statement_reads_a_table_of_history_as_a_whole(filled: Filled) -> None:
    """A year of finished tasks is gigabytes. A condition that no partial index covers is enough to read them all."""
    history = {"tasks", "events", "task_inputs"}
    whole = [
        f"{table}.{name}: {node['Relation Name']}, {node.get('Filter', 'no condition')}"
        for table in sorted(path.stem for path in _SQL.glob("*.sql"))
        for name, text in statements(table).items()
        if not _UTILITY.search(text)
        for node in filled.plan(table, name).scans
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in history
    ]
    assert not whole


_SQL = Path(str(resources.files("traceplane.postgres"))) / "sql"
_UTILITY = re.compile(r"^(call|lock) ", re.MULTILINE)
"""Has no plan."""


@pytest.mark.parametrize(
    "call",
    [
        "select reads_unfinished(job_id) from jobs where name = 'metered'",
        "select batch_is_due(o) from open_batches o where due_at is null",
    ],
)
def test_functions_find_unfinished_tasks_by_job(filled: Filled, call: str) -> None:
    scans = filled.sequential_scans(
        "tasks",
        "update jobs set building = true where name in ('copy', 'metered')",
        """update job_inputs set read = '{"what": "all"}'
           from jobs j where j.job_id = job_inputs.job_id and j.name = 'metered'""",
        "insert into open_batches (job_id, slot, opened_at, backfill)"
        " select job_id, 0, tp_now(), false from jobs where name = 'copy'",
        call,
    )
    assert scans == 0


@pytest.mark.parametrize(("name", "arguments"), [("depths", []), ("counts", ["'default'", "null"])])
def test_unfinished_tasks_are_counted_without_looking_at_finished_ones(
    filled: Filled, name: str, arguments: list[str]
) -> None:
    plan = filled.run("task_views", name, *arguments)
    assert {"tasks_waiting", "tasks_in_flight"} <= plan.indexes
    assert plan.read("tasks") <= WAITING + IN_FLIGHT + 200


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
        ("why_not_claimed", "copy", "dispatched", ["null::text[]"]),
        ("why_not_claimed", "copy", "dispatched", ["array['default']"]),
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


@pytest.mark.parametrize("orgs", ["null::text", "'default'::text"], ids=["of all", "of one organization"])
def test_a_claim_finds_its_tasks_by_id(filled: Filled, orgs: str) -> None:
    plan = filled.run(
        "tasks",
        "claim",
        filled.ids("copy", "dispatched", 20),
        "array_fill(0, array[20])",
        "array_fill('w'::text, array[20])",
        "array_fill('python'::text, array[20])",
        "array['python', 'python']",
        "array[1, 2]::bigint[]",
        "array_fill(''::text, array[20])",
        f"array_fill({orgs}, array[20])",
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
        "commits",
        "for_tasks",
        f"array_fill('{generation}'::uuid, array[20])",
        numbers,
        numbers,
        "array_fill(null::text, array[20])",
        "false",
        "10001",
    )
    no_sequential_scan(plan)
    conditions = plan.conditions("dataset_commits_live")
    assert conditions
    assert all("generation_id" in c and "range_start" in c for c in conditions), conditions
    assert plan.read("dataset_commits") <= 20


def test_what_is_compacted_is_found_by_generation_and_range(filled: Filled) -> None:
    generation = filled.value("select current_generation_id from datasets where dataset_id = 'mid'")
    plan = filled.run("compaction", "page", f"'{generation}'", "400000", "0", "'0'", "50")
    assert "dataset_commits_live" in plan.indexes
    assert plan.read("dataset_commits") <= 50


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


def test_open_ranges_are_found_by_job_and_position(filled: Filled) -> None:
    job = filled.value("select job_id from jobs where name = 'tens'")
    plan = filled.run("aggregator", "open_pieces", f"'{job}'", "'{40010, 40020, 60030}'", "10", "9", "40012")
    no_sequential_scan(plan)
    assert plan.read("told_positions") <= 6
    assert plan.read("known_scopes") <= 20


def test_periods_and_positions_are_found_by_each_other(filled: Filled) -> None:
    job = filled.value("select job_id from jobs where name = 'tens'")
    newest = f"'{job}'", "'{0}'", "'{2999990}'", "'{2999999}'"
    for statement, arguments, most in (
        ("set_periods", (*newest, "'{0}'", "'{9999}'", "'{2999990}'", "'{2999999}'"), 5),
        ("periods_of_positions", newest, 2),
        ("around_positions", newest, 3),
        ("around_periods", (f"'{job}'", "'{0}'", "'{5000}'"), 5),
    ):
        plan = filled.run("scopes", statement, *arguments)
        no_sequential_scan(plan)
        assert plan.read("told_periods") <= most, statement


def test_whether_events_tell_of_commits_is_found_by_task(filled: Filled) -> None:
    plan = filled.run("scopes", "told_by", filled.ids("tens", "queued", 20))
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
    plan = filled.run("task_views", "deaths", "'default'", "100", "null")
    assert "tasks_dead_open" in plan.indexes
    assert (
        plan.read("tasks") <= 3 * 100
    )  # once for what they need, once for the newest's error, and its later ones
    assert plan.read("dataset_commits") <= 100


def test_what_was_done_since_a_task_died_is_found_by_position_for_an_organization_too(filled: Filled) -> None:
    """Row-level security keeps conditions that may fail out of indexes: the whole dataset would be read, per task."""
    org = filled.value("select org_id from orgs where slug = 'default'")
    filled.execute(f"set role {ORG_ROLE}; select set_config('traceplane.org', '{org}', false)")
    try:
        plan = filled.run("task_views", "deaths", "'default'", "100", "null")
    finally:
        filled.execute("reset role; reset traceplane.org")
    conditions = plan.conditions("dataset_commits_live")
    assert conditions
    assert all("range_start >=" in condition for condition in conditions), conditions
    assert plan.read("dataset_commits") <= 100


def test_sizes_of_datasets_are_known_without_counting(filled: Filled) -> None:
    generation = filled.value("select generation_id from generation_totals limit 1")
    for plan in (
        filled.run("commits", "summary", "'default'", "null"),
        filled.run("pinned", "sizes", f"array['{generation}'::uuid]"),
    ):
        assert "generation_totals_pkey" in plan.indexes
        assert plan.read("dataset_commits") == 0


def test_sizes_of_datasets_follow_every_change_of_their_commits(filled: Filled) -> None:
    """Commits that are added, hidden in part, replaced, served again and deleted, in one transaction."""
    differences = filled.after(
        "update dataset_commits set hidden = '{[400005,400010)}' where range_start between 400001 and 400050",
        "update dataset_commits set superseded_by = commit_id, superseded_at = tp_now(), hidden = null"
        " where range_start between 400020 and 400099",
        "update dataset_commits set superseded_by = null, superseded_at = null where range_start = 400030",
        "update dataset_commits set committed_at = tp_now(), row_count = 7 where range_start = 400040",
        "delete from dataset_commits where range_start between 400060 and 400200",
        "insert into dataset_commits (task_id, output_index, generation_id, range_start, range_end, files, row_count,"
        " bytes, schema_hash, committed_at) select gen_random_uuid(), 0, generation_id, n, n, '[]',"
        " 9223372036854775807, 5, '', tp_now() from generations, generate_series(1, 3) n",
        query="""select * from (
          select generation_id, count(*), sum(row_count), sum(bytes), count(hidden) from dataset_commits
          where superseded_by is null group by generation_id
        ) counted except select * from generation_totals""",
    )
    assert differences == []
    assert (
        filled.value("select commits from generation_totals where commits > 0") == 20000
    )  # all of it was taken back


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
    numbers, generations = "array_fill(1, array[20])", "array_fill(gen_random_uuid(), array[20])"
    plan = filled.run("tasks", "attempts_over", ids, numbers, "interval '1 hour'", close, generations)
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


@pytest.mark.parametrize(
    ("statement", "table", "first"),
    [
        ("end_tasks", "tasks", "'00000000-0000-0000-0000-000000000000'"),
        ("end_events", "events", "0"),
        ("end_executions", "executions", "'00000000-0000-0000-0000-000000000000'"),
    ],
)
def test_a_page_of_history_is_read_by_its_key(filled: Filled, statement: str, table: str, first: str) -> None:
    """Even if everything on it has ended: further rows are found by index, a few for each."""
    plan = filled.run("history", statement, first, "'-1 day'", "500", "false")
    no_sequential_scan(plan)
    assert plan.read(table) <= 500 * 6


# Events and what they caused ------------------------------------------------------------------------


def read_whole(plan: Plan, table: str) -> bool:
    return any(n["Node Type"] == "Seq Scan" and n["Relation Name"] == table for n in plan.scans)


def test_what_an_event_caused_is_found_by_index_and_as_much_as_is_shown(filled: Filled) -> None:
    events = "'{" + ",".join(str(n) for n in range(1, 21)) + "}'"
    tasks = filled.ids("copy", "completed", 20)
    no_job, no_dataset = "array[]::uuid[]", "array[]::text[]"
    for name, arguments, table, most in (
        ("fed", ["'default'", events, "21", "null", no_job], "task_inputs", 20 * 21),
        ("count_fed", [events, "1020", no_job], "task_inputs", 20 * 1020),
        ("produced", ["'default'", tasks, "21", no_dataset], "events", 20 * 21),
        ("count_produced", [tasks, "1020"], "events", 20 * 1020),
        ("commits", ["'default'", tasks, "11", no_dataset], "dataset_commits", 20 * 11),
        ("producers", ["'default'", tasks, no_job], "tasks", 20),
    ):
        plan = filled.run("effects", name, *arguments)
        assert not read_whole(plan, table), name
        assert plan.read(table) <= most, name


def test_a_page_of_events_looks_through_no_more_than_its_stretch(filled: Filled) -> None:
    newest = filled.value("select max(event_id) from events")
    plan = filled.run(
        "effects",
        "recent",
        "'default'",
        f"{newest - 1999}",
        f"{newest}",
        "null",
        "null",
        "array[]::text[]",
        "50",
    )
    assert not read_whole(plan, "events")
    assert plan.read("events") <= 2000
    plan = filled.run("effects", "of_positions", "'default'", "'in'", "500", "9000", "null", "51")
    assert not read_whole(plan, "events")
    assert plan.read("events") <= 51
