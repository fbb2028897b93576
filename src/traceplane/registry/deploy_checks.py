"""Why a deploy is refused, and what to do about it. `spec` has already checked the file by itself."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from traceplane.errors import Conflict, Forbidden, InvalidInput, NotFound, UserError
from traceplane.model import column_types, extents
from traceplane.model.dag import Dag, Input, Job, SourceKind, Storage, UpdateStrategy
from traceplane.model.edges import same_periods
from traceplane.model.near_names import nearest
from traceplane.model.partitions import Partitions
from traceplane.model.runtimes import SPARK, Driver, Network, Runtime
from traceplane.operators import catalog
from traceplane.operators.alerting import EVALUATE, ROUTE
from traceplane.operators.grouping import rows_of
from traceplane.postgres import channels, personal_data, registry, versions, webhooks
from traceplane.postgres.database import Database, Transaction
from traceplane.postgres.personal_data import DeclaredColumn
from traceplane.postgres.registry import StoredDataset
from traceplane.postgres.versions import Version
from traceplane.registry import job_checks, operator_facts
from traceplane.registry.plan import Plan, changed_fields
from traceplane.registry.spec import alerts as spec_alerts
from traceplane.registry.spec import evaluation_query
from traceplane.registry.spec import webhooks as spec_webhooks
from traceplane.registry.spec.job_faults import JobFault, RefusedJob
from traceplane.secrets.references import secrets_of
from traceplane.secrets.vault import Vault, is_allowed


async def refusal(tx: Transaction, org: str, dag: Dag, runtimes: Mapping[str, Runtime]) -> UserError | None:
    """The first reason why the plan cannot be applied."""
    return (
        job_refusal(org, dag, runtimes)
        or _hot_data_refusal(dag, runtimes)
        or await _dataset_refusal(tx, org, dag, runtimes)
        or await _path_refusal(tx, org, dag)
        or await _channel_refusal(tx, org, dag)
    )


def job_refusal(org: str, dag: Dag, runtimes: Mapping[str, Runtime]) -> UserError | None:
    for job in dag.jobs:
        runtime = runtimes[job.runtime]
        refusal = (
            next((_refusal(job, fault) for fault in job_checks.operator_faults(job, dag, runtimes)), None)
            or _network_refusal(job, runtime)
            or _org_refusal(org, job, runtime)
            or _function_refusal(job, runtime)
            or _requires_refusal(job, runtime)
            or _spark_refusal(job, runtimes)
            or _capability_refusal(job, runtimes)
        )
        if refusal is not None:
            return refusal
    return None


def _capability_refusal(job: Job, runtimes: Mapping[str, Runtime]) -> UserError | None:
    needed = "source" if job.source and job.source.kind is SourceKind.ALWAYS_ON else "reactive"
    if needed in runtimes[job.runtime].capabilities:
        return None
    able = sorted(name for name, runtime in runtimes.items() if needed in runtime.capabilities)
    return InvalidInput(
        "deploy.runtime_lacks_capability",
        f"job {job.name}: its runtime cannot run {needed} jobs",
        value=job.runtime,
        next_step=f"use one of {', '.join(able)}, or give the runtime the capability {needed!r}",
    )


def _org_refusal(org: str, job: Job, runtime: Runtime) -> UserError | None:
    if not runtime.orgs or org in runtime.orgs:
        return None
    return Forbidden(
        "deploy.runtime_of_others",
        f"job {job.name}: its runtime is for other organizations",
        value=job.runtime,
        next_step=f"use another runtime, or ask whoever runs the platform to add {org} to its orgs",
    )


def _function_refusal(job: Job, runtime: Runtime) -> UserError | None:
    named = job.execution.function
    if runtime.driver is not Driver.INVOKE:
        if named is None:
            return None
        why, next_step = (
            "its runtime calls no functions",
            "use a runtime with driver invoke, or remove function",
        )
    elif runtime.function_of(named) is not None:
        return None
    elif named is None:
        why, next_step = "its runtime names no function", "add function: ..."
    else:
        why = "its runtime does not let jobs call this function"
        next_step = f"name one of {', '.join(runtime.functions)}" if runtime.functions else "remove function"
        next_step += f", or add it to functions of [runtimes.{runtime.name}] in the settings"
    return InvalidInput(
        "deploy.function_not_allowed",
        f"job {job.name}: {why}",
        value=named or job.runtime,
        next_step=next_step,
    )


def _requires_refusal(job: Job, runtime: Runtime) -> UserError | None:
    if not job.execution.requires or runtime.driver is Driver.QUEUE:
        return None
    return InvalidInput(
        "deploy.requires_no_worker",
        f"job {job.name}: its runtime has no workers that could have what it requires",
        value=job.runtime,
        next_step="remove requires, or use a runtime with workers",
    )


def _spark_refusal(job: Job, runtimes: Mapping[str, Runtime]) -> UserError | None:
    if not job.execution.spark or SPARK in runtimes[job.runtime].capabilities:
        return None
    able = sorted(name for name, runtime in runtimes.items() if SPARK in runtime.capabilities)
    return InvalidInput(
        "deploy.no_spark",
        f"job {job.name}: it says what it needs of Spark, and its runtime has none",
        value=job.runtime,
        next_step=f"remove spark, or use one of {', '.join(able)}",
    )


def _network_refusal(job: Job, runtime: Runtime) -> UserError | None:
    operator = catalog.find(job.operator)
    of_operator = operator is not None and operator.network and runtime.driver is Driver.QUEUE
    if runtime.network is Network.ALWAYS or not (job.execution.network or of_operator):
        return None
    if runtime.network is Network.NEVER:
        next_step = 'use another runtime, or set its network to "job"'
    elif SPARK in runtime.capabilities and job.execution.network:
        next_step = "fetch in a job of the runtime python and read its dataset here"
    else:
        return None
    return InvalidInput(
        "deploy.no_network",
        f"job {job.name}: operators of its runtime have no network",
        value=job.runtime,
        next_step=next_step,
    )


def _hot_data_refusal(dag: Dag, runtimes: Mapping[str, Runtime]) -> UserError | None:
    hot = {d.dataset_id for d in dag.datasets if d.storage is Storage.POSTGRES}
    for job in dag.jobs:
        if job.update_strategy is UpdateStrategy.APPEND and (refusal := _unique_key_refusal(job, dag)):
            return refusal
        reads = {rows_of(used.dataset_id, dag) for used in job.inputs}
        if operator_facts.of_job(job, runtimes).history and hot & reads:
            return InvalidInput(
                "deploy.hot_input_unsupported",
                f"job {job.name}: {job.operator} reads rows before its scope, which hot tables do not support",
                value=", ".join(sorted(hot & reads)),
                next_step="keep the dataset as Parquet, or read a compacted one",
            )
        for used in job.inputs:
            if used.read.time_column is not None and rows_of(used.dataset_id, dag) in hot:
                return _no_times(job.generated_for or job.name, used.dataset_id)
    return None


def _unique_key_refusal(job: Job, dag: Dag) -> UserError | None:
    """A hot table drops the duplicates of an `append` job by an index, which needs the columns."""
    for dataset in sorted(
        (dag.datasets_by_id[o.dataset_id] for o in job.outputs), key=lambda d: d.dataset_id
    ):
        if dataset.storage is Storage.POSTGRES:
            missing = sorted(set(job.unique_key) - {column.name for column in dataset.columns})
            if missing:
                return InvalidInput(
                    "deploy.config_invalid",
                    f"job {job.name}: columns of its unique_key are not in {dataset.dataset_id}",
                    value=", ".join(missing),
                    next_step="declare them under datasets, or correct unique_key",
                )
    return None


async def _path_refusal(tx: Transaction, org: str, dag: Dag) -> UserError | None:
    """A path belongs to one source of the organization: a delivery must not have to choose."""
    paths = {j.config["path"]: j for j in dag.jobs if j.operator == spec_webhooks.RECEIVER}
    for taken in await webhooks.paths_elsewhere(tx, org, dag.name, sorted(paths)):
        job = paths[taken.path]
        return Conflict(
            "deploy.webhook_path_taken",
            f"job {job.generated_for or job.name}: DAG {taken.dag}, job {taken.job} has this path",
            value=taken.path,
            next_step="choose another path",
        )
    return None


async def _channel_refusal(tx: Transaction, org: str, dag: Dag) -> UserError | None:
    """An alert whose channel is misspelled would reach nobody."""
    wanted = [
        (j.config["alert"], name) for j in dag.jobs if j.operator == ROUTE for name in j.config["channels"]
    ]
    existing = await channels.hold(tx, org, sorted({name for _, name in wanted})) if wanted else set()
    for alert, name in wanted:
        if name not in existing:
            meant = nearest(name, await channels.names_in(tx, org))
            set_it = f"set it with `traceplane channel set {name} FILE`"
            return InvalidInput(
                "deploy.unknown_channel",
                f"alert {alert}: there is no such channel",
                value=name,
                next_step=f"{meant} Otherwise {set_it}" if meant else set_it,
            )
    return None


async def personal_data_refusal(
    tx: Transaction, dag: Dag, generations: Mapping[str, UUID]
) -> UserError | None:
    """Personal data does not leave the platform unless somebody has said why it may. Looked up once the jobs are
    written; `generations` are those that they write."""
    declared = {
        d.dataset_id: [DeclaredColumn(c.name, c.pii, c.declassified) for c in d.columns] for d in dag.datasets
    }
    routes = {job.inputs[0].dataset_id: job.config for job in dag.jobs if job.operator == ROUTE}
    for job in dag.jobs:
        if job.operator != EVALUATE:
            continue
        found = job.outputs[0].dataset_id
        config = routes[found]
        columns = evaluation_query.sent_columns(job.config["query"], (*config["subject"], *config["fields"]))
        query = evaluation_query.columns_query(job.config["query"], columns)
        marks = await personal_data.marks_of_rows(tx, generations[found], query, declared)
        for column in columns:
            if marks.has(column.lower()) and column not in config["declassified"]:
                return InvalidInput(
                    "deploy.alert_personal_data",
                    f"alert {config['alert']}: the column is personal data, or computed from some, and would be sent",
                    value=column,
                    next_step=f"leave it out, or say why it may be sent: declassified: {{ {column}: … }} in the alert",
                )
    return None


def refers_to_secrets(dag: Dag) -> bool:
    return any(secrets_of(job.config, job.execution.secrets) for job in dag.jobs)


async def secret_refusal(database: Database, vault: Vault, org: str, dag: Dag) -> UserError | None:
    """Found now rather than by the first task: a secret that is missing, or that the job may not use. Apart from the
    other checks: those are in the transaction that deploys, which must not wait for another service."""
    wanted = [
        (job, name) for job in dag.jobs for name in sorted(secrets_of(job.config, job.execution.secrets))
    ]
    names = {name for _, name in wanted}
    existing = await vault.existing(database, org, names)
    async with database.transaction() as tx:
        rights = await vault.rights(tx, org, names)
    for job, name in wanted:
        own = job.generated_for or job.name
        if name.namespace == "platform" and not _runs_platform_code(job):
            return Forbidden(
                "deploy.secret_not_allowed",
                f"job {own}: secrets of the platform are for its own operators, not for code of users",
                value=str(name),
                next_step=f"set a secret for users, such as {name.name}, and refer to that",
            )
        if name not in existing:
            similar = nearest(str(name), [str(secret.name) for secret in await vault.listed(database, org)])
            set_it = f"set it with `traceplane secret set {name}`"
            return InvalidInput(
                "deploy.secret_unknown",
                f"job {own}: there is no such secret",
                value=str(name),
                next_step=f"{similar} Otherwise {set_it}" if similar else set_it,
            )
        if not is_allowed(rights[name], dag.name, own):
            return Forbidden(
                "deploy.secret_not_allowed",
                f"job {own}: it is not among the jobs that may use the secret",
                value=str(name),
                next_step=f"an admin can allow it: `traceplane secret allow {name} --job {dag.name}/{own}`",
            )
    return None


def _runs_platform_code(job: Job) -> bool:
    spec = catalog.find(job.operator) if job.operator in catalog.BUILT_IN else None
    return spec is not None and spec.code_field is None and spec.query_field is None


def refused_rebuild(steps: Plan) -> UserError | None:
    if not steps.rebuilt:
        return None
    changed = next((r for r in steps.rebuilt if r.changes), steps.rebuilt[0])
    return Conflict(
        "deploy.needs_rematerialize",
        f"job {changed.job.name} differs in more than its execution_strategy and batch, so its data must be recomputed",
        value=", ".join(changed_fields(changed.changes)[:5]) or "upstream",
        next_step="deploy without --no-rematerialize, or deploy the other change separately first",
    )


def refused_while_building(dag: str, building: Version) -> UserError:
    return Conflict(
        "deploy.building",
        f"version {building.number} of {dag} is being built",
        value=building.number,
        next_step=f"wait for it (`traceplane versions {dag}`), or give it up (`traceplane abort {dag}`)",
    )


async def _dataset_refusal(
    tx: Transaction, org: str, dag: Dag, runtimes: Mapping[str, Runtime]
) -> UserError | None:
    rows = await registry.datasets_by_id(
        tx, org, [d.dataset_id for d in dag.datasets] + list(dag.external_datasets)
    )
    for dataset in dag.datasets:
        owner = rows.get(dataset.dataset_id)
        if owner is not None and owner.dag != dag.name and not owner.free:
            return Conflict(
                "deploy.dataset_owned",
                f"DAG {owner.dag} produces this dataset; a dataset belongs to one DAG",
                value=dataset.dataset_id,
                next_step="choose another dataset id, or read it with from: {dataset: …}",
            )
    for dataset_id in dag.external_datasets:
        if dataset_id not in rows or rows[dataset_id].current_generation_id is None:
            names = [d.dataset_id for d in dag.datasets]
            names += await registry.dataset_names(tx, org, like=dataset_id)
            meant = nearest(dataset_id, names)
            return NotFound(
                "deploy.unknown_dataset",
                "this input is a dataset that no deployed DAG produces",
                value=dataset_id,
                next_step=f"{meant} If not, deploy its producer first"
                if meant
                else "deploy its producer first",
            )
    if refusal := await _repartition_refusal(tx, org, dag, rows):
        return refusal
    for job in dag.jobs:
        for used in job.inputs:
            if used.dataset_id in dag.external_datasets and (
                refusal := _column_refusal(job, used, rows[used.dataset_id], dag)
            ):
                return refusal
    return _query_refusal(dag, runtimes, rows)


def _column_refusal(job: Job, used: Input, stored: StoredDataset, dag: Dag) -> UserError | None:
    """Columns that an input names of a dataset of another DAG."""
    name, time_column = job.generated_for or job.name, used.read.time_column
    unknown = sorted({*used.columns, *([time_column] if time_column else [])} - set(stored.columns))
    if stored.columns and unknown:
        return RefusedJob(
            "deploy.config_invalid",
            f"job {name}: the dataset {used.dataset_id} has no such column",
            value=unknown[0],
            next_step="correct the columns of the input",
            at=(name, "inputs"),
        )
    if time_column is None:
        return None
    if stored.sql is not None or stored.definition.get("storage") == Storage.POSTGRES:
        return _no_times(name, used.dataset_id)
    types = {column["name"]: column["type"] for column in stored.definition.get("columns") or ()}
    own = dag.datasets_by_id[job.outputs[0].dataset_id].partitions if job.outputs else Partitions()
    type_ = types.get(time_column)
    if (
        type_ is not None
        and (fault := extents.misfit(column_types.arrow_type(type_) or type_, own)) is not None
    ):
        return RefusedJob(
            "deploy.config_invalid",
            f"job {name}: the column {time_column} of {used.dataset_id} is {type_}: {fault}",
            value=time_column,
            next_step="name a column of type timestamp, or bigint with the seconds since 1970",
            at=(name, "inputs"),
        )
    return None


def _no_times(job: str, dataset_id: str) -> UserError:
    return InvalidInput(
        "deploy.hot_input_unsupported",
        f"job {job}: time_column needs files that say which times their rows have",
        value=dataset_id,
        next_step="keep the dataset as Parquet, or read a compacted one",
    )


async def _repartition_refusal(
    tx: Transaction, org: str, dag: Dag, rows: Mapping[str, StoredDataset]
) -> UserError | None:
    """Jobs of other DAGs were deployed for the partitions that a dataset had then, and may have passed them on."""
    changed = [
        dataset.dataset_id
        for dataset in dag.datasets
        if (stored := rows.get(dataset.dataset_id)) is not None
        and stored.dag == dag.name
        and stored.current_generation_id is not None
        and not same_periods(stored.partitions, dataset.partitions)
    ]
    for reader in await versions.readers_elsewhere(tx, org, changed) if changed else ():
        if reader.by_scope:
            before = rows[reader.dataset_id].partitions
            return Conflict(
                "deploy.partitions_in_use",
                f"DAG {reader.dag}, job {reader.job} reads this dataset by {before.by}",
                value=reader.dataset_id,
                next_step=f"keep its partitions, write the new ones to another dataset, or first deploy {reader.dag} "
                "without that input",
            )
    return None


def _query_refusal(
    dag: Dag, runtimes: Mapping[str, Runtime], rows: Mapping[str, StoredDataset]
) -> UserError | None:
    """Columns that a query reads from datasets of other DAGs; for its own DAG, the file was enough to check."""
    elsewhere = {
        dataset_id: rows[dataset_id].columns
        for dataset_id in dag.external_datasets
        if rows[dataset_id].sql is None
    }
    for job in dag.jobs:
        for fault in job_checks.query_faults(job, dag, runtimes, elsewhere):
            return _refusal(job, fault)
        if job.operator == EVALUATE and (about := job.inputs[0].dataset_id) in elsewhere:
            refusal = _event_time_refusal(job, rows[about])
            if refusal is not None:
                return refusal
    return None


def _event_time_refusal(job: Job, dataset: StoredDataset) -> UserError | None:
    """What `when` finds are rows of the dataset, so the type of a column is the one that its DAG declares."""
    query = job.config["query"]
    column = evaluation_query.event_time_column(query)
    if column is None or evaluation_query.written_as(query) != "when":
        return None
    types = {c["name"]: c["type"] for c in dataset.definition.get("columns") or ()}
    if column not in types or spec_alerts.is_event_time(types[column]):
        return None
    return RefusedJob(
        "deploy.config_invalid",
        f"alert {job.name}: event_time is a column of type {types[column]}, which holds no times",
        value=column,
        next_step=spec_alerts.EVENT_TIMES,
        at=(job.name, "event_time"),
    )


def _refusal(job: Job, fault: JobFault) -> InvalidInput:
    """For a job whose file is not available."""
    return RefusedJob(
        fault.code,
        f"job {job.name}: {fault.message}",
        value=".".join(fault.at[1:]),
        next_step=fault.suggestion,
        at=fault.at,
    )
