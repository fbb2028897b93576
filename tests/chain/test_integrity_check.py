"""The integrity check finds every row that differs from the chain."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from tests.chain.conftest import QUICK, hash_of, patient
from traceplane.chain.extract import fetch_range
from traceplane.chain.operators import integrity_check
from traceplane.chain.rpc import RpcClient
from traceplane.chain.simulated.server import Simulator
from traceplane.model.task_payload import DeclaredOutput, OperatorInput, TaskPayload
from traceplane.sdk import OperatorTask, Partition


async def discrepancies(
    node: Simulator, folder: Path, tables: dict[str, pa.Table], first: int, last: int
) -> list[tuple[Any, ...]]:
    inputs = []
    for name, table in tables.items():
        parquet.write_table(table, folder / f"{name}.parquet")
        inputs.append(OperatorInput(name, (str(folder / f"{name}.parquet"),)))
    task = OperatorTask(
        task_id="t",
        attempt=1,
        payload=TaskPayload(
            partition=Partition("p", first, last),
            config={"endpoints": [node.url], "chunk_blocks": 3, **QUICK},
            inputs=tuple(inputs),
            outputs=(DeclaredOutput("found"),),
        ),
        output_folders={"found": str(folder)},
        temp_dir=str(folder),
    )
    await asyncio.to_thread(integrity_check.run, task)
    rows = parquet.read_table(folder / "part-00000.parquet")
    assert rows.schema.equals(integrity_check.DISCREPANCIES)
    return [
        (r["block_number"], r["table_name"], r["problem"], r["expected"], r["found"])
        for r in rows.to_pylist()
    ]


async def test_rows_equal_to_the_chain_have_no_discrepancies(node: Simulator, tmp_path: Path) -> None:
    async with RpcClient(patient(node.url)) as client:
        tables = await fetch_range(client, 10, 19)
    assert await discrepancies(node, tmp_path, tables, 10, 19) == []


async def test_every_discrepancy_is_a_row(node: Simulator, tmp_path: Path) -> None:
    async with RpcClient(patient(node.url)) as client:
        tables = await fetch_range(client, 34, 40, ("blocks", "logs"))
    old = hash_of(node, 40)
    logs_of_35 = tables["logs"]["block_number"].to_pylist().count(35)
    first_of_35 = tables["logs"]["block_number"].to_pylist().index(35)
    damaged = {
        "blocks": pa.concat_tables([tables["blocks"].slice(0, 2), tables["blocks"].slice(3)]),
        "logs": pa.concat_tables(
            [tables["logs"].slice(0, first_of_35), tables["logs"].slice(first_of_35 + 1)]
        ),
    }
    node.ledger.fork(1, 1)
    result = await discrepancies(node, tmp_path, {name: damaged[name] for name in ("blocks", "logs")}, 34, 40)
    assert (35, "logs", "wrong_count", str(logs_of_35), str(logs_of_35 - 1)) in result
    assert (36, "blocks", "wrong_count", "1", "0") in result
    assert (40, "blocks", "wrong_hash", hash_of(node, 40), old) in result
    assert {row[0] for row in result} == {35, 36, 40}
    result = await discrepancies(node, tmp_path, {"blocks": tables["blocks"]}, 34, 38)
    assert result == [(n, "blocks", "outside_scope", None, "1") for n in (39, 40)]


async def test_rows_that_the_chain_does_not_reach_are_discrepancies(node: Simulator, tmp_path: Path) -> None:
    async with RpcClient(patient(node.url)) as client:
        tables = await fetch_range(client, 36, 40, ("blocks",))
    node.ledger.fork(3, 1)
    result = await discrepancies(node, tmp_path, tables, 36, 40)
    assert [row[:3] for row in result] == [
        (38, "blocks", "wrong_hash"),
        (39, "blocks", "beyond_head"),
        (40, "blocks", "beyond_head"),
    ]
