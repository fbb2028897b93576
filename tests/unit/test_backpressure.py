"""The valve's decision as a pure function: what is held, at what level, and that it never deadlocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceplane.model.backpressure import (
    HOLD_ALL,
    HOLD_BACKFILL,
    Hold,
    JobFigures,
    Pressure,
    holds,
    pressure_of,
)

A, B, C, D, E = (UUID(int=n) for n in range(1, 6))


def figures(depth: int, level: int = 0, *, age: float = 0.0, max_depth: int | None = 100,
            max_age: float | None = None) -> JobFigures:  # fmt: skip
    return JobFigures(A, depth, age, max_depth, max_age, level)


def level(depth: int, current: int = 0) -> int:
    pressure = pressure_of(figures(depth, current))
    return 0 if pressure is None else pressure.level


def under_pressure(job_id: UUID, level: int = HOLD_ALL) -> Pressure:
    return Pressure(job_id, level, "queue_depth", 100.0, 100.0)


def held(pressures: Iterable[Pressure], edges: list[tuple[UUID, UUID]]) -> dict[UUID, Hold]:
    found = holds(pressures, edges)
    assert len({hold.job_id for hold in found}) == len(found)
    return {hold.job_id: hold for hold in found}


# One job --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("depth", "expected"), [(0, 0), (79, 0), (80, 1), (99, 1), (100, 2), (1000, 2)])
def test_backfill_is_held_first_and_then_everything(depth: int, expected: int) -> None:
    assert level(depth) == expected


@pytest.mark.parametrize(
    ("current", "depth", "expected"),
    [
        (2, 99, 2),
        (2, 71, 2),
        (2, 70, 1),
        (2, 51, 1),
        (2, 50, 0),
        (1, 79, 1),
        (1, 51, 1),
        (1, 50, 0),
        (1, 100, 2),
    ],
)
def test_a_hold_ends_with_hysteresis(current: int, depth: int, expected: int) -> None:
    assert level(depth, current) == expected


def test_the_queue_has_to_halve_before_a_level_that_ended_can_matter_again() -> None:
    """A queue that swings around a threshold does not open and close the valve with every swing."""
    current, changes = 0, 0
    for depth in [100, 95, 100, 90, 99, 80, 100, 75] * 10:
        after = level(depth, current)
        changes += after != current
        current = after
    assert changes == 1


def test_the_worse_of_depth_and_age_counts_and_is_named() -> None:
    pressure = pressure_of(figures(85, age=130.0, max_age=100.0))
    assert pressure == Pressure(A, HOLD_ALL, "queue_age_seconds", 130.0, 100.0)
    pressure = pressure_of(figures(120, age=10.0, max_age=100.0))
    assert pressure == Pressure(A, HOLD_ALL, "queue_depth", 120.0, 100)


def test_a_job_without_a_threshold_is_never_under_pressure() -> None:
    assert pressure_of(figures(10**9, 2, age=10.0**9, max_depth=None)) is None


# The graph ------------------------------------------------------------------------------------------


def test_everything_upstream_is_held_and_the_job_itself_is_not() -> None:
    found = held([under_pressure(D)], [(A, B), (B, C), (C, D), (D, E)])
    assert {job: hold.path for job, hold in found.items()} == {C: (C, D), B: (B, C, D), A: (A, B, C, D)}


def test_siblings_and_other_branches_continue() -> None:
    found = held([under_pressure(C)], [(A, C), (A, D), (B, D)])
    assert set(found) == {A}


def test_the_higher_level_wins_whatever_the_order() -> None:
    edges = [(A, B), (A, C)]
    low, high = under_pressure(B, HOLD_BACKFILL), under_pressure(C, HOLD_ALL)
    for pressures in ([low, high], [high, low]):
        assert held(pressures, edges)[A].level == HOLD_ALL


def test_the_shortest_path_to_the_pressure_is_named() -> None:
    assert held([under_pressure(D)], [(A, B), (B, D), (A, D)])[A].path == (A, D)


def test_jobs_that_feed_each_other_are_walked_once() -> None:
    assert set(held([under_pressure(A)], [(A, B), (B, A)])) == {B}
    assert set(held([under_pressure(A)], [(A, A)])) == set()


# Any graph ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Graph:
    size: int
    edges: tuple[tuple[int, int], ...]

    @property
    def ids(self) -> list[UUID]:
        return [UUID(int=n) for n in range(self.size)]

    @property
    def edge_ids(self) -> list[tuple[UUID, UUID]]:
        return [(UUID(int=a), UUID(int=b)) for a, b in self.edges]

    def downstream(self, job: int) -> set[int]:
        found: set[int] = set()
        waiting = [job]
        while waiting:
            current = waiting.pop()
            for a, b in self.edges:
                if a == current and b not in found:
                    found.add(b)
                    waiting.append(b)
        return found


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    size = draw(st.integers(1, 9))
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    return Graph(
        size, tuple(draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else ())
    )


@given(graphs(), st.data())
def test_exactly_the_producers_of_a_job_under_pressure_are_held_at_the_highest_level(
    graph: Graph, data: st.DataObject
) -> None:
    levels = data.draw(st.lists(st.integers(0, 2), min_size=graph.size, max_size=graph.size))
    pressures = [under_pressure(UUID(int=job), level) for job, level in enumerate(levels) if level]
    found = held(pressures, graph.edge_ids)
    for job in range(graph.size):
        highest = max((levels[below] for below in graph.downstream(job)), default=0)
        hold = found.get(UUID(int=job))
        assert (hold.level if hold else 0) == highest
        if hold:
            steps = [(a.int, b.int) for a, b in zip(hold.path, hold.path[1:], strict=False)]
            assert hold.path[0] == hold.job_id
            assert set(steps) <= set(graph.edges)
            assert levels[hold.path[-1].int] == hold.level


@given(graphs(), st.data())
def test_a_job_under_pressure_is_held_only_for_another_one_further_down(
    graph: Graph, data: st.DataObject
) -> None:
    """So the lowest job under pressure always drains: no set of holds can lock itself up."""
    pressed = data.draw(st.sets(st.integers(0, graph.size - 1)))
    found = held([under_pressure(UUID(int=job)) for job in pressed], graph.edge_ids)
    for job in pressed:
        if UUID(int=job) in found:
            assert graph.downstream(job) & pressed - {job}
    assert not pressed or any(UUID(int=job) not in found for job in pressed)


@settings(max_examples=150)
@given(graphs(), st.data())
def test_backpressure_bounds_the_queue_and_never_deadlocks(graph: Graph, data: st.DataObject) -> None:
    """Work flows through any graph with any thresholds: queues behind a producer stay within threshold plus
    what was in flight, and in the end all is done and nothing is held."""
    threshold = data.draw(st.lists(st.none() | st.integers(1, 6), min_size=graph.size, max_size=graph.size))
    slots = data.draw(st.lists(st.integers(1, 3), min_size=graph.size, max_size=graph.size))
    consumers = {job: [b for a, b in graph.edges if a == job] for job in range(graph.size)}
    producers = {job: [a for a, b in graph.edges if b == job] for job in range(graph.size)}
    sources = [job for job in range(graph.size) if not producers[job]]
    queue = dict.fromkeys(range(graph.size), 0) | dict.fromkeys(sources, data.draw(st.integers(0, 25)))
    levels = dict.fromkeys(range(graph.size), 0)
    for _ in range(10_000):
        found = _decide(queue, threshold, levels, graph)
        if not any(queue.values()):
            assert not found
            return
        # Every job that is not held works off as much as it has slots for; what it finishes flows on.
        done = {job: min(queue[job], slots[job]) for job in queue if UUID(int=job) not in found}
        assert any(done.values()), f"deadlock: {queue} held: {sorted(job.int for job in found)}"
        for job, count in done.items():
            queue[job] -= count
            for consumer in consumers[job]:
                queue[consumer] += count
        for job, limit in enumerate(threshold):
            if limit is not None and producers[job]:
                assert queue[job] <= limit + sum(slots[producer] for producer in producers[job])
    raise AssertionError("it never ended")


def _decide(
    queue: Mapping[int, int], threshold: list[int | None], levels: dict[int, int], graph: Graph
) -> dict[UUID, Hold]:
    found = []
    for job, limit in enumerate(threshold):
        pressure = pressure_of(JobFigures(UUID(int=job), queue[job], 0.0, limit, None, levels[job]))
        levels[job] = pressure.level if pressure else 0
        if pressure is not None and pressure.level == HOLD_ALL:
            found.append(pressure)
    return held(found, graph.edge_ids)
