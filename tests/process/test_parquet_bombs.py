"""Files of some kilobytes that take gigabytes to read fail their own tasks, and affect nothing else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from msgspec.structs import replace

from tests.platform import Platform
from tests.process.bombs import BOMBS, Bomb, kill, peak_mb, processes_of, signal, write_bomb
from traceplane.adapters.signal_tail import signal_tail
from traceplane.settings import Settings
from traceplane.wire.tasks import ClaimedTask, Completion, JobPayload, OutputManifest, StagedFile, TakeRequest
from traceplane.worker.dispatcher_client import DispatcherClient

MOST_MB = 400

RUNTIMES = """
[runtimes.held]
driver = "queue"
queue = "held"
capabilities = ["reactive"]
"""

DAG = """
version: 1
dag: main
datasets:
  hot:
    storage: postgres
    write_mode: direct
    position: position
    columns: [{name: position, type: bigint}, {name: signal_id, type: string}]
jobs:
- {name: hot_numbers, activation: source, source: {kind: manual}, outputs: [{dataset: hot_in}]}
- {name: signal_numbers, activation: source, source: {kind: manual}, outputs: [{dataset: signals_in}]}
- name: store
  runtime: held
  operator: python
  inputs: [{from: {dataset: hot_in}}]
  outputs: [{dataset: hot}]
  config: {entrypoint: "basic:copy"}
- name: signals
  runtime: held
  operator: python
  inputs: [{from: {dataset: signals_in}}]
  outputs: [{dataset: signals}]
  config: {entrypoint: "basic:copy"}
- name: publish
  runtime: dispatcher
  operator: signal_publish
  inputs: [{from: {dataset: signals}}]
  max_attempts: 1
