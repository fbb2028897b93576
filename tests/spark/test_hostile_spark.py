"""Guarantee 9 for Spark: whatever users' code makes a Spark server do, it reaches its running tasks' data only.

After all probes the victims are looked at: content, mode, owner, and whether the processes live. The file runs once
with every layer of this machine. `test_ways_of_confining_spark` runs it again with fewer.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.process.sandbox.attacks import processes_with
from tests.spark import probes
from tests.spark.attacked_server import (
    AS_ROOT,
    LOCAL_UID,
    OTHER_USER,
    command_line,
    eventually,
    jvm_of,
    port_of,
    run,
    spark_settings,
    told_by_udf,
)
from tests.spark.probes import WEAKEST, WITHOUT, Probe
from tests.spark.victims import SECRET, Victims, standing_victims, state_of
from traceplane.sandbox.confinement import NAMESPACES, NETWORK_NAMESPACE
from traceplane.sandbox.frames import Reach, ReachNothing, ReachSpark
from traceplane.sandbox.pool import Sandbox
from traceplane.sandbox.sandbox_settings import SandboxSettings
from traceplane.spark.server import SparkServer
from traceplane.spark.servers import SparkServers

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(900),
]

needs_namespaces = pytest.mark.skipif(WEAKEST, reason="without namespaces there is nothing to take away")


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    with standing_victims() as victims:
        yield victims


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(victims: Victims) -> AsyncIterator[SparkServers]:
    os.environ["TRACEPLANE_WORKER_TOKEN"] = SECRET
    started = await SparkServers.start(spark_settings(victims), private=True)
    stop = asyncio.Event()
    running = asyncio.create_task(started.keep_running(stop))
    victims.names["server"] = next(victims.spark.glob("server-*"))
    yield started
    stop.set()
    await running
    await started.close()
    del os.environ["TRACEPLANE_WORKER_TOKEN"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(servers: SparkServers) -> AsyncIterator[SparkServer]:
    async with servers.for_job("acme", "any") as server:
        assert isinstance(server, SparkServer)
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(victims: Victims, servers: SparkServers) -> AsyncIterator[Sandbox]:
    """Where the tasks run that use Spark."""
    started = await Sandbox.start(
        SandboxSettings(
            slots=2,
            folder=victims.folder / "sandbox",
            network=ReachSpark(),
            private_network=servers.network.descriptors,
            disabled_layers=WITHOUT,
        )
    )
    yield started
    await started.close()


# --- the probes ---------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outcomes(sandbox: Sandbox, server: SparkServer, victims: Victims) -> dict[str, dict[str, str]]:
    """All probes, in three tasks that are granted one dataset."""
    (victims.granted / "attempt").mkdir(mode=0o755)
    victims.remember()
    found: dict[str, dict[str, str]] = {}
    for table, operator in (
        (probes.FROM_A_UDF, "in_udf"),
        (probes.FROM_SQL, "in_sql"),
        (probes.FROM_CONNECT, "in_client"),
    ):
        acts = [victims.filled_in(probe) for probe in table]
        if operator != "in_sql":
            acts = [[*act, []][:3] for act in acts]
        done = await run(sandbox, server, victims, operator, readable=(victims.granted,), probes=acts)
        assert done.code is None, (done.result.error, done.lines[-20:])
        found[operator] = done.told
    return found


def check(probe: Probe, outcome: str) -> None:
    assert re.search(probe.expected, outcome), f"{probe.name}: {outcome}"
    assert SECRET not in outcome


@pytest.mark.parametrize("probe", probes.FROM_A_UDF, ids=lambda probe: probe.name)
async def test_a_function_in_spark_is_refused_when_it(probe: Probe, outcomes: Any) -> None:
    check(probe, outcomes["in_udf"][probe.name])


@pytest.mark.parametrize("probe", probes.FROM_SQL, ids=lambda probe: probe.name)
async def test_sql_is_refused_when_it(probe: Probe, outcomes: Any) -> None:
    check(probe, outcomes["in_sql"][probe.name])


@pytest.mark.parametrize("probe", probes.FROM_CONNECT, ids=lambda probe: probe.name)
async def test_a_client_of_connect_is_refused_when_it(probe: Probe, outcomes: Any) -> None:
    check(probe, outcomes["in_client"][probe.name])


async def test_after_all_probes_every_victim_is_as_it_was(
    outcomes: Any, server: SparkServer, victims: Victims
) -> None:
    for path, before in victims.before.items():
        assert state_of(path) == before, path
    os.kill(victims.names["victim"], 0)
    os.kill(server.pid, 0)
    assert server.last_end is None
    escaped = [path for path in victims.folder.rglob("escaped*") if victims.server not in path.parents]
    assert not escaped


async def test_the_server_has_every_layer_that_operators_have(sandbox: Sandbox, server: SparkServer) -> None:
    assert set(server.layers) == set(sandbox.isolation.active)
    assert (NAMESPACES in server.layers) == (not WEAKEST)
    assert (NETWORK_NAMESPACE in server.layers) == (not WEAKEST)


# --- outputs ------------------------------------------------------------------------------------------------------


async def test_a_task_has_spark_write_its_output(
    sandbox: Sandbox, server: SparkServer, victims: Victims
) -> None:
    output = victims.granted / "innocent"
    done = await run(sandbox, server, victims, "writes_by_spark", readable=(victims.granted,), output=output)
    assert (done.code, done.told) == (None, {"rows": 10})
    (file,) = done.result.outputs[0].files
    found = os.stat(file.path)
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.geteuid(), 0o444)


@pytest.mark.parametrize("spoil", probes.SPOILED)
async def test_an_output_that_is_not_a_plain_file_or_is_still_open_does_not_count(
    spoil: str, sandbox: Sandbox, server: SparkServer, victims: Victims
) -> None:
    output = victims.granted / spoil
    done = await run(sandbox, server, victims, "spoils_its_output", output=output, spoil=spoil)
    assert done.told["spoil"].startswith("did:"), done.told
    expected = probes.SPOILED[spoil]
    assert done.code == expected
    if expected is not None:
        await eventually(lambda: not output.exists(), "the output is removed")
    else:
        assert all(not path.stat().st_mode & 0o6022 for path in (output, *output.rglob("*")))


@needs_namespaces
async def test_a_folder_kept_open_is_useless_after_the_task(
    sandbox: Sandbox, server: SparkServer, victims: Victims
) -> None:
    output = victims.granted / "kept open"
    done = await run(sandbox, server, victims, "spoils_its_output", output=output, spoil="keep_folder_open")
    assert done.code is None
    before = {path: state_of(path) for path in (output, *output.iterdir())}
    assert "created" in await told_by_udf(sandbox, server, victims, "make_in_temp", "use the folder")
    told = ""
    while not told.startswith("did:"):
        told = await told_by_udf(sandbox, server, victims, "in_temp", "outcomes")
    assert "did:" not in told.removeprefix("did:"), told
    assert {path: state_of(path) for path in (output, *output.iterdir())} == before


@needs_namespaces
async def test_an_output_cannot_be_replaced_once_it_was_inspected(
    sandbox: Sandbox, server: SparkServer, victims: Victims
) -> None:
    """Somebody in the server waits for the seal on a file, and puts a link to the platform's home in its place."""
    output = victims.granted / "exchanged"
    await told_by_udf(sandbox, server, victims, "forget_in_temp", "exchanged")
    done = await run(
        *(sandbox, server, victims, "spoils_its_output"), output=output, spoil="exchange_once_sealed"
    )
    assert done.code is None
    told = ""
    while not told.startswith("did:"):
        told = await told_by_udf(sandbox, server, victims, "in_temp", "exchanged")
    assert re.search(probes.UNCHANGED, told), told
    (file,) = done.result.outputs[0].files
    assert [path for path in output.rglob("*") if path.is_symlink()] == []
    assert stat.S_ISREG(os.lstat(file.path).st_mode)


