"""A decoder refuses a file that takes too much, loses no work when it is killed, and reaches nothing but its file."""

from __future__ import annotations

import io
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL, SIGXCPU
from typing import Any
from uuid import UUID

import numpy
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.process.bombs import BOMBS, Bomb, kill, processes_of, signal, write_bomb
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

TABLE = HotTable(UUID(int=0), (HotColumn("position", "bigint"), HotColumn("signal_id", "string")), "position")
WORKS: list[Work] = [
    HotRowsWork(TABLE, (1, 2)),
    SignalsWork(None),
    KeptRowsWork(
        [KeptColumn("position", "int64", True), KeptColumn("signal_id", "string", True)], "position", [(1, 2)]
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
    assert decoders.decode("acme", path, WORKS[0], LIMITS, sink).rows == 1
    return sink.getvalue()


def server_of(decoders: Decoders) -> int:
    """Not every child of this process: tests before this one may have left a cluster or a JVM for later ones."""
    assert decoders._server is not None
    return decoders._server.pid


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
        decoders.decode("acme", tmp_path / "bomb", work, LIMITS, sink)
    assert sink.getvalue() == b"before"
    assert read(decoders, good) == b'1,"signal-1"\n'


def test_a_file_that_takes_too_long_is_refused(decoders: Decoders, tmp_path: Path) -> None:
    rows = 20_000_000
    zeros = pa.array(numpy.zeros(rows, "int64"))
    parquet.write_table(pa.table({"position": zeros}), tmp_path / "long")
    assert (tmp_path / "long").stat().st_size < 100_000
    with pytest.raises(FileTooLarge, match="too long"):
        decoders.decode(
            "acme", tmp_path / "long", SignalsWork([(1, 1)]), FileLimits(1000, cpu_seconds=1.0), io.BytesIO()
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
        decoders.decode("acme", tmp_path / "large", WORKS[0], FileLimits(1 << 30, cpu_seconds=2.0), sink)
    assert int(sink.limit.split()[3]) < 30
    assert sink.getvalue() == b""


def test_files_share_their_limits(decoders: Decoders, good: Path) -> None:
    sink, budget = io.BytesIO(), Budget(1000, cpu_seconds=5.0)
    while budget._cpu_seconds == 5.0:  # a clock may be coarse
        assert budget.decode(decoders, "acme", good, WORKS[0], sink) == 1
        sink.seek(0)
    budget._cpu_seconds = 0.0
    with pytest.raises(FileTooLarge, match="too long"):
        budget.decode(decoders, "acme", good, WORKS[0], sink)


def test_killed_decoders_lose_no_work(decoders: Decoders, good: Path) -> None:
    for ended in ("idle", "server", "both"):
        read(decoders, good)
        server = server_of(decoders)
        forked = processes_of(server)
        assert len(forked) == 1, ended
        kill(*{"idle": forked, "server": [server], "both": [*forked, server]}[ended])
        assert read(decoders, good) == b'1,"signal-1"\n'


def test_a_decoder_reads_files_of_one_organization(decoders: Decoders, good: Path) -> None:
    forked: dict[str, set[int]] = {}
    for org in ("acme", "beta", "acme", "beta"):
        before = set(processes_of(server_of(decoders))) if forked else set[int]()
        decoders.decode(org, good, WORKS[0], LIMITS, io.BytesIO())
        forked.setdefault(org, set()).update(set(processes_of(server_of(decoders))) - before)
    assert [len(processes) for processes in forked.values()] == [1, 1], "each has its own and keeps it"
    for n in range(30):
        decoders.decode(f"org-{n}", good, WORKS[0], LIMITS, io.BytesIO())
    deadline = time.monotonic() + 10
    while len(left := set(processes_of(server_of(decoders)))) > 16 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(left) == 16
    assert left.isdisjoint(forked["acme"] | forked["beta"]), "those that were not used for longest are ended"


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
    assert decoders.decode("acme", tmp_path / "large", WORKS[0], LIMITS, sink).rows == 400_000
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
