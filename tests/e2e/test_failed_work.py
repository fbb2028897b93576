"""When something fails, the commands say what, where and what next; so does the Python client."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.commands import Commands
from tests.platform import Platform, until
from traceplane.cli.main import cli
from traceplane.client import Client
from traceplane.errors import TraceplaneError

DAG = """
version: 1
dag: shop
jobs:
- {name: days, activation: source, source: {kind: manual}, outputs: [{dataset: shop.days}]}
- name: sales
  runtime: python
  operator: python
  inputs: [{from: {dataset: shop.days}}]
  outputs: [{dataset: shop.sales}]
  config: {entrypoint: "shop:sales"}
  max_attempts: 1
"""
CODE = """
def sales(task):
    print("reading", task.scope.start)
    task.log("halfway", rows=3)
    return [{"n": 1 / (task.scope.start - 3)}]
"""


class Shop:
    def __init__(self, platform: Platform, folder: Path) -> None:
        self.platform, self.folder = platform, folder
        (folder / "code").mkdir()
        (folder / "dag.yaml").write_text(DAG)
        self.write(CODE)

    @property
    def deploying(self) -> tuple[str, ...]:
        return ("deploy", str(self.folder / "dag.yaml"), "--code", str(self.folder / "code"))

    def write(self, code: str) -> None:
        (self.folder / "code/shop.py").write_text(code)

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code and what a command writes, to a pipe. In this process, since it takes a while to start one."""
        environment = {**self.platform.environment, "TRACEPLANE_USER_TOKEN": self.platform.user_token}
        done = await asyncio.to_thread(CliRunner().invoke, cli, arguments, env=environment)
        if isinstance(done.exception, TraceplaneError):
            return 2, done.stdout, str(done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.stdout, done.stderr

    async def out(self, *arguments: str) -> str:
        code, out, err = await self.run(*arguments)
        assert code == 0, err
        return out

    async def ids(self, state: str) -> list[str]:
        """Oldest first."""
        lines = (await self.out("tasks", "--state", state)).splitlines()
        return [line.split()[0] for line in reversed(lines)]


async def test_a_failure_is_found_explained_and_acknowledged(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    async with Platform.start(database_url, tmp_path / "home") as platform:
        shop = Shop(platform, folder)
        await shop.out(*shop.deploying)
        await shop.out("emit", "shop.days", "0..4")
        await until(lambda: _over(platform, 5), what="five tasks are over")
        await _found(shop)
        await _read(shop)
        await _asked_before_many(shop)
        await asyncio.to_thread(_by_the_client, shop, monkeypatch)
        await _put_away(shop)
        await _build_that_fails(shop)


async def test_a_task_whose_report_is_refused_fails_at_once_and_says_why(
    database_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    small = {"TRACEPLANE_MAX_BODY_BYTES": "40000"}
    async with Platform.start(database_url, tmp_path / "home", environment=small) as platform:
        shop = Shop(platform, folder)
        shop.write(
            "def sales(task):\n"
            "    for n in range(300 if task.scope.start else 1):\n"
            "        task.write(next(iter(task.outputs)), [{'n': n}])\n"
        )
        await shop.out(*shop.deploying)
        await shop.out("emit", "shop.days", "0..1")
        await until(lambda: _over(platform, 2), what="both tasks are over")
        assert await platform.states("sales") == {"completed": 1, "dead": 1}
        (dead,) = await shop.ids("dead")
        assert "operator.result_invalid: the dispatcher refused the report" in await shop.out("explain", dead)


async def _over(platform: Platform, count: int) -> bool:
    ended = "select count(*) from tasks where state in ('completed', 'dead')"
    return bool(await platform.value(ended) == count)


async def _found(shop: Shop) -> None:
    (dead,) = await shop.ids("dead")
    status = (await shop.out("status")).splitlines()
    assert status[:3] == [
        "failed:",
        "  shop/sales: 1 task dead, operator.raised: ZeroDivisionError: division by zero",
        f"    newest, scope 3: traceplane explain {dead}",
    ]
    explained = await shop.out("explain", dead)
    for said in (
        f"Task {dead} of job shop/sales, scope 3 is dead.",
        "dead after 1 attempt;",
        "Raised: ZeroDivisionError: division by zero",
        'At: shop.py, line 5: return [{"n": 1 / (task.scope.start - 3)}]',
        'File "shop.py", line 5, in sales',
        "  reading 3\n  info: halfway rows=3",
        "Next step: Correct the code. Deploy the correction: a retry runs what is deployed.",
    ):
        assert said in explained
    assert "traceplane retry" not in explained


async def _read(shop: Shop) -> None:
    first = (await shop.ids("completed"))[0]
    assert await shop.out("logs", first) == "reading 0\ninfo: halfway rows=3\n"
    async with Commands.of(shop.platform) as commands:
        seen = await commands.on_a_terminal("logs", first)
    assert "reading 0" in seen


async def _asked_before_many(shop: Shop) -> None:
    code, _, err = await shop.run("emit", "shop.days", "0..2000000")
    assert (code, err.split(":")[0]) == (2, "cli.many_events")
    assert "2000001" in err
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "traceplane.cli.main", "emit", "shop.days", "0..2000000"),
        env={**shop.platform.environment, "TRACEPLANE_USER_TOKEN": shop.platform.user_token},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.write(ours, b"n\n")
    assert await process.wait() == 2
    os.close(ours)
    assert await shop.platform.value("select count(*) from tasks") == 5
    code, _, err = await shop.run("emit", "shop.days", "9..1")
    assert (code, err.split(":")[0]) == (2, "cli.empty_range")


def _by_the_client(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = shop.platform
    for name in ("TRACEPLANE_HOME", "TRACEPLANE_GATEWAY_PORT"):
        monkeypatch.setenv(name, platform.environment[name])
    (platform.folder / "tokens").mkdir()
    (platform.folder / "tokens/user").write_text(platform.user_token)
    client = Client()
    assert client.emit("shop.days", range(5)).duplicates == 5
    (failure,) = client.status().failed
    (dead,) = client.tasks(dag="shop", standing="open")
    assert dead.task_id == failure.newest
    assert "return" in (client.explain(dead.task_id).error or {})["traceback"]
    assert [a.text for a in client.logs(dead.task_id).attempts] == ["reading 3\ninfo: halfway rows=3"]
    assert not client.deploy(shop.folder / "dag.yaml", code=[shop.folder / "code"]).changed


async def _put_away(shop: Shop) -> None:
    assert "operator.raised: ZeroDivisionError: division by zero" in await shop.out("dead", "--dag", "shop")
    code, _, err = await shop.run("task", "ack")
    assert (code, err.split(":")[0]) == (2, "cli.which_tasks")
    assert await shop.out("task", "ack", "--dag", "shop", "--job", "sales") == "1 acknowledged\n"
    assert await shop.run("dead") == (0, "", "no dead tasks that need action\n")
    assert "(acknowledged)" in await shop.out("dead", "--all")
    assert (await shop.out("status")).startswith("no unfinished tasks")


async def _build_that_fails(shop: Shop) -> None:
    shop.write(CODE.replace("- 3", "* 0"))
    code, _, err = await shop.run(*shop.deploying, "--wait")
    assert code == 1
    for said in ("4 dead tasks keep it from serving", "traceplane dead --dag shop", "traceplane abort shop"):
        assert said in err
