"""A user's folder and a shell in it, for tests of `traceplane up` and of the command line beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.platform import die_with_parent
from tests.ports import free_port
from traceplane.postgres.embedded.server import EmbeddedPostgres


class Folder:
    """`command` is what runs the command line there."""

    def __init__(
        self,
        path: Path,
        *,
        dag: str | None = None,
        operators: str | None = None,
        home: Path | None = None,
        command: Sequence[str] = (sys.executable, "-m", "traceplane.cli.main"),
        **environment: str,
    ) -> None:
        path.mkdir(parents=True)
        path.chmod(0o755)
        if operators is not None:
            (path / "code").mkdir()
            (path / "code/operators.py").write_text(operators, encoding="utf-8")
        if dag is not None:
            (path / "dag.yaml").write_text(dag, encoding="utf-8")
        self.path = path
        self.home = home or path / ".traceplane"
        self.log = path.with_name(f"{path.name}.log")
        self.command = tuple(command)
        self.environment = {
            "PATH": os.environ["PATH"],
            "TRACEPLANE_DISPATCHER_PORT": str(free_port()),
            "TRACEPLANE_GATEWAY_PORT": str(free_port()),
            "TRACEPLANE_SPARK_COMPILER": "quick",
            **({"TRACEPLANE_HOME": str(home)} if home is not None else {}),
            **environment,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def up(self, *options: str) -> None:
        self.start("up", *options)

    def start(self, *words: str) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self.command, *words],
                cwd=self.path,
                env=self.environment,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *words],
            check=False,
            cwd=self.path,
            env={**self.environment, **environment},
            capture_output=True,
            encoding="utf-8",
            timeout=240,
        )

    def until(self, *words: str, shows: str = "", seconds: float = 360.0) -> str:
        """Asks again until the answer is there, with pauses, since each question is a process that costs the others
        time."""
        deadline = time.monotonic() + seconds
        while True:
            asked = time.monotonic()
            done = self.run(*words)
            if done.returncode == 0 and shows in done.stdout:
                return done.stdout
            assert self.process is not None
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, f"{done.stdout}{done.stderr}\n{self.said()}"
            time.sleep(3 * (time.monotonic() - asked))

    def until_said(self, text: str, seconds: float = 360.0) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.said():
            assert self.process is not None
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def refused(self, *words: str, **environment: str) -> str:
        """The one line of a command that ends with exit code 2."""
        done = self.run(*words, **environment)
        assert done.returncode == 2, f"{done.stdout}{done.stderr}"
        (line,) = done.stderr.strip().splitlines()
        return line

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(90)

    def remove(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if (self.home / "postgres").exists():
            EmbeddedPostgres.ensure(self.home / "postgres").destroy()
