"""Signals from a folder, for machines without a broker: `<folder>/<topic>/<partition>.jsonl`, one message per line.

Offsets are positions in the file. A partition belongs to the process that locks `<partition>.lock`; when that process
dies, the kernel releases the lock and another member of the group continues.

Folders and files are closed to other users of the machine: signals say what somebody trades, and whoever can open a
file can also lock it.
"""

from __future__ import annotations

import fcntl
import os
import time
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import msgspec

from traceplane.adapters.signal_source import NOTHING, DeadLetter, Offsets, Polled, Position
from traceplane.runtime.locked_folder import own_folder

_LOOK_SECONDS = 0.02
_CLAIM_SECONDS = 0.5
_PIECE = 16 * 1024 * 1024


def publish(folder: Path, topic: str, payloads: Sequence[bytes], *, partition: int = 0) -> None:
    """Appends messages atomically: a reader never takes half a line for a message."""
    root = _closed(folder, topic)
    _append(root / f"{partition}.jsonl", b"".join(payload + b"\n" for payload in payloads))


def _closed(folder: Path, topic: str) -> Path:
    """The folder of a topic. Earlier versions left it open to everybody."""
    for path in (folder, folder / topic):
        own_folder(path).chmod(0o700)  # operators have nothing to do there, so they cannot pass either
    return folder / topic


def _opened(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_CREAT, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def _append(path: Path, data: bytes) -> None:
    descriptor = _opened(path, os.O_WRONLY | os.O_APPEND)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


class FolderSignalSource:
    def __init__(self, folder: Path, topic: str, group: str, begin_at: str, offsets: Offsets) -> None:
        self._root = _closed(folder, topic)
        self._group = group
        self._begin_at = begin_at
        self._offsets = offsets
        self._positions: dict[int, int] = {}
        self._locks: dict[int, int] = {}
        self._claimed_at = -_CLAIM_SECONDS
        self._first_look = True
        self.generation = 0

    def poll(self, least: int, wait: float, most: int) -> Polled:
        deadline = time.monotonic() + wait
        while True:
            if self._claim():
                return NOTHING
            by_partition = {n: self._lines(n, most) for n in sorted(self._positions)}
            count = sum(map(len, by_partition.values()))
            remaining = deadline - time.monotonic()
            if count >= least or remaining <= 0:
                return self._polled({n: lines for n, lines in by_partition.items() if lines}, most)
            time.sleep(min(_LOOK_SECONDS, remaining))

    def _lines(self, partition: int, most: int) -> list[bytes]:
        """The complete lines that follow; the last line may still be incomplete."""
        with self._path(partition).open("rb") as file:
            file.seek(self._positions[partition])
            piece = file.read(_PIECE)
            while piece and b"\n" not in piece and (more := file.read(_PIECE)):
                piece += more
        return piece[: piece.rfind(b"\n") + 1].splitlines(keepends=True)[:most]

    def _polled(self, by_partition: dict[int, list[bytes]], most: int) -> Polled:
        payloads: list[bytes] = []
        positions: list[Position] = []
        places: list[tuple[int, int, list[int]]] = []
        for partition, lines in by_partition.items():
            batch = lines[: most - len(payloads)]
            if not batch:
                continue
            start = self._positions[partition]
            offsets = list(accumulate(map(len, batch), initial=start))
            places.append((len(payloads), partition, offsets))
            payloads += [line[:-1] for line in batch]
            self._positions[partition] = offsets[-1]
            positions.append(Position(partition, start, offsets[-1]))

        def place(n: int) -> tuple[int, int]:
            first, partition, offsets = places[bisect_right(places, n, key=lambda p: p[0]) - 1]
            return partition, offsets[n - first]

        return Polled(payloads, positions, place) if payloads else NOTHING

    def rewind(self) -> None:
        self._positions.update(self._offsets.stored(list(self._positions)))
        self.generation += 1

    def history(self, seconds: float) -> Iterator[tuple[int, bytes]]:
        """Files have no timestamps: returns up to one piece, and the reader uses the signals' own timestamps."""
        for partition, position in self._positions.items():
            with self._path(partition).open("rb") as file:
                file.seek(max(0, position - _PIECE))
                lines = file.read(position - file.tell()).splitlines()
            for line in lines[1:] if position > _PIECE else lines:
                yield partition, line

    def lag(self) -> int:
        return sum(len(self._lines(n, 1_000_000)) for n in self._positions)

    def partitions(self) -> Collection[int]:
        return tuple(self._positions)

    def bury(self, letters: Sequence[DeadLetter]) -> int:
        lines = [
            msgspec.json.encode(
                {
                    "partition": letter.partition,
                    "offset": letter.offset,
                    "code": letter.code,
                    "reason": letter.reason,
                    "payload": letter.payload.decode(errors="replace"),
                }
            )
            for letter in letters
        ]
        _append(self._root / "dead-letter.jsonl", b"".join(line + b"\n" for line in lines))
        return len(lines)

    def close(self) -> None:
        for lock in self._locks.values():
            os.close(lock)
        self._locks, self._positions = {}, {}

    def _claim(self) -> bool:
        """Takes the free partitions of the group; returns whether there were any."""
        if time.monotonic() - self._claimed_at < _CLAIM_SECONDS:
            return False
        self._claimed_at = time.monotonic()
        there = {int(path.stem) for path in self._root.glob("*.jsonl") if path.stem.isdecimal()}
        fresh = []
        for partition in sorted(there - self._locks.keys()):
            lock = _opened(self._root / f"{partition}.{self._group}.lock", os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            self._locks[partition] = lock
            fresh.append(partition)
        offsets = dict(self._offsets.stored(fresh)) if fresh else {}
        if len(offsets) < len(fresh):
            # `latest` means after everything that existed when the group first looked.
            new = self._first_look and not self._offsets.stored(list(there))
            end = new and self._begin_at == "latest"
            offsets = dict(
                self._offsets.begin({n: self._path(n).stat().st_size if end else 0 for n in there})
            )
        self._positions.update({n: offsets[n] for n in fresh})
        self._first_look = False
        self.generation += 1 if fresh else 0
        return bool(fresh)

    def _path(self, partition: int) -> Path:
        return self._root / f"{partition}.jsonl"
