"""All of this folder again with fewer layers: as an unprivileged user, on an older kernel, in a container."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.process.sandbox.attacks import AS_ROOT, CODE, IN_A_WAY_OF_CONFINING, OTHER_UID

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only"),
    pytest.mark.asyncio(loop_scope="package"),
]


WAYS = {
    "an unprivileged user": ("user", ""),
    "an unprivileged user without namespaces": ("user", "namespaces,network_namespace"),
    "an unprivileged user without Landlock": ("user", "landlock"),
    "root without namespaces": ("root", "namespaces,network_namespace"),
}
OFTEN = "an unprivileged user"
WHAT_ISOLATES = ("test_layers.py", "test_network.py", "test_other_tasks.py", "test_secrets.py")
"""Tried by `make test` the way it is used most often; the whole folder, a minute for each way, by `make chaos`."""


@pytest.mark.skipif(IN_A_WAY_OF_CONFINING or not AS_ROOT, reason="one level is enough, and it needs root")
@pytest.mark.parametrize(
    ("way", "files"),
    [(OFTEN, WHAT_ISOLATES), *(pytest.param(way, ("",), marks=pytest.mark.chaos) for way in WAYS)],
)
async def test_each_way_of_confining(way: str, files: tuple[str, ...]) -> None:
    user, without = WAYS[way]
    options = ("-x", "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(CODE / "run_as.py"), user, str(OTHER_UID)),
        *(sys.executable, "-m", "pytest", *options, *(str(Path(__file__).parent / file) for file in files)),
        env={
            "PATH": os.environ["PATH"],
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "TRACEPLANE_TEST_SANDBOX_WITHOUT": without,
        },
        cwd=CODE.parents[1],
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-6000:]
