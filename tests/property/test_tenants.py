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
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

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
    *(
        "alerts",
        "alert-summary",
        "alert-silences",
        "channels",
        "deliveries",
        "dead-letters",
        "audit",
        "tokens",
    ),
    *(
        "identity-providers",
        "whoami",
        "roles",
        "members",
        "webhooks",
        "files",
        "versions?dag=shop",
        "versions?dag=other",
    ),
    *("datasets/shop.mid", "datasets/other.mid", "datasets/shop.mid/explain?first=0&last=5"),
]
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00| UTC)?")
_MEASURED = re.compile(
    r'("[a-z_]*seconds": ?|"(?:event|audit)_id": ?)[0-9.e-]+|tp[uw]_[\w-]+|(?<="request_id":")\w+'
)
"""Events of all organizations are numbered together, as the threat model says; so are rows of the audit log."""
Step = tuple[str, str, Any]


def call(
    method: str, path: SearchStrategy[str] | str, body: SearchStrategy[Any] | None = None
) -> SearchStrategy[Step]:
    """`{id}` in it stands for an id that somebody has seen."""
    return st.tuples(
        st.just(method), st.just(path) if isinstance(path, str) else path, st.none() if body is None else body
    )


def fields(**named: Any) -> SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {
            name: value if isinstance(value, SearchStrategy) else st.just(value)
            for name, value in named.items()
        }
    )


POSITION = st.integers(0, 5)
FILE = fields(text=st.sampled_from(DAGS))
COPY = fields(dag="shop", job="copy")
EVENT = fields(dataset=st.sampled_from(["shop.in", "other.in"]), scope=fields(cursor=POSITION))
MEMBER = st.sampled_from(["members/m0", "members/m1"])
ONE_TASK = fields(task_ids=st.just(["{id}"]))
CALLS = [
    call("POST", "deploy", FILE),
    call("POST", "plan", FILE),
    call("POST", "events", fields(events=st.lists(EVENT, min_size=1, max_size=3))),
    call("POST", "backfill", fields(dataset="shop.mid", start=0, end=POSITION)),
    call("POST", st.sampled_from(["jobs/pause", "jobs/resume", "batches/close"]), COPY),
    call("POST", "rollback", fields(dag="shop")),
    call("POST", "delete", fields(dag="other", force=True)),
    call("PUT", "secrets/user/key", fields(value=st.sampled_from(["value 1", "value 2"]))),
    call("DELETE", st.sampled_from(["secrets/user/key", "roles/finance", "channels/ops"])),
    call("PUT", "roles/finance", fields(includes="writer")),
    call("PUT", MEMBER, fields()),
    call("PUT", MEMBER.map(lambda member: f"{member}/roles/finance"), fields()),
    call("DELETE", MEMBER),
    call("POST", "tokens", fields(name="t", member="m0")),
    call(
        "PUT",
        "channels/ops",
        fields(config=st.just({"kind": "webhook", "url": "https://hooks.example.com/in"})),
    ),
    call("POST", "alert-silences", fields(seconds=3600, reason=st.sampled_from(["a", "b"]))),
    call("DELETE", st.sampled_from(["alert-silences/{id}", "pipelines/{id}", "tokens/{id}"])),
    call("POST", "pipelines", st.just(PIPELINE)),
    call("PUT", "scanner-lists/l", fields(tickers=st.sampled_from([["A"], ["A", "B"]]))),
    call("PUT", "user-limits/u", fields(launches_per_hour=POSITION.map(lambda n: n + 1))),
    call(
        "POST",
        st.sampled_from(["tasks/cancel", "tasks/retry", "tasks/acknowledge", "dead-letters/replay"]),
        ONE_TASK,
    ),
    call(
        "GET",
        st.sampled_from([*(f"tasks/{{id}}{what}" for what in ("", "/explain", "/logs")), "pipelines/{id}"]),
    ),
    call("work", ""),
]
STEP = st.one_of(*CALLS, *CALLS, *([call("GET", st.sampled_from(READS))] * len(CALLS)), call("work", ""))


@dataclass(frozen=True)
class Turn:
    """What the other organization calls, and then the one that is compared."""

    others: list[tuple[Step, int]]
    """With the place, among the ids that they have seen, of the one that stands for `{id}`."""
    step: Step
    place: int
    foreign: bool
    """Whether the id is one that the other organization has seen."""


TURN = st.builds(
    Turn,
    st.lists(st.tuples(STEP, st.integers(0, 49)), max_size=2),
    STEP,
    st.integers(0, 49),
    st.sampled_from([False, False, True]),
)


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


def at(ids: list[str], place: int) -> str:
    return ids[place % len(ids)]


async def both_see_the_same(server: EmbeddedPostgres, template: str, home: Path, turns: list[Turn]) -> None:
    name = uuid4().hex
    async with (
        a_world(server, template, f"shared_{name}", home / name / "shared", ["default", "second"]) as shared,
        a_world(server, template, f"alone_{name}", home / name / "alone", ["default"]) as alone,
    ):
        nobodys = str(UUID(int=7))
        own: dict[World, list[str]] = {shared: [nobodys], alone: [nobodys]}
        theirs = [nobodys]
        for number, turn in enumerate(turns):
            for step, place in turn.others:
                answer = await shared.call("second", step, at(theirs, place))
                theirs = [*theirs, *_ID.findall(answer)][-50:]
            stolen = at(theirs, turn.place)
            answers = []
            for world, ids in own.items():
                answer = await world.call(
                    "default", turn.step, stolen if turn.foreign else at(ids, turn.place)
                )
                ids += _ID.findall(answer)
                answers.append(world.normal(answer))
            assert answers[0] == answers[1], f"turn {number}: {turn.step}"


ONE_AFTER_THE_OTHER = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(
    max_examples=3,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    deadline=None,
    suppress_health_check=ONE_AFTER_THE_OTHER,
)
@given(turns=st.lists(TURN, min_size=25, max_size=45))
async def test_an_organization_sees_nothing_of_another(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path: Path, turns: list[Turn]
) -> None:
    await both_see_the_same(postgres_server, template_database, tmp_path, turns)


@pytest.mark.chaos
@settings(max_examples=100, deadline=None, suppress_health_check=ONE_AFTER_THE_OTHER)
@given(turns=st.lists(TURN, min_size=60, max_size=120))
async def test_100_organizations_see_nothing_of_others(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path: Path, turns: list[Turn]
) -> None:
    await both_see_the_same(postgres_server, template_database, tmp_path, turns)
