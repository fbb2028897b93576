"""From which columns of its inputs a job computes those of its outputs: known where it is SQL, or is declared."""

from __future__ import annotations

from traceplane.dispatcher.openlineage.events import ColumnLineage
from traceplane.operators.catalog import find as find_operator
from traceplane.postgres.openlineage import RunJob
from traceplane.query.lineage import column_lineage


def lineage_of(job: RunJob) -> dict[str, ColumnLineage]:
    """By dataset that it writes."""
    return {output.dataset_id: lineage for output in job.outputs if (lineage := _of_output(job, output.name))}


def _of_output(job: RunJob, output: str) -> ColumnLineage:
    ids = {used.name: used.dataset_id for used in job.inputs}
    if job.lineage is not None:
        return _declared(job.lineage, output, ids)
    operator = find_operator(job.operator)
    query = None if operator is None or operator.query_field is None else job.config.get(operator.query_field)
    if isinstance(query, dict):
        query = query.get(output)
    if not isinstance(query, str):
        return {}
    columns = {used.name: [column.name for column in used.columns] for used in job.inputs}
    datasets = {name: name for name in ids}  # names of inputs have no dot; ids of datasets may
    return {
        column: [(ids[name], source) for name, _, source in (read.partition(".") for read in reads)]
        for column, reads in column_lineage(query, columns, datasets).items()
    }


def _declared(declared: dict[str, list[str]], output: str, ids: dict[str, str]) -> ColumnLineage:
    """As `input.column`, by column or `output.column`."""
    lineage: dict[str, list[tuple[str, str]]] = {}
    for key, reads in declared.items():
        named, dot, column = key.rpartition(".")
        if dot and named != output:
            continue
        sources = (read.partition(".") for read in reads)
        lineage[column] = [(ids[name], source) for name, _, source in sources if name in ids]
    return lineage
