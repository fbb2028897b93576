"""Inputs with too many files for a claim: the dispatcher sends their lists piece by piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec
from msgspec import structs

from traceplane.errors import Conflict, PlatformError
from traceplane.runtime.retrying import pauses, retrying
from traceplane.wire.tasks import ClaimedTask, Fence, FilesRequest, InputFile
from traceplane.worker.dispatcher_client import DispatcherClient

_TRIES = 5
_files: msgspec.json.Decoder[list[InputFile]] = msgspec.json.Decoder(list[InputFile])


async def with_all_files(
    client: DispatcherClient, task: ClaimedTask, token: Callable[[], str]
) -> ClaimedTask:
    """The task with the files of all of its inputs."""
    if not task.long_inputs:
        return task
    fence = Fence(task.task_id, task.attempt, task.lease_token)
    lists = list(task.input_files)
    for number in task.long_inputs:

        async def listed(number: int = number) -> list[InputFile]:
            return await _listed(client.files(FilesRequest([token()], fence, number)))

        try:
            lists[number] = await retrying(listed, on=PlatformError, pauses=pauses(0.4, 5.0, attempts=_TRIES))
        except Conflict as error:
            raise PlatformError("task.stale", error.message, value=error.value) from error
    return structs.replace(task, input_files=lists, long_inputs=[])


async def _listed(chunks: AsyncIterator[bytes]) -> list[InputFile]:
    files: list[InputFile] = []
    line = bytearray()
    is_complete = False
    async for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            piece = _files.decode(line + end)
            line.clear()
            files += piece
            is_complete = not piece
        line += rest
    if not is_complete:
        raise PlatformError(
            "task.files_cut_short", "the list of an input's files is not complete", value=len(files)
        )
    return files
