"""A worker for tests of hot datasets: real files, the worker's own way of reading, no process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as parquet

from tests.control_plane import ControlPlane, Held
from traceplane.adapters.watched_files import WatchedFiles
from traceplane.dispatcher.leases.calls import granted
from traceplane.sdk import OperatorTask, schema_hash
from traceplane.wire.tasks import (
    ColumnSchema,
    Completion,
    Fence,
    FetchResponse,
    FilesRequest,
    OutputManifest,
    RowsRequest,
    StagedFile,
)
from traceplane.worker.hot_inputs import LocalInputs, fetched
from traceplane.worker.payload import task_payload
from traceplane.worker.store_on_disk import StoreOnDisk

Rows = list[dict[str, Any]]


@dataclass
class Client:
    """What `hot_inputs` and `long_inputs` need of a DispatcherClient, without HTTP."""

    plane: ControlPlane
    asked: list[RowsRequest] = field(default_factory=list)
    pieces_of_files: list[int] = field(default_factory=list)
    """How many files each piece had that was sent."""
    is_worker: bool = True

    async def rows(self, request: RowsRequest) -> AsyncIterator[bytes]:
        self.asked.append(request)
        _, grants = granted(request.fence, self.plane.authority.capabilities(request.tokens))
        pieces: list[bytes] = []

        async def push(piece: bytes) -> None:
            pieces.append(bytes(piece))

        await self.plane.leases.claims.read_rows(self.plane.database, request, grants, push)
        for piece in pieces:
            yield piece

    async def files(self, request: FilesRequest) -> AsyncIterator[bytes]:
        _, grants = granted(request.fence, self.plane.authority.capabilities(request.tokens))
        pieces: list[bytes] = []

        async def push(piece: bytes) -> None:
            pieces.append(bytes(piece))

        await self.plane.leases.claims.read_files(self.plane.database, request, grants, push)
        self.pieces_of_files = [len(msgspec.json.decode(piece)) for piece in pieces]
        sent = b"".join(pieces)
        for start in range(0, len(sent), 1000):  # a network does not keep pieces apart
            yield sent[start : start + 1000]

    async def fetch(self, fence: Fence) -> FetchResponse:
        from traceplane.postgres import tasks

        return await self.plane.leases.claims.fetch(
            tasks.LeaseFence(fence.task_id, fence.attempt, fence.lease_token), orgs=None
        )


@dataclass
class HotWorker:
    plane: ControlPlane
    objects: Path
    client: Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = Client(self.plane)

    async def take(self, job: str) -> list[Held]:
        """What of a job is ready, oldest first."""
        await self.plane.meter()
        await self.plane.send()
        ready = await self.plane.sql(
            "select task_id, runtime from tasks join jobs using (job_id) where state = 'dispatched' and name = $1",
            job,
        )
        runtime = ready[0]["runtime"] if ready else "python"
        held = await self.plane.claim([row["task_id"] for row in ready], runtime=runtime)
        return sorted(held, key=lambda h: h.task_id)

    async def read(self, held: Held, number: int = 0) -> tuple[pa.Table, LocalInputs]:
        """A hot input as its operator would see it."""
        async with fetched(
            self.client,  # type: ignore[arg-type]
            held.task,
            held.job,
            lambda: held.capability_token,
            self.objects,
            self.plane.decoders,
            WatchedFiles(self.plane.settings),
        ) as local:
            return parquet.read_table(local.files[number]), local

    def manifest(self, held: Held, *tables: pa.Table) -> OutputManifest:
        """The tables as staged files of the task's first output."""
        output, prefix, scope = held.job.outputs[0], held.task.write_prefixes[0], held.task.scope
        assert scope is not None
        (self.objects / prefix).mkdir(parents=True, exist_ok=True)
        files = []
        for number, table in enumerate(tables):
            path = f"{prefix}part-{number}.parquet"
            parquet.write_table(table, self.objects / path)
            files.append(StagedFile(path, table.num_rows, (self.objects / path).stat().st_size))
        schema = tables[0].schema if tables else pa.schema([])
        return OutputManifest(
            output.output_index,
            output.dataset_uuid,
            output.dataset_version,
            scope,
            files=files,
            row_count=sum(table.num_rows for table in tables),
            bytes=sum(file.bytes for file in files),
            schema_hash=schema_hash(schema),
            schema=[ColumnSchema(f.name, str(f.type), f.nullable) for f in schema] or None,
        )

    def done(self, held: Held, *tables: pa.Table, local: LocalInputs | None = None) -> Completion:
        reads = local.reads if local is not None else []
        return Completion(
            **held.fence, status="completed", outputs=[self.manifest(held, *tables)], hot_reads=reads
        )

    async def store(self, held: Held, *tables: pa.Table) -> str:
        (outcome,) = await self.plane.report((held, self.done(held, *tables)))
        return outcome

    async def error(self, held: Held) -> dict[str, Any]:
        found: dict[str, Any] = await self.plane.value(
            "select error from tasks where task_id = $1", held.task_id
        )
        return found

    def operator(self, held: Held, folder: Path) -> OperatorTask:
        """The task as its operator gets it, whose inputs are in files."""
        store = StoreOnDisk(self.objects, self.objects)
        payload = task_payload(held.task, held.job, store, LocalInputs(), None)
        folders = {output.name: str(folder) for output in held.job.outputs}
        return OperatorTask(
            task_id="t", attempt=1, payload=payload, output_folders=folders, temp_dir=str(folder)
        )

    async def table(self, dataset: str) -> Rows:
        """What lies in the hot table itself."""
        generation = await self.plane.value(
            "select current_generation_id from datasets where dataset_id = $1", dataset
        )
        return [dict(r) for r in await self.plane.sql(f"select * from traceplane_hot.g_{generation.hex}")]

    async def files(self, dataset: str) -> Rows:
        """What the live commits of a dataset name."""
        rows = await self.plane.sql(
            "select c.files from dataset_commits c join datasets d on d.current_generation_id = c.generation_id"
            " where d.dataset_id = $1 and c.superseded_by is null order by commit_id",
            dataset,
        )
        paths = [self.objects / f["path"] for row in rows for f in row["files"]]
        return [row for path in paths for row in parquet.read_table(path).to_pylist()]
