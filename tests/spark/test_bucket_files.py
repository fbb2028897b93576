"""Spark's executors read and write a real S3 server that enforces policies, with the credentials of one task, and get
nowhere with them.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import pytest_asyncio
from aiobotocore.session import get_session
from botocore.exceptions import ClientError
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from tests.aws import REGION
from tests.chain.conftest import QUICK, hash_of, patient
from tests.seaweedfs import READ_ROLE, SECRET, TASK_ROLE
from tests.spark.bucket import BUCKET, bucket, jars
from traceplane.adapters.object_store import StoredFile
from traceplane.adapters.object_store_s3 import S3ObjectStore
from traceplane.chain.extract import fetch_range
from traceplane.chain.rpc import RpcClient
from traceplane.chain.simulated.server import serve
from traceplane.dataplane import bucket_files, bucket_writer, chain_parts, datasets
from traceplane.dataplane.session import session
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.scope import Partition
from traceplane.model.task_payload import (
    BucketAccess,
    DeclaredOutput,
    DirectOutput,
    OperatorInput,
    TaskPayload,
)
from traceplane.sdk import OperatorTask
from traceplane.spark.command import SparkSettings
from traceplane.spark.server import SparkServer

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

GENERATION = f"o/{uuid4()}/{uuid4()}/{uuid4()}"
OTHERS = f"o/{uuid4()}/{uuid4()}/{uuid4()}"
ANONYMOUS = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
COLUMNS = (SchemaColumn("n", "int64"), SchemaColumn("name", "string"))


def attempt_of(generation: str) -> str:
    return f"{generation}/staging/{uuid4()}/1/"


@dataclass
class Task:
    """One attempt: what it may read and where it may write."""

    source: OperatorInput
    output: DirectOutput

    def as_operator_sees_it(self, folder: Path) -> OperatorTask:
        payload = TaskPayload(outputs=(DeclaredOutput("out", direct=self.output),))
        return OperatorTask(
            task_id="t", attempt=1, payload=payload, output_folders={"out": str(folder)}, temp_dir=str(folder)
        )


@dataclass
class SparkOnS3:
    spark: SparkSession
    store: S3ObjectStore
    folder: Path

    async def put(self, generation: str, first: int) -> str:
        path = f"{attempt_of(generation)}part-00000.parquet"
        rows = {"n": range(first, first + 100), "name": [f"n{n}" for n in range(first, first + 100)]}
        local = self.folder / uuid4().hex
        parquet.write_table(pa.table({"n": pa.array(rows["n"], pa.int64()), "name": rows["name"]}), local)
        await self.store.put(local, path)
        return path

    async def task(self, *files: str, generation: str = GENERATION) -> Task:
        prefix = attempt_of(generation)
        read = await self.store.task_access(files, [], "reader", seconds=900)
        write = await self.store.task_access([], [prefix], "writer", seconds=900)
        paths = tuple(f"s3a://{BUCKET}/data/{file}" for file in files)
        source = OperatorInput("in", paths, columns=COLUMNS, access=_access(read), bytes=1)
        return Task(source, DirectOutput(BUCKET, f"data/{prefix}", _access(write)))

    def refusal(self, act: Any) -> str:
        with pytest.raises(PySparkException) as refused:
            act()
        return str(refused.value)


def _access(made: Any) -> BucketAccess:
    return BucketAccess(made.access_key, made.secret_key, made.session_token, made.region, made.endpoint_url)


REFUSED = frozenset({"403", "AccessDenied"})


def client_of(service: str, access: BucketAccess) -> Any:
    return get_session().create_client(
        service,
        region_name=REGION,
        endpoint_url=access.endpoint_url,
        aws_access_key_id=access.access_key,
        aws_secret_access_key=access.secret_key,
        aws_session_token=access.session_token,
    )


async def outcome(act: Any) -> str:
    try:
        await act
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "done"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def on_s3(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SparkOnS3]:
    loaded = jars()
    folder = tmp_path_factory.mktemp("on-s3")
    async with bucket(folder / "weed") as (store, _):
        settings = SparkSettings(
            folder=folder / "spark",
            object_store=folder / "objects",
            master="local[2]",
            memory_mb=640,
            quick=True,
            jars=loaded,
            allow_weak=True,
        )
        server = await SparkServer.start(settings)
        try:
            # In a thread, as all that waits for Spark: this one reads the server's log, or the server would stop.
            opened = await asyncio.to_thread(session, server.remote)
            yield SparkOnS3(opened, store, folder)
            await asyncio.to_thread(opened.stop)
        finally:
            os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)  # other tests have sessions of another kind
            await server.close()


async def test_executors_read_the_files_of_their_task_and_write_below_its_prefix(
    on_s3: SparkOnS3, tmp_path: Path
) -> None:
    files = [await on_s3.put(GENERATION, first) for first in (0, 100)]
    task = await on_s3.task(*files)
    sees = task.as_operator_sees_it(tmp_path)
    rows = datasets.read(on_s3.spark, task.source).repartition(2, "n")

    await asyncio.to_thread(bucket_files.write, sees, "out", rows, task.output)

    written = sees.written["out"]
    assert sum(file.rows for file in written.files) == 200
    assert 0 in [file.statistics["n"].min for file in written.files]
    assert [(c.name, c.type) for c in written.columns] == [("n", "int64"), ("name", "string")]
    prefix = task.output.prefix.removeprefix("data/")
    stored = {file.path: file.bytes async for page in on_s3.store.below(prefix) for file in page}
    assert stored == {prefix + file.name: file.bytes for file in written.files}, "no other file, no folder"
    again = replace(
        task.source,
        files=tuple(bucket_files.location(task.output, file.name) for file in written.files),
        access=task.output.access,
    )
    rows = datasets.read(on_s3.spark, again)
    assert sorted(row.n for row in await asyncio.to_thread(rows.collect)) == list(range(200))


async def test_a_result_without_rows_keeps_its_columns(on_s3: SparkOnS3, tmp_path: Path) -> None:
    task = await on_s3.task(await on_s3.put(GENERATION, 0))
    sees = task.as_operator_sees_it(tmp_path)
    empty = datasets.read(on_s3.spark, task.source).filter("n < 0")
    await asyncio.to_thread(bucket_files.write, sees, "out", empty, task.output)
    (file,) = sees.written["out"].files
    assert (file.rows, file.stored) == (0, False)
    assert [column.name for column in sees.written["out"].columns] == ["n", "name"]


async def test_a_chain_is_ingested_and_checked_by_executors_that_use_the_bucket(
    on_s3: SparkOnS3, tmp_path: Path
) -> None:
    """Rows, their order and discrepancies are those of the same task in one process, and no file is on its disk."""
    tables = ("blocks", "logs")
    any_file = await on_s3.put(GENERATION, 0)
    made = {name: await on_s3.task(any_file) for name in (*tables, "found")}
    async with serve(seed=3, blocks=40) as node:

        async def ran(operator: Any, inputs: Sequence[OperatorInput], *outputs: str) -> OperatorTask:
            payload = TaskPayload(
                partition=Partition("p", 3, 36),
                config={"endpoints": [node.url], "chunk_blocks": 4, "spark_parts": 3, **QUICK},
                inputs=tuple(inputs),
                outputs=tuple(DeclaredOutput(name, direct=made[name].output) for name in outputs),
            )
            folder = {name: str(tmp_path) for name in outputs}
            task = OperatorTask(
                task_id="t", attempt=1, payload=payload, output_folders=folder, temp_dir=str(tmp_path)
            )
            await asyncio.to_thread(operator, task, lambda: on_s3.spark)
            return task

        def committed(task: OperatorTask, name: str) -> OperatorInput:
            """As the task of another job would read what this one wrote."""
            output = made[name].output
            files = tuple(bucket_files.location(output, file.name) for file in task.written[name].files)
            return OperatorInput(name, files, columns=tuple(task.written[name].columns), access=output.access)

        task = await ran(chain_parts.ingest, (), *tables)
        assert list(tmp_path.iterdir()) == []
        async with RpcClient(patient(node.url)) as client:
            chain = await fetch_range(client, 3, 36, tables)
        sources = [committed(task, name) for name in tables]
        for source in sources:
            output = made[source.name].output
            files = task.written[source.name].files
            prefix = output.prefix.removeprefix("data/")
            stored = {file.path: file.bytes async for page in on_s3.store.below(prefix) for file in page}
            assert stored == {prefix + file.name: file.bytes for file in files}, "no other file, no folder"
            assert [file.statistics["block_number"].min for file in files] == list(range(3, 37, 4))
            contents = [
                await on_s3.store.read(StoredFile(prefix + file.name, file.bytes), 0, file.bytes)
                for file in files
            ]
            rows = pa.concat_tables([parquet.read_table(pa.BufferReader(content)) for content in contents])
            assert rows == chain[source.name]

        old = hash_of(node, 36)
        node.ledger.fork(6, 6)
        missing = replace(sources[1], files=sources[1].files[1:])
        task = await ran(chain_parts.check, (sources[0], missing), "found")
        (file,) = task.written["found"].files
        rows = parquet.read_table(tmp_path / file.name).to_pylist()
        assert rows == sorted(rows, key=lambda row: (row["block_number"], row["table_name"]))
        found = {(row["block_number"], row["table_name"], row["problem"], row["found"]) for row in rows}
        logs = Counter(chain["logs"]["block_number"].to_pylist())
        assert {
            number for number, table, problem, _ in found if (table, problem) == ("logs", "wrong_count")
        } >= {number for number in range(3, 7) if logs[number]}
        assert (36, "blocks", "wrong_hash", old) in found
        assert not any(7 <= number <= 34 for number, *_ in found), "these are as the node has them"


async def test_one_task_reaches_nothing_of_another(on_s3: SparkOnS3, tmp_path: Path) -> None:
    """With its own credentials, with none, with those of the machine, and in the wake of the other's own reads."""
    own, others = await on_s3.put(GENERATION, 0), await on_s3.put(OTHERS, 500)
    beside = await on_s3.put(GENERATION, 900)  # of the same dataset, and not of this task
    mine, theirs = await on_s3.task(own), await on_s3.task(others, generation=OTHERS)
    await asyncio.to_thread(_reaches_nothing, on_s3, mine, theirs, beside)


