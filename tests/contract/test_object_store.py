"""The contract of every object store, on a folder and over S3's protocol; then the worker's cache in front of it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
from aiobotocore.session import AioSession
from aiohttp import web

from tests.aws import CREDENTIALS, REGION
from tests.contract.gate import Gate
from tests.platform import until
from traceplane.adapters.object_cache import ObjectCache
from traceplane.adapters.object_store import ObjectStore, StagingPrefix, StoredFile
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.adapters.object_store_s3 import S3ObjectStore
from traceplane.adapters.object_stores import object_store_for
from traceplane.errors import InvalidInput, PlatformError
from traceplane.settings import load

ORG, DATASET, GENERATION = uuid4(), uuid4(), uuid4()


@dataclass
class Bucket:
    """A separate bucket, inspected from outside, with a gate in front of the server."""

    name: str
    gate: Gate
    client: Any
    session: AioSession

    def store(self, **options: Any) -> S3ObjectStore:
        endpoint = f"http://127.0.0.1:{self.gate.port}"
        options = {"endpoint_url": endpoint, "session": self.session, "tries": 2} | options
        return S3ObjectStore(self.name, "some/where", region=REGION, **options)


@pytest.fixture
async def bucket(aws_endpoint: str, aws_session: AioSession) -> AsyncIterator[Bucket]:
    port = urlsplit(aws_endpoint).port
    gate = Gate(lambda: asyncio.open_connection("127.0.0.1", port))
    await gate.open()
    async with aws_session.create_client("s3", region_name=REGION, endpoint_url=aws_endpoint) as client:
        name = f"bucket-{uuid4()}"
        await client.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
        yield Bucket(name, gate, client, aws_session)
    await gate.shut()


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return FolderObjectStore(tmp_path / "objects")
    return request.getfixturevalue("bucket").store(keys_per_page=10)


@pytest.fixture
async def store(place: ObjectStore) -> AsyncIterator[ObjectStore]:
    await place.check()
    yield place
    await place.close()


@pytest.fixture
async def s3(bucket: Bucket) -> AsyncIterator[S3ObjectStore]:
    store = bucket.store()
    yield store
    await store.close()


def prefix(task: UUID, attempt: int = 1) -> str:
    return f"o/{ORG}/{DATASET}/{GENERATION}/staging/{task}/{attempt}/"


async def put(store: ObjectStore, folder: Path, path: str, content: bytes) -> StoredFile:
    source = folder / uuid4().hex
    source.write_bytes(content)
    await store.put(source, path)
    return StoredFile(path, len(content))


async def prefixes(store: ObjectStore) -> list[StagingPrefix]:
    everything = [prefix async for batch in store.staging_prefixes() for prefix in batch]
    return sorted(everything, key=lambda p: (p.task_id, p.attempt))


async def refused(call: Awaitable[object]) -> str:
    with pytest.raises(PlatformError) as raised:
        await call
    return raised.value.code


def test_the_setting_selects_the_store_and_an_invalid_one_is_rejected() -> None:
    def chosen(store: str) -> ObjectStore:
        return object_store_for(load(environment={"TRACEPLANE_OBJECT_STORE": store}))

    assert isinstance(chosen("data"), FolderObjectStore)
    assert isinstance(chosen("s3://bucket/some/where"), S3ObjectStore)
    for wrong in ("s3://", "s3:///where", "s3://Bucket", "gs://bucket"):
        with pytest.raises(InvalidInput) as raised:
            chosen(wrong)
        assert (raised.value.code, raised.value.value) == ("settings.invalid", wrong)


async def test_a_stored_file_is_read_back_completely_or_fails(store: ObjectStore, tmp_path: Path) -> None:
    large = os.urandom(1 << 16) * 260 + b"the last part is short"  # more than two parts of an upload
    for name, content in {"small": b"abc", "empty": b"", "large": large}.items():
        file = await put(store, tmp_path, prefix(uuid4()) + name, content)
        assert await store.sizes([file.path]) == [file]
        await store.get(file, tmp_path / name)
        assert (tmp_path / name).read_bytes() == content
        other = StoredFile(file.path, file.bytes + 1)
        assert await refused(store.get(other, tmp_path / "other")) == "object_store.size_mismatch"
        for start in range(0, len(content), 1 + len(content) // 3):
            count = min(1000, len(content) - start)
            assert await store.read(file, start, count) == content[start : start + count]
            assert await refused(store.read(other, start, count)) == "object_store.size_mismatch"
    nothing = StoredFile(prefix(uuid4()) + "nothing", 1)
    assert await refused(store.get(nothing, tmp_path / "nothing")) == "object_store.missing"
    assert await refused(store.read(nothing, 0, 1)) == "object_store.missing"
    assert await store.sizes([nothing.path]) == []


async def test_a_path_that_leads_outside_is_rejected(store: ObjectStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of somebody else")
    for path in ("../secret", "..", "/etc/passwd", f"{DATASET}/../../secret", "", "."):
        calls = [
            store.get(StoredFile(path, 16), tmp_path / "got"),
            store.read(StoredFile(path, 16), 0, 16),
            store.put(secret, path),
            store.sizes([path]),
            store.delete([path]),
        ]
        assert {await refused(call) for call in calls} == {"object_store.outside"}
    assert secret.exists()


async def test_attempts_and_their_files_are_listed_however_many(store: ObjectStore, tmp_path: Path) -> None:
    tasks = sorted(uuid4() for _ in range(3))
    attempts = [(task, attempt) for task in tasks for attempt in (1, 2, 10)]
    files = [prefix(*a) + f"part-{n}" for a in attempts for n in range(3)]
    odd = [f"{DATASET}/{GENERATION}/elsewhere/file", f"{DATASET}/{GENERATION}/staging/{tasks[0]}/x/file"]
    await asyncio.gather(*(put(store, tmp_path, path, b"x") for path in (*files, *odd)))
    older = await put(store, tmp_path, prefix(tasks[0]).removeprefix(f"o/{ORG}/") + "part-0", b"x")
    listed = await prefixes(store)
    assert [p.files for p in listed if not p.path.startswith("o/")] == [[older]]
    assert {p.generation_id for p in listed} == {GENERATION}
    staged = [p for p in listed if p.path.startswith("o/")]
    assert [(p.path, p.task_id, p.attempt) for p in staged] == [(prefix(*a), *a) for a in attempts]
    for attempt in staged:
        below = sorted(path for path in files if path.startswith(attempt.path))
        assert sorted(attempt.files, key=lambda f: f.path) == [StoredFile(path, 1) for path in below]


async def test_deleting_removes_any_number_of_files_and_nothing_else(
    store: ObjectStore, tmp_path: Path
) -> None:
    deleted, kept = uuid4(), uuid4()
    files = [prefix(deleted) + f"part-{n}" for n in range(5)]
    await asyncio.gather(*(put(store, tmp_path, path, b"x") for path in files))
    other = await put(store, tmp_path, prefix(deleted, 11) + "part-0", b"x")
    another = await put(store, tmp_path, prefix(kept) + "part-0", b"x")
    never = [prefix(deleted) + f"never-{n}" for n in range(2100)]
    await store.delete([*never[:1050], *files, *never[1050:]])
    await store.delete([])
    await store.delete_empty(prefix(deleted))
    assert {f for p in await prefixes(store) for f in p.files} == {other, another}


# S3's own -------------------------------------------------------------------------------------------


async def test_s3_that_is_down_is_unavailable_until_it_returns(
    bucket: Bucket, s3: S3ObjectStore, tmp_path: Path
) -> None:
    file = await put(s3, tmp_path, prefix(uuid4()) + "file", b"before")
    await bucket.gate.shut()
    calls: list[Callable[[], Awaitable[object]]] = [
        s3.check,
        lambda: s3.get(file, tmp_path / "got"),
        lambda: s3.put(Path(__file__), file.path + "-other"),
        lambda: s3.sizes([file.path]),
        lambda: prefixes(s3),
        lambda: s3.delete([file.path]),
    ]
    codes = await asyncio.gather(*(refused(call()) for call in calls))
    assert set(codes) == {"object_store.unavailable"}
    await bucket.gate.open()
    await s3.get(file, tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == b"before"


async def test_s3_a_missing_bucket_is_named(bucket: Bucket) -> None:
    store = S3ObjectStore(
        "nobody-has-this",
        region=REGION,
        endpoint_url=f"http://127.0.0.1:{bucket.gate.port}",
        session=bucket.session,
    )
    with pytest.raises(PlatformError, match="does not exist") as raised:
        await store.check()
    assert (raised.value.code, raised.value.value) == ("object_store.refused", "nobody-has-this")
    await store.close()


async def test_s3_incomplete_uploads_are_listed_and_aborted(bucket: Bucket, s3: S3ObjectStore) -> None:
    aborted, in_progress = prefix(uuid4()), prefix(uuid4())
    for path in (aborted, in_progress):
        await bucket.client.create_multipart_upload(Bucket=bucket.name, Key=f"some/where/{path}part-0")
    assert {p.path for p in await prefixes(s3)} == {aborted, in_progress}
    await s3.delete_empty(aborted)
    assert [p.path for p in await prefixes(s3)] == [in_progress]


async def test_s3_an_interrupted_download_is_retried(bucket: Bucket, tmp_path: Path) -> None:
    """moto never breaks off a download, so this server does."""
    calls = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        response = web.StreamResponse(headers={"content-length": "10", "etag": '"x"'})
        await response.prepare(request)
        await response.write(b"01234" if calls < 3 else b"0123456789")
        if calls < 3:
            assert request.transport is not None
            request.transport.abort()
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    store = bucket.store(endpoint_url=f"http://127.0.0.1:{runner.addresses[0][1]}", tries=3)
    try:
        await store.get(StoredFile("file", 10), tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == b"0123456789"
        assert calls == 3
    finally:
        await store.close()
        await runner.cleanup()


# The worker's cache ---------------------------------------------------------------------------------

FETCH = """
import asyncio, sys
from pathlib import Path
from traceplane.adapters.object_store import StoredFile
from traceplane.adapters.object_store_s3 import S3ObjectStore
from traceplane.adapters.object_cache import ObjectCache

