"""`make demo` shows the product working; if something in it fails, it says so in one sentence, without a traceback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples import demo, demo_failures
from examples.demo_failures import DemoFailed, Processes, last_error, sentence, shortened
from tests.platform import Platform, die_with_parent
from tests.unit.test_java import installed
from traceplane.errors import Conflict
from traceplane.postgres.database import Database

ROOT = Path(__file__).parents[2]
BROKEN = """
import sys
from pathlib import Path
from examples import demo
demo.DAG = Path(sys.argv[1])
sys.exit(demo.run())
"""
DAG = """
version: 1
dag: broken
jobs:
- name: head
  activation: source
  source: {{ kind: always_on }}
  runtime: python
  operator: block_follower
  outputs: [{{ name: head, dataset: chain.head }}]
  config: {{ endpoints: ["http://127.0.0.1:8545"], start: 0, interval_seconds: 0.2 }}
- name: ingest
  runtime: python
  operator: python
  max_attempts: 1
  inputs: [{{ from: {{ job: head }} }}]
  outputs: [{{ dataset: chain.blocks }}]
  config: {{ entrypoint: "{entrypoint}" }}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """For temporary files of a demo; its processes pass through it as other users, which `tmp_path` does not allow."""
    with tempfile.TemporaryDirectory(prefix="test-demo-", ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o711)
        yield Path(name)


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,
    )


def failed(demo: subprocess.Popen[str]) -> str:
    """What a demo that fails says of it: one line, apart from what it said before."""
    _, errors = demo.communicate(timeout=400)
    (line,) = errors.strip().splitlines()
    assert demo.returncode == 1
    assert line.startswith("The demo failed: ")
    logs = re.search(r" \(logs: (\S+)\)$", line)
    assert logs is not None
    assert (Path(logs[1]) / "gateway.log").exists(), line
    return line.removeprefix("The demo failed: ").removesuffix(logs[0])


@pytest.mark.chaos
def test_it_ends_with_every_check_ok_and_no_other_word(folder: Path) -> None:
    demo = start(folder, "-m", "examples")
    said, errors = demo.communicate(timeout=600)
    assert (demo.returncode, errors) == (0, ""), said + errors
    assert said.count("\n      ok ") == 20, said
    assert said.count("\n   ✓ ") == 16, said
    assert "NOT" not in said
    assert said.rstrip().endswith("Nothing was lost, nothing was duplicated.")


def test_a_worker_that_cannot_start_spark_ends_it_with_the_workers_error(folder: Path) -> None:
    home = installed(folder / "java", "11")
    said = failed(start(folder, "-m", "examples", JAVA_HOME=str(home)))
    assert said.startswith(
        "the process spark-1 does not stay up: spark.java_unsupported: JAVA_HOME is Java 11"
    )


@pytest.mark.chaos
def test_a_task_that_fails_for_good_ends_it_with_the_tasks_error(folder: Path) -> None:
    dag = folder / "dag.yaml"
    dag.write_text(DAG.format(entrypoint="examples.chain:no_such_function"))
    said = failed(start(folder, "-c", BROKEN, str(dag)))
    assert re.match(
        r"task [0-9a-f-]{36} of the job ingest failed for good at attempt 1: operator\.no_entrypoint: ", said
    )
    for name in ("dispatcher", "gateway", "worker-1"):
        (log,) = folder.glob(f"traceplane-demo-*/{name}.log")
        assert "process.started" in log.read_text(), "what happened before the failure is kept"


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.chaos)],
)
def test_a_signal_ends_it_quietly(folder: Path, number: int, code: int) -> None:
    demo = start(folder, "-m", "examples")
    assert demo.stdout is not None
    while not demo.stdout.readline().startswith("Postgres, "):
        assert demo.poll() is None
    demo.send_signal(number)
    _, errors = demo.communicate(timeout=400)
    assert (demo.returncode, errors) == (code, "")


def test_ctrl_c_while_it_imports_is_quiet(folder: Path) -> None:
    """In its first second; Python itself would print where it was."""
    demo = start(folder, "-m", "examples")
    loaded = Path(f"/proc/{demo.pid}/maps")
    while "libarrow" not in loaded.read_text():
        assert demo.poll() is None
        time.sleep(0.002)
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=400)
    assert errors == ""
    assert demo.returncode in (-signal.SIGINT, 130)


