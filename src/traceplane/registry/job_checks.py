"""What would only have failed in a job's first task, found when it is deployed: its entrypoint, its query.

The command line asks before anything is sent, with the folders at hand; the gateway asks again of what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from traceplane.model.dag import Dag, Job
from traceplane.model.runtimes import SPARK, Runtime
from traceplane.registry import code_identity, compaction
from traceplane.registry.code_identity import Project
from traceplane.registry.spec import Fault, near, placed
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
) -> None:
    """Raises SpecInvalid, with every fault at its place in the file."""
    found = [
        *code_identity.faults(dag, runtimes, project, is_elsewhere=is_elsewhere, no_folder=no_folder),
        *(fault for job in dag.jobs for fault in query_faults(job, dag, runtimes)),
    ]
    if (invalid := placed(found, text, file)) is not None:
        raise invalid


def query_faults(
    job: Job,
    dag: Dag,
    runtimes: Mapping[str, Runtime],
    columns_elsewhere: Mapping[str, Sequence[str]] = {},
) -> Iterator[Fault]:
    """Of a `sql` job; `columns_elsewhere` are those that datasets of other DAGs declare."""
    if job.operator != "sql" or SPARK not in runtimes[job.runtime].capabilities:
        return
    at, query = (job.name, "config", "query"), job.config.get("query")
    outputs = [output.name for output in job.outputs]
    if query is None:
        yield Fault("sql.no_query", at, "config.query is missing", "add query: select ...")
        return
    if isinstance(query, str) and len(outputs) > 1:
        suggestion = f"write a query for each output: {', '.join(outputs)[:200]}"
        yield Fault("sql.no_query", at, f"there is one query for {len(outputs)} outputs", suggestion)
        return
    for output in query if isinstance(query, Mapping) else ():
        if output not in outputs:
            message = f"there is a query for {str(output)[:100]!r}, which is no output of the job"
            yield Fault("sql.unknown_output", (*at, str(output)), message, near(str(output), outputs))
    inputs = {
        used.name: _columns(used.dataset_id, used.columns, dag, columns_elsewhere) for used in job.inputs
    }
    queries = query if isinstance(query, Mapping) else {"": query}
    for output, text in queries.items():
        place = (*at, str(output)) if output else at
        if not isinstance(text, str) or not text.strip():
            yield Fault("sql.no_query", place, "expected SQL text", "write query: select ...")
            continue
        for fault in job_query.faults(text, inputs):
            yield Fault(fault.code, place, fault.message, near(fault.word, fault.known) or _NEXT[fault.code])


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
    """Of the rows that an input holds: those that are read, or else those that their dataset declares."""
    rows = compaction.rows_of(dataset_id, dag)
    declared = {d.dataset_id: [c.name for c in d.columns] for d in dag.datasets if not d.sql}
    return read or declared.get(rows) or elsewhere.get(rows) or None
