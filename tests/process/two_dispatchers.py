"""A platform of two dispatchers, two gateways and two workers, on which reported failures are provoked.

Only the test runs tasks of the runtime `held`: it calls the dispatchers as a worker would.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from tests.platform import Platform, Process, until
from tests.ports import free_port
from traceplane.errors import PlatformError
from traceplane.http_service.client import Caller
from traceplane.postgres.database import SCHEMA
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.wire.control import EmitRequest, EmitResponse, ManualEvent, TaskChanges, TaskSelection
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import ClaimedTask, Completion, Heartbeat, JobPayload, OutputManifest, TakeRequest
from traceplane.worker.dispatcher_client import DispatcherClient

RUNTIMES = """
[runtimes.held]
driver = "queue"
queue = "held"
capabilities = ["reactive"]
"""

# A wake-up is written by a transaction of its own; if its cause had not been committed by then, the sender
# could not see the task.
NOTE_WAKE_UPS = (
    "create table wake_ups_seen (task_id uuid not null, task_known boolean not null)",
    "create function note_wake_up() returns trigger language plpgsql as 'begin insert into wake_ups_seen"
    " select new.task_id, exists (select 1 from tasks where task_id = new.task_id); return null; end'",
    "create trigger note_wake_up after insert on wake_messages for each row execute function note_wake_up()",
)


def one_job(dag: str, entrypoint: str = "basic:copy", **fields: Any) -> str:
    """A manual source `<dag>.in` and one job `work` that reads it; JSON is YAML too."""
    has_code = fields.get("operator", "python") == "python"
    config = {**({"entrypoint": entrypoint} if has_code else {}), **fields.pop("config", {})}
    source = {"name": "numbers", "activation": "source", "source": {"kind": "manual"}}
    work = {
        "name": "work",
        "runtime": "python",
        "operator": "python",
        "inputs": [{"from": {"job": "numbers"}}],
        "outputs": [{"dataset": f"{dag}.out"}],
        "config": config,
        "retry": {"base": "50ms"},
        **fields,
    }
    return json.dumps(
        {"version": 1, "dag": dag, "jobs": [source | {"outputs": [{"dataset": f"{dag}.in"}]}, work]}
    )


@dataclass(frozen=True)
class LeasedTask:
    """A task whose lease the test holds."""

    task: ClaimedTask
    job: JobPayload
    token: str

    @property
    def fence(self) -> tuple[UUID, int, UUID]:
        return self.task.task_id, self.task.attempt, self.task.lease_token

    def completion(self, position: int = 0) -> Completion:
        assert self.task.scope is not None
        outputs = [
            OutputManifest(o.output_index, o.dataset_uuid, o.dataset_version, self.task.scope)
            for o in self.job.outputs
        ]
        return Completion(*self.fence, position, status="completed", outputs=outputs)

    def beat(self) -> Heartbeat:
        return Heartbeat(*self.fence)


@dataclass
class TwoDispatchers:
    platform: Platform
    gateways: list[Caller]
    dispatchers: list[DispatcherClient]

    # Processes -------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[Process]:
        return [self.platform["worker-1"], self.platform["worker-2"]]

    async def revive(self) -> None:
        """Starts whatever the last test left dead."""
        dead = [p for p in self.platform.processes.values() if not p.alive]
        for process in dead:
            await process.start()
        if dead:
            await self.platform.ready(*(p.name for p in dead))

    async def worker_of(self, dag: str) -> Process:
        """The worker that runs the DAG's one task, once one does."""
        row = await until(lambda: self.task_row(dag, "state = 'running'"), what=f"{dag} runs")
        pid = int(row["worker_id"].rpartition(":")[2])
        (found,) = [w for w in self.workers if w.running is not None and w.running.pid == pid]
        return found

    # Work ------------------------------------------------------------------------------------------

    async def tasks(self, dag: str, condition: str = "true") -> list[asyncpg.Record]:
        return await self.platform.sql(
            "select t.* from tasks t join jobs j using (job_id) join dags d using (dag_id)"
            f" where d.name = $1 and ({condition}) order by task_id",
            dag,
        )

    async def task_row(self, dag: str, condition: str = "true") -> asyncpg.Record | None:
        rows = await self.tasks(dag, condition)
        return rows[0] if rows else None

    async def count(self, dag: str, condition: str = "true") -> int:
        return len(await self.tasks(dag, condition))

    async def states(self, dag: str) -> Counter[str]:
        return Counter(row["state"] for row in await self.tasks(dag))

    async def commits(self, dag: str) -> list[asyncpg.Record]:
        return await self.platform.sql(
            "select c.*, t.attempt, t.state from dataset_commits c join tasks t using (task_id)"
            " join jobs j using (job_id) join dags d using (dag_id) where d.name = $1",
            dag,
        )

    async def emit(
        self, gateway: Caller, dataset: str, scopes: Iterable[Scope], emission: str = ""
    ) -> EmitResponse:
        request = EmitRequest([ManualEvent(dataset, scope, emission=emission) for scope in scopes])
        return await gateway.call("POST", "/api/v1/events", EmitResponse, request)

    async def cancel(self, *task_ids: UUID) -> dict[str, str]:
        answer = await self.platform.api.call(
            "POST", "/api/v1/tasks/cancel", TaskChanges, TaskSelection(list(task_ids))
        )
        return answer.changed

    async def take(self, client: DispatcherClient, limit: int, *, seconds: float = 60) -> list[LeasedTask]:
        """Up to `limit` tasks of the runtime `held`, as a worker gets them."""
        answer = await client.take(TakeRequest("test", "held", limit, seconds))
        return [LeasedTask(t, answer.jobs[str(t.job_id)], answer.tokens[t.token]) for t in answer.tasks]

    async def complete(self, client: DispatcherClient, held: list[LeasedTask]) -> list[str]:
        tokens = list(dict.fromkeys(h.token for h in held))
        completions = [h.completion(tokens.index(h.token)) for h in held]
        return [outcome.outcome for outcome in await client.complete(tokens, completions)]


