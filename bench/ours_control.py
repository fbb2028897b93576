"""Traceplane's side of the control suite.

Run like every peer, `python -m bench.ours_control <measurement> --url URL --tasks N [...]`, in a process
of its own, so that we are started, timed and stopped exactly as they are.

    drain     as every peer: the events are accepted, and the tasks durably queued, before dispatcher and
              worker start. The clock runs from the first body to the last durable completion.
    worker    the same with the worker that users run, its sandbox and its operators: they do nothing, or leave one row
              each. The clock runs from the first claim to the last durable completion, by the database's time.
    flow      everything at once: gateway, dispatcher and worker run, the clock starts with the first event
              sent over HTTP and ends with the last durable completion.
    latency   100 events a second over HTTP, from just before the call to the first line of operator code
              in the sandbox of a real worker.
    seed      finished tasks with their events and lineage, and tasks that wait because their job is at its
              concurrency limit.
    routing   events accepted over HTTP and turned into tasks beside unrelated jobs; no worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from bench.peers import measure
from tests.ports import free_port
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.auth.store import issue_token
from traceplane.errors import PlatformError
from traceplane.http_service.client import Caller
from traceplane.postgres.database import SCHEMA, Database
from traceplane.postgres.migrate import migrate
from traceplane.wire.control import EmitRequest, EmitResponse, ManualEvent, StatusResponse
from traceplane.wire.deploys import DeployRequest, DeployResponse
from traceplane.wire.scalars import Scope

BATCH = 500

DAG = """
version: 1
dag: {name}
jobs:
- name: source
  activation: source
  source: {{kind: manual}}
  outputs: [{{dataset: {name}.in}}]
- name: work
  runtime: python
  operator: python
  inputs: [{{from: {{job: source}}}}]
  outputs: [{outputs}]
  config: {{entrypoint: "bench.ours_operators:{entrypoint}"}}
