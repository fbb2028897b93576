"""The log of a Spark server: without the secrets of the tasks that use it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.platform import until
from traceplane.spark.server_log import ServerLog


async def test_a_secret_is_replaced_even_if_it_arrives_in_pieces(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "logs")
    reader, writer = os.pipe()
    await log.follow(reader)
    os.write(writer, b"before: hunter2-hunter2 \xff\n")

    async def written() -> bool:
        return b"before" in log.path.read_bytes()

    await until(written)
    log.hide(["hunter2-hunter2"])
    for piece in (b"Error hunter2", b"-hun", b"ter2 and more\n", b"at the end: hunter2-hunter2"):
        os.write(writer, piece)
        await asyncio.sleep(0.01)
    os.close(writer)

    async def ended() -> bool:
        return b"at the end" in log.path.read_bytes()

    await until(ended)
    assert log.path.read_bytes() == b"before: hunter2-hunter2 \xff\nError *** and more\nat the end: ***"
    assert log.last_problem() == "Error *** and more"
    log.close()


async def test_what_has_no_end_of_line_yet_is_written_when_the_log_closes(tmp_path: Path) -> None:
    log = ServerLog(tmp_path / "logs")
    log.hide(["hunter2-hunter2"])
    reader, writer = os.pipe()
    await log.follow(reader)
    os.write(writer, b"no line: hunter2-hunter2")
    await asyncio.sleep(0.05)
    log.close()
    assert log.path.read_bytes() == b"no line: ***"
    os.close(writer)
