"""The bucket as Spark's executors see it: they read a task's inputs and write its outputs with credentials of its own.

Credentials are made for each attempt, one set for each input and each output: an input's read its files, an output's
write below the attempt's prefix and read what the task's scope has already. They last as long as the job's `timeout`,
or executors renew them (`renewals`); nobody gets more of the bucket by keeping them. The worker's own stay here.

Hot rows, which the worker fetches from Postgres, are on its disk; they are stored below the attempt's prefix, where no
commit names them and garbage collection removes them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from traceplane.adapters.object_store import StoredFile
from traceplane.errors import Conflict, PlatformError
from traceplane.model.task_payload import BucketAccess, DirectOutput
from traceplane.runtime.in_parallel import in_parallel
from traceplane.wire.tasks import ClaimedTask, InputFile, JobPayload
from traceplane.worker.hot_inputs import LocalInputs
from traceplane.worker.renewals import Renewals, seconds_left

if TYPE_CHECKING:
    from traceplane.adapters.object_store_s3 import S3ObjectStore  # boto is an optional extra

_CALLS_AT_ONCE = 16
_LEAST_SECONDS = 900
"""STS makes none for less."""
_SLACK_SECONDS = 120
"""An operator that reaches its timeout fails by that, not by its credentials."""


@dataclass(frozen=True, slots=True)
class BorrowedFiles:
    """What the executors get of an input."""

    paths: tuple[str, ...]
    bytes: int
    access: BucketAccess


@dataclass(frozen=True, slots=True)
class Borrowed:
    """What the executors get of a task, by the numbers of its inputs and outputs."""

    inputs: dict[int, BorrowedFiles] = field(default_factory=dict)
    outputs: dict[int, DirectOutput] = field(default_factory=dict)
    existing: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def secrets(self) -> list[str]:
        made = [*(i.access for i in self.inputs.values()), *(o.access for o in self.outputs.values())]
        return [value for access in made for value in access.secrets]


class DirectStore:
    """`store` has a role for tasks; closed by whoever opened it."""

    def __init__(self, store: S3ObjectStore, *, most_seconds: int, renewals: Renewals | None = None) -> None:
        self._store = store
        self._most_seconds = most_seconds
        self.renewals = renewals

    async def check(self) -> None:
        """Raises unless the role can be assumed, for as long as the settings say: no task could do without."""
        await self._store.task_access(["o/check"], [], "check", seconds=self._most_seconds)

    @contextlib.asynccontextmanager
    async def lent(self, task: ClaimedTask, job: JobPayload, local: LocalInputs) -> AsyncIterator[Borrowed]:
        """What the executors get, while the attempt runs."""
        if job.timeout_seconds > self._most_seconds and self.renewals is None:
            raise _too_short(job, self._most_seconds)
        async with contextlib.AsyncExitStack() as during:
            yield await self._lend(task, job, local, during)

    async def _lend(
        self, task: ClaimedTask, job: JobPayload, local: LocalInputs, during: contextlib.AsyncExitStack
    ) -> Borrowed:
        holder = f"{job.name}-{task.task_id}"
        seconds = max(_LEAST_SECONDS, min(self._most_seconds, int(job.timeout_seconds) + _SLACK_SECONDS))
        lent = Borrowed()

        async def access(files: Sequence[str], prefixes: Sequence[str]) -> BucketAccess:
            make = partial(self._store.task_access, files, prefixes, holder, seconds=seconds)
            made = await make()
            left = seconds_left(made)
            as_asked = job.timeout_seconds <= self._most_seconds and left > seconds - _SLACK_SECONDS
            if as_asked or left >= job.timeout_seconds:
                keys = (made.access_key, made.secret_key, made.session_token)
                return BucketAccess(*keys, made.region, made.endpoint_url)
            if self.renewals is None:
                raise _too_short(job, int(left))
            renewal = await during.enter_async_context(self.renewals.renewing(make, made))
            return BucketAccess("", "", "", made.region, made.endpoint_url, renewal)

        async def lend_input(number: int) -> None:
            files = await self._files(task, number, local)
            if files:
                keys = [file.path for file in files]
                size = sum(file.bytes for file in files)
                lent.inputs[number] = BorrowedFiles(self._paths(keys), size, await access(keys, []))

        async def lend_output(number: int) -> None:
            existing = [file.path for file in task.output_files[number]] if task.output_files else []
            prefix = task.write_prefixes[number]
            bucket, _, key = self._store.location(prefix).removeprefix("s3://").partition("/")
            lent.outputs[number] = DirectOutput(bucket, key, await access(existing, [prefix]))
            lent.existing[number] = self._paths(existing)

        await in_parallel(lend_input, range(len(job.inputs)), _CALLS_AT_ONCE)
        await in_parallel(lend_output, range(len(job.outputs)), _CALLS_AT_ONCE)
        return lent

    async def _files(
        self, task: ClaimedTask, number: int, local: LocalInputs
    ) -> Sequence[InputFile | StoredFile]:
        if number not in local.files:
            return task.input_files[number] if task.input_files else []
        prefix = task.write_prefixes[0] if task.write_prefixes else None
        if prefix is None:
            raise Conflict(
                "spark.hot_input_elsewhere",
                "executors get rows of a hot dataset through the prefix of an output, and the job has none",
                value=task.task_id,
                next_step="give the job an output",
            )
        stored = []
        for path in local.files[number]:
            status = await asyncio.to_thread(Path(path).stat)
            file = StoredFile(f"{prefix}hot/{number}-{uuid4().hex}.parquet", status.st_size)
            await self._store.put(Path(path), file.path)
            stored.append(file)
        return stored

    async def verify(self, files: Sequence[StoredFile]) -> None:
        """That files which executors say they have stored are there, with that size."""
        there = {file.path: file.bytes for file in await self._store.sizes([file.path for file in files])}
        for file in files:
            if there.get(file.path) != file.bytes:
                raise PlatformError(
                    "spark.output_not_stored",
                    f"an executor reported a file of {file.bytes} bytes, and the store has {there.get(file.path)}",
                    value=file.path,
                    next_step="find out what else writes to the bucket; the task is retried",
                )

    def _paths(self, keys: Sequence[str]) -> tuple[str, ...]:
        return tuple(self._store.location(key).replace("s3://", "s3a://", 1) for key in keys)


def _too_short(job: JobPayload, seconds: int) -> Conflict:
    return Conflict(
        "spark.timeout_beyond_credentials",
        f"credentials for S3 last {seconds} seconds, and the job's timeout is {job.timeout_seconds:g} seconds",
        value=job.name,
        next_step="set s3_renewal_address, raise s3_task_seconds and the role's maximum session, or lower the timeout",
    )
