"""The rows of files that newer commits hide, as files of Iceberg's: the file and the number of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PATH_FIELD, NUMBER_FIELD = 2147483546, 2147483545
"""Ids that the format reserves."""


def position_deletes(numbers: Mapping[str, Sequence[int]]) -> bytes:
    """A Parquet file with the hidden rows of files, by their locations."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), False, {b"PARQUET:field_id": str(PATH_FIELD).encode()}),
            pa.field("pos", pa.int64(), False, {b"PARQUET:field_id": str(NUMBER_FIELD).encode()}),
        ]
    )
    sink = pa.BufferOutputStream()
    with parquet.ParquetWriter(sink, schema, compression="zstd") as writer:
        for location in sorted(numbers):  # readers may expect the order of paths
            of_file = pa.array(sorted(numbers[location]), pa.int64())
            paths = pa.repeat(pa.scalar(location, pa.string()), len(of_file))
            writer.write_table(pa.table([paths, of_file], schema=schema))
    content: bytes = sink.getvalue().to_pybytes()
    return content
