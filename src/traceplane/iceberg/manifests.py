"""Manifests: which files a table has, with what is known of each, and the list of them that is a snapshot."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from traceplane.iceberg.avro import container
from traceplane.iceberg.bounds import written_bounds
from traceplane.iceberg.column_types import IcebergColumns
from traceplane.iceberg.partitioning import Partitioning
from traceplane.iceberg.position_deletes import PATH_FIELD
from traceplane.model.committed_file import StoredBounds

UNPARTITIONED, PARTITIONED = 0, 1
"""The ids of partition specs."""
SCHEMA_ID = 0
SEQUENCE = 1
"""Of all files: deletes apply to files of the same number, and each names its files."""

DATA, DELETES = 0, 1
"""What a manifest lists."""
_EXISTING = 0


@dataclass(frozen=True, slots=True)
class DataFile:
    location: str
    rows: int
    bytes: int
    statistics: Mapping[str, StoredBounds]
    commit_id: int
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class DeleteFile:
    location: str
    rows: int
    bytes: int
    first: str
    last: str
    """Of the files whose rows it deletes, in order."""
    commit_id: int
    """The newest of theirs."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a list says about a manifest; the file itself is at its location."""

    location: str
    bytes: int
    spec_id: int
    content: int
    files: int
    rows: int
    commit_id: int
    """The newest of its files."""
    partitions: tuple[int, int] | None = None
    """The first and the last."""


def _field(name: str, type_: Any, field_id: int, *, optional: bool = False) -> dict[str, Any]:
    if optional:
        return {"name": name, "type": ["null", type_], "default": None, "field-id": field_id}
    return {"name": name, "type": type_, "field-id": field_id}


def _map(key_id: int, value_id: int, value: str) -> dict[str, Any]:
    item = {
        "type": "record",
        "name": f"k{key_id}_v{value_id}",
        "fields": [_field("key", "int", key_id), _field("value", value, value_id)],
    }
    return {"type": "array", "items": item, "logicalType": "map"}


def _entry_schema(partition: Sequence[dict[str, Any]]) -> dict[str, Any]:
    file = {
        "type": "record",
        "name": "r2",
        "fields": [
            _field("content", "int", 134),
            _field("file_path", "string", 100),
            _field("file_format", "string", 101),
            _field("partition", {"type": "record", "name": "r102", "fields": list(partition)}, 102),
            _field("record_count", "long", 103),
            _field("file_size_in_bytes", "long", 104),
            _field("value_counts", _map(119, 120, "long"), 109, optional=True),
            _field("null_value_counts", _map(121, 122, "long"), 110, optional=True),
            _field("lower_bounds", _map(126, 127, "bytes"), 125, optional=True),
            _field("upper_bounds", _map(129, 130, "bytes"), 128, optional=True),
        ],
    }
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field("status", "int", 0),
            _field("snapshot_id", "long", 1, optional=True),
            _field("sequence_number", "long", 3, optional=True),
            _field("file_sequence_number", "long", 4, optional=True),
            _field("data_file", file, 2),
        ],
    }


_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _field("contains_null", "boolean", 509),
        _field("contains_nan", "boolean", 518, optional=True),
        _field("lower_bound", "bytes", 510, optional=True),
        _field("upper_bound", "bytes", 511, optional=True),
    ],
}
_LIST_SCHEMA = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field("manifest_path", "string", 500),
        _field("manifest_length", "long", 501),
        _field("partition_spec_id", "int", 502),
        _field("content", "int", 517),
        _field("sequence_number", "long", 515),
        _field("min_sequence_number", "long", 516),
        _field("added_snapshot_id", "long", 503),
        _field("added_files_count", "int", 504),
        _field("existing_files_count", "int", 505),
        _field("deleted_files_count", "int", 506),
        _field("added_rows_count", "long", 512),
        _field("existing_rows_count", "long", 513),
        _field("deleted_rows_count", "long", 514),
        _field("partitions", {"type": "array", "items": _SUMMARY, "element-id": 508}, 507, optional=True),
    ],
}


def spec_fields(partitioning: Partitioning | None) -> list[dict[str, Any]]:
    return [] if partitioning is None else [partitioning.field]


def data_manifest(
    files: Sequence[DataFile],
    columns: IcebergColumns,
    arrow_types: Mapping[str, str],
    partitioning: Partitioning | None,
) -> bytes:
    """`partitioning`: of files that are all in a partition; None: in none."""
    plain = [(name, arrow_types[name], *known) for name, known in columns.plain.items()]
    partition = [] if partitioning is None else [partitioning.avro_field]
    rows = (
        _entry(
            file.commit_id,
            (
                *(DATA, file.location, "PARQUET", () if partitioning is None else (file.partition,)),
                *(file.rows, file.bytes),
                *_metrics(file, plain),
            ),
        )
        for file in files
    )
    return container(_entry_schema(partition), _head(columns, partitioning, b"data"), rows)


def delete_manifest(files: Iterable[DeleteFile], columns: IcebergColumns) -> bytes:
    rows = (
        _entry(
            file.commit_id,
            (
                *(DELETES, file.location, "PARQUET", (), file.rows, file.bytes, None, None),
                [(PATH_FIELD, file.first.encode())],
                [(PATH_FIELD, file.last.encode())],
            ),
        )
        for file in files
    )
    return container(_entry_schema([]), _head(columns, None, b"deletes"), rows)


def manifest_list(manifests: Iterable[Manifest], snapshot_id: int) -> bytes:
    metadata = {
        "snapshot-id": str(snapshot_id).encode(),
        "parent-snapshot-id": b"null",
        "sequence-number": str(SEQUENCE).encode(),
        "format-version": b"2",
    }
    return container(_LIST_SCHEMA, metadata, map(_listed, manifests))


def _entry(commit_id: int, file: tuple[Any, ...]) -> tuple[Any, ...]:
    return _EXISTING, commit_id, SEQUENCE, SEQUENCE, file


def _head(columns: IcebergColumns, partitioning: Partitioning | None, content: bytes) -> dict[str, bytes]:
    schema = {"type": "struct", "schema-id": SCHEMA_ID, "fields": columns.fields}
    return {
        "schema": msgspec.json.encode(schema),
        "schema-id": str(SCHEMA_ID).encode(),
        "partition-spec": msgspec.json.encode(spec_fields(partitioning)),
        "partition-spec-id": str(UNPARTITIONED if partitioning is None else PARTITIONED).encode(),
        "format-version": b"2",
        "content": content,
    }


def _metrics(file: DataFile, plain: Sequence[tuple[str, str, int, str]]) -> tuple[Any, ...]:
    counts, nulls, lower, upper = [], [], [], []
    for name, arrow_type, field_id, type_ in plain:
        statistics = file.statistics.get(name)
        if statistics is None:
            continue
        if (null_count := statistics.get("null_count")) is not None:
            counts.append((field_id, file.rows))
            nulls.append((field_id, null_count))
        low, high = written_bounds(statistics, arrow_type, type_, file.rows)
        if low is not None:
            lower.append((field_id, low))
        if high is not None:
            upper.append((field_id, high))
    return counts, nulls, lower, upper


def _listed(manifest: Manifest) -> tuple[Any, ...]:
    summary = []
    if manifest.partitions is not None:
        first, last = (struct.pack("<i", value) for value in manifest.partitions)
        summary = [(False, False, first, last)]
    return (
        *(manifest.location, manifest.bytes, manifest.spec_id, manifest.content, SEQUENCE, SEQUENCE),
        *(manifest.commit_id, 0, manifest.files, 0, 0, manifest.rows, 0, summary),
    )
