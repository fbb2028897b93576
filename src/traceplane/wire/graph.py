"""The graph of jobs and datasets, and the changes of things, in the public API."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from traceplane.wire.scalars import Text, Wire


class GraphQuery(Wire, frozen=True):
    dag: Text | None = None
    """Only jobs of this DAG, with what they read and write."""
    building: bool = False
    """The versions that are being built, instead of those that serve."""
    waiting: bool = False
    """Only jobs that are held or paused, and no datasets."""


class DagOverview(Wire, frozen=True):
    dag: str
    version: int
    jobs: int
    datasets: list[str] = []
    reads: list[str] = []
    """The DAGs whose datasets its jobs read."""


class OverviewResponse(Wire, frozen=True):
    dags: list[DagOverview]


class GraphRead(Wire, frozen=True):
    dataset: str
    role: Literal["feeds", "triggers", "reads"] = "feeds"
    """feeds: its changes make tasks. triggers: they do, and its rows are not read. reads: its rows are read, and its
    changes make no tasks."""


class HoldView(Wire, frozen=True):
    """Why tasks of a job are held back."""

    level: int
    """1: those of backfills; 2: all."""
    job: str | None = None
    """The job, as dag/job, whose queue is too long; unset if the caller may not see it."""
    metric: Literal["queue_depth", "queue_age_seconds"] | None = None
    figure: float | None = None
    threshold: float | None = None


class GraphPause(Wire, frozen=True):
    paused_by: str
    reason: str = ""


class GraphJob(Wire, frozen=True):
    dag: str
    job: str
    version: int
    runtime: str
    operator: str
    activation: str
    source_kind: str | None = None
    reads: list[GraphRead] = []
    writes: list[str] = []
    max_concurrency: int | None = None
    max_queue_depth: int | None = None
    max_queue_age_seconds: float | None = None
    generated_for: str | None = None
    """The Bulk job that it was generated for."""
    hold: HoldView | None = None
    pause: GraphPause | None = None
    change: Literal["added", "rebuilt", "in_place"] | None = None
    """Of a job that is being built: what it is to the one that serves. Unset: they are the same."""


class GraphDataset(Wire, frozen=True):
    dataset: str
    dag: str
    storage: str
    reads: list[str] = []
    """Of a virtual dataset: what its SQL reads."""


class GraphResponse(Wire, frozen=True):
    jobs: list[GraphJob]
    datasets: list[GraphDataset]


class ChangesQuery(Wire, frozen=True):
    for_seconds: Annotated[int, msgspec.Meta(ge=1, le=120)]
    """After so many seconds the stream ends; whoever wants more calls again, and shows again who they are."""


class Changed(Wire, frozen=True):
    """One message of the stream of changes: what to ask for anew."""

    jobs: list[str] = []
    """As dag/job: their tasks, pauses or holds."""
    datasets: list[str] = []
    """Their rows."""
    dags: list[str] = []
    """Their versions."""
    alerts: bool = False
    dead_letters: bool = False
