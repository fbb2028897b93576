"""Every endpoint of both services, by every method, with every kind of caller: who is let in, and what others are told.

Callers come with tokens, with JWTs of an identity provider and with sessions of browsers. Deliveries of webhooks have
no token that could be a column here: their endpoint is public, and they are signed (tests/postgres/test_webhooks.py).

The cells are generated from the OpenAPI documents. `ACCESS` says the same by hand, so that neither a new endpoint nor a
changed role goes unnoticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from tests.control_plane import ControlPlane, Held
from tests.dags import dag, job, source
from tests.oidc_provider import OidcProvider
from tests.ports import free_port
from traceplane.adapters.wake_queue_postgres import PostgresWakeQueue
from traceplane.auth import opaque
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.auth.store import issue_token
from traceplane.dispatcher.api import InternalApi
from traceplane.http_service.app import App
from traceplane.http_service.server import serve
from traceplane.postgres import sign_in, tokens
from traceplane.postgres.sign_in import StoredProvider
from traceplane.signin.browser import hashed, new_secret

PUBLIC, KNOWN, READER, WRITER, ADMIN, WORKER, CAPABILITY = (
    *("public", "known", "reader", "writer", "admin"),
    *("worker", "capability"),
)

GATEWAY = {
    "POST /api/v1/plan": ADMIN,
    "POST /api/v1/deploy": ADMIN,
    "GET /api/v1/versions": READER,
    "POST /api/v1/cutover": ADMIN,
    "POST /api/v1/rollback": ADMIN,
    "POST /api/v1/abort": ADMIN,
    "POST /api/v1/delete": ADMIN,
    "GET /api/v1/dags": READER,
    "GET /api/v1/graph": READER,
    "GET /api/v1/overview": READER,
    "GET /api/v1/changes": READER,
    "GET /api/v1/events": READER,
    "GET /api/v1/events/{event_id}/effects": READER,
    "POST /api/v1/events": WRITER,
    "POST /api/v1/backfill": WRITER,
    "POST /api/v1/jobs/pause": WRITER,
    "POST /api/v1/jobs/resume": WRITER,
    "POST /api/v1/batches/close": WRITER,
    "GET /api/v1/tasks": READER,
    "GET /api/v1/tasks/{task_id}": READER,
    "GET /api/v1/tasks/{task_id}/effects": READER,
    "GET /api/v1/tasks/{task_id}/explain": READER,
    "GET /api/v1/tasks/{task_id}/logs": READER,
    "POST /api/v1/tasks/retry": WRITER,
    "POST /api/v1/tasks/cancel": WRITER,
    "POST /api/v1/tasks/acknowledge": WRITER,
    "GET /api/v1/dead-letters": READER,
    "GET /api/v1/dead-letters/{task_id}": READER,
    "POST /api/v1/dead-letters/replay": WRITER,
    "POST /api/v1/dead-letters/drop": WRITER,
    "POST /api/v1/query": READER,
    "POST /api/v1/query-plan": READER,
    "POST /api/v1/query-tasks": WRITER,
    "GET /api/v1/datasets": READER,
    "GET /api/v1/datasets/{dataset_id}": READER,
    "GET /api/v1/datasets/{dataset_id}/explain": READER,
    "GET /api/v1/datasets/{dataset_id}/coverage": READER,
    "GET /api/v1/datasets/{dataset_id}/column-lineage": READER,
    "GET /api/v1/status": READER,
    "GET /api/v1/health": READER,
    "GET /api/v1/datasets/{dataset_id}/history": READER,
    "GET /iceberg/v1/config": READER,
    "GET /iceberg/v1/{prefix}/namespaces": READER,
    "GET /iceberg/v1/{prefix}/namespaces/{namespace}": READER,
    "GET /iceberg/v1/{prefix}/namespaces/{namespace}/tables": READER,
    "GET /iceberg/v1/{prefix}/namespaces/{namespace}/tables/{table}": READER,
    "GET /iceberg/v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials": READER,
    "POST /api/v1/pipelines": WRITER,
    "GET /api/v1/pipelines": READER,
    "GET /api/v1/signals": READER,
    "GET /api/v1/pipelines/{pipeline_id}": READER,
    "PATCH /api/v1/pipelines/{pipeline_id}": WRITER,
    "DELETE /api/v1/pipelines/{pipeline_id}": WRITER,
    "GET /api/v1/scanner-lists": READER,
    "PUT /api/v1/scanner-lists/{name}": WRITER,
    "DELETE /api/v1/scanner-lists/{name}": WRITER,
    "GET /api/v1/user-limits": READER,
    "PUT /api/v1/user-limits/{user_id}": ADMIN,
    "GET /api/v1/executions": READER,
    "GET /api/v1/executions/{execution_id}": READER,
    "PATCH /api/v1/executions/{execution_id}": WRITER,
    "POST /hooks/{org}/{path}": PUBLIC,
    "GET /api/v1/webhooks": READER,
    "GET /api/v1/files": READER,
    "GET /api/v1/audit": ADMIN,
    "GET /api/v1/secrets": READER,  # those that its roles may set
    "PUT /api/v1/secrets/{namespace}/{name}": READER,  # the secret itself names the roles that may set it
    "POST /api/v1/secrets/{namespace}/{name}/rights": ADMIN,
    "DELETE /api/v1/secrets/{namespace}/{name}": ADMIN,
    "GET /api/v1/alerts": READER,
    "GET /api/v1/alerts/{alert_id}": READER,
    "GET /api/v1/alert-summary": READER,
    "POST /api/v1/alerts/acknowledge": WRITER,
    "POST /api/v1/alerts/test": WRITER,
    "GET /api/v1/alert-silences": READER,
    "POST /api/v1/alert-silences": WRITER,
    "DELETE /api/v1/alert-silences/{silence_id}": WRITER,
    "GET /api/v1/channels": ADMIN,
    "GET /api/v1/channels/{name}": ADMIN,
    "PUT /api/v1/channels/{name}": ADMIN,
    "DELETE /api/v1/channels/{name}": ADMIN,
    "POST /api/v1/channels/{name}/test": ADMIN,
    "GET /api/v1/deliveries": ADMIN,
    "POST /api/v1/deliveries/replay": ADMIN,
    "POST /api/v1/deliveries/drop": ADMIN,
    "GET /api/v1/whoami": KNOWN,
    "GET /api/v1/roles": READER,
    "PUT /api/v1/roles/{role}": ADMIN,
    "DELETE /api/v1/roles/{role}": ADMIN,
    "GET /api/v1/members": ADMIN,
    "PUT /api/v1/members/{member}": ADMIN,
    "DELETE /api/v1/members/{member}": ADMIN,
    "PUT /api/v1/members/{member}/roles/{role}": ADMIN,
    "DELETE /api/v1/members/{member}/roles/{role}": ADMIN,
    "GET /api/v1/tokens": READER,  # its own
    "POST /api/v1/tokens": ADMIN,
    "DELETE /api/v1/tokens/{token_id}": READER,  # its own
    "GET /api/v1/identity-providers": ADMIN,
    "GET /api/v1/identity-providers/{name}": ADMIN,
    "PUT /api/v1/identity-providers/{name}": ADMIN,
    "DELETE /api/v1/identity-providers/{name}": ADMIN,
    "GET /auth/login": PUBLIC,
    "GET /auth/callback": PUBLIC,
    "POST /auth/logout": KNOWN,
    "POST /auth/browser-link": KNOWN,
    "POST /auth/browser": PUBLIC,
    "POST /auth/device": PUBLIC,
    "POST /auth/device/token": PUBLIC,
    "GET /healthz": PUBLIC,
    "GET /readyz": PUBLIC,
}
DISPATCHER = {
    "POST /internal/task-claim": WORKER,
    "POST /internal/task-take": WORKER,
    "POST /internal/worker-leave": WORKER,
    "POST /internal/worker-hello": WORKER,
    "GET /internal/task-fetch": WORKER,
    "GET /internal/code": WORKER,
    "POST /internal/heartbeat": CAPABILITY,
    "POST /internal/events": CAPABILITY,
    "POST /internal/task-complete": CAPABILITY,
    "POST /internal/buffer-publish": CAPABILITY,
    "POST /internal/input-rows": CAPABILITY,
    "POST /internal/input-files": CAPABILITY,
    "GET /internal/jwks": PUBLIC,
    "GET /healthz": PUBLIC,
    "GET /readyz": PUBLIC,
}
BY_COOKIE = {"GET /auth/callback": "401 sign_in.not_begun_here"}
"""What a public endpoint answers to a browser that has begun no sign-in."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

