"""Files that a query reads in parts, through the gateway: the process of the query has no other way to them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from traceplane.adapters.object_cache import ObjectCache
from traceplane.adapters.object_store import StoredFile
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.errors import PlatformError
from traceplane.linux.conversation import NotAsAgreed
from traceplane.query.engine_pool import EnginePool, ReadPart, _Answers
from traceplane.query.store_files import MOST_BYTES, QUESTION, name_of
from traceplane.query.wire import EngineColumn, EngineQuery, EngineRelation, FileGroup, QueryLimits

ROWS = 1_000_000
PATHS = ["of/one.parquet", "of/two.parquet"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    made = []
    for number in range(2):
        ids = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": ids, "half": [n / 2 for n in ids], "name": [f"name {n * 7919}" for n in ids]})
        made.append(folder / f"{number}.parquet")
        parquet.write_table(table, made[-1], row_group_size=ROWS // 10)
    return made


class Reads:
    """What a gateway reads for a query."""

    def __init__(self, files: list[Path]) -> None:
        self._files, self.bytes, self.longest = files, 0, 0

    async def part(self, number: int, start: int, count: int) -> bytes:
        self.bytes += count
        self.longest = max(self.longest, count)
        with self._files[number].open("rb") as file:
            file.seek(start)
            return file.read(count)


def query(sql: str, files: list[Path], threads: int = 2) -> EngineQuery:
    columns = [EngineColumn("id", "BIGINT"), EngineColumn("half", "DOUBLE"), EngineColumn("name", "VARCHAR")]
    names = [name_of(path) for path in PATHS]
    return EngineQuery(
        sql,
        [EngineRelation("tp_d0", columns, [FileGroup(names)])],
        "json",
        [],
        QueryLimits(60.0, 1000, 1 << 20, 512, spill_mb=64, threads=threads),
        {name: file.stat().st_size for name, file in zip(names, files, strict=True)},
    )


async def rows(engines: EnginePool, asked: EngineQuery, read: ReadPart | None) -> list[list[object]]:
    pieces = [piece async for piece in engines.run(asked, read=read)]
    answer: list[list[object]] = json.loads(b"".join(pieces))["rows"]
    return answer


@pytest.fixture
async def engines(tmp_path: Path):  # type: ignore[no-untyped-def]
    pool = EnginePool(spill_root=tmp_path, concurrency=4)
    yield pool
    await pool.close()


async def test_a_query_reads_the_columns_and_row_groups_that_it_needs(
    engines: EnginePool, files: list[Path]
) -> None:
    whole = sum(file.stat().st_size for file in files)
    some = Reads(files)
    asked = query("select sum(half), count(*) from tp_d0 where id between 1500000 and 1500009", files)
    assert await rows(engines, asked, some.part) == [[7500022.5, 10]]
    assert some.bytes < whole / 10
    everything = Reads(files)
    asked = query("select count(distinct name), sum(id)::bigint from tp_d0", files)
    assert await rows(engines, asked, everything.part) == [[2 * ROWS, sum(range(2 * ROWS))]]
    assert whole / 2 < everything.bytes < whole * 1.1
    assert everything.longest <= MOST_BYTES


async def test_queries_at_once_do_not_mix_up_their_files(engines: EnginePool, files: list[Path]) -> None:
    async def one(last: int) -> None:
        found = await rows(
            engines,
            query(f"select max(name), count(*) from tp_d0 where id = {last}", files),
            Reads(files).part,
        )
        assert found == [[f"name {last * 7919}", 1]]

    await asyncio.gather(*(one(n) for n in (0, 5, 999_999, 1_000_000, 1_999_999)))


async def test_a_store_that_does_not_answer_is_what_the_caller_is_told(
    engines: EnginePool, files: list[Path]
) -> None:
    async def fails(number: int, start: int, count: int) -> bytes:
        raise PlatformError("object_store.unavailable", "a call to S3 failed")

    with pytest.raises(PlatformError) as raised:
        await rows(engines, query("select sum(id) from tp_d0", files), fails)
    assert raised.value.code == "object_store.unavailable"

    async def breaks(number: int, start: int, count: int) -> bytes:
        raise ZeroDivisionError

    with pytest.raises(PlatformError) as raised:
        await rows(engines, query("select sum(id) from tp_d0", files), breaks)
    assert raised.value.code == "query.file_unreadable"


async def test_a_query_whose_store_never_answers_ends_with_its_time(
    engines: EnginePool, files: list[Path]
) -> None:
    asked = query("select sum(id) from tp_d0", files)
    limits = QueryLimits(1.0, 10, 1 << 20, 512, spill_mb=64, threads=2)
    given_up = asyncio.Event()

    async def never(number: int, start: int, count: int) -> bytes:
        try:
            await asyncio.sleep(1000)
        finally:
            given_up.set()
        raise AssertionError

    with pytest.raises(Exception, match="longer than 1 seconds"):
        await rows(
            engines, EngineQuery(asked.sql, asked.relations, "json", [], limits, asked.in_parts), never
        )
    await asyncio.wait_for(given_up.wait(), 10)


@pytest.mark.parametrize(
    "question",
    [
        QUESTION.pack(1, 2, 0, 1),  # no such file
        QUESTION.pack(1, 0, 0, 0),
        QUESTION.pack(1, 0, 0, MOST_BYTES + 1),
        QUESTION.pack(1, 1, 90, 11),  # beyond its end
        QUESTION.pack(1, 1, 2**63, 1),
        b"",
        QUESTION.pack(1, 0, 0, 1) + b"x",
    ],
)
async def test_a_hostile_process_gets_no_bytes_of_other_files(question: bytes) -> None:
    async def read(number: int, start: int, count: int) -> bytes:
        raise AssertionError

    answers = _Answers(None, [1 << 30, 100], read)  # type: ignore[arg-type]
    with pytest.raises(NotAsAgreed):
        answers.take(question)


async def test_a_hostile_process_cannot_have_questions_without_end(files: list[Path]) -> None:
    async def read(number: int, start: int, count: int) -> bytes:
        await asyncio.sleep(1000)
        return b""

    answers = _Answers(None, [100], read)  # type: ignore[arg-type]

    def ask_on() -> None:
        for number in range(1000):
            answers.take(QUESTION.pack(number, 0, 0, 1))

    with pytest.raises(NotAsAgreed):
        ask_on()
    answers.cancel()


async def test_what_is_small_or_read_often_is_fetched_whole(tmp_path: Path) -> None:
    store = FolderObjectStore(tmp_path / "objects")
    cache = await ObjectCache.open(store, tmp_path / "cache", limit_bytes=20 << 20)
    (tmp_path / "source").write_bytes(bytes(3 << 20))
    large, small = StoredFile("large", 3 << 20), StoredFile("small", 100)
    await store.put(tmp_path / "source", large.path)
    (tmp_path / "source").write_bytes(b"x" * 100)
    await store.put(tmp_path / "source", small.path)
    async with cache.holding_some([large, small]) as in_parts:
        assert in_parts == [large]
        assert (cache.files / "small").read_bytes() == b"x" * 100
        for start in (0, 1 << 20, 2 << 20):
            assert await cache.read(large, start, 1 << 20) == bytes(1 << 20)
    async with cache.holding_some([large, small]) as in_parts:
        assert in_parts == []
        assert (cache.files / "large").stat().st_size == large.bytes
    await cache.close()


async def test_what_does_not_fit_into_the_cache_is_read_in_parts(tmp_path: Path) -> None:
    store = FolderObjectStore(tmp_path / "objects")
    cache = await ObjectCache.open(store, tmp_path / "cache", limit_bytes=1000)
    files = [StoredFile(f"file{n}", 200) for n in range(10)]
    (tmp_path / "source").write_bytes(bytes(200))
    for file in files:
        await store.put(tmp_path / "source", file.path)
    async with cache.holding_some(files) as in_parts:
        assert in_parts == files[2:]
    await cache.close()