# --- one task and another -----------------------------------------------------------------------------------------


@needs_namespaces
async def test_the_server_loses_access_to_a_tasks_files_when_the_task_ends(
    sandbox: Sandbox, server: SparkServer, victims: Victims
) -> None:
    """Also for a task of another job on the same server, as long as the two do not run at the same time."""
    secret = str(victims.other / "first")
    assert "committed" in await told_by_udf(
        sandbox, server, victims, "read", secret, readable=(victims.other,)
    )
    assert await told_by_udf(sandbox, server, victims, "read", secret) == "ENOENT"
    assert await told_by_udf(sandbox, server, victims, "listing", str(victims.objects)) in (
        "did: []",
        "did: ['granted', 'other']",
    )


@needs_namespaces
async def test_readable_folders_cannot_be_changed_while_they_are_being_mounted(
    sandbox: Sandbox, server: SparkServer, victims: Victims
) -> None:
    """A daemon polls for the moment at which the folder is mounted and not yet read-only."""
    victims.other.chmod(0o777)
    try:
        await told_by_udf(sandbox, server, victims, "daemon_that_waits_for_a_gap", str(victims.other))
        for _ in range(1000):
            async with server.granting([victims.other], []):
                pass
        await told_by_udf(sandbox, server, victims, "make_in_temp", "enough")
        assert not (victims.other / "forged").exists()
    finally:
        victims.other.chmod(0o755)
        shutil.rmtree(victims.other / "forged", ignore_errors=True)


