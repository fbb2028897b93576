"""What decoders and their owners say to each other. Without Arrow: an owner starts without it."""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from traceplane.model.hot_table import HotTable

REQUEST_HEAD = struct.Struct(">I")
"""The size of the request that follows. The file's descriptor comes with it."""
ANSWER_HEAD = struct.Struct(">cI")
"""Kind and size of a frame: D is a piece of what was made of the file, F is Done, E is a Refusal."""
FRAME_BYTES = 256 << 10


class HotRowsWork(msgspec.Struct, frozen=True, tag="hot_rows"):
    table: HotTable
    start: int
    end: int


class SignalsWork(msgspec.Struct, frozen=True, tag="signals"):
    ranges: list[tuple[int, int]] | None
    """Positions whose rows are wanted, when that is not all of them."""


class KeptColumn(msgspec.Struct, frozen=True):
    name: str
    type: str
    nullable: bool


class KeptRowsWork(msgspec.Struct, frozen=True, tag="kept_rows"):
    columns: list[KeptColumn]
    position: str
    ranges: list[tuple[int, int]]


Work = HotRowsWork | SignalsWork | KeptRowsWork


class Limits(msgspec.Struct, frozen=True):
    """Of one file; that on memory is the decoder's own."""

    most_bytes: int
    """Of what is made of it."""
    cpu_seconds: float = 10.0
    seconds: float = 60.0


class Request(msgspec.Struct, frozen=True):
    work: Work
    limits: Limits


class Done(msgspec.Struct, frozen=True):
    rows: int
    cpu_seconds: float
    """That it took."""


class Refusal(msgspec.Struct, frozen=True):
    kind: Literal["misfit", "too_large", "out_of_memory", "unreadable"]
    message: str
    column: str | None = None
    next_step: str | None = None


class Signal(msgspec.Struct, frozen=True, array_like=True):
    """A line of what is made of signals."""

    position: int
    signal_id: str
    ticker: str
    message: msgspec.Raw


class Misfit(Exception):
    """What is in a file is not what it should be."""

    def __init__(self, message: str, *, column: str | None = None, next_step: str | None = None) -> None:
        super().__init__(message)
        self.column, self.next_step = column, next_step


class TooLarge(Exception):
    """It takes more to read a file than one file may take."""


class Unreadable(Exception):
    """It is not there, it is no Parquet file, or the processes that read it ended."""
