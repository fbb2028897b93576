"""The tutorial on operator packages, block by block, in a virtual environment of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs_pages import ROOT, blocks, page
from tests.terminal import Terminal
from traceplane.postgres.embedded.server import EmbeddedPostgres

TEXT = page("tutorials/operator_package.md")


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """In a folder that every user can enter, as that of a reader is."""
    with tempfile.TemporaryDirectory(prefix="docs-", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)
        folder = Path(name) / "quality"
        (folder / "code").mkdir(parents=True)
        commands = _environment(Path(name) / "venv")
        path = f"{commands}{os.pathsep}{os.environ['PATH']}"
        yield Terminal(folder, PATH=path, CLONE=str(ROOT), PYTHONDONTWRITEBYTECODE="1")
        if (folder / ".traceplane/postgres").exists():
            EmbeddedPostgres.ensure(folder / ".traceplane/postgres").destroy()


def _environment(folder: Path) -> Path:
    """Its commands. What is installed here is installed there too; `pip` works without a network."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin/python"
    shared = [path for path in sys.path if path.endswith("site-packages")] + [str(ROOT / "src")]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / f"lib/{version}/site-packages/shared.pth").write_text("\n".join(shared))
    uv = Path(sys.executable).with_name("uv")
    offline = "--offline --no-cache --quiet --no-deps --no-build-isolation"
    for name, script in {
        "pip": f'#!/bin/sh\nexec "{uv}" pip "$1" {offline} --python "{python}" "$2"\n',
        "traceplane": f'#!/bin/sh\nexec "{python}" -m traceplane.cli.main "$@"\n',
    }.items():
        (folder / "bin" / name).write_text(script)
        (folder / "bin" / name).chmod(0o755)
    return folder / "bin"


@pytest.mark.timeout(600)
def test_a_package_is_installed_used_and_upgraded_as_the_tutorial_says(terminal: Terminal) -> None:
    install, up, deploy, look, mistake, change, up_again, plan, upgrade = blocks(TEXT, "bash")
    (code,) = blocks(TEXT, "python")
    (terminal.folder / "code/readings.py").write_text(code)
    said = terminal.run(install)
    assert "quality_split" in said
    assert re.search(r"\d passed", said), said

    platform = terminal.start(up.strip())
    try:
        terminal.until("traceplane status")
        terminal.run(deploy)
        terminal.until("traceplane status", "quality.rejected: 1 commit")
        said = terminal.run(look)
        assert re.search(r"^a +20\.0", said, re.M), said
        assert re.search(r"^b +99\.0 +celsius is too large", said, re.M), said
        assert "sensor is missing" in said
        said = terminal.run(f"({mistake.strip()}) 2>&1 || true")
        assert re.search(r"wrong\.yaml:\d+:\d+", said), said
        terminal.run(change)
    finally:
        platform.send_signal(signal.SIGINT)
        stopped = platform.wait(180)
    assert stopped == 0, terminal.log()

    platform = terminal.start(up_again.strip())
    try:
        terminal.until("traceplane status")
        said = terminal.run(f"{plan.strip()} || true")  # its exit code says that there are changes
        assert re.search(r"-/\+ .*\bcheck\b.*", said), said
        assert "code" in said
        said = terminal.run(upgrade)
        assert re.search(r"^b +99\.0 +celsius is more than allowed", said, re.M), said
    finally:
        platform.send_signal(signal.SIGINT)
        stopped = platform.wait(180)
    assert stopped == 0, terminal.log()