async def test_what_tasks_of_one_server_can_do_to_each_other_is_what_the_docs_say(
    sandbox: Sandbox, server: SparkServer, victims: Victims
) -> None:
    """`probes.SHARED`: with a server for each job, only tasks of one job can."""
    acts = [["sessions", "use_session_of_another", []]]
    done = await run(sandbox, server, victims, "in_client", probes=acts)
    assert done.told == {"sessions": "did: [3, 5]"}, probes.SHARED["use_session_of_another"]


@needs_namespaces
async def test_a_daemon_of_one_job_sees_later_tasks_of_its_server(
    sandbox: Sandbox, server: SparkServer, victims: Victims
) -> None:
    """`probes.SHARED`: what a job leaves in a server stays there as long as the server does."""
    watched = str(victims.other / "second")
    await told_by_udf(sandbox, server, victims, "daemon_that_watches", watched, "stolen")
    assert await told_by_udf(sandbox, server, victims, "in_temp", "stolen") == "ENOENT"
    async with server.granting([victims.other], []):
        while (told := await told_by_udf(sandbox, server, victims, "in_temp", "stolen")) == "ENOENT":
            pass
    assert "committed" in told, probes.SHARED["daemon_that_watches"]


async def test_servers_of_two_jobs_reach_nothing_of_each_other(victims: Victims) -> None:
    """At the same time, with everything that the other one's client knows but its token."""
    if WEAKEST:
        pytest.skip("without namespaces every server has the whole object store")
    servers = await SparkServers.start(spark_settings(victims), private=True, by_job=True)
    settings = SandboxSettings(
        slots=2, network=ReachSpark(), private_network=servers.network.descriptors, disabled_layers=WITHOUT
    )
    sandbox = await Sandbox.start(settings)
    try:
        async with servers.for_job("acme", "one") as one, servers.for_job("acme", "two") as two:
            assert isinstance(one, SparkServer)
            assert isinstance(two, SparkServer)
            assert (one.used.uid != two.used.uid) == AS_ROOT
            address = two.remote.partition("/;")[0]
            port = int(address.rpartition(":")[2])
            acts = [
                ["data", "read", [str(victims.other / "first")]],
                ["ports", "ask_every_port_as_an_executor", []],
                ["signals", "signal_strangers", []],
                ["reaches the port", "connect", ["127.0.0.1", port]],
            ]
            async with two.granting([victims.other], []):
                done = await run(sandbox, one, victims, "in_udf", probes=acts)
                assert done.told == {
                    "data": "ENOENT",
                    "ports": "did: []",
                    "signals": "did: []",
                    "reaches the port": "did: 'connected'",  # one network; what counts is the token
                }
                swapped = address + "/;" + one.remote.partition("/;")[2]
                done = await run(
                    sandbox,
                    one,
                    victims,
                    "in_client",
                    remote=swapped,
                    probes=[["other", "with_the_token", []]],
                )
                assert "did:" not in done.told["other"]
    finally:
        await sandbox.close()
        await servers.close()


