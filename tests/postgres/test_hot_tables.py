"""Hot datasets: rows in Postgres with the commit, read as of one moment, and moved out without a trace."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.control_plane import ControlPlane, Held
from tests.dags import SOURCE, dag, job
from tests.hot_worker import HotWorker
from tests.postgres.hot_history import COLUMNS, DAG, History, pairs, span, stored, table
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.dispatcher.leases import hot_reads, hot_writes
from traceplane.errors import Forbidden, InvalidInput, SpecInvalid, TooLarge
from traceplane.registry.garbage import Policy, collect
from traceplane.wire.scalars import Scope
from traceplane.wire.tasks import HotRead


@pytest.fixture
async def worker(database_url: str, tmp_path: Path) -> AsyncIterator[HotWorker]:
    async with ControlPlane.open(database_url, home=tmp_path) as plane:
        yield HotWorker(plane, tmp_path / "objects")


async def test_rows_are_there_with_the_commit_and_replaced_with_the_next(worker: HotWorker) -> None:
    plane = worker.plane
    await plane.deploy(DAG)
    await plane.emit("in", [1, 2])
    one, two = await worker.take("store")
    done = worker.done(one, table((1, 10), (1, 11)), table((1, 12)))
    assert await plane.report((one, done), (two, worker.done(two, table((2, 20))))) == ["committed"] * 2
    assert pairs(await worker.table("hot")) == [(1, 10), (1, 11), (1, 12), (2, 20)]
    assert await plane.report((one, done)) == ["committed"]  # said again: answered alike, nothing changes
    assert len(await worker.table("hot")) == 4
    # A wider commit that covers a part rewrites exactly that part.
    await stored(worker, span(2, 3), (3, 30))
    assert pairs(await worker.table("hot")) == [(1, 10), (1, 11), (1, 12), (3, 30)]
    await stored(worker, 3, (3, 31), emission="again")
    assert pairs(await worker.table("hot")) == [(1, 10), (1, 11), (1, 12), (3, 31)]
    kinds = await plane.sql(
        "select e.kind::text, e.scope_key from events e join datasets using (dataset_uuid)"
        " where dataset_id = 'hot' order by event_id"
    )
    assert [(r["scope_key"], r["kind"]) for r in kinds] == [
        ("c:1", "data"), ("c:2", "data"), ("p:2-3", "invalidation"), ("c:3", "invalidation")
    ]  # fmt: skip
    # The staged files have served, and garbage collection takes them.
    await plane.run_all()
    found = await collect(plane.database, FolderObjectStore(worker.objects), Policy(timedelta(0)))
    assert found.files >= 5
    assert pairs(await worker.table("hot")) == [(1, 10), (1, 11), (1, 12), (3, 31)]


async def test_rows_that_do_not_fit_fail_their_own_task_and_no_other(
    worker: HotWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await worker.plane.deploy(DAG)
    monkeypatch.setattr(hot_writes, "MOST_BYTES", 2000)
    good = table((0, 1))
    wrong = {
        "no such column in the DAG file": good.append_column("more", pa.array([1])),
        "outside the task's scope": table((99, 1)),
        "is string in this output, int in the DAG file": good.set_column(1, "n", pa.array(["one"])),
        "is int64 in this output, int in the DAG file": good.set_column(1, "n", pa.array([2**40])),
        "column block is missing": good.drop_columns(["block"]),
        "NUL": good.set_column(2, "name", pa.array(["a\0b"])),
        "MB that one commit": pa.concat_tables([good] * 500),
        "cannot read a staged file": None,
    }
    await worker.plane.emit("in", range(len(wrong) + 1))
    held = await worker.take("store")
    reports = []
    for number, (h, rows) in enumerate(zip(held, [*wrong.values(), good], strict=True)):
        here = rows
        if rows is not None and "block" in rows.column_names and rows["block"][0].as_py() == 0:
            here = rows.set_column(0, "block", pa.array([number] * rows.num_rows))
        if here is None:
            done = worker.done(h, table((number, 1)))
            (worker.objects / done.outputs[0].files[0].path).write_bytes(b"not Parquet")
        else:
            done = worker.done(h, here)
        reports.append((h, done))
    outcomes = await worker.plane.report(*reports)
    assert outcomes == ["dead"] * (len(wrong) - 1) + ["retrying", "committed"]
    codes = {}
    for h, says in zip(held, wrong, strict=False):
        error = await worker.error(h)
        codes[says] = error["code"]
        assert says in error["message"]
        assert error["next_step"]
    assert set(codes.values()) == {"commit.rows_unfit", "commit.too_large", "commit.file_unreadable"}
    assert pairs(await worker.table("hot")) == [(len(wrong), 1)]


ODD_COLUMNS = """[{name: block, type: bigint}, {name: price, type: "decimal(10, 2)"}, {name: small, type: float},
    {name: at, type: timestamp}, {name: day, type: date}, {name: flag, type: boolean}]"""


async def test_a_hot_table_refuses_the_types_that_a_dataset_in_files_refuses(worker: HotWorker) -> None:
    await worker.plane.deploy(
        SOURCE
        + job("store", "in", "hot")
        + job("file", "in", "filed")
        + f"""
