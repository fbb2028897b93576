"""Decides a deploy: reads and compares what is deployed, and writes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from traceplane.errors import UserError
from traceplane.model.dag import Dag, Job
from traceplane.model.runtimes import Runtime
from traceplane.operators import catalog
from traceplane.postgres import registry, versions
from traceplane.postgres.database import Transaction
from traceplane.postgres.registry import DeployedVersion
from traceplane.postgres.versions import Version
from traceplane.registry import batching, deploy_checks, fingerprint, virtual_inputs
from traceplane.registry.code_identity import DeployedCode
from traceplane.registry.consequences import Consequences, consequences_of
from traceplane.registry.plan import (
    Deployed,
    Plan,
    plan,
    render,
    with_deployed_execution_config,
)
from traceplane.registry.spec import normalized
from traceplane.registry.sql_identity import with_deployed_queries


@dataclass(frozen=True, slots=True)
class PreparedDeploy:
    dag: Dag
    """As requested, but with the deployed text of equivalent queries."""
    plan: Plan
    consequences: Consequences
    text: str
    deployed_version: int | None
    active_version_id: UUID | None
    fingerprints: dict[str, str]
    definition_fingerprints: dict[str, str]
    refusal: UserError | None
    """Why the plan cannot be applied."""
    gives_up: Version | None
    """The version being built that a deploy aborts, since the file is what serves."""
    joins: Version | None
    """The version being built from this very file; `plan` compares with it, and a deploy changes nothing."""
    texts: dict[str, str]
    """The SQL of all virtual datasets that the DAG declares or reads, directly or through others."""
    kept_virtual: frozenset[str]
    """Its virtual datasets that did not change."""
    carried_on: frozenset[str]
    """Source datasets that keep their generation and its events under another job."""


@dataclass(frozen=True, slots=True)
class _Fingerprints:
    jobs: dict[str, str]
    definitions: dict[str, str]

    def beside(self, others: _Fingerprints) -> _Fingerprints:
        """These, and those of others that are not among them."""
        return _Fingerprints({**others.jobs, **self.jobs}, {**others.definitions, **self.definitions})


async def prepare(
    tx: Transaction,
    org: str,
    dag: Dag,
    runtimes: Mapping[str, Runtime],
    code: DeployedCode | None = None,
    *,
    no_rematerialize: bool = False,
) -> PreparedDeploy:
    """`no_rematerialize`: jobs that differ only in their `execution_strategy` and `batch` keep their data."""
    row = await registry.active_version(tx, org, dag.name)
    deployed = _deployed(row) if row is not None else None
    if deployed is not None:
        dag = await asyncio.to_thread(with_deployed_queries, dag, deployed.dag)
    compared = own = _fingerprints(dag, code)
    carried_on: dict[str, bool] = {}
    if deployed is not None:
        # Compared with the deployed values of config fields that do not change data, and of strategies if the caller
        # asks for it: neither the job nor anything downstream is rebuilt for those.
        as_before = with_deployed_execution_config(dag, deployed.dag)
        carried_on = fingerprint.carried_on(deployed.dag, as_before)
        if no_rematerialize:
            as_before = batching.with_deployed_batches(as_before, deployed.dag)
        compared = _compared_fingerprints(as_before, code, deployed, carried_on).beside(own)
    steps = plan(deployed, dag, fingerprints=compared.jobs, definition_fingerprints=compared.definitions)
    produced = {dataset.dataset_id for dataset in dag.datasets}
    texts, rows = await virtual_inputs.load(tx, org, dag.external_datasets, dag.virtual, produced)
    locked = await versions.lock(tx, org, dag.name)
    building = locked.being_built if locked is not None else None
    as_built = await _compared_with_build(tx, org, dag, own) if building and not steps.is_noop else None
    joins = building if as_built is not None and as_built.is_noop else None
    refusal = (
        await deploy_checks.refusal(tx, org, dag, runtimes)
        or await virtual_inputs.refused(tx, org, dag, runtimes, texts, rows)
        or (deploy_checks.refused_rebuild(steps) if no_rematerialize else None)
        or (
            deploy_checks.refused_while_building(dag.name, building)
            if building and not (joins or steps.is_noop)
            else None
        )
    )
    if joins and as_built is not None:
        steps = as_built
    before = deployed.dag if deployed is not None else None
    consequences = await consequences_of(tx, org, steps, before, dag, carried_on.keys())
    return PreparedDeploy(
        dag=dag,
        plan=steps,
        consequences=consequences,
        text=render(steps) + (f"Version {joins.number} is being built.\n" if joins else consequences.text()),
        deployed_version=deployed.version if deployed is not None else None,
        active_version_id=row.dag_version_id if row is not None else None,
        fingerprints=own.jobs,
        definition_fingerprints=own.definitions,
        refusal=refusal,
        gives_up=building if steps.is_noop and not joins else None,
        joins=joins,
        texts=texts,
        kept_virtual=_kept_virtual(dag, deployed, compared),
        carried_on=frozenset(carried_on),
    )


async def _compared_with_build(tx: Transaction, org: str, dag: Dag, own: _Fingerprints) -> Plan | None:
    """The difference between the version being built and the file."""
    row = await registry.building_version(tx, org, dag.name)
    if row is None:
        return None
    return plan(_deployed(row), dag, fingerprints=own.jobs, definition_fingerprints=own.definitions)


def _deployed(version: DeployedVersion) -> Deployed:
    return Deployed(
        version.number,
        normalized.load(version.spec),
        version.job_fingerprints,
        version.definition_fingerprints,
    )


def _fingerprints(
    dag: Dag, code: DeployedCode | None, carried_on: Mapping[str, str] | None = None
) -> _Fingerprints:
    hashes = code.hashes if code is not None else {}

    def code_hash(job: Job) -> str:
        return hashes.get(job.name) or catalog.code_identity(job.operator)

    return _Fingerprints(
        fingerprint.job_fingerprints(dag, code_hash=code_hash, carried_on=carried_on or {}),
        fingerprint.definition_fingerprints(dag, code_hash=code_hash),
    )


def _compared_fingerprints(
    dag: Dag, code: DeployedCode | None, deployed: Deployed, carried_on: Mapping[str, bool]
) -> _Fingerprints:
    """The fingerprints that the plan compares with the deployed ones."""
    producers = {
        o.dataset_id: deployed.fingerprints.get(j.name, "") for j in deployed.dag.jobs for o in j.outputs
    }
    return _fingerprints(
        dag,
        code,
        {dataset_id: producers[dataset_id] for dataset_id, unnoticed in carried_on.items() if unnoticed},
    )


def _kept_virtual(dag: Dag, deployed: Deployed | None, compared: _Fingerprints) -> frozenset[str]:
    if deployed is None:
        return frozenset()
    keys = {dataset_id: fingerprint.virtual_key(dataset_id) for dataset_id in dag.virtual}
    return frozenset(
        dataset_id for dataset_id, key in keys.items() if deployed.fingerprints.get(key) == compared.jobs[key]
    )
