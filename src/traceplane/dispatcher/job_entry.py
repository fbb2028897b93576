"""A deployed job as claims need it: what its tasks are told, and what they may reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from traceplane.auth.capability import JobGrants, ReadGrant, WriteGrant
from traceplane.model.dataset_schema import Schema, SchemaColumn, as_arrow
from traceplane.model.runtimes import READS_HISTORY
from traceplane.wire.tasks import ColumnSchema, GivenInput, InputRef, JobPayload, OutputRef, ViewRef

_MOST_HISTORY = 1_000_000


@dataclass(frozen=True, slots=True)
class JobEntry:
    payload: JobPayload
    grants: JobGrants
    reads_files: bool
    row_generations: tuple[UUID, ...]
    """Per input, the generation whose files are read: an aggregator's ranges are read from what it aggregates."""
    declared: tuple[list[ColumnSchema] | None, ...]
    """Per input, the columns that its dataset declares."""

    @property
    def reads_hot(self) -> bool:
        return any(i.hot for i in self.payload.inputs)

    @property
    def history(self) -> int:
        """Positions before the scope that its tasks read too; what is no number, the operator itself complains of."""
        if (usual := READS_HISTORY.get(self.payload.operator)) is None:
            return 0
        wanted = self.payload.config.get("history", usual)
        return min(max(wanted, 0), _MOST_HISTORY) if isinstance(wanted, int) else usual

    @property
    def appends(self) -> bool:
        return self.payload.update_strategy == "append" and self.payload.activation == "reactive"


def job_entry(row: dict[str, Any]) -> JobEntry:
    definition = row["definition"]
    inputs = [msgspec.convert(i, InputRef) for i in row["inputs"]]
    made_of = definition.get("virtual") or {"views": definition.get("views", ())}
    payload = JobPayload(
        job_id=row["job_id"],
        org=row["org"],
        dag=row["dag"],
        name=row["name"],
        runtime=row["runtime"],
        operator=row["operator"],
        activation=row["activation"],
        config=definition["config"],
        update_strategy=definition["update_strategy"],
        unique_key=definition["unique_key"],
        timeout_seconds=row["timeout_seconds"],
        lease_seconds=row["lease_seconds"],
        max_attempts=row["max_attempts"],
        network=row["network"],
        inputs=inputs,
        outputs=[
            msgspec.convert({**o, "columns": _declared(o["columns"]) or []}, OutputRef)
            for o in row["outputs"]
        ],
        code_bundle=definition.get("code_bundle"),
        source_kind=row["source_kind"],
        views=[msgspec.convert(view, ViewRef) for view in made_of.get("views", ())],
        given=[
            GivenInput(i["name"], made_of["given"].get(i["name"]), i["where"], i["columns"])
            for i in made_of.get("inputs", ())
        ],
    )
    grants = JobGrants(
        reads=tuple(ReadGrant(str(i.dataset_uuid), str(i.dataset_version), i.storage) for i in inputs),
        writes=tuple(
            WriteGrant(o.output_index, str(o.dataset_uuid), str(o.dataset_version)) for o in payload.outputs
        ),
    )
    return JobEntry(
        payload,
        grants,
        row["reads_files"],
        tuple(row["row_generations"]),
        tuple(_declared(columns) for columns in row["input_columns"]),
    )


def _declared(columns: Sequence[Mapping[str, Any]] | None) -> list[ColumnSchema] | None:
    found = as_arrow([SchemaColumn(c["name"], c["type"], c["nullable"]) for c in columns or ()])
    return as_columns(found) if found else None


def as_columns(schema: Schema) -> list[ColumnSchema]:
    return [ColumnSchema(c.name, c.type, c.nullable) for c in schema]
