"""Which tasks' executors read and write the bucket themselves."""

from __future__ import annotations

from uuid import uuid4

import pytest

from traceplane.operators import catalog
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import ClaimedTask, InputFile, JobPayload
from traceplane.worker.held_task import HeldTask
from traceplane.worker.sandboxed_operators import lends

ONE, RANGE = Scope(cursor=7), Scope(partition_key="1-9", start=1, end=9)
WRITTEN = [[InputFile("o/a/b/c/staging/t/1/part-0.parquet", 1, 1)]]


@pytest.mark.parametrize(
    ("operator", "scope", "existing", "expected"),
    [
        ("sql", ONE, [], True),
        ("sql", RANGE, WRITTEN, True),
        ("range_ingest", RANGE, [], True),
        ("range_ingest", RANGE, [[]], True),
        ("range_ingest", ONE, [], False),
        ("range_ingest", RANGE, WRITTEN, False),
        ("integrity_check", ONE, [], False),
    ],
)
def test_a_chain_is_read_by_executors_if_its_scope_is_split(
    operator: str, scope: Scope, existing: list[list[InputFile]], expected: bool
) -> None:
    """One block starts no Spark, and what an `append` job has written before is read from files on the worker."""
    task = ClaimedTask(
        *(uuid4(), 1, uuid4(), 30.0, uuid4(), "compute", ["o/a/"]), scope=scope, output_files=existing
    )
    job = JobPayload(
        *(task.job_id, "default", "dag", "job", "spark", operator, "reactive", {}, "replace", []),
        timeout_seconds=60.0,
        lease_seconds=30.0,
        max_attempts=1,
        inputs=[],
        outputs=[],
    )
    assert lends(HeldTask(task, job, "token", None, catalog.find(operator))) is expected
