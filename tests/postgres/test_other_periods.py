"""A dataset whose partitions become other periods: positions of the old ones are never taken for those of the new."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.control_plane import ControlPlane
from tests.docs_pages import page
from tests.postgres.test_scopes import dag, day, job
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.errors import Conflict
from traceplane.model.partitions import By, Partitions
from traceplane.registry.garbage import Policy, collect

DAYS = Partitions(By.DAY)


@pytest.fixture
async def plane(database_url: str) -> AsyncIterator[ControlPlane]:
    async with ControlPlane.open(database_url) as opened:
        yield opened


def rolled_up(by: str, *, wait_for: str = "any", days: str = "day", kept: str = "") -> str:
    """`kept`: the retention of the roll-up."""
    retention = f", retention: {kept}" if kept else ""
    datasets = f"{{a: {{partitions: {{by: {days}}}}}, j.out: {{partitions: {{by: {by}}}{retention}}}}}"
    jobs = job("d", "{from: {dataset: a}}") + job("j", f"{{from: {{dataset: d.out}}, wait_for: {wait_for}}}")
    return dag(jobs, datasets, ("a",))


def every_day(first: str, last: str) -> list[object]:
    return [day(DAYS.name(p)) for p in range(DAYS.position(first), DAYS.position(last) + 1)]


async def served(plane: ControlPlane, dataset: str = "j.out") -> list[str]:
    rows = await plane.sql(
        "select c.partition_key from datasets d join dataset_commits c on c.generation_id = d.current_generation_id"
        " where d.dataset_id = $1 and c.superseded_by is null order by c.range_start",
        dataset,
    )
    return [row["partition_key"] for row in rows]


async def built(plane: ControlPlane) -> int:
    """Lets a build come to rest; returns how many versions were cut over."""
    moved = 0
    for _ in range(4):
        moved += (await plane.builds.run_once()).cut_over
        await plane.run_all()
    return moved


async def deploy_and_fill(plane: ControlPlane, file: str, first: str, last: str) -> None:
    await plane.deploy(file)
    await plane.emit("a", every_day(first, last))  # type: ignore[arg-type]
    await plane.run_all()


@pytest.mark.parametrize(
    ("by", "then", "expected"),
    [
        ("week", "month", ["2026-01", "2026-02"]),
        ("month", "week", [f"2026-W{n:02}" for n in range(1, 9)]),
        ("day", "month", ["2026-01", "2026-02"]),
        ("week", "week, time_zone: Asia/Tokyo", [f"2026-W{n:02}" for n in range(1, 9)]),
    ],
)
async def test_a_rebuild_by_other_periods_has_those_and_no_others(
    plane: ControlPlane, by: str, then: str, expected: list[str]
) -> None:
    await deploy_and_fill(plane, rolled_up(by), "2026-01-01", "2026-02-20")
    before = await served(plane)
    plan = await plane.plan(rolled_up(then))
    assert "! j.out: its partitions change from" in plan.text
    await plane.deploy(rolled_up(then))
    assert await built(plane) == 1
    assert await served(plane) == expected
    await plane.rollback("scopes")
    assert await built(plane) == 0
    assert await served(plane) == before


async def test_a_week_that_begins_a_month_without_days_does_not_ask_for_it(plane: ControlPlane) -> None:
    await deploy_and_fill(
        plane, rolled_up("week"), "2026-01-27", "2026-01-28"
    )  # of a week that ends in February
    await plane.deploy(rolled_up("month"))
    assert await built(plane) == 1
    assert await served(plane) == ["2026-01"]


async def test_a_cutover_by_other_periods_never_serves_less(plane: ControlPlane) -> None:
    """February has no month yet, but weeks that readers have."""
    await deploy_and_fill(plane, rolled_up("week"), "2026-01-01", "2026-02-20")
    weeks = await served(plane)
    await plane.deploy(rolled_up("month", wait_for="all"))
    assert await built(plane) == 0
    with pytest.raises(Conflict, match=r"j\.out 2026-02"):
        await plane.cutover("scopes")
    assert await served(plane) == weeks
    await plane.emit("a", every_day("2026-02-21", "2026-02-28"))  # type: ignore[arg-type]
    await plane.run_all()
    assert await built(plane) == 1
    assert await served(plane) == ["2026-01", "2026-02"]


@pytest.mark.parametrize("then", ["month", "day, time_zone: Asia/Tokyo", "position"])
async def test_a_source_by_other_periods_begins_anew_if_asked(plane: ControlPlane, then: str) -> None:
    """Its events name the old periods."""
    await deploy_and_fill(plane, rolled_up("week"), "2026-01-01", "2026-01-20")
    by = "position" if then == "position" else "month"
    changed = rolled_up(by, days=then)
    assert "a: 20 events" in (await plane.plan(changed)).text
    with pytest.raises(Conflict, match="a: 20 events") as refused:
        await plane.deploy(changed)
    assert refused.value.code == "deploy.drops_data"
    await plane.deploy(changed, drop_missing=True)
    assert await built(plane) == 1
    assert await served(plane) == []
    assert await served(plane, "d.out") == []


async def test_positions_that_become_periods_are_dropped_if_asked(plane: ControlPlane) -> None:
    datasets = "{a: {partitions: {by: day}}}"
    jobs = job("d", "{from: {dataset: b}}")
    await plane.deploy(dag(jobs, datasets))
    await plane.emit("b", [1, 2])
    await plane.run_all()
    changed = dag(job("d", "{from: {dataset: a}}"), datasets)
    with pytest.raises(Conflict, match=r"d\.out: 2 scopes"):
        await plane.deploy(changed)
    await plane.deploy(changed, drop_missing=True)
    assert await built(plane) == 1
    assert await served(plane, "d.out") == []


async def test_what_was_dropped_by_other_periods_is_not_taken_for_the_new_ones(
    plane: ControlPlane, tmp_path: Path
) -> None:
    """Weeks before the 30 days; as positions, they are months of the 23rd century."""

    async def gc() -> None:
        await collect(
            plane.database, FolderObjectStore(tmp_path), Policy(timedelta(days=1), timedelta(days=3650))
        )

    await plane.set_clock(0)  # 2030-01-01
    after = job("k", "{from: {dataset: j.out}}")
    await deploy_and_fill(plane, rolled_up("week", kept="30d") + after, "2029-11-01", "2029-12-31")
    await gc()
    weeks = [f"2029-W{n:02}" for n in range(48, 53)] + ["2030-W01"]
    assert (await served(plane))[-len(weeks) :] == weeks
    assert len(await served(plane)) == len(weeks)
    await plane.deploy(rolled_up("month", kept="30d") + after, drop_missing=True)
    assert await built(plane) == 1
    assert await served(plane) == ["2029-11", "2029-12"]
    assert await served(plane, "k.out") == ["2029-11", "2029-12"]
    (dataset,) = [d for d in (await plane.status()).datasets if d.dataset == "j.out"]
    assert dataset.coverage is not None
    assert dataset.coverage.dropped is None
    await gc()
    assert await served(plane) == ["2029-12"]
    await plane.rollback("scopes", drop_missing=True)
    await built(plane)
    assert await served(plane) == weeks


async def test_the_plan_says_that_events_before_a_later_start_are_refused(plane: ControlPlane) -> None:
    await deploy_and_fill(plane, rolled_up("week"), "2026-01-01", "2026-01-20")
    plan = await plane.plan(rolled_up("week", days="day, start: 2026-01-10"))
    assert "! a: it starts at 2026-01-10 now; what it has of earlier days is still served" in plan.text
    months = await plane.plan(rolled_up("month"))
    assert "starts at" not in months.text
    weeks = await plane.plan(rolled_up("week", days="week"))
    documented = page("concepts/deploys.md")
    for said, first in ((plan, "! a: it starts"), (months, "! j.out: its"), (weeks, "No longer served")):
        (line,) = [line for line in said.text.splitlines() if line.startswith(first)]
        assert line.split(": ", 1)[-1].removesuffix(":") in documented
