"""Tests of whole DAGs with pytest, on the real dispatcher, the real sandbox and a real Spark.

    def test_volumes(traceplane):
        traceplane.deploy("dag.yaml", given={"trades": {"2026-11-16": [{"symbol": "BTC", "price": 2.0}]}})
        traceplane.settle()
        assert traceplane.rows("market.volumes") == [{"symbol": "BTC", "volume": 2.0}]

It is named with `-p traceplane.pytest_plugin`: for an entry point, pytest would rewrite all modules of the platform.
The fixture `traceplane` is an organization of its own for each test, on one platform that runs for the session.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from traceplane.client import Client
    from traceplane.wire.deploys import DeployResponse

Rows = Any
"""Anything that can be written: lists of dicts, Arrow tables, pandas frames."""

_PROCESSES = {
    "dispatcher": ("dispatcher",),
    "gateway": ("gateway",),
    "worker": ("worker", "--runtime", "python"),
    "spark": ("worker", "--runtime", "spark"),
}
_LOOK_SECONDS = 0.2
_PERIODS = {
    "hour": r"\d{4}-\d\d-\d\dT\d\d",
    "day": r"\d{4}-\d\d-\d\d",
    "week": r"\d{4}-W\d\d",
    "month": r"\d{4}-\d\d",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("traceplane")
    group.addoption(
        "--traceplane-no-spark", action="store_true", help="Start no Spark worker: DAGs have no Spark jobs."
    )


@pytest.fixture(scope="session")
def traceplane_server(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[PlatformServer]:
    """A platform in a folder of its own, which runs until the session ends."""
    folder = tmp_path_factory.mktemp("traceplane")
    server = PlatformServer(folder, spark=not pytestconfig.getoption("--traceplane-no-spark"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def traceplane(traceplane_server: PlatformServer) -> Iterator[PlatformUnderTest]:
    """A platform without any DAG."""
    platform = traceplane_server.organization()
    try:
        yield platform
    finally:
        platform.end()


class PlatformServer:
    """`traceplane up` in a folder, for workers of all organizations."""

    def __init__(self, folder: Path, *, spark: bool) -> None:
        self.folder = folder
        self.code = folder / "code"
        self._spark = spark
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TRACEPLANE_")},
            "TRACEPLANE_HOME": str(folder / "home"),
            "TRACEPLANE_WORKER_CODE_PATHS": str(self.code),
            "TRACEPLANE_SPARK_COMPILER": "quick",
            "TRACEPLANE_RESEND_AFTER_SECONDS": "1",
            "TRACEPLANE_REAP_GRACE_SECONDS": "0.5",
        }

    def start(self) -> None:
        (self.code / "given").mkdir(parents=True)
        ports = _free_ports(2)
        self._environment["TRACEPLANE_DISPATCHER_PORT"], self._environment["TRACEPLANE_GATEWAY_PORT"] = map(
            str, ports
        )
        self.run("migrate")
        self._environment["TRACEPLANE_WORKER_TOKEN"] = self.run(
            "token", "issue", "worker", "tests", "--all-orgs"
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*_COMMAND, "up", *([] if self._spark else ["--no-spark"])],
                cwd=self.folder, env=self._environment, stdout=log, stderr=log, preexec_fn=_die_with_parent,
            )  # fmt: skip
        self.until_ready()

    def until_ready(self) -> None:
        port = int(self._environment["TRACEPLANE_GATEWAY_PORT"])
        deadline = time.monotonic() + 120
        while True:
            assert self._process is not None
            assert self._process.poll() is None, self.log()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            assert time.monotonic() < deadline, self.log()
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        from traceplane.postgres.embedded.server import EmbeddedPostgres

        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.send_signal(signal.SIGINT)  # tasks that still run are nobody's any more
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(60)
            self._process.kill()
            self._process.wait()
        if (self.folder / "home/postgres").exists():
            EmbeddedPostgres.ensure(self.folder / "home/postgres").destroy()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def run(self, *words: str) -> str:
        """What a command prints."""
        done = subprocess.run(
            [*_COMMAND, *words],
            check=False,
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise AssertionError(f"traceplane {' '.join(words)}: {done.stderr}")
        return done.stdout.strip()

    def organization(self) -> PlatformUnderTest:
        from traceplane.client import Client

        org = f"test-{next(self._numbers)}"
        token = self.run("org", "create", org).split()[-1]
        url = f"http://127.0.0.1:{self._environment['TRACEPLANE_GATEWAY_PORT']}"
        client = Client(url, token, home=self.folder / "home")
        given = self.code / "given" / org
        given.mkdir()
        return PlatformUnderTest(self, client, given)

    def kill(self, name: Literal["dispatcher", "gateway", "worker", "spark"]) -> None:
        assert self._process is not None
        killed = [pid for pid in _children(self._process.pid) if _runs(pid, _PROCESSES[name])]
        assert killed, f"no {name} runs"
        for pid in killed:
            os.kill(pid, signal.SIGKILL)

    def set_clock(self, ahead: timedelta) -> None:
        import asyncio

        from traceplane.postgres.database import Database
        from traceplane.postgres.embedded.server import EmbeddedPostgres

        seconds = ahead.total_seconds()
        url = EmbeddedPostgres.ensure(self.folder / "home/postgres").state_url

        async def replace() -> None:
            database = await Database.connect(url, connections=1)
            try:
                async with database.transaction() as tx:
                    await tx.rows(
                        "create or replace function tp_now() returns timestamptz language sql stable parallel safe"
                        f" as 'select now() + make_interval(secs => {seconds!r})'"
                    )
            finally:
                await database.close()

        asyncio.run(replace())


@dataclass
class PlatformUnderTest:
    """What a test does with its DAGs. `client` is the Python client, for everything else."""

    server: PlatformServer
    client: Client
    _given: Path
    _jobs: dict[str, str] = field(default_factory=dict)
    _ahead: timedelta = timedelta()
    _emissions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def deploy(
        self,
        file: str | Path,
        *,
        code: str | Path | Sequence[str | Path] = (),
        given: Mapping[str, Mapping[str | int, Rows]] | None = None,
    ) -> DeployResponse:
        """Deploys a DAG file with its code (default: the folder `code` beside it). `given`: jobs that do not run, and
        the rows that they would have written, by scope."""
        file = Path(file)
        folders = code or [folder for folder in [file.parent / "code"] if folder.is_dir()]
        if not given:
            return self.client.deploy(file, code=folders)
        text, self._jobs = _with_given_jobs(file, given, self._given)
        beside = file.with_name(f".given-{os.getpid()}-{file.name}")  # files of requirements are beside it
        beside.write_text(text)
        try:
            answer = self.client.deploy(beside, code=folders)
        finally:
            beside.unlink()
        for job, scopes in given.items():
            self.give(job, scopes)
        return answer

    def give(self, job: str, rows: Mapping[str | int, Rows]) -> None:
        """Rows of a given job, by scope. Those that it has of such a scope are replaced, as by a reorganization."""
        import pyarrow.parquet as parquet

        from traceplane.given_rows import file_of
        from traceplane.sdk import as_table

        if job not in self._jobs:
            raise ValueError(f"{job!r} is not among the given jobs: {', '.join(self._jobs) or 'none'}")
        folder = self._given / job
        folder.mkdir(exist_ok=True)
        for scope, some in rows.items():
            table, path = as_table(some), file_of(folder, str(scope))
            path.unlink(missing_ok=True)
            if table.num_columns:
                parquet.write_table(table, path)
                path.chmod(0o644)
        folder.chmod(0o755)
        self.emit(self._jobs[job], list(rows))

    def emit(self, dataset: str, scopes: Any) -> None:
        """Events of a source. Each call is a change: jobs run for scopes that they had before, too."""
        self.client.emit(dataset, scopes, emission=f"test-{next(self._emissions)}")

    def settle(self, *, seconds: float = 300.0, may_fail: bool = False) -> None:
        """Waits until no task is left. Raises AssertionError with what `traceplane explain` knows of a dead one, unless
        they `may_fail`."""
        deadline, quiet = time.monotonic() + seconds, 0
        while quiet < 2:  # events of the last task may have become no tasks yet
            status = self.client.status()
            if not may_fail and (dead := [f for f in status.failed if f.state == "dead"]):
                raise AssertionError(self._explained(str(dead[0].newest)))
            quiet = 0 if status.counts else quiet + 1
            if time.monotonic() > deadline:
                raise AssertionError(f"tasks are left after {seconds} s: {json.dumps(status.counts)}")
            time.sleep(_LOOK_SECONDS)

    def _explained(self, task_id: str) -> str:
        answer = self.client.explain(task_id)
        said = "\n".join(reason.sentence for reason in answer.reasons)
        error = answer.error or {}
        raised = f"{error.get('traceback') or ''}{error.get('type') or ''}"
        return f"{answer.dag}/{answer.job} failed for {answer.scope}: {said}\n{raised}"

    def rows(self, dataset: str) -> list[dict[str, Any]]:
        """All rows of a dataset, in the order of their values."""
        from traceplane.errors import Conflict

        try:
            table = self.client.query(f"select * from {dataset} order by all")  # noqa: S608 -- the test's own
        except Conflict as error:
            if error.code != "query.no_columns":
                raise
            return []  # nothing was written yet, and the file declares no columns
        found: list[dict[str, Any]] = table.to_pylist()
        return found

    def kill(self, process: Literal["dispatcher", "gateway", "worker", "spark"]) -> None:
        """SIGKILL to a process of the platform, which is started again."""
        self.server.kill(process)
        if process == "gateway":
            time.sleep(_LOOK_SECONDS)
            self.server.until_ready()

    def pass_time(self, length: timedelta) -> None:
        """Moves the platform's clock forward, until the test ends: schedules fire, and leases expire."""
        self._ahead += length
        self.server.set_clock(self._ahead)

    def end(self) -> None:
        if self._ahead:
            self.server.set_clock(timedelta())
        for dag in self.client.dags.all():
            self.client.dags.delete(dag.dag, force=True)
        shutil.rmtree(self._given, ignore_errors=True)


