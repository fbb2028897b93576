"""A plan as data, for programs."""

from __future__ import annotations

from collections.abc import Iterable

from traceplane.model.dag import Job
from traceplane.postgres.versions import Weight
from traceplane.registry.consequences import Consequences
from traceplane.registry.plan import FieldChange, Plan
from traceplane.wire.deploys import (
    ConcernedView,
    DatasetChangeView,
    DeclassifiedView,
    FieldChangeView,
    JobChangeView,
    NextTicksView,
    PlanSteps,
    WeightView,
)


def plan_steps(plan: Plan, consequences: Consequences) -> PlanSteps:
    return PlanSteps(
        added=[_job(job) for job in plan.added],
        in_place=[_job(changed.job, changed.changes) for changed in plan.execution_changed],
        rebuilt=[_job(r.job, (*r.changes, *r.execution_changes), r.downstream_of) for r in plan.rebuilt],
        removed=[_job(job) for job in plan.removed],
        unchanged=[job.name for job in plan.unchanged],
        datasets_added=list(plan.datasets_added),
        datasets_changed=[DatasetChangeView(d.dataset_id, _fields(d.changes)) for d in plan.datasets_changed],
        datasets_removed=list(plan.datasets_removed),
        declassified=[DeclassifiedView(d.dataset_id, d.column, d.reason) for d in plan.declassified],
        computed_anew=_weights(consequences.computed_anew),
        dropped=_weights((*consequences.dropped, *consequences.unmapped)),
        readers=[
            ConcernedView(r.dag, r.job, r.dataset_id, r.loses_it, list(r.broken_columns))
            for r in consequences.readers
        ],
        ticks=[
            NextTicksView(n.job, n.time_zone, [tick.isoformat() for tick in n.ticks])
            for n in consequences.ticks
        ],
    )


def _weights(weights: Iterable[Weight]) -> list[WeightView]:
    return [WeightView(w.dataset_id, w.scopes, w.rows, w.bytes, w.events) for w in weights]


def _job(job: Job, changes: Iterable[FieldChange] = (), downstream_of: Iterable[str] = ()) -> JobChangeView:
    return JobChangeView(
        job.name,
        job.runtime,
        job.operator,
        _fields(changes),
        list(downstream_of),
        job.generated_for,
        reads=[used.dataset_id for used in job.inputs],
        writes=[output.dataset_id for output in job.outputs],
    )


def _fields(changes: Iterable[FieldChange]) -> list[FieldChangeView]:
    return [FieldChangeView(change.field, change.old, change.new) for change in changes]
