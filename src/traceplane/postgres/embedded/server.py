"""A server in a folder: found or created, started, stopped, and owned by those who asked for it."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from traceplane.postgres.embedded import cluster, watchdog
from traceplane.postgres.embedded.binaries import Binaries, usable_binaries
from traceplane.postgres.embedded.folders import (
    Role,
    digest,
    location_of,
    locked,
    make_folder,
    make_private_folder,
    passwords_in,
    server_user,
    write,
)
from traceplane.postgres.embedded.problems import (
    START_TIMEOUT_SECONDS,
    folder_problem,
    problem,
    server_problem,
)
from traceplane.postgres.embedded.processes import ENVIRONMENT, children, command_line, exists, run_as

PORT = 5432  # only names the socket: each server has a socket folder of its own
FALLBACK_ROOT = Path("/var/lib/traceplane")
LOG_LIMIT_BYTES = 10 * 1024 * 1024
SOCKET_PATH_LIMIT = 104  # the kernel has 108

# Shared locks on `owners` files, held until this process ends; closing one would disown the server.
_owned: dict[Path, int] = {}


@dataclass(frozen=True)
class EmbeddedPostgres:
    """A server in a folder; made by ensure(), and good for any number of stops and starts."""

    folder: Path
    location: Path
    binaries: Binaries
    settings: Mapping[str, str]
    die_with_parent: bool
    passwords: Mapping[str, str] = field(repr=False)

    @classmethod
    def ensure(
        cls,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        die_with_parent: bool = False,
        fallback_root: Path = FALLBACK_ROOT,
    ) -> EmbeddedPostgres:
        """Answer with a server that accepts connections, created and started as far as needed.

        `settings` go over the tuned ones and count from the next start, as `die_with_parent` does.
        """
        cluster.check_settings(settings or {})
        folder = folder.resolve()
        try:
            make_folder(folder)
            with locked(folder):
                user = server_user(folder)
                location = location_of(folder, user, fallback_root)
                server = cls(
                    folder=folder,
                    location=location,
                    binaries=usable_binaries(user, fallback_root),
                    settings=dict(settings or {}),
                    die_with_parent=die_with_parent,
                    passwords=passwords_in(folder, create=not (location / "data" / "PG_VERSION").exists()),
                )
                if die_with_parent:
                    _own(folder)
                server._create_if_absent()
                server._bring_up()
        except OSError as error:
            raise folder_problem(folder, error) from error
        return server

    @property
    def state_url(self) -> str:
        return self.url("traceplane_state", "traceplane_state")

    @property
    def admin_url(self) -> str:
        return self.url("postgres", "postgres")

    def url(self, role: Role, database: str) -> str:
        """Socket folder and passwords are plain in a URL by their making; the database may not be."""
        place = f"{quote(database)}?host={self.socket_folder}&port={PORT}"
        return f"postgresql://{role}:{self.passwords[role]}@/{place}"

    @property
    def socket_folder(self) -> Path:
        inside = self.location / "socket"
        short = len(os.fsencode(inside / f".s.PGSQL.{PORT}.lock")) < SOCKET_PATH_LIMIT
        if short and re.fullmatch(r"[\w./-]+", str(inside), re.ASCII):
            return inside
        return Path("/tmp") / f"traceplane-{digest(self.location)}"  # noqa: S108 -- its owner is checked

    @property
    def data(self) -> Path:
        return self.location / "data"

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, or None if it is down, whatever an old postmaster.pid says."""
        pid = self._recorded_pid()
        return pid if pid is not None and self._config_option in command_line(pid) else None

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Shut the server down and wait for it; a server that is down already is left so."""
        with locked(self.folder):
            self._shut_down(mode)

    def restart(self) -> None:
        with locked(self.folder):
            self._shut_down("fast")
            self._bring_up()

    def kill(self) -> None:
        """SIGKILL the postmaster and all its children, as a power cut would; ensure() recovers."""
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGSTOP)  # forks no child that the list would miss
        victims = [pid, *children(pid)]
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        while any(command_line(victim) for victim in victims):
            time.sleep(0.005)

    def destroy(self) -> None:
        """Stop the server and delete all its data, passwords and logs; for tests and demonstrations."""
        if not self.folder.exists():
            return
        self.stop("immediate")
        cluster.remove_drafts(self.data)
        for place in (self.data, self.socket_folder):
            shutil.rmtree(place, ignore_errors=True)
        for name in ("postgresql.conf", "pg_hba.conf"):
            (self.location / name).unlink(missing_ok=True)
        for name in ("passwords.json", "postgres.log", "postgres.log.1", "location", "owners", "lock"):
            (self.folder / name).unlink(missing_ok=True)
        for place in (self.location, self.folder):
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()

    def _create_if_absent(self) -> None:
        fsync = self.settings.get("fsync", "on")
        cluster.create_if_absent(self.data, self.binaries, self.passwords, fsync=fsync)

    def _bring_up(self) -> None:
        _truncate_log(self.log)
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while self.pid is not None:  # somebody began a start or a stop and went away
            if self._status() == "ready":
                return
            if time.monotonic() > deadline:
                raise problem("start_timeout", self.folder)
            time.sleep(0.02)
        try:
            self._start()
            if self.die_with_parent:
                self._start_watchdog()
        except BaseException:
            if self.die_with_parent:
                self._shut_down("immediate")
            raise

    def _start(self) -> None:
        self._clear_stale_locks()
        make_private_folder(self.socket_folder, self.binaries.user)
        hba_file = self.location / "pg_hba.conf"
        own = {
            "unix_socket_directories": str(self.socket_folder),
            "port": str(PORT),
            "hba_file": str(hba_file),
        }
        write(
            self.location / "postgresql.conf", cluster.configuration(self.binaries, self.settings, own), 0o644
        )
        write(hba_file, cluster.HOST_BASED_AUTHENTICATION, 0o644)
        patience = time.monotonic() + 10
        while (output := self._try_start()) is not None:
            if self.pid is not None:
                raise problem("start_timeout", self.folder)
            # The children of a killed postmaster need a moment to notice.
            if "pre-existing shared memory block" not in output or time.monotonic() > patience:
                raise server_problem("start_failed", output, self.folder)
            time.sleep(0.1)

    def _try_start(self) -> str | None:
        """Nothing once the server accepts connections, else what it logged."""
        log = os.open(self.log, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            begin = os.fstat(log).st_size
            # No -D: pg_ctl would put it through a shell unquoted.
            started = self.binaries.run(
                *("pg_ctl", "start", "--silent", "--wait", f"--timeout={START_TIMEOUT_SECONDS}"),
                *("--options", shlex.quote(self._config_option)),
                stdout=log,
                stderr=log,
                env=ENVIRONMENT | {"PGDATA": str(self.data)},
            )
            if started.returncode == 0:
                return None
            return os.pread(log, 64 * 1024, begin).decode(errors="replace")
        finally:
            os.close(log)

    def _shut_down(self, mode: str) -> None:
        if self.pid is None:
            return
        stopped = self.binaries.run(
            "pg_ctl", "stop", "--silent", "--wait", f"--mode={mode}", "--pgdata", self.data
        )
        if stopped.returncode != 0 and self.pid is not None:
            raise problem("stop_failed", stopped.stderr.strip())

    def _start_watchdog(self) -> None:
        user = self.binaries.user
        gid = user.gid if user else os.getegid()
        pid_file = self.data / "postmaster.pid"
        watched = [self.folder / "owners", pid_file, self._recorded_pid(), self.binaries.uid, gid]
        # As ourselves, since the server's user may not be able to run this Python.
        command = [sys.executable, "-I", "-S", watchdog.__file__, *map(str, watched)]
        run_as(None, command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _clear_stale_locks(self) -> None:
        """Remove lock files whose process id now belongs to something that is no Postgres.

        Postgres itself sees through the lock files of a process that is gone, but takes any living
        process of its user, and a zombie, for a postmaster.
        """
        pid = self._recorded_pid()
        if pid is None or not exists(pid) or Path(*command_line(pid)[:1]).name.startswith("postgres"):
            return
        for lock in (self.data / "postmaster.pid", self.socket_folder / f".s.PGSQL.{PORT}.lock"):
            lock.unlink(missing_ok=True)

    @property
    def _config_option(self) -> str:
        """On the postmaster's command line, and by that the proof that a process is ours."""
        return f"--config-file={self.location / 'postgresql.conf'}"

    def _recorded_pid(self) -> int | None:
        lines = self._postmaster_file()
        return int(lines[0]) if lines and lines[0].strip().isdigit() else None

    def _status(self) -> str:
        lines = self._postmaster_file()
        return lines[7].strip() if len(lines) > 7 else "starting"

    def _postmaster_file(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []


def _own(folder: Path) -> None:
    path = folder / "owners"
    held = _owned.get(folder)
    if held is not None and path.exists() and os.path.samestat(os.fstat(held), path.stat()):
        return
    owners = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    fcntl.flock(owners, fcntl.LOCK_SH)  # waits while a watchdog takes the server down
    if held is not None:
        os.close(held)
    _owned[folder] = owners


def _truncate_log(log: Path) -> None:
    """The server appends to the file it was given, so it is emptied in place rather than renamed."""
    if not log.is_symlink() and log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        shutil.copy2(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)
