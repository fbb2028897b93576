"""The Spark session of this process: opened by its first task, kept for those that follow."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

_open: dict[str, SparkSession] = {}
_GONE = ("INVALID_HANDLE.SESSION", "SESSION_CLOSED", "SESSION_NOT_FOUND", "SESSION_CHANGED", "UNAVAILABLE")

Progress = Callable[[int, int, int], None]
"""Told stages, tasks in all and tasks done of the running Spark job."""


def session(remote: str, on_progress: Progress | None = None) -> SparkSession:
    """A live session of that server."""
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = (
        "1"  # functions of pyspark.sql look here whenever they are used
    )
    found = _open.get(remote)
    if found is not None and not _lives(found):
        found = None
    if found is None:
        found = SparkSession.builder.remote(remote).create()
        _open[remote] = found
    found.clearProgressHandlers()
    if on_progress is not None:
        found.registerProgressHandler(_handler(on_progress))
    return found


def _lives(found: SparkSession) -> bool:
    """The server may have been restarted, or have let an idle session go."""
    try:
        found.conf.get("spark.app.name", None)
    except PySparkException as error:
        if any(sign in str(error) for sign in _GONE):
            return False
        raise
    except Exception:  # whatever the transport raises: a new session will say what is wrong
        return False
    return True


def _handler(told: Progress) -> Any:
    def handle(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        stages = stages or ()
        told(len(stages), sum(s.num_tasks for s in stages), sum(s.num_completed_tasks for s in stages))

    return handle
