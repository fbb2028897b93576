"""The Spark Connect server of a worker: one JVM, confined, restarted when it dies.

User code reaches Spark over Connect and can make it do whatever a JVM can, so the server is trusted as little as the
code that it runs. `launcher` confines it. On the trusted side, here:

- The server sees a task's folders only while the task runs (`granting`): the generations it reads, and its output
  folders, which are revoked before the outputs are inspected. Nothing in the server's own folder is ever opened; its
  log comes through a pipe.
- Clients need the server's token and, if the machine has namespaces, must be in the worker's private network, which
  leads nowhere else. Token and port are new at each start, and tasks get them once the server itself, and no other
  process, listens there. When it ends, its tasks are ended before any other process can get the port.

The server does not isolate tasks that share it. With `spark_isolation = "job"` (`SparkServers`) they all belong to one
job.

If a client disappears (its task was killed, timed out or canceled), the server itself interrupts its execution within
about twenty seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from traceplane import telemetry
from traceplane.dataplane.java import Java, find_java
from traceplane.errors import PlatformError
from traceplane.runtime.locked_folder import LockedFolder, remove_tree
from traceplane.sandbox import frames
from traceplane.sandbox.assignment import UsedSpark
from traceplane.sandbox.confinement import NAMESPACES, UID_SLOTS
from traceplane.sandbox.private_root import outermost
from traceplane.sandbox.staging import bytes_below, make_private
from traceplane.sandbox.uid_lease import UidLease
from traceplane.spark import classes as spark_classes
from traceplane.spark.command import POOLS, SparkSettings, environment, java_command
from traceplane.spark.frames import (
    Answered,
    Confined,
    Grant,
    Launch,
    Revoke,
    SparkRequest,
)
from traceplane.spark.launcher_connection import LauncherConnection
from traceplane.spark.server_log import ServerLog

_START_SECONDS = 180.0
_STOP_SECONDS = 10.0
_TASKS_END_SECONDS = 30.0
_DISK_CHECK_SECONDS = 2.0
_DEFAULT_PORT = 15002


_EXIT_OUT_OF_MEMORY = 3


class SparkGrant:
    """What a server may see of one task, from `__aenter__` on."""

    def __init__(
        self, server: SparkServer | None, readable: Iterable[Path], writable: Iterable[Path]
    ) -> None:
        self._server = server
        self.frame = Grant(
            outermost(str(folder) for folder in readable), [str(folder) for folder in writable]
        )
        self.start = server.starts if server is not None else 0
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the server that the task was given has ended."""
        self._unused = asyncio.Event()
        self._unused.set()

    async def __aenter__(self) -> SparkGrant:
        if self._server is not None:
            await self._server.show(self)
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.end(sealed=False)

    @contextlib.contextmanager
    def using(self, on_lost: Callable[[object], None]) -> Iterator[None]:
        """While a process of the task runs; it is ended when it has lost its server."""
        self._unused.clear()
        self.lost.add_done_callback(on_lost)
        try:
            yield
        finally:
            self.lost.remove_done_callback(on_lost)
            self._unused.set()

    def lose(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    @property
    def is_used(self) -> bool:
        return not self._unused.is_set()

    async def until_unused(self) -> None:
        await self._unused.wait()

    async def end(self, *, sealed: bool) -> bool:
        """Revokes everything; with `sealed`, returns whether the written files can no longer be changed."""
        server, self._server = self._server, None
        return server is None or await server.hide(self, sealed=sealed)


@dataclass(frozen=True)
class RemoteSpark:
    """A Spark Connect server run by somebody else; it must reach the object store under the same paths."""

    remote: str
    authorities: str | None = None
    executors_elsewhere: ClassVar[bool] = True

    @property
    def used(self) -> UsedSpark:
        """If the worker is root, the server must be too: it writes to folders of the worker's group."""
        return UsedSpark(urlsplit(self.remote).port or _DEFAULT_PORT, 0 if os.geteuid() == 0 else None)

    @property
    def last_end(self) -> str | None:
        return None

    def granting(
        self, readable: Iterable[Path], writable: Iterable[Path], secrets: Iterable[str] = ()
    ) -> SparkGrant:
        return SparkGrant(None, (), ())


class SparkServer:
    """Created by `start`; `remote` is the address and token for clients."""

    authorities: str | None = None

    def __init__(self, settings: SparkSettings, java: Java) -> None:
        self._settings = settings
        self._java = java
        self._token = ""
        self._port = 0
        has_uid = os.geteuid() == 0 and UID_SLOTS not in settings.disabled_layers
        self._lease = UidLease(*settings.uid_range, 1) if has_uid else None
        self._folder = LockedFolder(settings.folder, "server-", ())
        self.starts = 0
        """How often it was started; each start has another port and token."""
        self._up = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._launcher: LauncherConnection | None = None
        self._log = ServerLog(settings.folder / "logs")
        self._grants: dict[int, SparkGrant] = {}
        self._closed = False
        self._given_up: Exception | None = None
        self.pid = 0
        self.layers: tuple[str, ...] = ()
        self.last_end: str | None = None
        """Why the previous server ended, for people."""

    @property
    def remote(self) -> str:
        return f"sc://127.0.0.1:{self._port}/;authorization={quote(f'Bearer {self._token}')}"

    @property
    def used(self) -> UsedSpark:
        return UsedSpark(self._port, self._uid, on_cluster=self._settings.on_cluster)

    @property
    def executors_elsewhere(self) -> bool:
        """Whether executors see no folder of this machine, unless somebody shares one."""
        return self._settings.on_cluster

    @property
    def _uid(self) -> int | None:
        return self._lease.uids[0] if self._lease is not None else None

    @classmethod
    async def start(cls, settings: SparkSettings, java: Java | None = None) -> SparkServer:
        settings.object_store.mkdir(parents=True, exist_ok=True)
        if java is None:
            java = await asyncio.to_thread(find_java)
        if java.skipped is not None:
            telemetry.emit("spark.java_skipped", "warning", skipped=java.skipped, uses=java.source)
        server = cls(settings, java)
        try:
            await server._launch()
            await asyncio.to_thread(server._folder.remove_abandoned)
        except BaseException:
            await server.close()
            raise
        return server

    async def until_up(self) -> None:
        """Waits while it is restarting: until then its address is unknown."""
        await self._up.wait()
        if self._given_up is not None:
            raise PlatformError(
                "spark.not_started", "the Spark server could not be restarted", value=self._given_up
            )

    async def keep_running(self, stop: asyncio.Event) -> None:
        """Restarts it when it dies or uses too much disk; its running tasks fail and are retried."""
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                assert self._launcher is not None
                ended = self._launcher.ended
                too_much = await self._until_ended(ended, stopping)
                if stop.is_set():
                    return
                self._up.clear()
                code = ended.result() if ended.done() else None
                self.last_end = too_much or self._why_ended(code)
                telemetry.emit("spark.died", "error", code=code, why=self.last_end)
                await self._end_tasks()
                await self._end_process()
                await self._launch()
        except Exception as error:
            self._given_up = error
            self._up.set()
            raise
        finally:
            stopping.cancel()

    async def _until_ended(
        self, ended: asyncio.Future[int | None], stopping: asyncio.Future[Any]
    ) -> str | None:
        """Why it must be ended, if it has not ended by itself."""
        limit = self._settings.disk_bytes
        while not ended.done() and not stopping.done():
            await asyncio.wait(
                (ended, stopping),
                timeout=None if limit is None else _DISK_CHECK_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if limit is None or ended.done() or stopping.done():
                continue
            used = await asyncio.to_thread(bytes_below, str(self._temp))
            if used > limit:
                return f"its temporary files took {used} bytes; the limit is {limit}, see the setting spark_disk_mb"
        return None

    async def _end_tasks(self) -> None:
        """Ends the tasks that use it: they wait for an answer that no other process may give. Until then the launcher
        keeps the port."""
        used = [grant for grant in self._grants.values() if grant.start == self.starts]
        for grant in used:
            grant.lose()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TASKS_END_SECONDS):
                await asyncio.gather(*(grant.until_unused() for grant in used))

    def _why_ended(self, code: int | None) -> str:
        if code == _EXIT_OUT_OF_MEMORY:
            return (
                f"out of memory: its heap has {self._settings.memory_mb} MB, see the setting spark_memory_mb"
            )
        if code is None:
            return f"its launcher was killed, see {self._log.path}"
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"it ended with {ended}, see {self._log.path}"

    # What tasks it may see -------------------------------------------------------------------------

    def granting(
        self, readable: Iterable[Path], writable: Iterable[Path], secrets: Iterable[str] = ()
    ) -> SparkGrant:
        """Each writable folder is inside one of the readable ones. `secrets` are kept out of the server's log."""
        self._log.hide(secrets)
        return SparkGrant(self, readable, writable)

    @property
    def uses(self) -> int:
        """The number of tasks that run on it."""
        return sum(grant.is_used for grant in self._grants.values())

    async def show(self, grant: SparkGrant) -> None:
        self._grants[id(grant)] = grant
        if grant.start != self.starts or not self._up.is_set():
            grant.lose()  # the task was given one that has ended since
        try:
            await self._ask(grant.frame)
        except BaseException:
            self._grants.pop(id(grant), None)
            raise

    async def hide(self, grant: SparkGrant, *, sealed: bool) -> bool:
        if self._grants.pop(id(grant), None) is None:
            return True
        return (await self._ask(Revoke(grant.frame, sealed))).quiet

    async def _ask(self, request: SparkRequest) -> Answered:
        """A launcher that has ended, or not started yet, gets all grants when it starts."""
        launcher = self._launcher
        answer = await launcher.ask(request) if launcher is not None else Answered()
        if answer.problem is not None:
            raise PlatformError(
                "spark.not_shown",
                "a task's folders cannot be shown to the Spark server",
                value=answer.problem,
            )
        return answer

    # Its process -----------------------------------------------------------------------------------

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._end_process()
        self._log.close()
        await asyncio.to_thread(self._folder.remove)
        if self._lease is not None:
            self._lease.release()

    async def _end_process(self) -> None:
        """When its control socket closes, the launcher ends everything that the server started, or else is killed. One
        that has not started a server yet ends by SIGTERM, which it ignores later."""
        launcher, self._launcher = self._launcher, None
        process, self._process = self._process, None
        if launcher is not None:
            launcher.close()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _STOP_SECONDS)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        await asyncio.to_thread(remove_tree, self._temp)

    @property
    def _temp(self) -> Path:
        return self._folder.path / f"temp-{self.starts}"

    async def _launch(self) -> None:
        self.starts += 1
        self._token = secrets.token_urlsafe(32)
        make_private(self._temp, self._uid)
        self._launcher = launcher = await self._start_launcher(self._make_launch())
        # In one step: a grant that ends in the meantime is revoked after it was shown, and a new one is not missed.
        await asyncio.gather(*[launcher.put(grant.frame) for grant in self._grants.values()])
        await self._wait_until_ready(launcher)
        self._port = launcher.listening.result()
        self._up.set()
        telemetry.emit(
            "spark.ready",
            pid=self.pid,
            master=self._settings.master,
            java=self._java.version,
            isolation=list(self.layers),
        )

    async def _start_launcher(self, launch: Launch) -> LauncherConnection:
        ours, theirs = socket.socketpair()
        output, writer = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-m", "traceplane.spark.launcher", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env={},
                cwd="/",
            )
        except BaseException:
            ours.close()
            os.close(output)
            raise
        finally:
            os.close(writer)
            theirs.close()
        try:
            await self._log.follow(output)
            frames.send(ours, launch, self._settings.private_network)
            return await LauncherConnection.open(ours)
        except BaseException:
            ours.close()
            raise

    async def _wait_until_ready(self, launcher: LauncherConnection) -> None:
        waiting: tuple[asyncio.Future[Any], ...] = (launcher.listening, launcher.ended)
        await asyncio.wait(waiting, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if launcher.weakness is not None:
            raise PlatformError(
                "sandbox.too_weak",
                f"user code on Spark cannot be isolated well enough here: {launcher.weakness}",
                next_step="see docs/concepts/sandbox.md; allow_weak_sandbox is only for trusted operator code",
            )
        if not launcher.listening.done():
            await self._end_process()
            raise PlatformError(
                "spark.not_started",
                "the Spark server did not start",
                value=self._log.last_problem(),
                next_step=_next_step(launcher.confined) or f"read {self._log.path}",
            )
        assert launcher.confined is not None
        self.layers = tuple(launcher.confined.layers)
        self.pid = self._process.pid if self._process is not None else 0

    def _make_launch(self) -> Launch:
        settings = self._settings
        conf = self._folder.path / "conf"
        if not conf.exists():
            conf.mkdir(mode=0o755)
            (conf / "pools.xml").write_text(POOLS)
        readable = [*settings.code_paths, conf, self._java.home, self._java.home.resolve(), *settings.jars]
        stores = {settings.object_store, *((settings.inputs,) if settings.inputs is not None else ())}
        return Launch(
            command=java_command(settings, self._java, conf / "pools.xml", spark_classes.options(self._java)),
            environment=environment(settings, self._java, self._token),
            folder=str(self._folder.path),
            temp=str(self._temp),
            readable=[str(path.resolve()) for path in readable if path.exists()],
            stores=sorted(str(path.resolve()) for path in stores),
            environments=[] if settings.environments is None else [str(settings.environments.resolve())],
            uid=self._uid,
            disabled=sorted(settings.disabled_layers),
            allow_weak=settings.allow_weak,
        )


def _next_step(confined: Confined | None) -> str | None:
    """Java's login fails for a user without a name, and only a private root can provide one."""
    if confined is None or NAMESPACES in confined.layers:
        return None
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return (
            f"Spark needs a user with a name, and /etc/passwd has none for the user id {os.geteuid()}: add it"
        )
    return None
