"""The docs' examples, executed as they are written there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.ports import free_port


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)


class Terminal:
    """A folder of a reader's, and a shell in it in which `traceplane` is installed."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "TRACEPLANE_DISPATCHER_PORT": str(free_port()),
            "TRACEPLANE_GATEWAY_PORT": str(free_port()),
            "TRACEPLANE_SPARK_COMPILER": "quick",
            **environment,
        }

    @property
    def gateway(self) -> str:
        return f"http://127.0.0.1:{self.environment['TRACEPLANE_GATEWAY_PORT']}"

    def start(self, command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "up.log").open("wb") as log:
            return subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
            )

    def run(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            check=False,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}\n{self.log()}"
        return done.stdout

    def until(self, script: str, *expected: str, seconds: float = 360.0) -> str:
        """Asks again until the answer is there, with pauses, since each question is a process that costs the others
        time."""
        deadline = time.monotonic() + seconds
        while True:
            asked = time.monotonic()
            done = subprocess.run(
                ["bash", "-c", script],
                check=False,
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
            )
            if done.returncode == 0 and all(text in done.stdout for text in expected):
                return done.stdout
            assert time.monotonic() < deadline, f"{script}\n{done.stdout}{done.stderr}\n{self.log()}"
            time.sleep(3 * (time.monotonic() - asked))

    def log(self) -> str:
        return (self.folder / "up.log").read_text()[-4000:]
