"""`range_ingest` and `integrity_check` on Spark: a range is split into parts, which Spark runs in parallel.

What parts do is in `chain.operators.parts`; here they are started, and their results are put together. A range of one
chunk is read by this process, as on any other runtime, unless only executors can read what is committed.

Parts write into the attempt's folders, or, where executors use the bucket themselves, store their files there.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame, functions
from pyspark.sql.connect.session import SparkSession

from traceplane.chain.errors import BeyondHead, RpcError, RpcRefused, RpcUnavailable
from traceplane.chain.operators import integrity_check, parts, range_ingest
from traceplane.chain.operators.config import (
    CheckConfig,
    IngestConfig,
    block_range,
    operator_errors,
    read,
)
from traceplane.chain.operators.integrity_check import Discrepancy, of_other_block
from traceplane.chain.operators.parts import Check, Done, InFolders, Ingest, Range
from traceplane.chain.rpc import RpcClient, RpcSettings
from traceplane.dataplane import bucket_files, datasets
from traceplane.dataplane.chain_files import InBucket, StoredPart
from traceplane.model.task_payload import DeclaredOutput, OperatorInput
from traceplane.sdk import OperatorError, OperatorTask

OpenSession = Callable[[], SparkSession]
_BLOCKS, _HASHES = "block_number", ("block_hash", "parent_hash")
_LACKS_US = "No module named 'traceplane'"
_NO_ROWS = "block_number bigint, block_hash string, parent_hash string, rows bigint"


def ingest(task: OperatorTask, open_session: OpenSession) -> None:
    with operator_errors():
        settings, config = read(task.config, IngestConfig)
        first, last = block_range(task)
        if last - first < config.chunk_blocks:
            range_ingest.run(task)
            return
        settings, head = asyncio.run(_reached(settings))
        if task.kind == "invalidation":
            last = min(last, head)
        elif head < last:
            raise BeyondHead(f"block {last} does not exist yet", value=head, next_step="retry later")
        if last < first:
            range_ingest.write_empty(task)
            return
        blocks = _parts_of(settings, config, first, last, task.outputs)
        outputs = tuple(
            DeclaredOutput(
                one.name,
                str(one.folder),
                one.existing,
                one.columns,
                cluster_by=one.cluster_by,
                direct=one.direct,
            )
            for one in task.outputs.values()
        )
        stored_in = {
            one.name: bucket_files.target_of(one.direct) for one in outputs if one.direct is not None
        }
        write: parts.Write
        if stored_in:
            write, take = InBucket(outputs, stored_in, task.unique_key), _count_in
        else:
            write, take = InFolders(outputs, task.unique_key), _add_files
        numbers = open_session().range(0, blocks.parts, 1, blocks.parts)
        take(task, parts.linked(_results(numbers, Ingest(blocks, write)), blocks))


def check(task: OperatorTask, open_session: OpenSession) -> None:
    with operator_errors():
        settings, config = read(task.config, CheckConfig)
        first, last = block_range(task)
        lent = any(source.access is not None for source in task.inputs.values())
        if last - first < config.chunk_blocks and not lent:
            integrity_check.run(task)
            return
        settings, head = asyncio.run(_reached(settings))
        spark, tables = open_session(), tuple({"blocks": None, **dict.fromkeys(task.inputs)})
        committed = {name: _by_block(spark, source) for name, source in task.inputs.items()}
        found: list[Discrepancy] = []
        if (reached := min(last, head)) >= first:
            blocks = _parts_of(settings, config, first, reached, tables)
            rows = _dealt(spark, committed, blocks)
            done = parts.linked(_results(rows, Check(blocks, tuple(committed))), blocks)
            found += parts.discrepancies(done)
        for name, frame in committed.items():
            found += _of_other_blocks(name, frame, first, last, reached)
        integrity_check.write(task, found)


async def _reached(settings: RpcSettings) -> tuple[RpcSettings, int]:
    """The settings with the endpoints that can be reached from here, and the head. Spark's processes get no others:
    connections of this process are supervised, and theirs are not."""

    async def is_reached(url: str) -> bool:
        try:
            async with RpcClient(replace(settings, endpoints=(url,), attempts=1)) as client:
                await client.head()
        except RpcUnavailable:
            return False
        except (RpcError, RpcRefused):
            pass  # it answers
        return True

    async with RpcClient(settings) as client:
        head = await client.head()
    if len(settings.endpoints) == 1:
        return settings, head
    answers = await asyncio.gather(*map(is_reached, settings.endpoints))
    reached = tuple(url for url, answer in zip(settings.endpoints, answers, strict=True) if answer)
    if not reached:
        raise RpcUnavailable("no endpoint answers any more")
    return replace(settings, endpoints=reached), head


def _parts_of(
    settings: RpcSettings, config: IngestConfig | CheckConfig, first: int, last: int, tables: Iterable[str]
) -> Range:
    return Range.of(
        settings,
        first,
        last,
        tables,
        chunk_blocks=config.chunk_blocks,
        cross_check=config.cross_check,
        most_parts=config.spark_parts,
    )


def _results(rows: DataFrame, work: parts.Work) -> list[Done]:
    """Runs the work on each partition of the rows."""
    frame = rows.mapInArrow(functools.partial(parts.run, work), parts.RESULT_COLUMNS)
    try:
        return [Done(**row) for row in frame.toArrow().to_pylist()]
    except Exception as error:  # of PySpark or, from a session without Connect, of py4j
        if (own := parts.as_error(str(error))) is not None:
            raise own from None
        if _LACKS_US in str(error):
            raise OperatorError(
                "operator.executors_lack_traceplane",
                "the Python of Spark's executors has no traceplane, which fetches and checks the blocks there; "
                "install the version that the worker has, or set runtime: python",
            ) from None
        raise


def _add_files(task: OperatorTask, done: list[Done]) -> None:
    """In the order of the chain. Files of parts that Spark repeated are removed."""
    made = [msgspec.json.decode(one.made, type=dict[str, list[str]]) for one in done]
    for name, output in task.outputs.items():
        files = [output.folder / file for of_chunk in made for file in of_chunk.get(name, ())]
        for path in _others(output.folder, {file.name for file in files}):
            path.unlink()
        for file in files:
            task.add_file(name, file)


def _count_in(task: OperatorTask, done: list[Done]) -> None:
    """The same for files that executors have stored. Those of parts that Spark repeated are in nobody's list."""
    made = [msgspec.json.decode(one.made, type=dict[str, list[StoredPart]]) for one in done]
    for name in task.outputs:
        for file in (file for of_chunk in made for file in of_chunk.get(name, ())):
            bucket_files.count_in(task, name, file.name, file.size, file.footer)


