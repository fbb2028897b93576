"""The token of a home folder goes to the platform of that folder, and to nobody who took its place."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from traceplane.cli import profile
from traceplane.cli.whereabouts import call
from traceplane.client import Client
from traceplane.errors import InvalidInput, PlatformError
from traceplane.runtime.running_platform import noted_gateway
from traceplane.settings import Settings, load, signed_in_file
from traceplane.wire.people import WhoAmI

OTHER_UID = 60_711
ANSWER = json.dumps(
    {"org": "default", "name": "local-user", "roles": ["admin"], "sees_pii": False, "kind": "token"}
).encode()


class Listener(HTTPServer):
    """At the gateway's address; keeps the tokens that it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.tokens: list[str] = []


class _Answers(BaseHTTPRequestHandler):
    server: Listener

    def do_GET(self) -> None:
        self.server.tokens.append(self.headers["authorization"])
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def listener() -> Iterator[Listener]:
    with Listener() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def settings(listener: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TRACEPLANE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRACEPLANE_GATEWAY_PORT", str(listener.server_port))
    profile.write_private(tmp_path / "home/tokens/user", "tpu_of_the_folder")
    return load(home=tmp_path / "home")


def ask(settings: Settings) -> None:
    call(settings, lambda c: c.call("GET", "/api/v1/whoami", WhoAmI))
    Client(home=settings.home).whoami()


def refusals(settings: Settings) -> Iterator[BaseException]:
    for way in (lambda: call(settings, _never), lambda: Client(home=settings.home)):
        with pytest.raises((PlatformError, InvalidInput)) as refused:
            way()
        yield refused.value


async def _never(_: object) -> WhoAmI:
    raise AssertionError("the token is about to be sent")


def test_after_up_has_ended_nobody_gets_the_token(settings: Settings, listener: Listener) -> None:
    with profile.the_only_one(settings):
        ask(settings)
    assert listener.tokens == ["Bearer tpu_of_the_folder"] * 2
    for refused in refusals(settings):
        assert isinstance(refused, PlatformError)
        assert refused.code == "service.unreachable"
        assert f"no platform is running in {settings.home.resolve()}" in str(refused.next_step)
        assert "start it with `traceplane up`" in str(refused.next_step)
    assert len(listener.tokens) == 2


def test_a_gateway_that_runs_without_up_gets_the_token(settings: Settings, listener: Listener) -> None:
    ask(settings)
    assert len(listener.tokens) == 2, "no `up` ever ran here"
    with profile.the_only_one(settings):
        pass
    with noted_gateway(settings), noted_gateway(settings):
        ask(settings)
    assert len(listener.tokens) == 4
    assert len(list(refusals(settings))) == 2


def test_an_address_that_is_named_and_a_sign_in_are_not_the_folders_own(
    settings: Settings, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    with profile.the_only_one(settings):
        pass
    url = f"http://127.0.0.1:{listener.server_port}"
    Client(url, home=settings.home).whoami()
    monkeypatch.setenv("TRACEPLANE_GATEWAY_URL", url)
    ask(load(home=settings.home))
    monkeypatch.delenv("TRACEPLANE_GATEWAY_URL")
    profile.write_private(signed_in_file(settings), json.dumps({"url": url}))
    ask(settings)
    assert len(listener.tokens) == 5


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_another_user_who_listens_at_the_address_gets_no_token(
    settings: Settings, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the gateway of a running `up` is restarted."""
    with profile.the_only_one(settings), somebody_else() as port:
        monkeypatch.setenv("TRACEPLANE_GATEWAY_PORT", str(port))
        for host in ("127.0.0.1", "localhost", "0.0.0.0"):
            monkeypatch.setenv("TRACEPLANE_HOST", host)
            for refused in refusals(load(home=settings.home)):
                assert isinstance(refused, InvalidInput)
                assert refused.code == "cli.token_withheld"
        monkeypatch.setenv("TRACEPLANE_HOST", "127.0.0.1")
        monkeypatch.setenv("TRACEPLANE_GATEWAY_PORT", str(listener.server_port))
        ask(load(home=settings.home))
    assert len(listener.tokens) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_other_users_cannot_lock_what_says_that_a_platform_runs(settings: Settings) -> None:
    for name in ("running", "gateway_running"):  # as earlier versions left them
        (settings.home / name).touch(0o644)
    settings.home.chmod(0o711)
    with profile.the_only_one(settings), noted_gateway(settings):
        pass
    for name in ("running", "gateway_running"):
        assert (settings.home / name).stat().st_mode & 0o777 == 0o600


LISTEN = """
import os, socket
os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
input()
"""


@contextlib.contextmanager
def somebody_else() -> Iterator[int]:
    """Another user's process that listens on a port."""
    command = [sys.executable, "-I", "-S", "-c", LISTEN.format(uid=OTHER_UID)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()
