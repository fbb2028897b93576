"""The worker's end of the control socket of a `launcher`: sends requests, receives reports."""

from __future__ import annotations

import asyncio
import socket
from collections import deque

import msgspec

from traceplane.sandbox import frames
from traceplane.spark.frames import (
    Answered,
    Confined,
    Ended,
    Listening,
    SparkReport,
    SparkRequest,
    TooWeak,
)

_LONGEST_REPORT = 1 << 20
_reports: msgspec.json.Decoder[SparkReport] = msgspec.json.Decoder(SparkReport)


class LauncherConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        self._reader = reader
        self._writer = writer
        self._asked: deque[asyncio.Future[Answered]] = deque()
        self.confined: Confined | None = None
        self.weakness: str | None = None
        self.listening: asyncio.Future[int] = loop.create_future()
        """The port that it listens on."""
        self.ended: asyncio.Future[int | None] = loop.create_future()
        """The server's exit code; None if unknown."""
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(cls, control: socket.socket) -> LauncherConnection:
        return cls(*await asyncio.open_connection(sock=control))

    async def ask(self, request: SparkRequest) -> Answered:
        return await asyncio.shield(self.put(request))

    def put(self, request: SparkRequest) -> asyncio.Future[Answered]:
        """Its answer; requests are processed in order."""
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        if self.ended.done():
            answer.set_result(Answered())
        else:
            self._asked.append(answer)
            self._writer.write(frames.encode(request))
        return answer

    async def _read(self) -> None:
        try:
            while True:
                header = await self._reader.readexactly(4)
                body = await self._reader.readexactly(frames.frame_length(header, _LONGEST_REPORT))
                report = _reports.decode(body)
                match report:
                    case Confined():
                        self.confined = report
                    case TooWeak(reason):
                        self.weakness = reason
                    case Listening(port):
                        self.listening.set_result(port)
                    case Answered():
                        answer = self._asked.popleft() if self._asked else None
                        if answer is not None and not answer.done():
                            answer.set_result(report)
                    case Ended():
                        self._on_ended(report.code)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._on_ended(None)

    def _on_ended(self, code: int | None) -> None:
        if not self.ended.done():
            self.ended.set_result(code)
        for answer in self._asked:
            if not answer.done():
                answer.set_result(Answered())  # when the server ends, everything that it had open is closed
        self._asked.clear()

    def close(self) -> None:
        self._writer.close()
