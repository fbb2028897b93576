"""Why some positions of a dataset are missing, or its rows outdated: followed upstream, to what somebody can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import msgspec

from traceplane.auth.rights import Access
from traceplane.gateway import cron_sources
from traceplane.gateway import partition_names as names
from traceplane.gateway.refused_names import unknown_dataset, virtual_dataset
from traceplane.model.counted import counted
from traceplane.model.edges import EVERYTHING, Edge, WaitFor, What
from traceplane.model.partitions import By, Partitions
from traceplane.model.positions import Range, common, without
from traceplane.operators import catalog
from traceplane.postgres import aggregator, coverage, registry, scopes
from traceplane.postgres.coverage import MissingPositions, Producer, ScopeTask
from traceplane.postgres.database import Transaction
from traceplane.wire.control import CoverageView, CronView, ReasonView, ScopeExplanation

_TASKS_TOLD = 3
_TASKS_COUNTED = 100
_RANGES_FOLLOWED = 3
_RANGES_WRITTEN = 10
_DEEPEST = 20


def view(held: coverage.Coverage | None) -> CoverageView | None:
    if held is None or (held.first is None and not held.dead and held.dropped is None):
        return None
    if _is_whole(held):  # it has rows without positions
        return CoverageView(dead=held.dead) if held.dead else None
    if held.partitions.by is By.NAME:  # between names there is nothing
        return CoverageView(dead=held.dead, dropped=held.dropped, dropped_name=_dropped_names(held))
    view = CoverageView(held.first, held.last, held.gap_count, held.gaps, held.dead, dropped=held.dropped)
    if held.dropped is not None:
        dropped = held.partitions.written(held.dropped)
        view = msgspec.structs.replace(view, dropped_name=dropped, dropped_ranges=held.dropped_ranges)
    if not held.partitions.is_named or held.first is None or held.last is None:
        return view
    name = held.partitions.name
    return msgspec.structs.replace(
        view,
        first_name=name(held.first),
        last_name=name(held.last),
        gap_names=tuple((name(a), name(b)) for a, b in held.gaps),
    )


def _is_whole(held: coverage.Coverage) -> bool:
    """Whether it is the result of one task about everything, such as a query's."""
    return (held.first, held.last) == EVERYTHING


def _dropped_names(held: coverage.Coverage) -> str | None:
    names, more = ", ".join(held.dropped_names), held.dropped_count - len(held.dropped_names)
    return (f"{names} and {more} more" if more else names) or None


def last_position(cursor: int | None, held: coverage.Coverage | None) -> tuple[int | None, str | None]:
    """The last position of a dataset and its name. Partitions by name have no order, so none is the last."""
    if held is not None and _is_whole(held):
        return None, None
    if cursor is None or held is None or not held.partitions.is_named:
        return cursor, None
    return (None, None) if held.partitions.by is By.NAME else (cursor, held.partitions.name(cursor))


async def explain(
    tx: Transaction, org: str, dataset_id: str, first: str | int, last: str | int, access: Access
) -> ScopeExplanation:
    """`first` and `last`: positions, or names of partitions."""
    target = (await registry.datasets_by_id(tx, org, [dataset_id])).get(dataset_id)
    if target is None or not access.reads(dataset_id):
        raise await unknown_dataset(tx, org, dataset_id, access)
    partitions = await names.with_names(tx, org, target.partitions, first, last)
    positions = names.positions(partitions, first, last)
    dataset = await coverage.missing_positions(tx, org, dataset_id, positions)
    if dataset is None:
        raise await unknown_dataset(tx, org, dataset_id, access)
    if dataset.producer is None and (
        refusal := await virtual_dataset(tx, org, dataset_id, "explain what it reads:", access)
    ):
        raise refusal
    why = _Why(tx, org, access)
    reasons = [_of_dropped(dataset, dropped) for dropped in dataset.dropped[:_RANGES_FOLLOWED]]
    reasons += await why.of(dataset) if dataset.missing else await why.outdated(dataset, positions)
    reasons = reasons or [ReasonView("held", f"{dataset_id} holds all of it.")]
    return ScopeExplanation(
        dataset_id,
        *positions,
        missing=dataset.missing,
        reasons=reasons,
        scope=partitions.written(positions),
        missing_scopes=tuple(map(partitions.written, dataset.missing)),
    )


