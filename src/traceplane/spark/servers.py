"""Which Spark server a task uses: one shared by all tasks of an organization, or one of its job.

Tasks that share a server can do to each other whatever the server itself can: see the others' data that it is shown,
change files that they have not finished writing, use each other's sessions. So a server never has tasks of two
organizations, neither at the same time nor one after the other; with `by_job` only tasks of one job share a server. A
job that says how many executors it needs, or what they need, has a server of its own anyway.

A server takes seconds to start and a heap of memory. It starts with the first task that needs it, stays for a while,
and makes room for others when it is idle. A worker whose servers are shared starts one in advance, which goes to the
organization whose task comes first, and keeps the last one however long it is idle.

Operators of the platform that read from outside (`OperatorSpec.splits_on_spark`) have servers of their own where those
of user code have no network: nothing else runs on them, and none is started in advance.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from traceplane import telemetry
from traceplane.dataplane.java import Java, find_java
from traceplane.errors import Conflict, PlatformError, TraceplaneError
from traceplane.model.spark_resources import SparkResources
from traceplane.runtime.retrying import happens
from traceplane.spark import classes as spark_classes
from traceplane.spark.command import SparkSettings
from traceplane.spark.network import PrivateNetwork
from traceplane.spark.remote import RemoteAddress
from traceplane.spark.server import RemoteSpark, SparkServer

_IDLE_SECONDS = 300.0
_TEND_SECONDS = 5.0

Spark = SparkServer | RemoteSpark


@dataclass(frozen=True, slots=True)
class _User:
    """Whose tasks a server runs."""

    org: str
    job: str | None
    """None: those of all jobs of the organization."""
    needs: SparkResources = SparkResources()
    """With what it was started. A job that needs something else afterwards gets another one."""


@dataclass(eq=False)
class _Entry:
    starting: asyncio.Task[SparkServer]
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    running: asyncio.Task[None] | None = None
    users: int = 0
    idle_since: float = field(default_factory=time.monotonic)


class SparkServers:
    """The servers of one worker; created by `start`."""

    def __init__(
        self,
        settings: SparkSettings,
        java: Java,
        network: PrivateNetwork,
        *,
        by_job: bool,
        most: int,
        in_advance: bool,
    ) -> None:
        self._settings = replace(settings, private_network=network.descriptors)
        self._java = java
        self.network = network
        self._by_job = by_job
        self._most = most
        self._keeps_one = in_advance
        self._entries: dict[_User | None, _Entry] = {}
        """The one of None has not run any task."""
        self._changed = asyncio.Condition()
        self._given_up: BaseException | None = None

    @classmethod
    async def start(
        cls,
        settings: SparkSettings,
        *,
        private: bool,
        by_job: bool = False,
        most: int = 2,
        in_advance: bool | None = None,
    ) -> SparkServers:
        """Returns when a shared server is running, if there is to be one `in_advance`: by default, unless each job has
        its own. Raises its `too_weak` and similar errors."""
        in_advance = not by_job if in_advance is None else in_advance
        java = await asyncio.to_thread(find_java)
        network = await PrivateNetwork.make() if private else PrivateNetwork((), "Spark has the network")
        servers = cls(settings, java, network, by_job=by_job, most=most, in_advance=in_advance)
        if in_advance:
            try:
                async with servers._kept(None):
                    pass
            except BaseException:
                await servers.close()
                raise
        return servers

    @contextlib.asynccontextmanager
    async def for_job(
        self, org: str, job: str, needs: SparkResources = SparkResources()
    ) -> AsyncIterator[Spark]:
        """The running server of this job; kept until the task has finished with it."""
        own = needs.of_server
        if own.on_cluster and not self._settings.on_cluster:
            raise Conflict(
                "spark.no_cluster",
                "the job says how many executors it needs, or what they need, and this worker's Spark has none",
                value=", ".join(own.on_cluster),
                next_step="set spark_master to a cluster, or remove them from the job's spark",
            )
        async with self._kept(_User(org, job if self._by_job or own else None, own)) as server:
            yield server

    @contextlib.asynccontextmanager
    async def _kept(self, user: _User | None) -> AsyncIterator[Spark]:
        entry = await self._take(user)
        try:
            server = await asyncio.shield(entry.starting)
            if entry.running is None:
                entry.running = asyncio.create_task(server.keep_running(entry.stop))
                entry.running.add_done_callback(lambda done: self._on_given_up(entry, done))
            await server.until_up()
            yield server
        except BaseException:
            if entry.starting.done() and (entry.starting.cancelled() or entry.starting.exception()):
                self._forget(entry)
            raise
        finally:
            async with self._changed:
                entry.users -= 1
                entry.idle_since = time.monotonic()
                self._changed.notify_all()

    async def _take(self, user: _User | None) -> _Entry:
        while True:
            async with self._changed:
                entry = self._entries.get(user)
                may_use_any = user is None or not user.needs
                if entry is None and may_use_any and (entry := self._entries.pop(None, None)) is not None:
                    self._entries[user] = entry
                if entry is None and len(self._entries) < self._most:
                    settings = self._settings if user is None else _with(self._settings, user.needs)
                    entry = _Entry(asyncio.create_task(SparkServer.start(settings, self._java)))
                    self._entries[user] = entry
                if entry is not None:
                    entry.users += 1
                    return entry
                idle = [e for e in self._entries.values() if not e.users]
                if not idle:
                    await self._changed.wait()
                    continue
                room = min(idle, key=lambda one: one.idle_since)
                self._forget(room)
            await self._end(room)

    def _forget(self, entry: _Entry) -> None:
        for user, own in list(self._entries.items()):
            if own is entry:
                del self._entries[user]

    async def keep_running(self, stop: asyncio.Event) -> None:
        """Ends servers that have had no task for a while. Those that die are restarted; raises if the only one
        cannot be."""
        await asyncio.gather(self.tend(stop), spark_classes.make_beside(self._java, stop))

    async def tend(self, stop: asyncio.Event) -> None:
        while not await happens(stop, within=_TEND_SECONDS):
            if self._given_up is not None:
                raise self._given_up
            for entry in list(self._entries.values()):
                if self._keeps_one and len(self._entries) == 1:
                    break
                if not entry.users and time.monotonic() - entry.idle_since > _IDLE_SECONDS:
                    self._forget(entry)
                    await self._end(entry)

    def _on_given_up(self, entry: _Entry, running: asyncio.Task[None]) -> None:
        """A server could not be restarted. The next task that needs it tries again, unless no other shows that Spark
        can run here at all."""
        if running.cancelled() or (error := running.exception()) is None:
            return
        telemetry.emit("spark.given_up", "error", error=str(error))
        if self._keeps_one and len(self._entries) == 1:
            self._given_up = error
        self._forget(entry)

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


def _with(settings: SparkSettings, needs: SparkResources) -> SparkSettings:
    memory = settings.memory_mb if needs.driver_memory is None else needs.driver_memory >> 20
    conf = {**dict(settings.conf), **needs.properties()}
    return replace(settings, memory_mb=memory, conf=tuple(conf.items()))


class OneRemoteSpark:
    """The same for a server run by somebody else. It has tasks of one organization: the first one that comes."""

    network = PrivateNetwork((), "Spark is elsewhere")

    def __init__(self, address: RemoteAddress) -> None:
        self._remote = RemoteSpark(address.url, address.authorities)
        self._org: str | None = None

    @contextlib.asynccontextmanager
    async def for_job(
        self, org: str, job: str, needs: SparkResources = SparkResources()
    ) -> AsyncIterator[Spark]:
        if needs.of_server:
            raise Conflict(
                "spark.resources_of_remote",
                "the job says with what its Spark is to start, and this worker uses one that runs already",
                value=", ".join(needs.of_server.given()),
                next_step="start that server with them, and keep only shuffle_partitions in the job's spark",
            )
        self._org = self._org or org
        if org != self._org:
            raise PlatformError(
                "spark.other_organization",
                "the Spark server of this worker's spark_remote has run tasks of another organization",
                value=org,
                next_step="give each organization a worker of its own, with a token for it and its own spark_remote",
            )
        yield self._remote

    async def keep_running(self, stop: asyncio.Event) -> None:
        await stop.wait()

    async def close(self) -> None:
        pass
