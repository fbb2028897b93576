"""Real processes on a real Postgres, for tests that kill them.

    async with Platform.start(database_url, folder) as platform:
        await platform.deploy(YAML)
        await platform.emit("demo.in", range(10))
        await platform.settled()

Every process runs the shipped command line; nothing is patched. `kill` is SIGKILL, `crash_at` makes the next
start of a process kill itself at a named boundary (traceplane.crash_points). Processes are forked from one that has
imported the code already (tests.forked_commands), unless a test looks at what /proc says of them: `executed=True`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg

from tests.forked_commands import ForkedCommand, fork_command
from tests.ports import free_port
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.auth.store import issue_token
from traceplane.errors import PlatformError
from traceplane.http_service.client import Caller
from traceplane.postgres.database import SCHEMA, Database
from traceplane.wire.control import EmitRequest, EmitResponse, ManualEvent
from traceplane.wire.deploys import DeployRequest, DeployResponse
from traceplane.wire.scalars import Scope
from traceplane.worker.dispatcher_client import DispatcherClient

OPERATORS = Path(__file__).parent / "operators"
"""Folder with the operator code that tests deploy."""

FAST = {
    "TRACEPLANE_RESEND_AFTER_SECONDS": "1",
    "TRACEPLANE_REAP_GRACE_SECONDS": "0.5",
    "TRACEPLANE_LOG_LEVEL": "info",
    "TRACEPLANE_SPARK_COMPILER": "quick",
}


def die_with_parent() -> None:
    """A test run that is killed leaves no process behind (Linux)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


async def until(condition: Callable[[], Awaitable[Any]], *, seconds: float = 240.0, what: str = "") -> Any:
    """Waits for a condition; its last value is in the error when it does not come."""
    deadline = time.monotonic() + seconds
    while True:
        value = await condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what or condition.__name__} (last: {value!r})")
        await asyncio.sleep(0.02)


