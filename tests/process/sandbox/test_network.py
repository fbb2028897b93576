"""What operator code reaches over the network: nothing, or everything but the platform and its machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.process.sandbox.attacks import (
    SECRET,
    WITHOUT,
    assignment,
    attack,
    eventually,
    run,
    whatever_the_layers,
)
from traceplane.errors import PlatformError
from traceplane.sandbox.assignment import UsedSpark
from traceplane.sandbox.child_log import TaskLog
from traceplane.sandbox.confinement import SECCOMP, SUPERVISED_NETWORK
from traceplane.sandbox.frames import Reach
from traceplane.sandbox.pool import Sandbox
from traceplane.sandbox.sandbox_settings import SandboxSettings

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only"),
    pytest.mark.asyncio(loop_scope="package"),
]


class _InternalApi(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.calls += 1  # type: ignore[attr-defined]
        self.send_response(401 if self.headers.get("authorization") != f"Bearer {SECRET}" else 200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def internal_api() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _InternalApi)
    server.calls = 0  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def postgres_socket(lake: Path) -> Iterator[list[str]]:
    """A database's socket that every user may connect to, and an abstract one."""
    path = str(lake / ".s.PGSQL.5432")
    abstract = f"@traceplane-test-{os.getpid()}"
    servers = []
    for address in (path, "\0" + abstract[1:]):
        server = socket.socket(socket.AF_UNIX)
        server.bind(address)
        server.listen()
        servers.append(server)
    os.chmod(path, 0o777)
    yield [path, abstract]
    for server in servers:
        server.close()
    os.unlink(path)


async def test_the_internal_api_cannot_be_called(sandbox: Sandbox, internal_api: ThreadingHTTPServer) -> None:
    port = internal_api.server_address[1]
    with socket.create_connection(("127.0.0.1", port)):
        pass
    called = await attack(sandbox, "call_internal_api", config={"port": port})
    assert called.told["http"].startswith("refused")
    assert not called.told["udp"].startswith("did")
    assert not called.told["listen"].startswith("did")
    assert internal_api.calls == 0  # type: ignore[attr-defined]


async def test_a_database_socket_cannot_be_reached(sandbox: Sandbox, postgres_socket: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(postgres_socket[0])
    called = await attack(sandbox, "call_unix_sockets", config={"addresses": postgres_socket})
    for way, outcome in called.told["outcomes"].items():
        assert not outcome.startswith("did"), way
    assert not called.told["pair"].startswith("did")
    assert called.told["usual_pair"] == "did: True"


@contextlib.asynccontextmanager
async def online(*allowed: str) -> AsyncIterator[Sandbox]:
    """A sandbox whose operators have the network."""
    network = Reach(allowed=list(allowed))
    sandbox = await Sandbox.start(SandboxSettings(slots=2, network=network, disabled_layers=WITHOUT))
    try:
        yield sandbox
    finally:
        await sandbox.close()


async def test_with_the_network_on_the_platform_and_this_machine_cannot_be_reached(
    internal_api: ThreadingHTTPServer, postgres_socket: list[str]
) -> None:
    port = internal_api.server_address[1]
    own_addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    async with online() as sandbox:
        called = await run(sandbox, "call_internal_api", config={"port": port})
        assert called.told["http"].startswith("refused")
        assert not called.told["udp"].startswith("did")
        nobody_minds = sandbox.isolation.landlock_abi < 4 and not sandbox.isolation.has(SECCOMP)
        assert called.told["listen"].startswith("did") == nobody_minds
        config = {"port": port, "addresses": ["localhost", *own_addresses]}
        ways = (await run(sandbox, "connect_in_every_way", config=config)).told["outcomes"]
        assert len(ways) > 30
        for way, outcome in ways.items():
            assert not outcome.startswith("did"), way
        reached = await run(sandbox, "call_unix_sockets", config={"addresses": postgres_socket})
        for way, outcome in reached.told["outcomes"].items():
            assert not outcome.startswith("did"), way
    assert internal_api.calls == 0  # type: ignore[attr-defined]


async def test_a_sandbox_without_the_network_says_whether_jobs_could_have_it(sandbox: Sandbox) -> None:
    async with online() as with_the_network:
        assert with_the_network.isolation.has(SUPERVISED_NETWORK)
    assert sandbox.isolation.has(SUPERVISED_NETWORK)


async def test_with_the_network_on_nobody_can_connect_to_an_operator_and_names_are_still_resolved() -> None:
    async with online() as sandbox:
        told = (await run(sandbox, "be_reached_and_look_around")).told
        for way in (told["listen"], told["accept"], *told["netlink"].values()):
            assert way.startswith("EACCES"), told
        assert told["resolved"] == "did: 80"


async def test_descriptors_in_flight_do_not_keep_the_network_from_others() -> None:
    """The kernel counts them by user, and operators of an ordinary user's worker are of one."""
    lines: list[str] = []
    async with online() as sandbox:
        hostile = asyncio.create_task(
            sandbox.run(assignment("keep_descriptors_in_flight"), log=TaskLog(lines.append))
        )
        try:
            await eventually(lambda: lines)
            assert "ETOOMANYREFS" in lines[0]
            assert (await run(sandbox, "describe_limits")).code is None
        finally:
            hostile.cancel()
            await asyncio.wait([hostile])


async def test_mounts_cannot_be_inspected(sandbox: Sandbox) -> None:
    if not sandbox.isolation.has(SECCOMP):
        pytest.skip("there is no system call filter")
    told = (await attack(sandbox, "look_at_mounts")).told
    assert told == dict.fromkeys(("open_tree_attr", "statmount", "listmount"), "EPERM")


async def test_with_the_network_on_a_task_reaches_its_own_spark_and_nothing_else_of_this_machine() -> None:
    port, other = port_of_nobody(), port_of_nobody()
    outcomes = {UsedSpark(port, None): "ECONNREFUSED", UsedSpark(other, None): "EACCES", None: "EACCES"}
    async with online() as sandbox:
        for spark, outcome in outcomes.items():
            told = (await run(sandbox, "connect_to_nobody", config={"port": port}, spark=spark)).told
            assert (told["blocking"], told["not_blocking"]) == (outcome, outcome)


async def test_allowed_destinations_can_be_reached_from_threads_and_programs_too(
    internal_api: ThreadingHTTPServer,
) -> None:
    port = internal_api.server_address[1]
    async with online(f"127.0.0.1:{port}") as sandbox:
        called = await run(sandbox, "connect_usefully", config={"port": port, "closed": port_of_nobody()})
        assert called.told == {
            "blocking": "did: 401",
            "with_timeout": "did: 401",
            "thread": "did: 401",
            "program": "did: 401",
            "asyncio": "did: True",
            "closed": "EACCES",
            "resolver": "use-vc",
        }


async def test_a_connection_that_fails_says_so_whether_its_socket_blocks_or_not() -> None:
    port = port_of_nobody()
    async with online(f"127.0.0.1:{port}") as sandbox:
        told = (await run(sandbox, "connect_to_nobody", config={"port": port})).told
        assert told == {"blocking": "ECONNREFUSED", "not_blocking": "ECONNREFUSED", "bad_address": "EFAULT"}


@whatever_the_layers
async def test_the_network_is_refused_where_connections_cannot_be_supervised() -> None:
    settings = SandboxSettings(slots=1, network=Reach(), disabled_layers=frozenset({SECCOMP}))
    with pytest.raises(PlatformError, match="cannot be supervised") as refusal:
        await Sandbox.start(settings)
    assert refusal.value.code == "sandbox.too_weak"


def port_of_nobody() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
