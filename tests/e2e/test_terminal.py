"""Nothing that operators or users wrote reaches a terminal unescaped, by any command."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Commands
from tests.operators.hostile_text import HOSTILE
from tests.platform import Platform
from traceplane.cli.main import cli
from traceplane.wire.control import EmitResponse, TasksResponse
from traceplane.wire.pipelines import PipelineView

CLI = Path(__file__).parents[2] / "src/traceplane/cli"
DAG = """
version: 1
dag: shop
jobs:
- {name: numbers, activation: source, source: {kind: manual}, outputs: [{dataset: shop.in}]}
- name: write
  runtime: python
  operator: python
  inputs: [{from: {dataset: shop.in}}]
  outputs: [{dataset: shop.out}]
  config: {entrypoint: "hostile_text:write", note: NOTE}
  max_attempts: 1
"""
SHOWS_NOTHING_OF_OTHERS = {
    "up",
    "completion",
    "dev",  # what it says of tasks is what `explain` says
    "dispatcher",
    "gateway",
    "delivery",
    "sink",
    "worker",
    "trigger run",
    "init",
    "migrate",
} | {
    *("key rotate", "key rotate-master", "org create", "org list", "secret set"),
    *(f"token {verb}" for verb in ("issue", "rotate", "revoke")),
    "logout",
    "ui",
    "spark jars",
    "operator show",
    "operator list",  # of packages that are installed here: their code could do more
}


def unescaped(written: str, *, progress: bool = False) -> list[str]:
    # A progress line begins with a carriage return of the command's own, and a bar hides the cursor and shows it again.
    # A screen is written from its upper left corner, and what was behind a line and below the last one is cleared.
    own = r"\r\x1b\[\?25l|\x1b\[\?25h|(^|(?<=[ \n]))\r|^\x1b\[H|\x1b\[K(?=\r?\n)|\x1b\[J$"
    text = re.sub(own, "", written) if progress else written
    return [repr(c) for c in text if not (c.isprintable() or c == "\n")]


def leaves(command: Any = cli, path: tuple[str, ...] = ()) -> set[str]:
    if not hasattr(command, "commands"):
        return {" ".join(path)}
    return {leaf for name, child in command.commands.items() for leaf in leaves(child, (*path, name))}


SQL = "select * from shop.out"


def calls_of(
    dag: Path, tasks: list[str], pipeline: str, execution: str, alert: str
) -> dict[str, list[list[str]]]:
    """The arguments with which each command shows something hostile."""
    channel = dag.with_name("channel.yaml")
    channel.write_text(
        json.dumps({"kind": "webhook", "url": "https://x.example/in", "body": {"note": HOSTILE}})
    )
    failing = f"select cast(text as int) as {json.dumps('x')} from shop.out"
    return {
        "dag plan": [[str(dag)], [str(dag), "--json"]],
        "job pause": [["shop", "write", "--reason", HOSTILE]],
        "task list": [[], ["--json"]],
        "explain": [[task] for task in tasks] + [[tasks[0], "--json"]],
        "task dead": [[], ["--all"], ["--json"]],
        "task logs": [[task] for task in tasks] + [[tasks[0], "--json"]],
        "status": [[], ["--json"]],
        "top": [["--times", "1"]],
        "dag list": [[], ["--json"]],
        "dag show": [["shop"], [HOSTILE]],
        "job list": [[], ["--json"], ["--dag", HOSTILE]],
        "dataset list": [[], ["--json"]],
        "dataset show": [["shop.out"], ["shop.out", "--json"], [HOSTILE]],
        "dataset lineage": [["shop.out", "text"], ["shop.out", "text", "--json"], [HOSTILE, HOSTILE]],
        "event list": [[], ["--json"], ["--dataset", HOSTILE]],
        "event effects": [[tasks[0]], [tasks[0], "--json"], [HOSTILE]],
        "dag versions": [["shop"], ["shop", "--json"]],
        "dataset query": [
            *([SQL, "--format", kind] for kind in ("table", "json", "csv")),
            [failing],
            [SQL, "--to-dataset", "shop.copy"],
        ],
        "pipeline list": [[], ["--json"]],
        "pipeline show": [[pipeline], [pipeline, "--json"]],
        "pipeline update": [[pipeline, "--inactive"]],
        "pipeline create": [[HOSTILE, "--tickers", "A", "--celery", "--user", "another"]],
        "pipeline limit": [[HOSTILE, "5"]],
        "execution list": [[], ["--json"]],
        "execution show": [[execution], [execution, "--json"]],
        "scanner-list list": [[], ["--json"]],
        "scanner-list set": [[HOSTILE, "A"]],
        "scanner-list delete": [["none"], [HOSTILE]],
        "doctor": [[], ["--json"]],
        "trigger doctor": [[], ["--json"]],
        "job resume": [["shop", "write"], [HOSTILE, "write"]],
        "batch close": [["shop", "write"], [HOSTILE, "write"]],
        "webhook list": [[], ["--json"]],
        "file list": [[], ["--json"]],
        "whoami": [[], ["--json"]],
        "audit list": [[], ["--principal", HOSTILE], ["--json"]],
        "audit export": [[]],
        "provider set": [
            [HOSTILE, "--issuer", "https://idp.example", "--client-id", "x", "--default-role", "reader"],
            ["idp", "--issuer", HOSTILE, "--client-id", HOSTILE, "--default-role", HOSTILE],
        ],
        "provider list": [[], ["--json"]],
        "provider delete": [[HOSTILE]],
        "login": [["--provider", HOSTILE], ["--org", HOSTILE]],
        "alert list": [[], ["--json"], ["--alert", HOSTILE]],
        "alert show": [[alert], [alert, "--json"], [tasks[0]]],
        "alert summary": [[], ["--json"], ["--dag", HOSTILE]],
        "alert ack": [[alert, tasks[0]], ["--alert", HOSTILE]],
        "alert test": [
            [HOSTILE, "--dag", HOSTILE, "--range", "1..2"],
            [HOSTILE, "--file", str(dag), "--range", "1..2"],
        ],
        "alert silence": [
            ["--for", "1h", "--reason", HOSTILE],
            ["--for", "1h", "--reason", "x", "--alert", HOSTILE],
            ["--for", HOSTILE, "--reason", "x", "--subject", HOSTILE],
        ],
        "alert silences": [[], ["--json"]],
        "alert unsilence": [[tasks[0]]],
        "channel set": [[HOSTILE, str(channel)], ["ops", str(channel)], ["ops", str(dag)]],
        "channel list": [[], ["--json"]],
        "channel show": [["ops"], ["ops", "--json"], [HOSTILE]],
        "channel test": [["ops"], [HOSTILE]],
        "channel delete": [["ops"], [HOSTILE]],
        "message list": [[], ["--json"], ["--channel", HOSTILE]],
        "message replay": [["--channel", HOSTILE], [tasks[0]]],
        "message drop": [["--channel", HOSTILE], [tasks[0]]],
        "role set": [["finance"], [HOSTILE]],
        "role list": [[], ["--json"]],
        "member add": [["ada", "--email", HOSTILE], [HOSTILE]],
        "member list": [[], ["--json"]],
        "member grant": [["ada", "finance"], ["ada", HOSTILE]],
        "member token": [["ada", "--dataset", HOSTILE], [HOSTILE]],
        "token list": [[], ["--json"]],
        "token revoke-id": [[HOSTILE]],
        "member withdraw": [["ada", "finance"], ["ada", HOSTILE]],
        "member disable": [["ada"], [HOSTILE]],
        "role delete": [["finance"], [HOSTILE]],
        "secret list": [[], ["--json"]],
        "secret allow": [[HOSTILE, "--role", HOSTILE]],
        "secret delete": [[HOSTILE]],
        "event emit": [["shop.in", "9"], [HOSTILE, "9"]],
        "dataset backfill": [["shop.out", "--range", "2..3", "--only-failed", "--wait"]],
        "dead-letter list": [[], ["--json"], ["--dataset", HOSTILE]],
        "dead-letter show": [[tasks[0]], [tasks[0], "--json"]],
        "dead-letter replay": [tasks, [*tasks, "--json"], ["--dag", HOSTILE]],
        "dead-letter drop": [tasks, ["--dag", HOSTILE]],
        "task ack": [tasks],
        "task cancel": [tasks],
        "task retry": [tasks],
        "gc": [["--dry-run", "--grace", "0s"]],
        "dag deploy": [[str(dag), "--wait"]],
        "dag cutover": [["shop"]],
        "dag abort": [["shop"]],
        "dag rollback": [["shop"], [HOSTILE]],
        "pipeline delete": [[pipeline]],
        "dag delete": [[HOSTILE, "--yes"]],
    }


async def test_no_command_output_controls_a_terminal(database_url: str, tmp_path: Path) -> None:
    async with Platform.start(database_url, tmp_path) as platform, Commands.of(platform) as commands:
        dag = tmp_path / "dag.yaml"
        dag.write_text(DAG.replace("NOTE", json.dumps(HOSTILE)))
        await platform.deploy(dag.read_text())
        await platform.emit("shop.in", [1, 2, 3])
        partition = {"partition_key": HOSTILE, "start": 4, "end": 5}
        events = {"events": [{"dataset": "shop.in", "scope": partition}]}
        await platform.api.call("POST", "/api/v1/events", EmitResponse, events)
        states = await platform.settled()
        assert states == {"completed": 1, "dead": 3}
        listed = await platform.api.call("GET", "/api/v1/tasks", TasksResponse)
        raised = {str(task.error) for task in listed.tasks if task.error}
        assert any(repr(HOSTILE)[1:-1] in text for text in raised)
        tasks = [str(task.task_id) for task in listed.tasks if task.state == "dead"]
        pipeline, execution = await _pipeline(platform)
        dag.write_text(DAG.replace("NOTE", json.dumps(f"{HOSTILE} again")))
        alert = await platform.value(
            "insert into alert_events (org_id, dag, alert, key, severity, title, body, subject, fields, event_time,"
            " owner, incident) select org_id, $1, $1, $1, $1, $1, $1, $2::text::jsonb, '{}', tp_now(), $1, 'k'"
            " from orgs limit 1 returning alert_event_id",
            HOSTILE,
            json.dumps({HOSTILE: HOSTILE}),
        )
        calls = calls_of(dag, tasks, pipeline, execution, str(alert))
        assert set(calls) | SHOWS_NOTHING_OF_OTHERS == leaves()
        shown, forged = {}, {}
        for name, variants in calls.items():
            for arguments in variants:
                written = await commands.on_a_terminal(*name.split(), *arguments)
                assert "Traceback (most recent" not in written, written
                command = f"{name} {arguments[-1] if arguments else ''}"
                if raw := unescaped(written, progress="--wait" in arguments or name == "top"):
                    shown[command] = (raw, written)
                has_lines = "csv" in arguments or name == "task logs"
                if re.search(r"^FORGED", written, re.MULTILINE) and not has_lines:
                    forged[command] = written
        assert shown == {}
        assert forged == {}
        # It was there, so it was escaped.
        looks = (["tasks"], ["tasks", "--json"], ["explain", tasks[0]], ["logs", tasks[0]])
        for arguments in (*looks, ["query", SQL], ["datasets", "shop.out"]):
            assert "FORGED" in await commands.on_a_terminal(*arguments)
        for log in tmp_path.glob("*.log"):
            assert unescaped(log.read_text()) == []


async def _pipeline(platform: Platform) -> tuple[str, str]:
    body = {
        "name": HOSTILE,
        "user_id": HOSTILE,
        "scanner_tickers": [
            HOSTILE.replace("\n", "").replace("\r", "").replace("\x85", "").replace("\u2028", "")[:32]
        ],
        "config": {"target": "celery", "parameters": {HOSTILE: HOSTILE}},
    }
    made = await platform.api.call("POST", "/api/v1/pipelines", PipelineView, body)
    execution = await platform.value(
        "insert into executions (pipeline_id, target, signal_id, signal, status, error, created_at, finished_at)"
        " values ($1, 'celery', $2, $3::text::jsonb, 'FAILED', $4::text::jsonb, tp_now(), tp_now())"
        " returning execution_id",
        made.pipeline_id,
        HOSTILE,
        json.dumps({"note": HOSTILE}),
        json.dumps({"code": HOSTILE, "message": HOSTILE}),
    )
    return str(made.pipeline_id), str(execution)


async def test_piped_results_are_not_changed(database_url: str, tmp_path: Path) -> None:
    async with Platform.start(database_url, tmp_path) as platform:
        await platform.deploy(DAG.replace("NOTE", "none"))
        await platform.emit("shop.in", [1])
        await platform.settled()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "traceplane.cli.main", "query", "select text from shop.out"),
            *("--format", "json"),
            env={**platform.environment, "TRACEPLANE_USER_TOKEN": platform.user_token},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert json.loads(out)["rows"] == [[HOSTILE]]


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.stem)
def test_commands_write_output_in_one_place_only(path: Path) -> None:
    if path.stem != "output":
        assert re.findall(r"click\.echo|click\.secho|\bprint\(|sys\.std(?:out|err)", path.read_text()) == []
