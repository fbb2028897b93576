"""The HTTP toolkit over a real loopback connection: what a caller may send, and what it always gets back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from openapi_spec_validator import validate
from yarl import URL

from tests.http_app import ROUTES, authenticate, make_app, running, status
from traceplane import telemetry
from traceplane.errors import DatabaseUnavailable
from traceplane.http_service.app import App
from traceplane.http_service.openapi import openapi
from traceplane.http_service.routes import ERROR_MARK, PUBLIC, Call, Reply, Route


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    telemetry.configure("test")
    async with running(make_app()) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        yield session


async def refusal(response: aiohttp.ClientResponse) -> tuple[int, str, str]:
    """Status, code and message of a failure, whose shape is checked on the way."""
    assert response.content_type == "application/json"
    body = await response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) <= {"code", "message", "value", "next_step"}
    return response.status, body["error"]["code"], body["error"]["message"]


async def post(client: aiohttp.ClientSession, body: bytes, path: str = "/tasks") -> aiohttp.ClientResponse:
    return await client.post(path, data=body, headers={"content-type": "application/json"})


async def test_a_typed_call_is_answered(client: aiohttp.ClientSession) -> None:
    response = await client.post("/tasks", json={"tasks": [{"task_id": "a", "attempt": 1}]})
    assert response.status == 200
    assert await response.json() == {"tasks": 1, "text": ""}


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"", "request.malformed_json", "not JSON"),
        (b"{", "request.malformed_json", "not JSON"),
        (b'{"tasks": []} x', "request.malformed_json", "not JSON"),
        (b'{"tasks": [], "config": {"a": "\xff"}}', "request.malformed_json", "not UTF-8"),
        (b'{"tasks": [], "ignored": "\xff"}', "request.malformed_json", "not UTF-8"),
        (b'{"tasks": [], "config": {"a": "\\ud800"}}', "request.malformed_json", "not JSON"),
        (b"[]", "request.invalid", "it must be an object, not a list"),
        (b"{}", "request.invalid", "`tasks` is missing"),
        (b'{"tasks": [{"task_id": "a", "attempt": "1"}]}', "request.invalid", "`tasks[0].attempt` "),
        (b'{"tasks": [{"task_id": "a", "attempt": 1.5}]}', "request.invalid", "`tasks[0].attempt` "),
        (b'{"tasks": [{"task_id": "\\u0000", "attempt": 1}]}', "request.invalid", "`tasks[0].task_id`"),
        (b'{"tasks": [], "config": {"a": [1, "x\\u0000"]}}', "request.invalid", "`config.a[1]`"),
        (b'{"tasks": [], "config": {"\\u0000": 1}}', "request.invalid", "`config (a key)`"),
        (
            b'{"tasks": [{"task_id": "a", "attempt": 9223372036854775808}]}',
            "request.invalid",
            "`tasks[0].attempt`",
        ),
        (b'{"tasks": [], "config": {"a": -9223372036854775809}}', "request.invalid", "`config.a`"),
        (b'{"tasks": [], "config": {"a": ' + b"9" * 5000 + b"}}", "request.invalid", "out of range"),
        (b'{"tasks": [], "config": {"a": ' + b"[" * 90_000, "request.invalid", "nested too deeply"),
        (b'{"tasks": [], "ignored": ' + b'{"a":' * 30_000, "request.invalid", "nested too deeply"),
    ],
)
async def test_an_invalid_body_is_refused_with_the_reason(
    client: aiohttp.ClientSession, body: bytes, code: str, says: str
) -> None:
    status, given_code, message = await refusal(await post(client, body))
    assert (status, given_code) == (400, code)
    assert says in message


@pytest.mark.parametrize(
    "body",
    [
        b'{"tasks": [{"task_id": "a", "attempt": 9223372036854775807}]}',
        b'{"tasks": [{"task_id": "00000000000000000000000000", "attempt": -9223372036854775808}]}',
        b'{"tasks": [], "config": {"a": 0.12345678901234567890123, "b": "a \\\\u0000 spelled out"}}',
    ],
)
async def test_a_body_that_only_looks_unstorable_is_accepted(
    client: aiohttp.ClientSession, body: bytes
) -> None:
    assert await status(post(client, body)) == 200


async def test_no_depth_of_nesting_is_an_internal_error(client: aiohttp.ClientSession) -> None:
    # Somewhere below the interpreter's limit, which depends on its version, a body can be decoded, but is too
    # deep for the handler.
    seen = set()
    for depth in (*range(850, 1010, 2), 20_000):
        body = b'{"tasks": [], "config": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
        seen.add(await status(post(client, body)))
    assert seen == {200, 400}


async def test_a_body_over_the_limit_is_refused_by_its_declared_length(client: aiohttp.ClientSession) -> None:
    body = json.dumps({"tasks": [], "config": {"a": "x" * 200_000}}).encode()
    assert (await refusal(await post(client, body)))[:2] == (413, "request.too_large")
    assert await status(client.get("/healthz")) == 200


async def test_a_body_over_the_limit_is_refused_while_it_streams(client: aiohttp.ClientSession) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 50_000_000:
            sent += 10_000
            yield b"x" * 10_000
            await asyncio.sleep(0)

    response = await client.post("/tasks", data=endless(), headers={"content-type": "application/json"})
    assert (await refusal(response))[:2] == (413, "request.too_large")
    assert sent < 50_000_000


async def test_a_streamed_body_under_the_limit_is_accepted(client: aiohttp.ClientSession) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b'{"tas', b'ks": [{"task_id": "', b"x" * 100_000, b'", "attempt": 1}]}'):
            yield piece
            await asyncio.sleep(0.01)

    response = await client.post("/tasks", data=pieces(), headers={"content-type": "application/json"})
    assert await response.json() == {"tasks": 1, "text": ""}


async def test_a_streamed_answer_is_complete_an_error_or_cut_off(client: aiohttp.ClientSession) -> None:
    async with client.get("/pieces/3/well") as response:
        assert response.headers["content-type"] == "text/csv"
        assert await response.read() == b"piece 0\npiece 1\npiece 2\n"
    async with client.get("/pieces/0/well") as response:
        assert (response.status, await response.read()) == (200, b"")
    async with client.get("/pieces/0/fails") as response:
        assert (await refusal(response))[:2] == (409, "dag.busy")
    with pytest.raises(aiohttp.ClientError):
        async with client.get("/pieces/2/fails") as response:
            await response.read()


async def test_a_caller_that_gives_a_mark_learns_why_its_answer_was_cut_off(
    client: aiohttp.ClientSession,
) -> None:
    received = bytearray()
    async with client.get("/pieces/2/fails", headers={ERROR_MARK: "--mark--"}) as response:
        with pytest.raises(aiohttp.ClientError):
            await _read_into(received, response)
    result, _, error = received.partition(b"--mark--")
    assert result == b"piece 0\npiece 1\n"
    assert error.startswith(b"409 ")
    assert json.loads(error[4:])["error"]["code"] == "dag.busy"


async def _read_into(received: bytearray, response: aiohttp.ClientResponse) -> None:
    async for piece in response.content.iter_any():
        received += piece


@pytest.mark.parametrize("path", ["/nothing", "/", "/tasks/", "/dags", "/dags/a/b", "/dags/", "/tasks%2F"])
async def test_an_unknown_path_is_404(client: aiohttp.ClientSession, path: str) -> None:
    assert (await refusal(await client.get(URL(path, encoded=True))))[:2] == (404, "request.unknown_path")


async def test_a_path_is_not_decoded_before_it_is_matched(client: aiohttp.ClientSession) -> None:
    response = await client.post(URL("/internal%2Ftasks", encoded=True), json={"tasks": []})
    assert (await refusal(response))[:2] == (404, "request.unknown_path")
    found = await client.get(URL("/dags/a%2Fb%20%C3%A9", encoded=True))
    assert (await found.json())["text"] == "a/b é"


async def test_a_path_parameter_with_nul_is_refused(client: aiohttp.ClientSession) -> None:
    status, code, _ = await refusal(await client.get(URL("/dags/a%00", encoded=True)))
    assert (status, code) == (400, "request.invalid")


async def test_a_wrong_method_is_405_and_names_the_right_ones(client: aiohttp.ClientSession) -> None:
    response = await client.put("/dags/active")
    assert (await refusal(response))[:2] == (405, "request.method_not_allowed")
    assert response.headers["allow"] == "DELETE, GET, POST"
    assert await status(client.delete("/dags/active")) == 204
    head = await client.head("/dags/chain")
    assert (head.status, await head.read()) == (200, b"")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_that_is_not_declared_json_is_415(
    client: aiohttp.ClientSession, content_type: str
) -> None:
    response = await client.post("/tasks", data=b'{"tasks":[]}', headers={"content-type": content_type})
    assert (await refusal(response))[:2] == (415, "request.unsupported_media_type")


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"]
)
async def test_json_may_be_declared_by_other_media_types(
    client: aiohttp.ClientSession, content_type: str
) -> None:
    headers = {"content-type": content_type}
    assert await status(client.post("/tasks", data=b'{"tasks":[]}', headers=headers)) == 200


async def test_a_raw_body_reaches_the_handler_untouched(client: aiohttp.ClientSession) -> None:
    response = await client.post("/hooks/a", data=b"\x00\xff", headers={"x-kind": "odd"})
    assert (await response.read(), response.headers["x-kind"]) == (b"\x00\xff", "odd")
    assert await status(client.post("/hooks/a", data=b"x" * 200_001)) == 413


async def test_a_caller_is_authenticated_before_its_body_is_read(client: aiohttp.ClientSession) -> None:
    response = await client.post("/internal/tasks", data=b"{not json")
    assert (await refusal(response))[:2] == (401, "auth.invalid_token")
    assert response.headers["www-authenticate"] == "Bearer"
    good = {"authorization": "Bearer worker-token"}
    answered = await client.post("/internal/tasks", json={"tasks": []}, headers=good)
    assert (await answered.json())["text"] == "worker"


async def test_an_authenticator_that_returns_none_refuses_everyone() -> None:
    app = App(ROUTES, authenticate=lambda incoming: None, title="Test", version="1")
    async with running(app) as port, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        response = await session.post("/internal/tasks", json={"tasks": []})
        assert (await refusal(response))[:2] == (401, "auth.required")


async def test_a_query_is_decoded_into_its_type(client: aiohttp.ClientSession) -> None:
    response = await client.get("/runs?limit=5&state=dead&state=failed&after=null%20x")
    assert await response.json() == {"limit": 5, "after": "null x", "state": ["dead", "failed"]}
    assert await (await client.get("/runs?state=dead")).json() == {
        "limit": 10,
        "after": None,
        "state": ["dead"],
    }


async def test_a_refused_query_names_the_value_and_a_refused_body_does_not_repeat_it(
    client: aiohttp.ClientSession,
) -> None:
    refused = (await (await client.get("/runs?limit=few")).json())["error"]
    assert (refused["value"], refused["next_step"]) == ("few", "correct it; see docs/reference/api.md")
    refused = (await (await post(client, b'{"tasks": "secret"}')).json())["error"]
    assert refused["next_step"] == "correct it; see docs/reference/api.md"
    assert "secret" not in str(refused)


@pytest.mark.parametrize(
    "query",
    [
        "limit=x",
        "limit=1&limit=2",
        "limit=9223372036854775808",
        "after=%00",
        "after=%ff",
        "unknown=1",
        "a&" * 300,
    ],
)
async def test_a_wrong_query_is_refused(client: aiohttp.ClientSession, query: str) -> None:
    assert (await refusal(await client.get(URL(f"/runs?{query}", encoded=True))))[:2] == (
        400,
        "request.invalid",
    )


async def test_an_error_of_the_tree_keeps_its_status_code_and_next_step(
    client: aiohttp.ClientSession,
) -> None:
    response = await client.post("/dags/active")
    assert response.status == 409
    assert await response.json() == {
        "error": {
            "code": "dag.busy",
            "message": "a deploy is under way",
            "value": "chain",
            "next_step": "wait for it",
        }
    }


async def test_an_unavailable_database_is_503_and_says_when_to_retry(client: aiohttp.ClientSession) -> None:
    response = await client.get("/no-database")
    assert (await refusal(response))[:2] == (503, "database.unavailable")
    assert response.headers["retry-after"] == "1"


async def test_an_unexpected_error_reveals_only_a_reference_to_the_log(
    client: aiohttp.ClientSession, capsys: pytest.CaptureFixture[str]
) -> None:
    response = await client.get("/breaks")
    text = await response.text()
    assert response.status == 500
    assert "hunter2" not in text
    assert "Traceback" not in text
    error = json.loads(text)["error"]
    assert error["code"] == "internal.unexpected"
    logged = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    (found,) = [line for line in logged if line["event"] == "http.error"]
    assert found["request_id"] == error["value"] == response.headers["x-request-id"]
    assert "hunter2" in found["traceback"]


async def test_every_answer_has_a_request_id_and_security_headers(client: aiohttp.ClientSession) -> None:
    for path in ("/dags/a", "/nothing", "/breaks", "/no-database", "/pieces/3/ends", "/pieces/0/fails"):
        async with client.get(path) as answer:
            await answer.read()
        assert len(answer.headers["x-request-id"]) == 16
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "strict-transport-security" not in answer.headers


async def test_a_request_id_of_the_caller_is_kept_if_it_can_stand_in_a_log_line(
    client: aiohttp.ClientSession, capsys: pytest.CaptureFixture[str]
) -> None:
    for sent, is_kept in (
        ("order-17/3", True),
        ("x" * 64, True),
        ("x" * 65, False),
        ("two words", False),
        ("caf\u00e9", False),
        ("", False),
    ):
        async with client.get("/breaks", headers={"X-Request-Id": sent}) as answer:
            error = (await answer.json())["error"]
        request_id = answer.headers["x-request-id"]
        assert (request_id == sent) == is_kept
        assert error["value"] == request_id
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert {line["request_id"] for line in lines} == {request_id}


async def test_a_reply_may_replace_a_header_of_every_answer() -> None:
    async def page(_: Call[None]) -> Reply:
        return Reply(b"<p>", "text/html", headers=((b"content-security-policy", b"default-src 'self'"),))

    route = Route("GET", "/page", None, Reply, page, PUBLIC, "A page.")
    app = App([route], authenticate=authenticate, title="Test", version="1")
    async with (
        running(app) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        session.get("/page") as answer,
    ):
        assert answer.headers.getall("content-security-policy") == ["default-src 'self'"]
        assert answer.headers["cache-control"] == "no-store"


async def test_requests_are_counted_by_route_template_and_status(client: aiohttp.ClientSession) -> None:
    for name in ("a", "b"):
        assert await status(client.get(f"/dags/{name}")) == 200
    assert await status(client.get("/nothing/at/all")) == 404
    text = telemetry.render_metrics().decode()
    assert 'traceplane_http_requests_total{route="GET /dags/{name}",status="200"} 2.0' in text
    assert 'traceplane_http_requests_total{route="unmatched",status="404"} 1.0' in text
    assert 'traceplane_http_request_seconds_count{route="GET /dags/{name}"} 2.0' in text


async def test_health_is_about_the_process_and_readiness_about_its_work() -> None:
    async def ready() -> None:
        raise DatabaseUnavailable("database.unavailable", "the database does not answer")

    async with (
        running(make_app(ready=ready)) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):
        assert await status(session.get("/healthz")) == 200
        assert await status(session.get("/readyz")) == 503


async def test_the_api_describes_itself(client: aiohttp.ClientSession) -> None:
    document = await (await client.get("/openapi.json")).json()
    validate(document)
    operation = document["paths"]["/internal/tasks"]["post"]
    assert operation["security"] == [{"worker": []}]
    assert set(operation["responses"]) == {
        "200",
        "400",
        "401",
        "403",
        "404",
        "409",
        "413",
        "415",
        "429",
        "500",
        "503",
    }
    assert operation["requestBody"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Batch"
    }
    assert document["components"]["securitySchemes"]["worker"]["scheme"] == "bearer"
    assert document["components"]["schemas"]["Fence"]["properties"]["attempt"]["format"] == "int64"
    parameters = {p["name"]: p for p in document["paths"]["/runs"]["get"]["parameters"]}
    assert set(parameters) == {"limit", "after", "state"}
    assert document["paths"]["/dags/{name}"]["get"]["parameters"][0]["in"] == "path"
    assert "204" in document["paths"]["/dags/{name}"]["delete"]["responses"]


def test_two_routes_cannot_share_a_method_and_a_path() -> None:
    with pytest.raises(ValueError, match="GET /runs"):
        App([*ROUTES, ROUTES[5]], authenticate=authenticate, title="Test", version="1")


def test_every_operation_has_a_unique_id() -> None:
    document = openapi(ROUTES, "Test", "1")
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids)) == len(ROUTES)
