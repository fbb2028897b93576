"""Hot inputs as files: the wrapper fetches a task's rows from the dispatcher, several pieces at a time.

Operators read them as they read any input, as Parquet files, and hold neither a token nor a database. The files lie
in the object store, in a staging folder of the input that belongs to this attempt alone: the task's process and the
worker's Spark reach them there, and garbage collection finds what a killed worker left.

All pieces are of one moment. If the range is written meanwhile, the dispatcher says so, and reading begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

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
_TRIES = 5
_PAUSE_SECONDS = 0.4
_LONGEST_PAUSE_SECONDS = 5.0
_KEPT_BYTES = 1 << 30
"""Of the rows that are kept of one file, and four times its size on top: it may be compressed better."""


@dataclass(frozen=True)
class LocalInputs:
    """Hot inputs by their place among the job's inputs; one that is missing is not hot."""

    files: dict[int, list[str]] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    reads: list[HotRead] = field(default_factory=list)


@contextlib.asynccontextmanager
async def fetched(
    client: DispatcherClient,
    task: ClaimedTask,
    job: JobPayload,
    token: Callable[[], str],
    object_store: Path,
    decoders: Decoders,
) -> AsyncIterator[LocalInputs]:
    """The task's hot inputs as files that are gone afterwards."""
    folders = {
        number: object_store / f"{i.dataset_uuid}/{i.dataset_version}/staging/{task.task_id}/{task.attempt}"
        for number, (i, place) in enumerate(zip(job.inputs, task.hot_inputs, strict=False))
        if place is not None
    }
    if not folders:
        yield LocalInputs()
        return
    try:
        yield await _fetch(client, task, job, token, object_store, decoders, folders)
    finally:
        for folder in folders.values():
            await asyncio.to_thread(_remove, folder)


async def _fetch(
    client: DispatcherClient,
    task: ClaimedTask,
    job: JobPayload,
    token: Callable[[], str],
    object_store: Path,
    decoders: Decoders,
    folders: dict[int, Path],
) -> LocalInputs:
    fence = Fence(task.task_id, task.attempt, task.lease_token)
    tries = pauses(_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS, attempts=_TRIES)
    while True:
        try:
            return await _read(client, fence, task, job, token, object_store, decoders, folders)
        except Conflict as error:
            if error.code != "hot.changed":
                raise PlatformError("task.stale", error.message, value=error.value) from error
            if (pause := next(tries, None)) is None:
                raise _never_still(task) from error
        except PlatformError:  # the dispatcher may be away for a moment
            if (pause := next(tries, None)) is None:
                raise
        await asyncio.sleep(pause)
        # What it is told of its inputs has changed, too.
        if (again := await client.fetch(fence)).task is None:
            raise PlatformError("task.stale", f"the task is {again.outcome}", value=str(task.task_id))
        task = again.task


def _never_still(task: ClaimedTask) -> PlatformError:
    return PlatformError(
        "hot.never_still",
        f"a hot input was written at each of {_TRIES} tries to read it",
        value=str(task.scope),
        next_step="the task is tried again; let it work on ranges that are not written so often",
    )


async def _read(
    client: DispatcherClient,
    fence: Fence,
    task: ClaimedTask,
    job: JobPayload,
    token: Callable[[], str],
    object_store: Path,
    decoders: Decoders,
    folders: dict[int, Path],
) -> LocalInputs:
    found = LocalInputs()
    for number, folder in folders.items():
        place = task.hot_inputs[number]
        assert place is not None, "the dispatcher tells of every hot input"
        await asyncio.to_thread(_make_anew, folder)
        reading = _Reading(
            client, fence, token, decoders, number, job.inputs[number], task.input_schemas[number]
        )
        found.files[number], found.rows[number] = await reading.run(place, folder, object_store)
        found.reads.append(HotRead(job.inputs[number].input_index, place.state))
    return found


class _Reading:
    """One hot input of one attempt."""

    def __init__(
        self,
        client: DispatcherClient,
        fence: Fence,
        token: Callable[[], str],
        decoders: Decoders,
        number: int,
        used: InputRef,
        columns: Sequence[ColumnSchema] | None,
    ) -> None:
        self._client, self._fence, self._token, self._number = client, fence, token, number
        self._decoders = decoders
        from traceplane.columnar.arrow_types import (
            schema_of,
        )  # and Arrow, which other tasks do not need here

        wanted = [
            c for c in columns or () if not used.columns or c.name in used.columns or c.name in used.where
        ]
        schema = schema_of(wanted)
        assert schema is not None, "a hot table has no types but those that Arrow knows by name"
        self._schema: pa.Schema = schema
        self._columns = [KeptColumn(c.name, c.type, c.nullable) for c in wanted]

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
                rows = await asyncio.to_thread(_keep, self._decoders, source, target, work)
            return str(target), rows

        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(piece(n, *span)) for n, span in enumerate(place.parts)]
                running += [group.create_task(moved(n, file)) for n, file in enumerate(place.files)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # one reason is enough to stop; the others follow from it
        found = [task.result() for task in running]
        return [path for path, _ in found], sum(rows for _, rows in found)

    async def _piece(self, place: HotInput, target: Path, start: int, end: int) -> tuple[str, int]:
        request = RowsRequest([self._token()], self._fence, self._number, start, end, place.state)
        received = target.with_suffix(".csv")
        with received.open("wb") as file:
            async for chunk in self._client.rows(request):
                file.write(chunk)
        parquet = target.with_suffix(".parquet")
        rows = await asyncio.to_thread(as_parquet, received, parquet, self._schema)
        received.unlink()
        return str(parquet), rows


def _keep(decoders: Decoders, source: Path, target: Path, work: KeptRowsWork) -> int:
    """The rows of a file that lie at these positions. Operators wrote it, so it is not read here."""
    try:
        limits = FileLimits(_KEPT_BYTES + 4 * source.stat().st_size, cpu_seconds=120.0, seconds=600.0)
        with target.open("w+b") as sink:
            return decoders.decode(source, work, limits, sink).rows
    except FileTooLarge as error:
        raise TooLarge(
            "operator.input_too_large",
            f"a file of a hot input takes too much to read: {error}",
            value=source.name,
            next_step="have its scope computed again, with less in one file",
        ) from error
    except (OSError, InvalidContents, Unreadable) as error:
        raise PlatformError(
            "operator.input_unreadable",
            f"a committed file of a hot input cannot be read: {error}",
            value=source.name,
            next_step="restore the file, or have its scope computed again with `traceplane backfill`",
        ) from error


def _make_anew(folder: Path) -> None:
    """An empty folder that operators can read, whatever the umask."""
    remove_tree(folder)
    above = [p for p in folder.parents if not p.exists()]
    folder.mkdir(parents=True)
    for made in (folder, *above):
        made.chmod(0o755)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # of the task, unless another attempt's is there
