"""For tests of PySpark functions: a small Spark on this machine.

    from traceplane.testing import local_spark

    def test_doubled():
        with local_spark() as spark:
            assert doubled(spark.range(3)).count() == 3

The session is started once per process and kept, since starting it is what takes long.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from traceplane.dataplane.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA_OPTIONS = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""For a quick start: see `worker.spark_server`."""


@contextlib.contextmanager
def local_spark(cores: int = 2) -> Iterator[SparkSession]:
    """A classic session with settings for small data; views made in it are gone afterwards."""
    from pyspark.sql import SparkSession

    os.environ["JAVA_HOME"] = str(java_home(Path(tempfile.gettempdir()) / f"traceplane-java-{os.getuid()}"))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", _JAVA_OPTIONS)
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        for table in spark.catalog.listTables():
            if table.isTemporary:
                spark.catalog.dropTempView(table.name)
