"""A claim gives a worker only what it can run, whoever told it of the task."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.control_plane import ControlPlane
from tests.dags import dag, job, source
from traceplane.dispatcher.leases.calls import Claim
from traceplane.dispatcher.leases.requirements import Requirements
from traceplane.errors import Forbidden
from traceplane.model.resources import Resources, parsed
from traceplane.model.runtimes import DEFAULT_RUNTIMES, Driver, InvokerKind, Runtime
from traceplane.postgres import workers
from traceplane.postgres.workers import WorkerKey

DAG = dag(
    "main",
    source("main.in"),
    job("plain", "main.in", "main.plain"),
    job("large", "main.in", "main.large", "requires: { memory: 8g }"),
    job("labeled", "main.in", "main.labeled", "requires: { labels: [eu, fast], memory: 8g }"),
    job("same", "main.in", "main.same", "requires: { memory: 8192m }"),
)


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        await opened.deploy(DAG)
        yield opened


async def test_equal_needs_have_one_queue_and_a_worker_serves_those_that_it_can(plane: ControlPlane) -> None:
    requirements = Requirements(plane.database)
    async with plane.database.transaction() as tx:
        sets = {s.requires: s.queue_suffix for s in await workers.required_sets(tx)}
    large, labeled = parsed(["memory=8g"]), parsed(["memory=8g", "label=fast", "label=eu"])
    assert set(sets) == {large, labeled}
    assert await requirements.served_by("python", Resources(), None) == ("",)
    assert await requirements.served_by("python", parsed(["memory=4g", "label=eu"]), None) == ("",)
    assert await requirements.served_by("python", large, None) == (sets[large], "")
    assert await requirements.served_by("python", labeled, None) == (sets[labeled], sets[large], "")
    assert await requirements.served_by("spark", labeled, None) == ("",)


async def test_a_worker_that_lacks_something_cannot_claim_the_task(plane: ControlPlane) -> None:
    await plane.emit("main.in", [1])
    of = {
        r["name"]: r["task_id"]
        for r in await plane.sql("select name, task_id from tasks join jobs using (job_id)")
    }
    held, refused = await plane.try_claim(of.values())
    assert [h.job.name for h in held] == ["plain"]
    assert set(refused.values()) == {"requires_more"}
    queues = await Requirements(plane.database).served_by("python", parsed(["memory=8g"]), None)
    ids = (of["large"], of["labeled"])
    # In one transaction with a worker that wants the same tasks and may not have them.
    claims = [Claim("small", "python", ids), Claim("large", "python", ids, queues=queues)]
    small, large = await plane.leases.claims.claim(claims)
    assert small.tasks == []
    assert [t.task_id for t in large.tasks] == [of["large"]]
    assert [r.reason for r in large.refused] == ["requires_more"]


async def test_a_worker_is_forgotten_when_it_leaves_or_falls_silent(plane: ControlPlane) -> None:
    a, b = WorkerKey(None, "a"), WorkerKey(None, "b")
    async with plane.database.transaction() as tx:
        await workers.see(tx, a, "python", parsed(["gpu=1"]))
        await workers.see(tx, b, "python", Resources())
    await plane.sql("update workers set seen_at = seen_at - interval '11 minutes' where worker_id = 'a'")
    async with plane.database.transaction() as tx:
        assert [w.worker_id for w in await workers.there(tx)] == ["b"]
        await workers.see(tx, b, "python", parsed(["gpu=2"]))
        assert [(w.worker_id, w.offers.gpu) for w in await workers.there(tx)] == [("b", 2)]
        await workers.leave(tx, b)
    assert await plane.sql("select * from workers") == []


async def test_workers_with_one_id_that_serve_different_organizations_never_meet(plane: ControlPlane) -> None:
    acme, beta, both, shared = (
        WorkerKey(serves, "a")
        for serves in (frozenset({"acme"}), frozenset({"beta"}), frozenset({"acme", "beta"}), None)
    )
    workers_of_one_id = (acme, beta, both, shared)

    async def offered() -> set[int]:
        async with plane.database.transaction() as tx:
            return {w.offers.gpu for w in await workers.there(tx)}

    async def see(worker: WorkerKey, gpus: int) -> None:
        async with plane.database.transaction() as tx:
            await workers.see(tx, worker, "python", parsed([f"gpu={gpus}"]))

    for gpus, worker in enumerate(workers_of_one_id, start=1):
        await see(worker, gpus)
    assert await offered() == {1, 2, 3, 4}
    await see(beta, 5)
    assert await offered() == {1, 5, 3, 4}
    # The silence of one is not ended by another that is there.
    await plane.sql("update workers set seen_at = seen_at - interval '31 seconds' where serves = '{acme}'")
    for gpus, worker in enumerate(workers_of_one_id[1:], start=2):
        await see(worker, gpus)
    assert await offered() == {2, 3, 4}
    await plane.sql("update workers set seen_at = seen_at - interval '11 minutes' where serves = '{acme}'")
    await see(shared, 4)
    assert await plane.value("select count(*) from workers") == 3
    async with plane.database.transaction() as tx:
        await workers.leave(tx, shared)
    assert await offered() == {2, 3}
    await see(acme, 1)
    assert await offered() == {1, 2, 3}


async def test_a_runtime_of_others_is_refused_at_deploy_and_calls_nothing(database_url: str) -> None:
    theirs = Runtime("scoring", Driver.INVOKE, invoker=InvokerKind.HTTP, target="http://x", orgs=("acme",))
    runtimes = {**DEFAULT_RUNTIMES, "scoring": theirs}
    text = (
        DAG
        + """\
- name: score
  runtime: scoring
  operator: function
  inputs: [{from: {dataset: main.in}}]
  outputs: [{dataset: main.score}]
"""
    )
    async with ControlPlane.open(database_url, runtimes=runtimes) as plane:
        with pytest.raises(Forbidden) as refused:
            await plane.deploy(text)
        assert refused.value.code == "deploy.runtime_of_others"
    for_all = {**DEFAULT_RUNTIMES, "scoring": replace(theirs, orgs=())}
    async with ControlPlane.open(database_url, runtimes=for_all) as plane:
        await plane.deploy(text)
        await plane.emit("main.in", [1])
        ids = tuple(r["task_id"] for r in await plane.sql("select task_id from tasks"))
        # The settings may be narrower than those of the deploy: the claim is refused too.
        narrow, wide = await plane.leases.claims.claim(
            [Claim("invoker", "scoring", ids, orgs=theirs.orgs), Claim("invoker", "scoring", ids)]
        )
    assert narrow.tasks == []
    assert {r.reason for r in narrow.refused} == {"unknown"}
    assert [wide.jobs[str(t.job_id)].name for t in wide.tasks] == ["score"]
