"""Why some positions of a dataset are missing: followed upstream, to what somebody can do about it."""

from __future__ import annotations

from typing import Any

from traceplane.errors import NotFound
from traceplane.model.positions import Range, written
from traceplane.postgres import coverage
from traceplane.postgres.database import Transaction
from traceplane.wire.control import CoverageView, ReasonView, ScopeExplanation

_TASKS_TOLD = 3
_RANGES_FOLLOWED = 3
_DEEPEST = 20


def view(found: coverage.Coverage | None) -> CoverageView | None:
    if found is None or (found.first is None and not found.dead):
        return None
    return CoverageView(found.first, found.last, found.gap_count, found.gaps, found.dead)


async def explain(tx: Transaction, org: str, dataset_id: str, positions: Range) -> ScopeExplanation:
    asked = await coverage.asked(tx, org, dataset_id, positions)
    if asked is None:
        raise NotFound(
            "dataset.unknown",
            "there is no such dataset",
            value=dataset_id,
            next_step="see `traceplane datasets`",
        )
    missing = [(a, b) for a, b in asked["missing"] or ()]
    reasons = await _Why(tx, org).of(asked, missing)
    return ScopeExplanation(dataset_id, *positions, missing=tuple(missing), reasons=reasons)


class _Why:
    def __init__(self, tx: Transaction, org: str) -> None:
        self._tx, self._org = tx, org
        self._seen: set[tuple[str, Range]] = set()

    async def of(self, asked: dict[str, Any], missing: list[Range], depth: int = 0) -> list[ReasonView]:
        dataset = asked["dataset_id"]
        if not missing:
            return [ReasonView("held", f"{dataset} holds all of it.")]
        reasons: list[ReasonView] = []
        for positions in missing[:_RANGES_FOLLOWED]:
            if (dataset, positions) not in self._seen and depth < _DEEPEST:
                self._seen.add((dataset, positions))
                reasons += await self._one(asked, positions, depth)
        if len(missing) > _RANGES_FOLLOWED:
            reasons.append(
                ReasonView("more", f"{dataset} lacks {len(missing) - _RANGES_FOLLOWED} more ranges.")
            )
        return reasons

    async def _one(self, asked: dict[str, Any], positions: Range, depth: int) -> list[ReasonView]:
        dataset, job, where = asked["dataset_id"], asked["job"], written(positions)
        if job is None:
            return [ReasonView("no_job", f"{dataset} lacks {where}, and no deployed job makes it.")]
        if asked["activation"] == "source":
            sentence = (
                f"{dataset} lacks {where}: its source {asked['dag']}/{job} has never said anything of it."
            )
            if asked["source_kind"] in ("manual", "webhook", "cron"):
                first, last = positions
                scope = str(first) if first == last else f"{first}..{last}"
                sentence += f" If it is there to be read: `traceplane emit {dataset} {scope}`."
            return [ReasonView("source", sentence)]
        if asked["runtime"] == "dispatcher" and asked["operator"] == "aggregator" and asked["size"]:
            size = asked["size"]
            positions = positions[0] // size * size, positions[1] // size * size + size - 1
            where = f"the whole of {written(positions)}"
        tasks = await coverage.unfinished(self._tx, asked["job_id"], positions, _TASKS_TOLD)
        if tasks:
            return [_of_task(dataset, task) for task in tasks]
        reasons: list[ReasonView] = []
        for name in asked["inputs"]:
            read = await coverage.asked(self._tx, self._org, name, positions)
            if read is None or not (lacking := [(a, b) for a, b in read["missing"] or ()]):
                continue
            said = ", ".join(written(r) for r in lacking[:_RANGES_FOLLOWED])
            reasons.append(ReasonView("input", f"{dataset} waits for {where} of {name}, which lacks {said}."))
            reasons += await self.of(read, lacking, depth + 1)
        if reasons:
            return reasons
        if asked["runtime"] == "dispatcher":
            return [
                ReasonView(
                    "passes_on", f"{dataset} lacks {where}: {asked['dag']}/{job} has had no event about it."
                )
            ]
        if tasks := await coverage.canceled(self._tx, asked["job_id"], positions, _TASKS_TOLD):
            return [_of_task(dataset, task) for task in tasks]
        first, last = positions
        return [
            ReasonView(
                "never_asked",
                f"{dataset} lacks {where}: no event has asked {asked['dag']}/{job} for it. "
                f"`traceplane backfill {dataset} --range {first}:{last}` computes it.",
            )
        ]


def _of_task(dataset: str, task: dict[str, Any]) -> ReasonView:
    code = f" ({task['code']})" if task["code"] and task["state"] == "dead" else ""
    return ReasonView(
        f"task_{task['state']}",
        f"{dataset} {task['scope']}: task {task['task_id']} is {task['state']}{code}; "
        f"`traceplane explain {task['task_id']}` says why.",
    )
