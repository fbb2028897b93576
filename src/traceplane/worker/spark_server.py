"""The Spark Connect server of a worker: one JVM, confined, started again when it dies.

User code reaches Spark over Connect and can make it read and write files, so the JVM is confined too (see
`spark_launcher`): it reads the system, Spark, the code paths and the object store, writes below the object
store and its own temporary folder, has no capabilities and an environment without secrets. Of an object store in
S3 it reads the worker's cache and writes below the worker's outputs. Tasks of one worker share the server, and with
it its view of the object store; tasks that must not see each other's data belong on different workers.

An execution whose client is gone (a task that was killed, timed out or canceled) is interrupted within some
twenty seconds by the server itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from traceplane import telemetry
from traceplane.dataplane.java import java_home
from traceplane.errors import PlatformError

_START_SECONDS = 180.0
_STOP_SECONDS = 10.0


_PYTHON_MEMORY_MB = 4096
"""Address space of a Python process that runs user functions for a local Spark; libraries alone take 1.3 GB."""


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    folder: Path
    """For its temporary files and its log."""
    object_store: Path
    """Where tasks write, and read unless their inputs are elsewhere."""
    inputs: Path | None = None
    code_paths: tuple[Path, ...] = ()
    master: str = "local[*]"
    memory_mb: int = 1024
    quick: bool = False
    """Starts sooner and computes slower: the compiler's last level, which pays off over minutes, is left out."""
    conf: tuple[tuple[str, str], ...] = ()
    allow_weak: bool = False


_POOLS = """<?xml version="1.0"?>
<allocations><pool name="default"><schedulingMode>FAIR</schedulingMode></pool></allocations>
"""
"""All work is in the default pool, which by itself does it in the order it came: a long job before all short ones."""

