"""Invalid requests are refused over real HTTP: a stable code, a sentence, and nothing written. Never a 500."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from tests.commands import Commands
from tests.e2e.attacked_platform import (
    DAG,
    NUL,
    POSTS_TO_DISPATCHER,
    POSTS_TO_GATEWAY,
    TASK,
    AttackedPlatform,
    event,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
