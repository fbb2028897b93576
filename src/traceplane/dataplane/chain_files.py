"""Runs in the Python processes of Spark's executors: stores the chain tables of a chunk in S3.

It imports what executors have: Traceplane and pyarrow, but not Spark Connect.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import pyarrow.parquet as parquet

from traceplane.chain.extract import Chunk
from traceplane.chain.operators import parts
from traceplane.dataplane import bucket_writer
from traceplane.model.task_payload import DeclaredOutput


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A file that an executor has stored."""

    name: str
    size: int
    footer: bytes


@dataclass(frozen=True, slots=True)
class InBucket:
    """One file per output, stored below the prefix of the attempt with the credentials of the output."""

    outputs: tuple[DeclaredOutput, ...]
    targets: dict[str, bucket_writer.Target]
    unique_key: tuple[str, ...]

    def __call__(self, chunk: Chunk) -> dict[str, list[Any]]:
        task = parts.written(chunk, self.outputs, self.unique_key, in_memory=True)
        made: dict[str, list[Any]] = {}
        for name, one in task.written.items():
            made[name] = []
            for file in one.files:
                assert file.content is not None, "it was written to memory"
                bucket_writer.put(self.targets[name], file.name, memoryview(file.content))
                made[name].append(StoredPart(file.name, file.bytes, _footer(file.content)))
        return made


def _footer(content: bytes) -> bytes:
    """As a file of its own."""
    footer = BytesIO()
    parquet.ParquetFile(BytesIO(content)).metadata.write_metadata_file(footer)
    return footer.getvalue()
