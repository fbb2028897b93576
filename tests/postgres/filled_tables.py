"""Tables filled with far more than any statement is about, and the plans of statements that run on them.

There are finished tasks, waiting tasks of other jobs, and jobs that read other datasets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg

from tests.dags import SOURCE, batches, job
from traceplane.postgres.database import statements

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
insert into told_positions (job_id, input_index, bucket, positions)
select job_id, 0, n, int8multirange(int8range(n * 65536, (n + 1) * 65536))
from jobs, generate_series(0, 999) n where name in ('tens', 'copy');
insert into told_periods (job_id, input_index, period, positions)
select job_id, 0, n, int8multirange(int8range(n * 300, (n + 1) * 300))
from jobs, generate_series(0, 9999) n where name in ('tens', 'copy');
insert into known_scopes (job_id, scope_key, partition_key, range_start, range_end, emitted)
select job_id, 'p:' || n * 10 || '-' || n * 10 + 9, n * 10 || '-' || n * 10 + 9, n * 10, n * 10 + 9, true
from jobs, generate_series(0, 5000) n where name in ('tens', 'copy');
insert into open_batches (job_id, slot, opened_at, due_at, backfill)
select gen_random_uuid(), 0, tp_now(), tp_now() + interval '1 day', false from generate_series(1, 2000) n;

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

    def execute(self, text: str) -> None:
        self.loop.run(self.connection.execute(text))

    def after(self, *changes: str, query: str) -> list[asyncpg.Record]:
        """What a query says after changes, which are taken back."""
        return self.loop.run(self._after(changes, query))

    async def _after(self, changes: tuple[str, ...], query: str) -> list[asyncpg.Record]:
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            for change in changes:
                assert not (await self.connection.execute(change)).endswith(" 0"), change
            return list(await self.connection.fetch(query))
        finally:
            await transaction.rollback()

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

    def plan(self, table: str, name: str) -> Plan:
        """The generic plan of a statement, which is not run."""
        return self.loop.run(self._plan(statements(table)[name]))

    async def _plan(self, statement: str) -> Plan:
        parameters = (await self.connection.prepare(statement)).get_parameters()
        return await self._run(statement, ", ".join(["null"] * len(parameters)), "format json")

    def sequential_scans(self, table: str, *queries: str) -> int:
        """How often these queries, and the functions that they call, read a table as a whole; they are taken back."""
        return self.loop.run(self._sequential_scans(table, queries))

    async def _sequential_scans(self, table: str, queries: tuple[str, ...]) -> int:
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            before = await self.connection.fetchval(f"select pg_stat_get_xact_numscans('{table}'::regclass)")
            for query in queries:
                await self.connection.execute(query)
            after = await self.connection.fetchval(f"select pg_stat_get_xact_numscans('{table}'::regclass)")
            return int(after - before)
        finally:
            await transaction.rollback()

    async def _run(
        self, statement: str, arguments: str, options: str = "analyze, timing off, format json"
    ) -> Plan:
        transaction = self.connection.transaction()
        await transaction.start()
        try:
            await self.connection.execute(f"prepare planned as {statement}")
            call = f"planned({arguments})" if arguments else "planned"
            row = await self.connection.fetchval(f"explain ({options}) execute {call}")
            return Plan(json.loads(row)[0]["Plan"] if isinstance(row, str) else row[0]["Plan"])
        finally:
            await transaction.rollback()
            await self.connection.execute("deallocate planned")


def no_sequential_scan(plan: Plan, *allowed: str) -> None:
    for node in plan.scans:
        assert node["Node Type"] != "Seq Scan" or node["Relation Name"] in allowed, node
