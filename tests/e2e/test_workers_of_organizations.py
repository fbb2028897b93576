"""Two organizations on one platform, with the same names everywhere: a worker of one never gets anything of the other,
and on a worker of both their tasks share no process and find nothing of each other."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest

from tests.aws import CREDENTIALS, REGION, aws_server
from tests.dags import dag, job, source
from tests.platform import Platform, Process, until
from tests.process.effects import settle
from traceplane.auth.opaque import Principal
from traceplane.auth.store import create_organization, issue_token
from traceplane.errors import NotFound
from traceplane.http_service.client import Caller
from traceplane.postgres.database import Database
from traceplane.wire.control import EmitRequest, EmitResponse, ExplainResponse, ManualEvent, StatusResponse
from traceplane.wire.deploys import DeployRequest, DeployResponse
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import ClaimRequest, Fence, HelloRequest, Resources, TakeRequest
from traceplane.worker.dispatcher_client import DispatcherClient

ORGS = ("default", "beta")
CODE = Path(__file__).parents[2].name
"""The folder of the platform's own files, which every operator can read."""
COPY = dag("main", source("main.in"), job("copy", "main.in", "main.out"))


@dataclass
class TwoOrganizations:
    platform: Platform
    tokens: dict[str, str]
    admins: dict[str, Caller]

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, url: str, folder: Path, environment: dict[str, str] | None = None
    ) -> AsyncIterator[TwoOrganizations]:
        async with Platform.start(url, folder, workers=0, environment=environment) as platform:
            async with _transaction(platform) as tx:
                beta = await create_organization(tx, "beta")
            admins = {"default": platform.api, "beta": Caller(platform.gateway_url, beta)}
            try:
                yield cls(platform, {"default": platform.user_token, "beta": beta}, admins)
            finally:
                await admins["beta"].close()

    async def deploy(self, org: str, text: str, code: dict[str, str] | None = None) -> None:
        request = DeployRequest(text, code=code)
        await self.admins[org].call("POST", "/api/v1/deploy", DeployResponse, request)

    async def emit(self, org: str, cursors: range, dataset: str = "main.in") -> None:
        request = EmitRequest([ManualEvent(dataset, Scope(cursor=c)) for c in cursors])
        await self.admins[org].call("POST", "/api/v1/events", EmitResponse, request)

    async def token(self, serves: tuple[str, ...] | None, name: str = "w") -> str:
        async with _transaction(self.platform) as tx:
            return await issue_token(tx, Principal.WORKER, org="default", name=name, serves=serves)

    async def worker(self, name: str, serves: tuple[str, ...] | None, *more: str, **extra: str) -> Process:
        arguments = more or ("worker", "--runtime", "python")
        process = self.platform.add(name, *arguments, **extra)
        process.environment["TRACEPLANE_WORKER_TOKEN"] = await self.token(serves, name)
        await process.start()
        return process

    async def states(self, org: str) -> dict[str, int]:
        rows = await self.platform.sql(
            "select t.state::text, count(*) from tasks t join jobs j using (job_id) join dags d using (dag_id)"
            " join orgs o using (org_id) where o.slug = $1 group by 1",
            org,
        )
        return {r[0]: r[1] for r in rows}

    async def rows(self, org: str, dataset: str, *columns: str) -> list[dict[str, Any]]:
        headers = {"authorization": f"Bearer {self.tokens[org]}"}
        async with (
            aiohttp.ClientSession(self.platform.gateway_url, headers=headers) as session,
            session.post(
                "/api/v1/query", json={"sql": f"select {', '.join(columns)} from {dataset}"}
            ) as answer,
        ):
            assert answer.status == 200, await answer.text()
            result = json.loads(await answer.text())
        return [dict(zip(columns, row, strict=True)) for row in result["rows"]]

    async def task_ids(self, org: str) -> list[UUID]:
        rows = await self.platform.sql(
            "select t.task_id from tasks t join jobs j using (job_id) join dags d using (dag_id)"
            " join orgs o using (org_id) where o.slug = $1 order by 1",
            org,
        )
        return [r["task_id"] for r in rows]


