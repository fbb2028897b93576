"""A Spark standalone cluster: a master and workers with one core each, which can be killed and started again."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark

from tests.platform import die_with_parent
from tests.ports import free_port
from traceplane.dataplane.java import find_java


class Cluster:
    """`users`: of the master and of each worker, each with a folder that nobody else can enter; otherwise all are the
    user that runs the test."""

    def __init__(self, folder: Path, users: tuple[str | None, ...] = (None, None, None)) -> None:
        self._folder = folder
        self._users = users
        self._java = find_java()
        self._port = free_port()
        self.address = f"spark://127.0.0.1:{self._port}"
        self._running: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._start(self._users[0], "master.Master", "--port", str(self._port))
        self.workers = [self._start_worker(user) for user in self._users[1:]]

    def kill_worker(self, number: int) -> None:
        """With its executors."""
        _kill(self.workers[number])

    def restart_worker(self, number: int) -> None:
        self.workers[number] = self._start_worker(self._users[1:][number])

    def replace_worker(self, number: int, user: str | None = None, without: Path | None = None) -> None:
        """By one of another user, or by one that has another folder there, as another machine would."""
        self.kill_worker(number)
        self.workers[number] = self._start_worker(user, without)

    def close(self) -> None:
        for process in self._running:
            _kill(process)

    def _start_worker(self, user: str | None, without: Path | None = None) -> subprocess.Popen[bytes]:
        first: tuple[str, ...] = ()
        if without is not None:
            first = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{without}" && exec "$@"', "sh")
        role = ("worker.Worker", "--cores", "1", "--memory", "1g", self.address)
        return self._start(user, *role, first=first)

    def _start(
        self, user: str | None, role: str, *words: str, first: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        home, own = Path(pyspark.__file__).parent, self._folder / (user or "everybody")
        ids: dict[str, Any] = {}
        if user is not None:
            uid = pwd.getpwnam(user).pw_uid
            ids = {"user": uid, "group": uid, "extra_groups": []}
        if not own.exists():
            own.mkdir(mode=0o700 if user else 0o755)
            if user is not None:
                os.chown(own, uid, uid)
        quick = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        with (self._folder / f"{role}-{user}.log").open("ab") as log:
            process = subprocess.Popen(
                [
                    *first,
                    *(str(self._java.executable), "-Xmx256m", *quick, *self._java.options),
                    *("-cp", f"{home / 'jars'}/*", f"org.apache.spark.deploy.{role}"),
                    *("--host", "127.0.0.1", "--webui-port", "0", *words),
                ],
                env={
                    "PATH": os.environ["PATH"],
                    "JAVA_HOME": str(self._java.home),
                    "SPARK_HOME": str(home),
                    "SPARK_SCALA_VERSION": "2.13",  # as its own launcher script says
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "SPARK_WORKER_DIR": str(own / "work"),
                    "SPARK_LOCAL_DIRS": str(own / "local"),
                    "HOME": str(own),
                },
                cwd=own,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
                **ids,
            )
        self._running.append(process)
        return process


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With the executors, which are in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def standalone(folder: Path, users: tuple[str | None, ...] = (None, None, None)) -> Iterator[Cluster]:
    cluster = Cluster(folder, users)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