datasets:
  hot: {{storage: postgres, write_mode: direct, position: block, columns: {ODD_COLUMNS}}}
  filed: {{position: block, columns: {ODD_COLUMNS}}}
"""
    )
    changed_by_a_cast: list[dict[str, Any]] = [
        {"price": 1.239},
        {"small": 1e300},
        {"at": datetime(2026, 3, 29, 2, 30)},  # noqa: DTZ001 -- a naive time is what is refused
        {"day": datetime(2026, 1, 1, 23, 59)},  # noqa: DTZ001
        {"flag": 2},
    ]
    await worker.plane.emit("in", range(len(changed_by_a_cast) + 1))
    for name, code in (("store", "commit.rows_unfit"), ("file", "commit.not_as_declared")):
        *held, last = await worker.take(name)
        for number, (h, row) in enumerate(zip(held, changed_by_a_cast, strict=True)):
            assert await worker.store(h, pa.Table.from_pylist([{"block": number, **row}])) == "dead", row
            error = await worker.error(h)
            assert (error["code"], error["value"]) == (code, *row)
        assert (
            await worker.store(last, pa.Table.from_pylist([{"block": len(held), "flag": True}]))
            == "committed"
        )


async def test_append_adds_what_its_key_does_not_know(worker: HotWorker) -> None:
    await worker.plane.deploy(
        DAG.replace(
            "outputs: [{dataset: hot}]",
            "outputs: [{dataset: hot}]\n  update_strategy: append\n  unique_key: [n]",
        )
    )
    await stored(worker, 1, (1, 10), (1, 11))
    await stored(worker, 1, (1, 11), (1, 12), (1, 12), emission="again")
    assert pairs(await worker.table("hot")) == [(1, 10), (1, 11), (1, 12)]
    await stored(worker, 2, (2, 12))
    assert len(await worker.table("hot")) == 3
    [shown] = [d for d in (await worker.plane.status()).datasets if d.dataset == "hot"]
    assert (shown.commits, shown.rows, shown.at_most) == (3, 3, False)


async def test_every_type_comes_back_as_it_went_in(worker: HotWorker) -> None:
    kinds = {
        "b": ("boolean", pa.bool_(), [True, False, None]),
        "i8": ("tinyint", pa.int8(), [-128, 127, None]),
        "i16": ("smallint", pa.int16(), [-(2**15), 2**15 - 1, None]),
        "i64": ("bigint", pa.int64(), [-(2**63), 2**63 - 1, None]),
        "f": ("float", pa.float32(), [1.5, float("inf"), None]),
        "d": ("double", pa.float64(), [0.1, -float("inf"), None]),
        "wide": ("decimal(38, 0)", pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(-1), None]),
        "cents": ("decimal(10, 2)", pa.decimal128(10, 2), [Decimal("0.10"), Decimal("-1.00"), None]),
        "Text, odd": ("string", pa.string(), ['a "quoted",\nline\\.\n\\.\n', "", None]),
        "raw": ("binary", pa.binary(), [b"\0\xff", b"", None]),
        "day": ("date", pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
        "at": (
            "timestamp",
            pa.timestamp("us", "UTC"),
            [datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)] * 2 + [None],
        ),
        "local": ("timestamp_ntz", pa.timestamp("us"), [datetime(2024, 2, 29, 1, 2, 3, 4)] * 2 + [None]),  # noqa: DTZ001
    }
    columns = [
        {"name": "block", "type": "bigint"},
        *({"name": n.replace(" ", "_"), "type": k[0]} for n, k in kinds.items()),
    ]
    await worker.plane.deploy(DAG.replace(COLUMNS, msgspec.json.encode(columns).decode()))
    given = pa.table(
        {
            "block": pa.array([7, 7, 7], pa.int64()),
            **{n.replace(" ", "_"): pa.array(k[2], k[1]) for n, k in kinds.items()},
        }
    )
    await worker.plane.emit("in", [7])
    [held] = await worker.take("store")
    assert await worker.store(held, given) == "committed"
    [reader] = await worker.take("reader")
    found, _ = await worker.read(reader)
    assert found.sort_by("i64").to_pylist() == given.sort_by("i64").to_pylist()
    assert found.schema.equals(given.schema)


async def test_a_reader_gets_its_scope_its_columns_and_its_rows_in_pieces_of_one_moment(
    worker: HotWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_reads, "_ROWS_PER_PART", 3)
    pruned = 'from: {dataset: hot}, where: {name: "n1"}, columns: [block]'
    await worker.plane.deploy(DAG.replace("from: {dataset: hot}", pruned, 1).replace("size: 5", "size: 500"))
    rows = [(block, n) for block in range(4) for n in range(3)]
    await stored(worker, span(0, 3), *rows)
    await stored(worker, 9, (9, 1))
    wide, narrow = await worker.take("reader")
    found, local = await worker.read(narrow)
    assert found.to_pylist() == [{"block": 9, "name": "n1"}]
    found, local = await worker.read(wide)
    assert len(local.files[0]) == 4
    assert sorted(found["block"].to_pylist()) == [0, 1, 2, 3]
    assert found.column_names == ["block", "name"]
    # Written between two pieces: it begins anew, and sees the new rows only.
    client, asked = worker.client, len(worker.client.asked)
    original = client.rows

    def disturbed(request: Any) -> Any:
        async def pieces() -> AsyncIterator[bytes]:
            if len(client.asked) == asked + 2:
                client.asked.append(request)
                await stored(worker, span(0, 3), *((b, n) for b, n in rows if b < 2), emission="again")
            async for piece in original(request):
                yield piece

        return pieces()

    monkeypatch.setattr(client, "rows", disturbed)
    found, local = await worker.read(wide)
    assert sorted(found["block"].to_pylist()) == [0, 1]
    # What was not granted is not sent.
    beyond = msgspec.structs.replace(client.asked[-1], end=500)
    with pytest.raises(Forbidden) as refused:
        _ = [piece async for piece in original(beyond)]
    assert refused.value.code == "task.input_not_granted"


async def test_a_filter_that_the_column_cannot_have_is_the_users_error(worker: HotWorker) -> None:
    await worker.plane.deploy(DAG)
    # Only the DAG that has the dataset knows its columns when it is deployed.
    filtered = job("elsewhere", "hot", "seen.here").replace("hot}", "hot}, where: {n: 99999999999}")
    await worker.plane.deploy(dag("other", filtered))
    await stored(worker, 1, (1, 1))
    [reader] = await worker.take("elsewhere")
    with pytest.raises(InvalidInput) as refused:
        await worker.read(reader)
    assert refused.value.code == "hot.filter_invalid"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("config: {delete_after_commit: true}", "config: {delete_after_commit: 1}", "deploy.config_invalid"),
        ("config: {delete_after_commit: true}", "config: {sort: block}", "deploy.config_invalid"),
        ("config: {delete_after_commit: true}", "config: {target: 1}", "deploy.config_invalid"),
        ("outputs: [{dataset: cold}]", "outputs: []", "deploy.config_invalid"),
        ("outputs: [{dataset: hot}]", "outputs: [{dataset: hot}]\n  update_strategy: append\n  unique_key: [x]",
         "deploy.config_invalid"),
    ],
)  # fmt: skip
async def test_what_could_not_work_is_refused_at_deploy(
    worker: HotWorker, old: str, new: str, code: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await worker.plane.deploy(DAG.replace(old, new))
    codes = [p.code for p in refused.value.problems] if isinstance(refused.value, SpecInvalid) else []
    assert code in (refused.value.code, *codes)


async def compacted(worker: HotWorker, held: Held) -> str:
    found, local = await worker.read(held)
    (outcome,) = await worker.plane.report((held, worker.done(held, found, local=local)))
    return outcome


async def test_what_is_compacted_leaves_the_table_and_is_read_all_the_same(worker: HotWorker) -> None:
    await worker.plane.deploy(DAG)
    for block in range(6):
        await stored(worker, block, (block, block))
    [cold] = await worker.take("cold")
    assert await compacted(worker, cold) == "committed"
    assert pairs(await worker.files("cold")) == [(n, n) for n in range(5)]
    assert pairs(await worker.table("hot")) == [(5, 5)]
    # A reader that comes late finds its position in the file.
    for block, reader in enumerate(await worker.take("reader")):
        found, _ = await worker.read(reader)
        assert pairs(found.to_pylist()) == [(block, block)]
    # A rewritten position counts in the table, and no longer in the file; the range is compacted again, from both.
    await stored(worker, 2, emission="gone")
    await stored(worker, 3, (3, 300), emission="fork")
    assert pairs(await worker.table("hot")) == [(3, 300), (5, 5)]
    [again] = await worker.take("cold")
    assert (again.task.kind, again.scope.partition_key) == ("invalidation", "0-4")
    assert await compacted(worker, again) == "committed"
    assert pairs(await worker.files("cold")) == [(0, 0), (1, 1), (3, 300), (4, 4)]
    assert pairs(await worker.table("hot")) == [(5, 5)]
    # The files of the first compaction go, those of the second stay.
    await collect(worker.plane.database, FolderObjectStore(worker.objects), Policy(timedelta(0)))
    assert pairs(await worker.files("cold")) == [(0, 0), (1, 1), (3, 300), (4, 4)]
    assert pairs(await worker.files("hot")) == [(0, 0), (1, 1), (3, 300), (4, 4)]


async def test_a_moved_file_that_takes_too_much_to_read_fails_its_reader_and_not_the_worker(
    worker: HotWorker,
) -> None:
    await worker.plane.deploy(DAG)
    for block in range(5):
        await stored(worker, block, (block, block))
    [cold] = await worker.take("cold")
    assert await compacted(worker, cold) == "committed"
    [moved] = (worker.objects / cold.task.write_prefixes[0]).iterdir()
    # 3 GB of text in a few kilobytes: one text, and how often it is repeated.
    names = pa.DictionaryArray.from_arrays(pa.array([0] * 30_000, pa.int32()), pa.array(["x" * 100_000]))
    bomb = pa.table({"block": [0] * 30_000, "n": pa.array([0] * 30_000, pa.int32()), "name": names})
    parquet.write_table(bomb, moved, store_schema=False, compression="zstd")
    first, *others = await worker.take("reader")
    with pytest.raises(TooLarge) as refused:
        await worker.read(first)
    assert refused.value.code == "operator.input_too_large"
    parquet.write_table(table(*((block, block) for block in range(5))), moved)
    for block, reader in enumerate(others, 1):
        found, _ = await worker.read(reader)
        assert pairs(found.to_pylist()) == [(block, block)]


async def test_a_task_that_was_overtaken_moves_nothing_and_tries_again(worker: HotWorker) -> None:
    await worker.plane.deploy(DAG)
    for block in range(5):
        await stored(worker, block, (block, block))
    [cold] = await worker.take("cold")
    found, local = await worker.read(cold)
    await stored(worker, 2, (2, 200), emission="fork")
    assert await worker.plane.report((cold, worker.done(cold, found, local=local))) == ["retrying"]
    assert (await worker.error(cold))["code"] == "compact.input_changed"
    assert await worker.files("cold") == []
    assert len(await worker.table("hot")) == 5
    # Of a move and a write in one call the write is the newer, whichever stands first.
    [cold] = await worker.take("cold")
    await worker.plane.emit("in", [3], emission="fork")
    [store] = await worker.take("store")
    found, local = await worker.read(cold)
    reports = [(store, worker.done(store, table((3, 300)))), (cold, worker.done(cold, found, local=local))]
    assert await worker.plane.report(*reports) == ["committed"] * 2
    assert pairs(await worker.table("hot")) == [(3, 300)]
    [late, *_] = [h for h in await worker.take("reader") if h.task.scope == Scope(cursor=3)]
    assert pairs((await worker.read(late))[0].to_pylist()) == [(3, 300)]
    # Nor does a job that was not told to delete, whatever its report says.
    [source, *_] = late.task.hot_inputs
    assert source is not None
    reads = [HotRead(0, source.state)]
    done = msgspec.structs.replace(worker.done(late, table()), hot_reads=reads)
    assert await worker.plane.report((late, done)) == ["committed"]
    assert pairs(await worker.table("hot")) == [(3, 300)]


async def test_two_dispatchers_that_write_and_move_at_once_leave_the_newest_word_on_each_position(
    worker: HotWorker, database_url: str
) -> None:
    await worker.plane.deploy(DAG)
    async with ControlPlane.open(database_url, home=worker.objects.parent) as second:
        for number in range(12):
            scopes: list[int | Scope] = [span(0, 4), span(3, 6), 4, 2]
            await worker.plane.emit("in", scopes, emission=f"w{number}")
            reports = []
            for own, held in enumerate(await worker.take("store")):
                first, last = held.scope.first, held.scope.last
                rows = [(p, number * 10 + own) for p in range(first, last + 1)]
                reports.append((held, worker.done(held, table(*rows))))
            for held in await worker.take("cold"):
                found, local = await worker.read(held)
                reports.append((held, worker.done(held, found, local=local)))
            planes = [worker.plane, second]
            outcomes = await asyncio.gather(
                *(planes[n % 2].report(report) for n, report in enumerate(reports))
            )
            assert {outcome for [outcome] in outcomes} <= {"committed", "retrying"}
            words = await worker.plane.sql(
                "select range_start, range_end, task_id, output_index from dataset_commits c join datasets d"
                " on d.current_generation_id = c.generation_id where dataset_id = 'hot' order by commit_id"
            )
            written = {h.task_id: completion.outputs[0] for h, completion in reports if h.job.name == "store"}
            newest: dict[int, int] = {}
            for word in (w for w in words if w["task_id"] in written):
                path = worker.objects / written[word["task_id"]].files[0].path
                newest |= dict(pairs(parquet.read_table(path).to_pylist()))
            await stored(worker, 9, (9, number), emission=f"x{number}")  # a range of its own, never full
            await _read_everything(worker, {**newest, 9: number})


async def _read_everything(worker: HotWorker, expected: dict[int, int]) -> None:
    """What the readers see, whether it lies in the table or was moved."""
    for held in await worker.take("reader"):
        found, _ = await worker.read(held)
        first, last = held.scope.first, held.scope.last
        assert pairs(found.to_pylist()) == [(p, n) for p, n in sorted(expected.items()) if first <= p <= last]
        await worker.store(held, found)


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 30), marks=pytest.mark.chaos)], ids=str)
async def test_any_order_of_writes_reorgs_and_compactions_ends_like_a_build_from_scratch(
    worker: HotWorker, seeds: range
) -> None:
    await worker.plane.deploy(DAG)
    for seed in seeds:
        await History(worker, random.Random(seed), first=seed * 1000).run(steps=45)
