"""Deployed jobs as claims need them: what their tasks receive, and what they may access."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from traceplane.auth.capability import JobGrants, ReadGrant, WriteGrant
from traceplane.model.checks import Check
from traceplane.model.dag import InputRole
from traceplane.model.dataset_schema import Schema, SchemaColumn, as_arrow
from traceplane.model.edges import EVERYTHING, Edge, What
from traceplane.model.positions import Range
from traceplane.operators import catalog
from traceplane.postgres import registry
from traceplane.postgres.database import Transaction
from traceplane.postgres.registry import JobRow
from traceplane.secrets.references import secrets_of
from traceplane.secrets.vault import JobNeeds
from traceplane.wire.tasks import (
    ColumnSchema,
    GivenInput,
    InputRef,
    JobPayload,
    OutputRef,
    Resources,
    ViewRef,
)


@dataclass(frozen=True, slots=True)
class JobEntry:
    payload: JobPayload
    grants: JobGrants
    reads_files: bool
    row_generations: tuple[UUID, ...]
    """Per input, the generation whose files are read: an aggregator's ranges are read from what it aggregates."""
    declared: tuple[list[ColumnSchema] | None, ...]
    """Per input, the columns that its dataset declares."""
    edges: tuple[Edge, ...]
    """Per input, what tasks read of it."""
    history: int
    """Positions before their scope that tasks read too."""
    needs_emission: bool
    """Whether tasks get the emission of the event that they are for."""
    as_of: datetime | None
    """The moment whose files its tasks read; None: those of the claim."""
    deletes_inputs: bool
    """Whether the rows of its hot inputs are deleted when a task commits."""
    needs: JobNeeds | None
    """The secrets that its tasks receive; None: none."""

    def reads(self, number: int, scope: Range) -> Range | None:
        """What a task of this scope reads of an input; None: its newest position."""
        edge = self.edges[number]
        if edge.read.what is What.LATEST:
            return None
        first, last = edge.reads(scope)
        return max(first - self.history, EVERYTHING[0]), last

    @property
    def reads_hot(self) -> bool:
        return any(i.hot for i in self.payload.inputs)

    @property
    def appends(self) -> bool:
        return self.payload.update_strategy == "append" and self.payload.activation == "reactive"


def job_entry(row: JobRow) -> JobEntry:
    payload = _payload(row)
    return JobEntry(
        payload,
        _grants(payload),
        row.reads_files,
        tuple(row.row_generations),
        tuple(_declared(columns) for columns in row.input_columns),
        tuple(edge for i, edge in row.edges() if i.role is not InputRole.TRIGGERS),
        history=row.definition.history,
        needs_emission=row.definition.needs_emission,
        as_of=row.definition.as_of,
        deletes_inputs=row.definition.deletes_inputs,
        needs=_needs(row),
    )


def _needs(row: JobRow) -> JobNeeds | None:
    spec = catalog.find(row.operator)
    if spec is not None and not spec.for_dags:
        return None  # whoever may only run queries writes its config, and only DAG files refer to secrets
    names = secrets_of(row.definition.config, row.secrets or {})
    return JobNeeds(row.org, row.dag, row.definition.generated_for or row.name, names) if names else None


def _payload(row: JobRow) -> JobPayload:
    definition = row.definition
    virtual = definition.virtual
    return JobPayload(
        job_id=row.job_id,
        org=row.org,
        dag=row.dag,
        name=row.name,
        runtime=row.runtime,
        operator=row.operator,
        activation=row.activation,
        config=definition.config,
        update_strategy=definition.update_strategy,
        unique_key=list(definition.unique_key),
        timeout_seconds=row.timeout_seconds,
        lease_seconds=row.lease_seconds,
        max_attempts=row.max_attempts,
        network=row.network,
        function=row.function,
        requires=msgspec.convert(row.requires or {}, Resources),
        spark=definition.spark,
        secret_names=row.secrets or {},
        inputs=[msgspec.convert(i, InputRef) for i in row.inputs],
        outputs=[
            msgspec.convert(
                {
                    **o,
                    "columns": _declared(o["columns"]) or [],
                    "checks": _for_spark(definition.checks.get(o["dataset_id"], ())),
                    "cluster_by": list(definition.cluster_by.get(o["dataset_id"], ())),
                },
                OutputRef,
            )
            for o in row.outputs
        ],
        code_bundle=definition.code_bundle,
        environment=definition.environment,
        package=definition.package,
        source_kind=row.source_kind,
        views=[
            ViewRef(view.name, view.sql, view.reads)
            for view in (virtual.views if virtual is not None else definition.views)
        ],
        given=[
            GivenInput(i.name, virtual.given.get(i.name), i.where, list(i.columns))
            for i in virtual.inputs
            if i.role is not InputRole.TRIGGERS
        ]
        if virtual is not None and virtual.views
        else [],
    )


def _grants(payload: JobPayload) -> JobGrants:
    return JobGrants(
        reads=tuple(
            ReadGrant(str(i.dataset_uuid), str(i.dataset_version), i.storage) for i in payload.inputs
        ),
        writes=tuple(
            WriteGrant(o.output_index, str(o.dataset_uuid), str(o.dataset_version), o.storage)
            for o in payload.outputs
        ),
    )


def _declared(columns: Sequence[Mapping[str, Any]] | None) -> list[ColumnSchema] | None:
    schema = as_arrow([SchemaColumn(c["name"], c["type"], c["nullable"]) for c in columns or ()])
    return as_columns(schema) if schema else None


def _for_spark(checks: Sequence[Check]) -> list[Check]:
    if not any(check.expression for check in checks):
        return list(checks)
    from traceplane.sql import row_condition  # a dispatcher starts, and recovers, without the parser of SQL

    return [
        replace(check, expression=row_condition.for_spark(check.expression)) if check.expression else check
        for check in checks
    ]


def as_columns(schema: Schema) -> list[ColumnSchema]:
    return [ColumnSchema(c.name, c.type, c.nullable) for c in schema]


class KnownJobs:
    """Entries of jobs that were claimed here. What is fixed for one revision of a job is read once."""

    def __init__(self) -> None:
        self._entries: dict[tuple[UUID, int], JobEntry] = {}
        self._names: dict[UUID, str] = {}

    async def entries(self, tx: Transaction, revisions: Collection[tuple[UUID, int]]) -> dict[UUID, JobEntry]:
        """By job, for (job, revision)."""
        entries = {key[0]: self._entries[key] for key in revisions if key in self._entries}
        unknown = [job_id for job_id, _ in revisions if job_id not in entries]
        if unknown:
            # If a deploy happened in between, the entry has a later revision than the one requested.
            for row in await registry.job_payloads(tx, unknown):
                job_id = row.job_id
                entries[job_id] = self._entries[job_id, row.revision] = job_entry(row)
                self._names[job_id] = row.name
        return entries

    def name(self, job_id: UUID) -> str:
        """`?` for a job that was never claimed here."""
        return self._names.get(job_id, "?")
