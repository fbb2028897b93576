"""How the datasets of a file are partitioned, and which scopes its jobs have.

A job whose input is read at exactly the scope of each event needs nothing more: its tasks are created from those
events. Any other job, one that joins inputs, reads a window, has other partitions than its inputs or is `PerPartition`
by time, gets a job `NAME__scopes` in front of it. The dispatcher runs that one; it decides which scopes are ready and
which a change makes stale, and its events create the tasks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from traceplane.model import dag as model
from traceplane.model.dag import Input, InputRole, Job, Output
from traceplane.model.edges import OnChange, Read, WaitFor, What, can_map
from traceplane.model.partitions import BadPartition, By, Partitions, zone
from traceplane.registry.spec.files import files_dataset, is_read
from traceplane.registry.spec.jobs import Draft, events_dataset, runs_for_each_event
from traceplane.registry.spec.yaml_reader import Problems, YamlMap

SUFFIX = "__scopes"


# Partitions ------------------------------------------------------------------------------------------


def partitions_of(problems: Problems, dataset: YamlMap | None) -> Partitions | None:
    """The partitions that a dataset declares; None if it declares none, or its `by` is invalid."""
    declared: YamlMap | None = dataset.get("partitions") if dataset is not None else None
    if declared is None or (by := declared.get("by")) is None:
        return None
    found = Partitions(by, declared.get("time_zone") or "UTC", names=tuple(declared.get("names") or ()))
    _check(problems, declared, found)
    if (start := declared.get("start")) is None:
        return found
    try:
        return replace(found, start=found.position(start))
    except BadPartition as error:
        problems.add("spec.bad_partition", declared.at("start"), str(error), f"write the first {by}")
        return found


def known_partitions(
    problems: Problems, top: YamlMap, ordered: list[Draft], elsewhere: Mapping[str, Partitions]
) -> dict[str, Partitions]:
    """Those that datasets declare; what a job writes has those of what it reads, if it declares none.

    `ordered`: upstream first. `elsewhere`: of datasets of other DAGs.
    """
    known = dict(elsewhere) | {
        dataset_id: found
        for dataset_id, dataset in (top.get("datasets") or {}).items()
        if (found := partitions_of(problems, dataset)) is not None
    }
    for draft in ordered:
        scoped = _passing_on(draft)
        inherited = known.get(scoped[0]) if scoped else None
        for output, _ in draft.outputs:
            if inherited is not None:
                known.setdefault(output.dataset_id, inherited)
        first = draft.outputs[0][0].dataset_id if draft.outputs else ""
        if first in known and runs_for_each_event(draft.record):
            known[events_dataset(first)] = known[first]
        if first in known and is_read(draft.record):
            known[files_dataset(first)] = known[first]
    return known


def undetermined(
    top: YamlMap, ordered: list[Draft], known: Mapping[str, Partitions], produced: Collection[str]
) -> set[str]:
    """Datasets whose partitions are not known here: those of other DAGs, those whose declaration is invalid, and
    what has the partitions of one.

    `ordered`: upstream first. `produced`: by jobs of this file.
    """
    unknown = (
        {used.dataset_id for draft in ordered for used, _ in draft.inputs} - set(produced) - known.keys()
    )
    for dataset_id, dataset in (top.get("datasets") or {}).items():
        if dataset_id not in known and (dataset is None or not dataset.lacks("partitions")):
            unknown.add(dataset_id)
    for draft in ordered:
        scoped = _passing_on(draft)
        if scoped and scoped[0] in unknown:
            unknown.update(output.dataset_id for output, _ in draft.outputs if output.dataset_id not in known)
    return unknown


def _passing_on(draft: Draft) -> list[str]:
    """The inputs of a job whose partitions may be those of what it writes; the first of them counts."""
    return [
        used.dataset_id
        for used, _ in draft.inputs
        if used.read.what is What.SCOPE and used.read.time_column is None
    ]


def check_ticks(
    problems: Problems, drafts: list[Draft], known: Mapping[str, Partitions], unknown: Collection[str]
) -> None:
    """The event of a tick names the period of the dataset that the tick is in."""
    for draft in drafts:
        is_cron = draft.record.get("source", "kind") == "cron" and draft.record.get("source", "schedule")
        for output, item in draft.outputs if is_cron else ():
            dataset = output.dataset_id
            if dataset not in unknown and not known.get(dataset, Partitions()).is_time:
                message = f"ticks name periods, and {dataset[:100]!r} is not partitioned by time"
                suggestion = f"add datasets: {{ {dataset[:100]}: {{ partitions: {{ by: day }} }} }}"
                problems.add("spec.cron_needs_periods", item.at("dataset"), message, suggestion)


def _check(problems: Problems, declared: YamlMap, found: Partitions) -> None:
    if not found.is_time and not declared.lacks("time_zone"):
        message = f"partitions by {found.by} have no time zone"
        problems.add("spec.no_time", declared.at("time_zone"), message, "remove it, or write by: day")
    if found.by is By.NAME and not declared.lacks("start"):
        message = "names have no order, so none is the first"
        problems.add("spec.no_time", declared.at("start"), message, "remove it")
    if found.by is not By.NAME and not declared.lacks("names"):
        message = f"partitions by {found.by} have the names of their periods"
        problems.add("spec.names_of_time", declared.at("names"), message, "remove it, or write by: name")
    if found.by is By.HOUR and not _whole_hours(found.time_zone):
        message = f"hours in {found.time_zone} do not begin when those of UTC do"
        problems.add("spec.half_hours", declared.at("time_zone"), message, "remove it: hours are then in UTC")


def _whole_hours(time_zone: str) -> bool:
    """Whether local hours begin on those of UTC, today and half a year from then."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    moments = [now, now + timedelta(days=182)]
    offsets = [moment.astimezone(zone(time_zone)).utcoffset() for moment in moments]
    return all(offset is not None and offset % timedelta(hours=1) == timedelta(0) for offset in offsets)


