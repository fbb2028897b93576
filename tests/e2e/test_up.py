"""`traceplane up` never surprises: it is alone in its folder, says what is wrong before it starts anything, brings back
what dies, and when it is told to stop, lets tasks finish or hands them back."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.certificates import Authority
from tests.user_folder import Folder
from traceplane.auth import opaque
from traceplane.postgres.database import SCHEMA
from traceplane.postgres.embedded.server import EmbeddedPostgres

DAG = """
version: 1
dag: t
jobs:
- {name: numbers, activation: source, source: {kind: manual}, outputs: [{dataset: t.in}]}
- name: work
  runtime: python
  operator: python
  inputs: [{from: {job: numbers}}]
  outputs: [{dataset: t.out}]
  config: {entrypoint: "operators:work"}
  max_attempts: 1
"""
OPERATORS = """
import time

def work(task):
    print("at work", flush=True)
    time.sleep(600 if task.scope.start == 100 else 2 if task.scope.start == 99 else 0)
    return [{"n": task.scope.start}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "mine", dag=DAG, operators=OPERATORS, TRACEPLANE_WORKER_DRAIN_SECONDS="4")
    yield made
    made.remove()


async def test_up_is_alone_in_its_folder_restarts_what_dies_and_stops_cleanly(
    folder: Folder, tmp_path: Path
) -> None:
    folder.up("--no-spark")
    folder.until_said("up.ready")
    assert folder.run("status").returncode == 0, "the API is there when it is said to be"
    postmaster = postmaster_of(folder)

    refusal = folder.refused("up", "--no-spark")
    assert refusal.startswith("up.already_running: `traceplane up` is already running in this folder")
    assert str(folder.path / ".traceplane") in refusal
    assert postmaster_of(folder) == postmaster

    ports: dict[str, Any] = {
        name: value for name, value in folder.environment.items() if name.endswith("_PORT")
    }
    other = Folder(tmp_path / "other", dag=DAG, operators=OPERATORS, **ports)
    assert other.refused("up").startswith("service.port_in_use: another process is listening on this port")
    assert not (other.path / ".traceplane/postgres").exists()
    assert other.refused("status").startswith("cli.no_token: this folder has no user token")
    assert other.refused("token", "issue", "worker", "x").startswith(
        "cli.no_platform: no platform was set up"
    )
    assert not (other.path / ".traceplane/postgres").exists()
    token, _ = opaque.issue(opaque.Principal.USER, org="default", name="x", now=0, roles=["admin"])
    (other.path / ".traceplane/tokens").mkdir(parents=True)
    (other.path / ".traceplane/tokens/user").write_text(token)
    for words in (("status",), ("query", "select 1 as n")):
        refusal = other.refused(*words)
        assert refusal.startswith("cli.other_platform: the platform at this address is not the one of ")
        assert str(other.path / ".traceplane") in refusal
        assert "no platform is running in" in refusal

    issued = folder.run("token", "issue", "user", "new", "--role", "reader").stdout.strip()
    assert folder.run("status", TRACEPLANE_USER_TOKEN=issued).returncode == 0, "a new token is good at once"
    assert folder.refused("emit", "t.in", "9..1").startswith(
        "cli.empty_range: the range ends before it starts"
    )

    os.kill(postmaster, signal.SIGKILL)
    folder.until("deploy", "dag.yaml")
    assert postmaster_of(folder) != postmaster
    folder.until("emit", "t.in", "0..4")
    folder.until("status", shows="t.out: 5 commits")

    # One task that ends within the time that it has, and one that would take ten minutes.
    folder.until("emit", "t.in", "99..100")
    folder.until("tasks", "--state", "running", shows="t/work  100")
    assert folder.stop() == 0, folder.said()
    said = folder.said()
    assert '"event":"up.stopping"' in said
    for line in said.splitlines():
        assert json.loads(line)["event"], "programs read what is not written to a terminal"
    stopped = re.findall(r'"event":"process.stopped","service":"(\w+)"', said)
    assert stopped[-2:] == ["dispatcher", "up"]
    assert await left_behind(folder) == [(99, "completed", 1), (100, "waits", 0)]


async def test_a_second_ctrl_c_hands_tasks_back_at_once_and_still_stops_postgres(folder: Folder) -> None:
    folder.environment["TRACEPLANE_WORKER_DRAIN_SECONDS"] = "3600"
    folder.up("--no-spark")
    folder.until("deploy", "dag.yaml")
    folder.until("emit", "t.in", "100")
    folder.until("tasks", "--state", "running", shows="t/work  100")
    postmaster = postmaster_of(folder)
    assert folder.process is not None
    folder.process.send_signal(signal.SIGINT)
    folder.until_said("up.stopping")
    for _ in range(3):  # nobody presses it just once
        folder.process.send_signal(signal.SIGINT)
    assert folder.process.wait(120) == 0, folder.said()
    assert not is_running(postmaster)
    assert await left_behind(folder) == [(100, "waits", 0)]


