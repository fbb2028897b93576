"""Deploys and versions of DAGs in the public API."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from traceplane.model.code_bundle import MODULE_PATH
from traceplane.wire.scalars import Text, Wire

ModulePath = Annotated[str, msgspec.Meta(max_length=512, pattern=MODULE_PATH)]


class DeployRequest(Wire, frozen=True):
    text: Annotated[str, msgspec.Meta(min_length=1, max_length=1_048_576)]
    """The DAG file itself."""
    file: Text = "dag.yaml"
    """Its name, for error messages."""
    expect_version: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    """Refuse if another version has been deployed in the meantime; 0 means none."""
    manual_cutover: bool = False
    """Wait for a call when the version is built, rather than let it serve at once."""
    drop_missing: bool = False
    """Let it serve although readers lose scopes that they have, and that it does not compute."""
    no_rematerialize: bool = False
    """Jobs that differ in nothing but `execution_strategy` keep their data; refused if others need to be rebuilt."""
    code: dict[ModulePath, str] | None = None
    """The Python modules that its jobs are to run, sources by path below a code path. Without them, jobs run what
    the workers' own folders have."""


class FieldChangeView(Wire, frozen=True):
    field: str
    old: str | None = None
    """As JSON text; unset where the field was absent, and for code, of which only a hash is known."""
    new: str | None = None


class JobChangeView(Wire, frozen=True):
    job: str
    runtime: str
    operator: str
    changes: list[FieldChangeView] = msgspec.field(default_factory=list)
    downstream_of: list[str] = msgspec.field(default_factory=list)
    """Changed jobs and virtual datasets upstream, for which it is rebuilt."""
    generated_for: str | None = None
    """The Bulk job that it was made for."""


class DatasetChangeView(Wire, frozen=True):
    dataset: str
    changes: list[FieldChangeView]


class WeightView(Wire, frozen=True):
    dataset: str
    scopes: int
    rows: int
    bytes: int
    events: int = 0
    """How many events its source has emitted; 0 if it has none."""


class ConcernedView(Wire, frozen=True):
    dag: str
    job: str
    dataset: str
    loses_it: bool
    """Nobody will produce the dataset any more; otherwise the job follows at the cutover and computes it all anew."""
    broken_columns: list[str] = msgspec.field(default_factory=list)


class NextTicksView(Wire, frozen=True):
    """When a new or changed cron source will fire next."""

    job: str
    time_zone: str
    ticks: list[str]


class PlanSteps(Wire, frozen=True):
    """What a deploy would do, as data."""

    added: list[JobChangeView]
    in_place: list[JobChangeView]
    """Jobs that keep their data."""
    rebuilt: list[JobChangeView]
    """Jobs whose data is computed anew beside what serves; they are cut over together."""
    removed: list[JobChangeView]
    unchanged: list[str]
    datasets_added: list[str]
    datasets_changed: list[DatasetChangeView]
    datasets_removed: list[str]
    computed_anew: list[WeightView]
    """How much of each dataset there is to compute."""
    readers: list[ConcernedView]
    """Jobs of other DAGs that read what changes."""
    dropped: list[WeightView] = msgspec.field(default_factory=list)
    """What is served now and has no job any more; needs `drop_missing`."""
    ticks: list[NextTicksView] = msgspec.field(default_factory=list)


class PlanResponse(Wire, frozen=True):
    dag: str
    noop: bool
    text: str
    deployed_version: int | None = None
    blocked: str | None = None
    """Why a deploy would be refused."""
    blocked_code: str | None = None
    """The error code of that."""
    steps: PlanSteps | None = None
    gives_up: int | None = None
    """The version being built that a deploy would abort, since the file is what serves."""
    being_built: int | None = None
    """The version that is being built from this file already; a deploy changes nothing."""


class DeployResponse(Wire, frozen=True):
    dag: str
    version: int
    changed: bool
    building: bool
    """Whether it has to be built before it serves."""
    text: str
    given_up: int | None = None
    """The version that was being built and was aborted, since the file is what serves."""


class DagName(Wire, frozen=True):
    dag: Text


class CutoverRequest(Wire, frozen=True):
    dag: Text
    drop_missing: bool = False
    """Also if readers lose scopes by it."""


class RollbackRequest(Wire, frozen=True):
    dag: Text
    to: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    """The version to go back to; unset: the one that served before."""
    drop_missing: bool = False
    """Also if it lacks data that readers have."""


class LackingView(Wire, frozen=True):
    dataset: str
    first: int
    last: int
    scope: str = ""
    """From the first to the last, as people write it."""


class MovedResponse(Wire, frozen=True):
    dag: str
    version: int
    """The one that serves now, or was given up."""
    before: int | None = None
    """The one that served until now."""
    lacking: tuple[LackingView, ...] = ()
    """Of a rollback: the first of what readers had, and this version does not hold yet."""
    given_up: int | None = None
    """Of a rollback: the version that was being built."""


class DeleteRequest(Wire, frozen=True):
    dag: Text
    force: bool = False
    """Also if others read its datasets or run its jobs."""


class DeletedResponse(Wire, frozen=True):
    dag: str
    datasets: list[str]
    """Those that readers had, and that are gone."""
    readers: list[str]
    """Who read them or ran its jobs, and does so in vain."""


class VersionQuery(Wire, frozen=True):
    dag: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 20


class BuildView(Wire, frozen=True):
    dataset: str
    built: int
    """Scopes of the serving generation that the new one has too."""
    serving: int
    """Scopes that the serving one has."""


class SourceBehindView(Wire, frozen=True):
    """A source that has yet to emit what the serving one did."""

    job: str
    dataset: str
    position: int
    """The first that it has to emit."""


class VersionView(Wire, frozen=True):
    version: int
    state: Literal["building", "active", "retired", "aborted", "collected"]
    created_at: str
    activated_at: str | None = None
    manual_cutover: bool = False
    datasets: tuple[BuildView, ...] = ()
    """Of a version that is being built: how far each dataset is."""
    replays: int = 0
    """Jobs whose past scopes have not all been turned into tasks yet."""
    unfinished: int = 0
    """Tasks that it lacks, counted up to a thousand."""
    dead: int = 0
    """Dead tasks that keep it from serving, counted up to a thousand."""
    sources_behind: int = 0
    """Sources that have not yet emitted what the serving ones have."""
    lacking: tuple[LackingView, ...] = ()
    """The first positions that readers have and that it does not hold."""
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
    """Of a cron source."""
    last_tick: str | None = None
    """The last one that fired."""
    paused: bool = False


class DagView(Wire, frozen=True):
    dag: str
    version: int
    jobs: list[JobView]


class DagsResponse(Wire, frozen=True):
    dags: list[DagView]