# Reads -----------------------------------------------------------------------------------------------


def check_reads(problems: Problems, drafts: list[Draft]) -> None:
    for draft in drafts:
        reads = [(used.read, item) for used, item in draft.inputs]
        if reads and not any(_creates_tasks(read) for read, _ in reads):
            _, item = reads[0]
            message = "no input of the job says which scopes it has"
            suggestion = "let one of its inputs be read by scope, or as a window"
            problems.add("spec.no_scopes", item.at("read"), message, suggestion)
        for read, item in reads:
            if read.what is not What.SCOPE and read.wait_for not in (WaitFor.NOTHING, WaitFor.ANY):
                message = f"an input that is read as {read.what} is never complete"
                suggestion = "remove wait_for, or write wait_for: any to wait for its first rows"
                problems.add("spec.never_waits", item.at("wait_for"), message, suggestion)
            if read.time_column is not None:
                _check_time_column(problems, draft, read, item)


def _check_time_column(problems: Problems, draft: Draft, read: Read, item: YamlMap) -> None:
    fault = None
    if read.what is not What.SCOPE:
        fault = f"read: {read.what} reads all times", "remove time_column or read"
    elif read.before or read.after:
        fault = (
            "a window is counted in positions, not in periods",
            "remove read, or read a dataset that is by time",
        )
    elif draft.record.has("execution_strategy", "Bulk"):
        fault = "a batch consists of positions, not of periods", "remove execution_strategy and batch"
    if fault is not None:
        problems.add("spec.bad_time_column", item.at("time_column"), *fault)


def _creates_tasks(read: Read) -> bool:
    return read.what is What.SCOPE


# The job in front ------------------------------------------------------------------------------------


def scopes_dataset(dag: str, job: str) -> str:
    return f"{dag}.{job}#scopes"


def with_scopes(dag: str, draft: Draft, jobs: list[Job], known: dict[str, Partitions]) -> list[Job]:
    """The jobs of a draft, with one in front of the last that finds its scopes, where that is needed.

    `known`: the partitions of the datasets of this file; those of the jobs in front are added to it.
    """
    *before, job = jobs
    for added in before:  # an aggregator's batches are of the positions of what it batches
        for output in added.outputs:
            if added.inputs and added.inputs[0].dataset_id in known:
                known[output.dataset_id] = known[added.inputs[0].dataset_id]
    own = known.get(job.outputs[0].dataset_id) if job.outputs else None
    if not _needs_scopes(draft, job, own, known):
        return jobs
    dataset = scopes_dataset(dag, job.name)
    if own is not None:
        known[dataset] = own
    # Waiting for an input must not hold that input back.
    finder = Job(
        name=f"{job.name}{SUFFIX}",
        activation=model.Activation.REACTIVE,
        runtime="dispatcher",
        operator="scopes",
        config={"when": str(draft.record.get("when") or model.When.ALL)},
        inputs=tuple(
            Input(used.name, used.dataset_id, read=used.read, role=InputRole.TRIGGERS)
            for used in job.inputs
            if _creates_tasks(used.read)
            or used.read.on_change is OnChange.RECOMPUTE
            or used.read.wait_for is not WaitFor.NOTHING
        ),
        outputs=(Output("scopes", dataset),),
        execution_strategy=model.ExecutionStrategy.PER_UPDATE,
        update_strategy=model.UpdateStrategy.REPLACE,
        execution=job.execution.of_the_dispatcher(),
        generated_for=job.name,
    )
    inputs = (
        *(replace(used, role=InputRole.READS) for used in job.inputs),
        Input("scopes", dataset, role=InputRole.TRIGGERS),
    )
    return [*before, finder, replace(job, inputs=inputs)]


def _needs_scopes(draft: Draft, job: Job, own: Partitions | None, known: Mapping[str, Partitions]) -> bool:
    if any(not used.read.is_plain for used in job.inputs):
        return True
    several = len({used.dataset_id for used in job.inputs}) > 1
    if several and draft.record.get("when") is not model.When.ANY and job.runtime != "dispatcher":
        return True
    if own is None or job.runtime == "dispatcher":
        return False
    if draft.record.has("execution_strategy", "PerPartition") and own.is_time:
        return True
    return any(known.get(used.dataset_id, own) != own for used in job.inputs)


