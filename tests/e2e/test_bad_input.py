"""Invalid requests are refused over real HTTP: a stable code, a sentence, and nothing written. Never a 500."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import aiohttp
import pytest
import pytest_asyncio

from tests.commands import Commands
from tests.dags import SOURCE, job
from tests.platform import Platform
from traceplane.auth.capability import Capability, JobGrants, TaskGrant, WriteGrant, mint
from traceplane.auth.keyring import Keyring, generate
from traceplane.auth.opaque import Principal, Role
from traceplane.auth.store import issue_token, load_keyring, read_master_key, revoke_tokens
from traceplane.postgres.database import Database
from traceplane.postgres.embedded.databases import create_database, drop_database
from traceplane.postgres.embedded.server import EmbeddedPostgres
from traceplane.wire.tasks import ClaimedTask, ClaimRequest, OutputRef

pytestmark = pytest.mark.asyncio(loop_scope="module")

DAG = SOURCE + job("copy", "in", "mid", "lease: 1h")
JSON = "application/json"
NUL = "\0"
TASK = "/api/v1/tasks/{}"


@dataclass
class AttackedPlatform:
    platform: Platform
    http: aiohttp.ClientSession
    tasks: list[ClaimedTask]
    output: OutputRef
    token: str
    """The capability that covers the first task alone."""
    other_token: str
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def held(self) -> ClaimedTask:
        return self.tasks[0]

    @property
    def fence(self) -> dict[str, Any]:
        return {
            "task_id": str(self.held.task_id),
            "attempt": self.held.attempt,
            "lease_token": str(self.held.lease_token),
        }

    def manifest(self, **changes: Any) -> dict[str, Any]:
        return {
            "output_index": 0,
            "dataset_uuid": str(self.output.dataset_uuid),
            "dataset_version": str(self.output.dataset_version),
            "scope": {"cursor": 1},
            **changes,
        }

    async def contents(self) -> dict[str, str]:
        """A digest of every table."""
        tables = await self.platform.sql(
            "select relname from pg_class where relnamespace = 'traceplane'::regnamespace and relkind = 'r'"
        )
        return {
            t[0]: await self.platform.value(
                f"select count(*) || ':' || coalesce(md5(string_agg(x::text, '|' order by x::text)), '') from {t[0]} x"
            )
            for t in tables
        }

    async def send(
        self, method: str, url: str, *, token: str | None, raw: bytes | None = None, content_type: str = JSON
    ) -> tuple[int, dict[str, Any]]:
        headers = {"content-type": content_type} if raw is not None else {}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        async with self.http.request(method, url, data=raw, headers=headers) as answer:
            text = await answer.text()
        return answer.status, json.loads(text) if text else {}

    async def refused(self, method: str, url: str, **request: Any) -> tuple[int, str]:
        """Status and code of a refusal, having made sure that it is one and left no trace."""
        before = await self.contents()
        status, body = await self.send(method, url, **request)
        assert 400 <= status < 500, (status, body)
        error = body["error"]
        assert error["code"].count(".") == 1
        assert len(error["message"]) > 10
        assert "Traceback" not in json.dumps(body)
        assert await self.contents() == before
        return status, error["code"]

    async def gateway(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[int, str]:
        options.setdefault("token", self.platform.user_token)
        raw = options.pop("raw", None if body is None else json.dumps(body).encode())
        return await self.refused(method, self.platform.gateway_url + path, raw=raw, **options)

    async def dispatcher(
        self, path: str, body: Any = None, *, method: str = "POST", **options: Any
    ) -> tuple[int, str]:
        options.setdefault("token", self.platform.worker_token)
        raw = options.pop("raw", None if body is None else json.dumps(body).encode())
        return await self.refused(method, self.platform.dispatcher_url + path, raw=raw, **options)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(
    postgres_server: EmbeddedPostgres, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AttackedPlatform]:
    url = await asyncio.to_thread(create_database, postgres_server, "bad_input", template=template_database)
    folder = tmp_path_factory.mktemp("platform")
    # Nothing may change by itself while tests compare: lost wake-ups are not sent again.
    patient = {"TRACEPLANE_RESEND_AFTER_SECONDS": "3600"}
    tokens = await _tokens(url)
    async with (
        Platform.start(url, folder, workers=0, environment=patient) as platform,
        aiohttp.ClientSession() as http,
    ):
        await platform.deploy(DAG)
        await platform.emit("in", range(3))
        ids = [r[0] for r in await platform.sql("select task_id from tasks order by task_id")]
        client = platform.worker_client()
        claims = [await client.claim(ClaimRequest("w", "python", chosen)) for chosen in (ids[:1], ids[1:])]
        await client.close()
        job = next(iter(claims[0].jobs.values()))
        tasks = [task for claim in claims for task in claim.tasks]
        yield AttackedPlatform(
            platform, http, tasks, job.outputs[0], claims[0].tokens[0], claims[1].tokens[0], tokens
        )
    await asyncio.to_thread(drop_database, postgres_server, "bad_input")


async def _tokens(url: str) -> dict[str, str]:
    """User and worker tokens that are good for little or nothing."""
    database = await Database.connect(url, connections=1)
    try:
        async with database.transaction() as tx:
            made = {
                "reader": await issue_token(tx, Principal.USER, org="default", name="r", role=Role.READER),
                "writer": await issue_token(tx, Principal.USER, org="default", name="w", role=Role.WRITER),
                "revoked": await issue_token(tx, Principal.USER, org="default", name="x", role=Role.ADMIN),
                "expired": await issue_token(
                    tx, Principal.USER, org="default", name="e", role=Role.ADMIN, lifetime_seconds=0.001
                ),
            }
            await revoke_tokens(tx, Principal.USER, org="default", name="x")
        return made
    finally:
        await database.close()


# Bodies ---------------------------------------------------------------------------------------------

NOT_JSON = [
    b"",
    b"{",
    b"{]",
    b"nul",
    b"\xff\xfe{}",
    b"'x'",
    b'"\\ud800"',
]
NOT_AN_OBJECT = [b"null", b"[]", b"1", b'"x"', b"true", b"[" * 50_000 + b"]" * 50_000]
POSTS_TO_GATEWAY = [
    "/api/v1/events",
    "/api/v1/plan",
    "/api/v1/deploy",
    "/api/v1/tasks/retry",
    "/api/v1/tasks/cancel",
]
POSTS_TO_DISPATCHER = [
    f"/internal/{name}" for name in ("task-claim", "heartbeat", "events", "task-complete", "task-take")
]


async def test_every_call_refuses_invalid_json(world: AttackedPlatform) -> None:
    for raw in NOT_JSON:
        for path in POSTS_TO_GATEWAY:
            assert await world.gateway("POST", path, raw=raw) == (400, "request.malformed_json"), (path, raw)
        for path in POSTS_TO_DISPATCHER:
            assert await world.dispatcher(path, raw=raw) == (400, "request.malformed_json"), (path, raw)


async def test_every_call_refuses_json_that_is_not_an_object(world: AttackedPlatform) -> None:
    for raw in NOT_AN_OBJECT:
        for path in POSTS_TO_GATEWAY:
            assert await world.gateway("POST", path, raw=raw) == (400, "request.invalid"), (path, raw)
        for path in POSTS_TO_DISPATCHER:
            assert await world.dispatcher(path, raw=raw) == (400, "request.invalid"), (path, raw)


async def test_every_call_refuses_an_empty_object(world: AttackedPlatform) -> None:
    for path in POSTS_TO_GATEWAY:
        assert await world.gateway("POST", path, {}) == (400, "request.invalid")
    for path in POSTS_TO_DISPATCHER:
        assert await world.dispatcher(path, {}) == (400, "request.invalid")


@pytest.mark.parametrize("service", ["gateway", "dispatcher"])
async def test_an_oversized_body_is_refused(world: AttackedPlatform, service: str) -> None:
    raw = b'{"text": "' + b"x" * (17 * 1024 * 1024) + b'"}'
    if service == "gateway":
        refusal = await world.gateway("POST", "/api/v1/deploy", raw=raw)
    else:
        refusal = await world.dispatcher("/internal/task-claim", raw=raw)
    assert refusal == (413, "request.too_large")


async def test_a_body_of_another_type_is_refused(world: AttackedPlatform) -> None:
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert await world.gateway("POST", "/api/v1/events", raw=b"{}", content_type=content_type) == (
            415,
            "request.unsupported_media_type",
        )


# Events ---------------------------------------------------------------------------------------------


def event(**changes: Any) -> dict[str, Any]:
    return {"dataset": "in", "scope": {"cursor": 1000}, **changes}


BAD_EVENTS: list[dict[str, Any]] = [
    {"dataset": 1},
    {"dataset": ""},
    {"dataset": None},
    {"dataset": "x" * 513},
    {"dataset": f"a{NUL}b"},
    {"emission": 5},
    {"emission": "x" * 257},
    {"emission": NUL},
    {"kind": "rumour"},
    {"unknown": 1},
    {"scope": None},
    {"scope": {}},
    {"scope": 5},
    {"scope": {"cursor": None}},
    {"scope": {"cursor": "5"}},
    {"scope": {"cursor": 1.5}},
    {"scope": {"cursor": True}},
    {"scope": {"cursor": 2**63}},
    {"scope": {"cursor": -(2**63) - 1}},
    {"scope": {"cursor": 10**40}},
    {"scope": {"cursor": 1, "start": 0}},
    {"scope": {"cursor": 1, "partition_key": "a", "start": 0, "end": 1}},
    {"scope": {"partition_key": "a"}},
    {"scope": {"partition_key": "a", "start": 0}},
    {"scope": {"partition_key": "a", "start": 5, "end": 4}},
    {"scope": {"partition_key": "", "start": 0, "end": 1}},
    {"scope": {"partition_key": NUL, "start": 0, "end": 1}},
    {"scope": {"partition_key": "a", "start": 0, "end": 2**63}},
    {"scope": {"partition_key": "x" * 513, "start": 0, "end": 1}},
    {"scope": {"cursor": 1, "extra": 1}},
]


async def test_an_invalid_event_is_refused_with_its_whole_call(
    world: AttackedPlatform,
) -> None:
    for change in BAD_EVENTS:
        body = {"events": [event(), event(**change)]}
        assert await world.gateway("POST", "/api/v1/events", body) == (400, "request.invalid"), change


async def test_an_event_of_a_dataset_that_takes_none_is_refused(world: AttackedPlatform) -> None:
    unknown = {"events": [event(), event(dataset="nowhere")]}
    assert await world.gateway("POST", "/api/v1/events", unknown) == (404, "dataset.unknown")
    derived = {"events": [event(), event(dataset="mid")]}
    assert await world.gateway("POST", "/api/v1/events", derived) == (400, "dataset.not_a_source")


async def test_too_few_and_too_many_items_are_refused(world: AttackedPlatform) -> None:
    for count in (0, 1001):
        body: dict[str, Any] = {"events": [event(scope={"cursor": 10_000 + n}) for n in range(count)]}
        assert await world.gateway("POST", "/api/v1/events", body) == (400, "request.invalid")
        ids = [str(uuid4()) for _ in range(count)]
        for path in ("/api/v1/tasks/retry", "/api/v1/tasks/cancel"):
            assert await world.gateway("POST", path, {"task_ids": ids}) == (400, "request.invalid")
        claim = {"worker_id": "w", "runtime": "python", "task_ids": ids}
        assert await world.dispatcher("/internal/task-claim", claim) == (400, "request.invalid")


# Commands -------------------------------------------------------------------------------------------

REFUSED_COMMANDS = [
    (("tasks", "--dag", "mian"), "dag.unknown: there is no such DAG (value: 'mian') → did you mean 'main'?"),
    (("dead", "--dag", "mian", "--all"), "dag.unknown: there is no such DAG"),
    (("dead", "--job", "copi"), "job.unknown: no DAG has such a job (value: 'copi') → did you mean 'copy'?"),
    (("retry", "--dag", "main", "--job", "copi"), "job.unknown: DAG main has no such job (value: 'copi')"),
    (("executions", "list", "--pipeline", str(uuid4())), "pipeline.unknown: there is no such pipeline"),
    (
        ("token", "revoke", "user", "tset"),
        "token.not_found: there is no user with this name (value: 'tset') → did you mean 'test'?",
    ),
    (("explain", "mid", "-x"), "cli.usage: no such option '-x'"),
]


async def test_a_command_about_something_that_does_not_exist_says_so(world: AttackedPlatform) -> None:
    async with Commands.of(world.platform) as commands:
        for arguments, expected in REFUSED_COMMANDS:
            assert (await commands.on_a_terminal(*arguments)).startswith(expected), arguments
        assert (
            await commands.on_a_terminal("token", "revoke", "user", "x")
            == "revoked 0: x was revoked before\n"
        )


async def test_explain_takes_negative_scopes(world: AttackedPlatform) -> None:
    async with Commands.of(world.platform) as commands:
        for scope, positions in (("-5", "-5"), ("-5..-3", "-5..-3")):
            shown = await commands.on_a_terminal("explain", "in", scope)
            assert shown.startswith(f"in {positions}: {positions} missing.\n"), shown
            assert f"`traceplane emit in {scope}`" in shown


async def test_a_value_that_does_not_fit_is_named_with_what_it_must_be(world: AttackedPlatform) -> None:
    for path, body, expected in (
        (
            "/api/v1/events",
            {"events": [event(kind="rumour")]},
            "`events[0].kind` must be one of data, invalidation",
        ),
        (
            "/api/v1/events",
            {"events": [event(scope={"cursor": "5"})]},
            "`events[0].scope.cursor` must be a whole number, not text",
        ),
        ("/api/v1/tasks?limit=x", None, "`limit` must be a whole number, not text"),
        ("/api/v1/tasks?limit=0", None, "`limit` must be at least 1"),
    ):
        raw = None if body is None else json.dumps(body).encode()
        url, token = world.platform.gateway_url + path, world.platform.user_token
        _, answer = await world.send("GET" if body is None else "POST", url, token=token, raw=raw)
        assert answer["error"]["message"].endswith(f" is not valid: {expected}")


# Tasks and deploys ----------------------------------------------------------------------------------


async def test_a_task_that_does_not_exist_is_not_found(world: AttackedPlatform) -> None:
    for path in (TASK.format(uuid4()), TASK.format(uuid4()) + "/explain"):
        assert await world.gateway("GET", path) == (404, "task.unknown")


@pytest.mark.parametrize(
    "text", ["x", "%00", "1", "..", "%2e%2e%2f", "{}", "0" * 5000, "'; drop table tasks; --"]
)
async def test_an_invalid_task_id_is_refused(world: AttackedPlatform, text: str) -> None:
    for path in (TASK.format(text), TASK.format(text) + "/explain"):
        status, code = await world.gateway("GET", path)
        assert (status, code) in {
            (400, "task.bad_id"),
            (400, "request.invalid"),
            (404, "request.unknown_path"),
        }


async def test_invalid_ids_are_refused(world: AttackedPlatform) -> None:
    for ids in (["x"], [1], [None], [str(uuid4()), "x"], "x", {"a": 1}):
        for path in ("/api/v1/tasks/retry", "/api/v1/tasks/cancel"):
            assert await world.gateway("POST", path, {"task_ids": ids}) == (400, "request.invalid"), ids


async def test_unknown_tasks_change_nothing(world: AttackedPlatform) -> None:
    before = await world.contents()
    for path in ("/api/v1/tasks/retry", "/api/v1/tasks/cancel"):
        unknown = str(uuid4())
        body = json.dumps({"task_ids": [unknown]}).encode()
        url = world.platform.gateway_url + path
        status, answer = await world.send("POST", url, token=world.platform.user_token, raw=body)
        unchanged = {"unchanged": [unknown], "why_unchanged": {unknown: "unknown"}}
        assert (status, answer) == (200, {"changed": {}, **unchanged})
    assert await world.contents() == before


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "limit=-1",
        "limit=1&limit=2",
        "limit=99999999999999999999",
        "limit=" + "9" * 5000,
        "state=asleep",
        "before=x",
        "other=1",
        "dag=%00",
        "dag=%ff",
    ],
)
async def test_invalid_query_parameters_are_refused(world: AttackedPlatform, query: str) -> None:
    assert await world.gateway("GET", f"/api/v1/tasks?{query}") == (400, "request.invalid")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"text": ""}, (400, "request.invalid")),
        ({"text": 5}, (400, "request.invalid")),
        ({"text": "x" * 1_048_577}, (400, "request.invalid")),
        ({"text": "version: 1", "file": NUL}, (400, "request.invalid")),
        ({"text": "version: 1", "expect_version": -1}, (400, "request.invalid")),
        ({"text": "version: 1", "expect_version": 2**31}, (400, "request.invalid")),
        ({"text": "version: 1"}, (400, "spec.invalid")),
        ({"text": "a: [1"}, (400, "spec.invalid")),
        ({"text": "&a [*a]"}, (400, "spec.invalid")),
        ({"text": "a: !!python/object:os.system x"}, (400, "spec.invalid")),
        ({"text": DAG.replace("runtime: python", "runtime: abacus")}, (400, "spec.invalid")),
        ({"text": DAG.replace("dataset: in", 'dataset: "a\\0"')}, (400, "spec.invalid")),
        (
            {"text": DAG.replace("{from: {dataset: in}}", "{from: {dataset: gone}}")},
            (404, "deploy.unknown_dataset"),
        ),
        ({"text": DAG.replace("dag: main", "dag: thief")}, (409, "deploy.dataset_owned")),
        ({"text": DAG, "expect_version": 7}, (409, "deploy.version_moved")),
        ({"text": DAG.replace("basic:copy", "basic.copy")}, (400, "spec.invalid")),
        ({"text": DAG, "code": {"basic.py": "def copied(task): ..."}}, (400, "spec.invalid")),
        (
            {"text": DAG.replace("kind: manual", "kind: cron, schedule: '* * * * *'")},
            (400, "spec.invalid"),
        ),
        ({"text": DAG.replace("operator: python", "operator: cobol")}, (400, "spec.invalid")),
        ({"text": DAG.replace("operator: python", "operator: range_ingest")}, (400, "spec.invalid")),
    ],
)
async def test_an_invalid_deploy_is_refused(
    world: AttackedPlatform, body: dict[str, Any], expected: tuple[int, str]
) -> None:
    assert await world.gateway("POST", "/api/v1/deploy", body) == expected


async def test_a_plan_writes_nothing(world: AttackedPlatform) -> None:
    before = await world.contents()
    body = json.dumps(
        {"text": DAG.replace("dag: main", "dag: other").replace("in}", "in2}").replace("mid}", "mid2}")}
    )
    url = f"{world.platform.gateway_url}/api/v1/plan"
    status, answer = await world.send("POST", url, token=world.platform.user_token, raw=body.encode())
    assert (status, answer["dag"]) == (200, "other")
    assert await world.contents() == before


async def test_paths_and_methods_that_do_not_exist(world: AttackedPlatform) -> None:
    assert await world.gateway("GET", "/api/v1/nothing") == (404, "request.unknown_path")
    assert await world.gateway("PUT", "/api/v1/events", raw=b"{}") == (405, "request.method_not_allowed")
    assert await world.dispatcher("/internal/task-claim", method="GET") == (405, "request.method_not_allowed")
    for path in POSTS_TO_DISPATCHER:
        assert await world.gateway("POST", path, {}) == (404, "request.unknown_path"), (
            "the gateway exposes it"
        )


# Who may call ---------------------------------------------------------------------------------------


async def test_every_call_of_the_gateway_needs_a_token(world: AttackedPlatform) -> None:
    for path in POSTS_TO_GATEWAY:
        assert await world.gateway("POST", path, {}, token=None) == (401, "token.missing")
    for path in (
        "/api/v1/dags",
        "/api/v1/tasks",
        "/api/v1/status",
        TASK.format(uuid4()),
        TASK.format(uuid4()) + "/explain",
    ):
        assert await world.gateway("GET", path, token=None) == (401, "token.missing")


async def test_an_invalid_user_token_is_refused_with_the_reason(world: AttackedPlatform) -> None:
    mistyped = world.platform.user_token[:-1] + ("a" if world.platform.user_token[-1] != "a" else "b")
    reasons = {
        "x": (401, "token.malformed"),
        mistyped: (401, "token.malformed"),
        world.tokens["revoked"]: (401, "token.revoked"),
        world.tokens["expired"]: (401, "token.expired"),
        world.platform.worker_token: (403, "token.wrong_principal"),
        world.token: (401, "token.malformed"),
    }
    for token, reason in reasons.items():
        assert await world.gateway("POST", "/api/v1/events", {"events": [event()]}, token=token) == reason


async def test_a_role_grants_what_it_says_and_no_more(world: AttackedPlatform) -> None:
    denied = (403, "access.role_required")
    for path in ("/api/v1/events", "/api/v1/tasks/retry", "/api/v1/tasks/cancel", "/api/v1/deploy"):
        assert await world.gateway("POST", path, {}, token=world.tokens["reader"]) == denied
    for path in ("/api/v1/plan", "/api/v1/deploy"):
        assert await world.gateway("POST", path, {"text": DAG}, token=world.tokens["writer"]) == denied


async def test_worker_calls_are_for_workers(world: AttackedPlatform) -> None:
    claim = {"worker_id": "w", "runtime": "python", "task_ids": [str(uuid4())]}
    for token, reason in {
        None: (401, "token.missing"),
        world.platform.user_token: (403, "token.wrong_principal"),
        world.token: (401, "token.malformed"),
        "tpw_x": (401, "token.malformed"),
    }.items():
        assert await world.dispatcher("/internal/task-claim", claim, token=token) == reason
        fetch = "/internal/task-fetch?" + "&".join(f"{k}={v}" for k, v in world.fence.items())
        assert await world.dispatcher(fetch, method="GET", token=token) == reason
        take = {"worker_id": "w", "runtime": "python"}
        assert await world.dispatcher("/internal/task-take", take, token=token) == reason


# Capability tokens ----------------------------------------------------------------------------------


def speaking(world: AttackedPlatform, capability_token: str, **changes: Any) -> dict[str, dict[str, Any]]:
    """What a holder of this capability could say, call by call."""
    fence = {**world.fence, **changes}
    return {
        "/internal/heartbeat": {"tokens": [capability_token], "beats": [fence]},
        "/internal/events": {
            "tokens": [capability_token],
            "emissions": [{**fence, "events": [{"output_index": 0, "scope": {"cursor": 1}}]}],
        },
        "/internal/task-complete": {
            "tokens": [capability_token],
            "completions": [{**fence, "status": "completed", "outputs": [world.manifest()]}],
        },
    }


async def test_a_user_or_worker_token_is_not_a_capability(world: AttackedPlatform) -> None:
    for token in (world.platform.user_token, world.platform.worker_token):
        for path, body in speaking(world, token).items():
            assert await world.dispatcher(path, body) == (401, "token.wrong_kind")


async def test_a_capability_of_another_task_or_attempt_covers_nothing_else(world: AttackedPlatform) -> None:
    refusal = (403, "token.other_task")
    for path, body in speaking(world, world.other_token).items():
        assert await world.dispatcher(path, body) == refusal
    for path, body in speaking(world, world.token, attempt=world.held.attempt + 1).items():
        assert await world.dispatcher(path, body) == refusal
    for path, body in speaking(world, world.token, task_id=str(world.tasks[1].task_id)).items():
        assert await world.dispatcher(path, body) == refusal
    for path, body in speaking(world, world.token, token=1).items():
        assert await world.dispatcher(path, body) == refusal
    unknown = str(uuid4())
    for path, body in speaking(world, world.token, task_id=unknown).items():
        assert await world.dispatcher(path, body) == refusal


def capability(world: AttackedPlatform, expires_at: float) -> Capability:
    write = WriteGrant(0, str(world.output.dataset_uuid), str(world.output.dataset_version))
    task = TaskGrant(str(world.held.task_id), world.held.attempt, 0)
    return Capability("default", (task,), (JobGrants((), (write,)),), expires_at)


async def test_a_forged_capability_is_refused(world: AttackedPlatform) -> None:
    stranger = Keyring((generate(time.time() - 10),))
    foreign = mint(capability(world, time.time() + 3600), stranger, time.time())
    header, claims, signature = world.token.split(".")
    decoded = json.loads(_unpack(header))
    forged = {
        foreign: "token.unknown_key",
        f"{header}.{foreign.split('.')[1]}.{foreign.split('.')[2]}": "token.bad_signature",
        f"{header}.{foreign.split('.')[1]}.{signature}": "token.bad_signature",
        f"{_pack({**decoded, 'alg': 'none'})}.{claims}.": "token.bad_signature",
        f"{_pack({**decoded, 'alg': 'HS256'})}.{claims}.{signature}": "token.bad_signature",
        f"{_pack({**decoded, 'typ': 'JWT'})}.{claims}.{signature}": "token.wrong_kind",
        f"{_pack({**decoded, 'jku': 'https://example.com'})}.{claims}.{signature}": "token.malformed",
        f"{header}.{claims}": "token.malformed",
        "a.b.c": "token.malformed",
        "…": "token.malformed",
    }
    for token, code in forged.items():
        for path, body in speaking(world, token).items():
            assert await world.dispatcher(path, body) == (401, code), token


async def test_an_expired_capability_is_refused_though_it_is_ours(world: AttackedPlatform) -> None:
    database = await Database.connect(world.platform.url, connections=1)
    async with database.transaction() as tx:
        ring = await load_keyring(tx, read_master_key(world.platform.folder / "master.key"))
    await database.close()
    signed_at = max(key.activates_at for key in ring.keys)
    expired = mint(capability(world, expires_at=signed_at + 0.01), ring, signed_at)
    for path, body in speaking(world, expired).items():
        assert await world.dispatcher(path, body) == (401, "token.expired")


async def test_a_stale_fence_is_reported_and_changes_nothing(world: AttackedPlatform) -> None:
    before = await world.contents()
    for path, body in speaking(world, world.token, lease_token=str(uuid4())).items():
        url, raw = world.platform.dispatcher_url + path, json.dumps(body).encode()
        status, answer = await world.send("POST", url, token=None, raw=raw)
        assert (status, answer["outcomes"][0]["outcome"]) == (200, "stale")
    assert await world.contents() == before


def _pack(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _unpack(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


# What a worker says ---------------------------------------------------------------------------------


def completion(world: AttackedPlatform, **changes: Any) -> dict[str, Any]:
    return {"tokens": [world.token], "completions": [{**world.fence, "status": "completed", **changes}]}


def staged(path: str, **more: Any) -> dict[str, Any]:
    return {"path": path, "rows": 1, "bytes": 1, **more}


async def test_files_outside_the_granted_prefix_are_refused(world: AttackedPlatform) -> None:
    (prefix,) = world.held.write_prefixes
    other = world.tasks[1].write_prefixes[0]
    for path in [
        "x",
        "/etc/passwd",
        "../" + prefix + "x",
        prefix + "../x",
        prefix + "a/../../../x",
        prefix + "..",
        prefix,
        prefix + "a//b",
        prefix + "./x",
        prefix + "a/",
        prefix.replace("/1/", "/2/") + "x",
        prefix.rstrip("/") + "x",
        prefix.upper() + "x",
        other + "x",
        "s3://" + prefix + "x",
        prefix.replace("/", "\\") + "x",
    ]:
        body = completion(world, outputs=[world.manifest(files=[staged(path)])])
        assert await world.dispatcher("/internal/task-complete", body) == (403, "task.output_not_granted"), (
            path
        )


async def test_outputs_and_events_that_were_not_granted_are_refused(world: AttackedPlatform) -> None:
    for change in (
        {"outputs": [world.manifest(output_index=1)]},
        {"outputs": [world.manifest(output_index=10_000)]},
        {"outputs": [world.manifest(dataset_uuid=str(uuid4()))]},
        {"outputs": [world.manifest(dataset_version=str(uuid4()))]},
        {"events": [{"output_index": 1, "scope": {"cursor": 1}}]},
    ):
        body = completion(world, **change)
        assert await world.dispatcher("/internal/task-complete", body) == (403, "task.output_not_granted"), (
            change
        )
    emission = {**world.fence, "events": [{"output_index": 3, "scope": {"cursor": 1}}]}
    body = {"tokens": [world.token], "emissions": [emission]}
    assert await world.dispatcher("/internal/events", body) == (403, "task.output_not_granted")


async def test_one_invalid_completion_fails_its_whole_call(world: AttackedPlatform) -> None:
    good = {**world.fence, "status": "failed", "error": {"code": "x", "message": "x"}}
    bad = {**world.fence, "status": "completed", "outputs": [world.manifest(output_index=7)]}
    body = {"tokens": [world.token], "completions": [good, bad]}
    assert await world.dispatcher("/internal/task-complete", body) == (403, "task.output_not_granted")


BAD_REPORTS: list[Callable[[AttackedPlatform], dict[str, Any]]] = [
    lambda w: completion(w, status="done"),
    lambda w: completion(w, attempt=0),
    lambda w: completion(w, attempt=2**31),
    lambda w: completion(w, lease_token="x"),
    lambda w: completion(w, token=-1),
    lambda w: completion(w, token=1000),
    lambda w: completion(w, surprise=1),
    lambda w: completion(w, traceparent="00-xyz"),
    lambda w: completion(w, error={"code": "", "message": "x"}),
    lambda w: completion(w, error={"code": "x"}),
    lambda w: completion(w, error={"code": "x", "message": "x" * 20_001}),
    lambda w: completion(w, error={"code": "x", "message": NUL}),
    lambda w: completion(w, status="failed", error={"code": "x", "message": "x", "logs": [f"a{NUL}"]}),
    lambda w: completion(w, status="failed", error={"code": "x", "message": "x", "line": 2**63}),
    lambda w: completion(w, outputs=[w.manifest(row_count=-1)]),
    lambda w: completion(w, outputs=[w.manifest(bytes=2**63)]),
    lambda w: completion(w, outputs=[w.manifest(scope={})]),
    lambda w: completion(w, outputs=[w.manifest(output_index=-1)]),
    lambda w: completion(w, outputs=[w.manifest(output_index=10_001)]),
    lambda w: completion(w, outputs=[w.manifest(schema_hash="x" * 129)]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("")])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged(w.held.write_prefixes[0] + NUL)])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x" * 2049)])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x", statistics={"m": 10**30})])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x", statistics={"m": {"min": {}}})])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x", statistics={"m": {"max": f"a{NUL}"}})])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x", statistics={"": {"max": 1}})])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x", statistics={"m": {"null_count": -1}})])]),
    lambda w: completion(w, outputs=[w.manifest(files=[staged("x", statistics={"m": {"max": "x" * 1025}})])]),
    lambda w: completion(w, outputs=[w.manifest(schema=[{"name": "a"}])]),
    lambda w: completion(w, outputs=[w.manifest(schema=[{"name": "", "type": "int64"}])]),
    lambda w: completion(w, outputs=[w.manifest(schema=[{"name": NUL, "type": "int64"}])]),
    lambda w: completion(w, outputs=[w.manifest(schema={"a": "int64"})]),
    lambda w: completion(w, outputs=[w.manifest()] * 10_001),
    lambda w: {**completion(w), "tokens": []},
    lambda w: {**completion(w), "tokens": [5]},
    lambda w: {**completion(w), "tokens": [w.token] * 1001},
    lambda w: {**completion(w), "completions": []},
    lambda w: {**completion(w), "completions": [{**w.fence, "status": "canceled"}] * 1001},
]  # fmt: skip


async def test_an_invalid_report_is_refused(world: AttackedPlatform) -> None:
    for make in BAD_REPORTS:
        body = make(world)
        assert await world.dispatcher("/internal/task-complete", body) == (400, "request.invalid"), str(body)[
            :500
        ]


async def test_other_invalid_worker_calls_are_refused(world: AttackedPlatform) -> None:
    beat = {"tokens": [world.token], "beats": [{**world.fence, "progress": [1]}]}
    assert await world.dispatcher("/internal/heartbeat", beat) == (400, "request.invalid")
    beat = {"tokens": [world.token], "beats": [{**world.fence, "progress": {"note": NUL}}]}
    assert await world.dispatcher("/internal/heartbeat", beat) == (400, "request.invalid")
    for take in ({"limit": 0}, {"limit": 1001}, {"wait_seconds": 61}, {"wait_seconds": -1}, {"runtime": NUL}):
        body = {"worker_id": "w", "runtime": "python", **take}
        assert await world.dispatcher("/internal/task-take", body) == (400, "request.invalid"), take
    for runtime in ("dispatcher", "no-such-runtime"):
        body = {"worker_id": "w", "runtime": runtime}
        assert await world.dispatcher("/internal/task-take", body) == (400, "runtime.no_local_queue")
    for claim in ({"worker_id": ""}, {"worker_id": NUL}, {"runtime": 5}, {"task_ids": ["x"]}):
        body = {"worker_id": "w", "runtime": "python", "task_ids": [str(uuid4())], **claim}
        assert await world.dispatcher("/internal/task-claim", body) == (400, "request.invalid"), claim


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": "x"},
        {"attempt": "0"},
        {"attempt": str(2**31)},
        {"task_id": "x"},
        {"lease_token": ""},
        {"more": "1"},
    ],
)
async def test_an_invalid_fetch_is_refused(world: AttackedPlatform, change: dict[str, str]) -> None:
    query = "&".join(f"{key}={value}" for key, value in {**world.fence, **change}.items())
    assert await world.dispatcher(f"/internal/task-fetch?{query}", method="GET") == (400, "request.invalid")


async def test_a_refused_claim_says_why_and_changes_nothing(world: AttackedPlatform) -> None:
    before = await world.contents()
    client = world.platform.worker_client()
    unknown: UUID = uuid4()
    answer = await client.claim(ClaimRequest("w", "python", [unknown, world.held.task_id]))
    wrong = await client.claim(ClaimRequest("w", "abacus", [world.held.task_id]))
    await client.close()
    assert {r.task_id: r.reason for r in answer.refused} == {
        unknown: "unknown",
        world.held.task_id: "running",
    }
    assert [r.reason for r in wrong.refused] == ["wrong_runtime"]
    assert (answer.tasks, answer.tokens, wrong.tasks) == ([], [], [])
    assert await world.contents() == before
