"""Inputs with too many files for a claim: the dispatcher sends their lists piece by piece."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
from msgspec import structs

from traceplane.errors import Conflict, PlatformError, TooLarge
from traceplane.runtime.retrying import pauses, retrying
from traceplane.wire.tasks import ClaimedTask, Fence, FilesRequest, InputFile
from traceplane.worker.dispatcher_client import DispatcherClient

_TRIES = 5
MOST_FILES = 400_000
"""Of one task. Their paths are held by the worker and by the operator's process, and are one message to Spark, which
takes 128 MB."""
_files: msgspec.json.Decoder[list[InputFile]] = msgspec.json.Decoder(list[InputFile])


async def with_all_files(
    client: DispatcherClient, task: ClaimedTask, token: Callable[[], str], *, most: int = MOST_FILES
) -> ClaimedTask:
    """The task with the files of all of its inputs. Raises TooLarge if they are too many, and holds no more of them."""
    if not task.long_inputs:
        return task
    fence = Fence(task.task_id, task.attempt, task.lease_token)
    lists = list(task.input_files)
    for number in task.long_inputs:
        left = most - sum(map(len, lists))

        async def listed(number: int = number, left: int = left) -> list[InputFile]:
            async with contextlib.aclosing(client.files(FilesRequest([token()], fence, number))) as pieces:
                return await _listed(pieces, left)

        try:
            lists[number] = await retrying(listed, on=PlatformError, pauses=pauses(0.4, 5.0, attempts=_TRIES))
        except Conflict as error:
            raise PlatformError("task.stale", error.message, value=error.value) from error
        except _TooMany:
            raise TooLarge(
                "task.too_many_files",
                f"the task reads more than {most:,} files",
                value=task.scope,
                next_step="have small files merged, narrow the input by where, or have the job work on smaller scopes",
            ) from None
    return structs.replace(task, input_files=lists, long_inputs=[])


class _TooMany(Exception):
    pass


async def _listed(chunks: AsyncIterator[bytes], most: int) -> list[InputFile]:
    files: list[InputFile] = []
    line = bytearray()
    is_complete = False
    async for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            piece = _files.decode(line + end)
            line.clear()
            files += piece
            if len(files) > most:
                raise _TooMany
            is_complete = not piece
        line += rest
    if not is_complete:
        raise PlatformError(
            "task.files_cut_short", "the list of an input's files is not complete", value=len(files)
        )
    return files
