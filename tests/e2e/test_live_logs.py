"""What a task writes is seen while it runs, and what a killed worker had reported is not lost."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from tests.e2e.test_history import traceplane
from tests.e2e.test_secrets import VALUE, set_secret
from tests.platform import Platform, until

DAG = """
version: 1
dag: talk
defaults: {retry: {base: 50ms}, max_attempts: 3, lease: 3s}
jobs:
- {name: days, activation: source, source: {kind: manual}, outputs: [{dataset: talk.days}]}
- name: say
  runtime: python
  operator: python
  inputs: [{from: {job: days}}]
  outputs: [{dataset: talk.said}]
  secrets: {KEY: signing}
  config: {entrypoint: "writes_and_waits:run"}
"""


async def logged(platform: Platform, task_id: str) -> str:
    code, out, err = await traceplane(platform, "logs", task_id)
    assert code == 0, err
    return out


async def follow(platform: Platform, task_id: str, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "traceplane.cli.main", "logs", "-f", task_id, *options,
        env={**platform.environment, "TRACEPLANE_USER_TOKEN": platform.user_token},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


async def running_task(platform: Platform) -> str:
    await platform.deploy(DAG)
    await platform.emit("talk.days", [0])

    async def found() -> str | None:
        tasks = await platform.sql("select task_id from tasks where state = 'running'")
        return str(tasks[0]["task_id"]) if tasks else None

    return str(await until(found))


async def test_the_output_of_a_running_task_is_read_followed_and_outlives_its_worker(
    database_url: str, tmp_path: Path
) -> None:
    async with Platform.start(database_url, tmp_path) as platform:
        await set_secret(platform, "signing", VALUE, "--job", "talk/say")
        task_id = await running_task(platform)

        async def seen() -> str | None:
            out = await logged(platform, task_id)
            return out if "still here" in out else None

        early = str(await until(seen, what="the log of a running task"))
        assert "attempt 1 begins with ***\nline 0 of attempt 1\n" in early
        assert VALUE not in early
        followers = [await follow(platform, task_id), await follow(platform, task_id, "--json")]
        await platform["worker-1"].kill()
        await platform["worker-1"].start()
        assert await platform.settled() == {"completed": 1}
        printed, as_json = [(await one.communicate())[0].decode() for one in followers]
        assert [one.returncode for one in followers] == [0, 0], printed + as_json
        assert_each_line_once(printed)
        lines = [json.loads(line) for line in as_json.splitlines()]
        assert {"attempt": 1, "line": "line 3 of attempt 1"} in lines
        assert lines[-1] == {"attempt": 2, "line": "line 1999 of attempt 2"}
        assert VALUE not in printed + as_json
        kept = await logged(platform, task_id)
        assert kept.index("line 9 of attempt 1") < kept.index("line 1999 of attempt 2")


def assert_each_line_once(printed: str) -> None:
    """Attempt 1 in full; of attempt 2, which wrote more than is kept, the end."""
    lines = printed.splitlines()
    for number in range(10):
        assert lines.count(f"line {number} of attempt 1") == 1, printed
    second = lines[lines.index("--- attempt 2") + 1 :]
    assert second[-1] == "line 1999 of attempt 2"
    numbers = [int(line.split()[1]) for line in second if line.startswith("line ")]
    assert numbers == list(range(numbers[0], 2_000))
    if numbers[0]:
        assert any(line.endswith(" lines were not kept]") for line in second), printed
