"""Files in S3 that Spark's executors read and write themselves, with the credentials of one task.

Reading is Spark's own, over `s3a://`: the credentials are options of each read, so no other query of the server has
them, and a file system that was opened with them is not kept for others. Writing is done here, in the executors'
Python: each partition becomes files with names that no other attempt uses, each stored by one request that overwrites
nothing. The driver gets the names and footers of those that belong to the result. So a write needs no listing, no
renaming and no copy, and what a lost executor or a second attempt of a partition leaves behind is in nobody's list.

`bucket_writer` is sent to executors by value: they need pyarrow, and nothing of the platform.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from traceplane.columnar import parquet_facts
from traceplane.dataplane import bucket_writer
from traceplane.model.task_payload import BucketAccess, DirectOutput
from traceplane.sdk import OperatorTask, WrittenFile

_S3A = "s3a://"
_RESULT = "name string, bytes long, footer binary"
_NO_COLUMNS = pa.schema([])


def read_options(access: BucketAccess) -> dict[str, str]:
    """For one read of files of this access."""
    if access.renewal is None:
        credentials = {
            "fs.s3a.access.key": access.access_key,
            "fs.s3a.secret.key": access.secret_key,
            "fs.s3a.session.token": access.session_token,
            "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
        }
    else:
        credentials = {
            "fs.s3a.aws.credentials.provider": "traceplane.RenewedCredentials",
            "fs.s3a.traceplane.renewal.url": access.renewal.url,
            "fs.s3a.traceplane.renewal.token": access.renewal.token,
        }
    named = credentials | {
        "fs.s3a.endpoint.region": access.region,
        # Hadoop hands cached file systems, with their credentials, to whoever names the same bucket.
        "fs.s3a.impl.disable.cache": "true",
        # File systems that are not kept leave threads of the AWS client behind; these start the fewest.
        "fs.s3a.input.stream.type": "classic",
        "fs.s3a.connection.request.timeout": "0",
        "fs.s3a.experimental.input.fadvise": "random",
    }
    if access.endpoint_url is not None:
        secure = access.endpoint_url.startswith("https://")
        named |= {
            "fs.s3a.endpoint": access.endpoint_url,
            "fs.s3a.path.style.access": "true",
            "fs.s3a.connection.ssl.enabled": str(secure).lower(),
        }
    return named


def write(task: OperatorTask, name: str, frame: DataFrame, output: DirectOutput) -> None:
    """Stores a DataFrame below the prefix of the attempt: one or several files for each of its partitions."""
    register_pickle_by_value(bucket_writer)  # type: ignore[no-untyped-call]
    schema = to_arrow_schema(frame.schema, timezone="UTC")  # as the sessions are
    target = target_of(output, schema)

    def store(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return bucket_writer.stored_files(target, batches)

    files = frame.mapInArrow(store, _RESULT).toArrow().sort_by("name").to_pylist()
    for file in files:
        count_in(task, name, file["name"], file["bytes"], file["footer"])
    if not files:
        task.write_table(name, schema.empty_table())


def count_in(task: OperatorTask, output: str, name: str, size: int, footer: bytes) -> None:
    """Adds a file that an executor has stored; `footer` is that of the file, as a file of its own."""
    read = parquet.ParquetFile(BytesIO(footer))
    facts = parquet_facts.statistics(read.metadata)
    written = WrittenFile(name, read.metadata.num_rows, size, facts, stored=True)
    task.count_in(output, read.schema_arrow, written)


def target_of(output: DirectOutput, schema: pa.Schema = _NO_COLUMNS) -> bucket_writer.Target:
    """`schema`: of what `bucket_writer` writes as Parquet itself."""
    access, renewal = output.access, output.access.renewal
    return bucket_writer.Target(
        bucket=output.bucket,
        prefix=output.prefix,
        keys=bucket_writer.Keys(access.access_key, access.secret_key, access.session_token),
        renewal=(renewal.url, renewal.token) if renewal is not None else None,
        region=access.region,
        endpoint_url=access.endpoint_url,
        schema=schema.serialize().to_pybytes(),
    )


def location(output: DirectOutput, name: str) -> str:
    return f"{_S3A}{output.bucket}/{output.prefix}{name}"


def is_in_bucket(path: str) -> bool:
    return path.startswith(_S3A)