_COMMAND = (sys.executable, "-m", "traceplane.cli.start")


def _with_given_jobs(
    file: Path, given: Mapping[str, Mapping[str | int, Rows]], folder: Path
) -> tuple[str, dict[str, str]]:
    """The DAG with sources in place of the given jobs, and the datasets that these write."""
    import yaml

    spec = yaml.safe_load(file.read_text())
    jobs = {job["name"]: job for job in spec["jobs"]}
    if unknown := given.keys() - jobs.keys():
        raise ValueError(f"{file} has no jobs {', '.join(sorted(unknown))}; it has {', '.join(jobs)}")
    datasets = {}
    for name, scopes in given.items():
        job = jobs[name]
        if len(job["outputs"]) != 1:
            raise ValueError(
                f"{name} has several outputs; give the jobs that read them their rows, or split it"
            )
        output = job["outputs"][0]
        datasets[name] = dataset = output["dataset"]
        job.clear()
        job |= {"name": name, "activation": "source", "source": {"kind": "manual"}, "runtime": "python"}
        job |= {"operator": "python", "outputs": [output]}
        job["config"] = {"entrypoint": "traceplane.given_rows:rows", "given": str(folder / name)}
        declared = spec.setdefault("datasets", {}).setdefault(dataset, {})
        if by := _period(scopes):
            declared.setdefault("partitions", {"by": by})
        if not declared:
            del spec["datasets"][dataset]
    if not spec["datasets"]:
        del spec["datasets"]
    return yaml.safe_dump(spec, sort_keys=False), datasets


def _period(scopes: Mapping[str | int, Rows]) -> str | None:
    """What its scopes are, of a dataset that had the partitions of its input."""
    first = str(next(iter(scopes), ""))
    return next((by for by, pattern in _PERIODS.items() if re.fullmatch(pattern, first)), None)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _runs(pid: int, words: Sequence[str]) -> bool:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return all(word in command for word in words)


def _die_with_parent() -> None:
    """Tests that are killed leave no platform behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