"""


@dataclass(frozen=True)
class Stand:
    """A database with a DAG of this run's own, and the environment of its processes."""

    dag: str
    caller: Caller
    connection: asyncpg.Connection
    environment: dict[str, str]
    user: str = ""
    """Whom the processes run as; unset: who runs the benchmark."""
    token: str = ""
    """Of an administrator."""

    def command(self, *words: str) -> list[str]:
        return [*as_user(self.user), sys.executable, "-m", "traceplane.cli.main", *words]

    async def send(self, first: int, last: int, dataset: str = "in") -> None:
        events = [ManualEvent(f"{self.dag}.{dataset}", Scope(cursor=n)) for n in range(first, last)]
        await self.caller.call("POST", "/api/v1/events", EmitResponse, EmitRequest(events))

    async def send_all(self, tasks: int) -> None:
        for first in range(0, tasks, BATCH):
            await self.send(first, min(first + BATCH, tasks))

    async def unfinished(self) -> bool:
        return bool(
            await self.connection.fetchval(
                "select has_unfinished_tasks(j.job_id) from jobs j join dags d using (dag_id)"
                " where d.name = $1 and j.name = 'work'",
                self.dag,
            )
        )


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """What the worker processes inherit; only ours, restored afterwards."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.asynccontextmanager
async def stand(url: str, *, dag: str = DAG, user: str = "", **fields: object) -> AsyncIterator[Stand]:
    """Schema, tokens, a gateway, and a freshly deployed DAG."""
    await migrate(url)
    database = await Database.connect(url, connections=1)
    async with database.transaction() as tx:
        worker = await issue_token(tx, Principal.WORKER, org="default", name="bench")
        admin = await issue_token(tx, Principal.USER, org="default", name="bench", role=Role.ADMIN)
    await database.close()
    ports = [free_port(), free_port()]
    name = f"bench{time.time_ns()}"
    connection = await asyncpg.connect(url, server_settings={"search_path": SCHEMA})
    await connection.execute("truncate signing_keys")  # sealed with the key of an earlier run's home
    caller = Caller(f"http://127.0.0.1:{ports[1]}", admin)
    with tempfile.TemporaryDirectory(prefix="bench-home-", ignore_cleanup_errors=True) as home:
        os.chmod(home, 0o711)
        if user:
            shutil.chown(home, user)
        values = {
            "TRACEPLANE_HOME": home,
            "TRACEPLANE_STATE_URL": url,
            "TRACEPLANE_DISPATCHER_PORT": str(ports[0]),
            "TRACEPLANE_GATEWAY_PORT": str(ports[1]),
            "TRACEPLANE_WORKER_TOKEN": worker,
            "TRACEPLANE_WORKER_CODE_PATHS": str(Path(__file__).parent.parent),
            "TRACEPLANE_LOG_LEVEL": "error",
            "BENCH_GATEWAY": f"http://127.0.0.1:{ports[1]}",
            "BENCH_DISPATCHER": f"http://127.0.0.1:{ports[0]}",
            "BENCH_WORKER_TOKEN": worker,
        }
        made = Stand(name, caller, connection, values, user, admin)
        try:
            with environment(values), measure.worker_processes(made.command("gateway")):
                await answers(caller)
                text = dag.format(name=name, **{"outputs": "", "entrypoint": "started", **fields})
                await caller.call("POST", "/api/v1/deploy", DeployResponse, DeployRequest(text))
                yield made
        finally:
            await caller.close()
            await connection.close()


def as_user(user: str) -> list[str]:
    """What a command is preceded by to run as another user."""
    if not user:
        return []
    return [sys.executable, "-m", "tests.process.run_as", user, str(pwd.getpwnam(user).pw_uid)]


async def answers(caller: Caller) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(PlatformError):
                await caller.call("GET", "/api/v1/status", StatusResponse)
                return
            await asyncio.sleep(0.05)


async def drain(arguments: measure.Arguments) -> dict[str, object]:
    async with stand(arguments.url) as made:
        return await measure.drain(
            arguments,
            enqueue=made.send_all,
            unfinished=made.unfinished,
            workers=(made.command("dispatcher"), [sys.executable, "-m", "bench.ours_worker"]),
        )


async def worker(arguments: measure.Arguments) -> dict[str, object]:
    fields = {"entrypoint": "nothing"}
    if arguments.rows:
        fields = {"entrypoint": "one_row", "outputs": "{name: rows, dataset: bench.rows}"}
    async with stand(arguments.url, user=arguments.user, **fields) as made:
        await made.send_all(arguments.tasks)
        commands = (made.command("dispatcher"), made.command("worker", "--runtime", "python"))
        with measure.worker_processes(*commands):
            await finished(made, arguments.tasks, arguments.timeout)
        return dict(await made.connection.fetchrow(_PACE, made.dag))


_PACE = """
select (count(*) / extract(epoch from max(t.finished_at) - min(t.started_at)))::float8 as per_second
from tasks t join jobs j using (job_id) join dags d using (dag_id) where d.name = $1 and j.name = 'work'
"""


async def flow(arguments: measure.Arguments) -> dict[str, object]:
    async with stand(arguments.url) as made:
        with measure.Starts.create(arguments.tasks) as starts:
            workers = (made.command("dispatcher"), [sys.executable, "-m", "bench.ours_worker"])
            with measure.worker_processes(*workers):
                await made.send(0, 1)
                await starts.wait(1, 30)
                began = time.monotonic()
                for first in range(1, arguments.tasks, BATCH):
                    await made.send(first, min(first + BATCH, arguments.tasks))
                await starts.wait(arguments.tasks, arguments.timeout)
                async with asyncio.timeout(arguments.timeout):
                    while await made.unfinished():  # noqa: ASYNC110 - the database tells nobody
                        await asyncio.sleep(0.005)
                return {"per_second": arguments.tasks / (time.monotonic() - began)}


async def latency(arguments: measure.Arguments) -> dict[str, object]:
    async with stand(arguments.url, outputs="{name: started, dataset: bench.started}") as made:
        total = arguments.tasks + measure.WARM_UP_TASKS
        commands = (made.command("dispatcher"), made.command("worker", "--runtime", "python"))
        with measure.worker_processes(*commands):
            await made.send(0, 1)
            await finished(made, 1, 60)
            sent: dict[int, float] = {0: 0.0}
            sends = []
            first = time.monotonic() + 0.1

            async def send_now(number: int) -> None:
                sent[number] = time.monotonic()
                await made.send(number, number + 1)

            for number in range(1, total):
                await asyncio.sleep(max(0.0, first + number / arguments.rate - time.monotonic()))
                sends.append(asyncio.create_task(send_now(number)))
            await asyncio.gather(*sends)
            await finished(made, total, arguments.timeout)
        rows = await made.connection.fetch(
            "select range_start, min(emission::float8) as moment from events where emission <> '' group by 1"
        )
        waits = [
            1000 * (row["moment"] - sent[row["range_start"]])
            for row in rows
            if row["range_start"] >= measure.WARM_UP_TASKS
        ]
        assert len(waits) == arguments.tasks, f"{len(waits)} of {arguments.tasks} samples"
        return {
            "p50_ms": measure.percentile(waits, 0.50),
            "p99_ms": measure.percentile(waits, 0.99),
        }


async def finished(made: Stand, tasks: int, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while True:
            done = await made.connection.fetchval(
                "select count(*) from tasks t join jobs j using (job_id) join dags d using (dag_id)"
                " where d.name = $1 and t.state = 'completed'",
                made.dag,
            )
            if done >= tasks:
                return
            await asyncio.sleep(0.05)


async def seed(arguments: measure.Arguments) -> dict[str, object]:
    async with stand(arguments.url) as made:
        connection = made.connection
        job = await connection.fetchrow(
            "select j.job_id, i.generation_id, i.dataset_uuid from jobs j join dags d using (dag_id)"
            " join job_inputs i using (job_id) where d.name = $1",
            made.dag,
        )
        await connection.execute("update jobs set max_concurrency = 1 where job_id = $1", job["job_id"])
        await connection.execute(_SEED, *job, arguments.tasks, arguments.waiting, timeout=300)
        for table in ("events", "tasks", "task_inputs"):
            await connection.execute(f"vacuum (analyze) {table}", timeout=300)
        counts = await connection.fetchrow(
            "select count(*) filter (where state = 'completed') as finished,"
            " count(*) filter (where state = 'queued') as waiting from tasks"
        )
        return dict(counts)


_SEED = """
with numbers as materialized (
  select n, uuid7() as task_id, n > $4 as waits from generate_series(1, $4::int + $5::int + 1) n
), made as (
  insert into events (event_id, producer_id, dataset_uuid, generation_id, kind, range_start, range_end, created_at)
  overriding system value
  select nextval('events_event_id_seq'), $1, $3, $2, 'data', -n, -n, now() from numbers
  returning event_id, range_start
), lineage as (
  insert into task_inputs (event_id, job_id, task_id)
  select m.event_id, $1, n.task_id from made m join numbers n on n.n = -m.range_start
)
insert into tasks (task_id, job_id, state, priority, kind, range_start, range_end, attempt, reported_attempt,
                   lease_token, lease_expires_at, worker_id, created_at, ready_at, dispatched_at, started_at,
                   finished_at)
