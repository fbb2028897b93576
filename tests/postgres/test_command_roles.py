"""Every command with a token of every role: what it needs, what it says to those who have less, and how it ends."""

from __future__ import annotations

import asyncio
import json
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
from traceplane.cli.main import cli, main
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
    "operator list": (LOCAL, []),
    "operator show": (LOCAL, ["python"]),
    "spark jars": (LOCAL, []),
    "migrate": (DATABASE, []),
    "init": (LOCAL, []),
    "org create": (DATABASE, ["acme"]),
    "org list": (DATABASE, []),
    "token issue": (DATABASE, ["worker", "w"]),
    "token rotate": (DATABASE, ["worker", "w"]),
    "token revoke": (DATABASE, ["worker", "w"]),
    "key rotate": (DATABASE, []),
    "key rotate-master": (DATABASE, []),
    "gc": (DATABASE, []),
    "dag plan": (ADMIN, ["dag.yaml"]),
    "dag deploy": (ADMIN, ["dag.yaml"]),
    "dag versions": (READER, ["shop"]),
    "dag cutover": (ADMIN, ["shop"]),
    "dag rollback": (ADMIN, ["shop"]),
    "dag abort": (ADMIN, ["shop"]),
    "dag delete": (ADMIN, ["other", "--yes"]),
    "dag list": (READER, []),
    "dag show": (READER, ["shop"]),
    "job list": (READER, []),
    "dataset lineage": (READER, ["shop.out", "n"]),
    "event list": (READER, []),
    "event effects": (READER, [ID]),
    "event emit": (WRITER, ["shop.in", "1"]),
    "file list": (READER, []),
    "webhook list": (READER, []),
    "dataset backfill": (WRITER, ["shop.out", "--range", "0..1"]),
    "job pause": (WRITER, ["shop", "copy"]),
    "job resume": (WRITER, ["shop", "copy"]),
    "batch close": (WRITER, ["shop", "copy"]),
    "task list": (READER, []),
    "task dead": (READER, []),
    "explain": (READER, [ID]),
    "task logs": (READER, [ID]),
    "task retry": (WRITER, [ID]),
    "task cancel": (WRITER, [ID]),
    "task ack": (WRITER, [ID]),
    "dead-letter list": (READER, []),
    "dead-letter show": (READER, [ID]),
    "dead-letter replay": (WRITER, [ID]),
    "dead-letter drop": (WRITER, [ID]),
    "alert list": (READER, []),
    "alert show": (READER, [ID]),
    "alert summary": (READER, []),
    "alert test": (WRITER, ["large", "--dag", "shop", "--range", "0..1"]),
    "alert ack": (WRITER, [ID]),
    "alert silence": (WRITER, ["--for", "1h", "--reason", "known"]),
    "alert silences": (READER, []),
    "alert unsilence": (WRITER, [ID]),
    "status": (READER, []),
    "top": (READER, ["--times", "1"]),
    "completion": (LOCAL, ["bash"]),
    "pipeline create": (WRITER, ["p", "--runs", "shop/copy", "--tickers", "MSFT"]),
    "pipeline update": (WRITER, [ID, "--inactive"]),
    "pipeline list": (READER, []),
    "pipeline show": (READER, [ID]),
    "pipeline delete": (WRITER, [ID]),
    "pipeline limit": (ADMIN, ["u", "5"]),
    "scanner-list list": (READER, []),
    "scanner-list set": (WRITER, ["l", "MSFT"]),
    "scanner-list delete": (WRITER, ["l"]),
    "execution list": (READER, []),
    "execution show": (READER, [ID]),
    "dataset query": (READER, ["select 1 as n"]),
    "dataset list": (READER, []),
    "dataset show": (READER, ["shop.out"]),
    "secret set": (READER, ["rpc"]),  # the secret names the roles that may set it
    "secret allow": (ADMIN, ["rpc", "--any-job"]),
    "secret list": (READER, []),
    "secret delete": (ADMIN, ["rpc"]),
    "channel set": (ADMIN, ["ops", "channel.yaml"]),
    "channel list": (ADMIN, []),
    "channel show": (ADMIN, ["ops"]),
    "channel test": (ADMIN, ["ops"]),
    "channel delete": (ADMIN, ["ops"]),
    "message list": (ADMIN, []),
    "message replay": (ADMIN, [ID]),
    "message drop": (ADMIN, [ID]),
    "whoami": (READER, []),
    "role list": (READER, []),
    "role set": (ADMIN, ["finance"]),
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
    "provider set": (ADMIN, ["idp", "--issuer", "https://idp.example.com", "--client-id", "x"]),
    "provider list": (ADMIN, []),
    "provider delete": (ADMIN, ["idp"]),
    "audit list": (ADMIN, []),
    "audit export": (ADMIN, []),
}
NO_JSON = {name for name, (needed, _) in COMMANDS.items() if needed == PROCESS} | {
    "completion",  # a script for a shell
    "audit export",  # JSON lines in any case
}
DAG = dag("shop", source("shop.in"), job("copy", "shop.in", "shop.out"))


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def names_of_options(command: click.Command) -> list[str]:
    return [name for option in command.params for name in option.opts]


def test_every_command_has_an_entry() -> None:
    assert {name for name, _ in leaves(cli)} == set(COMMANDS)


def test_every_command_ends_as_documented_when_it_is_called_wrongly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in COMMANDS:
        for word, code in (("--help", 0), ("--no-such-option", 2)):
            monkeypatch.setattr("sys.argv", ["traceplane", *name.split(), word])
            ended: object = 0
            try:
                main()
            except SystemExit as end:
                ended = end.code
            out, err = capsys.readouterr()
            assert (ended, name) == (code, name)
            if code == 2:
                (line,) = err.splitlines()
                assert re.fullmatch(
                    r"cli\.usage: (no such option|missing argument) .* → see `traceplane .* --help`", line
                ), line
                assert out == ""


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


async def test_json_is_all_that_a_command_prints_on_stdout(http: GatewayHttp) -> None:
    token, wrong, printed = await http.token(ADMIN), [], 0
    for command, (needed, arguments) in COMMANDS.items():
        if needed not in (*tuple(Role), LOCAL) or command in NO_JSON:
            continue
        words = [*command.split(), *arguments, "--json"]
        done = await asyncio.to_thread(
            CliRunner().invoke, cli, words, env={"TRACEPLANE_USER_TOKEN": token}, input="x"
        )
        lines = done.stdout.splitlines() if command == "top" else [done.stdout]
        try:
            printed += len([json.loads(line) for line in lines if line])
        except json.JSONDecodeError:
            wrong.append(f"{command}: {done.stdout}")
    assert wrong == []
    assert printed > 40, "most of these calls are answered"


def test_every_command_with_a_result_has_json() -> None:
    without = {name for name, command in leaves(cli) if "--json" not in names_of_options(command)}
    assert without == NO_JSON


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