LET_IN = "let in"
"""The call is not about who calls any more: it is answered, or its values are refused."""
NOT_THERE = "405 request.method_not_allowed"
ROLE_REQUIRED = "403 access.role_required"
WRONG_PRINCIPAL = "403 token.wrong_principal"
TASK_TOKEN = "the token of a task"
NO_ROLE = "nothing"
RANKS = {NO_ROLE: 0, KNOWN: 0, READER: 1, WRITER: 2, ADMIN: 3}


@dataclass(frozen=True)
class Presented:
    """A caller: its Authorization header, and the role behind it if it is a live user. `refusal` is what callers get
    whom no service knows, `unknown_to_dispatcher` whom the dispatcher does not know."""

    name: str
    header: str | None
    refusal: str = ""
    role: str | None = None
    is_worker: bool = False
    unknown_to_dispatcher: str = ""
    session: str | None = None
    csrf: str | None = None

    def expected(self, service: str, method: str, access: str) -> str:
        if access in (PUBLIC, CAPABILITY):  # the token of a task is in the body, which is another test
            return LET_IN
        if service == "dispatcher" and self.unknown_to_dispatcher:
            return self.unknown_to_dispatcher
        if self.refusal:
            return self.refusal
        if self.session is not None and self.csrf is None and method not in ("GET", "HEAD"):
            return "403 session.csrf"
        if access == WORKER:
            return LET_IN if self.is_worker else WRONG_PRINCIPAL
        if self.is_worker:
            return WRONG_PRINCIPAL
        assert self.role is not None
        return LET_IN if RANKS[self.role] >= RANKS[access] else ROLE_REQUIRED


