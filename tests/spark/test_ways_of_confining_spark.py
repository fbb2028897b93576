"""Guarantee 9 for Spark holds with less: an unprivileged worker, with and without namespaces."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from tests.spark.attacked_server import AS_ROOT, WORKER_UID
from tests.spark.victims import CODE

RUN_AS = CODE.parent / "process" / "run_as.py"
WAYS = {
    "an unprivileged user": "",
    "an unprivileged user without namespaces": "namespaces,network_namespace",
}


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform != "linux" or not AS_ROOT, reason="only root can run it as another user")
@pytest.mark.parametrize("way", WAYS)
async def test_each_way_of_confining_spark(way: str) -> None:
    options = ("-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(RUN_AS), "user", str(WORKER_UID)),
        *(sys.executable, "-m", "pytest", *options, str(CODE / "test_hostile_spark.py")),
        env={
            "PATH": os.environ["PATH"],
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "TRACEPLANE_TEST_SPARK_WITHOUT": WAYS[way],
        },
        cwd=CODE.parents[1],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-6000:]
