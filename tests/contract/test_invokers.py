"""The contract of every invoker, against a real server, a real child process and Lambda's own wire protocol."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shlex
import sys
import time
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import aiohttp
import msgspec
import pytest
import uvloop
from aiobotocore.session import AioSession
from aiohttp import web

from traceplane.adapters.invokers import HttpInvoker, InvocationFailed, Invoker, LambdaInvoker, ProcessInvoker
from traceplane.dispatcher.invocations import read_answer
from traceplane.wire.invocations import Answer
from traceplane.wire.tasks import Completion, Fence

REGION = "eu-central-1"
PAYLOAD = b'{"task": {}}'
LIMIT = 1_000_000


async def failure(invoker: Invoker, target: str, *, timeout: float = 120) -> InvocationFailed:
    with pytest.raises(InvocationFailed) as raised:
        await invoker.invoke(target, PAYLOAD, timeout)
    return raised.value


async def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def serving(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    app = web.Application(client_max_size=100_000_000)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


# HTTP -----------------------------------------------------------------------------------------------


@pytest.fixture
async def http() -> AsyncIterator[HttpInvoker]:
    invoker = HttpInvoker(max_answer_bytes=LIMIT)
    yield invoker
    await invoker.close()


@pytest.fixture
async def function_url() -> AsyncIterator[str]:
    async def function(request: web.Request) -> web.StreamResponse:
        match request.path:
            case "/echo":
                return web.Response(body=request.content_type.encode() + b" " + await request.read())
            case "/slow":
                await asyncio.sleep(60)
            case "/drip":
                drip = web.StreamResponse()
                await drip.prepare(request)
                await drip.write(b"{")
                await asyncio.sleep(60)
            case "/huge":
                return web.Response(body=b" " * (LIMIT + 1))
            case "/moved":
                raise web.HTTPTemporaryRedirect("/echo")
            case "/hangs-up":
                assert request.transport is not None
                request.transport.abort()
        return web.Response(status=int(request.path[1:] or 200), text="what went wrong")

    async with serving(function) as url:
        yield url


async def test_http_posts_the_payload_and_answers_with_the_body(http: HttpInvoker, function_url: str) -> None:
    answer = await http.invoke(f"{function_url}/echo", PAYLOAD, 20)
    assert answer == b"application/json " + PAYLOAD


async def test_http_a_large_payload_arrives_complete(http: HttpInvoker, function_url: str) -> None:
    payload = os.urandom(LIMIT - 100)
    assert (await http.invoke(f"{function_url}/echo", payload, 20)).endswith(payload)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/slow", "invoke.timeout"),
        ("/drip", "invoke.timeout"),
        ("/huge", "invoke.bad_answer"),
        ("/moved", "invoke.refused"),
        ("/hangs-up", "invoke.refused"),
        ("/404", "invoke.refused"),
        ("/429", "invoke.refused"),
        ("/500", "invoke.function_error"),
        ("/503", "invoke.function_error"),
    ],
)
async def test_http_failures_have_their_codes(
    http: HttpInvoker, function_url: str, path: str, code: str
) -> None:
    error = await failure(http, function_url + path, timeout=0.5 if code == "invoke.timeout" else 120)
    assert error.code == code
    if path[1:].isdigit():
        assert error.value == f"HTTP {path[1:]}: what went wrong"


@pytest.mark.parametrize("target", ["http://127.0.0.1:1/", "http://nowhere.invalid/", "not a url", ""])
async def test_http_an_unreachable_target_is_an_error(http: HttpInvoker, target: str) -> None:
    assert (await failure(http, target)).code == "invoke.refused"


async def test_http_a_canceled_call_closes_its_connection(http: HttpInvoker) -> None:
    requests: list[web.Request] = []

    async def function(request: web.Request) -> web.StreamResponse:
        requests.append(request)
        await asyncio.sleep(60)
        return web.Response()

    async with serving(function) as url:
        call = asyncio.create_task(http.invoke(url, PAYLOAD, 60))
        await eventually(lambda: bool(requests))
        assert requests[0].transport is not None
        call.cancel()
        await eventually(lambda: requests[0].transport is None)


# Process --------------------------------------------------------------------------------------------


def python(code: str) -> str:
    return shlex.join([sys.executable, "-I", "-c", code])


@pytest.fixture
def process() -> ProcessInvoker:
    return ProcessInvoker(max_answer_bytes=LIMIT)


async def test_process_gets_the_payload_and_answers_on_its_output(process: ProcessInvoker) -> None:
    code = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])"
    payload = os.urandom(LIMIT)
    assert await process.invoke(python(code), payload, 20) == payload[::-1]


async def test_process_sees_nothing_of_our_environment(
    process: ProcessInvoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPLANE_WORKER_TOKEN", "secret")
    environment = json.loads(
        await process.invoke(python("import os, json; print(json.dumps(dict(os.environ)))"), b"", 20)
    )
    assert set(environment) <= {"PATH", "LANG", "LC_CTYPE"}


async def test_process_that_fails_is_quoted_from_its_end(process: ProcessInvoker) -> None:
    code = (
        "import sys; print('chatter ' * 100_000, file=sys.stderr); raise SystemExit('no such column: price')"
    )
    error = await failure(process, python(code))
    assert error.code == "invoke.function_error"
    assert str(error.value).startswith("exit code 1: ")
    assert str(error.value).endswith("no such column: price")
    assert len(str(error.value)) < 5000


async def test_process_that_is_killed_reports_the_signal(process: ProcessInvoker) -> None:
    error = await failure(process, python("import os; os.kill(os.getpid(), 9)"))
    assert (error.code, error.value) == ("invoke.function_error", "signal 9: ")


async def test_process_that_never_reads_may_still_answer(process: ProcessInvoker) -> None:
    assert await process.invoke(python("print('{}')"), b" " * LIMIT, 20) == b"{}\n"


def test_process_that_ends_without_reading_is_judged_by_its_exit_code(process: ProcessInvoker) -> None:
    """On uvloop, which services use: there, writing to a closed pipe is a RuntimeError."""

    async def invoke_on_a_busy_loop(target: str) -> bytes:
        call = asyncio.create_task(process.invoke(target, b" " * LIMIT, 20))
        while not call.done():
            time.sleep(0.02)  # noqa: ASYNC251 - so that the process has ended before it is written to
            await asyncio.sleep(0)
        return await call

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for _ in range(10):
            assert runner.run(invoke_on_a_busy_loop("true")) == b""
            with pytest.raises(InvocationFailed) as raised:
                runner.run(invoke_on_a_busy_loop("false"))
            assert raised.value.code == "invoke.function_error"


async def test_process_that_writes_without_end_is_stopped(process: ProcessInvoker) -> None:
    error = await failure(process, python("while True: print('x' * 1000)"))
    assert error.code == "invoke.bad_answer"


@pytest.mark.parametrize("target", ["/no/such/command", "", "unclosed 'quote", "/"])
async def test_process_a_missing_command_is_an_error(process: ProcessInvoker, target: str) -> None:
    assert (await failure(process, target)).code == "invoke.refused"


FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(600)"])
with open({path!r} + ".new", "w") as file:
    file.write(f"{{os.getpid()}} {{child.pid}}")
os.rename({path!r} + ".new", {path!r})
{then}
"""


