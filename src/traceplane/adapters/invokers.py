"""Ways to call a function with a task: over HTTP, as a child process, or on AWS Lambda.

An invoker makes one call and never retries it: retries belong to the task. It returns the bytes of the function's
answer, or raises `InvocationFailed`. Canceling the call closes the connection or kills the child process; a remote
function may continue for a while, and its report is then stale.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from typing import TYPE_CHECKING, Any, Protocol

from traceplane.errors import PlatformError

if TYPE_CHECKING:
    import aiohttp

MAX_ANSWER_BYTES = 16 * 1024 * 1024
_CONNECT_SECONDS = 5.0
_LONGEST_LAMBDA_SECONDS = 900.0
_DETAIL_CHARACTERS = 4000
_CHUNK = 64 * 1024


class InvocationFailed(PlatformError):
    """The call failed. Codes:

    invoke.timeout         it took longer than the job's timeout
    invoke.refused         the target was unreachable or rejected the call
    invoke.function_error  the function ran and failed
    invoke.bad_answer      the answer is too large or invalid
    """


class Invoker(Protocol):
    async def invoke(self, target: str, payload: bytes, timeout_seconds: float) -> bytes: ...

    async def close(self) -> None: ...


class HttpInvoker:
    """POST to the target; the answer is the body. Redirects are rejected, because the payload carries a token."""

    def __init__(self, *, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def invoke(self, target: str, payload: bytes, timeout_seconds: float) -> bytes:
        import aiohttp  # most dispatchers call no functions and start faster without it

        if self._session is None:
            # A call is not retried, so it must not use an idle connection that is just being closed. Cookies of one
            # task's call must not reach the next.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True), cookie_jar=aiohttp.DummyCookieJar()
            )
        try:
            async with (
                asyncio.timeout(timeout_seconds),
                self._session.post(
                    target,
                    data=payload,
                    headers={"content-type": "application/json"},
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                ) as response,
            ):
                answer = await _read(response.content, self._max_answer_bytes)
        except aiohttp.ConnectionTimeoutError as error:
            raise _refused(error) from error
        except TimeoutError as error:
            raise _timed_out(timeout_seconds) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _refused(error) from error
        if 200 <= response.status < 300:
            return answer
        answered = f"HTTP {response.status}: {_tail(answer)}"
        raise _function_failed(answered) if response.status >= 500 else _refused(answered)


class ProcessInvoker:
    """A command with the payload on its standard input; the answer is everything that it writes to its output.

    The command gets its own process group, which is killed when the call ends, and none of this process's
    environment. It is not sandboxed: it runs as this process's user.
    """

    def __init__(self, *, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._max_answer_bytes = max_answer_bytes

    async def close(self) -> None:
        pass

    async def invoke(self, target: str, payload: bytes, timeout_seconds: float) -> bytes:
        loop = asyncio.get_running_loop()
        try:
            # Like asyncio.create_subprocess_exec, except that the transport can be closed in the end.
            transport, protocol = await loop.subprocess_exec(
                lambda: SubprocessStreamProtocol(limit=_CHUNK, loop=loop),
                *shlex.split(target),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                start_new_session=True,
            )
        except (OSError, ValueError, TypeError) as error:  # no such command, bad quoting, an empty command
            raise _refused(error) from error
        process = Process(transport, protocol, loop)
        try:
            async with asyncio.timeout(timeout_seconds):
                answer, complaints, code = await self._converse(process, payload)
        except TimeoutError as error:
            raise _timed_out(timeout_seconds) from error
        finally:
            await _kill_group(process)
            transport.close()
        if code != 0:
            ended = f"exit code {code}" if code > 0 else f"signal {-code}"
            raise _function_failed(f"{ended}: {_tail(complaints)}")
        return answer

    async def _converse(self, process: Process, payload: bytes) -> tuple[bytes, bytes, int]:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        answer, complaints, _ = await asyncio.gather(
            _read(process.stdout, self._max_answer_bytes),
            _read_end(process.stderr),
            _feed(process.stdin, payload),
        )
        return answer, complaints, await process.wait()


class LambdaInvoker:
    """A synchronous AWS Lambda invocation, with botocore's retries off. Needs the extra `aws`."""

    def __init__(
        self,
        *,
        region: str,
        endpoint_url: str | None = None,
        session: Any = None,
        connections: int = 256,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._region = region
        self._endpoint_url = endpoint_url
        self._session = session
        self._connections = connections
        self._max_answer_bytes = max_answer_bytes
        self._opening = asyncio.Lock()
        self._open = contextlib.AsyncExitStack()
        self._client: Any = None

    async def close(self) -> None:
        self._client = None
        await self._open.aclose()

    async def invoke(self, target: str, payload: bytes, timeout_seconds: float) -> bytes:
        import aiohttp

        lambda_client = await self._connected()
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            ReadTimeoutError,
        )

        try:
            async with asyncio.timeout(timeout_seconds):
                response = await lambda_client.invoke(
                    FunctionName=target, InvocationType="RequestResponse", Payload=payload
                )
                async with response["Payload"] as stream:
                    answer = await _read(stream, self._max_answer_bytes)
        except (TimeoutError, ReadTimeoutError) as error:
            raise _timed_out(timeout_seconds) from error
        except (BotoCoreError, ClientError, aiohttp.ClientError, OSError) as error:
            raise _refused(error) from error
        if "FunctionError" in response:
            raise _function_failed(_tail(answer))
        return answer

    async def _connected(self) -> Any:
        async with self._opening:
            if self._client is None:
                try:
                    from aiobotocore.config import AioConfig
                    from aiobotocore.session import get_session
                except ImportError as error:
                    raise InvocationFailed(
                        "invoke.refused",
                        "the AWS client is not installed",
                        next_step='pip install ".[aws]" in a clone of Traceplane',
                    ) from error
                config = AioConfig(
                    connect_timeout=_CONNECT_SECONDS,
                    read_timeout=_LONGEST_LAMBDA_SECONDS + 10,  # `invoke` enforces the job's timeout
                    max_pool_connections=self._connections,
                    retries={"max_attempts": 0},
                    tcp_keepalive=True,
                )
                session = self._session or get_session()
                self._client = await self._open.enter_async_context(
                    session.create_client(
                        "lambda", region_name=self._region, endpoint_url=self._endpoint_url, config=config
                    )
                )
            return self._client


