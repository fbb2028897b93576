"""Spark's classes come from a file that was made before, whenever it fits."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from traceplane.dataplane.java import find_java
from traceplane.spark import classes as spark_classes
from traceplane.spark.command import SparkSettings
from traceplane.spark.server import SparkServer

pytestmark = pytest.mark.timeout(600)


async def maps_of_server(folder: Path) -> str:
    """What the Java of a server that has come up has mapped."""
    server = await SparkServer.start(
        SparkSettings(folder=folder / "spark", object_store=folder / "store", memory_mb=640, quick=True)
    )
    try:
        below = psutil.Process(server.pid).children(recursive=True)
        (java,) = [process for process in below if process.name() == "java"]
        return Path(f"/proc/{java.pid}/maps").read_text()
    finally:
        await server.close()


async def test_a_server_maps_the_classes_that_were_made_at_set_up(tmp_path: Path) -> None:
    java = find_java()
    if not spark_classes.options(java):
        pytest.skip("there is no file of Spark's classes: `make test` makes it")
    assert "spark-classes-" in await maps_of_server(tmp_path)


async def test_a_file_that_does_not_fit_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    monkeypatch.setattr(spark_classes, "_FOLDER", folder)
    spark_classes._file(find_java()).write_bytes(b"of another Java" * 10_000)
    assert spark_classes.options(find_java())
    assert "spark-classes-" not in await maps_of_server(tmp_path)