_CONF = {
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    # Tasks of several jobs at once: each gets its share of the cores.
    "spark.scheduler.mode": "FAIR",
    # A client that is gone does not come back: stop what it asked for. It is missed when a stream to it ends, not
    # before, so streams are short; clients that live take them up again.
    "spark.connect.execute.reattachable.senderMaxStreamDuration": "5s",
    "spark.connect.execute.manager.detachedTimeout": "10s",
    "spark.connect.execute.manager.maintenanceInterval": "1s",
    "spark.connect.session.manager.defaultSessionTimeout": "30m",
    "spark.connect.progress.reportInterval": "500ms",
    # Small tasks: few partitions, no listing in parallel, no metadata that nobody reads.
    "spark.sql.shuffle.partitions": "4",
    "spark.default.parallelism": "4",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.showConsoleProgress": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
# A JVM that ran out of memory may have lost any of its threads: it ends, and is started again. Checking the bytecode
# of Spark's own classes, which were installed by their hashes, is a quarter of what a start and a first task take.
_JAVA_OPTIONS = (
    "-XX:+UseSerialGC -Xss4m -Djava.io.tmpdir={temp} -XX:-UsePerfData"
    " -XX:+ExitOnOutOfMemoryError -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
_EXIT_OUT_OF_MEMORY = 3


@dataclass(frozen=True)
class RemoteSpark:
    """A Spark Connect server that somebody else runs; it must reach the object store under the same paths."""

    remote: str

    @property
    def last_end(self) -> str | None:
        return None

    async def keep_running(self, stop: asyncio.Event) -> None:
        await stop.wait()

    async def close(self) -> None:
        pass


class SparkServer:
    """Made by `start`; `remote` is where clients connect."""

    def __init__(self, settings: SparkSettings, home: Path) -> None:
        self._settings = settings
        self._java_home = home
        self._process: asyncio.subprocess.Process | None = None
        self._port = 0
        self.last_end: str | None = None
        """Why the server that ran before this one ended, for people."""

    @property
    def remote(self) -> str:
        return f"sc://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @classmethod
    async def start(cls, settings: SparkSettings) -> SparkServer:
        settings.folder.mkdir(parents=True, exist_ok=True)
        settings.object_store.mkdir(parents=True, exist_ok=True)
        server = cls(settings, await asyncio.to_thread(java_home, settings.folder))
        await server._launch()
        return server

    async def keep_running(self, stop: asyncio.Event) -> None:
        """Starts it again when it dies; tasks that were running on it fail and are retried."""
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                assert self._process is not None
                ended = asyncio.ensure_future(self._process.wait())
                await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
                if stop.is_set():
                    ended.cancel()
                    return
                self.last_end = self._why_ended(self._process.returncode)
                telemetry.emit("spark.died", "error", code=self._process.returncode, why=self.last_end)
                await self._launch()
        finally:
            stopping.cancel()

    def _why_ended(self, code: int | None) -> str:
        if code == _EXIT_OUT_OF_MEMORY:
            return (
                f"out of memory: its heap has {self._settings.memory_mb} MB, see the setting spark_memory_mb"
            )
        ended = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"it ended with {ended}, see {self._settings.folder / 'server.log'}"

    async def close(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def _launch(self) -> None:
        settings = self._settings
        self._port = self._port or _free_port()
        log = settings.folder / "server.log"
        inputs = [settings.inputs] if settings.inputs is not None else []
        launch = {
            "command": self._command(),
            "environment": self._environment(),
            "readable": [str(p.resolve()) for p in (*settings.code_paths, *inputs)],
            "writable": [str(settings.folder.resolve()), str(settings.object_store.resolve())],
            "allow_weak": settings.allow_weak,
        }
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-m",
                "traceplane.worker.spark_launcher",
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={},
            )
        finally:
            os.close(output)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(launch).encode())
        self._process.stdin.close()
        await self._wait_until_ready(log)
        telemetry.emit("spark.ready", pid=self._process.pid, master=settings.master)

    async def _wait_until_ready(self, log: Path) -> None:
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while not _accepts(self._port):
            if self._process.returncode is not None or asyncio.get_running_loop().time() > deadline:
                await self.close()
                raise PlatformError(
                    "spark.not_started",
                    "the Spark server did not start",
                    value=_last_line(log),
                    next_step=f"read {log}",
                )
            await asyncio.sleep(0.1)

    def _command(self) -> list[str]:
        settings = self._settings
        temp = settings.folder / "tmp"
        temp.mkdir(exist_ok=True)
        pools = settings.folder / "pools.xml"
        pools.write_text(_POOLS)
        conf = {
            **_CONF,
            "spark.scheduler.allocation.file": pools.resolve().as_uri(),
            "spark.connect.grpc.binding.port": str(self._port),
            # What is collected is held in the heap: more than a part of it is refused, with a message.
            "spark.driver.maxResultSize": f"{max(64, settings.memory_mb // 4)}m",
            # Executors of a cluster find user code under the same paths, as they find the object store.
            "spark.executorEnv.PYTHONPATH": _search_path(settings.code_paths),
            "spark.local.dir": str(temp),
            "spark.sql.warehouse.dir": str(temp / "warehouse"),
            "spark.sql.artifact.isolation.enabled": "false",
            **dict(settings.conf),
        }
        if settings.master.startswith("local"):  # a cluster has limits of its own
            conf["spark.executor.pyspark.memory"] = f"{_PYTHON_MEMORY_MB}m"
        jars = _spark_home() / "jars" / "*"
        options = _JAVA_OPTIONS.format(temp=temp).split()
        opens = [word for module in _OPENED for word in ("--add-opens", f"{module}=ALL-UNNAMED")]
        return [
            str(self._java_home / "bin" / "java"),
            f"-Xmx{settings.memory_mb}m",
            *options,
            *(["-XX:TieredStopAtLevel=1"] if settings.quick else []),
            *opens,
            f"-Dspark.master={settings.master}",
            *(f"-D{key}={value}" for key, value in conf.items()),
            "-cp",
            str(jars),
            "org.apache.spark.sql.connect.service.SparkConnectServer",
        ]

    def _environment(self) -> dict[str, str]:
        return {
            "JAVA_HOME": str(self._java_home),
            "SPARK_HOME": str(_spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": _search_path(self._settings.code_paths),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self._settings.folder.resolve()),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
        }


_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
)


def _search_path(folders: tuple[Path, ...]) -> str:
    return os.pathsep.join(str(folder.resolve()) for folder in folders)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    told = [line for line in lines if "Exception" in line or "Error" in line] or lines
    return told[-1][:300] if told else "it said nothing"


def _spark_home() -> Path:
    """Found, not imported: only user code's processes need the library."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent
