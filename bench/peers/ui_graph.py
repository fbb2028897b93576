"""The graph that both sides of `bench.ui_dagster` show: a source, stages of ten jobs, and a dataset for each job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

JOBS = 250
"""The source included, with as many datasets: 500 nodes."""
PARTITIONS = 50_000
"""Of the dataset `r1`. The partitions of Dagster's asset are hours, which it stores as ranges of time."""
_STAGE = 10
_FIRST_HOUR = datetime(2020, 1, 1, tzinfo=UTC)


def reads(job: int) -> list[int]:
    """The datasets that a job reads, by number: two of the stage before, or that of the source."""
    if job <= _STAGE:
        return [0] if job else []
    before = job - _STAGE
    first = before - (before - 1) % _STAGE
    return sorted({before, first + (before - first + 1) % _STAGE})


def hour(partition: int) -> str:
    """As Dagster writes it."""
    return f"{_FIRST_HOUR + timedelta(hours=partition):%Y-%m-%d-%H:%M}"