@contextlib.asynccontextmanager
async def _transaction(platform: Platform) -> AsyncIterator[Any]:
    database = await Database.connect(platform.url, connections=1)
    try:
        async with database.transaction() as tx:
            yield tx
    finally:
        await database.close()


@pytest.fixture
async def two(database_url: str, tmp_path: Path) -> AsyncIterator[TwoOrganizations]:
    async with TwoOrganizations.start(database_url, tmp_path) as started:
        yield started


async def done(two: TwoOrganizations, org: str, count: int) -> None:
    async def completed() -> bool:
        return await two.states(org) == {"completed": count}

    await until(completed, seconds=90, what=f"the tasks of {org} are done")


async def test_a_worker_of_one_organization_is_woken_for_and_claims_only_its_tasks(
    two: TwoOrganizations,
) -> None:
    for org in ORGS:
        await two.deploy(org, COPY)
        await two.emit(org, range(20))
    await two.worker("of-beta", ("beta",))
    await done(two, "beta", 20)
    assert await two.states("default") == {"dispatched": 20}
    # Not one of the other's wake-ups was received, so none was lost either.
    received = "select count(*) > 0 and max(receives) = 0 from wake_messages where queue = 'python'"
    assert await two.platform.value(received)
    await two.worker("of-default", ("default",))
    await done(two, "default", 20)
    ran = await two.platform.sql(
        "select o.slug, array_agg(distinct t.worker_id) as workers, max(t.attempt) as attempt from tasks t"
        " join jobs j using (job_id) join dags d using (dag_id) join orgs o using (org_id) group by 1"
    )
    workers = {r["slug"]: set(r["workers"]) for r in ran}
    assert workers["default"].isdisjoint(workers["beta"])
    assert {r["attempt"] for r in ran} == {1}


async def test_a_token_of_one_organization_gets_nothing_of_another_by_asking(two: TwoOrganizations) -> None:
    for org in ORGS:
        await two.deploy(org, COPY, {"basic.py": f"def copy(task):\n    return [{{'of': '{org}'}}]\n"})
        await two.emit(org, range(2))
    theirs, own = await two.task_ids("default"), await two.task_ids("beta")
    url, nothing = two.platform.dispatcher_url, Resources()
    stranger = DispatcherClient(url, await two.token(("beta",), "stranger"))
    holder = DispatcherClient(url, await two.token(("default",), "holder"))
    both = DispatcherClient(url, await two.token(("default", "beta"), "both"))
    try:
        answer = await stranger.claim(ClaimRequest("s", "python", [*theirs, *own], nothing))
        assert {t.task_id for t in answer.tasks} == set(own)
        assert {r.task_id: r.reason for r in answer.refused} == dict.fromkeys(theirs, "unknown")

        held = (await holder.claim(ClaimRequest("h", "python", theirs[:1], nothing))).tasks[0]
        fence = Fence(held.task_id, held.attempt, held.lease_token)
        assert (await stranger.fetch(fence)).outcome == "stale"
        assert (await holder.fetch(fence)).outcome == "ok"

        bundles = {
            r["slug"]: r["bundle"]
            for r in await two.platform.sql(
                "select o.slug, j.definition->>'code_bundle' as bundle from jobs j join dags d using (dag_id)"
                " join orgs o using (org_id) where j.definition->>'code_bundle' is not null"
            )
        }
        assert "'beta'" in await stranger.code(bundles["beta"])
        with pytest.raises(NotFound):
            await stranger.code(bundles["default"])
        # Nor the locks of their packages.
        await two.platform.sql(
            "insert into code_bundles (bundle_hash, content) values ($1, 'lock')", "e" * 64
        )
        named = "update jobs set definition = definition || jsonb_build_object('environment', $1::text)"
        of_org = " where dag_id in (select dag_id from dags join orgs using (org_id) where slug = $2)"
        await two.platform.sql(named + of_org, "e" * 64, "default")
        with pytest.raises(NotFound):
            await stranger.code("e" * 64)
        assert await holder.code("e" * 64) == "lock"

        # It learns of no queue of others, whatever it offers, and takes nothing from them.
        hello = await stranger.hello(HelloRequest("s", "python", Resources(memory=1 << 50)))
        assert hello.queue_suffixes == ["_beta"]
        taken = await stranger.take(TakeRequest("s", "python", 10, 1.5, nothing))
        assert taken.tasks == []
        # What it says about another's worker is not believed.
        await holder.hello(HelloRequest("h", "python", nothing))
        await stranger.leave("h")
        assert await two.platform.value("select count(*) from workers where worker_id = 'h'") == 1

        taken = await both.take(TakeRequest("b", "python", 10, 10.0, nothing))
        assert [t.task_id for t in taken.tasks] == theirs[1:]
    finally:
        for client in (stranger, holder, both):
            await client.close()


