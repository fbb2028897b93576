"""Which engine runs a query: DuckDB at once, or Spark as a task.

A query that is handed over reads everything as of one settled moment, or of an earlier time that was asked for,
whenever its task starts: what DuckDB would have read at that moment.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from msgspec import structs

from traceplane.auth.roles import Role
from traceplane.errors import Conflict, Forbidden
from traceplane.gateway import query_tasks
from traceplane.model.counted import counted
from traceplane.postgres import pinned, workers
from traceplane.postgres.database import Database
from traceplane.query.datasets import AsOf, QueryCaller, may_read_pinned, pin_text
from traceplane.query.job import as_job
from traceplane.query.preparation import PlannedFiles
from traceplane.query.service import Queries
from traceplane.wire.queries import QueryPlan, QueryRequest, QueryTask, QueryTaskRequest

_SPARK = "spark"
_MAY_STORE = frozenset({Role.WRITER, Role.ADMIN})


class QueryEngines:
    def __init__(self, database: Database, queries: Queries, *, spark_above: int, window: int) -> None:
        """`database`: as the platform sees it. `spark_above`: bytes of files."""
        self._database, self._queries = database, queries
        self._spark_above, self._window = spark_above, window

    def most_bytes(self, asked: QueryRequest) -> int | None:
        """Up to how many bytes of files DuckDB runs the query; None: whatever it reads."""
        if asked.engine == "duckdb":
            return None
        return self._spark_above if asked.engine == "auto" else -1

    async def plan(self, database: Database, caller: QueryCaller, asked: QueryRequest) -> QueryPlan:
        as_of = AsOf(asked.as_of_version, asked.as_of_time)
        planned = await self._queries.plan(database, caller, asked.sql, as_of)
        most = self.most_bytes(asked)
        return QueryPlan(
            "spark" if most is not None and (planned.too_many or planned.bytes > most) else "duckdb",
            self._reason(asked, planned),
            planned.files,
            planned.of_files,
            planned.bytes,
            self._spark_above,
            {
                pin_text(pin): str(d.generation_id)
                for pin, d in planned.datasets.items()
                if may_read_pinned(caller, d)
            },
        )

    async def hand_over(
        self,
        database: Database,
        caller: QueryCaller,
        asked: QueryRequest,
        planned: PlannedFiles,
        dataset: str,
    ) -> QueryTask:
        """`dataset`: the name of the result's."""
        reason = self._reason(asked, planned)
        if Role(caller.role) not in _MAY_STORE:
            raise Forbidden(
                "query.may_not_hand_over",
                f"{reason}, and its result would be stored, which takes the role writer",
                value=caller.role,
                next_step="read less, or choose the engine duckdb",
            )
        async with self._database.autocommit() as tx:
            served = await workers.serve(tx, _SPARK, caller.org)
        if not served:
            raise Conflict(
                "query.no_spark",
                f"{reason}, and no Spark worker serves the organization",
                value=planned.bytes,
                next_step="start one (`traceplane worker --runtime spark`), read less, or choose the engine duckdb",
            )
        moment = await pinned.settled_moment(self._database)
        if asked.as_of_time is not None:
            moment = min(moment, asked.as_of_time)
        request = QueryTaskRequest(asked.sql, dataset, asked.as_of_version, asked.as_of_time)
        made = await self.start(database, caller, request, pinned_at=moment)
        return structs.replace(made, reason=reason)

    async def start(
        self,
        database: Database,
        caller: QueryCaller,
        asked: QueryTaskRequest,
        *,
        pinned_at: datetime | None = None,
    ) -> QueryTask:
        """The query as a task. DuckDB names the columns of its result, so that they do not depend on the engine, and
        refuses at once what would otherwise fail in the task. Whoever asks, the result has no personal data."""
        as_of = AsOf(asked.as_of_version, asked.as_of_time)
        async with database.snapshot() as tx:
            await as_job(tx, caller, asked.sql, as_of)  # what Spark may not run, DuckDB need not look at
        anybody = replace(caller, sees_pii=False)
        columns = await self._queries.result_names(database, anybody, asked.sql, as_of)
        return await query_tasks.start(
            database, caller, asked, window=self._window, columns=columns, pinned_at=pinned_at
        )

    def _reason(self, asked: QueryRequest, planned: PlannedFiles) -> str:
        files = f"{counted(planned.files, 'file')} with about {_megabytes(planned.bytes)} to read"
        if asked.engine != "auto":
            return f"{files}; the engine {asked.engine} was asked for"
        if planned.too_many:
            return f"{files}, more than DuckDB opens at once"
        what = "more than" if planned.bytes > self._spark_above else "up to"
        return f"{files}, {what} {_megabytes(self._spark_above)}"


def _megabytes(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MB"
