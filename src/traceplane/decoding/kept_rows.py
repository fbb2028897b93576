"""The rows of a file at given positions, as a Parquet file with a given schema."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from traceplane.columnar.arrow_types import schema_of
from traceplane.columnar.row_filters import meets
from traceplane.decoding.messages import InvalidContents, KeptColumn, KeptRowsWork
from traceplane.model.comparisons import of_ranges

_ROWS_AT_ONCE = 16_384


def write(file: parquet.ParquetFile, work: KeptRowsWork, sink: Any) -> int:
    """Returns the number of rows."""
    schema = schema_of(work.columns)
    assert schema is not None, "every type of a hot table has an Arrow name"
    names = list(dict.fromkeys((*schema.names, work.position)))
    if missing := [name for name in names if name not in file.schema_arrow.names]:
        raise InvalidContents(f"it has no column {missing[0]}", column=missing[0])
    inside = meets(work.position, file.schema_arrow.field(work.position).type, of_ranges(work.ranges))
    count = 0
    with parquet.ParquetWriter(pa.PythonFile(sink, mode="w"), schema) as writer:
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=names, use_threads=False):
            rows = batch.filter(inside).select(schema.names)
            if rows.num_rows:
                writer.write_batch(rows.cast(schema))
                count += rows.num_rows
    return count


def warm_up(buffer: Any) -> None:
    parquet.write_table(pa.table({"at": pa.array([1], pa.int64()), "text": ["x"]}), buffer)
    work = KeptRowsWork([KeptColumn("at", "int64", True), KeptColumn("text", "string", True)], "at", [(1, 2)])
    with parquet.ParquetFile(buffer) as file:
        write(file, work, _Nowhere())


class _Nowhere:
    closed = False

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
