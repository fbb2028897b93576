"""Files of some kilobytes that take gigabytes to read fail their own tasks, and affect nothing else."""

from __future__ import annotations

import io
import json
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL, SIGXCPU
from typing import Any
from uuid import UUID

import numpy
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from msgspec.structs import replace

from tests.platform import Platform
from traceplane.adapters.signal_tail import signal_tail
from traceplane.decoding import decoder_process
from traceplane.decoding.decoder_pool import Budget, Decoders
from traceplane.decoding.messages import (
    FileLimits,
    FileTooLarge,
    HotRowsWork,
    InvalidContents,
    KeptColumn,
    KeptRowsWork,
    SignalsWork,
    Unreadable,
    Work,
)
from traceplane.linux.confine import confine, no_network
from traceplane.model.hot_table import HotColumn, HotTable
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


def repeated_text(count: int, size: int) -> pa.Array:
    """One text, and how often it is repeated: as little in memory as in the file."""
    return pa.DictionaryArray.from_arrays(pa.array(numpy.zeros(count, "int32")), pa.array(["x" * size]))


def dictionary(position: int) -> pa.Table:
    """1.3 GB of text."""
    return pa.table({"position": [position] * 65_536, "signal_id": repeated_text(65_536, 20_000)})


def nested(position: int) -> pa.Table:
    """A list of 1 GB, whose length is written as a run."""
    texts = pa.ListArray.from_arrays(pa.array([0, 1_000_000], pa.int32()), repeated_text(1_000_000, 1000))
    return pa.table({"position": [position], "signal_id": texts})


def compressed(position: int) -> pa.Table:
    """A page that is one text of 800 MB."""
    size = 800_000_000
    ends = pa.array([0, size], pa.int32()).buffers()[1]
    text = pa.StringArray.from_buffers(1, ends, pa.py_buffer(numpy.zeros(size, "int8")))
    return pa.table({"position": [position], "signal_id": text})


Bomb = Callable[[int], pa.Table]
BOMBS: list[Bomb] = [dictionary, nested, compressed]


def write_bomb(bomb: Bomb, position: int, path: Path) -> None:
    plain = bomb is compressed
    parquet.write_table(
        bomb(position),
        path,
        compression="zstd",
        use_dictionary=not plain,
        write_statistics=False,
        store_schema=False,
    )
    assert path.stat().st_size < 100_000


def signal(position: int) -> dict[str, Any]:
    return {
        "position": position,
        "ticker": "AAPL",
        "signal_id": f"signal-{position}",
        "signal_type": "rsi",
        "signal": "BULLISH",
        "confidence": 80.0,
        "timestamp": 1000.0,
        "source": "test",
        "metadata": "{}",
    }


# --- decoders -----------------------------------------------------------------------------------------

TABLE = HotTable(UUID(int=0), (HotColumn("position", "bigint"), HotColumn("signal_id", "string")), "position")
WORKS: list[Work] = [
    HotRowsWork(TABLE, 1, 1),
    SignalsWork(None),
    KeptRowsWork(
        [KeptColumn("position", "int64", True), KeptColumn("signal_id", "string", True)], "position", [(1, 1)]
    ),
]
LIMITS = FileLimits(64 << 20)


@pytest.fixture
def decoders() -> Iterator[Decoders]:
    made = Decoders()
    yield made
    made.close()


@pytest.fixture
def good(tmp_path: Path) -> Path:
    parquet.write_table(
        pa.Table.from_pylist([signal(1)]).select(["position", "signal_id"]), tmp_path / "good"
    )
    return tmp_path / "good"


def read(decoders: Decoders, path: Path) -> bytes:
    sink = io.BytesIO()
    assert decoders.decode(path, WORKS[0], LIMITS, sink).rows == 1
    return sink.getvalue()