class _Readable(Protocol):
    async def read(self, n: int, /) -> bytes: ...


async def _read(stream: _Readable, limit: int) -> bytes:
    answer = bytearray()
    while chunk := await stream.read(_CHUNK):
        answer += chunk
        if len(answer) > limit:
            raise InvocationFailed("invoke.bad_answer", f"the answer is larger than {limit} bytes")
    return bytes(answer)


async def _read_end(stream: _Readable) -> bytes:
    end = b""
    while chunk := await stream.read(_CHUNK):
        end = (end + chunk)[-_DETAIL_CHARACTERS:]
    return end


async def _feed(stdin: asyncio.StreamWriter, payload: bytes) -> None:
    if stdin.is_closing():  # it has already ended, and uvloop refuses to write
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may answer without reading
        stdin.write(payload)
        await stdin.drain()
    stdin.close()


async def _kill_group(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # A descendant that left the group may hold the pipes open, and wait() waits for those too.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await process.wait()


def _tail(raw: bytes) -> str:
    return raw.decode(errors="replace").strip()[-_DETAIL_CHARACTERS:]


def _timed_out(seconds: float) -> InvocationFailed:
    return InvocationFailed(
        "invoke.timeout",
        f"the function did not answer within {seconds:g} seconds",
        next_step="make it faster, or raise the job's timeout",
    )


def _refused(why: BaseException | str) -> InvocationFailed:
    value = why if isinstance(why, str) else f"{type(why).__name__}: {why}"
    return InvocationFailed(
        "invoke.refused",
        "the function was unreachable or rejected the call",
        value=value,
        next_step="check the runtime's target in the settings",
    )


def _function_failed(details: str) -> InvocationFailed:
    return InvocationFailed("invoke.function_error", "the function failed", value=details)
