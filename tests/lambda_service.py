"""AWS Lambda on this machine: the Invoke API in front of real processes, each of which runs one function.

    async with LambdaService.start(folder) as service:
        service.add("my-transfers", "transfers.enrich", code)

A process is started for the first call of a function and gets its calls one by one through Lambda's runtime interface
(`tests.lambda_bootstrap` is its other end), with none of this process's environment. If it dies, its call is answered
as Lambda does it, and the next call starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import urllib.parse
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from aiohttp import web

from tests.platform import die_with_parent

_BOOTSTRAP = Path(__file__).parent / "lambda_bootstrap.py"
_LARGEST_PAYLOAD = 6 * 1024 * 1024


@dataclass
class Call:
    request_id: str
    payload: bytes
    deadline: float
    answer: asyncio.Future[tuple[bytes, bool]]
    """The bytes of the answer, and whether it is an error."""


@dataclass
class Function:
    name: str
    handler: str
    code: Path
    timeout: float
    environment: dict[str, str]
    waiting: asyncio.Queue[Call] = field(default_factory=asyncio.Queue)
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    current: Call | None = None
    process: asyncio.subprocess.Process | None = None
    calls: int = 0
    """How often it was invoked."""
    answered: list[bytes] = field(default_factory=list)

    def kill(self) -> None:
        """SIGKILL to its process: no cleanup runs."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)


class LambdaService:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._functions: dict[str, Function] = {}
        self._runners: list[web.AppRunner] = []
        self._watches: set[asyncio.Task[None]] = set()
        self.url = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, folder: Path) -> AsyncIterator[LambdaService]:
        service = cls(folder)
        app = web.Application(client_max_size=_LARGEST_PAYLOAD)
        app.router.add_post("/2015-03-31/functions/{name}/invocations", service._invoke)
        service.url = await service._serve(app)
        try:
            yield service
        finally:
            await service._close()

    def environment(self) -> dict[str, str]:
        """For a dispatcher that calls functions of this service."""
        return {
            "AWS_ENDPOINT_URL_LAMBDA": self.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
        }

    def add(
        self, name: str, handler: str, code: Path, *, timeout: float = 60.0, **environment: str
    ) -> Function:
        """`handler` is `module.function`, found in the folder `code`."""
        self._functions[name] = Function(name, handler, code, timeout, environment)
        return self._functions[name]

    def log(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    async def _serve(self, app: web.Application) -> str:
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    async def _close(self) -> None:
        for watch in self._watches:
            watch.cancel()
        for function in self._functions.values():
            if function.process is not None and function.process.returncode is None:
                function.kill()
                await function.process.wait()
        for runner in self._runners:
            await runner.cleanup()

    # The Invoke API --------------------------------------------------------------------------------

    async def _invoke(self, request: web.Request) -> web.StreamResponse:
        name = urllib.parse.unquote(request.match_info["name"]).split(":function:")[-1].partition(":")[0]
        function = self._functions.get(name)
        if function is None:
            error = {"Message": f"Function not found: {name}"}
            kind = {"x-amzn-ErrorType": "ResourceNotFoundException"}
            return web.json_response(error, status=404, headers=kind)
        function.calls += 1
        deadline = time.time() + function.timeout
        answer: asyncio.Future[tuple[bytes, bool]] = asyncio.get_running_loop().create_future()
        function.waiting.put_nowait(Call(str(uuid4()), await request.read(), deadline, answer))
        await self._ensure_process(function)
        body, failed = await answer
        function.answered.append(body)
        return web.Response(body=body, headers={"X-Amz-Function-Error": "Unhandled"} if failed else {})

    # The runtime interface -------------------------------------------------------------------------

    async def _ensure_process(self, function: Function) -> None:
        async with function.starting:
            if function.process is None or function.process.returncode is not None:
                await self._start_process(function)

    async def _start_process(self, function: Function) -> None:
        app = web.Application(client_max_size=_LARGEST_PAYLOAD)

        async def take(_: web.Request) -> web.StreamResponse:
            function.current = call = await function.waiting.get()
            headers = {
                "Lambda-Runtime-Aws-Request-Id": call.request_id,
                "Lambda-Runtime-Deadline-Ms": str(int(call.deadline * 1000)),
            }
            return web.Response(body=call.payload, headers=headers)

        async def answered(request: web.Request) -> web.StreamResponse:
            call, function.current = function.current, None
            assert call is not None
            assert call.request_id == request.match_info["id"]
            call.answer.set_result((await request.read(), request.path.endswith("/error")))
            return web.Response(status=202)

        app.router.add_get("/2018-06-01/runtime/invocation/next", take)
        app.router.add_post("/2018-06-01/runtime/invocation/{id}/response", answered)
        app.router.add_post("/2018-06-01/runtime/invocation/{id}/error", answered)
        address = await self._serve(app)
        with (self._folder / f"{function.name}.log").open("ab") as log:
            function.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # modules of tests have names of the standard library
                str(_BOOTSTRAP),
                env={
                    "PATH": os.defpath,
                    "AWS_LAMBDA_RUNTIME_API": address.removeprefix("http://"),
                    "AWS_LAMBDA_FUNCTION_NAME": function.name,
                    "AWS_REGION": "eu-central-1",
                    "_HANDLER": function.handler,
                    "LAMBDA_TASK_ROOT": str(function.code),
                    **function.environment,
                },
                cwd=function.code,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        watch = asyncio.create_task(self._watch(function, function.process))
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)

    async def _watch(self, function: Function, process: asyncio.subprocess.Process) -> None:
        """Ends a process whose call takes too long, and answers the call of one that ended."""
        ending = asyncio.create_task(process.wait())
        why = "exited without an answer"
        while not ending.done():
            await asyncio.wait((ending,), timeout=0.05)
            if function.current is not None and time.time() > function.current.deadline:
                why = f"timed out after {function.timeout:.2f} seconds"
                with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                    process.kill()
        call, function.current = function.current, None
        if call is None and not function.waiting.empty():
            call = function.waiting.get_nowait()  # its module could not be imported
        if call is not None and not call.answer.done():
            error = (
                f'{{"errorType": "Runtime.ExitError", "errorMessage": "RequestId: {call.request_id} {why}"}}'
            )
            call.answer.set_result((error.encode(), True))
        if not function.waiting.empty():
            await self._ensure_process(function)