class _Why:
    def __init__(self, tx: Transaction, org: str, access: Access) -> None:
        self._tx, self._org, self._access = tx, org, access
        self._seen: set[tuple[str, Range]] = set()

    async def of(self, dataset: MissingPositions, depth: int = 0) -> list[ReasonView]:
        name, missing = dataset.dataset_id, dataset.missing
        reasons: list[ReasonView] = []
        for positions in missing[:_RANGES_FOLLOWED]:
            if (name, positions) not in self._seen and depth < _DEEPEST:
                self._seen.add((name, positions))
                reasons += await self._one(dataset, positions, depth)
        if len(missing) > _RANGES_FOLLOWED:
            reasons.append(
                ReasonView("more", f"{name} lacks {counted(len(missing) - _RANGES_FOLLOWED, 'more range')}.")
            )
        return reasons

    async def outdated(self, dataset: MissingPositions, positions: Range, depth: int = 0) -> list[ReasonView]:
        """Tasks, of its own job or upstream, because of which it serves rows of an earlier event, or was computed
        without some of its input."""
        name, producer = dataset.dataset_id, dataset.producer
        if producer is None or producer.activation == "source" or depth == _DEEPEST:
            return []
        if (name, positions) in self._seen:
            return []
        self._seen.add((name, positions))
        if (size := producer.range_size) is not None:
            positions = _whole_ranges(dataset.partitions, positions, size)
        tasks = await coverage.corrections(self._tx, producer.job_id, positions, _TASKS_COUNTED)
        lacking = [task for task in tasks if any(a <= task.first <= b for a, b in dataset.missing)]
        reasons = _of_tasks(name, lacking, _of_lacking)
        reasons += _of_tasks(name, [task for task in tasks if task not in lacking], _of_correction)
        for used in await self._inputs_of(producer, What.SCOPE):
            if (read_positions := await self._reads(used, positions)) is None:
                continue
            read = await coverage.missing_positions(self._tx, self._org, used.dataset_id, read_positions)
            if read is not None:
                reasons += await self.outdated(read, read_positions, depth + 1)
        return reasons

    async def _inputs_of(self, producer: Producer, *what: What) -> list[_Input]:
        """The datasets of which a job reads so much, and how; those that the caller may read."""
        (row,) = await registry.job_payloads(self._tx, [producer.job_id])
        edges = {i.input_index: edge for i, edge in row.edges()}
        inputs = [
            _Input(row.job_id, used["input_index"], used["dataset_id"], edges[used["input_index"]])
            for used in row.inputs
        ]
        return [u for u in inputs if u.edge.read.what in what and self._access.reads(u.dataset_id)]

    def _named(self, dataset_id: str) -> str:
        return dataset_id if self._access.reads(dataset_id) else "a dataset that you may not read"

    async def _reads(self, used: _Input, positions: Range) -> Range | None:
        """What a scope reads of an input; None if it has no rows of that time."""
        if used.edge.read.time_column is None:
            return used.edge.reads(positions)
        (found,) = await scopes.positions_in_periods(self._tx, [(used.job_id, used.input_index, positions)])
        return found

    async def _one(self, read: MissingPositions, positions: Range, depth: int) -> list[ReasonView]:
        dataset, producer, written = read.dataset_id, read.producer, read.partitions.written
        where = written(positions)
        if producer is None:
            return [ReasonView("no_job", f"{dataset} lacks {where}, and no deployed job makes it.")]
        if producer.activation == "source":
            return [await self._of_source(read, producer, positions)]
        open_batch = await self._of_open_batch(read, producer, positions)
        if (size := producer.range_size) is not None:
            positions = _whole_ranges(read.partitions, positions, size)
            where = f"the whole of {written(positions)}"
        # Each scope of a range may lack for a reason of its own.
        tasks = await coverage.unfinished(self._tx, producer.job_id, positions, _TASKS_COUNTED)
        reasons = [*open_batch, *_of_tasks(dataset, tasks, _of_task)]
        if not reasons:
            reasons = await self._of_scopes(dataset, producer, positions, where)
        if positions[0] < positions[1] or not reasons:
            reasons += await self._of_inputs(dataset, producer, positions, where, depth)
            reasons += await self._of_canceled(dataset, producer, positions, tasks)
        if reasons:
            return reasons
        job = f"{producer.dag}/{producer.job}"
        if not self._access.is_told(producer.dag, producer.job):
            sentence = f"{dataset} lacks {where}: {job} also reads datasets that you may not read, which may lack it."
            return [ReasonView("input", sentence)]
        if producer.runtime == "dispatcher":
            return [ReasonView("passes_on", f"{dataset} lacks {where}: {job} has had no event about it.")]
        first, last = map(read.partitions.name, positions)
        ticks = [_ticks(cron) for cron in await cron_sources.views(self._tx, self._org, dataset)]
        return [
            ReasonView(
                "never_asked",
                f"{dataset} lacks {where}: no event has asked {job} for it.{''.join(ticks)} "
                f"`traceplane backfill {dataset} --range {first}..{last}` computes it.",
            )
        ]

    async def _of_scopes(
        self, dataset: str, producer: Producer, positions: Range, where: str
    ) -> list[ReasonView]:
        """Tasks that have yet to find out whether the scope is ready."""
        for used in await self._inputs_of(producer, What.SCOPE):
            reads = await self._reads(used, positions)
            tasks = [] if reads is None else await coverage.finding_scopes(self._tx, producer.job_id, reads)
            if tasks:
                return [
                    ReasonView(
                        "task_queued",
                        f"{dataset} {where}: task {tasks[0].task_id} is {tasks[0].state}, which finds out whether it"
                        f" is ready; `traceplane explain {tasks[0].task_id}` says why.",
                    )
                ]
        return []

    async def _of_open_batch(
        self, read: MissingPositions, producer: Producer, positions: Range
    ) -> list[ReasonView]:
        """What the batch that a position will be in has, what it waits for, and when it is closed anyway."""
        if producer.operator not in catalog.batching():
            return []
        batch = await aggregator.filling(
            self._tx, producer.job_id, read.partitions, positions[0], producer.range_size
        )
        if batch is None:
            return []
        (row,) = await registry.job_payloads(self._tx, [producer.job_id])
        config, job = row.definition.config, row.definition.generated_for or producer.job
        at = None if batch.closes_at is None else f"at {batch.closes_at:%Y-%m-%d %H:%M:%S} UTC"
        if config.get("all"):
            closing = f"It is closed when {job} has done the batch before."
        elif producer.range_size is None:
            closing = f"It is closed {at}."
        else:
            waits = _ranges(read.partitions, batch.waits_for)
            waits = waits or f"a position {config.get('finality')} beyond its end"
            closing = f"It waits for {waits}" + (f", and is closed as it is {at}." if at else ".")
        return [
            ReasonView(
                "open_batch",
                f"{read.dataset_id} lacks {read.partitions.written(positions)}: an open batch of "
                f"{self._named(row.inputs[0]['dataset_id'])} has {_ranges(read.partitions, batch.arrived)}. {closing} "
                f"`traceplane batch close {producer.dag} {job}` closes it at once.",
            )
        ]

    async def _of_canceled(
        self, dataset: str, producer: Producer, positions: Range, unfinished: Sequence[ScopeTask]
    ) -> list[ReasonView]:
        """The last canceled task of each scope that has no other one."""
        if producer.runtime == "dispatcher":
            return []
        tasks = await coverage.canceled(self._tx, producer.job_id, positions, _TASKS_COUNTED)
        last = {task.scope: task for task in reversed(tasks)}
        others = {task.scope for task in unfinished}
        return _of_tasks(dataset, [task for scope, task in last.items() if scope not in others], _of_task)

    async def _of_source(self, read: MissingPositions, source: Producer, positions: Range) -> ReasonView:
        dataset, job = read.dataset_id, f"{source.dag}/{source.job}"
        where = read.partitions.written(positions)
        sentence = f"{dataset} lacks {where}: its source {job} has never emitted an event for it."
        for cron in await cron_sources.views(self._tx, self._org, dataset):
            sentence += _ticks(cron)
        if source.source_kind in ("manual", "webhook", "cron"):
            first, last = map(read.partitions.name, positions)
            scope = first if first == last else f"{first}..{last}"
            sentence += f" If the data is there: `traceplane emit {dataset} {scope}`."
        return ReasonView("source", sentence)

    async def _of_inputs(
        self, dataset: str, producer: Producer, positions: Range, where: str, depth: int
    ) -> list[ReasonView]:
        reasons: list[ReasonView] = []
        for used in await self._inputs_of(producer, What.ALL, What.LATEST):
            name = used.dataset_id
            read = await coverage.missing_positions(self._tx, self._org, name, positions)
            if used.edge.read.wait_for is not WaitFor.NOTHING and read is not None and read.begins is None:
                reasons.append(ReasonView("input", f"{dataset} waits for the first rows of {name}."))
        for used in await self._inputs_of(producer, What.SCOPE):
            name, reads = used.dataset_id, await self._reads(used, positions)
            if used.edge.read.time_column is not None:
                reasons += await self._of_times(dataset, used, positions, where, reads)
            if reads is None:
                continue
            read = await coverage.missing_positions(self._tx, self._org, name, reads)
            missing = _waited_for(read, used.edge, positions) if read is not None else ()
            if read is not None:
                reasons += [_of_dropped(read, dropped) for dropped in read.dropped[:_RANGES_FOLLOWED]]
            if read is None or not missing:
                continue
            ranges = ", ".join(read.partitions.written(r) for r in missing[:_RANGES_FOLLOWED])
            reasons.append(
                ReasonView("input", f"{dataset} waits for {where} of {name}, which lacks {ranges}.")
            )
            reasons += await self.of(replace(read, missing=tuple(missing)), depth + 1)
        return reasons

    async def _of_times(
        self, dataset: str, used: _Input, positions: Range, where: str, reads: Range | None
    ) -> list[ReasonView]:
        """Of an input that is read by a column of time: whether it has rows of that time, and later ones."""
        wait_for, name = used.edge.read.wait_for, used.dataset_id
        if wait_for in (WaitFor.ALL, WaitFor.END):
            later = positions[1] + 1, EVERYTHING[1]
            if (await scopes.positions_in_periods(self._tx, [(used.job_id, used.input_index, later)]))[
                0
            ] is None:
                sentence = (
                    f"{dataset} waits for rows of {name} that are later than {where}: it may not be over."
                )
                return [ReasonView("input", sentence)]
        if reads is None and wait_for is not WaitFor.NOTHING:
            return [ReasonView("input", f"{dataset} lacks {where}: {name} has no rows of that time.")]
        return []