# --- everybody else -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", [ReachNothing(), Reach()], ids=["no network", "the network"])
async def test_an_operator_without_spark_cannot_use_it_even_with_the_token(
    network: Any, server: SparkServer, victims: Victims
) -> None:
    sandbox = await Sandbox.start(SandboxSettings(slots=1, network=network, disabled_layers=WITHOUT))
    try:
        done = await run(sandbox, server, victims, "reach_server", uses_spark=False)
        assert done.told["tcp"] == "EACCES"
        assert done.told["tcp6"] in ("EACCES", "EADDRNOTAVAIL")
        assert "did:" not in done.told["connect"]
    finally:
        await sandbox.close()


async def test_no_outside_process_is_in_the_servers_network(
    server: SparkServer, victims: Victims, sandbox: Sandbox
) -> None:
    listening = int((await told_by_udf(sandbox, server, victims, "listen")).removeprefix("did: "))
    for port in (port_of(server), listening):
        with socket.socket() as client:
            reached = client.connect_ex(("127.0.0.1", port)) == 0
        assert reached == WEAKEST  # left open: there, the credential alone keeps others out


async def test_a_servers_files_are_closed_to_other_users(server: SparkServer, victims: Victims) -> None:
    for path in (victims.objects, victims.spark, victims.spark / "logs", *victims.server.glob("temp-*")):
        assert not path.stat().st_mode & 0o007, path
    for log in (victims.spark / "logs").iterdir():
        assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.skipif(not AS_ROOT, reason="it needs root to be somebody else")
