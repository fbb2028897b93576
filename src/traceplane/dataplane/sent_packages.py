"""Sends the packages that a job needs to executors that are not on this machine: once to each Spark server.

    {name}.zip          what is sent; `name` is made of the lock and the starter, so it says what is in it
    {name}/packages/    what functions import: executors unpack it into a folder of their own
    {name}/python       starts the executor's Python with these packages

The server keeps the file until it ends, and hands it to every executor before that runs its next task, also to those
that start later. An artifact of a Spark session, which is made for this, would be sent and unpacked for each session,
and so for each process of a task; the server would keep copies of it when the session is over.

Tasks that share a server can replace what it hands out, as they can change everything else there.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import shlex
import tempfile
import uuid
import zipfile
from pathlib import Path
from typing import NamedTuple

import grpc
from pyspark.errors import PySparkException
from pyspark.sql.connect.session import SparkSession

from traceplane.sdk import OperatorError

OTHER_PYTHON = "TRACEPLANE_OTHER_PYTHON "
"""Prefix of what the starter writes where these packages cannot be imported."""
_MODULES = importlib.machinery.EXTENSION_SUFFIXES[0].strip(".").removesuffix(".so")
"""The compiled modules that this Python imports, and for which packages were installed."""
_START_PYTHON = """#!/bin/sh
here=$(cd "${0%/*}" && pwd -P)
modules=$(@PYTHON@ -I -S -c \\
  'from importlib.machinery import EXTENSION_SUFFIXES as s; print(s[0].strip(".").removesuffix(".so"))')
if [ "$modules" != @MODULES@ ]; then
  echo "@OTHER@they are for @MODULES@, and the Python there, "@PYTHON@", is ${modules:-not to be found}" >&2
  exit 1
fi
PYTHONPATH="$here/packages${PYTHONPATH:+:$PYTHONPATH}" exec @PYTHON@ "$@"
"""
_PYTHON = "spark.sql.execution.pyspark.python"
_LEVEL = 1
"""Of compression: the task waits for it, and networks are fast."""
_NOT_TAKEN = "Uploading artifact file to local file system"
_have_them: set[str] = set()
"""The sessions whose functions import the packages of their job."""


class _Server(NamedTuple):
    python: str
    """What starts the Python of its executors."""
    folder: str
    """Of its files, which it removes when it ends."""


def send(spark: SparkSession, environment: Path, temp: Path) -> None:
    """Makes functions of this session, which shares files with others, import the packages in this folder."""
    if spark.session_id in _have_them:
        return
    server = _asked(spark)
    starter = starter_of(server.python)
    name = f"{environment.name}-{hashlib.sha256(starter.encode()).hexdigest()[:8]}"
    if not _has(spark, name):
        with tempfile.TemporaryDirectory(dir=temp) as drafts:
            archive = Path(drafts) / f"{name}.zip"
            pack(environment / "packages", starter, archive)
            _add(spark, archive, server.folder)
    # Executors start Python in their own folder; a server that has none itself unpacks packages among its files.
    runs_here = (spark.conf.get("spark.master", "") or "").startswith("local")
    at = server.folder if runs_here else "."
    spark.conf.set(_PYTHON, f"{at}/{name}/python")
    _have_them.add(spark.session_id)


def starter_of(python: str) -> str:
    """Starts that Python, if it can import the packages of this one."""
    return (
        _START_PYTHON.replace("@PYTHON@", shlex.quote(python))
        .replace("@MODULES@", _MODULES)
        .replace("@OTHER@", OTHER_PYTHON)
    )


def pack(packages: Path, starter: str, archive: Path) -> None:
    entry = zipfile.ZipInfo("python")
    entry.external_attr = 0o755 << 16
    with zipfile.ZipFile(
        archive, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL, strict_timestamps=False
    ) as packed:
        packed.writestr(entry, starter)
        for path in packages.rglob("*"):
            if path.is_file():
                packed.write(path, f"packages/{path.relative_to(packages)}")


def _asked(spark: SparkSession) -> _Server:
    # A row that is given is computed by the server, and not by an executor.
    (row,) = spark.sql(
        "select java_method('java.lang.System', 'getenv', 'PYSPARK_PYTHON') as python,"
        " java_method('org.apache.spark.SparkFiles', 'getRootDirectory') as folder from values (1)"
    ).collect()
    python = spark.conf.get(_PYTHON, "") or row["python"]
    return _Server("python3" if python == "null" else python, row["folder"])


def _has(spark: SparkSession, name: str) -> bool:
    return any(row[0].endswith(f"#{name}") for row in spark.sql("list archives").collect())


def _add(spark: SparkSession, archive: Path, folder: str) -> None:
    # In a folder of its own: another task may send the same at the same time, and the server takes the first one.
    place = f"{folder}/sent-{uuid.uuid4().hex}/{archive.name}"
    try:
        spark.copyFromLocalToFs(str(archive), place)
    except (PySparkException, grpc.RpcError) as error:
        if _NOT_TAKEN not in str(error):
            raise
        raise OperatorError(
            "operator.packages_not_sent",
            "the server of spark_remote takes no files, and the job needs packages; start it with"
            " spark.sql.artifact.copyFromLocalToFs.allowDestLocal=true",
        ) from None
    (stored,) = spark.read.text(place).inputFiles()  # with the name of its file system
    if _has(spark, archive.stem):
        return
    try:
        spark.sql(f"add archive '{stored}#{archive.stem}'")
    except PySparkException:
        if not _has(spark, archive.stem):
            raise