async def test_requirements_of_one_organization_make_no_queue_for_workers_of_another(
    two: TwoOrganizations,
) -> None:
    text = dag("main", source("main.in"), job("copy", "main.in", "main.out", "requires: { gpu: 1 }"))
    for org in ORGS:
        await two.deploy(org, text)
        await two.emit(org, range(5))
    await two.worker("of-beta", ("beta",), TRACEPLANE_WORKER_OFFERS="gpu=1")
    await done(two, "beta", 5)
    assert await two.states("default") == {"dispatched": 5}
    status = await two.admins["default"].call("GET", "/api/v1/status", StatusResponse)
    (stuck,) = status.stuck
    assert "of-beta" not in stuck.sentence


async def test_workers_of_two_organizations_can_have_the_same_id(two: TwoOrganizations) -> None:
    needs = "requires: { gpu: 1, memory: 8g }"
    text = dag("main", source("main.in"), job("copy", "main.in", "main.out", needs))
    for org in ORGS:
        await two.deploy(org, text)
        await two.emit(org, range(2))
    url, name = two.platform.dispatcher_url, "the same name"
    clients = {org: DispatcherClient(url, await two.token((org,), name)) for org in ORGS}
    clients["all"] = DispatcherClient(url, await two.token(None, name))
    offers = {"default": Resources(gpu=1), "beta": Resources(memory=8 << 30)}
    able = Resources(gpu=1, memory=8 << 30)
    lacking = {"default": "w lacks memory=8g;", "beta": "w lacks gpu=1;"}

    async def hello(org: str, offered: Resources) -> None:
        await clients[org].hello(HelloRequest("w", "python", offered))

    async def told(org: str) -> tuple[str, str]:
        """What `status` and `explain` say of the tasks that wait."""
        status = await two.admins[org].call("GET", "/api/v1/status", StatusResponse)
        (task, *_) = await two.task_ids(org)
        explained = await two.admins[org].call("GET", f"/api/v1/tasks/{task}/explain", ExplainResponse)
        reasons = (reason.sentence for reason in explained.reasons)
        return "\n".join(stuck.sentence for stuck in status.stuck), "\n".join(reasons)

    async def dispatched() -> bool:
        return all([await two.states(org) == {"dispatched": 2} for org in ORGS])

    try:
        await until(dispatched, seconds=60, what="the tasks wait for workers")
        for org in ORGS:
            await hello(org, offers[org])
        for org in ORGS:
            sentences = await told(org)
            assert all(lacking[org] in sentence for sentence in sentences), sentences

        # One that falls silent is not kept by the other, nor by one of the whole platform.
        await two.platform.sql(
            "update workers set seen_at = seen_at - interval '31 seconds' where serves = '{default}'"
        )
        await hello("beta", offers["beta"])
        assert all("none of the runtime python is there" in sentence for sentence in await told("default"))
        await hello("all", Resources())
        assert all("w lacks memory=8g, gpu=1;" in sentence for sentence in await told("default"))

        # One that leaves takes no other away, and ends no call in which another waits.
        waiting = asyncio.ensure_future(
            clients["beta"].take(TakeRequest("w", "python", 10, 20.0, Resources()))
        )

        async def beta_left() -> bool:
            assert (await clients["default"].leave("w")).ended == 0
            assert (await clients["all"].leave("w")).ended == 0
            sentences = await told("beta")
            assert all(lacking["beta"] in sentence for sentence in sentences), sentences
            ended = (await clients["beta"].leave("w")).ended
            await hello("beta", offers["beta"])
            return ended == 1

        await until(beta_left, seconds=15, what="the waiting call ended")
        assert (await waiting).tasks == []

        # Both work, each on its own.
        for org in ORGS:
            await hello(org, able)
            taken = await clients[org].take(TakeRequest("w", "python", 10, 10.0, able))
            assert sorted(t.task_id for t in taken.tasks) == await two.task_ids(org)
    finally:
        for client in clients.values():
            await client.close()