async def test_another_user_of_the_machine_gets_nothing_from_a_server(
    server: SparkServer, victims: Victims
) -> None:
    jvm = jvm_of(server)
    paths = [
        *(victims.spark / "logs").iterdir(),
        *(
            victims.objects,
            victims.granted,
            victims.granted / "part.parquet",
            victims.spark,
            victims.server / "conf",
        ),
        *victims.server.glob("temp-*"),
        *(
            Path(f"/proc/{pid}/{name}")
            for pid in (jvm, server.pid)
            for name in ("environ", "mem", "fd", "root")
        ),
    ]
    command = [sys.executable, "-I", "-S", "-c", OTHER_USER, str(LOCAL_UID), str(port_of(server))]
    if not os.access(sys.executable, os.X_OK):
        pytest.skip("the interpreter lies in a closed folder")
    process = await asyncio.create_subprocess_exec(*command, *map(str, paths), stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    told = json.loads(output)
    assert told.pop("port") != 0
    assert {
        path: outcome
        for path, outcome in told.items()
        if outcome not in ("PermissionError", "FileNotFoundError")
    } == {}


# --- the trusted side ---------------------------------------------------------------------------------------------


async def test_the_server_cannot_replace_anything_that_the_worker_opens(
    server: SparkServer, victims: Victims
) -> None:
    """The server owns its temporary folder, in which nothing is ever opened. Whatever is opened, and each folder above
    it, belongs to the worker, and is written by nobody else."""
    opened = [
        *(victims.spark / "logs").iterdir(),
        *(victims.server / "conf").iterdir(),
        victims.server / "lock",
    ]
    assert len(opened) >= 3
    for path in opened:
        for part in (path, *(p for p in path.parents if victims.folder in (p, *p.parents))):
            found = part.lstat()
            assert not stat.S_ISLNK(found.st_mode), part
            assert found.st_uid == os.geteuid(), part
            assert not found.st_mode & 0o022, part
    held = {os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    (temp,) = victims.server.glob("temp-*")
    assert not [path for path in held if path.startswith(str(temp))]


@pytest.mark.chaos
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("victim", ["the JVM", "the launcher"])
async def test_a_killed_servers_processes_are_gone_and_its_grants_move_to_the_next(
    sandbox: Sandbox, server: SparkServer, victims: Victims, victim: str
) -> None:
    marker = f"1000.{os.getpid()}{time.monotonic_ns()}"
    await told_by_udf(sandbox, server, victims, "daemon", marker)
    await eventually(lambda: processes_with(marker), "the daemon runs")
    jvm, launcher, remote = jvm_of(server), server.pid, server.remote
    running = asyncio.create_task(run(sandbox, server, victims, "waits"))
    await eventually(lambda: server.uses == 1, "a task runs")
    async with server.granting([victims.other], []):
        os.kill(jvm if victim == "the JVM" else launcher, signal.SIGKILL)
        await eventually(lambda: not processes_with(marker), f"{victim} takes its daemon with it")
        await eventually(lambda: not command_line(jvm), "the JVM is gone")
        await eventually(lambda: server.pid != launcher, "it is started again", 120)
        told = await told_by_udf(sandbox, server, victims, "read", str(victims.other / "first"))
        assert "committed" in told, victim
    assert (await running).code == "operator.spark_lost", "it does not ask whoever has the port by now"
    parts = zip(re.split("[:/;]", remote), re.split("[:/;]", server.remote), strict=True)
    assert sum(old != new for old, new in parts) == 2, "another port, and another token"
    if not WEAKEST:
        assert await told_by_udf(sandbox, server, victims, "read", str(victims.other / "first")) == "ENOENT"
    assert len(list(victims.server.glob("temp-*"))) == 1


async def test_a_server_that_ends_leaves_no_daemon_behind(victims: Victims) -> None:
    servers = await SparkServers.start(spark_settings(victims), private=True)
    sandbox = await Sandbox.start(
        SandboxSettings(
            slots=1,
            network=ReachSpark(),
            private_network=servers.network.descriptors,
            disabled_layers=WITHOUT,
        )
    )
    marker = f"1000.{os.getpid()}{time.monotonic_ns()}"
    try:
        async with servers.for_job("acme", "any") as server:
            assert isinstance(server, SparkServer)
            await told_by_udf(sandbox, server, victims, "daemon", marker)
            await eventually(lambda: processes_with(marker), "the daemon runs")
    finally:
        await sandbox.close()
        await servers.close()
    assert not processes_with(marker)


@pytest.mark.chaos
async def test_a_server_that_fills_the_disk_is_restarted(victims: Victims) -> None:
    limited = replace(spark_settings(victims), disk_bytes=64 << 20)
    servers = await SparkServers.start(limited, private=True)
    settings = SandboxSettings(
        slots=1, network=ReachSpark(), private_network=servers.network.descriptors, disabled_layers=WITHOUT
    )
    sandbox = await Sandbox.start(settings)
    stop = asyncio.Event()
    running = asyncio.create_task(servers.keep_running(stop))
    try:
        async with servers.for_job("acme", "any") as server:
            assert isinstance(server, SparkServer)
            first = server.pid
            done = await run(sandbox, server, victims, "in_udf", probes=[["fills", "fill_temp", [1 << 30]]])
            assert done.code == "operator.spark_lost"
            assert "temporary files took" in (server.last_end or "")
            await eventually(lambda: server.pid != first, "it is started again", 120)
            await server.until_up()
            assert "created" in await told_by_udf(sandbox, server, victims, "make_in_temp", "little")
    finally:
        stop.set()
        await running
        await sandbox.close()
        await servers.close()
