"""Deploys and versions of DAGs in the public API."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from traceplane.model.code_bundle import MODULE_PATH
from traceplane.model.requirements import MAX_LOCK_CHARS
from traceplane.wire.scalars import Text, Wire

ModulePath = Annotated[str, msgspec.Meta(max_length=512, pattern=MODULE_PATH)]

RequirementsPath = Annotated[str, msgspec.Meta(max_length=300)]
RequirementsText = Annotated[str, msgspec.Meta(max_length=MAX_LOCK_CHARS)]
RequirementsKey = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class DeployRequest(Wire, frozen=True):
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=1_048_576)]
    """The contents of the DAG file."""
    file: Text = "dag.yaml"
    """Its name, for error messages."""
    expect_version: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    """Refuse if the deployed version is another one; 0 means that none is deployed."""
    manual_cutover: bool = False
    """Once the version is built, wait for a cutover call instead of serving at once."""
    drop_missing: bool = False
    """Let the version serve even if readers lose scopes that it does not compute."""
    no_rematerialize: bool = False
    """Jobs that differ only in `execution_strategy` keep their data; refused if other jobs must be rebuilt."""
    code: dict[ModulePath, str] | None = None
    """The source of each Python module that the jobs run, by its path below a code path. If unset, jobs run what
    the workers' own folders contain."""
    requirement_files: dict[RequirementsPath, RequirementsText] = {}
    """The files with requirements that the DAG file names, by the paths that it names them by."""
    locks: dict[RequirementsKey, RequirementsText] = {}
    """The lock of each set of requirements, by the hash of these."""


class FieldChangeView(Wire, frozen=True):
    field: str
    old: str | None = None
    """As JSON text; unset if the field was absent, and for code, of which only a hash is known."""
    new: str | None = None


class JobChangeView(Wire, frozen=True):
    job: str
    runtime: str
    operator: str
    changes: list[FieldChangeView] = msgspec.field(default_factory=list)
    downstream_of: list[str] = msgspec.field(default_factory=list)
    """The changed jobs and virtual datasets upstream that cause the rebuild."""
    generated_for: str | None = None
    """The Bulk job that it was generated for."""
    reads: list[str] = msgspec.field(default_factory=list)
    writes: list[str] = msgspec.field(default_factory=list)


class DatasetChangeView(Wire, frozen=True):
    dataset: str
    changes: list[FieldChangeView]


class WeightView(Wire, frozen=True):
    dataset: str
    scopes: int
    rows: int
    bytes: int
    events: int = 0
    """The number of events that its source has emitted."""


class ConcernedView(Wire, frozen=True):
    dag: str
    job: str
    dataset: str
    loses_it: bool
    """Whether the dataset loses its producer. If not, the job follows at the cutover and recomputes everything."""
    broken_columns: list[str] = msgspec.field(default_factory=list)


class NextTicksView(Wire, frozen=True):
    """When a new or changed cron source will fire next."""

    job: str
    time_zone: str
    ticks: list[str]


class DeclassifiedView(Wire, frozen=True):
    """A column that would be no personal data any more, although it is computed from some."""

    dataset: str
    column: str
    reason: str


class PlanSteps(Wire, frozen=True):
    """What a deploy would do, as data."""

    added: list[JobChangeView]
    in_place: list[JobChangeView]
    """Jobs that keep their data."""
    rebuilt: list[JobChangeView]
    """Jobs whose data is recomputed alongside the serving version; they are cut over together."""
    removed: list[JobChangeView]
    unchanged: list[str]
    datasets_added: list[str]
    datasets_changed: list[DatasetChangeView]
    datasets_removed: list[str]
    computed_anew: list[WeightView]
    """How much of each dataset will be recomputed."""
    readers: list[ConcernedView]
    """Jobs of other DAGs that read what changes."""
    dropped: list[WeightView] = msgspec.field(default_factory=list)
    """Datasets that are served now and would have no job; this needs `drop_missing`."""
    ticks: list[NextTicksView] = msgspec.field(default_factory=list)
    declassified: list[DeclassifiedView] = msgspec.field(default_factory=list)


