"""What executors cannot do on S3 is found when a worker or a task starts, by a server that hands out credentials."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.aws import REGION
from tests.seaweedfs import TASK_ROLE, seaweedfs
from tests.spark.bucket import BUCKET, bucket_of
from traceplane.adapters.object_store_s3 import S3ObjectStore
from traceplane.errors import TraceplaneError
from traceplane.wire.tasks import ClaimedTask, InputFile, InputRef, JobPayload, OutputRef
from traceplane.worker.direct_store import DirectStore
from traceplane.worker.hot_inputs import LocalInputs


def claimed(files: int = 1, *, outputs: int = 1, timeout: float = 900.0) -> tuple[ClaimedTask, JobPayload]:
    """A task that reads files of as many generations."""
    read = [InputFile(f"o/{uuid4()}/{uuid4()}/{uuid4()}/staging/t/1/a.parquet", 1, 1) for _ in range(files)]
    prefix = f"o/{uuid4()}/{uuid4()}/{uuid4()}/staging/t/1/"
    task = ClaimedTask(
        *(uuid4(), 1, uuid4(), 30.0, uuid4(), "compute", [prefix] * outputs), input_files=[read]
    )
    job = JobPayload(
        *(task.job_id, "default", "dag", "job", "spark", "sql", "reactive", {}, "replace", []),
        timeout_seconds=timeout,
        lease_seconds=30.0,
        max_attempts=1,
        inputs=[InputRef(0, "in", "in", uuid4(), uuid4())],
        outputs=[OutputRef(n, "out", "out", uuid4(), uuid4(), "") for n in range(outputs)],
    )
    return task, job


@asynccontextmanager
async def direct_store(folder: Path) -> AsyncIterator[DirectStore]:
    with seaweedfs(folder) as endpoint:
        async with bucket_of(endpoint) as store:
            yield DirectStore(store, most_seconds=3600)


async def refusal(
    direct: DirectStore, task: ClaimedTask, job: JobPayload, local: LocalInputs | None = None
) -> TraceplaneError:
    with pytest.raises(TraceplaneError) as refused:
        async with direct.lent(task, job, local or LocalInputs()):
            pass
    assert refused.value.next_step
    return refused.value


@pytest.mark.parametrize("sts", [True, False])
async def test_a_role_that_cannot_be_assumed_is_found_at_the_start(sts: bool, tmp_path: Path) -> None:
    """There is none of that name, or the server has no STS at all."""
    with seaweedfs(tmp_path / "weed", sts=sts) as endpoint:
        async with bucket_of(endpoint):
            role = TASK_ROLE if not sts else TASK_ROLE.replace("tasks", "others")
            store = S3ObjectStore(
                BUCKET, "data", region=REGION, endpoint_url=endpoint, task_role=role, tries=1
            )
            try:
                with pytest.raises(TraceplaneError, match=r"object_store\.role_refused") as refused:
                    await DirectStore(store, most_seconds=3600).check()
                assert "s3_task_role" in str(refused.value.next_step)
            finally:
                await store.close()


async def test_a_session_that_is_too_short_is_found_before_the_task_runs(tmp_path: Path) -> None:
    async with direct_store(tmp_path / "weed") as direct:
        error = await refusal(direct, *claimed(timeout=7200.0))
    assert error.code == "spark.timeout_beyond_credentials"
    assert "s3_renewal_address" in str(error.next_step)


async def test_files_of_too_many_folders_are_refused_before_the_task_runs(tmp_path: Path) -> None:
    async with direct_store(tmp_path / "weed") as direct:
        async with direct.lent(*claimed(3), LocalInputs()) as lent:
            assert len(lent.inputs[0].paths) == 3
        error = await refusal(direct, *claimed(200))
    assert error.code == "object_store.too_many_folders"


async def test_hot_rows_need_an_output_to_be_stored_below(tmp_path: Path) -> None:
    async with direct_store(tmp_path / "weed") as direct:
        error = await refusal(direct, *claimed(outputs=0), LocalInputs(files={0: [str(tmp_path / "rows")]}))
    assert error.code == "spark.hot_input_elsewhere"
