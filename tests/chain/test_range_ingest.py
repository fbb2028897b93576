"""An ingest writes the blocks that its event names, as the chain has them, or fails."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.chain.conftest import QUICK, hash_of, patient
from traceplane.chain.extract import ALL_TABLES, fetch_range
from traceplane.chain.operators import range_ingest
from traceplane.chain.rpc import RpcClient
from traceplane.chain.simulated.server import Simulator, serve
from traceplane.model.task_payload import TaskPayload
from traceplane.sdk import OperatorError, OperatorTask


def ingest_task(node: Simulator, folder: Path, scope: dict[str, Any], **changes: Any) -> OperatorTask:
    names = changes.pop("tables", ALL_TABLES)
    config = {"endpoints": [node.url], "patience_seconds": 0.01, **QUICK, **changes.pop("config", {})}
    for name in names:
        (folder / name).mkdir(exist_ok=True)
    return OperatorTask(
        task_id="t",
        attempt=1,
        payload=msgspec.convert(
            {"config": config, "outputs": [{"name": name} for name in names], **scope, **changes}, TaskPayload
        ),
        output_folders={name: str(folder / name) for name in names},
        temp_dir=str(folder),
    )


async def ingest(task: OperatorTask) -> dict[str, pa.Table]:
    await asyncio.to_thread(range_ingest.run, task)
    result = {}
    for name, output in task.outputs.items():
        files = [output.folder / file.name for file in task.written[name].files]
        result[name] = pa.concat_tables([parquet.read_table(file) for file in files])
    return result


async def test_a_range_is_written_in_chunks_and_equals_the_chain(node: Simulator, tmp_path: Path) -> None:
    scope = {"partition": {"name": "3-20", "start": 3, "end": 20}}
    task = ingest_task(node, tmp_path, scope, config={"chunk_blocks": 4})
    result = await ingest(task)
    async with RpcClient(patient(node.url)) as client:
        assert result == await fetch_range(client, 3, 20)
    assert len(task.written["blocks"].files) == 5
    assert result["logs"]["block_number"].to_pylist() == sorted(result["logs"]["block_number"].to_pylist())


async def test_a_subset_of_tables_fetches_only_what_it_needs(node: Simulator, tmp_path: Path) -> None:
    result = await ingest(ingest_task(node, tmp_path, {"cursor": 7}, tables=("blocks",)))
    assert result["blocks"]["block_number"].to_pylist() == [7]
    assert set(node.calls) == {"eth_blockNumber", "eth_getBlockByNumber"}


async def test_the_block_that_the_event_names_is_written(node: Simulator, tmp_path: Path) -> None:
    block_hash = hash_of(node, 9)
    result = await ingest(ingest_task(node, tmp_path, {"cursor": 9}, emission=block_hash))
    assert result["blocks"]["block_hash"].to_pylist() == [block_hash]
    assert "eth_getBlockByHash" not in node.calls


async def test_a_chain_that_moved_on_is_written_as_it_is_now(node: Simulator, tmp_path: Path) -> None:
    abandoned = hash_of(node, 40)
    node.ledger.fork(3, 3)
    result = await ingest(ingest_task(node, tmp_path, {"cursor": 40}, emission=abandoned))
    assert result["blocks"]["block_hash"].to_pylist() == [hash_of(node, 40)]


async def test_a_chain_that_became_shorter_is_written_as_empty(node: Simulator, tmp_path: Path) -> None:
    abandoned = hash_of(node, 40)
    node.ledger.fork(3, 1)
    for folder, emission, kind in (
        ("a", abandoned, "data"),
        ("b", f"orphaned:{abandoned}#3", "invalidation"),
    ):
        (tmp_path / folder).mkdir()
        task = ingest_task(node, tmp_path / folder, {"cursor": 40}, emission=emission, kind=kind)
        result = await ingest(task)
        assert {name: (table.num_rows, table.schema) for name, table in result.items()} == {
            name: (0, result[name].schema) for name in ALL_TABLES
        }


@pytest.mark.parametrize("number", [40, 41])
async def test_a_node_that_does_not_know_the_block_is_not_believed(
    number: int, node: Simulator, tmp_path: Path
) -> None:
    task = ingest_task(node, tmp_path, {"cursor": number}, emission="0x" + "ab" * 32)
    with pytest.raises(OperatorError) as refused:
        await ingest(task)
    assert refused.value.code == "chain.rpc_inconsistent"
    assert node.url in str(refused.value)
    assert not task.written


async def test_a_node_that_still_has_the_orphaned_block_is_not_believed(
    node: Simulator, tmp_path: Path
) -> None:
    orphaned = f"orphaned:{hash_of(node, 40)}"
    with pytest.raises(OperatorError, match="does not know"):
        await ingest(ingest_task(node, tmp_path, {"cursor": 40}, emission=orphaned, kind="invalidation"))


async def test_it_waits_for_a_node_that_will_soon_know_the_block(
    node: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_ingest, "_PAUSE_SECONDS", 0.01)
    async with serve(seed=3, blocks=41) as ahead:
        task = ingest_task(
            node, tmp_path, {"cursor": 41}, emission=hash_of(ahead, 41), config={"patience_seconds": 10}
        )
        working = asyncio.ensure_future(ingest(task))
        while not node.calls.get("eth_getBlockByHash"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        node.ledger.mine(1)
        assert hash_of(node, 41) == hash_of(ahead, 41)
        assert (await working)["blocks"]["block_number"].to_pylist() == [41]


async def test_a_backfill_beyond_the_head_fails_and_an_invalidated_range_ends_at_it(
    node: Simulator, tmp_path: Path
) -> None:
    scope = {"partition": {"name": "38-45", "start": 38, "end": 45}}
    with pytest.raises(OperatorError) as refused:
        await ingest(ingest_task(node, tmp_path, scope))
    assert refused.value.code == "chain.beyond_head"
    result = await ingest(ingest_task(node, tmp_path, scope, kind="invalidation", tables=("blocks",)))
    assert result["blocks"]["block_number"].to_pylist() == [38, 39, 40]


async def test_an_error_names_the_endpoint_and_no_credentials(tmp_path: Path, node: Simulator) -> None:
    config = {"endpoints": ["http://user:secret@127.0.0.1:9/v3/KEY"], **QUICK}
    with pytest.raises(OperatorError) as failed:
        await ingest(ingest_task(node, tmp_path, {"cursor": 1}, config=config))
    assert failed.value.code == "chain.rpc_unavailable"
    assert "http://127.0.0.1:9" in str(failed.value)
    assert "secret" not in str(failed.value)
    assert "KEY" not in str(failed.value)
