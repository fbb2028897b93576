"""Converts CSV that Postgres copied out to Parquet, for tasks and queries that read hot tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def as_parquet(source: Path, target: Path, schema: pa.Schema) -> int:
    """Converts CSV without a header; returns the number of rows."""
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as parquet

    hexadecimal = {f.name for f in schema if pa.types.is_binary(f.type)}
    read_as = {f.name: pa.string() if f.name in hexadecimal else f.type for f in schema}
    convert = csv.ConvertOptions(
        column_types=read_as,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["t"],
        false_values=["f"],
    )
    rows = 0
    with parquet.ParquetWriter(target, schema) as writer:
        if source.stat().st_size:
            with csv.open_csv(
                source,
                read_options=csv.ReadOptions(column_names=schema.names, block_size=8 << 20),
                parse_options=csv.ParseOptions(newlines_in_values=True),
                convert_options=convert,
            ) as batches:
                for batch in batches:
                    columns = [
                        _as_bytes(batch[name]) if name in hexadecimal else batch[name]
                        for name in schema.names
                    ]
                    writer.write_batch(pa.record_batch(columns, schema=schema))
                    rows += batch.num_rows
    return rows


def _as_bytes(texts: Any) -> Any:
    import pyarrow as pa

    return pa.array([None if t is None else bytes.fromhex(t[2:]) for t in texts.to_pylist()], pa.binary())
