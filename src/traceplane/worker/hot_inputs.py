"""Hot inputs as files: the wrapper fetches a task's rows from the dispatcher, several pieces at a time.

Operators read them like any input, as Parquet files, and need neither a token nor a database connection. The files are
in the object store, in a staging folder of the input that belongs to this attempt alone: the task's process and the
worker's Spark can reach them there, and garbage collection finds those that a killed worker left.

All pieces are from the same moment. If the range is written in the meantime, the dispatcher says so, and reading
starts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from traceplane.adapters.watched_files import WatchedFile, WatchedFiles
from traceplane.columnar.postgres_csv import as_parquet
from traceplane.decoding.decoder_pool import Decoders
from traceplane.decoding.messages import (
    FileLimits,
    FileTooLarge,
    InvalidContents,
    KeptColumn,
    KeptRowsWork,
    Unreadable,
)
from traceplane.errors import Conflict, PlatformError, TooLarge
from traceplane.runtime.in_parallel import in_parallel
from traceplane.runtime.locked_folder import remove_tree
from traceplane.runtime.retrying import pauses
from traceplane.wire.tasks import (
    ClaimedTask,
    ColumnSchema,
    Fence,
    HotInput,
    HotRead,
    InputRef,
    JobPayload,
    MovedFile,
    RowsRequest,
)
from traceplane.worker.dispatcher_client import DispatcherClient

if TYPE_CHECKING:
    import pyarrow as pa

_PIECES_AT_ONCE = 4
_FILES_AT_ONCE = 8
_TRIES = 5
_PAUSE_SECONDS = 0.4
_LONGEST_PAUSE_SECONDS = 5.0
_KEPT_BYTES = 1 << 30
"""Limit for the rows kept from one file, plus four times its size: the file may be compressed better."""


@dataclass(frozen=True)
class LocalInputs:
    """Hot inputs by their index among the job's inputs; the other inputs are not hot."""

    files: dict[int, list[str]] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    reads: list[HotRead] = field(default_factory=list)
    attached: dict[int, dict[str, str]] = field(default_factory=dict)
    """Copies of the files that rows of a file source name, by their paths there."""


@contextlib.asynccontextmanager
async def fetched(
    client: DispatcherClient,
    task: ClaimedTask,
    job: JobPayload,
    token: Callable[[], str],
    object_store: Path,
    decoders: Decoders,
    watched_files: WatchedFiles,
) -> AsyncIterator[LocalInputs]:
    """The task's hot inputs as temporary files."""
    folders = {
        number: object_store / f"{i.storage}staging/{task.task_id}/{task.attempt}"
        for number, (i, place) in enumerate(zip(job.inputs, task.hot_inputs, strict=False))
        if place is not None
    }
    if not folders:
        yield LocalInputs()
        return
    fence = Fence(task.task_id, task.attempt, task.lease_token)
    try:
        yield await _Fetch(client, fence, job, token, object_store, decoders, watched_files, folders).run(
            task
        )
    finally:
        for folder in folders.values():
            await asyncio.to_thread(_remove, folder)


@dataclass(frozen=True)
class _Fetch:
    """All hot inputs of one attempt, read again while others write them."""

    client: DispatcherClient
    fence: Fence
    job: JobPayload
    token: Callable[[], str]
    object_store: Path
    decoders: Decoders
    watched_files: WatchedFiles
    folders: dict[int, Path]

    async def run(self, task: ClaimedTask) -> LocalInputs:
        tries = pauses(_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, attempts=_TRIES)
        while True:
            try:
                return await self._read(task)
            except Conflict as error:
                if error.code != "hot.changed":
                    raise PlatformError("task.stale", error.message, value=error.value) from error
                # A function has no token to fetch its task again with, so the task is retried.
                if (pause := next(tries, None)) is None or not self.client.is_worker:
                    raise _never_still(task) from error
            except PlatformError:  # the dispatcher or a file may be unavailable for a moment
                if (pause := next(tries, None)) is None:
                    raise
            await asyncio.sleep(pause)
            # The claim's facts about its inputs have changed too.
            if (response := await self.client.fetch(self.fence)).task is None:
                raise PlatformError("task.stale", f"the task is {response.outcome}", value=str(task.task_id))
            task = response.task

    async def _read(self, task: ClaimedTask) -> LocalInputs:
        inputs = LocalInputs()
        for number, folder in self.folders.items():
            place, used = task.hot_inputs[number], self.job.inputs[number]
            assert place is not None, "the dispatcher describes every hot input"
            await asyncio.to_thread(_make_anew, folder)
            reading = _Reading(
                self.client,
                self.fence,
                self.token,
                self.decoders,
                self.job.org,
                number,
                used,
                task.input_schemas[number],
            )
            inputs.files[number], inputs.rows[number] = await reading.run(place, folder, self.object_store)
            inputs.reads.append(HotRead(used.input_index, place.state))
            if used.with_files:
                inputs.attached[number] = await self._attach(inputs.files[number], folder / "files")
        return inputs

    async def _attach(self, rows: Sequence[str], folder: Path) -> dict[str, str]:
        """Copies of the files that the rows name, which only the platform wrote."""
        await asyncio.to_thread(_make_anew, folder)
        files = await asyncio.to_thread(_named_files, rows)
        targets = {
            file: folder / f"{number:05d}-{file.path.rpartition('/')[2][-100:]}"
            for number, file in enumerate(files)
        }

        async def copy(file: WatchedFile) -> None:
            await self.watched_files.get(file, targets[file])
            targets[file].chmod(0o644)

        await in_parallel(copy, files, _FILES_AT_ONCE)
        return {file.path: str(target) for file, target in targets.items()}


