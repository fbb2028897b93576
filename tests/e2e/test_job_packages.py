"""A job runs with the packages that it was deployed with, each with its own versions of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tests.e2e.test_code import command_line
from tests.platform import Platform, until
from tests.wheels import tiny_index
from traceplane.errors import InvalidInput
from traceplane.wire.deploys import DeployRequest, PlanResponse

MODULE = """
import tinylib

def run(task):
    return [{"said": tinylib.greet("tinylib"), "file": tinylib.__file__}]
"""


def job(name: str, requirements: str, entrypoint: str = "words:run") -> str:
    return f"""
- name: {name}
  runtime: python
  operator: python
  {requirements}
  inputs: [{{from: {{dataset: one.in}}}}]
  outputs: [{{dataset: one.{name}}}]
  config: {{entrypoint: "{entrypoint}"}}
"""


def dag(*jobs: str, requirements: str = "") -> str:
    return f"""
version: 1
dag: one
{requirements}
defaults: {{retry: {{base: 50ms}}, max_attempts: 2}}
jobs:
- {{name: days, activation: source, source: {{kind: manual}}, outputs: [{{dataset: one.in}}]}}
{"".join(jobs)}
"""


@dataclass(frozen=True)
class Shop:
    """A platform whose machine has an index with `tinylib` 1.0 and 2.0, and nothing else."""

    platform: Platform
    folder: Path

    async def command(self, command: str, text: str, *, code: str = MODULE) -> tuple[int, str]:
        folder = self.folder / "code"
        folder.mkdir(exist_ok=True)
        (folder / "words.py").write_text(code)
        file = self.folder / "dag.yaml"
        file.write_text(text)
        return await command_line(self.platform, command, str(file), "--code", str(folder))

    async def deploy(self, text: str, *, code: str = MODULE) -> str:
        exit_code, printed = await self.command("deploy", text, code=code)
        assert exit_code == 0, printed
        return printed

    async def rows(self, dataset: str) -> list[dict]:
        found = await self.platform.sql(
            "select f ->> 'path' as path from datasets d join dataset_commits c"
            " on c.generation_id = d.current_generation_id, jsonb_array_elements(c.files) f where d.dataset_id = $1",
            dataset,
        )
        tables = [parquet.read_table(self.platform.folder / "objects" / row["path"]) for row in found]
        return [row for table in tables for row in table.to_pylist()]

    async def said(self, dataset: str) -> set[str]:
        return {row["said"] for row in await self.rows(dataset)}


@pytest.fixture
async def shop(database_url: str, tmp_path: Path) -> AsyncIterator[Shop]:
    settings = tiny_index(tmp_path)
    async with Platform.start(database_url, tmp_path / "home", environment=settings) as platform:
        yield Shop(platform, tmp_path)


@pytest.mark.timeout(600)
async def test_jobs_of_one_dag_run_with_different_versions_of_a_library(shop: Shop) -> None:
    await shop.deploy(
        dag(
            job("old", "requirements: [tinylib==1.0]"),
            job("new", "requirements: ['tinylib>=2']"),
            job("common", ""),
            requirements="requirements: [tinylib<2]",
        )
    )
    await shop.platform.emit("one.in", range(3))
    assert (await shop.platform.settled()).keys() == {"completed"}
    assert await shop.said("one.old") == {"tinylib 1.0"} == await shop.said("one.common")
    assert await shop.said("one.new") == {"tinylib 2.0"}
    (file,) = {row["file"] for row in await shop.rows("one.new")}
    assert file.startswith(str(shop.platform.folder / "environments"))


SPY = """
import os
from pathlib import Path

import tinylib

def run(task):
    module = Path(tinylib.__file__)
    environments = module.parents[3]
    denied = 0
    for attack in (
        lambda: module.write_text("VERSION = 'mine'"),
        lambda: module.unlink(),
        lambda: module.chmod(0o777),
        lambda: (module.parent / "other.py").write_text(""),
        lambda: (module.parents[2] / "python").write_text(""),
        lambda: (environments / ".locks" / "x").write_text(""),
    ):
        try:
            attack()
        except OSError:
            denied += 1
    try:
        seen = len([name for name in os.listdir(environments) if not name.startswith(".")])
    except OSError:
        seen = 1
    return [{"said": f"{denied} denied, {seen} seen"}]
"""


@pytest.mark.timeout(600)
async def test_an_operator_sees_its_own_packages_and_changes_none(shop: Shop) -> None:
    await shop.deploy(
        dag(job("old", "requirements: [tinylib==1.0]"), job("new", "requirements: [tinylib==2.0]")), code=SPY
    )
    await shop.platform.emit("one.in", range(2))
    assert (await shop.platform.settled()).keys() == {"completed"}
    assert await shop.said("one.old") | await shop.said("one.new") == {"6 denied, 1 seen"}


@pytest.mark.timeout(600)
async def test_other_requirements_are_a_change_and_a_rollback_brings_the_old_packages_back(
    shop: Shop,
) -> None:
    old, new = (dag(job("say", f"requirements: [tinylib=={version}]")) for version in ("1.0", "2.0"))
    await shop.deploy(old)
    await shop.platform.emit("one.in", [1])
    await shop.platform.settled()
    exit_code, printed = await shop.command("plan", old)
    assert exit_code == 0, printed
    exit_code, printed = await shop.command("plan", new)
    assert (exit_code, "-/+ job say" in printed, "requirements" in printed) == (3, True, True), printed
    exit_code, printed = await shop.command("plan", dag(job("say", "requirements: [tinylib==3.0]")))
    assert (exit_code, "requirements.unsatisfiable" in printed) == (2, True), printed
    await shop.deploy(new)
    await shop.platform.settled()

    async def serves(word: str) -> bool:
        return await shop.said("one.say") == {word}

    await until(lambda: serves("tinylib 2.0"), what="the new version serves")
    exit_code, printed = await command_line(shop.platform, "rollback", "one")
    assert exit_code == 0, printed
    await shop.platform.emit("one.in", [2])
    await shop.platform.settled()
    assert await serves("tinylib 1.0")


async def test_a_deploy_over_the_api_brings_its_lock(shop: Shop) -> None:
    request = DeployRequest(dag(job("say", "requirements: [tinylib]")), code={"words.py": MODULE})
    with pytest.raises(InvalidInput) as refused:
        await shop.platform.api.call("POST", "/api/v1/plan", PlanResponse, request)
    assert refused.value.code == "requirements.not_locked"
