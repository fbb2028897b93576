"""Chain operators do the same in parts on Spark as in one process: rows, quirks, discrepancies and errors."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.chain.conftest import QUICK, hash_of, patient
from traceplane.chain.errors import RpcInconsistent
from traceplane.chain.extract import ALL_TABLES, fetch_range, spans
from traceplane.chain.operators import integrity_check, range_ingest
from traceplane.chain.operators.parts import Done, InFolders, Ingest, Range, linked
from traceplane.chain.rpc import RpcClient
from traceplane.chain.simulated.faults import Fault
from traceplane.chain.simulated.server import Simulator, serve
from traceplane.dataplane import chain_parts
from traceplane.model.dataset_schema import SchemaColumn
from traceplane.model.scope import Partition
from traceplane.model.task_payload import DeclaredOutput, OperatorInput, TaskPayload
from traceplane.sdk import OperatorError, OperatorTask
from traceplane.testing import local_spark

pytestmark = pytest.mark.timeout(300)
WAYS = ("python", "spark")
WITHOUT_US = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "traceplane":
            raise ModuleNotFoundError("No module named 'traceplane'")

sys.meta_path.insert(0, Missing())
"""


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    with local_spark() as spark:
        yield spark


@pytest.fixture
async def node() -> AsyncIterator[Simulator]:
    async with serve(seed=3, blocks=40) as simulator:
        yield simulator


def ingest_task(node: Simulator, folder: Path, first: int, last: int, **changes: Any) -> OperatorTask:
    columns = changes.pop("columns", {})
    config = {
        "endpoints": [node.url],
        "chunk_blocks": 4,
        "spark_parts": 3,
        **QUICK,
        **changes.pop("config", {}),
    }
    for name in ALL_TABLES:
        (folder / name).mkdir(parents=True)
    return OperatorTask(
        task_id="t",
        attempt=1,
        payload=TaskPayload(
            partition=Partition(f"{first}-{last}", first, last),
            config=config,
            outputs=tuple(DeclaredOutput(name, columns=columns.get(name, ())) for name in ALL_TABLES),
            **changes,
        ),
        output_folders={name: str(folder / name) for name in ALL_TABLES},
        temp_dir=str(folder),
    )


async def ingest(way: str, session: Any, task: OperatorTask) -> dict[str, pa.Table]:
    if way == "python":
        await asyncio.to_thread(range_ingest.run, task)
    else:
        await asyncio.to_thread(chain_parts.ingest, task, lambda: session)
    return {
        name: pa.concat_tables(
            [parquet.read_table(task.outputs[name].folder / file.name) for file in task.written[name].files]
        )
        for name in task.outputs
    }


@pytest.mark.parametrize("way", WAYS)
async def test_a_range_has_the_rows_of_the_chain_in_its_order(
    way: str, session: Any, node: Simulator, tmp_path: Path
) -> None:
    task = ingest_task(node, tmp_path, 3, 40)
    result = await ingest(way, session, task)
    async with RpcClient(patient(node.url)) as client:
        assert result == await fetch_range(client, 3, 40)
    for name, output in task.outputs.items():
        assert len(task.written[name].files) == 10
        assert {path.name for path in output.folder.iterdir()} == {
            file.name for file in task.written[name].files
        }


async def test_a_range_of_one_chunk_needs_no_spark(node: Simulator, tmp_path: Path) -> None:
    def refuse() -> Any:
        raise AssertionError("opened a session")

    task = ingest_task(node, tmp_path, 3, 6)
    await asyncio.to_thread(chain_parts.ingest, task, refuse)
    assert sum(file.rows for file in task.written["blocks"].files) == 4


@pytest.mark.parametrize("way", WAYS)
async def test_quirks_are_recorded_and_declared_types_are_kept(
    way: str, session: Any, node: Simulator, tmp_path: Path
) -> None:
    node.faults.arm(Fault("log_index_restarts", requests=None))
    declared = {"blocks": (SchemaColumn("timestamp", "int32", True),)}
    result = await ingest(way, session, ingest_task(node, tmp_path, 1, 20, columns=declared))
    recorded = result["blocks"]["quirks"].to_pylist()
    assert any(text is not None and "log_index_restarts" in text for text in recorded)
    assert result["blocks"].schema.field("timestamp").type == pa.int32()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("fault", "first", "last", "config", "columns", "code"),
    [
        (None, 30, 45, {}, {}, "chain.beyond_head"),
        (Fault("method_missing", requests=None, methods=["eth_getBlockByNumber"]), 1, 20, {}, {}, "chain.rpc_refused"),
        (Fault("rpc_error", requests=None, methods=["eth_getBlockByNumber"]), 1, 20, {}, {}, "chain.rpc_unavailable"),
        (None, 1, 20, {"chain_id": 5}, {}, "chain.wrong_chain"),
        (None, 1, 20, {}, {"blocks": (SchemaColumn("timestamp", "int8", True),)}, "operator.value_does_not_fit"),
    ],
    ids=["beyond_head", "refused", "unavailable", "wrong_chain", "does_not_fit"],
)  # fmt: skip
async def test_an_error_has_the_same_code_and_names_no_credentials(
    way: str,
    fault: Fault | None,
    first: int,
    last: int,
    config: dict[str, Any],
    columns: dict[str, Any],
    code: str,
    session: Any,
    node: Simulator,
    tmp_path: Path,
) -> None:
    if fault is not None:
        node.faults.arm(fault)
    secret = node.url.replace("http://", "http://user:hidden@") + "/v3/KEY"
    task = ingest_task(node, tmp_path, first, last, config={"endpoints": [secret], **config}, columns=columns)
    with pytest.raises(OperatorError) as raised:
        await ingest(way, session, task)
    assert raised.value.code == code
    assert "hidden" not in str(raised.value)
    assert "KEY" not in str(raised.value)


