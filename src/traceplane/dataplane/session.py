"""The Spark session of this process: opened by its first task, kept for the following ones."""

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
# A server that died is back within seconds, without its earlier state. So try every second, not at growing intervals as
# the client would, but for as long as a slow machine takes to start it.
_RETRIES = DefaultPolicy(max_retries=240, max_backoff=1000)
_CHANNEL = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1000)]

# Compiling a query, and replanning it while it runs, takes longer than processing a few rows.
_FOR_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
_for_few_rows: set[str] = set()
"""The sessions with these settings."""

Progress = Callable[[int, int, int], None]
"""Called with the stages, the total tasks and the finished tasks of the running Spark job."""


def session(remote: str, on_progress: Progress | None = None) -> SparkSession:
    """A live session of this server."""
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # pyspark.sql functions check this on every use
    spark = _open.get(remote)
    if spark is not None and not _lives(spark):
        spark = None
    if spark is None:
        spark = SparkSession.builder.channelBuilder(DefaultChannelBuilder(remote, _CHANNEL)).create()
        spark.client.set_retry_policies([_RETRIES])
        _open[remote] = spark
    spark.clearProgressHandlers()
    if on_progress is not None:
        spark.registerProgressHandler(_handler(on_progress))
    return spark


def expect_few_rows(spark: SparkSession, few: bool) -> None:
    """Configures the session for its next queries."""
    if few == (spark.session_id in _for_few_rows):
        return
    for name, value in _FOR_FEW_ROWS.items():
        if few:
            spark.conf.set(name, value)
        else:
            spark.conf.unset(name)
    (_for_few_rows.add if few else _for_few_rows.discard)(spark.session_id)


def _lives(spark: SparkSession) -> bool:
    """The server may have been restarted, or have dropped an idle session."""
    try:
        spark.conf.get("spark.app.name", None)
    except PySparkException as error:
        if was_lost(error):
            return False
        raise
    except Exception:  # whatever the transport raises; a new session reports the problem
        return False
    return True


def was_lost(error: Exception) -> bool:
    """Whether the server lost the session, or no longer exists."""
    beginning = str(error)[:200]  # the rest may quote the user's text
    return any(sign in beginning for sign in _GONE)


def _handler(report: Progress) -> Any:
    def handle(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        stages = stages or ()
        report(len(stages), sum(s.num_tasks for s in stages), sum(s.num_completed_tasks for s in stages))

    return handle