async def main(bucket, endpoint, folder, path, size):
    store = S3ObjectStore(bucket, "some/where", region="eu-central-1", endpoint_url=endpoint)
    cache = await ObjectCache.open(store, Path(folder), limit_bytes=1 << 30)
    print("ready", flush=True)
    sys.stdin.readline()
    async with cache.holding([StoredFile(path, int(size))]):
        found = cache.files / path
        print(found.stat().st_ino, found.stat().st_size, flush=True)
        sys.stdin.readline()
    await cache.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_workers_that_fetch_one_file_share_it(
    bucket: Bucket, s3: S3ObjectStore, tmp_path: Path
) -> None:
    file = await put(s3, tmp_path, prefix(uuid4()) + "file", os.urandom(4 << 20))
    endpoint = f"http://127.0.0.1:{bucket.gate.port}"
    arguments = (bucket.name, endpoint, str(tmp_path / "cache"), file.path, str(file.bytes))
    workers = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            FETCH,
            *arguments,
            env={**os.environ, **CREDENTIALS},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(2)
    ]

    async def line(worker: asyncio.subprocess.Process, answer_to: bytes = b"") -> bytes:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(answer_to)
        return await asyncio.wait_for(worker.stdout.readline(), 120)

    assert [await line(w) for w in workers] == [b"ready\n"] * 2
    first, second = await asyncio.gather(*(line(w, b"go\n") for w in workers))
    assert first == second, "one file, and both hold it"
    assert int(first.split()[1]) == file.bytes
    workers[0].kill()  # SIGKILL: the kernel drops its lock, and the next worker removes its folder
    await workers[0].wait()
    small = await ObjectCache.open(bucket.store(), tmp_path / "cache", limit_bytes=0)
    assert (small.files / file.path).exists(), "the other worker still holds it"
    assert sum(p.name.startswith("worker-") for p in (tmp_path / "cache").iterdir()) == 2
    assert workers[1].stdin is not None
    workers[1].stdin.write(b"go\n")
    assert await workers[1].wait() == 0
    await small.close()
    await (await ObjectCache.open(s3, tmp_path / "cache", limit_bytes=0)).close()
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == [tmp_path / "cache/evicting"]