async def test_executors_without_traceplane_are_named_with_what_to_do(
    session: Any, node: Simulator, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_US)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    session.conf.set("spark.sql.execution.pyspark.python", str(python))
    try:
        with pytest.raises(OperatorError, match="no traceplane") as raised:
            await ingest("spark", session, ingest_task(node, tmp_path / "task", 1, 20))
    finally:
        session.conf.unset("spark.sql.execution.pyspark.python")
    assert raised.value.code == "operator.executors_lack_traceplane"


@pytest.mark.parametrize("way", WAYS)
async def test_an_invalidated_range_ends_where_the_chain_does(
    way: str, session: Any, node: Simulator, tmp_path: Path
) -> None:
    task = ingest_task(node, tmp_path, 30, 50, kind="invalidation")
    result = await ingest(way, session, task)
    assert result["blocks"]["block_number"].to_pylist() == list(range(30, 41))


async def test_parts_that_read_two_forks_do_not_make_a_range(node: Simulator, tmp_path: Path) -> None:
    """The chain moves once the first of two parts has read its blocks."""
    task = ingest_task(node, tmp_path, 1, 40)
    blocks = Range.of(patient(node.url), 1, 40, ALL_TABLES, chunk_blocks=20, cross_check=False, most_parts=9)
    assert blocks.parts == 2
    outputs = tuple(DeclaredOutput(one.name, str(one.folder)) for one in task.outputs.values())
    work = Ingest(blocks, InFolders(outputs, ()))

    def of_part(number: int) -> list[Done]:
        return list(work(iter([pa.RecordBatch.from_pydict({"id": [number]})])))

    done = await asyncio.to_thread(of_part, 0)
    node.ledger.fork(30, 30)
    done += await asyncio.to_thread(of_part, 1)
    with pytest.raises(RpcInconsistent, match="does not follow"):
        linked(done, blocks)


def test_parts_share_the_calls_per_second_and_the_connections() -> None:
    settings = patient("http://node", calls_per_second=40.0, concurrency=7)
    of = partial(Range.of, settings, tables=ALL_TABLES, chunk_blocks=10, cross_check=False, most_parts=3)
    parts = of(first=0, last=99)
    assert (parts.parts, parts.settings.calls_per_second, parts.settings.concurrency) == (3, 40 / 3, 2)
    assert sorted(span for part in range(3) for span in parts.chunks_of(part)) == spans(0, 99, 10)
    one = of(first=0, last=9)
    assert (one.parts, one.settings) == (1, settings)


def check_task(
    node: Simulator, folder: Path, tables: dict[str, pa.Table], first: int, last: int
) -> OperatorTask:
    inputs = []
    for name, table in tables.items():
        parquet.write_table(table, folder / f"{name}.parquet")
        inputs.append(OperatorInput(name, (str(folder / f"{name}.parquet"),)))
    (folder / "found").mkdir()
    return OperatorTask(
        task_id="t",
        attempt=1,
        payload=TaskPayload(
            partition=Partition("p", first, last),
            config={"endpoints": [node.url], "chunk_blocks": 3, "spark_parts": 2, **QUICK},
            inputs=tuple(inputs),
            outputs=(DeclaredOutput("found"),),
        ),
        output_folders={"found": str(folder / "found")},
        temp_dir=str(folder),
    )


async def discrepancies(way: str, session: Any, task: OperatorTask) -> list[tuple[Any, ...]]:
    if way == "python":
        await asyncio.to_thread(integrity_check.run, task)
    else:
        await asyncio.to_thread(chain_parts.check, task, lambda: session)
    (file,) = task.written["found"].files
    rows = parquet.read_table(task.outputs["found"].folder / file.name)
    assert rows.schema.equals(integrity_check.DISCREPANCIES)
    return [tuple(row.values()) for row in rows.to_pylist()]


async def test_a_check_finds_the_same_in_parts(session: Any, node: Simulator, tmp_path: Path) -> None:
    async with RpcClient(patient(node.url)) as client:
        tables = await fetch_range(client, 20, 40, ("logs", "blocks"))
    blocks, logs = tables["blocks"], tables["logs"]
    damaged = {
        "logs": pa.concat_tables([logs.slice(0, 5), logs.slice(7), logs.slice(30, 2)]),
        "blocks": pa.concat_tables([blocks.slice(0, 4), blocks.slice(6), blocks.slice(2, 1)]),
    }
    old = hash_of(node, 38)
    node.ledger.fork(3, 2)
    found = {}
    for way in WAYS:
        (tmp_path / way).mkdir()
        found[way] = await discrepancies(way, session, check_task(node, tmp_path / way, damaged, 22, 41))
    assert found["spark"] == found["python"]
    assert (38, "blocks", "wrong_hash", hash_of(node, 38), old) in found["spark"]
    assert {row[2] for row in found["spark"]} == {
        *("wrong_hash", "wrong_parent", "wrong_count", "beyond_head", "outside_scope")
    }
