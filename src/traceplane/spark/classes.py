"""Spark's classes in a file that each start maps into memory, instead of loading 20,000 of them again.

    python -m traceplane.spark.classes

creates the file, once per Java and Spark version, next to the packages that it is made of. `make test` does it, or else
the first worker that starts Spark, at low priority. A Java that runs only what is listed here creates it, in its own
network if the machine has namespaces. Servers run users' code and can read the file but not write it. Java checks that
it fits, and works without it if not.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import hashlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from traceplane import telemetry
from traceplane.dataplane.java import Java, find_java
from traceplane.linux import kernel, network_namespace
from traceplane.runtime.locked_folder import remove_tree
from traceplane.sandbox import confinement
from traceplane.spark.command import POOLS, SparkSettings, environment, java_command, spark_home
from traceplane.spark.frames import filled_in
from traceplane.spark.served_port import ServedPort

_FOLDER = Path(sys.prefix) / "share" / "traceplane"
_MAKE = {17: "-XX:ArchiveClassesAtExit", 21: "-XX:ArchiveClassesAtExit", 25: "-XX:AOTCacheOutput"}
_USE = {17: "-XX:SharedArchiveFile", 21: "-XX:SharedArchiveFile", 25: "-XX:AOTCache"}
# Mapped at its preferred address, so that servers share its pages and the machine can drop them. If it does not fit,
# Java would print a warning at each start.
_USE_AS_IT_IS = (
    *("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0"),
    *("-Xlog:disable", "-Xlog:all=error"),
)
_SECONDS = 300.0
_BESIDE = "--beside"
"""At the lowest priority."""


def options(java: Java) -> list[str]:
    """For a server's command."""
    file = _file(java)
    return [f"{_USE[java.version]}={file}", *_USE_AS_IT_IS] if file.exists() else []


async def make_beside(java: Java, stop: asyncio.Event) -> None:
    """Creates the file at low priority, if it is missing and possible, until `stop`."""
    if not _is_wanted(java):
        return
    making = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-m", __name__, _BESIDE),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )
    stopping = asyncio.ensure_future(stop.wait())
    ended = asyncio.ensure_future(making.wait())
    try:
        await asyncio.wait((stopping, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and ended.result():
            telemetry.emit("spark.classes_not_made", "warning", code=ended.result())
    finally:
        stopping.cancel()
        with contextlib.suppress(ProcessLookupError):
            making.kill()
        await ended


def _is_wanted(java: Java) -> bool:
    return not _file(java).exists() and os.access(sys.prefix, os.W_OK)


def _file(java: Java) -> Path:
    """Another Java or Spark in the same place has another name, and so has a file created in another way."""
    parts = [java.home / "lib" / "modules", spark_home() / "jars", Path(__file__)]
    made_of = [(str(part), part.stat().st_mtime_ns) for part in parts if part.exists()]
    name = hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]
    return _FOLDER / f"spark-classes-{java.version}-{name}"


def make(java: Java) -> Path | None:
    """None if another process is creating it."""
    file = _file(java)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "spark-classes.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        for old in _FOLDER.glob(f"spark-classes-{java.version}-*"):
            old.unlink()
        place = _FOLDER / "spark-classes-making"
        remove_tree(place)  # left by a process that was killed
        place.mkdir(mode=0o700)
        try:
            fresh = place / "made"
            with _server(java, f"{_MAKE[java.version]}={fresh}", place) as remote:
                _use(remote, place)
            fresh.chmod(0o644)
            fresh.replace(file)
        finally:
            remove_tree(place)
    return file


@contextlib.contextmanager
def _server(java: Java, option: str, place: Path) -> Iterator[str]:
    """Yields its address. It has written the file and ended when the context ends."""
    pools = place / "pools.xml"
    pools.write_text(POOLS)
    settings = SparkSettings(folder=place, object_store=place)
    token, port = secrets.token_urlsafe(32), ServedPort()
    fill_in = functools.partial(filled_in, temp=str(place), port=port.number)
    process = subprocess.Popen(
        [fill_in(word) for word in java_command(settings, java, pools, [option])],
        env={name: fill_in(text) for name, text in environment(settings, java, token).items()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_end_with_parent,
    )
    try:
        _wait_for(port, process)
        yield f"sc://127.0.0.1:{port.number}/;authorization=Bearer%20{token}"
        process.terminate()
        process.wait(_SECONDS)
    finally:
        process.kill()
        process.wait()
        port.close()


def _end_with_parent() -> None:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for(port: ServedPort, process: subprocess.Popen[bytes]) -> None:
    """Waits until it, and no other process, listens: whoever gets the token can make it do anything."""
    until = time.monotonic() + _SECONDS
    while process.poll() is None and time.monotonic() < until:
        if port.is_served_by(process.pid, None):
            return
        time.sleep(0.05)
    raise OSError(f"Spark did not start to create its class file: exit code {process.returncode}")


def _use(remote: str, place: Path) -> None:
    """What the first tasks of a server do: query, write, read, return through Arrow."""
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(remote).getOrCreate()
    try:
        session.sql(
            "select id % 3 as key, cast(id as decimal(38, 0)) as amount, cast(id as string) as name,"
            " timestamp_seconds(id) as at from range(100)"
        ).write.parquet(f"{place}/rows")
        rows = session.read.parquet(f"{place}/rows")
        rows.createOrReplaceTempView("rows")
        grouped = session.sql(
            "select a.key, sum(a.amount) as total, count(distinct a.name) as names, max(b.at) as latest,"
            " row_number() over (order by a.key) as place from rows a join rows b on a.name = b.name"
            " where a.at >= timestamp_seconds(1) group by a.key order by a.key"
        )
        grouped.write.parquet(f"{place}/grouped")
        grouped.toArrow()
    finally:
        session.stop()


def main(beside: bool) -> None:
    signal.alarm(int(2 * _SECONDS))  # whatever it waits for; Java ends too
    with contextlib.suppress(OSError):  # without namespaces, only the token keeps others out
        for descriptor in network_namespace.make(confinement.enter_user_namespace):
            os.close(descriptor)
    if beside:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    java = find_java()
    os.environ.clear()  # variables must not name a proxy or another server
    if _is_wanted(java):
        make(java)


if __name__ == "__main__":
    try:
        main(_BESIDE in sys.argv[1:])
    except Exception as problem:
        sys.exit(f"Spark's classes were not prepared, so each of its starts takes longer: {problem}")
