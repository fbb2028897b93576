"""The platform runs anywhere: names with spaces and umlauts, private folders, bare environments."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.user_folder import Folder

ROOT = Path(__file__).parents[2]
DAG = """
version: 1
dag: t
jobs:
- {name: numbers, activation: source, source: {kind: manual}, outputs: [{dataset: t.in}]}
- name: python
  runtime: python
  operator: python
  inputs: [{from: {job: numbers}}]
  outputs: [{dataset: t.python}]
  config: {entrypoint: "operators:greet", greeting: "Grüße"}
- name: spark
  runtime: spark
  operator: pyspark
  inputs: [{from: {job: python}}]
  outputs: [{dataset: t.spark}]
  config: {entrypoint: "operators:shout"}
"""
OPERATORS = """
def greet(task):
    return [{"greeting": task.config["greeting"], "n": task.scope.start}]

def shout(python):
    return python.selectExpr("greeting || '!' as greeting", "n")
"""
IN_A_READ_ONLY_FOLDER = """
import os, sys
from traceplane.linux import kernel
folder = os.getcwd()
if os.geteuid() == 0:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.bind(folder, folder)
    kernel.mount(None, folder, None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY)
    os.chdir(folder)
assert not os.access(".", os.W_OK)
os.execv(sys.executable, [sys.executable, "-m", "traceplane.cli.main", *sys.argv[1:]])
"""


def odd_names(tmp_path: Path) -> Folder:
    """The clone below a private folder; clone, working folder, home and object store with names that need care."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    python = clone(private / "Ü clone's #1")
    return Folder(
        tmp_path / "Arbeit 'ö' #2",
        dag=DAG,
        operators=OPERATORS,
        home=tmp_path / "Ablage für alles",
        command=(str(python), "-m", "traceplane.cli.main"),
        HOME=str(tmp_path / "zu Hause ß"),
        TRACEPLANE_OBJECT_STORE=str(tmp_path / "Ö objects, all"),
        LANG="C",
    )


def bare(tmp_path: Path) -> Folder:
    """No HOME, a locale that does not exist here, and a current folder that cannot be written."""
    folder = Folder(
        tmp_path / "read-only",
        dag=DAG,
        operators=OPERATORS,
        home=tmp_path / "home",
        command=(sys.executable, "-c", IN_A_READ_ONLY_FOLDER),
        LC_ALL="de_DE.ISO-8859-15",
    )
    if os.geteuid() != 0:
        folder.path.chmod(0o555)
    return folder


def clone(place: Path) -> Path:
    """The source and the interpreter's environment at another place; its Python."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError:  # another file system
            shutil.copy2(source, target, follow_symlinks=False)

    shutil.copytree(sys.prefix, place / "environment", copy_function=link, symlinks=True)
    shutil.copytree(ROOT / "src", place / "src")
    (packages,) = place.glob("environment/lib/python3*/site-packages")
    (pointer,) = [path for path in packages.glob("*.pth") if path.read_text().strip() == str(ROOT / "src")]
    pointer.unlink()  # and not written: the file is linked
    pointer.write_text(str(place / "src"), encoding="utf-8")
    return place / "environment/bin/python"


@pytest.fixture(params=[odd_names, pytest.param(bare, marks=pytest.mark.chaos)], ids=["odd_names", "bare"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    made: Folder = request.param(tmp_path)
    yield made
    made.remove()
    made.path.chmod(stat.S_IRWXU)
    shutil.rmtree(tmp_path / "private", ignore_errors=True)


@pytest.mark.timeout(900)
def test_up_runs_python_and_spark_tasks_wherever_it_is(folder: Folder) -> None:
    folder.up()
    folder.until_said("up.ready")
    assert folder.run("deploy", "dag.yaml").returncode == 0
    folder.until("emit", "t.in", "1..2")
    folder.until("status", shows="t.spark: 2 commits")
    shown = folder.run("query", "select greeting, n from t.spark order by n", "--format", "csv").stdout
    assert shown.split() == ['"greeting","n"', '"Grüße!",1', '"Grüße!",2']
    assert folder.stop() == 0, folder.said()
    assert "process_died" not in folder.said()
