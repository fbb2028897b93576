"""The commands of pages that need no setting of their own, as they are written there, on one platform.

At its end the platform is backed up in the middle of its work, lost, and restored, as the page on backups says.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs_pages import blocks, page
from tests.ports import free_port
from tests.terminal import Terminal
from traceplane.client import Client

DAG = """
version: 1
dag: shop
jobs:
- name: days
  activation: source
  source: { kind: manual }
  outputs: [{ dataset: shop.days }]
- name: orders
  runtime: python
  operator: python
  inputs: [{ from: { job: days } }]
  outputs: [{ name: orders, dataset: shop.orders }]
  config: { entrypoint: "operators:orders" }
- name: sales
  runtime: python
  operator: python
  max_attempts: 1
  inputs: [{ name: orders, from: { job: orders } }]
  outputs: [{ dataset: shop.sales }]
  config: { entrypoint: "operators:sales" }
"""
OPERATORS = """
from datetime import date, timedelta


def orders(task):
    day = date(2024, 1, 1) + timedelta(days=task.scope.start)
    return [{"id": task.scope.start, "day": day, "customer": "ada", "amount": 99 + task.scope.start}]


def sales(task):
    if task.scope.start == 5:
        raise ValueError("the till was broken")
    return [{"amount": sum(row["amount"] for row in task.read("orders").to_pylist())}]
"""
EVERYTHING = "select * from shop.orders order by id"


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """In a folder that every user can enter, as that of a reader is: the server's data stays in it then."""
    with tempfile.TemporaryDirectory(prefix="docs-", ignore_cleanup_errors=True) as name:
        folder = Path(name) / "shop"
        os.chmod(name, 0o755)
        (folder / "code").mkdir(parents=True)
        (folder / "dag.yaml").write_text(DAG)
        (folder / "code/operators.py").write_text(OPERATORS)
        yield Terminal(folder, NODE=str(free_port()))
        subprocess.run(["bash", "-c", STOP_POSTGRES], check=False, cwd=folder, capture_output=True)


STOP_POSTGRES = 'test -e .traceplane/postgres/data/postmaster.pid && kill -INT "$(head -1 .traceplane/postgres/data/postmaster.pid)"'  # noqa: E501


@pytest.mark.timeout(900)
def test_commands_do_what_their_pages_say_and_a_lost_platform_is_restored(terminal: Terminal) -> None:
    chain, up, *steps = (
        script.replace("8545", terminal.environment["NODE"])
        for script in blocks(page("tutorials/chain.md"), "bash")
    )
    node = terminal.start(chain.strip())
    process = terminal.start(f"env {up.strip()}")
    try:
        terminal.until("traceplane status")
        _chain(terminal, steps)
        plan, deploy = blocks(page("concepts/code.md"), "bash")[0].splitlines()
        assert "Jobs: 3 to add" in terminal.run(
            f"{plan} || true"
        )  # its exit code says that there are changes
        assert "Deployed shop version 1" in terminal.run(deploy)
        terminal.run("traceplane emit shop.days 0")
        terminal.until("traceplane status", "shop.sales: 1 commit")
        (client,) = blocks(page("reference/client.md"), "python")
        (terminal.folder / "client.py").write_text(client)
        terminal.run(f"{shlex.quote(sys.executable)} client.py")  # deploys again, and emits 0 to 13
        terminal.until("traceplane status", "1 task dead", "no unfinished tasks")
        _failures(terminal)
        _queries(terminal)
        (link,) = blocks(page("guides/web_ui.md"), "bash")
        assert f"{terminal.gateway}/#" in terminal.run(link)
        refused, exported = blocks(page("operations/audit.md"), "bash")[0].splitlines()
        terminal.run(refused)
        terminal.run(exported.replace("2026-11-01", "2020-01-01"))
        assert (terminal.folder / "november.jsonl").read_text().count("\n") > 2
        before = _backed_up_in_the_middle_of_its_work(terminal)
    finally:
        node.terminate()
        node.wait(60)
        _killed(process, terminal)
    shutil.rmtree(terminal.folder / ".traceplane")
    process = _restored(terminal)
    try:
        terminal.until("traceplane status", "no unfinished tasks")
        after = terminal.run(f'traceplane query "{EVERYTHING}" --format csv')
        assert set(before.splitlines()) <= set(after.splitlines())
        assert len(after.splitlines()) == 1 + 14 + 200  # what was accepted before the dump is computed
        assert "0 accepted, 200 already accepted before" in terminal.run("traceplane emit shop.days 100..299")
        assert "1 accepted" in terminal.run("traceplane emit shop.days 400")
        terminal.until(f'traceplane query "{EVERYTHING}" --format csv | wc -l', "216")
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(180)
    assert code == 0, terminal.log()


