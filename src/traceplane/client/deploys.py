"""DAGs and jobs that are deployed."""

from __future__ import annotations

from traceplane.client.connection import Connection
from traceplane.wire.deploys import (
    CutoverRequest,
    DagName,
    DagsResponse,
    DagView,
    DeletedResponse,
    DeleteRequest,
    MovedResponse,
    RollbackRequest,
)
from traceplane.wire.graph import DagOverview, GraphResponse, OverviewResponse
from traceplane.wire.jobs import BatchesClosing, JobName, OpenBatch, PauseChange, PauseRequest


class Dags:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> list[DagView]:
        """Deployed DAGs with their jobs."""
        return self._connection.ask("GET", "/api/v1/dags", DagsResponse).dags

    def overview(self) -> list[DagOverview]:
        """The DAGs that serve, the names of their datasets, and which others they read."""
        return self._connection.ask("GET", "/api/v1/overview", OverviewResponse).dags

    def graph(
        self, dag: str | None = None, *, building: bool = False, waiting: bool = False
    ) -> GraphResponse:
        """Jobs and datasets with their edges, and what holds jobs back; of the versions that serve, or are built, or
        only the jobs that are held or paused."""
        asked = {"dag": dag, "building": building, "waiting": waiting}
        return self._connection.ask("GET", "/api/v1/graph", GraphResponse, **asked)

    def cutover(self, dag: str, *, drop_missing: bool = False) -> MovedResponse:
        """Lets the version that was built serve."""
        request = CutoverRequest(dag, drop_missing)
        return self._connection.ask("POST", "/api/v1/cutover", MovedResponse, request)

    def rollback(self, dag: str, *, to: int | None = None, drop_missing: bool = False) -> MovedResponse:
        """Lets an earlier version serve again: the one before, or `to`."""
        request = RollbackRequest(dag, to, drop_missing)
        return self._connection.ask("POST", "/api/v1/rollback", MovedResponse, request)

    def abort(self, dag: str) -> MovedResponse:
        """Gives up the version that is being built."""
        return self._connection.ask("POST", "/api/v1/abort", MovedResponse, DagName(dag))

    def delete(self, dag: str, *, force: bool = False) -> DeletedResponse:
        """Deletes a DAG; with `force` also one whose datasets other DAGs read."""
        return self._connection.ask("POST", "/api/v1/delete", DeletedResponse, DeleteRequest(dag, force))


class Jobs:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def pause(self, dag: str, job: str, *, reason: str = "") -> PauseChange:
        """Keeps the tasks of a job from starting."""
        return self._connection.ask("POST", "/api/v1/jobs/pause", PauseChange, PauseRequest(dag, job, reason))

    def resume(self, dag: str, job: str) -> PauseChange:
        """Lets the tasks of a paused job start again."""
        return self._connection.ask("POST", "/api/v1/jobs/resume", PauseChange, JobName(dag, job))

    def close_batches(self, dag: str, job: str) -> list[OpenBatch]:
        """Closes the batches of a job that are filling, and returns them."""
        answer = self._connection.ask("POST", "/api/v1/batches/close", BatchesClosing, JobName(dag, job))
        return answer.closing
