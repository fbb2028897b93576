"""What a deploy costs, and which other DAGs it affects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from traceplane.model.counted import counted
from traceplane.model.dag import Dag, Job, SourceKind, Storage, UpdateStrategy
from traceplane.model.edges import can_map, same_periods
from traceplane.model.near_names import nearest
from traceplane.model.partitions import Partitions, zone
from traceplane.postgres import cron_schedules, people, registry, versions
from traceplane.postgres.database import Transaction
from traceplane.postgres.versions import Weight
from traceplane.registry import fingerprint
from traceplane.registry.plan import Plan
from traceplane.registry.spec import webhooks
from traceplane.schedule.due_ticks import upcoming


@dataclass(frozen=True, slots=True)
class Concerned:
    """A job of another DAG that reads a changed dataset."""

    dag: str
    job: str
    dataset_id: str
    loses_it: bool
    """Whether the dataset will no longer be produced; otherwise the job follows and recomputes everything."""
    broken_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NextTicks:
    """When a cron source will fire next."""

    job: str
    time_zone: str
    ticks: tuple[datetime, ...]

    def text(self) -> str:
        local = [f"{tick.astimezone(zone(self.time_zone)):%Y-%m-%d %H:%M}" for tick in self.ticks]
        return (
            f"next ticks {', '.join(local)} ({self.time_zone})" if local else "its schedule has no more ticks"
        )


@dataclass(frozen=True, slots=True)
class Consequences:
    """What a deploy costs, and whom it affects."""

    computed_anew: tuple[Weight, ...]
    """Built beside the serving data; cut over together."""
    readers: tuple[Concerned, ...]
    dropped: tuple[Weight, ...] = ()
    """Served now, but no longer produced by any job."""
    unmapped: tuple[Weight, ...] = ()
    """Served now by partitions that cannot be mapped to the new ones."""
    periods: tuple[str, ...] = ()
    """Datasets whose partitions become other periods, or start later, in words."""
    renamed: tuple[str, ...] = ()
    """The dropped datasets whose source now emits to another one."""
    sources: tuple[str, ...] = ()
    """What starts sources where their kind does not say it."""
    ticks: tuple[NextTicks, ...] = ()
    """Of cron sources that are new or change."""
    unknown_roles: tuple[str, ...] = ()
    """Roles that datasets name and the organization does not have, in words."""
    unique_keys: tuple[str, ...] = ()
    """Jobs that are new or rebuilt and whose `unique_key` holds within a scope only, in words."""

    def text(self) -> str:
        lines = [
            f"! {warning}"
            for warning in (*self.sources, *self.periods, *self.unknown_roles, *self.unique_keys)
        ]
        lines += [f"job {next_ticks.job}: {next_ticks.text()}" for next_ticks in self.ticks]
        if self.computed_anew:
            lines += ["", "Recomputed beside the serving data, and cut over together:"]
            lines += [f"      {amount(w)}" for w in self.computed_anew]
        if self.dropped:
            lines += ["", "No longer served (needs --drop-missing):"]
            lines += [f"      {amount(w)}" for w in self.dropped]
        if self.unmapped:
            lines += ["", "No longer served, since their partitions become others (needs --drop-missing):"]
            lines += [f"      {amount(w)}" for w in self.unmapped]
        for reader in self.readers:
            reads = f"! DAG {reader.dag}, job {reader.job} reads {reader.dataset_id}"
            if reader.loses_it:
                lines.append(f"{reads}, which will no longer be produced")
            else:
                lines.append(f"{reads}: it follows at the cutover and recomputes everything")
            lines += [f"      {problem}" for problem in reader.broken_columns]
        return "\n".join([*lines, ""]) if lines else ""


def is_of_alert(dataset_id: str) -> bool:
    """Whether it has the rows that an alert found: nobody but its route reads them, so nobody loses them."""
    return dataset_id.endswith(("#alerts", "#rows"))


def amount(weight: Weight) -> str:
    parts = []
    if weight.events:
        parts.append(counted(weight.events, "event", f"{weight.events:,}"))
    if weight.scopes or not weight.events:
        amounts = (weight.scopes, "scope"), (weight.rows, "row"), (weight.bytes, "byte")
        parts += [counted(number, noun, f"{number:,}") for number, noun in amounts]
    return f"{weight.dataset_id}: {', '.join(parts)}"


async def consequences_of(
    tx: Transaction, org: str, steps: Plan, before: Dag | None, after: Dag, carried_on: Collection[str]
) -> Consequences:
    written = [(r.job, o.dataset_id) for r in steps.rebuilt for o in r.job.outputs]
    # A renamed job is a new one, which has to produce everything that is served.
    written += [
        (job, o.dataset_id)
        for job in steps.added
        for o in job.outputs
        if o.dataset_id not in steps.datasets_added
    ]
    written = [(job, dataset_id) for job, dataset_id in written if dataset_id not in carried_on]
    others = fingerprint.other_periods(before, after) if before is not None else {}
    # Most sources do not emit their events again by other periods; files are listed again.
    unmapped = [
        dataset_id
        for job, dataset_id in written
        if dataset_id in others
        and (not can_map(*others[dataset_id]) or (job.source and job.source.kind not in _EMITS_AGAIN))
    ]
    anew = [d for job, d in written if job.runtime != "dispatcher" and d not in unmapped]
    mapped = {d for job, d in written if d in others and d not in unmapped and (job.source or d in anew)}
    weights = {
        weight.dataset_id: weight
        for weight in await versions.weight(
            tx, org, sorted({*anew, *mapped, *unmapped, *steps.datasets_removed})
        )
    }
    other_sql = {c.dataset_id for c in steps.datasets_changed if any(f.field == "sql" for f in c.changes)}
    readers = [
        Concerned(reader.dag, reader.job, dataset_id, loses_it=False)
        for reader in await registry.readers_of_virtual(tx, org, after.name, sorted(other_sql))
        for dataset_id in sorted(other_sql.intersection(reader.virtual.datasets))
    ]
    changed = [dataset_id for _, dataset_id in written]
    broken = _broken_columns(before, after)
    for reader in await versions.readers_elsewhere(tx, org, [*changed, *steps.datasets_removed]):
        dataset_id = reader.dataset_id
        lost = dataset_id in steps.datasets_removed
        problems = () if lost else tuple(broken.get(dataset_id, ()))
        readers.append(Concerned(reader.dag, reader.job, dataset_id, lost, problems))
    dropped = [weights[d] for d in steps.datasets_removed if d in weights]
    dropped = [weight for weight in dropped if _holds_anything(weight) and not is_of_alert(weight.dataset_id)]
    return Consequences(
        computed_anew=tuple(weight for name, weight in weights.items() if name in anew),
        readers=tuple(readers),
        dropped=tuple(dropped),
        unmapped=tuple(weights[d] for d in unmapped if d in weights and _holds_anything(weights[d])),
        periods=tuple(
            _in_words(dataset_id, *partitions)
            for dataset_id, partitions in others.items()
            if dataset_id in mapped and dataset_id in weights and _holds_anything(weights[dataset_id])
        )
        + _later_starts(before, after),
        renamed=_renamed(before, after, {weight.dataset_id for weight in dropped}),
        sources=tuple(
            f"job {job.generated_for or job.name}: {set_off_by}"
            for job in after.jobs
            if (set_off_by := _set_off_by(org, job)) is not None
        ),
        ticks=_next_ticks(before, after, await cron_schedules.clock(tx)),
        unknown_roles=tuple(_unknown_roles(after, [role.name for role in await people.roles(tx)])),
        unique_keys=tuple(_unique_keys([*steps.added, *(r.job for r in steps.rebuilt)], after)),
    )


def _unknown_roles(dag: Dag, known: Collection[str]) -> Iterator[str]:
    naming: dict[tuple[str, str], list[str]] = {}
    for dataset in dag.datasets:
        for field, roles in (("read_roles", dataset.read_roles), ("write_roles", dataset.write_roles)):
            for role in roles or ():
                if role not in known:
                    naming.setdefault((field, role), []).append(dataset.dataset_id)
    for (field, role), (first, *others) in naming.items():
        more = f" and {counted(len(others), 'more dataset')}" if others else ""
        step = nearest(role, known) or "define it with `traceplane role set`"
        yield f"{field} of {first}{more}: the organization has no role {role!r}; {step}"


def _unique_keys(jobs: Iterable[Job], dag: Dag) -> Iterator[str]:
    for job in jobs:
        datasets = [dag.datasets_by_id[output.dataset_id] for output in job.outputs]
        files = [d.dataset_id for d in datasets if d.storage is Storage.PARQUET]
        if job.update_strategy is UpdateStrategy.APPEND and files:
            yield (
                f"job {job.name}: its unique_key holds within each scope of {' and '.join(files)}, not across scopes;"
                " with storage: postgres it holds in the whole dataset"
            )


def _holds_anything(weight: Weight) -> bool:
    return bool(weight.scopes or weight.events)


def _in_words(dataset_id: str, old: Partitions, new: Partitions) -> str:
    of_zone = [f" of {p.time_zone}" if old.time_zone != new.time_zone else "" for p in (old, new)]
    return (
        f"{dataset_id}: its partitions change from {old.by}s{of_zone[0]} to {new.by}s{of_zone[1]}; the cutover waits"
        f" until every {old.by} that is served is covered"
    )


def _later_starts(before: Dag | None, after: Dag) -> tuple[str, ...]:
    """Of sources: their events and rows stay as they are."""
    old = before.datasets_by_id if before is not None else {}
    sources = {o.dataset_id for job in after.jobs if job.source is not None for o in job.outputs}
    return tuple(
        f"{d.dataset_id}: it starts at {d.partitions.name(start)} now; what it has of earlier {d.partitions.by}s is"
        " still served, but events for them are refused"
        for d in after.datasets
        if (start := d.partitions.start) is not None and d.dataset_id in sources and d.dataset_id in old
        for was in [old[d.dataset_id].partitions]
        if same_periods(was, d.partitions) and (was.start is None or was.start < start)
    )


def _next_ticks(before: Dag | None, after: Dag, now: datetime) -> tuple[NextTicks, ...]:
    known = {job.name: job.source for job in before.jobs} if before is not None else {}
    changed = [
        (job.generated_for or job.name, job.source)
        for job in after.jobs
        if job.source is not None and job.source.kind is SourceKind.CRON and known.get(job.name) != job.source
    ]
    return tuple(
        NextTicks(name, source.time_zone, tuple(upcoming(source, now, _TICKS_SHOWN)))
        for name, source in changed
    )


_EMITS_AGAIN = (SourceKind.ALWAYS_ON, SourceKind.FILE)
_TICKS_SHOWN = 3
_SET_OFF_BY = {
    SourceKind.WEBHOOK: "it has no URL of its own; its events come from POST /api/v1/events, with a writer's token",
}


def _set_off_by(org: str, job: Job) -> str | None:
    if job.source is None:
        return None
    if job.operator != webhooks.RECEIVER:
        return _SET_OFF_BY.get(job.source.kind)
    url = f"POST /hooks/{org}/{job.config['path']}"
    if job.config["verify"] is None:
        return f"anybody may deliver to {url}, since it says verify: none"
    return f"its deliveries come to {url}, signed with the key in {' or '.join(job.config['keys'])}"


def _renamed(before: Dag | None, after: Dag, dropped: Collection[str]) -> tuple[str, ...]:
    """Dropped datasets whose source still exists."""
    sources = {job.name for job in after.jobs if job.source is not None}
    jobs = before.jobs if before is not None else ()
    outputs = [o.dataset_id for job in jobs if job.source and job.name in sources for o in job.outputs]
    return tuple(dataset_id for dataset_id in outputs if dataset_id in dropped)


def _broken_columns(before: Dag | None, after: Dag) -> dict[str, list[str]]:
    """Declared columns that readers may rely on, and that are gone or have another type."""
    if before is None:
        return {}
    now = {d.dataset_id: {c.name: c.type for c in d.columns} for d in after.datasets}
    broken: dict[str, list[str]] = {}
    for dataset in before.datasets:
        types = now.get(dataset.dataset_id) or {}
        for column in dataset.columns if types else ():
            if types.get(column.name) != column.type:
                became = types.get(column.name) or "gone"
                broken.setdefault(dataset.dataset_id, []).append(
                    f"column {column.name}: {column.type} → {became}"
                )
    return broken
