"""A sandbox for the tests of a file, and things that operators must not get."""

from __future__ import annotations

import contextlib
import os
import py_compile
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.process.sandbox.attacks import CODE, SECRET, WITHOUT
from traceplane.sandbox.pool import Sandbox
from traceplane.sandbox.sandbox_settings import SandboxSettings


@pytest.fixture(scope="package")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where datasets live; passable for all, so that file modes alone do not keep a task out."""
    folder = Path("/tmp") / f"traceplane-test-lake-{os.getpid()}"
    folder.mkdir(mode=0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="package")
def secret_file(lake: Path) -> Path:
    file = lake / "traceplane.toml"
    file.write_text(f'worker_token = "{SECRET}"\n')
    file.chmod(0o644)
    return file


@pytest.fixture(scope="package")
def inherited(secret_file: Path) -> Iterator[int]:
    """A descriptor of the wrapper that a careless fork would hand down."""
    descriptor = os.open(secret_file, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    yield descriptor
    os.close(descriptor)


@pytest_asyncio.fixture(scope="package", loop_scope="package")
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