def is_running(pid: int) -> bool:
    """A zombie, which nobody has waited for yet, has no command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text() != ""
    except FileNotFoundError:
        return False


def postmaster_of(folder: Folder) -> int:
    for place in (folder.path / ".traceplane/postgres").glob("location"):
        return int((Path(place.read_text().strip()) / "data/postmaster.pid").read_text().split()[0])
    return int((folder.path / ".traceplane/postgres/data/postmaster.pid").read_text().split()[0])


async def left_behind(folder: Folder) -> list[tuple[int, str, int]]:
    """Position, state and used attempts of the tasks that ran when it was stopped."""
    server = EmbeddedPostgres.ensure(folder.path / ".traceplane/postgres", die_with_parent=True)
    connection = await asyncpg.connect(server.state_url, server_settings={"search_path": SCHEMA})
    try:
        rows = await connection.fetch(
            "select range_start, case when state in ('queued', 'dispatched') then 'waits' else state::text end,"
            " attempt - granted_attempts from tasks where range_start >= 99 order by 1"
        )
        return [tuple(row) for row in rows]
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("environment", "code"),
    [
        ({"TRACEPLANE_WORKER_CODE_PATHS": "elsewhere"}, "worker.code_path_unusable"),
        ({"TRACEPLANE_WORKER_CODE_PATHS": "dag.yaml"}, "worker.code_path_unusable"),
        ({"TRACEPLANE_WORKER_CODE_PATHS": "."}, "worker.home_in_code_path"),
        ({"TRACEPLANE_GATEWAY_PORT": "70000"}, "settings.invalid"),
        ({"TRACEPLANE_GATEWAY_PORT": "7460", "TRACEPLANE_DISPATCHER_PORT": "7460"}, "settings.invalid"),
        ({"TRACEPLANE_WORKER_CONCURRENCY": "0"}, "settings.invalid"),
        ({"TRACEPLANE_LOG_LEVEL": "loud"}, "settings.invalid"),
        ({"TRACEPLANE_HOME": "dag.yaml"}, "home.unusable"),
        ({"TRACEPLANE_HOST": "192.0.2.1"}, "service.address_unusable"),
        ({"TRACEPLANE_OBJECT_STORE": "dag.yaml/objects"}, "settings.invalid"),
    ],
)
def test_invalid_settings_are_reported_before_anything_starts(
    folder: Folder, environment: dict[str, str], code: str
) -> None:
    assert folder.refused("up", **environment).startswith(f"{code}: ")
    assert not (folder.path / ".traceplane/postgres").exists()


def test_a_single_process_reports_a_port_in_use_in_one_sentence(folder: Folder, database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = folder.run(
            "gateway",
            TRACEPLANE_GATEWAY_PORT=str(taken.getsockname()[1]),
            TRACEPLANE_STATE_URL=database_url,
        )
    assert done.returncode == 2
    assert "service.port_in_use" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_with_a_certificate_workers_and_the_command_line_speak_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue()
    folder = Folder(
        tmp_path / "mine",
        dag=DAG,
        operators=OPERATORS,
        TRACEPLANE_TLS_CERTIFICATE=str(certificate),
        TRACEPLANE_TLS_KEY=str(key),
        TRACEPLANE_TLS_CA=str(authority.file),
    )
    try:
        refusal = folder.run("up", "--no-spark", TRACEPLANE_TLS_KEY=str(authority.file))
        assert refusal.returncode == 2
        assert "tls.certificate_unusable" in refusal.stderr
        folder.up("--no-spark")
        folder.until_said("up.ready")
        assert f"https://127.0.0.1:{folder.environment['TRACEPLANE_GATEWAY_PORT']}" in folder.said()
        assert folder.run("deploy", "dag.yaml").returncode == 0, folder.said()
        assert folder.run("emit", "t.in", "0..4").returncode == 0
        folder.until("status", shows="t.out: 5 commits")
        stranger = folder.run("status", TRACEPLANE_TLS_CA="/dev/null")
        assert stranger.returncode == 2
        assert stranger.stderr.startswith("tls.ca_unusable")
        assert folder.run("query", "select count(*) from t.out").returncode == 0
        assert folder.stop() == 0, folder.said()
    finally:
        folder.remove()
