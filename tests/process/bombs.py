"""Parquet files of some kilobytes that take gigabytes to read, and a look at the processes that read them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGKILL
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.parquet as parquet


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


def processes_of(pid: int) -> list[int]:
    """What a process has started, and what that has."""
    children = [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return [*children, *(below for child in children for below in processes_of(child))]


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
