"""The Spark session of this process: opened by its first task, kept for the following ones."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession

from traceplane.dataplane.connect_channel import Channel

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
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_shuffle_partitions: dict[str, int] = {}
"""Of the sessions where a job has set them."""

Progress = Callable[[int, int, int, str], None]
"""Called with the stages, the total tasks and the finished tasks of the running Spark job, and the id of its
application."""


def session(
    remote: str,
    on_progress: Progress | None = None,
    authorities: str | None = None,
    *,
    shares_files: bool = False,
) -> SparkSession:
    """A live session of this server; `authorities`: certificates that it is trusted by, if not those of the system.
    With `shares_files`, what it adds to the server's files is there for all sessions that share them."""
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"  # pyspark.sql functions check this on every use
    spark = _open.get(remote)
    application = _application(spark) if spark is not None else None
    if spark is None or application is None:
        channel = Channel(remote, _CHANNEL, authorities)
        if shares_files:
            channel.set(Channel.PARAM_SESSION_ID, _new_sharing_session(remote, authorities))
        spark = SparkSession.builder.channelBuilder(channel).create()
        spark.client.set_retry_policies([_RETRIES])
        _open[remote] = spark
    spark.clearProgressHandlers()
    if on_progress is not None:
        if application is None:
            application = spark.conf.get("spark.app.id", "")
        spark.registerProgressHandler(_handler(on_progress, application or ""))
    return spark


def _new_sharing_session(remote: str, authorities: str | None) -> str:
    """Its id. Spark Connect keeps the files of each session apart, whatever the server's settings say; only the copy of
    a session goes by those of the session."""
    original, copy = SparkSession(Channel(remote, _CHANNEL, authorities)), str(uuid.uuid4())
    original.client.set_retry_policies([_RETRIES])
    original.conf.set("spark.sql.artifact.isolation.enabled", "false")
    original.client.clone(copy).close()
    original.client.release_session()
    original.client.close()
    return copy


def use_shuffle_partitions(spark: SparkSession, number: int | None) -> None:
    """For its next queries; None: as many as the server has."""
    if number == _shuffle_partitions.get(spark.session_id):
        return
    if number is None:
        spark.conf.unset(_SHUFFLE_PARTITIONS)
        del _shuffle_partitions[spark.session_id]
    else:
        spark.conf.set(_SHUFFLE_PARTITIONS, str(number))
        _shuffle_partitions[spark.session_id] = number


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


def _application(spark: SparkSession) -> str | None:
    """Its id; None if the server has been restarted, or has dropped an idle session."""
    try:
        return spark.conf.get("spark.app.id", "") or ""
    except PySparkException as error:
        if was_lost(error):
            return None
        raise
    except Exception:  # whatever the transport raises; a new session reports the problem
        return None


def was_lost(error: Exception) -> bool:
    """Whether the server lost the session, or no longer exists."""
    beginning = str(error)[:200]  # the rest may quote the user's text
    return any(sign in beginning for sign in _GONE)


def _handler(report: Progress, application: str) -> Any:
    def handle(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        stages = stages or ()
        tasks = sum(s.num_tasks for s in stages)
        report(len(stages), tasks, sum(s.num_completed_tasks for s in stages), application)

    return handle
