"""Finds faults at deploy time that would otherwise fail a job's first task: in its operator and config, its entrypoint
and its query.

The command line checks before it sends anything, with the folders at hand; the gateway checks again what it received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from traceplane.file_sources import specs as file_specs
from traceplane.model.dag import Dag, Job, SourceKind
from traceplane.model.file_places import is_allowed
from traceplane.model.near_names import near
from traceplane.model.runtimes import Runtime
from traceplane.operators import catalog, config
from traceplane.operators.alerting import EVALUATE
from traceplane.operators.grouping import rows_of
from traceplane.operators.spec import JobMisfit, OperatorSpec, Ports
from traceplane.registry import code_identity, job_requirements
from traceplane.registry.code_project import Project
from traceplane.registry.spec import evaluation_query
from traceplane.registry.spec.job_faults import JobFault, placed
from traceplane.sql import job_query

Columns = Sequence[str] | None
"""None: not known."""


def refuse(
    dag: Dag,
    runtimes: Mapping[str, Runtime],
    project: Project,
    text: str,
    file: str,
    *,
    is_elsewhere: Callable[[str], bool],
    no_folder: str | None = None,
    knows_packages: bool = True,
    file_places: Sequence[str] | None = None,
) -> None:
    """Raises SpecInvalid, with every fault at its place in the file. `knows_packages`: the packages installed here are
    the ones that count; otherwise operators that are not built in are left to the gateway. `file_places`: where file
    sources may list files, if it is known."""
    faults = [
        *(
            fault
            for job in dag.jobs
            if knows_packages or job.operator in catalog.BUILT_IN
            for fault in operator_faults(job, dag, runtimes)
        ),
        *job_requirements.faults(dag, runtimes),
        *code_identity.faults(dag, runtimes, project, is_elsewhere=is_elsewhere, no_folder=no_folder),
        *(fault for job in dag.jobs for fault in query_faults(job, dag, runtimes)),
        *(() if file_places is None else _place_faults(dag, file_places)),
    ]
    if (invalid := placed(faults, text, file)) is not None:
        raise invalid


def _place_faults(dag: Dag, allowed: Sequence[str]) -> Iterator[JobFault]:
    for job in dag.jobs:
        if job.operator == file_specs.FILES and not is_allowed(path := str(job.config["path"]), allowed):
            places = f"below {', '.join(allowed)}" if allowed else "nowhere"
            message = f"file sources may list files {places}, not in {path[:200]!r}"
            step = "add it to the setting file_source_allow of gateways, dispatchers and workers"
            yield JobFault(
                "deploy.place_not_allowed", (job.generated_for or job.name, "source", "path"), message, step
            )


def operator_of(job: Job, runtimes: Mapping[str, Runtime]) -> OperatorSpec | None:
    """None for a function, which is its own operator."""
    spec = catalog.find(job.operator)
    return spec if spec is not None and runtimes[job.runtime].family in spec.runtimes else None


def operator_faults(job: Job, dag: Dag, runtimes: Mapping[str, Runtime]) -> Iterator[JobFault]:
    """An operator that does not exist, or that cannot work with the job's config, inputs or outputs."""
    family = runtimes[job.runtime].family
    if family is None or job.generated_for is not None:
        return
    at = (job.name, "operator")
    if (problem := catalog.problem(job.operator)) is not None:
        step = problem.next_step if catalog.listed(job.operator) else _near_operator(job.operator, family)
        yield JobFault(problem.code, at, problem.message, step)
        return
    spec = catalog.find(job.operator)
    assert spec is not None
    if not spec.for_dags:
        message = f"the operator {spec.name} is internal to the platform and cannot be used in DAG files"
        yield JobFault("deploy.unknown_operator", at, message, _near_operator(job.operator, family))
    elif family not in spec.runtimes:
        message = f"the runtime {job.runtime} does not run the operator {spec.name}"
        able = sorted(name for name, runtime in runtimes.items() if runtime.family in spec.runtimes)
        yield JobFault("deploy.unknown_operator", at, message, f"set runtime: {' or '.join(able)}")
    else:
        for misfit in _misfits(job, dag, spec):
            yield JobFault("deploy.config_invalid", (job.name, *misfit.at), misfit.message, misfit.allowed)


def _near_operator(name: str, family: str) -> str | None:
    specs = [spec for listed in catalog.names() if (spec := catalog.find(listed)) is not None]
    return near(name, [spec.name for spec in specs if family in spec.runtimes and spec.for_dags])