@dataclass(frozen=True, slots=True)
class _Input:
    job_id: UUID
    input_index: int
    dataset_id: str
    edge: Edge


def _ticks(cron: CronView) -> str:
    last = "It has had no tick yet" if cron.last_tick is None else f"Its last tick was {cron.last_tick}"
    return f" {last}, its next one is {cron.next_tick}." if cron.next_tick is not None else f" {last}."


def _whole_ranges(partitions: Partitions, positions: Range, size: int) -> Range:
    """From the first to the last position of the aligned ranges that some positions are in."""
    first, last = (partitions.aligned_range(position, size) for position in positions)
    return first[0], last[1]


def _ranges(partitions: Partitions, ranges: Sequence[Range]) -> str:
    """The first of them, and how many others there are."""
    more = (
        f" and {counted(len(ranges) - _RANGES_WRITTEN, 'more range')}"
        if len(ranges) > _RANGES_WRITTEN
        else ""
    )
    return ", ".join(map(partitions.written, ranges[:_RANGES_WRITTEN])) + more


def _waited_for(read: MissingPositions, edge: Edge, positions: Range) -> Sequence[Range]:
    """What of an input is missing for a scope; a window that reaches back beyond its first position needs nothing
    there."""
    if edge.read.time_column is not None:
        return read.missing if edge.read.wait_for is WaitFor.ALL else ()
    begins, own = read.begins, edge.own(positions)
    if edge.read.wait_for is WaitFor.NOTHING:
        return ()
    if edge.read.wait_for is WaitFor.ANY:  # which is there unless all of the scope is missing
        return common(read.missing, [own]) if not without([own], read.missing) else ()
    first = own[0] if begins is None else min(begins, own[0])
    clipped = [(max(a, first), b) for a, b in read.missing]
    return tuple((a, b) for a, b in clipped if a <= b)