# --- the sentence ------------------------------------------------------------------------------------


def test_only_failures_that_the_demo_did_not_cause_count(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.log("gateway").write_text(
        "Traceback (most recent call last):\nOSError: address already in use\n"
    )
    victim = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    for process in victim:
        processes.started("gateway", process.pid)
        processes.kill("gateway")
        process.wait()
        assert processes.was_killed(process.pid)
    processes.started("gateway", 1)
    assert not processes.was_killed(1)
    assert processes.troubles() == []
    for _ in range(demo_failures.DEATHS):
        processes.started("gateway", 1)
        processes.check()
    assert processes.troubles() == ["the process gateway was started again: OSError: address already in use"]
    processes.started("gateway", 1)
    with pytest.raises(DemoFailed, match="gateway does not stay up: OSError: address already in use"):
        processes.check()


def test_an_error_with_a_code_says_more_than_the_line_after_it(tmp_path: Path) -> None:
    log = tmp_path / "spark-1.log"
    assert last_error(log) == "it wrote nothing to its log"
    failed = {
        "code": "spark.not_started",
        "message": "the Spark server did not start",
        "next_step": "read it",
    }
    log.write_text(json.dumps({"event": "process.failed", **failed}) + "\nsome other line\n\n")
    assert last_error(log) == "spark.not_started: the Spark server did not start → read it"
    started = json.dumps({"event": "process.started", "level": "info"})
    log.write_text(f"OSError: no room\n{started}\n")
    assert last_error(log) == "OSError: no room"


def test_any_error_is_one_printable_line() -> None:
    error = Conflict("query.no_columns", "the dataset has no columns", value="a\nb", next_step="wait")
    assert sentence(error) == "query.no_columns: the dataset has no columns (value: 'a\\nb') → wait"
    assert sentence(OSError(98, "address in use")) == "OSError: [Errno 98] address in use"
    assert shortened("red \x1b[31m\nnext\tword") == "red [31m next word"
    assert len(shortened("x" * 5000)) == 600


async def test_a_timeout_names_what_is_waited_for_and_the_errors_so_far(
    database_url: str, database: Database, tmp_path: Path
) -> None:
    async with Platform.start(database_url, tmp_path, workers=0) as platform:
        await platform.deploy(
            """
version: 1
dag: slow
jobs:
- {name: ticks, activation: source, source: {kind: manual}, outputs: [{dataset: slow.in}]}
- name: never
  runtime: python
  operator: python
  inputs: [{from: {dataset: slow.in}}]
  outputs: [{dataset: slow.out}]
  config: {entrypoint: "operators:anything"}
"""
        )
        await platform.emit("slow.in", [1, 2])
        await platform["dispatcher-1"].kill()
        await platform.sql(
            "update tasks set state = 'queued', error = $1::jsonb where state in ('queued', 'dispatched')",
            '{"code": "operator.raised", "message": "no luck"}',
        )

        async def never() -> bool:
            return False

        world = demo.Demo.__new__(demo.Demo)
        world.database, world.processes = database, Processes(tmp_path)
        with pytest.raises(DemoFailed) as failure:
            await world.until(never, "pigs fly", seconds=0.2)
        assert str(failure.value) == (
            "timed out after 0 s, without progress, waiting until pigs fly: "
            "2 queued of the job never (last error: operator.raised: no luck)"
        )

        async def another_attempt() -> bool:
            await platform.sql("update tasks set attempt = attempt + 1")
            return False

        with pytest.raises(DemoFailed, match="timed out after 1 s, in spite of progress, waiting"):
            await world.until(another_attempt, "pigs fly", seconds=60, at_most=0.8)
        task = await platform.value("select task_id from tasks limit 1")
        await platform.sql(
            "update tasks set state = 'dead', finished_at = now(), attempt = 3 where task_id = $1", task
        )
        with pytest.raises(DemoFailed, match=f"task {task} of the job never failed for good at attempt 3: "):
            await world.until(never, "pigs fly", seconds=60)
