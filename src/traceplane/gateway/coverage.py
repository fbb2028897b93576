"""Why some positions of a dataset are missing, or its rows outdated: followed upstream, to what somebody can do."""

from __future__ import annotations

from traceplane.gateway.refused_names import unknown_dataset, virtual_dataset
from traceplane.model.counted import counted
from traceplane.model.positions import Range, written
from traceplane.postgres import coverage
from traceplane.postgres.coverage import MissingPositions, Producer, ScopeTask
from traceplane.postgres.database import Transaction
from traceplane.wire.control import CoverageView, ReasonView, ScopeExplanation

_TASKS_TOLD = 3
_RANGES_FOLLOWED = 3
_DEEPEST = 20


def view(held: coverage.Coverage | None) -> CoverageView | None:
    if held is None or (held.first is None and not held.dead):
        return None
    return CoverageView(held.first, held.last, held.gap_count, held.gaps, held.dead)


async def explain(tx: Transaction, org: str, dataset_id: str, positions: Range) -> ScopeExplanation:
    dataset = await coverage.missing_positions(tx, org, dataset_id, positions)
    if dataset is None:
        raise await unknown_dataset(tx, org, dataset_id)
    if dataset.producer is None and (
        refusal := await virtual_dataset(tx, org, dataset_id, "explain what it reads:")
    ):
        raise refusal
    why = _Why(tx, org)
    reasons = await why.of(dataset) if dataset.missing else await why.outdated(dataset, positions)
    reasons = reasons or [ReasonView("held", f"{dataset_id} holds all of it.")]
    return ScopeExplanation(dataset_id, *positions, missing=dataset.missing, reasons=reasons)


class _Why:
    def __init__(self, tx: Transaction, org: str) -> None:
        self._tx, self._org = tx, org
        self._seen: set[tuple[str, Range]] = set()

    async def of(self, dataset: MissingPositions, depth: int = 0) -> list[ReasonView]:
        name, missing = dataset.dataset_id, dataset.missing
        reasons: list[ReasonView] = []
        for positions in missing[:_RANGES_FOLLOWED]:
            if (name, positions) not in self._seen and depth < _DEEPEST:
                self._seen.add((name, positions))
                reasons += await self._one(name, dataset.producer, positions, depth)
        if len(missing) > _RANGES_FOLLOWED:
            reasons.append(
                ReasonView("more", f"{name} lacks {counted(len(missing) - _RANGES_FOLLOWED, 'more range')}.")
            )
        return reasons

    async def outdated(self, dataset: MissingPositions, positions: Range, depth: int = 0) -> list[ReasonView]:
        """Tasks, of its own job or upstream, because of which it serves rows of an earlier event."""
        name, producer = dataset.dataset_id, dataset.producer
        if producer is None or producer.activation == "source" or depth == _DEEPEST:
            return []
        if (name, positions) in self._seen:
            return []
        self._seen.add((name, positions))
        if (size := producer.range_size) is not None:
            positions = positions[0] // size * size, positions[1] // size * size + size - 1
        tasks = await coverage.corrections(self._tx, producer.job_id, positions, _TASKS_TOLD)
        reasons = [_of_correction(name, task) for task in tasks]
        for used in producer.inputs:
            read = await coverage.missing_positions(self._tx, self._org, used, positions)
            if read is not None:
                reasons += await self.outdated(read, positions, depth + 1)
        return reasons

    async def _one(
        self, dataset: str, producer: Producer | None, positions: Range, depth: int
    ) -> list[ReasonView]:
        where = written(positions)
        if producer is None:
            return [ReasonView("no_job", f"{dataset} lacks {where}, and no deployed job makes it.")]
        if producer.activation == "source":
            return [_of_source(dataset, producer, positions)]
        if (size := producer.range_size) is not None:
            positions = positions[0] // size * size, positions[1] // size * size + size - 1
            where = f"the whole of {written(positions)}"
        tasks = await coverage.unfinished(self._tx, producer.job_id, positions, _TASKS_TOLD)
        if tasks:
            return [_of_task(dataset, task) for task in tasks]
        reasons = await self._of_inputs(dataset, producer, positions, where, depth)
        if reasons:
            return reasons
        job = f"{producer.dag}/{producer.job}"
        if producer.runtime == "dispatcher":
            return [ReasonView("passes_on", f"{dataset} lacks {where}: {job} has had no event about it.")]
        if tasks := await coverage.canceled(self._tx, producer.job_id, positions, _TASKS_TOLD):
            return [_of_task(dataset, task) for task in tasks]
        first, last = positions
        return [
            ReasonView(
                "never_asked",
                f"{dataset} lacks {where}: no event has asked {job} for it. "
                f"`traceplane backfill {dataset} --range {first}:{last}` computes it.",
            )
        ]

    async def _of_inputs(
        self, dataset: str, producer: Producer, positions: Range, where: str, depth: int
    ) -> list[ReasonView]:
        reasons: list[ReasonView] = []
        for name in producer.inputs:
            read = await coverage.missing_positions(self._tx, self._org, name, positions)
            if read is None or not read.missing:
                continue
            ranges = ", ".join(written(r) for r in read.missing[:_RANGES_FOLLOWED])
            reasons.append(
                ReasonView("input", f"{dataset} waits for {where} of {name}, which lacks {ranges}.")
            )
            reasons += await self.of(read, depth + 1)
        return reasons


def _of_source(dataset: str, source: Producer, positions: Range) -> ReasonView:
    job = f"{source.dag}/{source.job}"
    sentence = f"{dataset} lacks {written(positions)}: its source {job} has never emitted an event for it."
    if source.source_kind in ("manual", "webhook", "cron"):
        first, last = positions
        scope = str(first) if first == last else f"{first}..{last}"
        sentence += f" If the data is there: `traceplane emit {dataset} {scope}`."
    return ReasonView("source", sentence)


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


def _code(task: ScopeTask) -> str:
    return f" ({task.code})" if task.code and task.state == "dead" else ""


def _of_task(dataset: str, task: ScopeTask) -> ReasonView:
    return ReasonView(
        f"task_{task.state}",
        f"{dataset} {task.scope}: task {task.task_id} is {task.state}{_code(task)}; "
        f"`traceplane explain {task.task_id}` says why.",
    )
