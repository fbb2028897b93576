"""The valve's decision, as a pure function: which producers are held, at what level, and because of which job.

A job is under pressure when its queue is deeper or older than its threshold. Level 1 (from 80 % of the
threshold) holds backfill tasks of every upstream job, level 2 (from 100 %) holds all their tasks. Holds are
released with hysteresis: level 2 only below 70 %, level 1 only below 50 %.

Only the *producers* of a job under pressure are held, never the job itself, so a queue over its threshold can
always drain. What an aggregator has received but not yet emitted is not a task and counts in no queue, so
waiting for a full range can never hold the inputs that would fill it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

HOLD_BACKFILL = 1
HOLD_ALL = 2

_ENTER = {HOLD_ALL: 1.0, HOLD_BACKFILL: 0.8}
_LEAVE = {HOLD_ALL: 0.7, HOLD_BACKFILL: 0.5}


@dataclass(frozen=True, slots=True)
class JobFigures:
    job_id: UUID
    depth: int
    age_seconds: float
    max_depth: int | None
    max_age_seconds: float | None
    level: int
    """The job's current level; 0 if it is not under pressure."""


@dataclass(frozen=True, slots=True)
class Pressure:
    job_id: UUID
    level: int
    metric: str
    figure: float
    threshold: float


@dataclass(frozen=True, slots=True)
class Hold:
    job_id: UUID
    level: int
    path: tuple[UUID, ...]
    """From the held job down the edges to the job under pressure."""


def pressure_of(figures: JobFigures) -> Pressure | None:
    """The worse of a job's two figures, judged with hysteresis from its current level."""
    candidates = []
    for metric, figure, threshold in (
        ("queue_depth", float(figures.depth), figures.max_depth),
        ("queue_age_seconds", figures.age_seconds, figures.max_age_seconds),
    ):
        if threshold is not None:
            level = _level(figure / threshold, figures.level)
            if level:
                candidates.append(
                    (level, figure / threshold, Pressure(figures.job_id, level, metric, figure, threshold))
                )
    return max(candidates, key=lambda c: c[:2])[2] if candidates else None


def _level(share: float, current: int) -> int:
    for level in (HOLD_ALL, HOLD_BACKFILL):
        if share >= _ENTER[level] or (current >= level and share > _LEAVE[level]):
            return level
    return 0


def holds(pressures: Iterable[Pressure], edges: Sequence[tuple[UUID, UUID]]) -> tuple[Hold, ...]:
    """Every job upstream of one under pressure, once, at the highest level that applies to it."""
    producers: dict[UUID, list[UUID]] = {}
    for producer, consumer in edges:
        producers.setdefault(consumer, []).append(producer)
    holds_by_job: dict[UUID, Hold] = {}
    for pressure in sorted(pressures, key=lambda p: -p.level):
        for job_id, path in _upstream(pressure.job_id, producers).items():
            holds_by_job.setdefault(job_id, Hold(job_id, pressure.level, path))
    return tuple(holds_by_job.values())


def _upstream(job_id: UUID, producers: Mapping[UUID, Sequence[UUID]]) -> dict[UUID, tuple[UUID, ...]]:
    paths: dict[UUID, tuple[UUID, ...]] = {}
    waiting: deque[tuple[UUID, tuple[UUID, ...]]] = deque([(job_id, (job_id,))])
    while waiting:
        current, path = waiting.popleft()
        for producer in producers.get(current, ()):
            if producer not in paths and producer != job_id:
                paths[producer] = (producer, *path)
                waiting.append((producer, paths[producer]))
    return paths