def _reaches_nothing(on_s3: SparkOnS3, mine: Task, theirs: Task, beside: str) -> None:
    assert datasets.read(on_s3.spark, theirs.source).count() == 100, "the other one has used its credentials"
    foreign = theirs.source.files[0]
    spark = on_s3.spark

    def read(path: str, **options: str) -> Any:
        schema = "n long"
        return lambda: spark.read.options(**options).schema(schema).parquet(path).count()

    assert mine.source.access is not None
    vended = bucket_files.read_options(mine.source.access)
    assert "403" in on_s3.refusal(read(foreign, **vended))
    assert "403" in on_s3.refusal(read(f"s3a://{BUCKET}/data/{beside}", **vended))
    assert "403" in on_s3.refusal(read(f"s3a://{BUCKET}/data/o/", **vended)), "nor is anything listed"
    writing = bucket_files.read_options(mine.output.access)
    assert "403" in on_s3.refusal(read(foreign, **writing))
    # The session's configuration, and no credentials at all.
    bare = {
        name: value
        for name, value in vended.items()
        if not name.endswith((".key", "session.token", "disable.cache"))
    }
    assert "No AWS Credentials" in on_s3.refusal(read(foreign, **bare))
    for name, value in vended.items():
        spark.conf.set(f"spark.hadoop.{name}", value)
        spark.conf.set(name, value)
    try:
        assert "403" in on_s3.refusal(read(foreign))
    finally:
        for name in vended:
            spark.conf.unset(f"spark.hadoop.{name}")
            spark.conf.unset(name)
    # File systems of others that the server might have kept, and one that it is asked to keep.
    assert "No AWS Credentials" in on_s3.refusal(
        read(foreign, **(bare | {"fs.s3a.impl.disable.cache": "false"}))
    )
    keeping = vended | {"fs.s3a.impl.disable.cache": "false"}
    assert "AccessDeniedException" in on_s3.refusal(read(foreign, **keeping))
    assert datasets.read(spark, theirs.source).count() == 100, "others do not get what it was asked to keep"
    assert "403" in on_s3.refusal(read(foreign, **(bare | {"fs.s3a.aws.credentials.provider": ANONYMOUS})))
    # What the machine may have.
    chains = {
        "software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider",
        "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider",
        "software.amazon.awssdk.auth.credentials.ContainerCredentialsProvider",
        "software.amazon.awssdk.auth.credentials.InstanceProfileCredentialsProvider",
        "software.amazon.awssdk.auth.credentials.SystemPropertyCredentialsProvider",
        "org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider",
    }
    for chain in chains:
        said = on_s3.refusal(read(foreign, **(bare | {"fs.s3a.aws.credentials.provider": chain})))
        assert "redentials" in said, (chain, said[:300])


