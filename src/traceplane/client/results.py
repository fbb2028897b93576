"""The result of a query as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from traceplane.errors import InvalidInput

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def as_pandas(table: pa.Table) -> pandas.DataFrame:
    return table.to_pandas()


def as_polars(table: pa.Table) -> polars.DataFrame:
    try:
        import polars
    except ModuleNotFoundError:
        raise InvalidInput(
            "client.not_installed",
            "polars is not installed here",
            value="polars",
            next_step="pip install polars, or take the pyarrow.Table of `query`",
        ) from None
    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    return frame


def as_spark(table: pa.Table, session: SparkSession) -> DataFrame:
    return session.createDataFrame(table)


class Pieces:
    """A file object over the pieces, for pyarrow to read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest, self.closed = pieces, b"", False

    def __enter__(self) -> Pieces:
        return self

    def __exit__(self, *_: Any) -> None:
        self._pieces.close()  # type: ignore[attr-defined]
        self.closed = True

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        pieces = [self._rest]
        have = len(self._rest)
        while size < 0 or have < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            pieces.append(piece)
            have += len(piece)
        data = b"".join(pieces)
        if size < 0:
            self._rest = b""
            return data
        self._rest = data[size:]
        return data[:size]
