"""The result of a query as it arrives, also of one that the gateway handed over to Spark: its task is waited for, and
the dataset that it wrote is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from http.client import HTTPResponse

import msgspec

from traceplane.client.connection import Connection
from traceplane.errors import Conflict
from traceplane.wire.control import TaskDetail
from traceplane.wire.queries import QueryRequest, QueryTask

_PATH = "/api/v1/query"
_FIRST_POLL_SECONDS, _POLL_SECONDS = 0.1, 1.0
"""A task that is done in two seconds is not waited for three; one that takes an hour is asked for once a second."""
_ENDED = ("completed", "dead", "canceled")


class _HandedOver(Exception):
    def __init__(self, task: QueryTask) -> None:
        super().__init__(str(task.task_id))
        self.task = task


def pieces(
    connection: Connection, request: QueryRequest, handed_over: Callable[[QueryTask], None]
) -> Iterator[bytes]:
    """`handed_over`: called with the task on Spark, if there is one."""
    try:
        yield from connection.pieces("POST", _PATH, request, _raise_if_handed_over)
    except _HandedOver as over:
        made = over.task
    else:
        return
    handed_over(made)
    _wait_for(connection, made)
    # The name of the dataset is the platform's.
    again = QueryRequest(f'from "{made.dataset}"', request.format, max_rows=request.max_rows)
    yield from connection.pieces("POST", _PATH, again)


def _raise_if_handed_over(answer: HTTPResponse) -> None:
    if answer.getheader("traceplane-engine") == "spark":
        raise _HandedOver(msgspec.json.decode(answer.read(), type=QueryTask))


def _wait_for(connection: Connection, made: QueryTask) -> None:
    path = f"/api/v1/tasks/{made.task_id}"
    pause = _FIRST_POLL_SECONDS
    while (task := connection.ask("GET", path, TaskDetail).task).state not in _ENDED:
        time.sleep(pause)
        pause = min(pause * 1.2, _POLL_SECONDS)
    if task.state != "completed":
        error = task.error or {}
        raise Conflict(
            "query.task_failed",
            f"Spark did not compute the result: {error.get('message') or task.state}",
            value=str(made.task_id),
            next_step=f"see traceplane explain {made.task_id}",
        )
