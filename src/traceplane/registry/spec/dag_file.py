"""The text of a DAG file becomes a `Dag`, or one `SpecInvalid` with every problem in it."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from traceplane.errors import NotFound
from traceplane.model.dag import Dag, Job
from traceplane.model.partitions import Partitions
from traceplane.registry.spec import (
    alerts,
    checks,
    datasets,
    fields,
    files,
    jobs,
    personal_data,
    scoping,
    sql_sizes,
    webhooks,
)
from traceplane.registry.spec.jobs import Draft
from traceplane.registry.spec.yaml_reader import MAX_BYTES, BadValue, Problems, YamlMap, compose


def parse(
    text: str,
    file: str,
    *,
    known_runtimes: frozenset[str],
    elsewhere: Mapping[str, Partitions] = {},
) -> Dag:
    """The DAG that this text declares; raises `SpecInvalid` with every problem, located in `file`.

    `elsewhere`: how datasets of other DAGs are partitioned. What follows from one that is not there is not checked.
    """
    problems = Problems(file)
    try:
        root = compose(text)
        sql_sizes.check(root)
        top: YamlMap = fields.whole_file(problems, root)
    except BadValue as bad:
        problems.add(*bad.details)
        raise problems.invalid() from None
    drafts = jobs.drafts_of(problems, top)
    jobs.check(problems, drafts, known_runtimes)
    records = [draft.record for draft in drafts]
    webhooks.check(problems, records, top)
    files.check(problems, records, top)
    alerts.check(problems, top, {draft.name for draft in drafts}, known_runtimes)
    producers = jobs.producers_of(problems, drafts)
    datasets.check(problems, top, drafts, producers)
    checks.check(problems, top, drafts, producers)
    personal_data.check(problems, top, drafts)
    below = datasets.read_by_virtual(problems, top)
    ordered = _order(problems, drafts, producers, below)
    scoping.check_reads(problems, drafts)
    partitions = scoping.known_partitions(problems, top, ordered, elsewhere)
    unknown = scoping.undetermined(top, ordered, partitions, producers)
    datasets.check_time_columns(problems, top, drafts, partitions)
    scoping.check_partitions(problems, drafts, partitions, unknown)
    scoping.check_ticks(problems, drafts, partitions, unknown)
    files.check_patterns(problems, records, partitions, unknown)
    scoping.check_per_partition(problems, ordered, partitions, unknown)
    datasets.check_positions(problems, top, partitions, unknown)
    if problems:
        raise problems.invalid()
    built = tuple(
        job
        for draft in ordered
        for job in scoping.with_scopes(
            top.get("dag"), draft, jobs.build(draft, top, known_runtimes), partitions
        )
    )
    built += tuple(alerts.build(top, jobs.execution_of(None, top), partitions))
    partitions |= {
        found: partitions[source] for found, source in alerts.sources(top).items() if source in partitions
    }
    declared = top.get("datasets") or {}
    produced: dict[str, Job | None] = {output.dataset_id: job for job in built for output in job.outputs}
    produced |= dict.fromkeys(below)
    checks.check_freshness(problems, top, produced)
    if problems:
        raise problems.invalid()
    alerts_about = alerts.sources(top)
    roles = personal_data.DatasetRoles(top, drafts, alerts_about)
    read = {used.dataset_id for job in built for used in job.inputs}.union(*below.values())
    return Dag(
        name=top.get("dag"),
        jobs=built,
        datasets=tuple(
            replace(
                alerts.with_declassified(
                    top, datasets.build(dataset_id, declared.get(dataset_id), producer, partitions)
                ),
                read_roles=roles.of(dataset_id, producer, "read_roles"),
                readers_of=alerts_about.get(dataset_id),
                write_roles=roles.of(dataset_id, producer, "write_roles"),
                checks=checks.build(declared.get(dataset_id)),
            )
            for dataset_id, producer in sorted(produced.items())
        ),
        external_datasets=tuple(sorted(read.difference(produced))),
        description=top.get("description") or "",
        **jobs.requirements_of(top),
    )


def load(path: str | Path, *, known_runtimes: frozenset[str]) -> Dag:
    """Parses a file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotFound("spec.unreadable", f"cannot read the DAG file: {error.strerror}", value=path) from None
    # Bytes that are not UTF-8 become lone surrogates, which `parse` refuses.
    return parse(data.decode(errors="surrogateescape"), str(path), known_runtimes=known_runtimes)


def _order(
    problems: Problems, drafts: list[Draft], producers: dict[str, int], below: dict[str, list[str]]
) -> list[Draft]:
    """Upstream first, otherwise in file order."""
    upstream = {
        index: {
            producers[read]
            for used, _ in draft.inputs
            for read in datasets.stored_below(used.dataset_id, below)
            if read in producers
        }
        for index, draft in enumerate(drafts)
    }
    while True:
        sorter = TopologicalSorter(upstream)
        try:
            sorter.prepare()
            break
        except CycleError as error:
            cycle = error.args[1][1:]
            start = cycle.index(min(cycle))
            cycle = cycle[start:] + cycle[:start]
            _report_cycle(problems, [drafts[index] for index in cycle], below)
            upstream[cycle[0]].remove(cycle[-1])  # so that the next cycle is found too
    ready: list[int] = []
    order: list[Draft] = []
    while sorter.is_active():
        for index in sorter.get_ready():
            heapq.heappush(ready, index)
        order.append(drafts[ready[0]])
        sorter.done(heapq.heappop(ready))
    return order


def _report_cycle(problems: Problems, cycle: list[Draft], below: dict[str, list[str]]) -> None:
    closing = {output.dataset_id for output, _ in cycle[-1].outputs}
    item = next(
        item for used, item in cycle[0].inputs if datasets.stored_below(used.dataset_id, below) & closing
    )
    path = " → ".join(draft.name for draft in [*cycle, cycle[0]])
    problems.add("spec.cycle", item.at("from"), f"jobs feed each other: {path}", "remove one of these inputs")