def _misfits(job: Job, dag: Dag, spec: OperatorSpec) -> Iterator[JobMisfit]:
    yield from config.misfits(job.config, spec)
    yield from _port_misfits("inputs", [used.name for used in job.inputs_read], spec.inputs)
    yield from _port_misfits("outputs", [output.name for output in job.outputs], spec.outputs)
    if spec.always_on and (job.source is None or job.source.kind is not SourceKind.ALWAYS_ON):
        yield JobMisfit(("source",), "it is a source that always runs", "write source: { kind: always_on }")
    if spec.check is not None:
        yield from spec.check(job, dag)


def _port_misfits(what: str, names: Sequence[str], ports: Ports) -> Iterator[JobMisfit]:
    known = ", ".join(ports.names)
    for name in names:
        if ports.names and name not in ports.names:
            yield JobMisfit(
                (what,),
                f"{name[:100]!r} is not one of its {what}",
                f"each name must be one of: {known}",
            )
    if len(names) < ports.least or (ports.most is not None and len(names) > ports.most):
        exactly = ports.least == ports.most
        count = str(ports.least) if exactly or len(names) < ports.least else str(ports.most)
        limit = "" if exactly else "at least " if len(names) < ports.least else "at most "
        noun = what.removesuffix("s") if count == "1" else what
        message = f"it needs {limit}{count} {noun}, but the job has {len(names)}"
        yield JobMisfit((what,), message, f"each name must be one of: {known}" if known else None)


def query_faults(
    job: Job,
    dag: Dag,
    runtimes: Mapping[str, Runtime],
    columns_elsewhere: Mapping[str, Sequence[str]] = {},
) -> Iterator[JobFault]:
    """Faults in a job's SQL; `columns_elsewhere` are the columns that datasets of other DAGs declare."""
    spec = operator_of(job, runtimes)
    if spec is None or spec.query_field is None:
        return
    field = spec.query_field
    at, query = (job.name, "config", field), job.config.get(field)
    outputs = [output.name for output in job.outputs]
    if query is None:
        yield JobFault("sql.no_query", at, f"the field config.{field} is missing", f"add {field}: select ...")
        return
    if isinstance(query, str) and len(outputs) > 1:
        suggestion = f"write a query for each output: {', '.join(outputs)[:200]}"
        yield JobFault("sql.no_query", at, f"there is one query for {len(outputs)} outputs", suggestion)
        return
    for output in query if isinstance(query, Mapping) else ():
        if output not in outputs:
            message = f"there is a query for {str(output)[:100]!r}, which is not an output of the job"
            yield JobFault("sql.unknown_output", (*at, str(output)), message, near(str(output), outputs))
    inputs = {
        used.name: _columns(used.dataset_id, used.columns, dag, columns_elsewhere) for used in job.inputs_read
    }
    queries = query if isinstance(query, Mapping) else {"": query}
    for output, text in queries.items():
        place: tuple[str, ...] = (*at, str(output)) if output else at
        if not isinstance(text, str) or not text.strip():
            yield JobFault("sql.no_query", place, "expected SQL text", f"write {field}: select ...")
            continue
        faults = job_query.faults(text, inputs)
        if faults and job.operator == EVALUATE:
            # Of what the user wrote, if that is where they are: the query around it is the platform's.
            own = job_query.faults(evaluation_query.rows_query(text), inputs)
            place = (job.name, evaluation_query.written_as(text)) if own else (job.name,)
            faults = own or faults
        for fault in faults:
            yield JobFault(
                fault.code,
                place,
                fault.message,
                near(fault.word, fault.known) or fault.next_step or _NEXT[fault.code],
            )


_NEXT = {
    "sql.malformed": "the dialect is Spark's",
    "sql.several_statements": "keep one",
    "sql.not_a_query": "write a SELECT",
    "sql.unknown_column": "correct the name",
    "sql.unknown_relation": "add it to inputs",
}


def _columns(
    dataset_id: str, read: Sequence[str], dag: Dag, elsewhere: Mapping[str, Sequence[str]]
) -> Columns:
    """Columns of an input's rows: those that it selects, or else those that its dataset declares."""
    rows = rows_of(dataset_id, dag)
    dataset = dag.datasets_by_id.get(rows)
    declared = [column.name for column in dataset.columns] if dataset is not None and not dataset.sql else ()
    return read or declared or elsewhere.get(rows) or None
