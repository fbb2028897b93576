"""The README's quick start, executed as it is written there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tests.platform import free_port

README = (Path(__file__).parents[2] / "README.md").read_text()
QUICK_START = README.partition("## Quick start")[2].partition("\n## ")[0]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", QUICK_START, re.M | re.S)


class Terminal:
    """A folder with the README's files, and a shell in which `traceplane` is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "TRACEPLANE_DISPATCHER_PORT": str(free_port()),
            "TRACEPLANE_GATEWAY_PORT": str(free_port()),
            "TRACEPLANE_SPARK_COMPILER": "quick",
        }

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
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}\n{self.log()}"
        return done.stdout

    def until(self, script: str, *expected: str, seconds: float = 240.0) -> str:
        deadline = time.monotonic() + seconds
        while True:
            done = subprocess.run(
                ["bash", "-c", script], cwd=self.folder, env=self.environment, capture_output=True, text=True
            )
            if done.returncode == 0 and all(text in done.stdout for text in expected):
                return done.stdout
            assert time.monotonic() < deadline, f"{script}\n{done.stdout}{done.stderr}\n{self.log()}"
            time.sleep(0.2)

    def log(self) -> str:
        return (self.folder / "up.log").read_text()[-4000:]


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    (tmp_path / "code").mkdir()
    (dag,), (operators,) = blocks("yaml"), blocks("python")
    (tmp_path / "dag.yaml").write_text(dag)
    (tmp_path / "code/operators.py").write_text(operators)
    return Terminal(tmp_path)


@pytest.mark.timeout(900)
def test_the_quick_start_does_what_the_readme_says(terminal: Terminal) -> None:
    install, up, deploy, mend = blocks("bash")
    assert install == "pip install .\n"
    process = terminal.start(up.strip())
    try:
        terminal.until("traceplane status")
        assert "Deployed shop version 1, which serves." in terminal.run(deploy)
        status = terminal.until("traceplane status", "no unfinished tasks", "shop.sales: 13 commits")
        assert "shop.weekly: 1 commits" in status

        said = terminal.run(mend)
        assert "dead       shop/sales  3  attempt 2/2  operator.raised: the till was broken" in said
        assert "It is dead after 2 attempts" in said
        assert "Deployed shop version 2, which is being built." in said
        assert "version 2 is active" in said
        terminal.until("traceplane status", "no unfinished tasks", "14 commits", "shop.weekly: 2 commits")
        assert totals(terminal.folder) == {0: 91, 7: 140}
        assert "Version 1 of shop serves, in place of 2." in terminal.run("traceplane rollback shop")
        assert "shop.weekly: 1 commits" in terminal.run("traceplane status")
        terminal.run("traceplane rollback shop --to 2")

        assert "0 accepted, 14 had been accepted before" in terminal.run("traceplane emit shop.days 0..13")
        assert "no changes, version 2" in terminal.run("traceplane deploy dag.yaml")
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(90)
    assert code == 0, terminal.log()


def totals(folder: Path) -> dict[int, int]:
    """Every row that has a total, by its first day."""
    tables = [parquet.read_table(path) for path in (folder / ".traceplane/objects").rglob("*.parquet")]
    rows = [row for table in tables for row in table.to_pylist()]
    return {row["first_day"]: row["total"] for row in rows if "total" in row}
