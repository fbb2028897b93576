"""The output of a Spark server, read from a pipe and kept in a file of limited size."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque
from pathlib import Path

_LONGEST_LOG = 16 << 20
_LOGS_KEPT = 20


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

    async def follow(self, output: int) -> None:
        reader = asyncio.StreamReader()
        pipe = os.fdopen(output, "rb", 0)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        self._following = asyncio.create_task(self._copy(reader))

    async def _copy(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(1 << 16):
            self._tail.extend(data.decode(errors="replace").splitlines())
            if self._written > _LONGEST_LOG:
                os.ftruncate(self._file, 0)
                self._written = 0
            self._written += os.write(self._file, data)

    def last_problem(self) -> str:
        problems = [line for line in self._tail if "Exception" in line or "Error" in line]
        lines = problems or [line for line in self._tail if line.strip()]
        return lines[-1][:300] if lines else "no output"

    def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
        os.close(self._file)
