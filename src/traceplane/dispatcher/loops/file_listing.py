"""Lists the files of file sources, and announces partitions whose files are new or have changed.

A pass has its source for itself: it holds a token that every transaction checks, so that dispatchers share the sources
and one that dies leaves its source to the next. First every page of the listing is compared with the files that were
there; then each partition that has changed becomes one event, in the transaction that shows its files to readers. So a
file is announced once, whatever crashes in between, and however long nobody looked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from uuid import UUID, uuid4

from traceplane import telemetry
from traceplane.adapters.watched_files import WatchedFile, WatchedFiles
from traceplane.errors import TraceplaneError
from traceplane.file_sources.pattern import BadPattern, Pattern
from traceplane.model.partitions import BadPartition, By
from traceplane.postgres import events, partition_names, source_files
from traceplane.postgres.database import Database, Transaction, retry_on_conflict
from traceplane.postgres.events import NewEvent
from traceplane.postgres.source_files import Announced, FileSource, PassEnd, SeenFile
from traceplane.runtime.process import Outcome

_SOURCES_AT_ONCE = 4
_HELD_FOR = timedelta(seconds=60)
"""How long a pass may be silent before another dispatcher takes its source."""
_PARTITIONS_AT_ONCE = 500
_LONGEST_PATH = 2000


@dataclass(frozen=True, slots=True)
class FilesListed(Outcome):
    announced: int = 0
    """Partitions."""
    failed: int = 0
    """Sources that could not be listed."""
    more: bool = False


class _TakenOver(Exception):
    """Another pass has the source now, or it is no longer deployed."""


class FileListing:
    def __init__(self, database: Database, files: WatchedFiles, *, stop: asyncio.Event | None = None) -> None:
        self._database = database
        self._files = files
        self._stop = stop or asyncio.Event()

    async def run_once(self) -> FilesListed:
        holder = uuid4()
        async with self._database.transaction() as tx:
            sources = await source_files.take(tx, holder, _HELD_FOR, _SOURCES_AT_ONCE)
        if not sources:
            return FilesListed()
        passes = [_Pass(self._database, self._files, self._stop, source, holder) for source in sources]
        await asyncio.gather(*(one.run() for one in passes))
        return FilesListed(
            sum(one.announced for one in passes),
            sum(one.problem is not None for one in passes),
            more=len(sources) == _SOURCES_AT_ONCE,
        )


@dataclass
class _Pass:
    """One listing of one source."""

    database: Database
    files: WatchedFiles
    stop: asyncio.Event
    source: FileSource
    holder: UUID
    positions: dict[str, tuple[int | None, str | None]] = field(default_factory=dict)
    """By the name of a partition: its position, or why there is none."""
    matched: int = 0
    ignored: int = 0
    announced: int = 0
    problem: str | None = None

    async def run(self) -> None:
        try:
            await self._list()
            while not self.stop.is_set() and (count := await retry_on_conflict(self._announce)):
                self.announced += count
        except _TakenOver:
            return
        except TraceplaneError as error:
            self.problem = f"{error.code}: {error.message}" + (f": {error.value}" if error.value else "")
        except BadPattern as error:  # the dataset's partitions have changed
            self.problem = str(error)
        if self.problem is not None:
            telemetry.emit(
                "files.unusable", "error", dag=self.source.dag, job=self.source.job, message=self.problem
            )
        end = PassEnd(self.matched, self.ignored) if self.problem is None else PassEnd(problem=self.problem)
        async with self.database.transaction() as tx:
            await source_files.settle(tx, self.source, self.holder, end)

    async def _list(self) -> None:
        config = self.source.config
        pattern = Pattern(config.pattern, self.source.partitions.by)
        start = len(config.path.rstrip("/")) + 1
        async for page in self.files.pages(config.path, pattern.beginning, pattern.folders):
            if self.stop.is_set():
                raise _TakenOver  # by the next dispatcher, once nobody holds it
            named = [(file, pattern.partition_of(file.path[start:])) for file in page]
            matching = [(file, name) for file, name in named if name is not None and _is_text(file.path)]
            self.matched += len(matching)
            self.ignored += len(page) - len(matching)
            await retry_on_conflict(partial(self._see, matching))
        async with self.database.transaction() as tx:
            await self._hold(tx)
            await source_files.drop_unlisted(tx, self.source)

    async def _see(self, matching: Sequence[tuple[WatchedFile, str]]) -> None:
        async with self.database.transaction() as tx:
            await self._hold(tx)
            if not matching:
                return
            await self._locate(tx, {name for _, name in matching} - self.positions.keys())
            await source_files.see(
                tx,
                self.source.generation_id,
                [
                    SeenFile(f.path, f.bytes, f.version, f.modified_at, *self.positions[name])
                    for f, name in matching
                ],
            )

    async def _hold(self, tx: Transaction) -> None:
        if not await source_files.hold(tx, self.source.job_id, self.holder, _HELD_FOR):
            raise _TakenOver

    async def _locate(self, tx: Transaction, names: set[str]) -> None:
        partitions = self.source.partitions
        if partitions.by is By.NAME:
            usable = sorted(name for name in names if partitions.may_have(name))
            if usable:
                partitions = partitions.with_names(
                    await partition_names.register(tx, self.source.org, usable)
                )
        for name in names:
            try:
                self.positions[name] = (partitions.position(name), None)
            except BadPartition as error:
                self.positions[name] = (None, str(error))

    async def _announce(self) -> int:
        """How many partitions were announced."""
        async with self.database.transaction("files") as tx:
            await self._hold(tx)
            positions = await source_files.changed(tx, self.source, _PARTITIONS_AT_ONCE)
            if not positions:
                return 0
            names = await self._names(tx, positions)
            announced = await source_files.announce(tx, self.source, names)
            accepted = await events.accept(tx, self._events(announced), notify_dispatchers=True)
        telemetry.count("events_accepted_total", len(announced))
        telemetry.count("tasks_created_total", accepted.tasks_created)
        telemetry.count("file_partitions_announced_total", len(announced))
        return len(announced)

    async def _names(self, tx: Transaction, positions: Sequence[int]) -> dict[int, str]:
        partitions = self.source.partitions
        if partitions.by is By.NAME:
            partitions = partitions.with_names(await partition_names.at(tx, self.source.org, positions))
        return {position: partitions.name(position) for position in positions}

    def _events(self, announced: Sequence[Announced]) -> list[NewEvent]:
        now, source = time.time_ns(), self.source
        return [
            NewEvent(
                producer_id=source.voice,
                generation_id=source.generation_id,
                kind="invalidation" if one.rewritten else "data",
                partition_key=one.partition if source.partitions.is_named else None,
                start=one.position,
                end=one.position,
                emission=f"files {uuid4()}",
                traceparent=telemetry.record_span("event", None, now, now, dataset=source.dataset_id),
            )
            for one in announced
        ]


def _is_text(path: str) -> bool:
    """Whether the database can store it; names of files may be any bytes. Those that are not UTF-8 hold surrogates,
    which are not printable."""
    return path.isprintable() and len(path) <= _LONGEST_PATH