async def test_a_new_organization_is_served_by_running_workers_of_all(two: TwoOrganizations) -> None:
    await two.worker("of-all", None)
    await two.deploy("default", COPY)
    await two.emit("default", range(3))
    await done(two, "default", 3)
    async with _transaction(two.platform) as tx:
        gamma = await create_organization(tx, "gamma")
    two.admins["gamma"] = Caller(two.platform.gateway_url, gamma)
    try:
        await two.deploy("gamma", COPY)
        await two.emit("gamma", range(3))
        await done(two, "gamma", 3)
    finally:
        await two.admins["gamma"].close()


async def test_a_busy_organization_does_not_keep_another_waiting(two: TwoOrganizations) -> None:
    slow = job("copy", "main.in", "main.out", entrypoint="basic:slow", config="seconds: 0.05")
    for org in ORGS:
        await two.deploy(org, dag("main", source("main.in"), slow))
    await two.emit("default", range(600))
    await two.worker("of-all", None, TRACEPLANE_WORKER_CONCURRENCY="2")

    async def begun() -> bool:
        return (await two.states("default")).get("completed", 0) > 5

    await until(begun, seconds=60, what="the first tasks are done")
    await two.emit("beta", range(3))
    await done(two, "beta", 3)
    assert (await two.states("default")).get("dispatched", 0) > 100


HOSTILE = '''\
"""Keeps a mark of its organization wherever it can, and looks for the mark of the other."""

import os
import tempfile
from pathlib import Path

OWN, OTHER = "MARK-OF-" + "{own}", "MARK-OF-" + "{other}"
KEPT = []


def look(task):
    KEPT.append(OWN)
    os.environ["KEPT"] = OWN
    for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run", tempfile.gettempdir(), os.getcwd(), str(Path.home())):
        try:
            Path(folder, f"left-{{OWN}}").write_text(OWN)
        except OSError:
            pass
    found = sorted(_found(task.config["roots"], task.config["skip"], task.config["paths"]))
    return [{{"pid": os.getpid(), "started": _started(), "own": OWN, "kept": len(KEPT), "found": "\\n".join(found)}}]


def _started():
    return Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


def _found(roots, skip, paths):
    for path in paths:
        if (why := _has(Path(path))) is not None:
            yield f"{{path}}: {{why}}"
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name != skip]
            for name in (*folders, *names):
                if OTHER in name:
                    yield f"{{folder}}/{{name}}: named"
            for name in names:
                if (why := _has(Path(folder, name))) is not None:
                    yield f"{{folder}}/{{name}}: {{why}}"
    if OTHER in str(os.environ) or any(OTHER in kept for kept in KEPT):
        yield "memory"
    for process in Path("/proc").glob("[0-9]*"):
        for part in ("cmdline", "environ"):
            try:
                if OTHER.encode() in (process / part).read_bytes():
                    yield f"{{process}}/{{part}}"
            except OSError:
                pass


def _has(path):
    """Of a file: whether it can be read and has the mark; of a folder: whether it can be listed."""
    try:
        if path.is_dir():
            return "listed" if os.listdir(path) is not None else None
        if path.stat().st_size > 10_000_000 or not path.is_file():
            return None
        return "has the mark" if OTHER.encode() in path.read_bytes() else None
    except OSError:
        return None
'''


