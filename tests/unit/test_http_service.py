"""The HTTP toolkit over a real loopback connection: what a caller may send, and what it always gets back."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openapi_spec_validator import validate
from yarl import URL

from traceplane import telemetry
from traceplane.errors import Conflict, DatabaseUnavailable, Unauthenticated
from traceplane.http_service.app import App
from traceplane.http_service.openapi import openapi
from traceplane.http_service.routes import PUBLIC, Call, Push, Reply, Route, Stream
from traceplane.http_service.server import serve


class Fence(msgspec.Struct):
    task_id: str
    attempt: int


class Batch(msgspec.Struct):
    tasks: list[Fence]
    config: dict[str, Any] = {}


class Counted(msgspec.Struct):
    tasks: int
    text: str = ""


class Page(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 10
    after: str | None = None
    state: list[str] = []


async def count_tasks(call: Call[Batch]) -> Counted:
    msgspec.json.encode(call.body.config)
    return Counted(len(call.body.tasks), str(call.principal or ""))


async def echo_path(call: Call[None]) -> Counted:
    return Counted(0, call.path_params["name"])


async def list_page(call: Call[None]) -> Page:
    assert isinstance(call.query, Page)
    return call.query


async def echo_raw(call: Call[bytes]) -> Reply:
    return Reply(
        call.body, "application/octet-stream", headers=((b"x-kind", (call.header("X-Kind") or "").encode()),)
    )


async def in_pieces(call: Call[None]) -> Stream:
    async def write(push: Push) -> None:
        for number in range(int(call.path_params["count"])):
            await push(b"piece %d\n" % number)
        if call.path_params["end"] == "fails":
            raise Conflict("dag.busy", "a deploy is under way")

    return Stream(write, "text/csv")


async def remove(call: Call[None]) -> None:
    return None


async def breaks(call: Call[None]) -> Counted:
    raise RuntimeError("the password is hunter2")


async def conflicts(call: Call[None]) -> Counted:
    raise Conflict("dag.busy", "a deploy is under way", value="chain", next_step="wait for it")


async def no_database(call: Call[None]) -> Counted:
    raise DatabaseUnavailable("database.unavailable", "the database does not answer")


async def authenticate(principal: str, authorization: str | None) -> str:
    if authorization != f"Bearer {principal}-token":
        raise Unauthenticated("auth.invalid_token", "the token cannot be trusted")
    return principal


ROUTES = [
    Route("POST", "/tasks", Batch, Counted, count_tasks, PUBLIC, "Count the tasks."),
    Route("POST", "/internal/tasks", Batch, Counted, count_tasks, "worker", "Count, for a worker."),
    Route("GET", "/dags/{name}", None, Counted, echo_path, PUBLIC, "One DAG."),
    Route("DELETE", "/dags/{name}", None, None, remove, PUBLIC, "Remove a DAG."),
    Route("POST", "/dags/active", None, Counted, conflicts, PUBLIC, "Switch."),
    Route("GET", "/runs", None, Page, list_page, PUBLIC, "Runs.", query=Page),
    Route("POST", "/hooks/{name}", bytes, Reply, echo_raw, PUBLIC, "A webhook."),
    Route("GET", "/pieces/{count}/{end}", None, Stream, in_pieces, PUBLIC, "Pieces."),
    Route("GET", "/breaks", None, Counted, breaks, PUBLIC, "Fails."),
    Route("GET", "/no-database", None, Counted, no_database, PUBLIC, "Fails for now."),
]


def make_app(**options: Any) -> App:
    return App(
        ROUTES, authenticate=authenticate, title="Test", version="1", max_body_bytes=200_000, **options
    )


@asynccontextmanager
async def running(app: App, **options: Any) -> AsyncIterator[int]:
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(app, port=0, stop=stop, bound=bound, **options))
    try:
        yield await bound
    finally:
        stop.set()
        await asyncio.wait_for(server, 60)


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


async def status(answer: Awaitable[aiohttp.ClientResponse]) -> int:
    """The status of an answer whose body does not matter."""
    async with await answer as response:
        return response.status


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
    app = App(ROUTES, authenticate=lambda principal, authorization: None, title="Test", version="1")
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
    assert found["reference"] == error["value"]
    assert "hunter2" in found["traceback"]


async def test_requests_are_counted_by_route_template_and_status(client: aiohttp.ClientSession) -> None:
    for name in ("a", "b"):
        assert await status(client.get(f"/dags/{name}")) == 200
    assert await status(client.get("/nothing/at/all")) == 404
    text = await (await client.get("/metrics")).text()
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


# --- the connection ---------------------------------------------------------------------------------


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def converse(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


@pytest.mark.parametrize("sent", [b"GET / NONSENSE\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n"])
async def test_a_request_that_is_not_http_gets_a_json_error(sent: bytes) -> None:
    async with running(make_app()) as port:
        head, _, body = (await converse(port, sent)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["code"] == "request.malformed_http"


async def test_an_endless_head_is_cut_off() -> None:
    async with running(make_app()) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\n")

        async def fill() -> None:
            for _ in range(5000):
                writer.write(b"x-filler: " + b"x" * 10_000 + b"\r\n")
                await writer.drain()

        with pytest.raises(ConnectionError):
            await fill()
        writer.close()


async def test_a_caller_that_disconnects_midway_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("test")
    async with running(make_app()) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = (
            b"POST /tasks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"
        )
        writer.write(head + b"{")
        await writer.drain()
        writer.close()
        await until(lambda: b'route="POST /tasks",status="499"' in telemetry.render_metrics())
    assert "error" not in capsys.readouterr().err


async def test_at_stop_calls_in_flight_finish_and_stuck_ones_are_abandoned() -> None:
    release = asyncio.Event()
    entered = asyncio.Queue[str]()

    async def slow(call: Call[None]) -> Counted:
        entered.put_nowait(call.path_params["kind"])
        if call.path_params["kind"] == "stuck":
            await asyncio.Event().wait()
        await release.wait()
        return Counted(1)

    routes = [Route("GET", "/slow/{kind}", None, Counted, slow, PUBLIC, "Slow.")]
    app = App(routes, authenticate=authenticate, title="Test", version="1")
    stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(app, port=0, stop=stop, bound=bound, grace=1.0))
    async with aiohttp.ClientSession(f"http://127.0.0.1:{await bound}") as session:
        good = asyncio.create_task(session.get("/slow/good"))
        stuck = asyncio.create_task(session.get("/slow/stuck"))
        assert {await entered.get(), await entered.get()} == {"good", "stuck"}
        stop.set()
        await asyncio.sleep(0.2)
        release.set()
        assert await status(good) == 200
        await asyncio.wait_for(server, 60)
        await asyncio.wait([stuck], timeout=60)
        assert stuck.done()
        with pytest.raises(aiohttp.ClientConnectionError):
            await session.get("/healthz")


async def test_a_port_in_use_is_reported_at_once() -> None:
    async with running(make_app()) as port:
        with pytest.raises(Conflict, match="another process is listening on this port"):
            await serve(make_app(), port=port, stop=asyncio.Event())


def test_a_unix_socket_serves_too_and_a_stale_one_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "api.sock")
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(path)

    async def main() -> None:
        stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(make_app(), uds=path, stop=stop, bound=bound))
        await bound
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session:
            assert await status(session.get("http://local/healthz")) == 200
        stop.set()
        await server

    uvloop.run(main())
    assert not Path(path).exists()


# --- whatever is sent -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server of its own in a thread, on uvloop as in production."""
    ready = threading.Event()
    found: list[Any] = []

    async def main() -> None:
        stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(make_app(), port=0, stop=stop, bound=bound))
        found.extend((await bound, asyncio.get_running_loop(), stop))
        ready.set()
        await server

    thread = threading.Thread(target=lambda: uvloop.run(main()))
    thread.start()
    assert ready.wait(10)
    yield found[0]
    found[1].call_soon_threadsafe(found[2].set)
    thread.join(10)


def answer(port: int, method: str, path: str, body: bytes, content_type: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {"content-type": content_type})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


fuzz = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzz
@given(body=st.binary(max_size=300))
def test_no_bytes_are_an_internal_error(port: int, body: bytes) -> None:
    status, text = answer(port, "POST", "/tasks", body, "application/json")
    assert status in (200, 400)
    assert json.loads(text)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@fuzz
@given(tasks=anything, config=anything, more=anything)
def test_no_json_is_an_internal_error(port: int, tasks: Any, config: Any, more: Any) -> None:
    body = json.dumps({"tasks": tasks, "config": config, "more": more}).encode()
    assert answer(port, "POST", "/tasks", body, "application/json")[0] in (200, 400)


@fuzz
@given(
    path=st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), max_size=40),
    method=st.sampled_from(["GET", "POST", "DELETE", "PATCH", "OPTIONS"]),
)
def test_no_path_is_an_internal_error(port: int, path: str, method: str) -> None:
    for prefix in ("/", "/dags/", "/runs?"):
        assert answer(port, method, prefix + path, b"", "application/json")[0] in (
            200,
            204,
            400,
            404,
            405,
            409,
        )
