"""A virtual environment whose Python is a link to a link elsewhere: operators and Spark find it too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import pytest

from traceplane.sandbox.private_root import links_on_the_way

SCRIPT = """
import asyncio, json, subprocess, sys
from pathlib import Path
from traceplane.sandbox.assignment import Assignment
from traceplane.sandbox.child_log import TaskLog
from traceplane.sandbox.pool import Sandbox
from traceplane.sandbox.sandbox_settings import SandboxSettings

async def main():
    sandbox = await Sandbox.start(SandboxSettings(slots=1))
    try:
        told = []
        result = await sandbox.run(
            Assignment(task_id="task", attempt=1, entrypoint="linked:run", code_paths=(Path(sys.argv[1]),)),
            log=TaskLog(told.append),
            timeout=240,
        )
        print(json.dumps([str(result.error), told]))
    finally:
        await sandbox.close()

asyncio.run(main())
"""
OPERATOR = """
import subprocess, sys

def run(task):
    print(subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True, check=True).stdout)
"""


def test_every_link_on_the_way_is_known(tmp_path: Path) -> None:
    real = tmp_path / "real" / "bin"
    real.mkdir(parents=True)
    (real / "python3.11").touch()
    (real / "python3").symlink_to("python3.11")
    (tmp_path / "current").symlink_to("real")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "python").symlink_to(tmp_path / "current" / "bin" / "python3")
    below = [
        path for path in links_on_the_way(str(tmp_path / "venv" / "python")) if path.startswith(str(tmp_path))
    ]
    assert below == [str(tmp_path / "venv/python"), str(tmp_path / "current"), str(real / "python3")]
    (tmp_path / "loop").symlink_to("loop")
    assert len(links_on_the_way(str(tmp_path / "loop"))) <= 40


@pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only")
@pytest.mark.parametrize(
    ("environment_in", "link_in"),
    [("/var/tmp", "/var/tmp"), ("/var/tmp", "/tmp"), ("/tmp", "/tmp")],  # an operator has a /tmp of its own
)
def test_an_operator_finds_a_python_that_is_a_link_to_a_link(environment_in: str, link_in: str) -> None:
    folder = Path(tempfile.mkdtemp(prefix="traceplane-test-linked-", dir=environment_in))
    elsewhere = Path(tempfile.mkdtemp(prefix="traceplane-test-elsewhere-", dir=link_in))
    try:
        for path in (folder, elsewhere):
            path.chmod(0o755)
        (elsewhere / "bin").mkdir()
        (elsewhere / "bin/python3").symlink_to(os.path.realpath(sys.executable))
        (folder / "code").mkdir()
        venv.create(folder / "venv", symlinks=True)
        python = folder / "venv/bin/python"
        python.unlink()
        python.symlink_to(elsewhere / "bin/python3")
        (folder / "venv/pyvenv.cfg").write_text(f"home = {elsewhere}/bin\n")
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        (folder / f"venv/lib/python{version}/site-packages/all.pth").write_text(
            "\n".join(p for p in sys.path if p.endswith(("site-packages", "src")))
        )
        (folder / "code/linked.py").write_text(OPERATOR)
        done = subprocess.run(
            [str(python), "-c", SCRIPT, str(folder / "code")],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        error, log = json.loads(done.stdout.splitlines()[-1])
        assert (error, "42" in log) == ("None", True), log
    finally:
        for path in (folder, elsewhere):
            shutil.rmtree(path, ignore_errors=True)
