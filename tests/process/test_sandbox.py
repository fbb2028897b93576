"""Guarantee 9: operator code cannot reach /internal/*, other tasks' data, or platform secrets.

Every attack of `hostile_operators` runs beside an innocent task, which must not notice. Where an
attack looks for something, a control first shows that it is there to be found without the sandbox.

The file runs once with every layer of isolation this machine has. `test_each_way_of_confining` then
runs it again in processes of their own: as an unprivileged user, and with only some of the layers, as
on an older kernel or in a container.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import py_compile
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import pytest_asyncio

from traceplane import telemetry
from traceplane.errors import InvalidInput, PlatformError
from traceplane.linux import kernel, plain_files
from traceplane.sandbox import private_root
from traceplane.sandbox.assignment import Assignment, RunResult, UsedSpark
from traceplane.sandbox.confinement import LANDLOCK, NAMESPACES, SECCOMP, SUPERVISED_NETWORK, UID_SLOTS
from traceplane.sandbox.frames import Limits, Reach
from traceplane.sandbox.pool import Sandbox, SandboxSettings

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only"),
    pytest.mark.asyncio(loop_scope="module"),
]

CODE = Path(__file__).resolve().parent
SECRET = "tpw_a_worker_token_that_must_not_leak"
WITHOUT = frozenset(filter(None, os.environ.get("TRACEPLANE_TEST_SANDBOX_WITHOUT", "").split(",")))
IN_A_WAY_OF_CONFINING = "TRACEPLANE_TEST_SANDBOX_WITHOUT" in os.environ
AS_ROOT = os.geteuid() == 0
OTHER_UID = 60_715


whatever_the_layers = pytest.mark.skipif(IN_A_WAY_OF_CONFINING, reason="it does not depend on the layers")


@dataclass
class Run:
    """A finished attack: its result, what it told, and what it logged."""

    result: RunResult
    lines: list[str] = field(default_factory=list)

    @property
    def told(self) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        for line in self.lines:
            if line.startswith("TELL "):
                facts |= json.loads(line.removeprefix("TELL "))
        return facts

    @property
    def code(self) -> str | None:
        return self.result.error.code if self.result.error else None

    @property
    def message(self) -> str:
        return self.result.error.message if self.result.error else ""


def assignment(operator: str, task_id: str = "task", **fields: Any) -> Assignment:
    config = fields.pop("config", {})
    payload = {"config": config, "outputs": [{"name": "rows"}], **fields.pop("payload", {})}
    entrypoint = operator if ":" in operator else f"hostile_operators:{operator}"
    fields.setdefault("code_paths", (CODE,))
    return Assignment(task_id=task_id, attempt=1, entrypoint=entrypoint, payload=payload, **fields)


async def run(
    sandbox: Sandbox, operator: str, *, timeout: float = 120, on_events: Any = None, **fields: Any
) -> Run:
    lines: list[str] = []
    result = await sandbox.run(
        assignment(operator, **fields), on_log=lines.append, on_events=on_events, timeout=timeout
    )
    return Run(result, lines)


async def attack(sandbox: Sandbox, operator: str, **fields: Any) -> Run:
    """Run a hostile operator beside an innocent one, which must come out whole."""
    attacked, bystander = await asyncio.gather(
        run(sandbox, operator, **fields), run(sandbox, "innocent", task_id="bystander")
    )
    assert bystander.result.error is None
    assert bystander.result.outputs[0].row_count == 10
    return attacked


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where datasets live; passable for all, so that file modes alone do not keep a task out."""
    folder = Path("/tmp") / f"traceplane-test-lake-{os.getpid()}"
    folder.mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def secret_file(lake: Path) -> Path:
    file = lake / "traceplane.toml"
    file.write_text(f'worker_token = "{SECRET}"\n')
    file.chmod(0o644)
    return file


