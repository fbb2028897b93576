"""What `traceplane top` shows of two looks at a platform."""

from __future__ import annotations

from uuid import UUID

from traceplane.cli.top import Reading, lines
from traceplane.wire.control import DatasetView, FailureView, StatusResponse


def reading(at: float, commits: int, rows: int) -> Reading:
    failure = FailureView("shop", "totals", "dead", 2, "operator.raised", "no quotes", UUID(int=7))
    dataset = DatasetView("shop.sales", commits, rows, 10 * rows)
    counts = {"shop/sales": {"queued": 3, "dispatched": 1, "running": 1}}
    return Reading(at, StatusResponse(counts, [dataset], 0.0, failed=[failure]))


def test_tasks_are_counted_by_job_and_growth_by_second() -> None:
    shown = list(lines(reading(12.0, 30, 5_000), reading(10.0, 20, 1_000)))
    assert shown[0].split() == ["job", "queued", "running", "retrying", "dead"]
    assert [line.split() for line in shown[1:3]] == [
        ["shop/sales", "3", "2", "·", "·"],
        ["shop/totals", "·", "·", "·", "2"],
    ]
    assert shown[5].split()[:3] == ["shop.sales", "5.0", "2,000"]
    assert "failed:" in shown


def test_the_first_look_knows_no_rates() -> None:
    (line,) = (line for line in lines(reading(1.0, 2, 3), None) if line.startswith("shop.sales "))
    assert line.split()[1:3] == ["2", "commits,"]