class PlanResponse(Wire, frozen=True):
    dag: str
    noop: bool
    text: str
    deployed_version: int | None = None
    blocked: str | None = None
    """Why a deploy would be refused."""
    blocked_code: str | None = None
    """The error code of that refusal."""
    steps: PlanSteps | None = None
    gives_up: int | None = None
    """The version being built that a deploy would abort, because the file equals the serving version."""
    being_built: int | None = None
    """The version that is already being built from this file; a deploy changes nothing."""


class DeployResponse(Wire, frozen=True):
    dag: str
    version: int
    changed: bool
    building: bool
    """Whether the version must be built before it serves."""
    text: str
    given_up: int | None = None
    """The version whose build was aborted, because the file equals the serving version."""


class DagName(Wire, frozen=True):
    dag: Text


class CutoverRequest(Wire, frozen=True):
    dag: Text
    drop_missing: bool = False
    """Cut over even if readers lose scopes."""


class RollbackRequest(Wire, frozen=True):
    dag: Text
    to: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    """The version to roll back to; the default is the one that served before the active one."""
    drop_missing: bool = False
    """Roll back even if that version lacks data that readers have."""


class LackingView(Wire, frozen=True):
    dataset: str
    first: int
    last: int
    scope: str = ""
    """The range from `first` to `last`, as users write it."""


class MovedResponse(Wire, frozen=True):
    dag: str
    version: int
    """The version that serves now, or that was aborted."""
    before: int | None = None
    """The version that served before."""
    lacking: tuple[LackingView, ...] = ()
    """For a rollback: the first positions that readers had and that this version still lacks."""
    given_up: int | None = None
    """For a rollback: the version whose build was aborted."""


class DeleteRequest(Wire, frozen=True):
    dag: Text
    force: bool = False
    """Delete even if other DAGs read its datasets or pipelines run its jobs."""


class DeletedResponse(Wire, frozen=True):
    dag: str
    datasets: list[str]
    """The datasets that can no longer be read."""
    readers: list[str]
    """What still reads the datasets or runs the jobs, and gets nothing from now on."""


class VersionQuery(Wire, frozen=True):
    dag: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20


class BuildView(Wire, frozen=True):
    dataset: str
    built: int
    """Scopes of the serving generation that the new one also has."""
    serving: int
    """Scopes of the serving generation."""


class SourceBehindView(Wire, frozen=True):
    """A source that has not yet emitted everything that the serving one has."""

    job: str
    dataset: str
    position: int
    """The first position that it still has to emit."""


class VersionView(Wire, frozen=True):
    version: int
    state: Literal["building", "active", "retired", "aborted", "collected"]
    created_at: str
    activated_at: str | None = None
    manual_cutover: bool = False
    datasets: tuple[BuildView, ...] = ()
    """For a version being built: the progress of each dataset."""
    replays: int = 0
    """Jobs whose past scopes have not all been turned into tasks yet."""
    unfinished: int = 0
    """Unfinished tasks that keep it from serving, counted up to a thousand."""
    dead: int = 0
    """Dead tasks that keep it from serving, counted up to a thousand."""
    sources_behind: int = 0
    """Sources that have not yet emitted what the serving ones have."""
    lacking: tuple[LackingView, ...] = ()
    """The first positions that readers have and that it lacks."""
    behind: tuple[SourceBehindView, ...] = ()
    """The sources that `sources_behind` counts."""


class VersionsResponse(Wire, frozen=True):
    dag: str
    versions: list[VersionView]


class JobView(Wire, frozen=True):
    job: str
    runtime: str
    operator: str
    activation: str
    source_kind: str | None = None
    max_concurrency: int | None = None
    hold_level: int | None = None
    next_tick: str | None = None
    """For a cron source, unless it is paused."""
    last_tick: str | None = None
    """The last one that fired."""
    time_zone: str | None = None
    """For a cron source: that of its schedule."""
    paused: bool = False


class DagView(Wire, frozen=True):
    dag: str
    version: int
    jobs: list[JobView]


class DagsResponse(Wire, frozen=True):
    dags: list[DagView]