class Services:
    def __init__(self, plane: ControlPlane, held: Held) -> None:
        self.plane, self.held = plane, held
        self.sessions: dict[str, aiohttp.ClientSession] = {}
        self.callers: list[Presented] = []

    async def document(self, service: str) -> dict[str, Any]:
        async with self.sessions[service].get("/openapi.json") as answer:
            document: dict[str, Any] = await answer.json()
        return document

    async def ask(
        self,
        service: str,
        method: str,
        path: str,
        header: str | None,
        body: bytes = b"{}",
        more: dict[str, str] | None = None,
    ) -> tuple[int, str]:
        """Status and code."""
        headers = {"content-type": "application/json", **(more or {})}
        if header is not None:
            headers["authorization"] = header
        async with self.sessions[service].request(method, path, data=body, headers=headers) as answer:
            raw = await answer.read()
        code = ""
        if answer.status >= 400 and raw:
            error = json.loads(raw)["error"]
            code = error.get("type", error["code"])  # Iceberg's errors have our code as their type
        elif answer.status >= 400:  # HEAD
            code = "?"
        return answer.status, code


@contextlib.asynccontextmanager
async def served(app: App, port: int = 0) -> AsyncIterator[aiohttp.ClientSession]:
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(app, port=port, stop=stop, bound=bound, grace=1.0))
    try:
        patient = aiohttp.ClientTimeout(total=600, sock_connect=600)  # thousands of calls, on a busy machine
        async with aiohttp.ClientSession(f"http://127.0.0.1:{await bound}", timeout=patient) as session:
            yield session
    finally:
        stop.set()
        await server


@pytest.fixture
async def theirs() -> AsyncIterator[OidcProvider]:
    async with OidcProvider.running() as provider:
        yield provider


@pytest.fixture
async def plane(database_url: str, theirs: OidcProvider) -> AsyncIterator[ControlPlane]:
    # Sessions over plain http are valid at the gateway's own address only.
    port = free_port()
    async with ControlPlane.open(database_url, gateway_port=port, outgoing_allow=(theirs.place,)) as opened:
        yield opened