@pytest.fixture(scope="module")
def inherited(secret_file: Path) -> Iterator[int]:
    """A descriptor of the wrapper that a careless fork would hand down."""
    descriptor = os.open(secret_file, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    yield descriptor
    os.close(descriptor)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(lake: Path, inherited: int) -> AsyncIterator[Sandbox]:
    os.environ["TRACEPLANE_WORKER_TOKEN"] = SECRET
    with contextlib.suppress(PermissionError):  # tasks cannot store it, and would compile it every time
        py_compile.compile(str(CODE / "hostile_operators.py"))
    settings = SandboxSettings(
        slots=4,
        folder=lake / "sandbox",
        hidden=(lake / "project" / ".traceplane", lake / "project" / "settings.toml"),
        disabled_layers=WITHOUT,
    )
    started = await Sandbox.start(settings)
    yield started
    await started.close()
    del os.environ["TRACEPLANE_WORKER_TOKEN"]


@pytest.fixture
def victim(inherited: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the wrapper's own user with the token in its environment, and unprotected at that."""
    process = subprocess.Popen(["/bin/sleep", "1000"], env={"TOKEN": SECRET}, pass_fds=(inherited,))
    while not _shows_its_token(process.pid):  # until it is no longer a copy of us
        time.sleep(0.001)
    yield process
    process.kill()
    process.wait()


def _shows_its_token(pid: int) -> bool:
    try:
        return SECRET in Path(f"/proc/{pid}/environ").read_text()
    except PermissionError:
        return False


async def run_until_it_left_something(sandbox: Sandbox, operator: str, **fields: Any) -> Run:
    """Kill it after a short time, or after a longer one if it had not come that far on a busy machine."""
    for seconds in (0.5, 2.0, 8.0):
        attacked = await attack(sandbox, operator, timeout=seconds, **fields)
        if attacked.result.leftovers:
            return attacked
    raise AssertionError("it left nothing behind")


def unique_marker() -> str:
    """An argument for `sleep` that no other process has."""
    return f"1000.{os.getpid()}{time.monotonic_ns()}"


def processes_with(marker: str) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if marker.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
    return found


async def eventually(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)


# --- what the sandbox is -------------------------------------------------------------------------------


async def test_says_which_layers_hold_and_why_others_do_not(sandbox: Sandbox) -> None:
    isolation = sandbox.isolation
    assert isolation.weakness() is None
    for layer in WITHOUT:
        assert isolation.missing[layer] == "switched off by the settings"
    assert isolation.has(UID_SLOTS) == AS_ROOT
    assert isolation.has(LANDLOCK) == (isolation.landlock_abi > 0)


@whatever_the_layers
async def test_refuses_to_start_where_tasks_could_read_each_other() -> None:
    too_weak = frozenset({LANDLOCK, NAMESPACES})
    with pytest.raises(PlatformError) as refusal:
        await Sandbox.start(SandboxSettings(slots=1, disabled_layers=too_weak))
    assert refusal.value.code == "sandbox.too_weak"
    assert "switched off by the settings" in refusal.value.message


@whatever_the_layers
async def test_runs_where_it_is_weak_only_when_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("test")
    too_weak = frozenset({LANDLOCK, NAMESPACES, UID_SLOTS, SECCOMP})
    weak = await Sandbox.start(SandboxSettings(slots=1, disabled_layers=too_weak, allow_weak=True))
    warned, *_ = [json.loads(line) for line in capsys.readouterr().err.splitlines() if "sandbox.weak" in line]
    assert warned["reason"] == weak.isolation.weakness(), "an operator of the platform has to know why"
    try:
        assert weak.isolation.weakness() is not None
        assert (await run(weak, "nothing")).code is None
    finally:
        await weak.close()


@whatever_the_layers
async def test_refuses_a_root_worker_that_cannot_change_its_uid() -> None:
    if not AS_ROOT:
        pytest.skip("needs root")
    with pytest.raises(PlatformError, match="runs as root") as refusal:
        await Sandbox.start(SandboxSettings(slots=1, disabled_layers=frozenset({UID_SLOTS})))
    assert refusal.value.code == "sandbox.too_weak"


@whatever_the_layers
async def test_settings_name_what_is_wrong_with_them() -> None:
    with pytest.raises(InvalidInput, match="no such layer"):
        SandboxSettings(disabled_layers=frozenset({"landlok"}))
    with pytest.raises(InvalidInput, match="at least one slot"):
        SandboxSettings(slots=0)


@whatever_the_layers
async def test_two_workers_of_one_host_never_share_a_uid(sandbox: Sandbox) -> None:
    if not AS_ROOT:
        pytest.skip("needs root")
    other = await Sandbox.start(SandboxSettings(slots=2, disabled_layers=WITHOUT))
    try:
        mine, theirs = [
            await asyncio.gather(*(run(s, "describe") for _ in range(2))) for s in (sandbox, other)
        ]
        assert all(r.code is None for r in (*mine, *theirs))
        assert not set(sandbox.uids) & set(other.uids)
    finally:
        await other.close()


# --- what an operator can do ---------------------------------------------------------------------------


async def test_an_operator_reads_its_inputs_and_writes_its_outputs(sandbox: Sandbox, lake: Path) -> None:
    staging = lake / "dataset" / "first" / "staging"
    first = await run(sandbox, "innocent", payload={"outputs": [{"name": "rows", "folder": str(staging)}]})
    (output,) = first.result.outputs
    assert (output.output_index, output.name, output.row_count, len(output.schema_hash)) == (
        0,
        "rows",
        10,
        16,
    )
    assert output.files[0].path == str(staging / "part-00000.parquet")
    assert output.bytes == os.stat(output.files[0].path).st_size
    files = [{"path": file.path, "rows": file.rows} for file in output.files]

    second = await run(
        sandbox,
        "double",
        payload={
            "scope": {"partition_key": "0-9", "start": 0, "end": 9},
            "inputs": [{"name": "numbers", "files": files, "where": {"n": 7}}],
            "outputs": [{"name": "doubled"}, {"name": "count"}],
        },
        staging=lake / "second",
    )
    assert second.result.error is None
    doubled, count = second.result.outputs
    assert (doubled.output_index, count.output_index) == (0, 1)
    assert parquet.read_table(doubled.files[0].path).to_pylist() == [{"n": 14}]
    assert parquet.read_table(count.files[0].path).to_pylist() == [{"rows": 1}]
    scope = {"partition_key": "0-9", "start": 0, "end": 9}
    assert second.result.events == ({"output_index": 0, "scope": scope, "kind": "data", "emission": "again"},)
    assert second.lines == ["info: doubled rows=1"]
    assert second.result.start_seconds is not None


async def test_an_operator_reads_from_hundreds_of_files(sandbox: Sandbox, lake: Path) -> None:
    one = await run(sandbox, "innocent", staging=lake / "many")
    source = Path(one.result.outputs[0].files[0].path)
    files = [source.with_name(f"copy-{n}.parquet") for n in range(500)]
    for file in files:
        os.link(source, file)
    inputs = [{"name": "numbers", "files": [str(file) for file in files]}]
    outputs = [{"name": "doubled"}, {"name": "count"}]
    many = await run(sandbox, "double", payload={"inputs": inputs, "outputs": outputs})
    assert many.code is None
    assert [output.row_count for output in many.result.outputs] == [5_000, 1]


def plant(kind: str, victim: Path, folder: Path) -> str:
    """What somebody who could write to the object store put in the place of a committed file."""
    place = folder / "part.parquet"
    folder.mkdir(parents=True)
    match kind:
        case "a link to a file":
            place.symlink_to(victim)
        case "a link to a folder":
            place.symlink_to(victim.parent)
        case "a folder":
            place.mkdir()
        case "a pipe":
            os.mkfifo(place)
        case "a file in a linked folder":
            folder.rmdir()
            folder.symlink_to(victim.parent)
            place = folder / victim.name
    return str(place)


@pytest.mark.parametrize(
    "kind", ["a link to a file", "a link to a folder", "a folder", "a pipe", "a file in a linked folder"]
)
async def test_what_lies_in_the_place_of_an_input_is_not_shown(
    kind: str, sandbox: Sandbox, lake: Path, secret_file: Path
) -> None:
    planted = plant(kind, secret_file, lake / "planted" / kind / "staging")
    payload = {"inputs": [{"name": "numbers", "files": [planted]}]}
    with pytest.raises(PlatformError) as refused:
        await run(sandbox, "look_at_files", config={"paths": [planted]}, payload=payload)
    assert (refused.value.code, refused.value.value) == ("sandbox.input_not_a_file", planted)


@pytest.mark.parametrize("kind", ["a link to a file", "a link to a folder", "a file in a linked folder"])
async def test_a_link_that_comes_between_the_look_and_the_task_is_not_followed(
    kind: str, sandbox: Sandbox, lake: Path, secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = plant(kind, secret_file, lake / "raced" / kind / "staging")
    monkeypatch.setattr(plain_files, "is_plain", lambda path: True)  # it was, a moment ago
    payload = {"inputs": [{"name": "numbers", "files": [planted]}]}
    done = await run(sandbox, "look_at_files", config={"paths": [planted]}, payload=payload)
    assert (done.code, done.told) == ("sandbox.setup_failed", {})


@whatever_the_layers
async def test_an_operator_is_told_of_its_task(sandbox: Sandbox, lake: Path) -> None:
    inputs = [{"name": "empty", "files": [], "where": {"ticker": "ACME"}}]
    payload = {"kind": "invalidation", "scope": {"cursor": 17}, "inputs": inputs}
    told = (await run(sandbox, "describe", task_id="t-1", config={"depth": {"a": [1]}}, payload=payload)).told
    assert told == {
        "task_id": "t-1",
        "attempt": 1,
        "kind": "invalidation",
        "scope": "17",
        "config": {"depth": {"a": [1]}},
        "inputs": {"empty": [[], {"ticker": "ACME"}]},
        "outputs": ["rows"],
        "temp_exists": True,
        "cwd": True,
    }


async def test_an_operator_may_use_threads_and_programs(sandbox: Sandbox) -> None:
    told = (await run(sandbox, "uses_threads_and_processes")).told
    assert told == {"threads": [0, 1, 2, 3], "output": "from a program"}


@whatever_the_layers
async def test_sealed_outputs_belong_to_the_wrapper_and_are_read_only(sandbox: Sandbox, lake: Path) -> None:
    finished = await run(sandbox, "innocent", staging=lake / "sealed")
    path = Path(finished.result.outputs[0].files[0].path)
    assert path.stat().st_uid == os.geteuid()
    assert path.stat().st_mode & 0o777 == 0o444
    assert path.parent.stat().st_uid == os.geteuid()


@whatever_the_layers
async def test_a_failed_attempt_leaves_no_files(sandbox: Sandbox, lake: Path) -> None:
    failed = await run(sandbox, "raises", staging=lake / "failed")
    assert failed.code == "operator.raised"
    await eventually(lambda: not (lake / "failed" / "0").exists())


@whatever_the_layers
async def test_an_output_folder_with_something_in_it_is_refused(sandbox: Sandbox, lake: Path) -> None:
    folder = lake / "occupied"
    folder.mkdir()
    (folder / "precious").write_text("keep")
    with pytest.raises(PlatformError) as refusal:
        await run(sandbox, "innocent", payload={"outputs": [{"name": "rows", "folder": str(folder)}]})
    assert refusal.value.code == "sandbox.folder_in_use"
    assert (folder / "precious").read_text() == "keep"
    assert (await run(sandbox, "nothing")).code is None


# --- how an operator can fail --------------------------------------------------------------------------


@whatever_the_layers
async def test_code_that_operators_cannot_read_is_named(sandbox: Sandbox, lake: Path) -> None:
    if not AS_ROOT:
        pytest.skip("needs root")
    (lake / "private").mkdir(mode=0o700)
    failed = await run(sandbox, "nothing", code_paths=(lake / "private",))
    assert failed.code == "sandbox.setup_failed"
    assert f"operators cannot read the code path {lake / 'private'}" in failed.message
    missing = await run(sandbox, "nothing", code_paths=(lake / "missing",))
    assert missing.code == "sandbox.setup_failed"
    assert str(lake / "missing") in missing.message


@whatever_the_layers
async def test_an_exception_is_reported_in_the_users_terms(sandbox: Sandbox) -> None:
    failed = await run(sandbox, "raises")
    error = failed.result.error
    assert error is not None
    assert (error.code, error.type, error.message) == (
        "operator.raised",
        "LookupError",
        "no such ticker: ACME",
    )
    assert error.file == str(CODE / "hostile_operators.py")
    assert error.line is not None
    assert "raise LookupError" in (CODE / "hostile_operators.py").read_text().splitlines()[error.line - 1]
    assert error.traceback is not None
    assert "in inner" in error.traceback
    assert "runner.py" not in error.traceback


@whatever_the_layers
@pytest.mark.parametrize(
    ("entrypoint", "code", "part"),
    [
        ("no_such_module:run", "operator.no_entrypoint", "no module 'no_such_module'"),
        ("hostile_operators:no_such_function", "operator.no_entrypoint", "no function 'no_such_function'"),
        ("hostile_operators:CHANNEL", "operator.no_entrypoint", "no function 'CHANNEL'"),
        ("hostile_operators:", "operator.no_entrypoint", "package.module:function"),
        ("broken.raises:run", "operator.import_failed", "not today"),
        ("broken.lacks:run", "operator.import_failed", "no_such_library"),
        ("broken.syntax:run", "operator.import_failed", "invalid syntax"),
        ("broken.leaves:run", "operator.exited", "sys.exit"),
    ],
)
async def test_an_entrypoint_that_cannot_be_loaded_says_why(
    sandbox: Sandbox, lake: Path, entrypoint: str, code: str, part: str
) -> None:
    package = lake / "code" / "broken"
    package.mkdir(parents=True, exist_ok=True)
    (package / "raises.py").write_text("raise ValueError('not today')\n")
    (package / "lacks.py").write_text("import no_such_library\n")
    (package / "syntax.py").write_text("def run(task ::\n")
    (package / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    failed = await run(sandbox, entrypoint, code_paths=(lake / "code", CODE))
    assert failed.code == code
    assert part in failed.message
    if code == "operator.import_failed":
        assert failed.result.error is not None
        assert failed.result.error.file == str(package / f"{entrypoint.split(':')[0].split('.')[1]}.py")
        assert failed.result.error.line == 1


@whatever_the_layers
@pytest.mark.parametrize(
    ("operator", "config", "code", "part"),
    [
        ("exit_politely", {"code": 0}, "operator.exited", "sys.exit(0)"),
        ("exit_politely", {"code": "sorry"}, "operator.exited", "sys.exit('sorry')"),
        ("exit_at_once", {"code": 0}, "operator.exited", "exit code 0 and without a result"),
        ("exit_at_once", {"code": 7}, "operator.exited", "exit code 7"),
        ("abort", {}, "operator.killed", "SIGABRT"),
        ("crash", {}, "operator.killed", "SIGSEGV"),
        ("recurse", {}, "operator.raised", "maximum recursion depth"),
        ("recurse_without_limit", {}, "operator.killed", "SIGSEGV"),
        ("close_everything", {}, "operator.exited", "without a result"),
        ("raises_unprintable", {}, "operator.raised", "could not be read"),
        (
            "writes_elsewhere",
            {},
            "operator.output_unknown",
            "no output 'not_declared'; the job declares rows",
        ),
        ("returns_nonsense", {}, "operator.result_invalid", "object cannot be written as rows"),
        ("unencodable_result", {}, "operator.result_invalid", "an event is not well formed"),
        ("raises_strange_text", {}, "operator.raised", "\\0 and \\ud800"),
    ],
)
async def test_every_way_to_die_has_a_stable_code(
    sandbox: Sandbox, operator: str, config: dict[str, Any], code: str, part: str
) -> None:
    died = await attack(sandbox, operator, config=config)
    assert died.code == code
    assert part in died.message
    assert died.result.outputs == ()


# --- secrets ---------------------------------------------------------------------------------------------


async def test_the_environment_holds_five_names_and_no_token(sandbox: Sandbox) -> None:
    assert os.environ["TRACEPLANE_WORKER_TOKEN"] == SECRET
    looked = await attack(sandbox, "look_at_environment")
    assert sorted(looked.told["environment"]) == ["HOME", "LANG", "PATH", "TMPDIR", "TZ"]
    assert SECRET not in json.dumps(looked.told)


async def test_no_descriptor_is_inherited(sandbox: Sandbox, inherited: int) -> None:
    control = "import os, sys; print(os.pread(int(sys.argv[1]), 100, 0))"
    unconfined = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", control, str(inherited)), close_fds=False, stdout=asyncio.subprocess.PIPE
    )
    assert SECRET.encode() in (await unconfined.communicate())[0]
    looked = await attack(sandbox, "look_at_descriptors")
    assert sorted(map(int, looked.told["descriptors"])) == [0, 1, 2, 3]


async def test_no_other_process_can_be_looked_into(sandbox: Sandbox, victim: subprocess.Popen[bytes]) -> None:
    assert SECRET in Path(f"/proc/{victim.pid}/environ").read_text()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    assert {victim.pid, os.getpid()} <= set(pids)
    looked = await attack(sandbox, "look_at_processes", config={"pids": pids})
    assert looked.told["found"] == {}
    assert looked.told["tried"] >= len(pids) - 1


@whatever_the_layers
async def test_the_wrapper_is_closed_to_its_own_user() -> None:
    """Without any sandbox, a process of the same uid cannot look into a protected one."""
    outcomes = []
    for protect in (False, True):
        with _holder_of_the_secret(protect) as pid:
            outcomes.append(_look_as_other_user(pid))
    assert SECRET in outcomes[0]
    assert outcomes[1] == "PermissionError"


@contextlib.contextmanager
def _holder_of_the_secret(protect: bool) -> Iterator[int]:
    """A process, of an unprivileged user in any case, with the token in its environment."""
    script = f"""
import os, time
from traceplane.linux import kernel
from traceplane.sandbox import confinement
if os.geteuid() == 0:
    os.setresuid({OTHER_UID}, {OTHER_UID}, {OTHER_UID})
kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
if {protect}:
    confinement.protect_this_process()
print("ready", flush=True)
time.sleep(100)
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, env={"TOKEN": SECRET}, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield holder.pid
        holder.kill()


def _look_as_other_user(pid: int) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if AS_ROOT:
            os.setresuid(OTHER_UID, OTHER_UID, OTHER_UID)
        try:
            found = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError as error:
            found = type(error).__name__.encode()
        os.write(writer, found)
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read()


def _readable_address(pid: int) -> int:
    """Where a process has memory that its own user can read."""
    address = int(Path(f"/proc/{pid}/maps").read_text().split("-")[0], 16)
    with Path(f"/proc/{pid}/mem").open("rb") as memory:
        memory.seek(address)
        assert len(memory.read(8)) == 8
    return address


async def test_no_other_process_can_be_traced(sandbox: Sandbox, victim: subprocess.Popen[bytes]) -> None:
    address = _readable_address(victim.pid)
    tried = await attack(sandbox, "trace", config={"pids": [victim.pid, os.getpid()], "address": address})
    assert len(tried.told["outcomes"]) == 3
    for outcome in tried.told["outcomes"].values():
        assert outcome == {"traced": False, "memory": False}


async def test_files_of_the_platform_cannot_be_read(sandbox: Sandbox, secret_file: Path) -> None:
    assert SECRET in secret_file.read_text()
    assert secret_file.stat().st_mode & 0o004
    paths = [
        str(secret_file),
        str(secret_file.parent),
        "/etc/shadow",
        "/root",
        "/home",
        "/var",
        str(CODE.parents[1]),
    ]
    looked = await attack(sandbox, "look_at_files", config={"paths": paths})
    assert SECRET not in json.dumps(looked.told)
    for path, outcome in looked.told["outcomes"].items():
        # In a root of its own a folder may be there to pass through, wherever this is installed; then it shows the
        # task's own paths.
        passes_through = sandbox.isolation.has(NAMESPACES) and any(
            Path(folder).is_relative_to(path) for folder in (*private_root.interpreter_folders(), CODE)
        )
        listed = path == str(secret_file.parent) and sandbox.isolation.has(NAMESPACES)
        assert not outcome.startswith("did") or passes_through or listed, path
        assert "pyproject.toml" not in outcome
        assert "traceplane.toml" not in outcome


async def test_the_platforms_home_is_hidden_even_below_a_code_path(sandbox: Sandbox, lake: Path) -> None:
    project = lake / "project"
    home = project / ".traceplane"
    (home / "objects").mkdir(parents=True)
    shutil.copy(CODE / "hostile_operators.py", project)
    for secret in (home / "worker_token", home / "objects" / "other_task", project / "settings.toml"):
        secret.write_text(SECRET)
    (project / "notes.txt").write_text("the user's own")
    (project / "shortcut").symlink_to(home / "worker_token")
    own = await run(sandbox, "innocent", staging=home / "objects" / "own")
    assert own.code is None

    paths = [
        ".traceplane/worker_token",
        ".traceplane/objects/other_task",
        "settings.toml",
        "shortcut",
        "notes.txt",
    ]
    looked = await attack(
        sandbox,
        "look_at_files",
        config={"paths": [str(project / path) for path in paths]},
        payload={"inputs": [{"name": "own", "files": [file.path for file in own.result.outputs[0].files]}]},
        staging=home / "objects" / "next",
        code_paths=(project,),
    )
    assert looked.code is None
    assert SECRET not in json.dumps(looked.told)
    assert looked.told["outcomes"][str(project / "notes.txt")] == 'did: "the user\'s own"'
    doubled = await run(
        sandbox,
        "double",
        payload={
            "inputs": [{"name": "numbers", "files": [file.path for file in own.result.outputs[0].files]}],
            "outputs": [{"name": "doubled"}, {"name": "count"}],
        },
        staging=home / "objects" / "last",
        code_paths=(project,),
    )
    assert [output.row_count for output in doubled.result.outputs] == [10, 1]


async def test_no_link_mount_or_other_root_leads_out(sandbox: Sandbox, secret_file: Path) -> None:
    climbed = await attack(sandbox, "climb_out", config={"path": str(secret_file)})
    assert climbed.code is None
    for way, outcome in climbed.told.items():
        assert outcome is False or not str(outcome).startswith("did"), way


# --- other tasks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["same", "other"])
async def test_another_tasks_staging_cannot_be_reached(sandbox: Sandbox, lake: Path, job: str) -> None:
    staging = lake / "jobs" / job / "theirs"
    committed = await run(sandbox, "innocent", staging=lake / "jobs" / job / "committed")
    sealed = committed.result.outputs[0].files[0].path
    assert Path(sealed).stat().st_mode & 0o004
    busy = asyncio.create_task(run(sandbox, "innocent", staging=staging, config={"seconds": 1.0}))
    await eventually((staging / "0").exists)
    paths = [str(staging / "0"), str(staging), sealed, os.path.dirname(sealed)]
    looked = await run(
        sandbox, "look_at_files", config={"paths": paths}, staging=lake / "jobs" / "same" / "mine"
    )
    wrote = await run(
        sandbox, "write_around", config={"paths": paths}, staging=lake / "jobs" / "same" / "mine2"
    )
    for outcome in looked.told["outcomes"].values():
        assert not outcome.startswith("did")
    for outcome in wrote.told["outcomes"].values():
        assert not outcome.startswith("did")
    assert (await busy).code is None


async def test_nothing_is_left_for_the_next_task(sandbox: Sandbox) -> None:
    for _ in range(2):
        await asyncio.gather(*(run(sandbox, "leave_something") for _ in range(4)))
    found = await asyncio.gather(*(run(sandbox, "find_something") for _ in range(8)))
    for looked in found:
        assert looked.told["found"] == []
        assert not set(looked.told["temp"]) & {"left-behind", "private"}


async def test_code_cannot_be_changed(sandbox: Sandbox) -> None:
    before = (CODE / "hostile_operators.py").read_text()
    wrote = await attack(sandbox, "write_around", config={"paths": [str(Path(kernel.__file__).parent)]})
    for outcome in wrote.told["outcomes"].values():
        assert not outcome.startswith("did")
    assert not wrote.told["removed"].startswith("did")
    assert wrote.told["own_temp"].startswith("did")
    assert wrote.told["shared_temp"].startswith("did") == sandbox.isolation.has(NAMESPACES)
    assert not Path("/tmp/left-behind").exists()
    assert (CODE / "hostile_operators.py").read_text() == before
    assert not (CODE / "planted.py").exists()


async def test_files_of_the_platform_keep_their_modes_owners_and_times(
    sandbox: Sandbox, secret_file: Path
) -> None:
    """F8: Landlock does not cover chmod and its like."""
    before = secret_file.stat()
    folder_before = secret_file.parent.stat()
    changed = await attack(sandbox, "change_attributes", config={"path": str(secret_file)})
    for after, was in ((secret_file.stat(), before), (secret_file.parent.stat(), folder_before)):
        assert (after.st_mode, after.st_uid, after.st_gid) == (was.st_mode, was.st_uid, was.st_gid)
    assert secret_file.stat().st_mtime_ns == before.st_mtime_ns
    assert not os.listxattr(secret_file)
    assert changed.told["own_file_copied"] == "did: 'mine'"


async def test_nobody_else_can_be_signalled(sandbox: Sandbox, victim: subprocess.Popen[bytes]) -> None:
    sibling = asyncio.create_task(run(sandbox, "innocent", config={"seconds": 0.5}))
    shot = await attack(sandbox, "signal_others", config={"pids": [victim.pid, os.getpid()]})
    assert shot.code is None
    assert victim.poll() is None
    assert (await sibling).code is None
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL


# --- the network -----------------------------------------------------------------------------------------


class _InternalApi(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.calls += 1  # type: ignore[attr-defined]
        self.send_response(401 if self.headers.get("authorization") != f"Bearer {SECRET}" else 200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def internal_api() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _InternalApi)
    server.calls = 0  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def postgres_socket(lake: Path) -> Iterator[list[str]]:
    """A database's socket that every user may connect to, and an abstract one."""
    path = str(lake / ".s.PGSQL.5432")
    abstract = f"@traceplane-test-{os.getpid()}"
    servers = []
    for address in (path, "\0" + abstract[1:]):
        server = socket.socket(socket.AF_UNIX)
        server.bind(address)
        server.listen()
        servers.append(server)
    os.chmod(path, 0o777)
    yield [path, abstract]
    for server in servers:
        server.close()
    os.unlink(path)


async def test_the_internal_api_cannot_be_called(sandbox: Sandbox, internal_api: ThreadingHTTPServer) -> None:
    port = internal_api.server_address[1]
    with socket.create_connection(("127.0.0.1", port)):
        pass
    called = await attack(sandbox, "call_internal_api", config={"port": port})
    assert called.told["http"].startswith("refused")
    assert not called.told["udp"].startswith("did")
    assert not called.told["listen"].startswith("did")
    assert internal_api.calls == 0  # type: ignore[attr-defined]


async def test_a_database_socket_cannot_be_reached(sandbox: Sandbox, postgres_socket: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(postgres_socket[0])
    called = await attack(sandbox, "call_unix_sockets", config={"addresses": postgres_socket})
    for way, outcome in called.told["outcomes"].items():
        assert not outcome.startswith("did"), way
    assert not called.told["pair"].startswith("did")
    assert called.told["usual_pair"] == "did: True"


@contextlib.asynccontextmanager
async def online(*allowed: str) -> AsyncIterator[Sandbox]:
    """A sandbox whose operators have the network."""
    network = Reach(allowed=list(allowed))
    sandbox = await Sandbox.start(SandboxSettings(slots=2, network=network, disabled_layers=WITHOUT))
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def test_with_the_network_on_the_platform_and_this_machine_cannot_be_reached(
    internal_api: ThreadingHTTPServer, postgres_socket: list[str]
) -> None:
    port = internal_api.server_address[1]
    own_addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    async with online() as sandbox:
        called = await run(sandbox, "call_internal_api", config={"port": port})
        assert called.told["http"].startswith("refused")
        assert not called.told["udp"].startswith("did")
        nobody_minds = sandbox.isolation.landlock_abi < 4 and not sandbox.isolation.has(SECCOMP)
        assert called.told["listen"].startswith("did") == nobody_minds
        config = {"port": port, "addresses": ["localhost", *own_addresses]}
        ways = (await run(sandbox, "connect_in_every_way", config=config)).told["outcomes"]
        assert len(ways) > 30
        for way, outcome in ways.items():
            assert not outcome.startswith("did"), way
        reached = await run(sandbox, "call_unix_sockets", config={"addresses": postgres_socket})
        for way, outcome in reached.told["outcomes"].items():
            assert not outcome.startswith("did"), way
    assert internal_api.calls == 0  # type: ignore[attr-defined]


async def test_a_sandbox_without_the_network_says_whether_jobs_could_have_it(sandbox: Sandbox) -> None:
    async with online() as with_the_network:
        assert with_the_network.isolation.has(SUPERVISED_NETWORK)
    assert sandbox.isolation.has(SUPERVISED_NETWORK)


async def test_with_the_network_on_nobody_can_connect_to_an_operator_and_names_are_still_resolved() -> None:
    async with online() as sandbox:
        told = (await run(sandbox, "be_reached_and_look_around")).told
        for way in (told["listen"], told["accept"], *told["netlink"].values()):
            assert way.startswith("EACCES"), told
        assert told["resolved"] == "did: 80"


async def test_what_is_mounted_cannot_be_asked_for(sandbox: Sandbox) -> None:
    if not sandbox.isolation.has(SECCOMP):
        pytest.skip("there is no system call filter")
    told = (await attack(sandbox, "look_at_mounts")).told
    assert told == dict.fromkeys(("open_tree_attr", "statmount", "listmount"), "EPERM")


async def test_with_the_network_on_a_task_reaches_its_own_spark_and_nothing_else_of_this_machine() -> None:
    port, other = port_of_nobody(), port_of_nobody()
    outcomes = {UsedSpark(port, None): "ECONNREFUSED", UsedSpark(other, None): "EACCES", None: "EACCES"}
    async with online() as sandbox:
        for spark, outcome in outcomes.items():
            told = (await run(sandbox, "connect_to_nobody", config={"port": port}, spark=spark)).told
            assert (told["blocking"], told["not_blocking"]) == (outcome, outcome)


async def test_what_the_settings_allow_can_be_reached_from_threads_and_programs_too(
    internal_api: ThreadingHTTPServer,
) -> None:
    port = internal_api.server_address[1]
    async with online(f"127.0.0.1:{port}") as sandbox:
        called = await run(sandbox, "connect_usefully", config={"port": port, "closed": port_of_nobody()})
        assert called.told == {
            "blocking": "did: 401",
            "with_timeout": "did: 401",
            "thread": "did: 401",
            "program": "did: 401",
            "asyncio": "did: True",
            "closed": "EACCES",
            "resolver": "use-vc",
        }


async def test_a_connection_that_fails_says_so_whether_its_socket_blocks_or_not() -> None:
    port = port_of_nobody()
    async with online(f"127.0.0.1:{port}") as sandbox:
        told = (await run(sandbox, "connect_to_nobody", config={"port": port})).told
        assert told == {"blocking": "ECONNREFUSED", "not_blocking": "ECONNREFUSED", "bad_address": "EFAULT"}


@whatever_the_layers
async def test_the_network_is_refused_where_connections_cannot_be_supervised() -> None:
    settings = SandboxSettings(slots=1, network=Reach(), disabled_layers=frozenset({SECCOMP}))
    with pytest.raises(PlatformError, match="cannot be supervised") as refusal:
        await Sandbox.start(settings)
    assert refusal.value.code == "sandbox.too_weak"


def port_of_nobody() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# --- using up the machine ----------------------------------------------------------------------------------


async def test_a_fork_bomb_is_bounded_and_swept_up(sandbox: Sandbox) -> None:
    bombed = await attack(sandbox, "fork_bomb", limits=Limits(processes=40))
    assert bombed.code is None
    assert bombed.told["stopped_by"] == "EAGAIN"
    most = 40 if sandbox.isolation.has(UID_SLOTS) or sandbox.isolation.has(NAMESPACES) else 5000
    assert 0 < bombed.told["count"] <= most
    assert bombed.result.leftovers
    assert (await run(sandbox, "uses_threads_and_processes")).code is None


async def test_a_fork_bomb_that_never_rests_is_killed(sandbox: Sandbox) -> None:
    bombed = await run_until_it_left_something(sandbox, "relentless_fork_bomb", limits=Limits(processes=40))
    assert bombed.code == "operator.timeout"


async def test_memory_is_bounded(sandbox: Sandbox) -> None:
    hogged = await attack(sandbox, "hog_memory", limits=Limits(memory_bytes=400 << 20))
    assert hogged.result.error is not None
    assert (hogged.code, hogged.result.error.type) == ("operator.raised", "MemoryError")
    assert "out of memory" in str(hogged.result.error.hint)


async def test_shared_memory_is_bounded_too(sandbox: Sandbox) -> None:
    hogged = await attack(sandbox, "hog_shared_memory", limits=Limits(memory_bytes=1 << 30))
    assert hogged.told["megabytes"] < 12_000
    assert hogged.told["memfd"] == "EPERM"


@whatever_the_layers
async def test_shared_memory_that_nothing_counts_cannot_be_had(sandbox: Sandbox) -> None:
    """F11: anonymous shared mappings are no data of the process, so its limit does not see them."""
    grabbed = await attack(sandbox, "grab_shared_memory", limits=Limits(memory_bytes=512 << 20))
    assert grabbed.told["shared"] == "ENOMEM"
    assert grabbed.told["private"] == "did: 1048576"


@whatever_the_layers
async def test_stacks_that_nothing_counts_cannot_be_had(sandbox: Sandbox) -> None:
    """Nor are mappings that grow downwards data, and a stack grows as far as its own limit."""
    grabbed = await attack(sandbox, "grab_stacks", limits=Limits(memory_bytes=512 << 20))
    assert grabbed.told["mapped"] == "ENOMEM"
    assert grabbed.told["most"] == 8 << 20


@whatever_the_layers
async def test_nobody_waits_for_a_lease_of_an_operator(sandbox: Sandbox) -> None:
    """An operator of an ordinary user's worker owns what it reads, in the eyes of the kernel."""
    taken = await attack(sandbox, "take_leases")
    assert (taken.told["lease"], taken.told["delegation"]) == ("EPERM", "EPERM")
    assert taken.told["lock"] == "did: None"


async def test_disk_is_bounded(sandbox: Sandbox) -> None:
    filled = await attack(sandbox, "fill_disk", limits=Limits(disk_bytes=8 << 20))
    assert filled.code == "operator.killed"
    assert f"the limit is {8 << 20}" in filled.message
    filled = await attack(sandbox, "fill_one_file", limits=Limits(file_bytes=8 << 20))
    assert filled.code == "operator.raised"
    assert "File too large" in filled.message


@whatever_the_layers
async def test_files_too_deep_to_count_are_too_many(sandbox: Sandbox) -> None:
    hidden = await attack(sandbox, "hide_deep", limits=Limits(disk_bytes=1 << 30))
    assert hidden.code == "operator.killed"


@whatever_the_layers
async def test_processor_time_is_bounded(sandbox: Sandbox) -> None:
    burned = await attack(sandbox, "burn", limits=Limits(cpu_seconds=1))
    assert burned.code == "operator.killed"
    assert burned.result.error is not None
    assert "processor time" in str(burned.result.error.hint)


@pytest.mark.parametrize(
    "operator",
    [
        "ignore_polite_signals",
        pytest.param("burn", marks=whatever_the_layers),
        pytest.param("stall_after_result", marks=whatever_the_layers),
    ],
)
async def test_a_timeout_ends_whatever_resists(sandbox: Sandbox, operator: str) -> None:
    began = time.monotonic()
    late = await attack(sandbox, operator, timeout=0.3)
    assert late.code == "operator.timeout"
    assert "longer than 0.3 seconds" in late.message
    assert time.monotonic() - began < 5


@whatever_the_layers
async def test_a_task_is_first_told_politely(sandbox: Sandbox) -> None:
    lines: list[str] = []
    running = asyncio.create_task(sandbox.run(assignment("heeds_polite_signals"), on_log=lines.append))
    await eventually(lambda: lines)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert lines == ['TELL {"waiting": true}', 'TELL {"leaving": true}']


async def test_a_daemon_does_not_outlive_its_task(sandbox: Sandbox) -> None:
    marker = unique_marker()
    ended = await attack(sandbox, "daemonize", config={"marker": marker})
    assert ended.code is None
    assert ended.result.leftovers
    assert processes_with(marker) == []


async def test_a_daemon_does_not_outlive_a_timeout(sandbox: Sandbox) -> None:
    marker = unique_marker()
    ended = await run_until_it_left_something(sandbox, "daemonize", config={"marker": marker, "seconds": 100})
    assert ended.code == "operator.timeout"
    assert processes_with(marker) == []


async def test_a_daemon_does_not_outlive_a_cancellation(sandbox: Sandbox) -> None:
    marker = unique_marker()
    running = asyncio.create_task(run(sandbox, "daemonize", config={"marker": marker, "seconds": 100}))
    await eventually(lambda: processes_with(marker))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert processes_with(marker) == []


@whatever_the_layers
async def test_cancelling_twice_still_waits_for_the_end(sandbox: Sandbox) -> None:
    marker = unique_marker()
    running = asyncio.create_task(run(sandbox, "daemonize", config={"marker": marker, "seconds": 100}))
    await eventually(lambda: processes_with(marker))
    running.cancel()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert processes_with(marker) == []


@whatever_the_layers
async def test_a_flood_of_logs_is_cut_and_its_end_kept(sandbox: Sandbox) -> None:
    flooded = await attack(sandbox, "flood_log", config={"lines": 3000}, limits=Limits(log_bytes=100_000))
    assert flooded.code is None
    assert sum(map(len, flooded.lines)) < 200_000
    assert flooded.lines[0].startswith("0 xxx")
    assert flooded.result.log_tail.endswith("the end")
    assert "bytes of log were not forwarded" in flooded.result.log_tail
    assert len(flooded.result.log_tail) < 50_000


@whatever_the_layers
async def test_a_line_without_end_does_not_fill_the_wrapper(sandbox: Sandbox) -> None:
    flooded = await attack(sandbox, "flood_one_line", timeout=2, limits=Limits(log_bytes=100_000))
    assert flooded.code == "operator.timeout"
    assert max(map(len, flooded.lines), default=0) <= 8192
    assert len(flooded.result.log_tail) < 50_000


@whatever_the_layers
async def test_a_result_that_is_too_large_is_refused(sandbox: Sandbox) -> None:
    large = await attack(sandbox, "large_result", config={"events": 2000}, limits=Limits(result_bytes=50_000))
    assert large.code == "operator.result_invalid"
    assert "the limit is 50000" in large.message


@whatever_the_layers
async def test_folders_too_deep_for_python_are_removed(sandbox: Sandbox, lake: Path) -> None:
    assert (await attack(sandbox, "deep_folders")).code is None
    await eventually(lambda: not any(sandbox.folder.glob("runs/*/tmp/d")))


# --- lying ---------------------------------------------------------------------------------------------------


@whatever_the_layers
@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"\xff\xff\xff\xff", "a frame of 4294967295 bytes"),
        (b"\x00\x00\x00\x05hello", "not a frame"),
        (b"\x00\x00\x00\x02[]", "not a frame"),
        (b"\x00\x00\x00\x40cut", "ends 61 bytes early"),
        (b"\x00\x00", "ends 2 bytes early"),
        (b"\x00\x00\x00\x00", "not a frame"),
        (b"\x00\x01\x86\xa0" + b"[" * 100_000, "not a frame"),
        (b'\x00\x00\x00\x28{"type": "Events", "batch":1,"events":[]}', "not a source"),
    ],
)
async def test_garbage_on_the_channel_is_an_invalid_result(sandbox: Sandbox, raw: bytes, part: str) -> None:
    if raw.endswith(b"[]}"):
        raw = (len(raw) - 4).to_bytes(4, "big") + raw[4:]
    if len(raw) > 60_000:
        raw = (50_000).to_bytes(4, "big") + b"[" * 50_000
    lied = await attack(sandbox, "write_raw", config={"hex": raw.hex()})
    assert lied.code == "operator.result_invalid"
    assert part in lied.message


@whatever_the_layers
@pytest.mark.parametrize(
    ("arrange", "file", "part"),
    [
        (None, {"name": "../../../../etc/passwd", "rows": 1, "bytes": 1}, "not a frame of a child"),
        (None, {"name": "..", "rows": 1, "bytes": 1}, "not a frame of a child"),
        (None, {"name": "missing", "rows": 1, "bytes": 1}, "cannot be opened"),
        (None, {"name": "nul\0", "rows": 1, "bytes": 1}, "not a frame of a child"),
        (None, {"name": "part\n", "rows": 1, "bytes": 1}, "not a frame of a child"),
        ("symlink", {"name": "part", "rows": 1, "bytes": 1}, "cannot be opened"),
        ("fifo", {"name": "part", "rows": 1, "bytes": 0}, "not a plain file"),
        ("extra", {"name": "part", "rows": 1, "bytes": 4}, "not the reported 4"),
        ("extra", {"name": "part", "rows": -1, "bytes": 5}, "not a frame of a child"),
        (
            "extra",
            {"name": "part", "rows": 1, "bytes": 5, "statistics": {"n": {"min": "nul\0"}}},
            "not a frame of a child",
        ),
    ],
)
async def test_a_forged_file_is_refused(
    sandbox: Sandbox, secret_file: Path, arrange: str | None, file: dict[str, Any], part: str
) -> None:
    outputs = [{"name": "rows", "schema_hash": None, "files": [file]}]
    config = {"arrange": arrange, "outputs": outputs, "target": str(secret_file)}
    forged = await attack(sandbox, "forge_result", config=config)
    assert forged.code == "operator.result_invalid"
    assert part in forged.message
    assert secret_file.read_text().endswith(f'"{SECRET}"\n')


@whatever_the_layers
async def test_a_result_for_an_unknown_output_or_a_second_result_is_refused(sandbox: Sandbox) -> None:
    outputs = [{"name": "someone else's", "schema_hash": None, "files": []}]
    forged = await attack(sandbox, "forge_result", config={"outputs": outputs})
    assert forged.code == "operator.result_invalid"
    assert "does not exist" in forged.message
    repeated = await attack(sandbox, "forge_result", config={"outputs": [], "times": 2})
    assert repeated.code == "operator.result_invalid"
    assert "after the result" in repeated.message


@whatever_the_layers
@pytest.mark.parametrize(
    "event",
    [
        {"output_index": 1, "scope": {"cursor": 1}, "kind": "data", "emission": ""},
        {"output_index": 0, "scope": {"cursor": 1, "start": 1}, "kind": "data", "emission": ""},
        {"output_index": 0, "scope": {"partition_key": "p"}, "kind": "data", "emission": ""},
        {"output_index": 0, "scope": {"cursor": 2**64}, "kind": "data", "emission": ""},
        {"output_index": 0, "scope": {"cursor": 1}, "kind": "gossip", "emission": ""},
        {"output_index": 0, "scope": {"cursor": 1}, "kind": "data", "emission": "nul\0"},
        {
            "output_index": 0,
            "scope": {"partition_key": "p", "start": 2, "end": 1},
            "kind": "data",
            "emission": "",
        },
        {
            "output_index": 0,
            "scope": {"cursor": 1},
            "kind": "data",
            "emission": "",
            "dataset_uuid": "other's",
        },
    ],
)
async def test_a_forged_event_is_refused(sandbox: Sandbox, event: dict[str, Any]) -> None:
    forged = await run(sandbox, "forge_result", config={"outputs": [], "events": [event]})
    assert forged.code == "operator.result_invalid"


@whatever_the_layers
async def test_a_result_with_more_than_a_report_may_have_is_refused(sandbox: Sandbox) -> None:
    events = {"output_index": 0, "scope": {"cursor": 1}, "kind": "data", "emission": ""}
    columns = {"name": "n", "type": "int64"}
    file = {"name": "part", "rows": 1, "bytes": 5}
    many_columns = [{"name": "rows", "schema_hash": None, "files": [], "columns": [columns] * 10_001}]
    twice = [{"name": "rows", "schema_hash": None, "files": [file, file]}]
    for config in (
        {"outputs": [], "events": [events] * 10_001},
        {"outputs": many_columns},
        {"outputs": twice, "arrange": "extra"},
    ):
        forged = await attack(sandbox, "forge_result", config=config)
        assert forged.code == "operator.result_invalid"
        assert "not a frame of a child" in forged.message


@whatever_the_layers
@pytest.mark.parametrize(("count", "size"), [(1, 100_000), (2000, 0)])
async def test_the_wrapper_does_not_write_whatever_comes_with_a_result(
    sandbox: Sandbox, count: int, size: int
) -> None:
    content = base64.b64encode(bytes(size)).decode()
    files = [{"name": f"part-{n}", "rows": 0, "bytes": size, "content": content} for n in range(count)]
    outputs = [{"name": "rows", "schema_hash": None, "files": files}]
    forged = await attack(sandbox, "forge_result", config={"outputs": outputs})
    assert forged.code == "operator.result_invalid"
    assert "more files come with the result than may" in forged.message


@whatever_the_layers
async def test_an_operator_cannot_speak_for_the_platform(sandbox: Sandbox) -> None:
    forged = await run(sandbox, "forge_failure", config={"code": "sandbox.lost", "message": "x" * 100_000})
    assert forged.code == "operator.raised"
    assert len(forged.message) == 8000


@whatever_the_layers
async def test_what_was_not_reported_does_not_stay(sandbox: Sandbox, lake: Path) -> None:
    outputs = [{"name": "rows", "schema_hash": None, "files": [{"name": "part", "rows": 1, "bytes": 5}]}]
    kept = await run(
        sandbox, "forge_result", config={"arrange": "extra", "outputs": outputs}, staging=lake / "reported"
    )
    assert kept.code is None
    assert os.listdir(lake / "reported" / "0") == ["part"]


# --- sources ---------------------------------------------------------------------------------------------------


@whatever_the_layers
async def test_a_source_learns_that_its_event_was_accepted(sandbox: Sandbox) -> None:
    accepted: list[int] = []
    gate = asyncio.Event()

    async def accept(events: list[dict[str, Any]]) -> None:
        await gate.wait()
        accepted.extend(event["scope"]["cursor"] for event in events)

    lines: list[str] = []
    source = assignment("source", config={"count": 3, "then_seconds": 100})
    running = asyncio.create_task(sandbox.run(source, on_log=lines.append, on_events=accept))
    await asyncio.sleep(0.1)
    assert lines == []
    gate.set()
    await eventually(lambda: len(lines) == 3)
    assert accepted == [0, 1, 2]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@whatever_the_layers
async def test_a_source_need_not_wait_and_loses_nothing(sandbox: Sandbox) -> None:
    accepted: list[int] = []

    async def accept(events: list[dict[str, Any]]) -> None:
        accepted.extend(event["scope"]["cursor"] for event in events)

    sent = await run(sandbox, "hasty_source", config={"count": 500}, on_events=accept)
    assert sent.code is None
    assert sent.result.events == ()
    assert accepted == list(range(500))


@whatever_the_layers
async def test_a_refused_event_raises_in_the_source(sandbox: Sandbox) -> None:
    async def refuse(events: list[dict[str, Any]]) -> None:
        raise PlatformError("task.stale", "somebody else runs this task now")

    refused = await run(sandbox, "source", config={"count": 1}, on_events=refuse)
    assert refused.result.error is not None
    assert (refused.code, refused.result.error.type) == ("operator.raised", "EmitRefused")
    assert refused.message == "task.stale: somebody else runs this task now"


# --- when the sandbox itself is hit ------------------------------------------------------------------------------


async def test_the_fork_server_is_replaced_when_it_dies() -> None:
    sandbox = await Sandbox.start(SandboxSettings(slots=2, disabled_layers=WITHOUT))
    try:
        marker = unique_marker()
        running = asyncio.create_task(run(sandbox, "daemonize", config={"marker": marker, "seconds": 100}))
        await eventually(lambda: processes_with(marker))
        os.kill(sandbox.server_pid, signal.SIGKILL)
        lost = await running
        assert lost.code == "sandbox.lost"
        assert processes_with(marker) == []
        assert (await run(sandbox, "nothing")).code is None
    finally:
        await sandbox.close()


async def test_closing_ends_every_task_and_refuses_new_ones() -> None:
    sandbox = await Sandbox.start(SandboxSettings(slots=2, disabled_layers=WITHOUT))
    marker = unique_marker()
    running = asyncio.create_task(run(sandbox, "daemonize", config={"marker": marker, "seconds": 100}))
    await eventually(lambda: processes_with(marker))
    await sandbox.close()
    assert (await running).code == "sandbox.lost"
    assert processes_with(marker) == []
    assert not sandbox.folder.exists()
    with pytest.raises(PlatformError, match="closed"):
        await run(sandbox, "nothing")


async def test_closing_does_not_wait_for_children_without_a_task(lake: Path) -> None:
    idle = await Sandbox.start(SandboxSettings(slots=2, folder=lake / "idle", disabled_layers=WITHOUT))
    began = time.monotonic()
    await idle.close()
    assert time.monotonic() - began < 4


async def test_a_killed_wrapper_takes_its_tasks_along(lake: Path) -> None:
    marker = unique_marker()
    folder = lake / "killed"
    script = f"""
import asyncio
from pathlib import Path
from traceplane.sandbox.assignment import Assignment
from traceplane.sandbox.pool import Sandbox, SandboxSettings

async def main():
    settings = SandboxSettings(slots=1, folder=Path({str(folder)!r}), disabled_layers=frozenset({set(WITHOUT)!r}))
    payload = {{"config": {{"marker": "{marker}", "seconds": 100}}}}
    operator = Assignment(
        task_id="t", attempt=1, entrypoint="hostile_operators:daemonize", payload=payload,
        code_paths=(Path({str(CODE)!r}),)
    )
    await (await Sandbox.start(settings)).run(operator)

asyncio.run(main())
"""
    wrapper = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    await eventually(lambda: len(processes_with(marker)) == 2, seconds=30)  # the script names it too
    wrapper.kill()
    await wrapper.wait()
    await eventually(lambda: processes_with(marker) == [])
    (abandoned,) = folder.iterdir()
    heir = await Sandbox.start(SandboxSettings(slots=1, folder=folder, disabled_layers=WITHOUT))
    try:
        assert not abandoned.exists()
    finally:
        await heir.close()


@whatever_the_layers
async def test_more_tasks_than_slots_wait_for_their_turn(sandbox: Sandbox) -> None:
    finished = await asyncio.gather(*(run(sandbox, "innocent") for _ in range(12)))
    assert [r.code for r in finished] == [None] * 12


@whatever_the_layers
async def test_a_payload_that_is_not_json_costs_no_slot(sandbox: Sandbox) -> None:
    for _ in range(6):
        with pytest.raises(TypeError):
            await run(sandbox, "nothing", config={"bad": object()})
    assert (await run(sandbox, "nothing")).code is None


# --- the same again, with less ------------------------------------------------------------------------------------

WAYS = {
    "an unprivileged user": ("user", ""),
    "an unprivileged user without namespaces": ("user", "namespaces,network_namespace"),
    "an unprivileged user without Landlock": ("user", "landlock"),
    "root without namespaces": ("root", "namespaces,network_namespace"),
}
OFTEN = "an unprivileged user"
"""Tried by `make test`; the others, a minute each, by `make chaos`."""


@pytest.mark.skipif(IN_A_WAY_OF_CONFINING or not AS_ROOT, reason="one level is enough, and it needs root")
@pytest.mark.parametrize(
    "way", [way if way == OFTEN else pytest.param(way, marks=pytest.mark.chaos) for way in WAYS]
)
async def test_each_way_of_confining(way: str) -> None:
    user, without = WAYS[way]
    options = ("-x", "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(CODE / "run_as.py"), user, str(OTHER_UID)),
        *(sys.executable, "-m", "pytest", *options, str(CODE / "test_sandbox.py")),
        env={
            "PATH": os.environ["PATH"],
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "TRACEPLANE_TEST_SANDBOX_WITHOUT": without,
        },
        cwd=CODE.parents[1],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-6000:]
