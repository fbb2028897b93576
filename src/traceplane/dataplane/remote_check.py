"""Asks a Spark Connect server what it is: one JSON object on stdin, one on stdout."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession

from traceplane.dataplane.connect_channel import Channel

_TRIES = 4


def main() -> None:
    asked = json.loads(sys.stdin.read())
    try:
        told = _asked(asked)
    except Exception as error:  # of Spark or of the transport
        told = {"problem": str(error).partition("\n\nJVM")[0]}
    print(json.dumps(told))


def _asked(asked: dict[str, Any]) -> dict[str, str | None]:
    spark = SparkSession.builder.channelBuilder(Channel(asked["remote"], [], asked["authorities"])).create()
    spark.client.set_retry_policies([DefaultPolicy(max_retries=_TRIES)])
    try:
        version = spark.version
        row = spark.sql("select java_method('org.apache.hadoop.util.VersionInfo', 'getVersion')").collect()
        return {
            "spark": version,
            "hadoop": row[0][0],
            "missing": next((name for name in asked["classes"] if not _has(spark, name)), None),
            "cache": spark.conf.get("spark.hadoop.fs.s3a.impl.disable.cache", None),
        }
    finally:
        spark.stop()


def _has(spark: SparkSession, name: str) -> bool:
    """As Spark itself finds classes: also those of jars that were added to it."""
    rows = spark.sql(
        f"select java_method('org.apache.spark.util.Utils', 'classIsLoadable', '{name}')"
    ).collect()
    return bool(rows[0][0] == "true")


if __name__ == "__main__":
    main()