@pytest.fixture
async def services(plane: ControlPlane, theirs: OidcProvider) -> AsyncIterator[Services]:
    await plane.deploy(dag("main", source("in"), job("copy", "in", "out")))
    await plane.emit("in", range(1))
    await plane.meter()
    (held,) = await plane.claim(await plane.send())
    made = Services(plane, held)
    made.callers = [*await callers(plane, held), *await signed_in_callers(plane, theirs)]
    internal = InternalApi(
        database=plane.database,
        authority=plane.authority,
        leases=plane.leases,
        local_queue=PostgresWakeQueue(plane.database),
        queues={},
    )
    async with (
        served(plane.api.app(), plane.settings.gateway_port) as gateway,
        served(internal.app(max_body_bytes=1 << 20)) as dispatcher,
    ):
        made.sessions = {"gateway": gateway, "dispatcher": dispatcher}
        yield made
    await plane.api.close()


async def callers(plane: ControlPlane, held: Held) -> list[Presented]:
    await plane.sql("insert into orgs (slug) values ('other')")
    await plane.sql(
        "insert into org_roles (org_id, name, includes, created_by)"
        " select org_id, r || '-finance', r, 'test' from orgs, unnest(array['reader', 'writer']) r"
    )
    live: dict[str, str] = {}
    async with plane.database.transaction() as tx:
        for role in (Role.READER, Role.WRITER):
            live[f"{role} by a role of the organization"] = await issue_token(
                tx, Principal.USER, org="default", name=f"{role}-finance", role=role
            )
        for org in ("default", "other"):
            for role in Role:
                live[f"{role} of {org}"] = await issue_token(
                    tx, Principal.USER, org=org, name=f"{org}-{role}", role=role
                )
            live[f"worker of {org}"] = await issue_token(tx, Principal.WORKER, org=org, name=f"{org}-worker")
        now = await tokens.clock(tx)
        live[f"{NO_ROLE} since its role was deleted"] = await issue_token(
            tx, Principal.USER, org="default", name="deleted-finance", role=Role.ADMIN
        )
    await plane.sql("update access_tokens set role = null, roles = array[name] where name like '%-finance'")
    ended: dict[str, str] = {}
    for name, change in {"expired": "expires_at", "revoked": "revoked_at"}.items():
        async with plane.database.transaction() as tx:
            ended[name] = await issue_token(tx, Principal.USER, org="default", name=name, role=Role.ADMIN)
            ended[f"{name} worker"] = await issue_token(
                tx, Principal.WORKER, org="default", name=f"{name} worker"
            )
        await plane.sql(
            f"update access_tokens set {change} = to_timestamp($1) where name like $2", now - 1, f"{name}%"
        )
    await plane.api.refresh()
    await plane.authority.refresh()
    unknown, _ = opaque.issue(Principal.USER, org="default", name="x", now=now, role=Role.ADMIN)
    admin = live["admin of default"]
    malformed = {
        "no token after the scheme": ("Bearer", "401 token.missing"),
        "an empty header": ("", "401 token.missing"),
        "another scheme": (f"Basic {admin}", "401 token.malformed"),
        "the token without a scheme": (admin, "401 token.malformed"),
        "a token with an odd character": ("Bearer tpu_é", "401 token.malformed"),
        "a mistyped token": (f"Bearer {admin[:-1]}{'A' if admin[-1] != 'A' else 'B'}", "401 token.malformed"),
        "a truncated token": (f"Bearer {admin[:-4]}", "401 token.malformed"),
        "two tokens": (f"Bearer {admin} {admin}", "401 token.malformed"),
        "never issued": (f"Bearer {unknown}", "401 token.unknown"),
    }
    return [
        Presented("nobody", None, "401 token.missing"),
        Presented(
            TASK_TOKEN,
            f"Bearer {held.capability_token}",
            "401 jwt.unknown_issuer",  # it is a JWT, though of no identity provider
            unknown_to_dispatcher="401 token.malformed",
        ),
        *(Presented(name, header, refusal) for name, (header, refusal) in malformed.items()),
        *(Presented(n, f"Bearer {t}", f"401 token.{n.split()[0]}") for n, t in ended.items()),
        *(
            Presented(
                n, f"Bearer {t}", role=n.split()[0] if "worker" not in n else None, is_worker="worker" in n
            )
            for n, t in live.items()
        ),
    ]


