"""The first minute: a project that `traceplane init` wrote passes its own tests, and `traceplane dev` runs it, deploys
what is saved and shows what fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.user_folder import Folder


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "first market")
    yield made
    made.remove()


def test_a_new_project_passes_its_tests_and_runs(project: Folder) -> None:
    written = project.run("init")
    assert (written.returncode, written.stdout.splitlines()[-1]) == (0, "Next: traceplane dev")
    environment = {**os.environ, "PYTHONPATH": ""}
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        check=False, cwd=project.path, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert "3 passed" in tested.stdout, tested.stdout + tested.stderr

    project.start("dev")
    project.until_said("Deployed first_market version 1, which serves.")
    project.until("emit", "first_market.days", "2026-11-01..2026-11-03")
    project.until_said("first_market.volumes: 3 commits, 6 rows")
    volumes = project.run("query", "select sum(volume) from first_market.volumes", "--format", "csv")
    assert float(volumes.stdout.splitlines()[1]) == 3 * 2 * (100 + 2 * 101 + 3 * 102)

    again = project.refused("init")
    assert again.startswith(
        "init.files_exist: the folder has files of these names already; nothing was written"
    )
    assert project.stop() == 0, project.said()


def test_what_is_saved_is_deployed_and_what_fails_is_shown(project: Folder) -> None:
    assert project.refused("dev").startswith("dev.no_dag: there is no DAG file in this folder")
    project.run("init", "--name", "market")
    dag = project.path / "dag.yaml"
    only_python, _, _ = dag.read_text().partition("- name: volumes")
    dag.write_text(only_python)
    project.start("dev", "--no-spark")
    project.until_said("Deployed market version 1, which serves.")

    dag.write_text(only_python.replace("trades:of_a_day", "trades:of_a_dya"))
    project.until_said("did you mean")
    assert project.run("versions", "market").stdout.split()[:2] == ["1", "active"]
    dag.write_text(only_python)

    code = project.path / "code/trades.py"
    good = code.read_text()
    code.write_text(good.replace("return [", "raise ValueError('no quotes')\n    return ["))
    project.until_said("market version 2 serves.")
    project.until("emit", "market.days", "2026-11-01")
    project.until_said("Raised: ValueError: no quotes")
    project.until_said("line 11: raise ValueError('no quotes')")
    code.write_text(good)
    project.until_said("market version 3 serves.")
    project.until_said("market.trades: 1 commit, 6 rows")
    assert project.stop() == 0, project.said()