async def test_a_worker_notices_when_its_store_is_unavailable_and_when_it_returns(
    bucket: Bucket, s3: S3ObjectStore, tmp_path: Path
) -> None:
    files = [await put(s3, tmp_path, prefix(uuid4()) + "file", b"content") for _ in range(2)]
    cache = await ObjectCache.open(bucket.store(tries=1), tmp_path / "cache", limit_bytes=1000)
    async with cache.holding(files[:1]):
        await bucket.gate.shut()
    async with cache.holding(files[:1]):
        assert not cache.away, "a cached file needs no store"
    assert await refused(cache.holding(files).__aenter__()) == "object_store.unavailable"
    assert cache.away
    await bucket.gate.open()
    async with asyncio.timeout(60):
        await cache.until_back()
    async with cache.holding(files):
        assert (cache.files / files[1].path).read_bytes() == b"content"
    await cache.close()


async def test_a_cache_keeps_used_files_and_uploads_outputs_first(tmp_path: Path) -> None:
    store = FolderObjectStore(tmp_path / "objects")
    cache = await ObjectCache.open(store, tmp_path / "cache", limit_bytes=4000)
    files = [await put(store, tmp_path, prefix(uuid4()) + "file", os.urandom(1000)) for _ in range(3)]
    for file in files:
        async with cache.holding([file]):
            assert (cache.files / file.path).stat().st_mode & 0o777 == 0o444
    (cache.files / files[1].path).unlink()
    (cache.files / files[1].path).write_bytes(b"a disk's mishap")
    written = StoredFile(prefix(uuid4()) + "out", 2500)
    (cache.outputs / written.path).parent.mkdir(parents=True)
    (cache.outputs / written.path).write_bytes(bytes(2500))
    async with cache.holding(files[:2]):
        assert (cache.files / files[1].path).stat().st_size == 1000
        await cache.upload([written])
        await cache.discard([os.path.dirname(written.path) + "/"])
        assert await store.sizes([written.path]) == [written]
        # 5500 bytes of 4000: the unheld file that was unused for longest is removed, then the next.
        await until(lambda: _gone(cache.files / files[2].path), what="room is made")
        assert all((cache.files / file.path).exists() for file in files[:2])
    missing = StoredFile(prefix(uuid4()) + "missing", 1)
    assert await refused(cache.holding([missing]).__aenter__()) == "object_store.missing"
    assert await refused(cache.upload([missing])) == "object_store.unavailable"
    await cache.close()  # after that nothing removes folders
    assert not list((tmp_path / "cache").rglob("incoming/*"))


async def _gone(path: Path) -> bool:
    return not path.exists()


async def test_leftovers_of_a_child_of_several_tasks_are_listed_with_its_first_attempt(
    tmp_path: Path,
) -> None:
    store, task = FolderObjectStore(tmp_path / "objects"), uuid4()
    own = prefix(task, 2)
    shared = f"{own.removesuffix('/')}-0123456789abcdef/"
    leftovers = [await put(store, tmp_path, path + "part", b"abc") for path in (own, shared)]
    staged = await prefixes(store)
    assert {(p.path, p.task_id, p.attempt) for p in staged} == {(own, task, 2), (shared, task, 2)}
    assert sorted(file.path for p in staged for file in p.files) == sorted(file.path for file in leftovers)
