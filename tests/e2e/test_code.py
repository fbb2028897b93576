"""A job runs the code that it was deployed with, whatever the workers' folders contain."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tests.platform import Platform
from traceplane.errors import InvalidInput, TooLarge
from traceplane.wire.deploys import DeployRequest, PlanResponse

OPERATORS = """
import helper

def run(task):
    return [{"said": helper.WORD, "position": task.scope.start}]
"""


def dag(name: str) -> str:
    return f"""
version: 1
dag: {name}
defaults: {{retry: {{base: 50ms}}, max_attempts: 2}}
jobs:
- {{name: {name}-days, activation: source, source: {{kind: manual}}, outputs: [{{dataset: {name}.in}}]}}
- name: {name}-say
  runtime: python
  operator: python
  inputs: [{{from: {{dataset: {name}.in}}}}]
  outputs: [{{dataset: {name}.said}}]
  config: {{entrypoint: "words:run"}}
"""


def sql(query: str, timeout: str = "1m") -> str:
    return f"""
version: 1
dag: sql
jobs:
- {{name: sql-days, activation: source, source: {{kind: manual}}, outputs: [{{dataset: sql.in}}]}}
- name: sql-say
  runtime: spark
  operator: sql
  inputs: [{{name: numbers, from: {{dataset: sql.in}}}}]
  outputs: [{{dataset: sql.said}}]
  config: {{query: {json.dumps(query)}}}
  timeout: {timeout}
"""


async def command_line(platform: Platform, *arguments: str) -> tuple[int, str]:
    """Exit code and all that was printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "traceplane.cli.main", *arguments,
        env={**platform.environment, "TRACEPLANE_USER_TOKEN": platform.user_token},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode()


async def said(platform: Platform, dataset: str) -> set[str]:
    rows = await platform.sql(
        "select f ->> 'path' as path from datasets d join dataset_commits c"
        " on c.generation_id = d.current_generation_id, jsonb_array_elements(c.files) f where d.dataset_id = $1",
        dataset,
    )
    tables = [parquet.read_table(platform.folder / "objects" / row["path"]) for row in rows]
    return {row["said"] for table in tables for row in table.to_pylist()}


DEPLOYED = {"words.py": OPERATORS, "helper.py": "WORD = 'A'\n"}


@dataclass(frozen=True)
class CodeFolder:
    """A folder of code, and a platform whose workers look for their code in it."""

    platform: Platform
    folder: Path

    def write(self, **modules: str) -> None:
        for name, text in modules.items():
            (self.folder / f"{name}.py").write_text(text)

    async def command(self, command: str, dag_name: str) -> tuple[int, str]:
        file = self.folder.parent / f"{dag_name}.yaml"
        file.write_text(dag(dag_name))
        return await command_line(self.platform, command, str(file), "--code", str(self.folder))

    async def deploy_both(self) -> None:
        """Deploys the same modules for two DAGs, with other contents for the second."""
        self.write(words=OPERATORS, helper="WORD = 'A'\n")
        exit_code, printed = await self.command("deploy", "one")
        assert (exit_code, "Deployed one version 1, which serves." in printed) == (0, True), printed
        self.write(helper="WORD = 'B'\n")
        exit_code, printed = await self.command("deploy", "two")
        assert exit_code == 0, printed


@pytest.fixture
async def code(database_url: str, tmp_path: Path) -> AsyncIterator[CodeFolder]:
    folder = tmp_path / "code"
    folder.mkdir()
    settings = {"TRACEPLANE_WORKER_CODE_PATHS": str(folder)}
    async with Platform.start(database_url, tmp_path / "home", environment=settings) as platform:
        yield CodeFolder(platform, folder)


async def test_code_that_cannot_work_is_not_sent(code: CodeFolder) -> None:
    code.write(words=OPERATORS + "def half(:\n")
    exit_code, printed = await code.command("plan", "one")
    assert (exit_code, f"{code.folder}/words.py:6" in printed, "code.syntax" in printed) == (2, True, True)
    code.write(words="import helper.no\n" + OPERATORS, helper="WORD = 'A'\n")
    exit_code, printed = await code.command("plan", "one")
    assert (exit_code, "code.module_missing" in printed, "helper.no" in printed) == (2, True, True)
    assert await code.platform.value("select count(*) from dags") == 0
    for bad, refusal in (({"../x.py": ""}, InvalidInput), ({"words.py": "#" * (1 << 21)}, TooLarge)):
        request = DeployRequest(dag("bad"), code=bad)
        with pytest.raises(refusal):
            await code.platform.api.call("POST", "/api/v1/plan", PlanResponse, request)


async def test_the_same_code_in_other_words_is_no_change_and_other_code_is(code: CodeFolder) -> None:
    platform = code.platform
    await code.deploy_both()
    exit_code, printed = await code.command("plan", "one")
    assert (exit_code, "-/+ job one-say" in printed, "\n      code\n" in printed) == (3, True, True)
    reworded = {**DEPLOYED, "helper.py": "# the word\nWORD = (\n    'A'\n)\n"}
    assert not (await platform.deploy(dag("one"), code=reworded)).changed
    other = DeployRequest(dag("one"), code={**DEPLOYED, "helper.py": "WORD = 'C'\n"})
    assert not (await platform.api.call("POST", "/api/v1/plan", PlanResponse, other)).noop
    assert await platform.value("select count(*) from code_bundles") == 2

    # So it is with queries, also when something else changes in between.
    assert (await platform.deploy(sql("select n, 1 as one from numbers"))).changed
    assert not (await platform.deploy(sql("SELECT n,  1 AS one -- same\n FROM numbers"))).changed
    assert (await platform.deploy(sql("SELECT n, 1 AS one FROM numbers", "2m"))).changed
    assert not (await platform.deploy(sql("SELECT n, 1 AS one FROM numbers", "2m"))).changed
    other = DeployRequest(sql("select n, 2 as one from numbers", "2m"))
    assert not (await platform.api.call("POST", "/api/v1/plan", PlanResponse, other)).noop


@pytest.mark.timeout(900)
async def test_each_dag_runs_its_own_code_under_the_same_names(code: CodeFolder) -> None:
    platform = code.platform
    await code.deploy_both()
    # Each runs its own, though the worker's folder has nothing any more.
    for file in code.folder.iterdir():
        file.unlink()
    for name in ("one", "two"):
        await platform.emit(f"{name}.in", range(3))
    assert await platform.settled() == {"completed": 6}
    assert (await said(platform, "one.said"), await said(platform, "two.said")) == ({"A"}, {"B"})

    # A worker believes neither the database nor its own disk.
    await platform["worker-1"].stop()
    cached = sorted((platform.folder / "code_bundles").iterdir())
    assert len(cached) == 2
    for folder in cached:
        (folder / "helper.py").chmod(0o644)
        (folder / "helper.py").write_text("WORD = 'tampered'\n")
    await platform.sql(
        "update code_bundles set content = replace(content, '''B''', '''X''') where content like '%''B''%'"
    )
    await platform["worker-1"].start()
    for name in ("one", "two"):
        await platform.emit(f"{name}.in", range(3, 5))
    assert await platform.settled() == {"completed": 8, "dead": 2}
    assert (await said(platform, "one.said"), await said(platform, "two.said")) == ({"A"}, {"B"})
    errors = await platform.sql("select distinct error ->> 'code' from tasks where state = 'dead'")
    assert [row[0] for row in errors] == ["code.damaged"]
