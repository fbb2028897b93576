"""How Spark's Java is called: its settings, options and environment.

Paths that depend on the server's confinement are placeholders, which `launcher` fills in.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from traceplane.dataplane.java import Java
from traceplane.linux.operator_ids import UID_RANGE
from traceplane.spark.frames import PORT_MARK, TEMP_MARK

_PYTHON_MEMORY_MB = 4096
"""Address space of a Python process that runs user functions for a local Spark; libraries alone take 1.3 GB."""


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    folder: Path
    """Each server has its own folder in it."""
    object_store: Path
    """Where tasks write, and read unless their inputs are elsewhere."""
    inputs: Path | None = None
    code_paths: tuple[Path, ...] = ()
    environments: Path | None = None
    """Where the packages that jobs need are; the server sees those of running tasks."""
    master: str = "local[*]"
    memory_mb: int = 1024
    quick: bool = False
    """Starts faster and computes slower: leaves out the compiler's last level, which pays off only over minutes."""
    conf: tuple[tuple[str, str], ...] = ()
    jars: tuple[Path, ...] = ()
    """Those of S3, if executors read and write the bucket themselves."""
    allow_weak: bool = False
    private_network: tuple[int, ...] = ()
    """Descriptors of the network namespace for the server."""
    disk_bytes: int | None = None
    """The most bytes of temporary files: shuffles, spills, and whatever functions leave there."""
    uid_range: tuple[int, int] = UID_RANGE
    disabled_layers: frozenset[str] = frozenset()

    @property
    def on_cluster(self) -> bool:
        """Whether executors are other processes, of which this machine knows nothing."""
        return not self.master.startswith("local")


POOLS = """<?xml version="1.0"?>
<allocations><pool name="default">
<schedulingMode>FAIR</schedulingMode><minShare>0</minShare><weight>1</weight>
</pool></allocations>
"""
"""All work is in the default pool, which without this runs jobs in order of arrival: a long one before short ones."""

_CONF = {
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    # Tasks of several jobs run at once, and each gets its share of the cores.
    "spark.scheduler.mode": "FAIR",
    # A client that has disconnected does not return, so its work is stopped. Spark notices that only when a stream to
    # the client ends, so streams are short; live clients reconnect to them.
    "spark.connect.execute.reattachable.senderMaxStreamDuration": "5s",
    "spark.connect.execute.manager.detachedTimeout": "10s",
    "spark.connect.execute.manager.maintenanceInterval": "1s",
    "spark.connect.session.manager.defaultSessionTimeout": "30m",
    "spark.connect.progress.reportInterval": "500ms",
    # Small tasks: few partitions, no parallel listing, no unused metadata.
    "spark.sql.shuffle.partitions": "4",
    "spark.default.parallelism": "4",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.adaptive.coalescePartitions.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    # Spark's default has no time zone in the file, so a `timestamp` would be read back as a `timestamp_ntz`.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.showConsoleProgress": "false",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
# A JVM that ran out of memory may have lost any of its threads, so it exits and is restarted. Verifying the bytecode
# of Spark's own classes, which were installed by their hashes, would take a quarter of a start and a first task.
_JAVA_OPTIONS = (
    "-XX:+UseSerialGC -Xms64m -Xss4m -Djava.io.tmpdir={temp} -XX:-UsePerfData"
    " -XX:+ExitOnOutOfMemoryError -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# The driver serves its files and blocks on separate ports, and decodes any objects sent there, so they require a
# secret, which Spark generates. A cluster has its own.
_LOCAL_OPTIONS = ("-Dspark.authenticate=true",)
# With only that compiler, Java reserves 48 MB for its code, and recompiles what it had to drop over and over.
_QUICK_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=128m")
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
)


def java_command(settings: SparkSettings, java: Java, pools: Path, classes: Sequence[str]) -> list[str]:
    """`classes` are options that tell Java where to read or write Spark's classes, see `classes`."""
    conf = {
        **_CONF,
        "spark.scheduler.allocation.file": f"file://{pools}",
        "spark.connect.grpc.binding.port": PORT_MARK,
        # Collected results are held in the heap: more than a part of it is rejected, with a message.
        "spark.driver.maxResultSize": f"{max(64, settings.memory_mb // 4)}m",
        # Executors of a cluster find user code under the same paths, like the object store.
        "spark.executorEnv.PYTHONPATH": _search_path(settings.code_paths),
        "spark.local.dir": TEMP_MARK,
        "spark.sql.warehouse.dir": f"{TEMP_MARK}/warehouse",
        "spark.sql.artifact.isolation.enabled": "false",
        **(_bucket_conf() if settings.jars else {}),
        **dict(settings.conf),
    }
    if settings.on_cluster:
        # Tasks send packages for executors to it. What it may write, they can write through it anyway.
        conf["spark.sql.artifact.copyFromLocalToFs.allowDestLocal"] = "true"
    else:  # a cluster has its own limits
        conf["spark.executor.pyspark.memory"] = f"{_PYTHON_MEMORY_MB}m"
    jars = [spark_home() / "jars" / "*", *settings.jars]
    options = _JAVA_OPTIONS.format(temp=TEMP_MARK).split()
    opens = [option for module in _OPENED for option in ("--add-opens", f"{module}=ALL-UNNAMED")]
    return [
        str(java.executable),
        *classes,
        f"-Xmx{settings.memory_mb}m",
        *java.options,
        *options,
        *(_QUICK_OPTIONS if settings.quick else ()),
        *opens,
        f"-Dspark.master={settings.master}",
        *(() if settings.on_cluster else _LOCAL_OPTIONS),
        *(f"-D{key}={value}" for key, value in conf.items()),
        *_jars_option(settings.jars),
        "-cp",
        os.pathsep.join(map(str, jars)),
        "org.apache.spark.sql.connect.service.SparkConnectServer",
    ]


def _jars_option(jars: tuple[Path, ...]) -> list[str]:
    """Executors fetch them from the server."""
    return [f"-Dspark.jars={','.join(f'file://{jar}' for jar in jars)}"] if jars else []


def _bucket_conf() -> dict[str, str]:
    """Each read brings its credentials along. Without them there are none: not those of the machine, of its
    environment, or of another task's file system."""
    return {
        "spark.hadoop.fs.s3a.impl.disable.cache": "true",
        "spark.hadoop.fs.s3a.aws.credentials.provider": (
            "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
        ),
        "spark.executorEnv.AWS_EC2_METADATA_DISABLED": "true",
    }


def environment(settings: SparkSettings, java: Java, token: str) -> dict[str, str]:
    return {
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": dict(settings.conf).get("spark.driver.host", "127.0.0.1"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": _search_path(settings.code_paths),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": TEMP_MARK,
        "TMPDIR": TEMP_MARK,
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        "AWS_EC2_METADATA_DISABLED": "true",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
    }


def _search_path(folders: tuple[Path, ...]) -> str:
    return os.pathsep.join(str(folder.resolve()) for folder in folders)


def spark_home() -> Path:
    """Located, not imported: only processes of user code need the library."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