async def test_process_that_times_out_is_killed_with_its_children(
    process: ProcessInvoker, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    error = await failure(process, python(FAMILY.format(path=str(pids), then="time.sleep(600)")), timeout=3)
    assert error.code == "invoke.timeout"
    await all_gone(pids)


async def test_process_of_a_canceled_call_is_killed_with_its_children(
    process: ProcessInvoker, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    target = python(FAMILY.format(path=str(pids), then="time.sleep(600)"))
    call = asyncio.create_task(process.invoke(target, PAYLOAD, 60))
    await eventually(pids.exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await all_gone(pids)


async def test_process_leaves_no_children_behind_when_it_ends(
    process: ProcessInvoker, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    # A child that kept the answer's pipe open would delay the answer; this one has closed it.
    code = FAMILY.format(path=str(pids), then="print('{}')").replace('sleep(600)"]', 'sleep(600)"], **SILENT')
    silent = "import subprocess; SILENT = dict.fromkeys(('stdout', 'stderr'), subprocess.DEVNULL)"
    assert await process.invoke(python(silent + code), PAYLOAD, 20) == b"{}\n"
    await all_gone(pids)


async def test_process_whose_child_leaves_the_group_does_not_block(process: ProcessInvoker) -> None:
    code = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-I', '-c', 'import time; time.sleep(60)'],"
        " start_new_session=True)"
    )
    async with asyncio.timeout(50):
        assert (await failure(process, python(code), timeout=2)).code == "invoke.timeout"


async def all_gone(pids: Path) -> None:
    await eventually(lambda: not any(_alive(int(pid)) for pid in pids.read_text().split()))


def _alive(pid: int) -> bool:
    """A zombie counts as dead: a container may have no process that reaps orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


# Lambda ---------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def lambda_at(endpoint: str, session: AioSession) -> AsyncIterator[LambdaInvoker]:
    invoker = LambdaInvoker(region=REGION, endpoint_url=endpoint, session=session, max_answer_bytes=LIMIT)
    try:
        yield invoker
    finally:
        await invoker.close()


async def test_lambda_invokes_a_function_of_the_service(aws_endpoint: str, aws_session: AioSession) -> None:
    """moto's simple Lambda runs no code: it returns a prepared answer, or the payload."""
    async with aiohttp.ClientSession() as moto:
        await moto.post(f"{aws_endpoint}/moto-api/config", json={"lambda": {"use_docker": False}})
        prepared = {"results": ['{"accepted": true}'], "region": REGION}
        await moto.post(f"{aws_endpoint}/moto-api/static/lambda-simple/response", json=prepared)
    await create_function(aws_endpoint, aws_session, "doubler")
    async with lambda_at(aws_endpoint, aws_session) as invoker:
        assert read_answer(await invoker.invoke("doubler", PAYLOAD, 20)).accepted
        assert await invoker.invoke("doubler", PAYLOAD, 20) == PAYLOAD


async def create_function(endpoint: str, session: AioSession, name: str) -> None:
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("function.py", "def handle(event, context): return event")
    where = {"region_name": REGION, "endpoint_url": endpoint}
    async with (
        session.create_client("iam", **where) as iam,
        session.create_client("lambda", **where) as client,
    ):
        role = await iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")
        await client.create_function(
            FunctionName=name,
            Runtime="python3.11",
            Role=role["Role"]["Arn"],
            Handler="function.handle",
            Code={"ZipFile": code.getvalue()},
        )


class LambdaService:
    """Lambda's Invoke call as its API reference describes it, for the answers that moto cannot give."""

    def __init__(self) -> None:
        self.calls: list[web.Request] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(request)
        _, _, _, function, _ = request.path.split("/")
        match function:
            case "raises":
                body = {"errorMessage": "division by zero", "errorType": "ZeroDivisionError"}
                return web.json_response(body, headers={"X-Amz-Function-Error": "Unhandled"})
            case "slow":
                await asyncio.sleep(60)
            case "huge":
                return web.Response(body=b" " * (LIMIT + 1))
            case "busy":
                return self._error(429, "TooManyRequestsException")
            case "broken":
                return self._error(500, "ServiceException")
            case "missing":
                return self._error(404, "ResourceNotFoundException")
        return web.Response(body=await request.read())

    def _error(self, status: int, code: str) -> web.Response:
        return web.json_response({"Message": "said no"}, status=status, headers={"x-amzn-ErrorType": code})


@pytest.fixture
async def service() -> AsyncIterator[tuple[LambdaService, str]]:
    server = LambdaService()
    async with serving(server.answer) as url:
        yield server, url


async def test_lambda_is_called_synchronously_with_the_payload(
    service: tuple[LambdaService, str], aws_session: AioSession
) -> None:
    server, url = service
    async with lambda_at(url, aws_session) as invoker:
        assert await invoker.invoke("echo", PAYLOAD, 20) == PAYLOAD
    (call,) = server.calls
    assert (call.method, call.path) == ("POST", "/2015-03-31/functions/echo/invocations")
    assert call.headers["X-Amz-Invocation-Type"] == "RequestResponse"


@pytest.mark.parametrize(
    ("function", "code", "says"),
    [
        ("raises", "invoke.function_error", "division by zero"),
        ("slow", "invoke.timeout", ""),
        ("huge", "invoke.bad_answer", ""),
        ("busy", "invoke.refused", "TooManyRequestsException"),
        ("broken", "invoke.refused", "ServiceException"),
        ("missing", "invoke.refused", "ResourceNotFoundException"),
    ],
)
async def test_lambda_failures_have_their_codes_and_are_not_retried(
    service: tuple[LambdaService, str], aws_session: AioSession, function: str, code: str, says: str
) -> None:
    server, url = service
    async with lambda_at(url, aws_session) as invoker:
        error = await failure(invoker, function, timeout=3 if function == "slow" else 120)
    assert error.code == code
    assert says in str(error.value)
    assert len(server.calls) == 1


async def test_lambda_that_is_unreachable_is_an_error(aws_session: AioSession) -> None:
    async with lambda_at("http://127.0.0.1:1", aws_session) as invoker:
        assert (await failure(invoker, "any")).code == "invoke.refused"


# Answers --------------------------------------------------------------------------------------------


def test_an_answer_is_a_completion_without_its_fence() -> None:
    def types(struct: type[msgspec.Struct]) -> dict[str, Any]:
        return {f.name: f.type for f in msgspec.structs.fields(struct)}

    completion, answer = types(Completion), types(Answer)
    # Functions that are invoked delete no rows of hot tables, hand nothing back, and are claimed for.
    for name in (*types(Fence), "traceparent", "hot_reads", "seen_commit"):
        del completion[name]
    del answer["accepted"]
    assert answer.pop("status") == Literal["completed", "failed", "canceled"] | None
    assert completion.pop("status") == Literal["completed", "failed", "canceled", "returned"]
    assert answer == completion


def test_an_answer_reports_the_end_of_the_task_or_that_a_report_will_follow() -> None:
    assert read_answer(b'{"accepted": true}').accepted
    assert read_answer(b'{"status": "completed"}').status == "completed"
    failed = read_answer(
        b'{"status": "failed", "error": {"code": "x.y", "message": "no", "retryable": false}}'
    )
    assert failed.error is not None
    assert not failed.error.retryable


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b'{"accepted": false}',
        b'{"accepted": true, "status": "completed"}',
        b'{"accepted": true, "events": [{"output_index": 0, "scope": {"cursor": 1}}]}',
        b'{"status": "done"}',
        b'{"status": "completed", "task_id": "1"}',
        b'{"status": "completed", "outputs": [{"output_index": -1}]}',
        b'{"status": "completed", "events": [{"output_index": 0, "scope": {}}]}',
        b'{"status": "completed"} trailing',
        b"[" * 100_000,
    ],
)
def test_any_other_answer_is_invalid(raw: bytes) -> None:
    with pytest.raises(InvocationFailed) as raised:
        read_answer(raw)
    assert raised.value.code == "invoke.bad_answer"