def _others(folder: Path, names: set[str]) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.name not in names)


def _by_block(spark: SparkSession, source: OperatorInput) -> DataFrame:
    """How many rows each block has, by the hashes that they name."""
    if not source.files:
        return spark.createDataFrame([], _NO_ROWS)
    rows = datasets.read(spark, source)
    names = [_BLOCKS, *(name for name in _HASHES if name in rows.columns)]
    counted = rows.groupBy(*names).agg(functions.count(functions.lit(1)).alias("rows"))
    if _HASHES[1] not in names:
        counted = counted.withColumn(_HASHES[1], functions.lit(None).cast("string"))
    return counted.select(_BLOCKS, *_HASHES, "rows")


def _dealt(spark: SparkSession, committed: dict[str, DataFrame], blocks: Range) -> DataFrame:
    """One partition for each part, with what is committed of its chunks, and a row for each chunk."""
    chunks = -(-(blocks.last - blocks.first + 1) // blocks.chunk_blocks)
    null = functions.lit(None)
    frame = spark.range(0, chunks, 1, 1).select(
        functions.col("id").alias("chunk"),
        null.cast("string").alias("table_name"),
        null.cast("bigint").alias(_BLOCKS),
        *(null.cast("string").alias(name) for name in _HASHES),
        null.cast("bigint").alias("rows"),
    )
    for name, rows in committed.items():
        chunk = functions.floor((functions.col(_BLOCKS) - blocks.first) / blocks.chunk_blocks)
        frame = frame.unionAll(
            rows.filter(functions.col(_BLOCKS).between(blocks.first, blocks.last)).select(
                chunk.cast("bigint").alias("chunk"),
                functions.lit(name).alias("table_name"),
                *(functions.col(column) for column in (_BLOCKS, *_HASHES, "rows")),
            )
        )
    part = (functions.col("chunk") % blocks.parts).cast("int")
    return frame.repartitionById(blocks.parts, part).sortWithinPartitions("chunk")


def _of_other_blocks(name: str, rows: DataFrame, first: int, last: int, head: int) -> Iterator[Discrepancy]:
    """Of the blocks that are not in the scope, or that the node does not have."""
    others = rows.filter(~functions.col(_BLOCKS).between(first, max(head, first - 1)))
    counts = others.groupBy(_BLOCKS).agg(functions.sum("rows").alias("rows")).orderBy(_BLOCKS)
    for row in counts.toArrow().to_pylist():
        yield of_other_block(row[_BLOCKS], name, row["rows"], first, last)
