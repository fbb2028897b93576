"""Which Spark server a task uses: one shared by all tasks of the worker, or one of its job.

Tasks that share a server can do to each other whatever the server itself can: see the others' data that it is shown,
change files that they have not finished writing, use each other's sessions. With `by_job` only tasks of one job share a
server. A server takes seconds to start and a heap of memory, so a job's server starts with its first task, stays for a
while, and makes room for other jobs when it is idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass, field, replace

from traceplane import telemetry
from traceplane.dataplane.java import Java, find_java
from traceplane.errors import TraceplaneError
from traceplane.spark import classes as spark_classes
from traceplane.spark.command import SparkSettings
from traceplane.spark.network import PrivateNetwork
from traceplane.spark.server import RemoteSpark, SparkServer

_IDLE_SECONDS = 300.0
_TEND_SECONDS = 5.0

Spark = SparkServer | RemoteSpark


@dataclass
class _Entry:
    starting: asyncio.Task[SparkServer]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    running: asyncio.Task[None] | None = None
    users: int = 0
    idle_since: float = field(default_factory=time.monotonic)


class SparkServers:
    """The servers of one worker; created by `start`."""

    def __init__(
        self, settings: SparkSettings, java: Java, network: PrivateNetwork, *, by_job: bool, most: int
    ) -> None:
        self._settings = replace(settings, private_network=network.descriptors)
        self._java = java
        self.network = network
        self._by_job = by_job
        self._most = most if by_job else 1
        self._entries: dict[Hashable, _Entry] = {}
        self._changed = asyncio.Condition()

    @classmethod
    async def start(
        cls, settings: SparkSettings, *, private: bool, by_job: bool = False, most: int = 2
    ) -> SparkServers:
        """Returns when a shared server is running; raises its `too_weak` and similar errors."""
        java = await asyncio.to_thread(find_java)
        network = await PrivateNetwork.make() if private else PrivateNetwork((), "Spark has the network")
        servers = cls(settings, java, network, by_job=by_job, most=most)
        if not by_job:
            try:
                async with servers.for_job(None):
                    pass
            except BaseException:
                await servers.close()
                raise
        return servers

    @contextlib.asynccontextmanager
    async def for_job(self, job: Hashable) -> AsyncIterator[Spark]:
        """The running server of this job; kept until the task has finished with it."""
        key = job if self._by_job else None
        entry = await self._take(key)
        try:
            server = await asyncio.shield(entry.starting)
            await server.until_up()
            yield server
        except BaseException:
            if entry.starting.done() and (entry.starting.cancelled() or entry.starting.exception()):
                self._entries.pop(key, None)
            raise
        finally:
            async with self._changed:
                entry.users -= 1
                entry.idle_since = time.monotonic()
                self._changed.notify_all()

    async def _take(self, key: Hashable) -> _Entry:
        while True:
            async with self._changed:
                entry = self._entries.get(key)
                if entry is None and len(self._entries) < self._most:
                    entry = _Entry(asyncio.create_task(SparkServer.start(self._settings, self._java)))
                    self._entries[key] = entry
                if entry is not None:
                    entry.users += 1
                    return entry
                idle = [(e.idle_since, k) for k, e in self._entries.items() if not e.users]
                if not idle:
                    await self._changed.wait()
                    continue
                room = self._entries.pop(min(idle, key=lambda one: one[0])[1])
            await self._end(room)

    async def keep_running(self, stop: asyncio.Event) -> None:
        """Restarts servers that die, and ends those of jobs that have had no task for a while."""
        await asyncio.gather(self._keep_servers(stop), spark_classes.make_beside(self._java, stop))

    async def _keep_servers(self, stop: asyncio.Event) -> None:
        if not self._by_job:
            await self._entries[None].starting.result().keep_running(stop)
            return
        while not stop.is_set():
            for key, entry in list(self._entries.items()):
                await self._tend(key, entry)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _TEND_SECONDS)

    async def _tend(self, key: Hashable, entry: _Entry) -> None:
        if entry.running is None and entry.starting.done() and not entry.starting.exception():
            entry.running = asyncio.create_task(entry.starting.result().keep_running(entry.stop))
            entry.running.add_done_callback(lambda done: self._on_given_up(key, done))
        if not entry.users and time.monotonic() - entry.idle_since > _IDLE_SECONDS:
            del self._entries[key]
            await self._end(entry)

    def _on_given_up(self, key: Hashable, running: asyncio.Task[None]) -> None:
        """A server could not be restarted; the next task of its job tries again."""
        if running.cancelled() or (error := running.exception()) is None:
            return
        telemetry.emit("spark.given_up", "error", error=str(error))
        self._entries.pop(key, None)

    async def close(self) -> None:
        entries, self._entries = list(self._entries.values()), {}
        for entry in entries:
            await self._end(entry)
        self.network.close()

    async def _end(self, entry: _Entry) -> None:
        """A server that is still starting leaves nothing behind: its start is canceled and cleans up."""
        entry.stop.set()
        if entry.running is not None:
            await asyncio.wait((entry.running,))
        entry.starting.cancel()
        await asyncio.wait((entry.starting,))
        if not entry.starting.cancelled():
            with contextlib.suppress(TraceplaneError, OSError):
                await entry.starting.result().close()


class OneRemoteSpark:
    """The same for a server run by somebody else."""

    network = PrivateNetwork((), "Spark is elsewhere")

    def __init__(self, remote: str) -> None:
        self._remote = RemoteSpark(remote)

    @contextlib.asynccontextmanager
    async def for_job(self, job: Hashable) -> AsyncIterator[Spark]:
        yield self._remote

    async def keep_running(self, stop: asyncio.Event) -> None:
        await stop.wait()

    async def close(self) -> None:
        pass