def _of_dropped(dataset: MissingPositions, positions: Range) -> ReasonView:
    where, (first, last) = dataset.partitions.written(positions), map(dataset.partitions.name, positions)
    return ReasonView(
        "dropped",
        f"{dataset.dataset_id} has dropped {where}: it is older than the dataset's retention. "
        f"`traceplane backfill {dataset.dataset_id} --range {first}..{last}` computes it again,"
        " if what it reads is still there.",
    )


def _of_tasks(
    dataset: str, tasks: Sequence[ScopeTask], reason: Callable[[str, ScopeTask], ReasonView]
) -> list[ReasonView]:
    """The first tasks, and how many others there are."""
    reasons = [reason(dataset, task) for task in tasks[:_TASKS_TOLD]]
    if (others := len(tasks) - _TASKS_TOLD) > 0:
        least = "at least " if len(tasks) == _TASKS_COUNTED else ""
        reasons.append(ReasonView("more", f"{dataset}: {least}{counted(others, 'more task')} like these."))
    return reasons


def _of_correction(dataset: str, task: ScopeTask) -> ReasonView:
    which = f"{dataset} {task.scope}: task {task.task_id} is {task.state}{_code(task)}"
    if task.state != "dead":
        return ReasonView(
            "updating",
            f"{which}; until it is done, the rows of an earlier event are served.",
        )
    return ReasonView(
        "outdated",
        f"{which}, so the rows of an earlier event are served; `traceplane explain {task.task_id}` says why.",
    )


def _of_lacking(dataset: str, task: ScopeTask) -> ReasonView:
    return ReasonView(
        "input",
        f"{dataset} {task.scope} is missing: task {task.task_id} is {task.state}{_code(task)}; "
        f"`traceplane explain {task.task_id}` says why.",
    )


def _code(task: ScopeTask) -> str:
    return f" ({task.code})" if task.code and task.state == "dead" else ""


def _of_task(dataset: str, task: ScopeTask) -> ReasonView:
    return ReasonView(
        f"task_{task.state}",
        f"{dataset} {task.scope}: task {task.task_id} is {task.state}{_code(task)}; "
        f"`traceplane explain {task.task_id}` says why.",
    )
