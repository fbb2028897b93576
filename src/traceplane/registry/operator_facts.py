"""What an operator's spec says about a job's tasks, stored with the job, so that the dispatcher needs no catalog."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from traceplane.model.dag import Job
from traceplane.model.job_definition import OperatorFacts
from traceplane.model.runtimes import Runtime
from traceplane.operators import catalog
from traceplane.registry.job_checks import operator_of

_MOST_HISTORY = 1_000_000


def of_job(job: Job, runtimes: Mapping[str, Runtime]) -> OperatorFacts:
    """For a job that passed `job_checks`."""
    operator, package = operator_of(job, runtimes), catalog.package(job.operator)
    if operator is None:
        return OperatorFacts()
    config = None
    if operator.history_field is not None or operator.deletion_field is not None:
        config = msgspec.convert(job.config, operator.config)
    return OperatorFacts(
        needs_emission=operator.needs_emission,
        history=min(getattr(config, operator.history_field or "", 0), _MOST_HISTORY),
        deletes_inputs=getattr(config, operator.deletion_field or "", False),
        package=str(package) if package is not None else None,
    )