async def signed_in_callers(plane: ControlPlane, theirs: OidcProvider) -> list[Presented]:
    """By JWT and by session."""
    sessions: dict[str, str] = {}
    org_id = await plane.value("select org_id from orgs where slug = 'default'")
    async with plane.database.transaction() as tx:
        provider = StoredProvider(
            org="default",
            org_id=org_id,
            name="idp",
            issuer=theirs.url,
            client_id=theirs.client_id,
            client_secret=None,
            audience="traceplane-api",
            roles_claim="groups",
            role_map={role: role for role in Role},
            default_role=None,
            required_claims={},
            scopes=["openid"],
            set_by="test",
        )
        await sign_in.set_provider(tx, provider)
        for name in (*Role, "ended"):
            member = await sign_in.sign_in_member(
                tx,
                org_id,
                issuer=theirs.url,
                subject=name,
                name=f"person-{name}",
                name_if_taken=name,
                email=None,
            )
            roles = [Role.ADMIN if name == "ended" else name]
            await sign_in.set_claimed_roles(tx, org_id, member.member_id, roles, by="test")
            sessions[name] = secret = new_secret()
            csrf_hash = hashed(csrf_of(secret))
            await sign_in.add_session(
                tx, hashed(secret), org_id, member.member_id, csrf_hash=csrf_hash, seconds=3600
            )
        ended = sessions.pop("ended")
        await sign_in.end_session(tx, hashed(ended))
    await plane.api.refresh()

    def by_jwt(what: str, refusal: str = "", role: str | None = None, **claims: Any) -> Presented:
        token = theirs.machine_token(groups=[role or Role.ADMIN], **claims)
        name = f"a JWT, {what}"
        return Presented(name, f"Bearer {token}", refusal, role, unknown_to_dispatcher="401 token.malformed")

    def by_session(
        what: str, secret: str, csrf: str | None, role: str | None = None, refusal: str = ""
    ) -> Presented:
        unknown = "401 token.missing"
        return Presented(f"a session, {what}", None, refusal, role, False, unknown, secret, csrf)

    return [
        *(by_jwt(role, role=role) for role in Role),
        by_jwt("expired", "401 jwt.expired", exp=1),
        by_jwt("for another audience", "401 jwt.wrong_audience", aud="another"),
        *(by_session(role, secret, csrf_of(secret), role) for role, secret in sessions.items()),
        *(by_session(f"{role}, without CSRF token", secret, None, role) for role, secret in sessions.items()),
        by_session("ended", ended, csrf_of(ended), refusal="401 session.ended"),
    ]


