"""The Spark session of this process: opened by its first task, kept for those that follow."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession

_open: dict[str, SparkSession] = {}
_GONE = (
    "INVALID_HANDLE.OPERATION",
    "INVALID_HANDLE.SESSION",
    "RETRIES_EXCEEDED",
    "SESSION_CHANGED",
    "SESSION_CLOSED",
    "SESSION_NOT_FOUND",
    "UNAVAILABLE",
)
# A server that died is back within seconds, and does not know what it was asked before: look every second, not at
# ever longer intervals as the client would, but give it the time that a slow machine takes to start it.
_RETRIES = DefaultPolicy(max_retries=240, max_backoff=1000)
_CHANNEL = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1000)]

# What compiling a query, and planning it again while it runs, takes longer than a few rows do.
_FOR_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
_for_few_rows: set[str] = set()
"""The sessions that are set so."""

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
        found = SparkSession.builder.channelBuilder(DefaultChannelBuilder(remote, _CHANNEL)).create()
        found.client.set_retry_policies([_RETRIES])
        _open[remote] = found
    found.clearProgressHandlers()
    if on_progress is not None:
        found.registerProgressHandler(_handler(on_progress))
    return found


def expect_few_rows(spark: SparkSession, few: bool) -> None:
    """Set the session for what its next queries have to do."""
    if few == (spark.session_id in _for_few_rows):
        return
    for name, value in _FOR_FEW_ROWS.items():
        if few:
            spark.conf.set(name, value)
        else:
            spark.conf.unset(name)
    (_for_few_rows.add if few else _for_few_rows.discard)(spark.session_id)


def _lives(found: SparkSession) -> bool:
    """The server may have been restarted, or have let an idle session go."""
    try:
        found.conf.get("spark.app.name", None)
    except PySparkException as error:
        if was_lost(error):
            return False
        raise
    except Exception:  # whatever the transport raises: a new session will say what is wrong
        return False
    return True


def was_lost(error: Exception) -> bool:
    """Whether the server forgot the session, or is no more."""
    beginning = str(error)[:200]  # what follows may quote the user's own words
    return any(sign in beginning for sign in _GONE)


def _handler(told: Progress) -> Any:
    def handle(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        stages = stages or ()
        told(len(stages), sum(s.num_tasks for s in stages), sum(s.num_completed_tasks for s in stages))

    return handle
