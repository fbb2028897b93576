"""History from the command line, on real processes: computed, recomputed, and the replaced files deleted."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.e2e.test_first_path import CHAIN
from tests.platform import Platform, until
from tests.process.effects import settle
from traceplane.client import Client
from traceplane.wire.control import EmitRequest, EmitResponse, ManualEvent
from traceplane.wire.scalars import Scope


async def traceplane(platform: Platform, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    environment = {
        **platform.environment,
        "TRACEPLANE_USER_TOKEN": platform.user_token,
        "TRACEPLANE_STATE_URL": platform.url,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "traceplane.cli.main",
        *arguments,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(stdin.encode())
    return process.returncode or 0, out.decode(), err.decode()


def stored(platform: Platform) -> int:
    return sum(1 for path in (platform.folder / "objects").rglob("*.parquet"))


async def test_a_range_is_recomputed_and_the_replaced_files_are_deleted(
    database_url: str, tmp_path: Path
) -> None:
    async with Platform.start(database_url, tmp_path) as platform:
        await platform.deploy(CHAIN)
        code, out, err = await traceplane(platform, "backfill", "mid", "--range", "0..9", "--wait")
        assert (code, err) == (0, ""), err
        assert out.startswith("10 tasks of job copy for 10 scopes")
        assert "10 of 10 done, 0 failed" in out
        assert await platform.settled() == {"completed": 20}
        assert stored(platform) == 20

        arguments = ("backfill", "mid", "--range", "5..14", "--force", "--json")
        code, out, _ = await traceplane(platform, *arguments)
        assert (code, json.loads(out)["created"]) == (0, 10)
        assert await platform.settled() == {"completed": 40}
        assert stored(platform) == 40

        code, out, _ = await traceplane(platform, "gc", "--dry-run", "--grace", "0s")
        assert code == 0
        assert out.count(".parquet\n") == 10
        assert "would delete 10 files" in out
        assert (await traceplane(platform, "gc"))[1].startswith("deleted 0 files")
        code, out, _ = await traceplane(platform, "gc", "--grace", "0s")
        assert (code, out.split(",")[0]) == (0, "deleted 10 files")
        assert stored(platform) == 30

        code, out, _ = await traceplane(platform, "backfill", "out", "--range", "13..16", "--force", "--wait")
        assert code == 1
        assert "2 scopes skipped because of gaps in inputs. Missing: mid 15-16" in out
        assert "2 of 4 done, 0 failed, 2 skipped" in out

        for wrong, told in (
            (("backfill", "mid", "--range", "5"), "cli.bad_range"),
            (("backfill", "mid", "--range", "5..1"), "backfill.bad_range"),
            (("backfill", "nothing", "--range", "0..1"), "dataset.unknown"),
            (("backfill", "in", "--range", "0..1"), "backfill.source_dataset"),
            (("gc", "--grace", "soon"), "cli.bad_duration"),
        ):
            code, _, err = await traceplane(platform, *wrong)
            assert (code, err.partition(":")[0]) == (2, told)
            assert err.count("\n") == 1


ADDED = """
version: 1
dag: added
jobs:
- {name: days, activation: source, source: {kind: manual}, outputs: [{dataset: added.days}]}
- name: rows
  runtime: python
  operator: python
  update_strategy: append
  unique_key: [day]
  inputs: [{from: {job: days}}]
  outputs: [{dataset: added.rows}]
  config: {entrypoint: "added:days", seconds: SECONDS}
"""


async def test_overlapping_scopes_add_each_row_once(database_url: str, tmp_path: Path) -> None:
    """Whether the scopes run one after the other, or all at once, as in a rebuild."""
    async with Platform.start(database_url, tmp_path) as platform:
        client = Client(platform.gateway_url, platform.user_token)

        async def days() -> dict[str, list[int]]:
            assert set(await settle(platform, seconds=180)) == {"completed"}
            answer = await asyncio.to_thread(
                client.query, "select day, count(*) as n from added.rows group by all order by 1"
            )
            return answer.to_pydict()

        once = {"day": list(range(1, 7)), "n": [1] * 6}
        await platform.deploy(ADDED.replace("SECONDS", "0.3"))
        wide = [Scope(partition_key=f"{a}-{b}", start=a, end=b) for a, b in ((1, 3), (2, 5), (4, 6))]
        scopes = [*wide, *(Scope(cursor=day) for day in range(1, 7))]
        request = EmitRequest([ManualEvent("added.days", scope) for scope in scopes])
        await platform.api.call("POST", "/api/v1/events", EmitResponse, request)
        assert await days() == once
        await platform.deploy(ADDED.replace("SECONDS", "0.2"))
        await until(lambda: serves(platform, 2), seconds=180)
        assert await days() == once


async def serves(platform: Platform, version: int) -> bool:
    return version == await platform.value(
        "select v.number from dags d join dag_versions v on v.dag_version_id = d.active_version_id"
        " where d.name = 'added'"
    )
