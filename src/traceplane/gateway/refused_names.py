"""What a call answers about a name that it cannot take, with the name that was probably meant."""

from __future__ import annotations

from traceplane.auth.rights import Access
from traceplane.errors import InvalidInput, NotFound
from traceplane.model.near_names import nearest
from traceplane.postgres import registry
from traceplane.postgres.database import Transaction
from traceplane.registry import virtual_inputs
from traceplane.sql import virtual
from traceplane.sql.gate import Relation

_NAMES_TOLD = 10


async def unknown_dataset(tx: Transaction, org: str, dataset_id: str, access: Access) -> NotFound:
    names = access.readable(await registry.dataset_names(tx, org, like=dataset_id))
    return NotFound(
        "dataset.unknown",
        "there is no such dataset",
        value=dataset_id,
        next_step=nearest(dataset_id, names)
        or "see `traceplane datasets`; a new dataset is there once its DAG is deployed",
    )


async def virtual_dataset(
    tx: Transaction, org: str, dataset_id: str, instead: str, access: Access
) -> InvalidInput | None:
    """None if the dataset is not virtual. `instead`: what to do with the datasets that it reads."""
    texts, _ = await virtual_inputs.load(tx, org, [dataset_id], {})
    if dataset_id not in texts:
        return None
    expanded = virtual.expand([Relation("tp_d0", dataset_id)], lambda r: texts.get(r.dataset_id))
    below = access.readable(sorted({relation.dataset_id for relation in expanded.stored}))
    more = f" and {len(below) - _NAMES_TOLD} more" if len(below) > _NAMES_TOLD else ""
    return InvalidInput(
        "dataset.virtual",
        "the dataset is virtual: it has no scopes of its own, and its rows are computed when it is read",
        value=dataset_id,
        next_step=f"{instead} {', '.join(below[:_NAMES_TOLD]) or 'datasets that you may not read'}{more}",
    )


async def unknown_dag_or_job(
    tx: Transaction, org: str, dag: str | None, job: str | None, access: Access
) -> NotFound | None:
    """None if there is such a DAG, and such a job in it or, without a DAG, in any. Those that are no longer deployed
    count: they may have tasks."""
    found = await registry.job_names(tx, org)
    jobs = {d: {name for name in names if access.sees(d, name)} for d, names in found.items()}
    if dag is not None and dag not in jobs:
        step = nearest(dag, jobs) or "see `traceplane dags`"
        return NotFound("dag.unknown", "there is no such DAG", value=dag, next_step=step)
    names = jobs[dag] if dag is not None else {name for of_dag in jobs.values() for name in of_dag}
    if job is not None and job not in names:
        where = f"DAG {dag} has no such job" if dag is not None else "no DAG has such a job"
        step = nearest(job, sorted(names)) or "see `traceplane dags`"
        return NotFound("job.unknown", where, value=job, next_step=step)
    return None