"""


@dataclass(frozen=True)
class BombTask:
    task: ClaimedTask
    job: JobPayload
    token: str

    @property
    def position(self) -> int:
        assert self.task.scope is not None
        assert self.task.scope.cursor is not None
        return self.task.scope.cursor


class BombedDispatcher:
    """A dispatcher, and a worker that is the test itself."""

    def __init__(self, platform: Platform, client: DispatcherClient) -> None:
        self.platform, self._client = platform, client
        self._objects = platform.folder / "objects"

    @property
    def dispatcher(self) -> int:
        process = self.platform["dispatcher-1"].running
        assert process is not None
        return process.pid

    async def take(self, job: str, count: int) -> list[BombTask]:
        held: list[BombTask] = []
        while len(held) < count:
            answer = await self._client.take(TakeRequest("test", "held", count - len(held), 60))
            held += [BombTask(t, answer.jobs[str(t.job_id)], answer.tokens[t.token]) for t in answer.tasks]
        assert {h.job.name for h in held} == {job}
        return sorted(held, key=lambda h: h.position)

    def write(self, held: BombTask, content: Bomb | list[dict[str, Any]]) -> Completion:
        path = f"{held.task.write_prefixes[0]}part-0.parquet"
        place = self._objects / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            parquet.write_table(pa.Table.from_pylist(content), place)
        else:
            write_bomb(content, held.position, place)
        output, size = held.job.outputs[0], place.stat().st_size
        assert held.task.scope is not None
        manifest = OutputManifest(
            output.output_index,
            output.dataset_uuid,
            output.dataset_version,
            held.task.scope,
            files=[StagedFile(path, 1, size)],
            row_count=1,
            bytes=size,
        )
        task = held.task
        return Completion(
            task.task_id, task.attempt, task.lease_token, status="completed", outputs=[manifest]
        )

    async def report(self, held: list[BombTask], completions: list[Completion]) -> list[str]:
        tokens = list(dict.fromkeys(h.token for h in held))
        numbered = [
            replace(done, token=tokens.index(h.token)) for h, done in zip(held, completions, strict=True)
        ]
        return [outcome.outcome for outcome in await self._client.complete(tokens, numbered)]

    async def errors(self, job: str) -> dict[int, str]:
        """Codes, by position."""
        rows = await self.platform.sql(
            "select range_start, error->>'code' code from tasks join jobs using (job_id)"
            " where name = $1 and error is not null and state = 'dead'",
            job,
        )
        return {row["range_start"]: row["code"] for row in rows}

    async def stored(self) -> list[int]:
        generation = await self.platform.value(
            "select current_generation_id from datasets where dataset_id = 'hot'"
        )
        rows = await self.platform.sql(f"select position from traceplane_hot.g_{generation.hex} order by 1")
        return [row["position"] for row in rows]

    def published(self) -> list[str]:
        tail = signal_tail(Settings(home=self.platform.folder), 100)
        return sorted(json.loads(payload)["signal_id"] for payload in tail.payloads)


@pytest.fixture
async def bombed(database_url: str, tmp_path: Path) -> AsyncIterator[BombedDispatcher]:
    (tmp_path / "traceplane.toml").write_text(RUNTIMES)
    environment = {"TRACEPLANE_CONFIG": str(tmp_path / "traceplane.toml")}
    async with Platform.start(database_url, tmp_path, workers=0, environment=environment) as platform:
        client = platform.worker_client()
        try:
            yield BombedDispatcher(platform, client)
        finally:
            await client.close()


async def test_bombs_for_a_hot_table_fail_only_their_own_tasks_and_use_no_memory_of_the_dispatcher(
    bombed: BombedDispatcher,
) -> None:
    await bombed.platform.deploy(DAG)
    await bombed.platform.emit("hot_in", range(5))
    held = await bombed.take("store", 5)
    contents: list[Any] = [
        [{"position": 0, "signal_id": "first"}],
        *BOMBS,
        [{"position": 4, "signal_id": "last"}],
    ]
    completions = [bombed.write(h, content) for h, content in zip(held, contents, strict=True)]
    assert await bombed.report(held, completions) == ["committed", "dead", "dead", "dead", "committed"]
    assert peak_mb(bombed.dispatcher) < MOST_MB
    # The nested one is refused by its type, before it is read.
    assert await bombed.errors("store") == {
        1: "commit.too_large",
        2: "commit.rows_unfit",
        3: "commit.too_large",
    }
    assert await bombed.stored() == [0, 4]


async def test_bombs_in_place_of_signals_fail_only_their_own_tasks_and_use_no_memory_of_the_dispatcher(
    bombed: BombedDispatcher,
) -> None:
    await bombed.platform.deploy(DAG)
    await bombed.platform.emit("signals_in", range(5))
    held = await bombed.take("signals", 5)
    contents: list[Any] = [[signal(0)], *BOMBS, [signal(4)]]
    completions = [bombed.write(h, content) for h, content in zip(held, contents, strict=True)]
    assert await bombed.report(held, completions) == ["committed"] * 5
    assert await bombed.platform.settled() == {"completed": 7, "dead": 3}
    assert peak_mb(bombed.dispatcher) < MOST_MB
    assert await bombed.errors("publish") == {
        1: "operator.misconfigured",  # it can be read, a little at a time, and holds no signals
        2: "operator.input_too_large",
        3: "operator.input_too_large",
    }
    assert bombed.published() == ["signal-0", "signal-4"]


async def test_killed_decoders_of_a_dispatcher_fail_no_task(
    bombed: BombedDispatcher,
) -> None:
    await bombed.platform.deploy(DAG)
    for position in range(4):
        await bombed.platform.emit("hot_in", [position])
        held = await bombed.take("store", 1)
        done = [bombed.write(held[0], [{"position": position, "signal_id": "x"}])]
        assert await bombed.report(held, done) == ["committed"]
        server, *forked = processes_of(bombed.dispatcher)
        kill(*forked, *([] if position % 2 else [server]))
    assert await bombed.stored() == [0, 1, 2, 3]