def _chain(terminal: Terminal, steps: list[str]) -> None:
    """The tutorial; at its end its source is deleted, since its node will be gone."""
    deploy, first, fork, second = steps
    text = page("tutorials/chain.md")
    (dag,), (code,) = blocks(text, "yaml"), blocks(text, "python")
    (terminal.folder / "chain.yaml").write_text(dag.replace("8545", terminal.environment["NODE"]))
    (terminal.folder / "code/volumes.py").write_text(code)
    terminal.run(deploy)
    terminal.until("traceplane status", "chain.blocks: 26 commits", "chain.volumes: 2 commits")
    said = terminal.run(first)
    assert re.search(r"^0 +9 .*\n10 +19 ", said, re.M), said
    assert re.search(r"^25 *$", said, re.M), said
    terminal.run(fork)
    again = "traceplane tasks --dag chain --job volumes --state completed | grep -c 'volumes  *10-19'"
    terminal.until(f'test "$({again})" -ge 2 && echo again', "again")
    said = terminal.run(second)
    assert len(re.findall(r"chain/volumes +10-19", said)) >= 2
    assert len(re.findall(r"chain/volumes +0-9", said)) == 1
    terminal.run("traceplane dag delete chain --yes")


def _failures(terminal: Terminal) -> None:
    (task,) = Client(terminal.gateway, home=terminal.folder / ".traceplane").tasks(state="dead")
    first, _, cancels = blocks(page("operations/failures.md"), "bash")
    said = terminal.run(first.replace("TASK_ID", str(task.task_id)))
    assert "the till was broken" in said
    assert said.splitlines()[-1] == "1 queued"
    terminal.until("traceplane status", "1 task dead", "no unfinished tasks")
    cancel, retry, acknowledge = cancels.splitlines()
    for nothing in (cancel, retry):
        assert "no tasks match" in terminal.run(f"{nothing} 2>&1 || true")
    terminal.run(acknowledge)


def _queries(terminal: Terminal) -> None:
    (terminal.folder / "monthly.sql").write_text("select sum(amount) as total from shop.orders")
    first, plan = blocks(page("concepts/queries.md"), "bash")
    said = terminal.run(first.replace("shop@3", "shop@1"))
    assert '7,2024-01-08,"ada",106' in said
    assert (terminal.folder / "monthly.parquet").is_file()
    (explain, _needs_spark) = plan.splitlines()
    assert "shop.orders" in terminal.run(explain)
    (client,) = blocks(page("concepts/queries.md"), "python")
    ran = terminal.run(f"{shlex.quote(sys.executable)} - <<'END'\n{client}\nprint(table)\nEND")
    assert "customer" in ran
    (sql,) = blocks(page("concepts/queries.md"), "sql")
    assert "(0 rows)" in terminal.run(f'traceplane query "{sql.replace("of 3", "of 1")}"')


def _backed_up_in_the_middle_of_its_work(terminal: Terminal) -> str:
    """What could be read before the dump began."""
    terminal.run("traceplane emit shop.days 100..299")
    before = terminal.run(f'traceplane query "{EVERYTHING}" --format csv')
    (backup, _) = blocks(page("operations/backup.md"), "bash")
    terminal.run(backup)
    return before


def _killed(process: subprocess.Popen[bytes], terminal: Terminal) -> None:
    """Everything at once, as a machine that is gone."""
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], check=False, capture_output=True, text=True
    ).stdout.split()
    process.kill()
    process.wait(60)
    for child in children:
        try:
            os.kill(int(child), signal.SIGKILL)
        except ProcessLookupError:
            continue
    subprocess.run(["bash", "-c", STOP_POSTGRES], check=False, cwd=terminal.folder)
    gone = threading.Event()
    for _ in range(600):
        if not (terminal.folder / ".traceplane/postgres/data/postmaster.pid").exists():
            return
        gone.wait(0.1)


def _restored(terminal: Terminal) -> subprocess.Popen[bytes]:
    (_, restore) = blocks(page("operations/backup.md"), "bash")
    assert re.search(r"pg_restore", restore)
    terminal.run(restore)
    process = terminal.start("traceplane up --no-spark")
    terminal.until("traceplane status")
    return process