def check_partitions(
    problems: Problems, drafts: list[Draft], known: Mapping[str, Partitions], unknown: Collection[str]
) -> None:
    """Positions of an input must say which of the job's scopes they belong to.

    `unknown`: datasets whose partitions are not known here.
    """
    for draft in drafts:
        outputs = [(known[o.dataset_id], item) for o, item in draft.outputs if o.dataset_id in known]
        for other, item in outputs[1:]:
            if other.by is not outputs[0][0].by or other.time_zone != outputs[0][0].time_zone:
                message = "the outputs of a job have the same partitions, which are those of its tasks"
                problems.add("spec.partitions_differ", item.at("dataset"), message, "split the job")
        for used, item in draft.inputs:
            theirs = known.get(used.dataset_id)
            per_partition = draft.record.has("execution_strategy", "PerPartition")  # which is checked below
            if theirs is None and used.dataset_id not in unknown and not per_partition:
                theirs = Partitions()
            if used.read.time_column is not None:
                if any(output.dataset_id in unknown for output, _ in draft.outputs):
                    continue
                _check_periods(problems, draft, item, theirs, outputs[0][0] if outputs else Partitions())
                continue
            if not outputs or theirs is None or used.read.what is not What.SCOPE:
                continue
            if not can_map(theirs, outputs[0][0]):
                message = f"no {theirs.by} of {used.dataset_id[:100]!r} belongs to one {outputs[0][0].by} of the job"
                suggestion = (
                    f"write partitions: {{ by: {theirs.by} }} for {draft.outputs[0][0].dataset_id[:100]}, "
                    "or read the input with read: all or read: latest"
                )
                if theirs.by is By.POSITION and outputs[0][0].is_time:
                    suggestion = (
                        f"add time_column: with the column that holds the time of a row, or {suggestion}"
                    )
                problems.add("spec.partitions_differ", item.at("from"), message, suggestion)


def _check_periods(
    problems: Problems, draft: Draft, item: YamlMap, theirs: Partitions | None, own: Partitions
) -> None:
    """A column of time maps positions to periods."""
    if theirs is not None and theirs.by is not By.POSITION:
        message = f"the input is by {theirs.by}, and time_column is for inputs by position"
        problems.add("spec.bad_time_column", item.at("time_column"), message, "remove time_column")
    elif draft.outputs and not own.is_time:
        output = draft.outputs[0][0].dataset_id
        message = (
            f"{output[:100]!r}, which the job writes, is by {own.by}, and time_column needs periods of time"
        )
        suggestion = f"add datasets: {{ {output[:100]}: {{ partitions: {{ by: hour }} }} }}"
        problems.add("spec.bad_time_column", item.at("time_column"), message, suggestion)


def check_per_partition(
    problems: Problems, ordered: list[Draft], known: Mapping[str, Partitions], unknown: Collection[str]
) -> None:
    """What the inputs of a `PerPartition` job tell must belong to partitions of the job.

    `ordered`: upstream first. `unknown`: datasets whose partitions are not known here.
    """
    ranged: set[str] = set()
    for draft in ordered:
        scoped = [(used, item) for used, item in draft.inputs if used.read.what is What.SCOPE]
        if draft.record.has("execution_strategy", "PerPartition") and scoped:
            _check_mapped(problems, draft, scoped, known, unknown, ranged)
        batches = draft.record.has("execution_strategy", "Bulk") or draft.record.has("operator", "aggregator")
        passes_on = not draft.record.has("operator", "splitter")
        if batches or (scoped and passes_on and all(used.dataset_id in ranged for used, _ in scoped)):
            ranged.update(output.dataset_id for output, _ in draft.outputs)


def _check_mapped(
    problems: Problems,
    draft: Draft,
    scoped: Sequence[tuple[Input, YamlMap]],
    known: Mapping[str, Partitions],
    unknown: Collection[str],
    ranged: Collection[str],
) -> None:
    datasets = [output.dataset_id for output, _ in draft.outputs] + [used.dataset_id for used, _ in scoped]
    first = next(
        (dataset_id for dataset_id in datasets if dataset_id in known or dataset_id in unknown), None
    )
    if first in unknown:
        return
    own = Partitions() if first is None else known[first]
    # `check_partitions` compares those that are known.
    mapped = {*unknown, *known} if own.is_named else ranged
    for used, item in scoped:
        if used.dataset_id not in mapped and used.read.time_column is None:
            wanted = f"one {own.by}" if own.is_named else "one partition"
            message = f"PerPartition: the positions of {used.dataset_id[:100]!r} do not belong to {wanted} of the job"
            suggestion = (
                f"declare partitions: {{ by: {own.by if own.is_named else 'day'} }} of that dataset"
                f"{'' if own.is_named else ' and of the output'}, or write execution_strategy: Bulk "
                "and batch: { size: 100 }, or remove execution_strategy to get one task per event"
            )
            problems.add("spec.unmapped_partitions", item.at("from"), message, suggestion)