def csrf_of(session: str) -> str:
    return session[::-1]


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """With the access that each names."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            principal = operation["x-traceplane-principal"]
            access = operation.get("x-traceplane-role", principal)
            roles = [access] if principal == "user" else []
            assert operation["security"] == ([] if principal == "public" else [{principal: roles}])
            yield f"{method.upper()} {path}", access


def route_of(routes: Iterable[str], method: str, path: str) -> str | None:
    """`/tasks/retry` is a task to a method that only tasks answer."""
    patterns = {route: re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(route)) for route in routes}
    matches = [route for route, pattern in patterns.items() if re.fullmatch(pattern, f"{method} {path}")]
    return min(matches, key=lambda route: route.count("{"), default=None)


@pytest.mark.parametrize(("service", "access"), [("gateway", GATEWAY), ("dispatcher", DISPATCHER)])
async def test_every_endpoint_has_the_access_that_is_written_here(
    services: Services, service: str, access: dict[str, str]
) -> None:
    assert dict(operations(await services.document(service))) == access


@pytest.mark.parametrize("service", ["gateway", "dispatcher"])
async def test_every_caller_gets_the_expected_answer_of_every_endpoint(
    services: Services, service: str
) -> None:
    access = dict(operations(await services.document(service)))
    paths = {path for _, _, path in (route.partition(" ") for route in access)}
    wrong: list[str] = []
    cells: Counter[str] = Counter()
    at_once = asyncio.Semaphore(40)

    async def check(caller: Presented, method: str, path: str) -> None:
        filled = re.sub(r"\{\w+\}", lambda _: str(uuid4()), path)
        route = route_of(access, "GET" if method == "HEAD" else method, filled)
        expected = NOT_THERE
        if route is not None:
            expected = BY_COOKIE.get(route) or caller.expected(service, method, access[route])
        browser: dict[str, str] = {}
        if caller.session is not None:
            origin = services.plane.settings.gateway_address
            browser = {"origin": origin, "cookie": f"traceplane_session={caller.session}"}
        if caller.csrf is not None:
            browser["x-csrf-token"] = caller.csrf
        async with at_once:
            status, code = await services.ask(service, method, filled, caller.header, more=browser)
        if expected == LET_IN:
            is_right = status not in (401, 403, 405, 429) and status < 500
        elif code == "?":
            is_right = expected.startswith(f"{status} ")
        else:
            is_right = f"{status} {code}" == expected
        cells[expected] += 1
        if not is_right:
            wrong.append(f"{caller.name}: {method} {path}: {status} {code}, not {expected}")

    def ends_its_session(caller: Presented, method: str, path: str) -> bool:
        return caller.csrf is not None and (method, path) == ("POST", "/auth/logout")

    every = list(itertools.product(services.callers, METHODS, sorted(paths)))
    await asyncio.gather(*(check(*cell) for cell in every if not ends_its_session(*cell)))
    await asyncio.gather(*(check(*cell) for cell in every if ends_its_session(*cell)))
    assert wrong == [], "\n".join(wrong[:20])
    assert cells.total() == len(services.callers) * len(METHODS) * len(paths)
    assert cells[LET_IN] > len(access)


async def test_what_is_about_a_task_needs_the_token_of_that_task(services: Services) -> None:
    """The tokens of these calls are in the body; a header adds nothing to them, not even one of a worker."""
    plane, held = services.plane, services.held
    await plane.emit("in", range(1, 2))
    await plane.meter()
    (other,) = await plane.claim(await plane.send())
    fence = {name: str(value) if name != "attempt" else value for name, value in held.fence.items()}
    event = {"output_index": 0, "scope": {"cursor": 0}}
    ref = held.job.outputs[0]
    versions = {"dataset_uuid": str(ref.dataset_uuid), "dataset_version": str(ref.dataset_version)}
    output = {**event, **versions}
    bodies: dict[str, dict[str, Any]] = {
        "POST /internal/heartbeat": {"beats": [fence]},
        "POST /internal/events": {"emissions": [{**fence, "events": [event]}]},
        "POST /internal/input-rows": {"fence": fence, "input_index": 0, "start": 0, "end": 0, "state": ""},
        "POST /internal/input-files": {"fence": fence, "input_index": 9},
        "POST /internal/task-complete": {"completions": [{**fence, "status": "canceled"}]},
        "POST /internal/buffer-publish": {"batches": [{**fence, "batch": 0, "output": output}]},
    }
    assert set(bodies) == {route for route, access in DISPATCHER.items() if access == CAPABILITY}
    presented = {c.name: (c.header or "").removeprefix("Bearer ") for c in services.callers}
    wrong: list[str] = []

    async def check(route: str, token: str, header: str | None, *expected: str) -> None:
        method, _, path = route.partition(" ")
        raw = json.dumps({"tokens": [token], **bodies[route]}).encode()
        answer = "{} {}".format(*await services.ask("dispatcher", method, path, header, raw))
        if answer not in expected:
            wrong.append(f"{route} with {token[:12]} and {header}: {answer}, not {expected}")

    def refusal(token: str) -> str:
        is_other = token.startswith(("tpu_", "tpw_", "eyJ"))
        return f"401 token.{'wrong_kind' if is_other else 'malformed' if token else 'missing'}"

    own = presented.pop(TASK_TOKEN)
    headers = [
        None,
        *(f"Bearer {presented[name]}" for name in ("worker of default", "admin of default", "nobody")),
    ]
    await asyncio.gather(
        *(check(r, t, h, refusal(t)) for h in headers for r in bodies for t in presented.values()),
        *(check(r, other.capability_token, h, "403 token.other_task") for h in headers for r in bodies),
    )
    # Neither its input nor its output is in a hot table. One of the calls ends the task.
    let_through = {
        "POST /internal/input-rows": ("403 task.input_not_granted", "409 task.stale"),
        "POST /internal/input-files": ("403 task.input_not_granted", "409 task.stale"),
        "POST /internal/buffer-publish": ("400 task.output_not_buffered",),
    }
    for header in headers:
        for route in bodies:
            await check(route, own, header, *let_through.get(route, ("200 ",)))
    assert wrong == [], "\n".join(wrong[:20])
