"""Failed checks in reports: the rows that they quote are kept without personal data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from msgspec import structs

from traceplane.dispatcher.leases.judged import Judged
from traceplane.model.hidden_values import PLACEHOLDER
from traceplane.postgres import check_failures
from traceplane.postgres.database import Transaction
from traceplane.wire.tasks import FailedCheck

if TYPE_CHECKING:
    from traceplane.operators.column_marks import Marks

    _Marks = Mapping[tuple[UUID, int], Marks]
    """Of what a job writes, by job and output."""


def of(report: Judged) -> list[FailedCheck]:
    """Those of a report that ends its attempt."""
    if report.completes:
        return [check for output in report.call.outputs for check in output.failed_checks]
    return report.call.error.failed_checks if report.call.error is not None else []


async def masked(tx: Transaction, judged: list[Judged]) -> list[Judged]:
    """The reports with placeholders for personal data, by the marks of this moment: whoever may see a failure, or is
    told of it, need not be somebody who may see the row."""
    quoting = {report.task.job_id for report in judged if report.task is not None and of(report)}
    if not quoting:
        return judged
    # A dispatcher starts, and recovers, without the parser of SQL, which most never need.
    from traceplane.operators.column_marks import NO_MARKS
    from traceplane.postgres import personal_data

    written = await check_failures.generations_written(tx, sorted(quoting))
    origins = await personal_data.origins(tx, list(set(written.values())))
    marks = {
        place: origins[generation].effective if generation in origins else NO_MARKS
        for place, generation in written.items()
    }
    return [_masked(report, marks) if of(report) else report for report in judged]


def _masked(report: Judged, marks: _Marks) -> Judged:
    assert report.task is not None
    job_id, call = report.task.job_id, report.call
    if report.completes:
        outputs = tuple(
            replace(o, failed_checks=_hidden(job_id, o.failed_checks, marks)) for o in call.outputs
        )
        return replace(report, call=replace(call, outputs=outputs))
    assert call.error is not None
    error = structs.replace(call.error, failed_checks=_hidden(job_id, call.error.failed_checks, marks))
    return replace(report, call=replace(call, error=error))


def _hidden(job_id: UUID, failed: Sequence[FailedCheck], marks: _Marks) -> list[FailedCheck]:
    from traceplane.operators.column_marks import ALL_MARKED

    return [
        structs.replace(
            check,
            sample=[
                {
                    column: PLACEHOLDER
                    if value is not None
                    and marks.get((job_id, check.output_index), ALL_MARKED).has(column.lower())
                    else value
                    for column, value in row.items()
                }
                for row in check.sample
            ],
        )
        for check in failed
    ]