async def test_nothing_is_written_beside_the_prefix_and_nothing_twice(
    on_s3: SparkOnS3, tmp_path: Path
) -> None:
    others = await on_s3.put(OTHERS, 0)
    task = await on_s3.task(await on_s3.put(GENERATION, 0))
    target = bucket_files.target_of(task.output)
    bucket_writer.put(target, "x", memoryview(b"first"))
    for key in (f"data/{others}", f"data/{GENERATION}/x", "x"):
        with pytest.raises(RuntimeError, match="TRACEPLANE_NOT_STORED HTTP 403"):
            bucket_writer.put(replace(target, prefix=""), key, memoryview(b"forged"))
    with pytest.raises(RuntimeError, match="TRACEPLANE_NOT_STORED HTTP 412"):
        bucket_writer.put(target, "x", memoryview(b"second"))
    prefix = task.output.prefix.removeprefix("data/")
    assert await on_s3.store.read(StoredFile(f"{prefix}x", 5), 0, 5) == b"first"


async def test_a_client_of_s3_gets_no_further_with_the_credentials_of_a_task(on_s3: SparkOnS3) -> None:
    """What operators could install: they have the credentials of their reads and writes, and a network."""
    own, others = await on_s3.put(GENERATION, 0), await on_s3.put(OTHERS, 500)
    task = await on_s3.task(own)
    foreign, prefix = f"data/{others}", task.output.prefix
    copied = {"Bucket": BUCKET, "Key": foreign}
    for access in (task.source.access, task.output.access):
        assert access is not None
        async with client_of("s3", access) as s3:
            attempts: dict[str, Any] = {
                "reads": s3.get_object(Bucket=BUCKET, Key=foreign),
                "asks": s3.head_object(Bucket=BUCKET, Key=foreign),
                "lists": s3.list_objects_v2(Bucket=BUCKET, Prefix="data/o/"),
                "lists others": s3.list_objects_v2(Bucket=BUCKET, Prefix=f"data/{OTHERS}/"),
                "lists uploads": s3.list_multipart_uploads(Bucket=BUCKET),
                "overwrites": s3.put_object(Bucket=BUCKET, Key=foreign, Body=b"forged"),
                "overwrites its input": s3.put_object(Bucket=BUCKET, Key=f"data/{own}", Body=b"forged"),
                "uploads": s3.create_multipart_upload(Bucket=BUCKET, Key=foreign),
                "deletes": s3.delete_object(Bucket=BUCKET, Key=foreign),
                "deletes its input": s3.delete_object(Bucket=BUCKET, Key=f"data/{own}"),
                "copies": s3.copy_object(Bucket=BUCKET, Key=f"{prefix}copy", CopySource=copied),
                "opens the bucket": s3.put_bucket_policy(Bucket=BUCKET, Policy="{}"),
            }
            outcomes = {what: await outcome(act) for what, act in attempts.items()}
            assert {what: code for what, code in outcomes.items() if code not in REFUSED} == {}
        async with client_of("sts", access) as sts:
            for role in (TASK_ROLE, READ_ROLE):
                wider = sts.assume_role(RoleArn=role, RoleSessionName="wider", DurationSeconds=900)
                assert await outcome(wider) in REFUSED, role
    assert {file.path for file in await on_s3.store.sizes([own, others])} == {own, others}


async def test_the_server_has_no_credentials_that_a_query_could_find(
    on_s3: SparkOnS3, tmp_path: Path
) -> None:
    """In its environment, its properties, its configuration, and in what another task has just used."""
    task = await on_s3.task(await on_s3.put(GENERATION, 0))
    spark = on_s3.spark
    rows = datasets.read(spark, task.source)
    assert await asyncio.to_thread(rows.count) == 100
    assert task.source.access is not None
    texts = [
        "select java_method('java.lang.System', 'getenv', 'AWS_SECRET_ACCESS_KEY')",
        "select java_method('java.lang.System', 'getenv', 'AWS_CONTAINER_CREDENTIALS_FULL_URI')",
        "select java_method('java.lang.System', 'getProperty', 'aws.secretAccessKey')",
        "select java_method('java.lang.System', 'getProperties')",
        "set -v",
        "set",
    ]
    for text in texts:
        found = str(await asyncio.to_thread(spark.sql(text).collect))
        for secret in (*task.source.access.secrets, *task.output.access.secrets, SECRET):
            assert secret not in found, text
