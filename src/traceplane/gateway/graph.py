"""Jobs and datasets as one graph, with what holds whom."""

from __future__ import annotations

from typing import Any

from traceplane.auth.rights import Access, access_of
from traceplane.gateway.refused_names import unknown_dag_or_job
from traceplane.http_service.routes import Call, Route
from traceplane.postgres import graph
from traceplane.sql.virtual import reads
from traceplane.wire.graph import (
    DagOverview,
    GraphDataset,
    GraphJob,
    GraphPause,
    GraphQuery,
    GraphRead,
    GraphResponse,
    HoldView,
    OverviewResponse,
)


class GraphApi:
    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/graph", None, GraphResponse, self.graph, "reader",
                  "Jobs and datasets with their edges, and what holds jobs back.", query=GraphQuery),
            Route("GET", "/api/v1/overview", None, OverviewResponse, self.overview, "reader",
                  "The DAGs that serve, the names of their datasets, and which others they read."),
        ]  # fmt: skip

    async def graph(self, call: Call[None]) -> GraphResponse:
        query: GraphQuery = call.query
        async with call.principal.database.snapshot() as tx:
            access = await access_of(tx, call.principal.org, call.principal)
            rows = await graph.jobs(
                tx, call.principal.org, query.dag, building=query.building, waiting=query.waiting
            )
            changes = await graph.changes(tx, call.principal.org, query.dag) if query.building else {}
            jobs = [
                _job(row, access, changes.get((row.dag, row.job)))
                for row in rows
                if access.sees(row.dag, row.job)
            ]
            if query.waiting:
                return GraphResponse(jobs, [])
            if query.dag is not None and not jobs:
                refusal = await unknown_dag_or_job(tx, call.principal.org, query.dag, None, access)
                if refusal is not None:
                    raise refusal
            stored = [d for d in await graph.datasets(tx, call.principal.org) if access.reads(d.dataset_id)]
        used = {name for job in jobs for name in (*job.writes, *(read.dataset for read in job.reads))}
        datasets = [_dataset(d, access) for d in stored]
        if query.dag is not None:
            datasets = [d for d in datasets if d.dataset in used or d.dag == query.dag]
        return GraphResponse(jobs, datasets)

    async def overview(self, call: Call[None]) -> OverviewResponse:
        async with call.principal.database.snapshot() as tx:
            access = await access_of(tx, call.principal.org, call.principal)
            rows = await graph.dags(tx, call.principal.org, without=access.hidden_ids)
        owner = {dataset: row.dag for row in rows for dataset in row.datasets}
        views = [
            DagOverview(
                row.dag,
                row.version,
                row.jobs,
                access.readable(row.datasets),
                sorted({owner[name] for name in access.readable(_read_by(row)) if name in owner} - {row.dag}),
            )
            for row in rows
        ]
        return OverviewResponse([view for view in views if view.jobs or view.datasets])


def _read_by(row: graph.GraphDag) -> list[str]:
    return [*row.reads, *(name for sql in row.virtual for name in reads(sql))]


def _job(row: graph.GraphJob, access: Access, change: graph.Change | None) -> GraphJob:
    read = {str(r["dataset"]): r["role"] for r in row.reads}
    if row.declared_reads:
        read = {name: read.get(name, "feeds") for name in row.declared_reads}
    hold = None
    if row.hold_level is not None:
        told = row.hold_dag is not None and row.hold_job is not None
        if told and access.sees(str(row.hold_dag), str(row.hold_job)):
            by = f"{row.hold_dag}/{row.hold_job}"
            hold = HoldView(row.hold_level, by, row.hold_metric, row.hold_figure, row.hold_threshold)  # type: ignore[arg-type]
        else:
            hold = HoldView(row.hold_level)
    return GraphJob(
        dag=row.dag,
        job=row.job,
        version=row.version,
        runtime=row.runtime,
        operator=row.operator,
        activation=row.activation,
        source_kind=row.source_kind,
        reads=[_read(name, role) for name, role in read.items() if access.reads(name)],
        writes=access.readable(row.writes),
        max_concurrency=row.max_concurrency,
        max_queue_depth=row.max_queue_depth,
        max_queue_age_seconds=row.max_queue_age_seconds,
        generated_for=row.generated_for,
        hold=hold,
        change=change,
        pause=None if row.paused_by is None else GraphPause(row.paused_by, row.pause_reason or ""),
    )


def _read(name: str, role: Any) -> GraphRead:
    return GraphRead(name) if role == "feeds" else GraphRead(name, role)


def _dataset(row: graph.GraphDataset, access: Access) -> GraphDataset:
    below = [] if row.sql is None else access.readable(reads(row.sql))
    storage = "virtual" if row.sql is not None else row.storage
    return GraphDataset(row.dataset_id, row.dag, storage, below)
