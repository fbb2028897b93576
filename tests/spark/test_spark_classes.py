"""Spark's classes come from a file that was made before, whenever it fits."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import psutil
import pytest

from traceplane.dataplane.java import find_java
from traceplane.spark import classes
from traceplane.spark.command import SparkSettings
from traceplane.spark.frames import PORT_MARK
from traceplane.spark.served_port import ServedPort
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


async def test_a_server_maps_the_classes_prepared_at_setup(tmp_path: Path) -> None:
    java = find_java()
    if not classes.options(java):
        pytest.skip("there is no file of Spark's classes: `make test` makes it")
    assert "spark-classes-" in await maps_of_server(tmp_path)


async def test_a_file_that_does_not_fit_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    monkeypatch.setattr(classes, "_FOLDER", folder)
    classes._file(find_java()).write_bytes(b"of another Java" * 10_000)
    assert classes.options(find_java())
    assert "spark-classes-" not in await maps_of_server(tmp_path)


def test_a_process_that_takes_the_port_of_the_preparing_java_is_sent_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token would let anybody run anything as the worker's user."""
    thief: list[socket.socket] = []

    def a_java_that_is_slow(settings: SparkSettings, java: object, *_: object) -> list[str]:
        return [sys.executable, "-c", f"import time; time.sleep(600)  # {PORT_MARK}"]

    class TakenPort(ServedPort):
        def __init__(self) -> None:
            super().__init__()
            faster = socket.socket()
            faster.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            faster.bind(("127.0.0.1", self.number))
            faster.listen()
            faster.setblocking(False)
            thief.append(faster)

    monkeypatch.setattr(classes, "java_command", a_java_that_is_slow)
    monkeypatch.setattr(classes, "ServedPort", TakenPort)
    monkeypatch.setattr(classes, "_SECONDS", 3.0)
    with pytest.raises(OSError, match="did not start"), classes._server(find_java(), "", tmp_path):
        raise AssertionError("the token would be sent now")
    with pytest.raises(BlockingIOError):
        thief[0].accept()
    thief[0].close()