@dataclass
class Process:
    name: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    log: Path
    python: str = sys.executable
    executed: bool = False
    running: asyncio.subprocess.Process | ForkedCommand | None = None

    async def start(self, crash_at: str | None = None) -> None:
        environment = dict(self.environment)
        if crash_at is not None:
            environment["TRACEPLANE_CRASH_AT"] = crash_at
        with self.log.open("ab") as log:
            if not self.executed and self.python == sys.executable:
                self.running = fork_command(self.arguments, environment, log.fileno())
                return
            self.running = await asyncio.create_subprocess_exec(
                self.python,
                "-m",
                "traceplane.cli.main",
                *self.arguments,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    @property
    def alive(self) -> bool:
        return self.running is not None and self.running.returncode is None

    def send(self, number: signal.Signals) -> None:
        assert self.running is not None
        self.running.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL: no cleanup runs."""
        if self.alive:
            assert self.running is not None
            self.send(signal.SIGKILL)
            await self.running.wait()

    async def died(self, seconds: float = 240.0) -> int:
        """Waits for the process to end by itself; its exit code (negative: signal)."""
        assert self.running is not None
        async with asyncio.timeout(seconds):
            return await self.running.wait()

    async def stop(self) -> int:
        if self.alive:
            assert self.running is not None
            self.send(signal.SIGTERM)
            try:
                async with asyncio.timeout(30):
                    await self.running.wait()
            except TimeoutError:
                await self.kill()
        return self.running.returncode if self.running and self.running.returncode is not None else 0


@dataclass
class Platform:
    url: str
    folder: Path
    environment: dict[str, str]
    dispatcher_url: str
    gateway_url: str
    worker_token: str
    user_token: str
    executed: bool = False
    processes: dict[str, Process] = field(default_factory=dict)
    _connection: asyncpg.Connection | None = None
    _caller: Caller | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls,
        url: str,
        folder: Path,
        *,
        dispatchers: int = 1,
        workers: int = 1,
        gateway: bool = True,
        environment: dict[str, str] | None = None,
        executed: bool = False,
    ) -> AsyncIterator[Platform]:
        """Dispatchers are named dispatcher-1…, workers worker-1…; workers talk to dispatcher-1."""
        platform = await cls._create(url, folder, environment or {})
        platform.executed = executed
        try:
            for n in range(dispatchers):
                platform.add_dispatcher(n + 1)
            if gateway:
                platform.add("gateway", "gateway")
            for n in range(workers):
                platform.add_worker(n + 1)
            await asyncio.gather(*(p.start() for p in platform.processes.values()))
            await platform.ready()
            yield platform
        finally:
            await platform.close()

    @classmethod
    async def _create(cls, url: str, folder: Path, environment: dict[str, str]) -> Platform:
        folder.mkdir(parents=True, exist_ok=True)
        database = await Database.connect(url, connections=1)
        async with database.transaction() as tx:
            worker = await issue_token(tx, Principal.WORKER, org="default", name="test")
            user = await issue_token(tx, Principal.USER, org="default", name="test", role=Role.ADMIN)
        await database.close()
        dispatcher_port, gateway_port = free_port(), free_port()
        common = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            **FAST,
            "TRACEPLANE_HOME": str(folder),
            "TRACEPLANE_DISPATCHER_PORT": str(dispatcher_port),
            "TRACEPLANE_GATEWAY_PORT": str(gateway_port),
            "TRACEPLANE_WORKER_CODE_PATHS": str(OPERATORS),
            **environment,
        }
        return cls(
            url=url,
            folder=folder,
            environment=common,
            dispatcher_url=f"http://127.0.0.1:{dispatcher_port}",
            gateway_url=f"http://127.0.0.1:{gateway_port}",
            worker_token=worker,
            user_token=user,
        )

    def add(self, name: str, *arguments: str, **extra: str) -> Process:
        environment = {**self.environment, **extra}
        if arguments[0] == "worker":
            environment["TRACEPLANE_WORKER_TOKEN"] = self.worker_token
        else:
            environment["TRACEPLANE_STATE_URL"] = self.url
        log = self.folder / f"{name}.log"
        process = Process(name, arguments, environment, log, executed=self.executed)
        self.processes[name] = process
        return process

    def add_dispatcher(self, number: int) -> Process:
        extra = {} if number == 1 else {"TRACEPLANE_DISPATCHER_PORT": str(free_port())}
        return self.add(f"dispatcher-{number}", "dispatcher", **extra)

    def add_worker(self, number: int, **extra: str) -> Process:
        return self.add(f"worker-{number}", "worker", "--runtime", "python", **extra)

    def __getitem__(self, name: str) -> Process:
        return self.processes[name]

    async def ready(self, *names: str) -> None:
        """Waits until dispatchers and gateway answer (workers need no waiting: work waits for them)."""
        for name in names or tuple(self.processes):
            process = self.processes[name]
            kind = process.arguments[0]
            if kind in ("gateway", "dispatcher"):
                port = process.environment[f"TRACEPLANE_{kind.upper()}_PORT"]
                await until(partial(self._answers, port, process), what=f"{name} answers")

    async def _answers(self, port: str, process: Process) -> bool:
        if not process.alive:
            raise AssertionError(f"{process.name} died:\n{process.log.read_text()[-4000:]}")
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", int(port))
        except OSError:
            return False
        writer.close()
        return True

    async def close(self) -> None:
        await asyncio.gather(*(p.kill() for p in self.processes.values()))
        if self._caller is not None:
            await self._caller.close()
        if self._connection is not None:
            self._connection.terminate()

    # What users do ---------------------------------------------------------------------------------

    @property
    def api(self) -> Caller:
        if self._caller is None:
            self._caller = Caller(self.gateway_url, self.user_token)
        return self._caller

    def worker_client(self) -> DispatcherClient:
        """A client of the internal API with the worker token; close it."""
        return DispatcherClient(self.dispatcher_url, self.worker_token)

    async def deploy(
        self, yaml: str, code: dict[str, str] | None = None, *, drop_missing: bool = False
    ) -> DeployResponse:
        request = DeployRequest(yaml, code=code, drop_missing=drop_missing)
        return await self.api.call("POST", "/api/v1/deploy", DeployResponse, request)

    async def emit(
        self, dataset: str, cursors: Iterable[int], *, patient: bool = False, **fields: Any
    ) -> EmitResponse:
        """Emits cursor events; `patient` repeats the call until it is answered, as a careful caller would."""
        request = EmitRequest([ManualEvent(dataset, Scope(cursor=c), **fields) for c in cursors])
        while True:
            try:
                return await self.api.call("POST", "/api/v1/events", EmitResponse, request)
            except PlatformError:
                if not patient:
                    raise
                await asyncio.sleep(0.05)

    # What tests look at ----------------------------------------------------------------------------

    async def sql(self, statement: str, *args: object) -> list[asyncpg.Record]:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self.url, server_settings={"search_path": SCHEMA})
        return await self._connection.fetch(statement, *args)

    async def value(self, statement: str, *args: object) -> Any:
        return (await self.sql(statement, *args))[0][0]

    async def states(self, job: str | None = None) -> dict[str, int]:
        rows = await self.sql(
            "select t.state::text, count(*) from tasks t join jobs j using (job_id)"
            " where ($1::text is null or j.name = $1) group by 1",
            job,
        )
        return {r[0]: r[1] for r in rows}

    async def settled(self, *, seconds: float = 240.0) -> dict[str, int]:
        """Waits until no task is left to do; the final states."""

        async def nothing_left() -> dict[str, int] | None:
            states = await self.states()
            unfinished = set(states) & {"queued", "dispatched", "running"}
            return None if unfinished else (states or {"": 0})

        return await until(nothing_left, seconds=seconds, what="all tasks finished")

    def logs(self, name: str) -> str:
        return self.processes[name].log.read_text()
