"""Rows as signals for triggers: one line of JSON each."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet

from traceplane.decoding.messages import InvalidContents, SignalLine, SignalsWork

_ROWS_AT_ONCE = 1024
_FIELDS = ("signal_id", "timestamp", "signal_type", "source")
_LONGEST_REASON = 500


class _Row(msgspec.Struct, frozen=True):
    """Other columns are ignored."""

    position: int
    signal_id: str
    ticker: str
    signal_type: str
    signal: str
    confidence: float
    timestamp: float
    source: str
    metadata: str | None = None


def write(file: parquet.ParquetFile, work: SignalsWork, sink: Any) -> int:
    """Returns the number of rows."""
    columns = [name for name in file.schema_arrow.names if name in _Row.__struct_fields__]
    count = 0
    for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns, use_threads=False):
        for row in batch.to_pylist():
            try:
                if work.ranges is None or any(
                    first <= row["position"] <= last for first, last in work.ranges
                ):
                    sink.write(msgspec.json.encode(_signal(msgspec.convert(row, _Row))) + b"\n")
                    count += 1
            except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
                raise InvalidContents(f"{type(error).__name__} {error}"[:_LONGEST_REASON]) from None
    return count


def _signal(row: _Row) -> SignalLine:
    about = {"ticker": row.ticker, "signal": row.signal, "confidence": row.confidence}
    metadata = msgspec.json.decode(row.metadata) if row.metadata else {}
    message = {**{name: getattr(row, name) for name in _FIELDS}, "tickers": [about], "metadata": metadata}
    return SignalLine(row.position, row.signal_id, row.ticker, msgspec.Raw(msgspec.json.encode(message)))


def warm_up(buffer: Any) -> None:
    texts = ("signal_id", "ticker", "signal_type", "signal", "source", "metadata")
    row = {"position": 1, "confidence": 1.0, "timestamp": 1.0, **dict.fromkeys(texts, "{}")}
    parquet.write_table(pa.Table.from_pylist([row]), buffer)
    with parquet.ParquetFile(buffer) as file:
        write(file, SignalsWork([(1, 1)]), pa.BufferOutputStream())
