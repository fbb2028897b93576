"""The output of a Spark server, read from a pipe and kept in a file of limited size.

Spark logs queries that fail, and functions of users print there, so secrets of the tasks that used the server are
replaced before anything is written.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from traceplane.model.hidden_values import HiddenValues

_LONGEST_LOG = 16 << 20
_LOGS_KEPT = 20
_LONGEST_LINE = 1 << 20
_MOST_SECRETS = 1000
"""Of those that tasks had last. A task's secrets may be logged after its end."""


class ServerLog:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-_LOGS_KEPT]:
            old.unlink(missing_ok=True)
        self.path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.log"
        self._file = os.open(
            self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._written = 0
        self._following: asyncio.Task[None] | None = None
        self._tail: deque[str] = deque(maxlen=200)
        self._secrets: dict[str, None] = {}
        self._hidden: HiddenValues | None = None
        self._unfinished = b""
        """The beginning of a line: a secret may be split between two reads."""

    def hide(self, secrets: Iterable[str]) -> None:
        """From now on, in whatever the server writes."""
        new = [value for value in secrets if value not in self._secrets]
        if new:
            self._secrets |= dict.fromkeys(new)
            for value in list(self._secrets)[:-_MOST_SECRETS]:
                del self._secrets[value]
            self._hidden = HiddenValues(secrets=self._secrets)

    async def follow(self, output: int) -> None:
        reader = asyncio.StreamReader()
        pipe = os.fdopen(output, "rb", 0)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        self._following = asyncio.create_task(self._copy(reader))

    async def _copy(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 16):
            lines, newline, self._unfinished = (self._unfinished + data).rpartition(b"\n")
            if len(self._unfinished) > _LONGEST_LINE:
                lines, newline, self._unfinished = lines + newline + self._unfinished, b"", b""
            self._write(lines + newline)
        self._write_unfinished()

    def _write(self, data: bytes) -> None:
        if self._hidden is not None:
            text = data.decode(errors="surrogateescape")
            data = self._hidden.without(text).encode(errors="surrogateescape")
        self._tail.extend(data.decode(errors="replace").splitlines())
        if self._written > _LONGEST_LOG:
            os.ftruncate(self._file, 0)
            self._written = 0
        self._written += os.write(self._file, data)

    def _write_unfinished(self) -> None:
        data, self._unfinished = self._unfinished, b""
        self._write(data)

    def last_problem(self) -> str:
        self._write_unfinished()
        problems = [line for line in self._tail if "Exception" in line or "Error" in line]
        lines = problems or [line for line in self._tail if line.strip()]
        return lines[-1][:300] if lines else "no output"

    def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
        self._write_unfinished()
        os.close(self._file)
