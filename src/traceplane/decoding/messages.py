"""Messages between a decoder and its owner. Without Arrow, so that an owner starts without it.

A request is a `DecodeRequest` with the file's descriptor. The decoder sends the decoded file and, as the last frame
(`linux.conversation`), a `Decoded` or a `FileRefusal`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from traceplane.model.hot_table import HotTable
from traceplane.model.row_positions import ValueRange


class HotRowsWork(msgspec.Struct, frozen=True, tag="hot_rows"):
    table: HotTable
    values: ValueRange
    """Of the position column in the task's scope."""


class SignalsWork(msgspec.Struct, frozen=True, tag="signals"):
    ranges: list[tuple[int, int]] | None
    """The positions of the requested rows, if not all."""


class KeptColumn(msgspec.Struct, frozen=True):
    name: str
    type: str
    nullable: bool


class KeptRowsWork(msgspec.Struct, frozen=True, tag="kept_rows"):
    columns: list[KeptColumn]
    position: str
    ranges: list[ValueRange]
    """Of the position column."""


Work = HotRowsWork | SignalsWork | KeptRowsWork


class FileLimits(msgspec.Struct, frozen=True):
    """Limits for one file; the memory limit is the decoder's own."""

    most_bytes: int
    """Of the result."""
    cpu_seconds: float = 10.0
    seconds: float = 60.0


class DecodeRequest(msgspec.Struct, frozen=True):
    work: Work
    limits: FileLimits


class Decoded(msgspec.Struct, frozen=True, tag=True):
    rows: int
    cpu_seconds: float
    """What the file took."""


class FileRefusal(msgspec.Struct, frozen=True, tag=True):
    kind: Literal["invalid", "too_large", "out_of_memory", "unreadable"]
    message: str
    column: str | None = None
    next_step: str | None = None
    row: int | None = None
    value: str | None = None
    expected: str | None = None


DecoderAnswer = Decoded | FileRefusal


class SignalLine(msgspec.Struct, frozen=True, array_like=True):
    """One line of decoded signals."""

    position: int
    signal_id: str
    ticker: str
    message: msgspec.Raw


class InvalidContents(Exception):
    """The contents of a file are not as they should be. `row`: its number in the file, beginning with 1."""

    def __init__(
        self,
        message: str,
        *,
        column: str | None = None,
        next_step: str | None = None,
        row: int | None = None,
        value: str | None = None,
        expected: str | None = None,
    ) -> None:
        super().__init__(message)
        self.column, self.next_step = column, next_step
        self.row, self.value, self.expected = row, value, expected


class FileTooLarge(Exception):
    """Reading the file takes more than one file may take."""


class Unreadable(Exception):
    """The file is missing, is not Parquet, or the processes that read it crashed."""
