"""For tests of operators: a task to call a Python function with, and a small Spark on this machine.

    from traceplane.sdk import Cursor
    from traceplane.testing import local_spark, operator_task

    def test_doubled(tmp_path):
        task = operator_task(tmp_path, scope=Cursor(3), inputs={"numbers": [{"n": 1}]})
        assert doubled(task) == [{"n": 2}]

    def test_doubled_on_spark():
        with local_spark() as spark:
            assert doubled(spark.range(3)).count() == 3

The Spark session is started once per process and kept, since starting it is slow.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceplane.dataplane.java import Java, find_java
from traceplane.errors import InvalidInput
from traceplane.model.partitions import BadPartition, By, Partitions, is_name
from traceplane.model.task_payload import DeclaredOutput, OperatorInput, TaskPayload
from traceplane.sdk import Cursor, Execution, OperatorTask, Partition, Scope, as_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
"""For a quick start: see `spark.server`."""

_VECTOR_MODULE = "jdk.incubator.vector"
_LAUNCHER = """#!/bin/sh
# spark-submit asks for a module that this Java does not have, and Spark does not need.
for argument in "$@"; do
  shift
  case "$argument" in --add-modules={module}) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


def operator_task(
    folder: Path,
    *,
    scope: Scope | str | None = None,
    inputs: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = ("output",),
    config: Mapping[str, Any] | None = None,
    execution: Execution | None = None,
) -> OperatorTask:
    """A task with these rows as its inputs; an empty list is an input without rows yet. A scope is written as on the
    command line, such as `2026-11-16`, `3` or `0-6`, or given as `Cursor` or `Partition`. Its outputs are Parquet files
    in `task.outputs[name].folder`, and its events are in `task.emitted`."""
    import pyarrow.parquet as parquet

    scope = _named(scope) if isinstance(scope, str) else scope
    _check(folder, scope)
    own = Path(tempfile.mkdtemp(dir=folder))
    files: dict[str, tuple[str, ...]] = {}
    for number, (name, rows) in enumerate((inputs or {}).items()):
        table, path = as_table(rows), own / f"input-{number}.parquet"
        files[name] = (str(path),) if table.num_columns else ()
        parquet.write_table(table, path)
    folders = {name: own / f"output-{number}" for number, name in enumerate(outputs)}
    for path in (own / "temp", *folders.values()):
        path.mkdir()
    return OperatorTask(
        task_id="test",
        attempt=1,
        payload=TaskPayload(
            cursor=scope.position if isinstance(scope, Cursor) else None,
            partition=scope if isinstance(scope, Partition) else None,
            config=dict(config or {}),
            execution=execution,
            inputs=tuple(OperatorInput(name, paths) for name, paths in files.items()),
            outputs=tuple(DeclaredOutput(name) for name in outputs),
        ),
        output_folders={name: str(path) for name, path in folders.items()},
        temp_dir=str(own / "temp"),
    )


def _named(text: str) -> Scope | str:
    """The text itself if it names no scope."""
    for by in (By.HOUR, By.DAY, By.WEEK, By.MONTH):
        with contextlib.suppress(BadPartition, ValueError):
            position = Partitions(by).position(text)
            return Partition(text, position, position)
    with contextlib.suppress(BadPartition, ValueError):
        if span := re.fullmatch(r"(\d+)-(\d+)", text, re.ASCII):
            return Partition.of_range(int(span[1]), int(span[2]))
        return Cursor(Partitions().position(text))
    return Partition(text, 0, 0) if is_name(text) else text


def _check(folder: Path, scope: object) -> None:
    if not Path(folder).is_dir():
        raise InvalidInput(
            "testing.bad_task",
            "the folder of a test task does not exist",
            value=str(folder),
            next_step="use pytest's tmp_path, or create the folder",
        )
    match scope:
        case None | Cursor(int()) | Partition(str(), int(), int()):
            return
    raise InvalidInput(
        "testing.bad_task",
        "the scope of a test task must be a cursor or a partition, or the name of one",
        value=repr(scope),
        next_step='for example "2026-11-16", Cursor(3) or Partition.of_range(0, 6)',
    )


@contextlib.contextmanager
def local_spark(cores: int = 2) -> Iterator[SparkSession]:
    """A classic session with settings for small data; views created in it are dropped afterwards."""
    spark = _session(cores)
    try:
        yield spark
    finally:
        for table in spark.catalog.listTables():
            if table.isTemporary:
                spark.catalog.dropTempView(table.name)


def _session(cores: int) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    java = find_java()
    options = " ".join((*_JAVA_OPTIONS, *java.options))
    with _home_for_spark_submit(java) as home, _variable("JAVA_HOME", str(home)):
        return (
            SparkSession.builder.master(f"local[{cores}]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.driver.extraJavaOptions", options)
            .getOrCreate()
        )


@contextlib.contextmanager
def _home_for_spark_submit(java: Java) -> Iterator[Path]:
    """A JAVA_HOME that spark-submit can use; only the start of the JVM needs it.

    Another user must not be able to plant the files that are executed, so the folder is new and private."""
    if _has_vector_module(java):
        yield java.home
        return
    with tempfile.TemporaryDirectory(prefix="traceplane-java-") as folder:
        launcher = Path(folder) / "bin" / "java"
        launcher.parent.mkdir()
        launcher.write_text(_LAUNCHER.format(java=java.executable, module=_VECTOR_MODULE))
        launcher.chmod(0o700)
        yield Path(folder)


def _has_vector_module(java: Java) -> bool:
    """A Java that does not list its modules is assumed to be complete."""
    release = java.home / "release"
    modules = release.read_text() if release.exists() else ""
    return "MODULES=" not in modules or _VECTOR_MODULE in modules


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