@contextlib.asynccontextmanager
async def two_dispatchers(
    server: EmbeddedPostgres, template_database: str, folder: Path
) -> AsyncIterator[TwoDispatchers]:
    url = create_database(server, folder.name, template=template_database)
    (folder / "traceplane.toml").write_text(RUNTIMES)
    environment = {
        "TRACEPLANE_CONFIG": str(folder / "traceplane.toml"),
        "TRACEPLANE_REAP_GRACE_SECONDS": "3",
        "TRACEPLANE_WORKER_CONCURRENCY": "4",
    }
    async with Platform.start(url, folder, dispatchers=2, environment=environment) as platform:
        port = platform["dispatcher-2"].environment["TRACEPLANE_DISPATCHER_PORT"]
        second_dispatcher, second_gateway = f"http://127.0.0.1:{port}", str(free_port())
        platform.add_worker(2, TRACEPLANE_DISPATCHER_URL=second_dispatcher)
        platform.add("gateway-2", "gateway", TRACEPLANE_GATEWAY_PORT=second_gateway)
        for statement in NOTE_WAKE_UPS:
            await platform.sql(statement)
        world = TwoDispatchers(
            platform,
            [platform.api, Caller(f"http://127.0.0.1:{second_gateway}", platform.user_token)],
            [platform.worker_client(), DispatcherClient(second_dispatcher, platform.worker_token)],
        )
        await world.revive()
        yield world
        for gateway in world.gateways:
            await gateway.close()
        for dispatcher in world.dispatchers:
            await dispatcher.close()
    drop_database(server, folder.name)


async def no_wake_up_was_premature_and_nothing_deadlocked(platform: Platform) -> None:
    assert await platform.value("select count(*) from wake_ups_seen where not task_known") == 0
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    assert await platform.value(deadlocks) == 0


@contextlib.asynccontextmanager
async def sampled(platform: Platform, statement: str, *args: object) -> AsyncIterator[list[int]]:
    """The figures that a statement gives again and again while the body runs."""
    figures: list[int] = []

    async def sample() -> None:
        connection = await asyncpg.connect(platform.url, server_settings={"search_path": SCHEMA})
        try:
            while True:
                figures.append(await connection.fetchval(statement, *args))
                await asyncio.sleep(0.005)
        finally:
            connection.terminate()

    sampler = asyncio.create_task(sample())
    try:
        yield figures
        assert not sampler.done(), sampler.exception()
    finally:
        sampler.cancel()
        await asyncio.gather(sampler, return_exceptions=True)


async def patiently(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeats a call until it is answered, as a careful caller would."""
    while True:
        try:
            return await call()
        except PlatformError:
            await asyncio.sleep(0.05)


def cursors(positions: Iterable[int]) -> list[Scope]:
    return [Scope(cursor=p) for p in positions]


async def take_all(world: TwoDispatchers, count: int) -> list[LeasedTask]:
    held: list[LeasedTask] = []
    while len(held) < count:
        held += await world.take(world.dispatchers[len(held) % 2], count - len(held))
    return held