def _named_files(rows: Sequence[str]) -> list[WatchedFile]:
    import pyarrow.parquet as parquet

    names = ["path", "bytes", "version", "modified_at"]
    return [
        WatchedFile(**row) for file in rows for row in parquet.read_table(file, columns=names).to_pylist()
    ]


def _never_still(task: ClaimedTask) -> PlatformError:
    return PlatformError(
        "hot.never_still",
        "a hot input was written each time it was read",
        value=str(task.scope),
        next_step="the task is retried; use ranges that are written less often",
    )


class _Reading:
    """One hot input of one attempt."""

    def __init__(
        self,
        client: DispatcherClient,
        fence: Fence,
        token: Callable[[], str],
        decoders: Decoders,
        org: str,
        number: int,
        used: InputRef,
        columns: Sequence[ColumnSchema] | None,
    ) -> None:
        self._client, self._fence, self._token, self._number = client, fence, token, number
        self._decoders, self._org = decoders, org
        from traceplane.columnar.arrow_types import (
            schema_of,
        )  # imports Arrow, which other tasks do not need here

        read_columns = [
            c for c in columns or () if not used.columns or c.name in used.columns or c.name in used.where
        ]
        schema = schema_of(read_columns)
        assert schema is not None, "every type of a hot table has an Arrow name"
        self._schema: pa.Schema = schema
        self._columns = [KeptColumn(c.name, c.type, c.nullable) for c in read_columns]

    async def run(self, place: HotInput, folder: Path, object_store: Path) -> tuple[list[str], int]:
        """The files, and how many rows they hold."""
        turns = asyncio.Semaphore(_PIECES_AT_ONCE)

        async def piece(number: int, start: int, end: int) -> tuple[str, int]:
            async with turns:
                return await self._piece(place, folder / f"part-{number:05d}", start, end)

        async def moved(number: int, file: MovedFile) -> tuple[str, int]:
            source = object_store / file.path
            if file.keep is None:
                return str(source), file.rows
            target = folder / f"moved-{number:05d}.parquet"
            async with turns:
                work = KeptRowsWork(self._columns, place.position, file.keep)
                rows = await asyncio.to_thread(_keep, self._decoders, self._org, source, target, work)
            return str(target), rows

        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(piece(n, *span)) for n, span in enumerate(place.parts)]
                running += [group.create_task(moved(n, file)) for n, file in enumerate(place.files)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # one reason is enough; the others follow from it
        pieces = [task.result() for task in running]
        return [path for path, _ in pieces], sum(rows for _, rows in pieces)

    async def _piece(self, place: HotInput, target: Path, start: int, end: int) -> tuple[str, int]:
        request = RowsRequest([self._token()], self._fence, self._number, start, end, place.state)
        csv_file = target.with_suffix(".csv")
        with csv_file.open("wb") as file:
            async for chunk in self._client.rows(request):
                file.write(chunk)
        parquet = target.with_suffix(".parquet")
        rows = await asyncio.to_thread(as_parquet, csv_file, parquet, self._schema)
        csv_file.unlink()
        return str(parquet), rows


def _keep(decoders: Decoders, org: str, source: Path, target: Path, work: KeptRowsWork) -> int:
    """Keeps the rows of a file at these positions. Operators wrote the file, so a decoder reads it."""
    try:
        limits = FileLimits(_KEPT_BYTES + 4 * source.stat().st_size, cpu_seconds=120.0, seconds=600.0)
        with target.open("w+b") as sink:
            return decoders.decode(org, source, work, limits, sink).rows
    except FileTooLarge as error:
        raise TooLarge(
            "operator.input_too_large",
            f"a file of a hot input takes too much memory to read: {error}",
            value=source.name,
            next_step="recompute its scope, with less data in one file",
        ) from error
    except (OSError, InvalidContents, Unreadable) as error:
        raise PlatformError(
            "operator.input_unreadable",
            f"a committed file of a hot input cannot be read: {error}",
            value=source.name,
            next_step="restore the file, or recompute its scope with `traceplane backfill`",
        ) from error


def _make_anew(folder: Path) -> None:
    """An empty folder that operators can read, whatever the umask."""
    remove_tree(folder)
    above = [p for p in folder.parents if not p.exists()]
    folder.mkdir(parents=True)
    for new_folder in (folder, *above):
        new_folder.chmod(0o755)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # the task's folder, unless another attempt uses it
