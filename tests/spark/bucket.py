"""A bucket of a real S3 server for tests of Spark, and the jars with which Spark reads it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
from aiobotocore.session import get_session

from tests.aws import REGION
from tests.platform import Platform
from tests.seaweedfs import KEY, SECRET, TASK_ROLE, seaweedfs
from traceplane.adapters.object_store import StoredFile
from traceplane.adapters.object_store_s3 import S3ObjectStore
from traceplane.errors import TraceplaneError
from traceplane.spark import s3_jars

JARS = Path(__file__).parents[2] / ".venv" / "spark-jars"
BUCKET = "platform"


def jars() -> tuple[Path, ...]:
    """They are fetched if they are not there; where they cannot be, the test is skipped."""
    try:
        s3_jars.fetch(JARS)
    except TraceplaneError as error:
        pytest.skip(f"no jars for S3: {error}")
    return s3_jars.installed(JARS)


@contextlib.asynccontextmanager
async def bucket(folder: Path) -> AsyncIterator[tuple[S3ObjectStore, str]]:
    """The store, with a role for tasks, and the address of its server."""
    with seaweedfs(folder) as endpoint:
        async with bucket_of(endpoint) as store:
            yield store, endpoint


@contextlib.asynccontextmanager
async def bucket_of(endpoint: str) -> AsyncIterator[S3ObjectStore]:
    """A new bucket of a server that runs."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ACCESS_KEY_ID", KEY)
        patched.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        async with get_session().create_client("s3", region_name=REGION, endpoint_url=endpoint) as s3:
            await s3.create_bucket(Bucket=BUCKET)
        store = S3ObjectStore(
            BUCKET, "data", region=REGION, endpoint_url=endpoint, task_role=TASK_ROLE, tries=2
        )
        try:
            yield store
        finally:
            await store.close()


def environment(endpoint: str) -> dict[str, str]:
    """The settings of a platform whose store is that bucket."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "TRACEPLANE_OBJECT_STORE": f"s3://{BUCKET}/data",
        "TRACEPLANE_S3_ENDPOINT_URL": endpoint,
        "TRACEPLANE_AWS_REGION": REGION,
        "TRACEPLANE_S3_TASK_ROLE": TASK_ROLE,
        "TRACEPLANE_SPARK_JARS": os.fspath(JARS),
    }


async def committed_rows(platform: Platform, store: S3ObjectStore, dataset: str) -> list[dict]:
    """What a dataset holds, read from its committed files."""
    rows: list[dict] = []
    for file in await committed_files(platform, dataset):
        rows += parquet.read_table(BytesIO(await store.read(file, 0, file.bytes))).to_pylist()
    return rows


async def committed_files(platform: Platform, dataset: str) -> list[StoredFile]:
    files = await platform.sql(
        "select f ->> 'path' as path, (f ->> 'bytes')::bigint as bytes from datasets d join dataset_commits c"
        " on c.generation_id = d.current_generation_id, jsonb_array_elements(c.files) f"
        " where d.dataset_id = $1 and c.superseded_by is null",
        dataset,
    )
    return [StoredFile(row["path"], row["bytes"]) for row in files]