def processes_of(pid: int) -> list[int]:
    """What a process has started, and what that has."""
    children = [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return [*children, *(below for child in children for below in processes_of(child))]


def server_of(decoders: Decoders) -> int:
    """Not every child of this process: tests before this one may have left a cluster or a JVM for later ones."""
    assert decoders._server is not None
    return decoders._server.pid


def kill(*pids: int) -> None:
    """Returns when they are gone, or nothing but their exit code is left."""
    for pid in pids:
        os.kill(pid, SIGKILL)
    for pid in pids:
        status = Path(f"/proc/{pid}/status")
        while True:
            try:
                if "State:\tZ" in status.read_text():
                    break
            except (FileNotFoundError, ProcessLookupError):
                break
            time.sleep(0.01)


def peak_mb(pid: int | str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM:"))


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("work", WORKS, ids=lambda work: type(work).__name__)
def test_a_bomb_is_refused_and_leaves_nothing(
    decoders: Decoders, good: Path, tmp_path: Path, bomb: Bomb, work: Work
) -> None:
    write_bomb(bomb, 1, tmp_path / "bomb")
    assert read(decoders, good) == b'1,"signal-1"\n'
    sink = io.BytesIO(b"before")
    sink.seek(6)
    # What is not even of the right type may be refused for that, if it could be read.
    with pytest.raises((FileTooLarge, InvalidContents)):
        decoders.decode(tmp_path / "bomb", work, LIMITS, sink)
    assert sink.getvalue() == b"before"
    assert read(decoders, good) == b'1,"signal-1"\n'


def test_a_file_that_takes_too_long_is_refused(decoders: Decoders, tmp_path: Path) -> None:
    rows = 20_000_000
    zeros = pa.array(numpy.zeros(rows, "int64"))
    parquet.write_table(pa.table({"position": zeros}), tmp_path / "long")
    assert (tmp_path / "long").stat().st_size < 100_000
    with pytest.raises(FileTooLarge, match="too long"):
        decoders.decode(
            tmp_path / "long", SignalsWork([(1, 1)]), FileLimits(1000, cpu_seconds=1.0), io.BytesIO()
        )


def test_the_kernel_ends_a_decoder_that_is_busy_in_arrow(decoders: Decoders, tmp_path: Path) -> None:
    """Python's own timer waits until Arrow returns."""
    rows = pa.table({"position": [1] * 400_000, "signal_id": [f"signal-{n}" for n in range(400_000)]})
    parquet.write_table(rows, tmp_path / "large")

    class Sink(io.BytesIO):
        limit = ""

        def write(self, data: Any) -> int:
            if not self.limit:
                (forked,) = processes_of(server_of(decoders))
                limits = Path(f"/proc/{forked}/limits").read_text().splitlines()
                self.limit = next(line for line in limits if line.startswith("Max cpu time"))
                time.sleep(2.0)  # as if it had read so long
                os.kill(forked, SIGXCPU)
            return super().write(data)

    sink = Sink()
    with pytest.raises(FileTooLarge, match="too long"):
        decoders.decode(tmp_path / "large", WORKS[0], FileLimits(1 << 30, cpu_seconds=2.0), sink)
    assert int(sink.limit.split()[3]) < 30
    assert sink.getvalue() == b""


def test_files_share_their_limits(decoders: Decoders, good: Path) -> None:
    sink, budget = io.BytesIO(), Budget(1000, cpu_seconds=5.0)
    while budget._cpu_seconds == 5.0:  # a clock may be coarse
        assert budget.decode(decoders, good, WORKS[0], sink) == 1
        sink.seek(0)
    budget._cpu_seconds = 0.0
    with pytest.raises(FileTooLarge, match="too long"):
        budget.decode(decoders, good, WORKS[0], sink)


def test_killed_decoders_lose_no_work(decoders: Decoders, good: Path) -> None:
    for ended in ("idle", "server", "both"):
        read(decoders, good)
        server = server_of(decoders)
        forked = processes_of(server)
        assert len(forked) == 1, ended
        kill(*{"idle": forked, "server": [server], "both": [*forked, server]}[ended])
        assert read(decoders, good) == b'1,"signal-1"\n'


def test_a_decoder_killed_midway_loses_no_work(decoders: Decoders, good: Path, tmp_path: Path) -> None:
    rows = pa.table({"position": [1] * 400_000, "signal_id": [f"signal-{n}" for n in range(400_000)]})
    parquet.write_table(rows, tmp_path / "large")
    read(decoders, good)

    class Sink(io.BytesIO):
        killed = 0

        def write(self, data: Any) -> int:
            if self.tell() > 1_000_000 and not self.killed:
                (forked,) = processes_of(server_of(decoders))
                os.kill(forked, SIGKILL)
                self.killed = forked
            return super().write(data)

    sink = Sink()
    assert decoders.decode(tmp_path / "large", WORKS[0], LIMITS, sink).rows == 400_000
    assert sink.killed
    assert sink.getvalue() == b"".join(b'1,"signal-%d"\n' % n for n in range(400_000))


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def test_a_compromised_decoder_reaches_neither_files_nor_processes_nor_the_network(good: Path) -> None:
    barriers = no_network()
    if barriers.landlock_abi == 0:
        pytest.skip("Landlock is not available here")
    listener = socket.create_server(("127.0.0.1", 0))
    tries: dict[str, Callable[[], object]] = {
        "read": good.read_bytes,
        "write": lambda: good.with_name("made").write_bytes(b""),
        "folder": lambda: os.listdir("/"),
        "network": lambda: socket.create_connection(listener.getsockname()),
        "signal": lambda: os.kill(os.getppid(), 0),
        "program": lambda: os.execv("/bin/true", ["true"]),
        "process": _fork,
        "limits": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CORE),
        "priority": lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), 1),
    }
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            confine(decoder_process.allowed(), barriers)
            for name, attempt in tries.items():
                try:
                    attempt()
                except OSError:
                    continue
                os.write(writer, f"{name} ".encode())
            os.write(writer, b"tried")
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as answer, listener:
        assert answer.read() == ("tried" if barriers.landlock_abi >= 6 else "signal tried")


def test_a_decoder_keeps_neither_rights_nor_files(decoders: Decoders, good: Path) -> None:
    read(decoders, good)
    (forked,) = processes_of(server_of(decoders))
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{forked}/status").read_text().splitlines())
    assert status["NoNewPrivs"] == "1"
    assert status["CapEff"].strip("0") == ""
    assert status["Seccomp"] == "2"
    files = Path(f"/proc/{forked}/fd")
    if os.geteuid() != 0:
        with pytest.raises(PermissionError):  # it is hidden from others of its own user
            os.listdir(files)
        return
    open_files = {os.readlink(entry) for entry in files.iterdir()}
    assert {name.partition(":")[0] for name in open_files} <= {"/dev/null", "pipe", "socket"}


def test_a_missing_file_or_a_link_is_not_read(decoders: Decoders, good: Path) -> None:
    (good.parent / "link").symlink_to(good)
    for name in ("missing", "link"):
        with pytest.raises(Unreadable):
            read(decoders, good.parent / name)


# --- a dispatcher -------------------------------------------------------------------------------------


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
