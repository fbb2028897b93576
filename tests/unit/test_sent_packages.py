"""What executors are sent is what the worker has installed, and starts nothing where it could not be imported."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from traceplane.dataplane import sent_packages


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    package = tmp_path / "packages" / "tinylib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("VERSION = '1.0'\n")
    (package / "tool").write_text("#!/bin/sh\necho hello\n")
    (package / "tool").chmod(0o555)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(package / "__init__.py"), invalidation_mode=mode)
    return package.parent


def unpacked(packages: Path, python: str, at: Path) -> Path:
    """As executors unpack it, which set no times and have no other modes than those of the archive."""
    archive = packages.parent / "sent.zip"
    sent_packages.pack(packages, sent_packages.starter_of(python), archive)
    with zipfile.ZipFile(archive) as packed:
        for entry in packed.infolist():
            path = Path(packed.extract(entry, at))
            path.chmod(entry.external_attr >> 16 & 0o777)
    return at


def run(starter: Path, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {"PATH": os.environ["PATH"], **variables}
    command = [f"./{starter.parent.name}/{starter.name}", "-c", code]
    return subprocess.run(
        command, cwd=starter.parents[1], env=given, capture_output=True, text=True, check=False
    )


def test_what_was_sent_is_imported_before_anything_else(packages: Path, tmp_path: Path) -> None:
    there = unpacked(packages, sys.executable, tmp_path / "there")
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "tinylib.py").write_text("VERSION = 'other'")
    code = "import os, tinylib; os.chdir('/'); print(tinylib.VERSION, tinylib.__file__)"
    done = run(there / "python", code, PYTHONPATH=str(tmp_path / "else"))
    assert done.stdout.split() == ["1.0", f"{there}/packages/tinylib/__init__.py"], done.stderr
    tool = there / "packages" / "tinylib" / "tool"
    assert subprocess.run([tool], capture_output=True, text=True, check=True).stdout == "hello\n"


def test_compiled_modules_are_used_though_files_have_other_times(packages: Path, tmp_path: Path) -> None:
    there = unpacked(packages, sys.executable, tmp_path / "there")
    (compiled,) = (there / "packages").rglob("*.pyc")
    before = compiled.read_bytes()
    run(there / "python", "import tinylib")
    assert compiled.read_bytes() == before


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("/nowhere/a python", ", is not to be found"),
        ("other", ", is cpython-39-s390x-linux-gnu"),
    ],
)
def test_a_python_that_could_not_import_them_is_not_started(
    packages: Path, tmp_path: Path, python: str, said: str
) -> None:
    if python == "other":
        other = tmp_path / "other"
        other.write_text("#!/bin/sh\necho cpython-39-s390x-linux-gnu\n")
        other.chmod(0o755)
        python = str(other)
    there = unpacked(packages, python, tmp_path / "there")
    done = run(there / "python", "print('started')")
    assert done.returncode != 0
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith(sent_packages.OTHER_PYTHON)
    assert last.endswith(f"{python}{said}")
