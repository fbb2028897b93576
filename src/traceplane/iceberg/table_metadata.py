"""The metadata of a table with one snapshot: the state that was asked for. Other states have other prefixes, so a table
has no history of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from traceplane.iceberg.column_types import IcebergColumns
from traceplane.iceberg.manifests import PARTITIONED, SCHEMA_ID, SEQUENCE, UNPARTITIONED, spec_fields
from traceplane.iceberg.partitioning import Partitioning

_LAST_PARTITION_ID = 999
"""Of a table without partitions."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    snapshot_id: int
    manifest_list: str
    timestamp_ms: int
    files: int
    rows: int
    bytes: int
    delete_files: int
    hidden_rows: int


def table_metadata(
    *,
    table_uuid: UUID,
    location: str,
    columns: IcebergColumns,
    partitioning: Partitioning | None,
    snapshot: Snapshot | None,
    properties: dict[str, str],
) -> dict[str, Any]:
    timestamp_ms = 0 if snapshot is None else snapshot.timestamp_ms
    specs: list[dict[str, Any]] = [{"spec-id": UNPARTITIONED, "fields": []}]
    if partitioning is not None:
        specs.append({"spec-id": PARTITIONED, "fields": spec_fields(partitioning)})
    return {
        "format-version": 2,
        "table-uuid": str(table_uuid),
        "location": location,
        "last-sequence-number": SEQUENCE,
        "last-updated-ms": timestamp_ms,
        "last-column-id": columns.last_id,
        "schemas": [{"type": "struct", "schema-id": SCHEMA_ID, "fields": columns.fields}],
        "current-schema-id": SCHEMA_ID,
        "partition-specs": specs,
        "default-spec-id": specs[-1]["spec-id"],
        "last-partition-id": max(
            (field["field-id"] for field in spec_fields(partitioning)), default=_LAST_PARTITION_ID
        ),
        "properties": {
            "schema.name-mapping.default": msgspec.json.encode(columns.names).decode(),
            **properties,
        },
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "refs": {} if snapshot is None else {"main": {"snapshot-id": snapshot.snapshot_id, "type": "branch"}},
        "snapshots": [] if snapshot is None else [_snapshot(snapshot)],
        "snapshot-log": []
        if snapshot is None
        else [{"snapshot-id": snapshot.snapshot_id, "timestamp-ms": timestamp_ms}],
        "metadata-log": [],
        "current-snapshot-id": -1 if snapshot is None else snapshot.snapshot_id,
    }


def _snapshot(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "snapshot-id": snapshot.snapshot_id,
        "sequence-number": SEQUENCE,
        "timestamp-ms": snapshot.timestamp_ms,
        "manifest-list": snapshot.manifest_list,
        "schema-id": SCHEMA_ID,
        "summary": {
            "operation": "overwrite",
            "total-data-files": str(snapshot.files),
            "total-records": str(snapshot.rows),
            "total-files-size": str(snapshot.bytes),
            "total-delete-files": str(snapshot.delete_files),
            "total-position-deletes": str(snapshot.hidden_rows),
            "total-equality-deletes": "0",
        },
    }
