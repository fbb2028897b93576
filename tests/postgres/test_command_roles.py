"""Every command with a token of every role: what it needs, what it says to those who have less, and how it ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import click
import pytest
from click.testing import CliRunner

from tests.control_plane import ControlPlane
from tests.dags import dag, job, source
from tests.gateway_http import GatewayHttp
from traceplane.auth.roles import RANKS, Role
from traceplane.cli.main import cli
from traceplane.errors import TraceplaneError

READER, WRITER, ADMIN = Role.READER, Role.WRITER, Role.ADMIN
DATABASE = "access to the database"
PROCESS = "runs a process"
LOCAL = "asks nobody"
KNOWN = "needs a token of any role"
SIGN_IN = "gets or ends a token of its own"
REPORTS = "reports that it is refused"
ID = str(uuid4())

COMMANDS: dict[str, tuple[str, list[str]]] = {
    "up": (PROCESS, []),
    "dev": (PROCESS, []),
    "dispatcher": (PROCESS, []),
    "gateway": (PROCESS, []),
    "delivery": (PROCESS, []),
    "sink": (PROCESS, []),
    "worker": (PROCESS, []),
    "trigger run": (PROCESS, []),
    "doctor": (REPORTS, []),
    "trigger doctor": (DATABASE, []),
    "operators": (LOCAL, []),
    "spark jars": (LOCAL, []),
    "migrate": (DATABASE, []),
    "init": (LOCAL, []),
    "org create": (DATABASE, ["acme"]),
    "org list": (DATABASE, []),
    "token issue": (DATABASE, ["worker", "w"]),
    "token rotate": (DATABASE, ["worker", "w"]),
    "token revoke": (DATABASE, ["worker", "w"]),
    "keys rotate": (DATABASE, []),
    "keys rotate-master": (DATABASE, []),
    "gc": (DATABASE, []),
    "plan": (ADMIN, ["dag.yaml"]),
    "deploy": (ADMIN, ["dag.yaml"]),
    "versions": (READER, ["shop"]),
    "cutover": (ADMIN, ["shop"]),
    "rollback": (ADMIN, ["shop"]),
    "abort": (ADMIN, ["shop"]),
    "delete": (ADMIN, ["other", "--yes"]),
    "dags": (READER, []),
    "emit": (WRITER, ["shop.in", "1"]),
    "events": (READER, []),
    "effects": (READER, [ID]),
    "files": (READER, []),
    "webhooks": (READER, []),
    "backfill": (WRITER, ["shop.out", "--range", "0..1"]),
    "jobs pause": (WRITER, ["shop", "copy"]),
    "jobs resume": (WRITER, ["shop", "copy"]),
    "batch close": (WRITER, ["shop", "copy"]),
    "tasks": (READER, []),
    "dead": (READER, []),
    "explain": (READER, [ID]),
    "logs": (READER, [ID]),
    "retry": (WRITER, [ID]),
    "cancel": (WRITER, [ID]),
    "dlq list": (READER, []),
    "dlq show": (READER, [ID]),
    "dlq replay": (WRITER, [ID]),
    "dlq drop": (WRITER, [ID]),
    "alerts list": (READER, []),
    "alerts show": (READER, [ID]),
    "alerts summary": (READER, []),
    "alerts test": (WRITER, ["large", "--dag", "shop", "--range", "0..1"]),
    "alerts ack": (WRITER, [ID]),
    "alerts silence": (WRITER, ["--for", "1h", "--reason", "known"]),
    "alerts silences": (READER, []),
    "alerts unsilence": (WRITER, [ID]),
    "status": (READER, []),
    "top": (READER, ["--times", "1"]),
    "completion": (LOCAL, ["bash"]),
    "pipelines create": (WRITER, ["p", "--runs", "shop/copy", "--tickers", "MSFT"]),
    "pipelines update": (WRITER, [ID, "--inactive"]),
    "pipelines list": (READER, []),
    "pipelines show": (READER, [ID]),
    "pipelines delete": (WRITER, [ID]),
    "pipelines limit": (ADMIN, ["u", "5"]),
    "scanner-lists list": (READER, []),
    "scanner-lists set": (WRITER, ["l", "MSFT"]),
    "scanner-lists delete": (WRITER, ["l"]),
    "executions list": (READER, []),
    "executions show": (READER, [ID]),
    "query": (READER, ["select 1 as n"]),
    "datasets": (READER, []),
    "secret set": (READER, ["rpc"]),  # the secret names the roles that may set it
    "secret allow": (ADMIN, ["rpc", "--any-job"]),
    "secret list": (READER, []),
    "secret remove": (ADMIN, ["rpc"]),
    "channel set": (ADMIN, ["ops", "channel.yaml"]),
    "channel list": (ADMIN, []),
    "channel show": (ADMIN, ["ops"]),
    "channel test": (ADMIN, ["ops"]),
    "channel remove": (ADMIN, ["ops"]),
    "deliveries list": (ADMIN, []),
    "deliveries replay": (ADMIN, [ID]),
    "deliveries drop": (ADMIN, [ID]),
    "whoami": (READER, []),
    "role list": (READER, []),
    "role define": (ADMIN, ["finance"]),
    "role delete": (ADMIN, ["finance"]),
    "member list": (ADMIN, []),
    "member add": (ADMIN, ["ada"]),
    "member disable": (ADMIN, ["otto"]),
    "member grant": (ADMIN, ["ada", "reader"]),
    "member withdraw": (ADMIN, ["ada", "reader"]),
    "member token": (ADMIN, ["ada"]),
    "token list": (READER, []),
    "token revoke-id": (READER, [ID]),  # of one's own; an admin those of others
    "login": (SIGN_IN, []),
    "logout": (SIGN_IN, []),
    "ui": (KNOWN, []),
    "sign-in provider set": (ADMIN, ["idp", "--issuer", "https://idp.example.com", "--client-id", "x"]),
    "sign-in provider list": (ADMIN, []),
    "sign-in provider remove": (ADMIN, ["idp"]),
    "audit list": (ADMIN, []),
    "audit export": (ADMIN, []),
}
DAG = dag("shop", source("shop.in"), job("copy", "shop.in", "shop.out"))


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name))


def test_every_command_has_an_entry() -> None:
    assert set(commands(cli)) == set(COMMANDS)


@pytest.fixture
async def http(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[GatewayHttp]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACEPLANE_HOME", str(tmp_path / "home"))
    (tmp_path / "dag.yaml").write_text(DAG)
    (tmp_path / "channel.yaml").write_text("{kind: webhook, url: https://x.example/in}")
    (tmp_path / "code").mkdir()
    (tmp_path / "code/basic.py").write_text("def copy(task):\n    return []\n")
    await plane.deploy(DAG)
    async with GatewayHttp.open(plane) as opened:
        monkeypatch.setenv("TRACEPLANE_GATEWAY_URL", f"http://127.0.0.1:{opened.port}")
        yield opened


def run(command: str, token: str) -> TraceplaneError | None:
    """The refusal, as `main` prints it; None if there is none."""
    words = [*command.split(), *COMMANDS[command][1]]
    done = CliRunner().invoke(
        cli, words, env={"TRACEPLANE_USER_TOKEN": token}, standalone_mode=False, input="x"
    )
    if done.exception is None or isinstance(done.exception, SystemExit):
        return None
    assert isinstance(done.exception, TraceplaneError), f"{words}: {done.exception!r}"
    return done.exception


async def test_every_command_says_which_role_it_needs(http: GatewayHttp) -> None:
    wrong = []
    for role in (READER, WRITER, ADMIN):
        token = await http.token(role)
        for command, (needed, _) in COMMANDS.items():
            if needed not in tuple(Role):
                continue
            refusal = await asyncio.to_thread(run, command, token)
            is_refused = refusal is not None and refusal.code == "access.role_required"
            if is_refused != (RANKS[role] < RANKS[Role(needed)]):
                wrong.append(f"{command} by a {role}: {refusal}")
            if is_refused:
                assert refusal is not None
                assert re.fullmatch(
                    rf"access.role_required: this call needs the role {needed} \(value: '{role}'\) → ask an admin of"
                    " the organization",
                    str(refusal),
                )
                assert refusal.status < 500, "exit code 2"
    assert wrong == []


async def test_no_command_helps_without_a_token_that_is_known(http: GatewayHttp) -> None:
    worker = await http.worker_token()
    revoked = await http.token(READER, name="gone")
    await http.plane.sql("update access_tokens set revoked_at = tp_now() where name = 'gone'")
    await http.plane.api.refresh()
    expected = {"tpu_x": "token.malformed", worker: "token.wrong_principal", revoked: "token.revoked"}
    for token, code in expected.items():
        for command, (needed, _) in COMMANDS.items():
            if needed in tuple(Role):
                refusal = await asyncio.to_thread(run, command, token)
                assert refusal is not None, command
                assert refusal.code == code, f"{command}: {refusal}"


async def test_commands_on_the_database_are_in_the_audit_log(
    http: GatewayHttp, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPLANE_STATE_URL", database_url)
    monkeypatch.setenv("USER", "root-of-all")
    monkeypatch.setenv("LOGNAME", "root-of-all")
    for command in ("token issue", "token rotate", "token revoke", "org create"):
        assert await asyncio.to_thread(run, command, "tpu_x") is None
    rows = await http.plane.sql(
        "select o.slug, principal, kind, action, object from audit_log join orgs o using (org_id) order by audit_id"
    )
    names = {"principal": "worker", "name": "w"}
    assert [tuple(row) for row in rows] == [
        ("default", "root-of-all", "operator", "cli token issue", names),
        ("default", "root-of-all", "operator", "cli token rotate", names),
        ("default", "root-of-all", "operator", "cli token revoke", names),
        ("acme", "root-of-all", "operator", "cli org create", {"name": "acme"}),
    ]