select task_id, $1, case when not waits then 'completed' when n = $4 + 1 then 'running' else 'queued' end::task_state,
       0, 'data', -n, -n, case when waits and n <> $4 + 1 then 0 else 1 end, case when waits then 0 else 1 end,
       gen_random_uuid(), now() + interval '1 day', 'seed', now(), now(), now(), now(),
       case when waits then null else now() end
from numbers
"""


async def routing(arguments: measure.Arguments) -> dict[str, object]:
    async with stand(arguments.url) as made:
        await made.connection.execute(_UNRELATED, made.dag, arguments.jobs, timeout=120)
        await made.connection.execute("analyze")
        await made.send(0, BATCH)  # plans and connections are warm
        await made.connection.execute("analyze")
        began = time.monotonic()
        for first in range(BATCH, arguments.tasks, BATCH):
            await made.send(first, min(first + BATCH, arguments.tasks))
        seconds = time.monotonic() - began
        created = await made.connection.fetchval("select count(*) from tasks")
        assert created == arguments.tasks, created
        return {"per_second": (arguments.tasks - BATCH) / seconds}


_UNRELATED = """
with dag as (
  select dag_id, org_id from dags where name = $1
), numbers as materialized (
  select n, uuid7() as job_id, uuid7() as dataset_uuid, uuid7() as generation_id from generate_series(1, $2::int) n
), d as (
  insert into datasets (dataset_uuid, org_id, dataset_id, dag_id, definition)
  select dataset_uuid, org_id, 'unrelated.' || n, dag_id, '{}' from numbers, dag
), g as (
  insert into generations (generation_id, dataset_uuid, fingerprint) select generation_id, dataset_uuid, '' from numbers
), j as (
  insert into jobs (job_id, dag_id, name, fingerprint, activation, runtime, operator, definition, routed,
                    dispatch_window, timeout, lease, max_attempts, retry_base, retry_max)
  select job_id, dag_id, 'unrelated-' || n, '', 'reactive', 'python', 'python', '{}', true, 1000, '1 min', '1 min', 3,
         '1 s', '1 min' from numbers, dag
)
insert into job_inputs (job_id, input_index, name, dataset_uuid, generation_id)
select job_id, 0, 'in', dataset_uuid, generation_id from numbers
"""

MEASUREMENTS = {
    "drain": drain,
    "worker": worker,
    "flow": flow,
    "latency": latency,
    "seed": seed,
    "routing": routing,
}

if __name__ == "__main__":
    given = measure.parse_arguments()
    measure.report(asyncio.run(MEASUREMENTS[given.measurement](given)))
