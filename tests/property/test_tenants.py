"""What an organization sees does not depend on what another one does.

The same random calls of one organization go to two platforms. On one of them, a second organization with the same names
everywhere calls at random in between; on the other there is none. Every answer to the first must be the same on
both, once ids and times are replaced by the order of their appearance.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tests.control_plane import ControlPlane
from tests.dags import dag, job, source
from tests.gateway_http import GatewayHttp
from traceplane.auth.roles import Role
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres

DAGS = [
    dag("shop", source("shop.in"), job("copy", "shop.in", "shop.mid")),
    dag("shop", source("shop.in"), job("copy", "shop.in", "shop.mid"), job("more", "shop.mid", "shop.out")),
    dag("other", source("other.in"), job("copy", "other.in", "other.mid", "max_attempts: 1")),
    "version: 1\ndag: broken\njobs: [{name: x}]\n",
]
PIPELINE = {"name": "p", "user_id": "u", "scanner_tickers": ["A"], "config": {"target": "celery"}}
READS = [
    *(
        "dags",
        "tasks",
        "datasets",
        "status",
        "pipelines",
        "executions",
        "scanner-lists",
        "user-limits",
        "secrets",
    ),
    *("whoami", "roles", "members", "webhooks", "files", "versions?dag=shop", "versions?dag=other"),
    *("datasets/shop.mid", "datasets/other.mid", "datasets/shop.mid/explain?first=0&last=5"),
]
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00| UTC)?")
_MEASURED = re.compile(r'("[a-z_]*seconds": ?|"event_id": ?)[0-9.e-]+|tp[uw]_[\w-]+')
"""Events of all organizations are numbered together, as the threat model says."""
Step = tuple[str, str, Any]


def random_step(draw: Random) -> Step:
    """One call; `{id}` in it stands for an id that somebody has seen."""
    position = draw.randrange(6)
    event = {"dataset": draw.choice(["shop.in", "other.in"]), "scope": {"cursor": position}}
    calls: list[Step] = [
        ("POST", "deploy", {"text": draw.choice(DAGS)}),
        ("POST", "plan", {"text": draw.choice(DAGS)}),
        (
            "POST",
            "events",
            {"events": [event]},
        ),
        ("POST", "backfill", {"dataset": "shop.mid", "start": 0, "end": position}),
        ("POST", "jobs/pause", {"dag": "shop", "job": "copy"}),
        ("POST", "jobs/resume", {"dag": "shop", "job": "copy"}),
        ("POST", "rollback", {"dag": "shop"}),
        ("POST", "delete", {"dag": "other", "force": True}),
        ("PUT", "secrets/user/key", {"value": f"value {position}"}),
        ("DELETE", "secrets/user/key", None),
        ("PUT", "roles/finance", {"includes": "writer"}),
        ("DELETE", "roles/finance", None),
        ("PUT", f"members/m{position % 2}", {}),
        ("PUT", f"members/m{position % 2}/roles/finance", {}),
        ("DELETE", f"members/m{position % 2}", None),
        ("POST", "tokens", {"name": "t", "member": "m0"}),
        ("POST", "pipelines", PIPELINE),
        ("PUT", "scanner-lists/l", {"tickers": ["A", "B"][: 1 + position % 2]}),
        ("PUT", "user-limits/u", {"launches_per_hour": 1 + position}),
        ("POST", "tasks/cancel", {"task_ids": ["{id}"]}),
        ("POST", "tasks/retry", {"task_ids": ["{id}"]}),
        ("GET", draw.choice(["tasks/{id}", "tasks/{id}/explain", "tasks/{id}/logs", "pipelines/{id}"]), None),
        ("work", "", None),
        ("work", "", None),
    ]
    return draw.choice([draw.choice(calls), draw.choice(calls), ("GET", draw.choice(READS), None)])


class World:
    """A platform, as one organization of it sees it."""

    def __init__(self, plane: ControlPlane, http: GatewayHttp) -> None:
        self.plane, self.http = plane, http
        self.tokens: dict[str, str] = {}
        self.seen: dict[str, str] = {}

    async def call(self, org: str, step: Step, some_id: str) -> str:
        method, path, body = step
        if method == "work":
            return await self.work(org)
        sent = json.loads(json.dumps(body).replace("{id}", some_id))
        status, text = await self.http.send(
            self.tokens[org], method, f"/api/v1/{path.replace('{id}', some_id)}", sent
        )
        assert status < 500, (path, text)
        await self.plane.api.refresh()
        return f"{status} {text}"

    async def work(self, org: str) -> str:
        """Completes what is waiting in this organization, as its workers would."""
        await self.plane.send()
        rows = await self.plane.sql(
            "select t.task_id from tasks t join jobs j using (job_id) join dags d using (dag_id)"
            " join orgs o using (org_id) where o.slug = $1 and t.state = 'dispatched'"
            " order by d.name, j.name, t.range_start, t.task_id",
            org,
        )
        held = await self.plane.claim([row["task_id"] for row in rows])
        for one in held:
            await self.plane.complete(one)
        await self.plane.send()
        return f"{len(held)} completed"

    def normal(self, text: str) -> str:
        named = _ID.sub(lambda m: self.seen.setdefault(m[0], f"id {len(self.seen)}"), text)
        return _MEASURED.sub(r"\1…", _TIME.sub("time", named))


@asynccontextmanager
async def a_world(
    server: EmbeddedPostgres, template: str, name: str, home: Path, orgs: list[str]
) -> AsyncIterator[World]:
    url = create_database(server, name, template=template)
    try:
        async with ControlPlane.open(url, home=home) as plane, GatewayHttp.open(plane) as http:
            world = World(plane, http)
            for org in orgs:
                if org != "default":
                    await plane.sql("insert into orgs (slug) values ($1)", org)
                world.tokens[org] = await http.token(Role.ADMIN, org=org, name="admin")
            yield world
    finally:
        drop_database(server, name)


async def both_see_the_same(
    server: EmbeddedPostgres, template: str, home: Path, seed: int, steps: int
) -> int:
    """Returns how many answers were compared."""
    draw = Random(seed)
    async with (
        a_world(server, template, f"shared_{seed}", home / "shared", ["default", "second"]) as shared,
        a_world(server, template, f"alone_{seed}", home / "alone", ["default"]) as alone,
    ):
        last: dict[World, list[str]] = {shared: [], alone: []}
        theirs = [str(UUID(int=7))]
        compared = 0
        for number in range(steps):
            for _ in range(draw.randrange(3)):
                answer = await shared.call("second", random_step(draw), draw.choice(theirs))
                theirs = [*theirs, *_ID.findall(answer)][-50:]
            step, which, foreign = random_step(draw), draw.random(), draw.random() < 0.3
            stolen = draw.choice(theirs)
            answers = []
            for world in (shared, alone):
                own = last[world]
                some_id = stolen if foreign or not own else own[int(which * len(own))]
                answer = await world.call("default", step, some_id)
                last[world] = [*own, *_ID.findall(answer)]
                answers.append(world.normal(answer))
            assert answers[0] == answers[1], f"seed {seed}, step {number}: {step}"
            compared += 1
        return compared


@pytest.mark.parametrize("seed", range(2))
async def test_an_organization_sees_nothing_of_another(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path: Path, seed: int
) -> None:
    assert await both_see_the_same(postgres_server, template_database, tmp_path, seed, 60) == 60


@pytest.mark.chaos
async def test_100_organizations_see_nothing_of_others(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path: Path
) -> None:
    total = 0
    for seed in range(1000, 1100):
        total += await both_see_the_same(postgres_server, template_database, tmp_path / str(seed), seed, 150)
    print(f"{total:,} answers of 100 organizations, each beside a busy one: all as if it were alone")