async def test_tasks_of_two_organizations_on_one_worker_share_no_process_and_find_nothing_of_each_other(
    database_url: str, tmp_path: Path
) -> None:
    one_slot = {"TRACEPLANE_WORKER_CONCURRENCY": "1"}
    async with TwoOrganizations.start(database_url, tmp_path, one_slot) as two:
        roots = ["/tmp", "/var/tmp", "/dev/shm", "/run"]

        async def deploy(paths: dict[str, list[str]]) -> None:
            for org, other in (ORGS, ORGS[::-1]):
                config = (
                    f"roots: {json.dumps(roots)}, skip: {json.dumps(CODE)}, paths: {json.dumps(paths[other])}"
                )
                look = job("look", "main.in", "main.out", entrypoint="hostile:look", config=config)
                code = {"hostile.py": HOSTILE.format(own=org, other=other)}
                await two.deploy(org, dag("main", source("main.in"), look), code)

        await deploy({org: [] for org in ORGS})
        await two.worker("of-both", ORGS)
        for n in range(3):
            for org in ORGS:
                await two.emit(org, range(n, n + 1))
        assert await settle(two.platform) == {"completed": 6}
        # The places of the other's files, code and folders are known to the second deploy.
        paths: dict[str, list[str]] = {}
        for org in ORGS:
            files = await two.platform.sql(
                "select f->>'path' as path, o.org_id, j.definition->>'code_bundle' as bundle"
                " from dataset_commits c join generations g using (generation_id)"
                " join datasets d using (dataset_uuid) join orgs o using (org_id) join job_outputs x"
                " on x.generation_id = g.generation_id join jobs j on j.job_id = x.job_id,"
                " jsonb_array_elements(c.files) f where o.slug = $1",
                org,
            )
            assert {f["path"].split("/")[:2] == ["o", str(f["org_id"])] for f in files} == {True}
            stored = tmp_path / "objects"
            bundle = tmp_path / "code_bundles" / files[0]["bundle"]
            assert (bundle / "hostile.py").exists()
            assert all((stored / f["path"]).exists() for f in files)
            organization = stored / "o" / str(files[0]["org_id"])
            paths[org] = [str(stored / f["path"]) for f in files]
            paths[org] += [str(p) for p in (organization, bundle, bundle / "hostile.py")]
        await deploy(paths)
        for n in range(3, 6):
            for org in ORGS:
                await two.emit(org, range(n, n + 1))
        await settle(two.platform)
        processes: dict[str, set[tuple[int, str]]] = {}
        for org in ORGS:
            told = await two.rows(org, "main.out", "pid", "started", "own", "kept", "found")
            assert len(told) >= 3
            assert {row["own"] for row in told} == {f"MARK-OF-{org}"}
            assert {row["found"] for row in told} == {""}
            processes[org] = {(row["pid"], row["started"]) for row in told}
        assert processes["default"].isdisjoint(processes["beta"])


async def test_over_sqs_too_a_worker_is_woken_only_for_its_organization(
    database_url: str, tmp_path: Path
) -> None:
    with aws_server() as endpoint:
        over_sqs = {
            **CREDENTIALS,
            "TRACEPLANE_WAKE_QUEUE": "sqs",
            "TRACEPLANE_SQS_ENDPOINT_URL": endpoint,
            "TRACEPLANE_AWS_REGION": REGION,
        }
        async with TwoOrganizations.start(database_url, tmp_path, over_sqs) as two:
            for org in ORGS:
                await two.deploy(org, COPY)
                await two.emit(org, range(3))
            await two.worker("of-beta", ("beta",))
            await done(two, "beta", 3)
            assert await two.states("default") == {"dispatched": 3}
            await two.worker("of-all", None)
            await done(two, "default", 3)
            assert await two.platform.value("select max(attempt) from tasks") == 1
