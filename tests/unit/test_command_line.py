"""How a command reports a usage error and a failure: one line with a code, the user's own frames."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

from traceplane.cli import (
    audit,
    deploys,
    effects,
    main,
    output,
    project,
    queries,
    secrets,
    tasks,
    whereabouts,
)
from traceplane.cli.failures import error_text, explained
from traceplane.cli.grammar import Noun
from traceplane.cli.main import cli
from traceplane.cli.output import ChangingLine, progress_bar, work_goes_on
from traceplane.cli.queries import table_lines
from traceplane.cli.scopes import NamedPartitions, parse_scopes
from traceplane.client import Client
from traceplane.errors import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    PlatformError,
    SpecInvalid,
    SpecProblem,
    TraceplaneError,
    UserError,
)
from traceplane.settings import Settings
from traceplane.wire.audit import AuditResponse
from traceplane.wire.control import ExplainResponse, TaskChanges
from traceplane.wire.deploys import (
    DeployRequest,
    DeployResponse,
    SourceBehindView,
    VersionsResponse,
    VersionView,
)
from traceplane.wire.events import EventList, EventView
from traceplane.wire.scalars import Scope

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def refused(*words: str) -> str:
    """The one line on stderr of a command that ends with exit code 2."""
    command = [sys.executable, "-m", "traceplane.cli.main", *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    return line


def test_ctrl_c_while_the_commands_are_imported_ends_without_a_traceback(tmp_path: Path) -> None:
    slow = "import time\nprint('importing', flush=True)\ntime.sleep(60)\n"
    (tmp_path / "click.py").write_text(slow)
    begins = tomllib.loads(PYPROJECT.read_text())["project"]["scripts"]["traceplane"].partition(":")[0]
    # As at a terminal, even if these tests run in the background, where shells let programs ignore the signal.
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{heeding}; from {begins} import main; main()", "status"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=60)
    assert (process.returncode, printed) == (-signal.SIGINT, "")


@pytest.mark.parametrize(
    ("words", "message", "help_of"),
    [
        (["emit", "shop.days", "1", "--kidn", "data"], "no such option '--kidn'", "traceplane emit"),
        (["emit", "shop.days"], "missing argument 'SCOPE...'", "traceplane emit"),
        (["tasks", "--limit", "few"], "invalid value for '--limit': 'few'", "traceplane tasks"),
        (["plan", "nowhere.yaml"], "invalid value for 'FILE': File 'nowhere.yaml'", "traceplane plan"),
        (["token", "issue", "user", "x"], "a user token needs --role", "traceplane token issue"),
        (
            ["token", "issue", "user", "x", "--role", "admin", "--org", "acme"],
            "only a worker",
            "traceplane token issue",
        ),
        (
            ["token", "issue", "worker", "x", "--org", "acme", "--all-orgs"],
            "choose either",
            "traceplane token issue",
        ),
        (["up", "--workers", "0"], "invalid value for '--workers': 0", "traceplane up"),
        (["up", "--workers", "-3"], "invalid value for '--workers': -3", "traceplane up"),
        (["--home", "", "status"], "invalid value for '--home': the path is empty", "traceplane"),
        (["datasets", ""], "invalid value for 'NAME': the name is empty", "traceplane dataset show"),
    ],
)
def test_a_usage_error_is_one_line_with_a_code(words: list[str], message: str, help_of: str) -> None:
    line = refused(*words)
    assert line.startswith(f"cli.usage: {message}")
    assert line.endswith(f"→ see `{help_of} --help`")


@pytest.mark.parametrize(
    ("words", "next_step"),
    [
        (["depoy"], "did you mean `traceplane deploy`?"),
        (["pipelines", "lst"], "did you mean `traceplane pipeline list`?"),
        (["task", "retyr"], "did you mean `traceplane task retry`?"),
        (
            ["delete", "shop"],
            "name what it is about, for example `traceplane dag delete` or `traceplane pipeline delete`",
        ),
        (["nothing-like-it"], "see `traceplane --help`"),
    ],
)
def test_a_command_that_does_not_exist_is_refused_with_one_that_does(
    words: list[str], next_step: str
) -> None:
    line = refused(*words)
    assert line.startswith("cli.usage: no such command '")
    assert line.endswith(f"→ {next_step}")


def tree(kind: type[TraceplaneError] = TraceplaneError) -> Iterator[type[TraceplaneError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == TraceplaneError.__module__:
            yield from tree(child)


def test_every_kind_of_error_ends_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = [kind for kind in tree() if kind is not SpecInvalid]
    assert len(kinds) > 10
    for kind in kinds:
        for own in (None, "ask Ada"):
            error = kind("some.code", "it is wrong", value=7, next_step=own)
            monkeypatch.setattr(main, "cli", raises(error))
            with pytest.raises(SystemExit) as end:
                main.main()
            assert end.value.code == (2 if issubclass(kind, UserError) else 1)
            assert (
                capsys.readouterr().err == f"some.code: it is wrong (value: '7') → {own or kind.otherwise}\n"
            )
    problem = SpecProblem(
        "spec.unknown_field", "unknown", "dag.yaml", 3, 5, suggestion="did you mean 'jobs'?"
    )
    monkeypatch.setattr(main, "cli", raises(SpecInvalid((problem, problem))))
    with pytest.raises(SystemExit):
        main.main()
    line = "dag.yaml:3:5: spec.unknown_field: unknown → did you mean 'jobs'?\n"
    assert capsys.readouterr().err == line * 2


def raises(error: TraceplaneError) -> Callable[..., None]:
    def cli(**_: object) -> None:
        raise error

    return cli


def resolved(*words: str) -> click.Command:
    """The command that these words run."""
    with cli.make_context("traceplane", list(words), resilient_parsing=True) as context:
        command: click.Command = cli
        rest = list(words)
        while rest and isinstance(command, click.Group):
            _, found, rest = command.resolve_command(context, rest)
            assert found is not None, words
            command = found
        return command


def test_short_names_and_plurals_run_the_same_commands() -> None:
    assert resolved("deploy") is resolved("dag", "deploy")
    assert resolved("dlq", "show") is resolved("dead-letter", "show")
    for noun in cli.commands.values():
        if not isinstance(noun, Noun):
            continue
        for verb in noun.commands:
            assert resolved(noun.plural, verb) is noun.commands[verb]
        if "list" in noun.commands:
            assert resolved(noun.plural) is noun.commands["list"]
            assert resolved(noun.plural, "--json") is noun.commands["list"]
    assert resolved("datasets", "shop.sales") is resolved("dataset", "show")
    assert set().union(*cli.short_names.values()) <= set(cli.aliases)


def test_help_shows_each_command_once_in_its_section() -> None:
    shown = CliRunner().invoke(cli, ["--help"]).output.partition("Short names:")[0]
    names = re.findall(r"^  (\S+)  ", shown[shown.index("Run:") :], re.MULTILINE)
    assert sorted(names) == sorted(cli.commands)


@pytest.mark.parametrize(
    ("text", "scopes"),
    [
        ("7", range(7, 8)),
        ("-9..-5", range(-9, -4)),
        ("3-9", [Scope(partition_key="3-9", start=3, end=9)]),
        ("2026-11-16", NamedPartitions("2026-11-16", "2026-11-16")),
        ("2026-11", NamedPartitions("2026-11", "2026-11")),
        ("2026-W47", NamedPartitions("2026-W47", "2026-W47")),
        ("2026-11-01..2026-11-16", NamedPartitions("2026-11-01", "2026-11-16")),
        ("2026-10-25T02+01:00", NamedPartitions("2026-10-25T02+01:00", "2026-10-25T02+01:00")),
        ("eu", NamedPartitions("eu", "eu")),
    ],
)
def test_a_scope_is_a_number_a_range_or_a_name(text: str, scopes: object) -> None:
    assert parse_scopes(text) == scopes


@pytest.mark.parametrize("text", ["", "..", "3..", "..3", "a b"])
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"cli\.bad_scope"):
        parse_scopes(text)


def test_a_scope_may_be_negative() -> None:
    assert refused("emit", "shop.days", "-9..-5", "-5..-9").startswith("cli.empty_range")


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("market", "market"),
        ("My Shop 2", "my_shop_2"),
        ("Été", "ete"),
        ("2026", "dag_2026"),
        ("日本", "dag"),
        ("con'quote", "con_quote"),
        ("-x", "x"),
        ("x" * 80, "x" * 63),
    ],
)
def test_a_project_may_be_in_a_folder_of_any_name(tmp_path: Path, folder: str, name: str) -> None:
    done = CliRunner().invoke(cli, ["init", "--", str(tmp_path / folder)], standalone_mode=False)
    assert done.exception is None
    assert f"\ndag: {name}\n" in (tmp_path / folder / "dag.yaml").read_text()
    command = done.stdout.splitlines()[-1].removeprefix("Next: ")
    assert shlex.split(command) == ["cd", str(tmp_path / folder), "&&", "traceplane", "dev"]


@pytest.mark.parametrize(
    ("installed", "warns"),
    [
        ({"url": "file:///home/me/clone", "dir_info": {}}, True),
        ({"url": "file:///srv/clone", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}, True),
        ({"url": "https://git.example/traceplane", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}, False),
        (None, False),
    ],
)
def test_a_project_says_that_only_this_machine_has_the_folder_of_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: dict[str, object] | None, warns: bool
) -> None:
    class Installed:
        def read_text(self, _: str) -> str | None:
            return None if installed is None else json.dumps(installed)

    monkeypatch.setattr(project, "distribution", lambda _: Installed())
    done = CliRunner().invoke(cli, ["init", str(tmp_path)], standalone_mode=False)
    readme = (tmp_path / "README.md").read_text()
    requirement = (tmp_path / "requirements.txt").read_text().splitlines()[1]
    words = f"requirements.txt has `{requirement}`, a folder that only this machine has"
    assert (words in done.stdout, words in readme) == (warns, warns)
    assert "ELSEWHERE" not in readme


def test_a_folder_with_a_project_is_named_by_a_few_of_its_files(tmp_path: Path) -> None:
    CliRunner().invoke(cli, ["init", str(tmp_path)], standalone_mode=False)
    done = CliRunner().invoke(cli, ["init", str(tmp_path)], standalone_mode=False)
    assert isinstance(done.exception, Conflict)
    number, _, names = str(done.exception.value).partition(" files: ")
    assert int(number) >= 8
    assert [Path(name).is_file() for name in names.split(", ")] == [True, True, True, False]


def test_a_project_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code").write_text("a file, where a folder is needed")
    done = CliRunner().invoke(cli, ["init", str(tmp_path)], standalone_mode=False)
    assert isinstance(done.exception, InvalidInput)
    assert (done.exception.code, done.exception.value) == ("init.unwritable", str(tmp_path / "code"))


TRACEBACK = """\
  File "/srv/home/code_bundles/{sha}/shop.py", line 7, in sales
    table = parquet.read_table(path)
            ^^^^^^^^^^^^^^^^^^^^^^^^
  File "/srv/venv/lib/python3.12/site-packages/pyarrow/parquet/core.py", line 1843, in read_table
    dataset = ParquetDataset(
  File "/usr/lib/python3.12/contextlib.py", line 81, in inner
    return func(*args, **kwds)
  File "/srv/home/code_bundles/{sha}/shop.py", line 12, in opened
    raise KeyError(path)
""".format(sha="0" * 64)


def test_a_traceback_shows_only_the_users_frames_unless_all_are_requested() -> None:
    error = {"code": "operator.raised", "message": "x", "type": "KeyError", "traceback": TRACEBACK}
    answer = ExplainResponse(uuid4(), "dead", "sales", [], dag="shop", error=error)
    short, full = "\n".join(explained(answer)), "\n".join(explained(answer, full=True))
    assert 'File "shop.py", line 7, in sales' in short
    assert 'File "shop.py", line 12, in opened' in short
    assert "… 2 frames of libraries; --full shows them" in short
    assert "pyarrow" not in short
    assert "contextlib" not in short
    assert "pyarrow/parquet/core.py" in full
    assert "--full" not in full


def show_progress(*lines: str) -> None:
    progress = ChangingLine()
    for line in lines:
        progress.show(line)
    progress.end()


def test_piped_progress_is_one_line_per_change(capsys: pytest.CaptureFixture[str]) -> None:
    show_progress("1 of 3", "1 of 3", "3 of 3")
    with progress_bar(3) as bar:
        bar.update(3)
    assert capsys.readouterr().out == "1 of 3\n3 of 3\n"


def test_progress_fits_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    show_progress("x" * 50, "done")
    first, last = capsys.readouterr().out.removesuffix("\n").removeprefix("\r").split("\r")
    assert (first, last) == ("x" * 18 + " ", "done".ljust(19))


def test_waiting_for_a_build_ends_when_tasks_are_dead_even_if_a_source_is_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind = (SourceBehindView("days", "shop.days", 31),)
    version = VersionView(2, "building", "now", dead=7, sources_behind=1, behind=behind)
    answers = iter([DeployResponse("shop", 2, True, True, ""), VersionsResponse("shop", [version])])
    monkeypatch.setattr(deploys, "deploy_request", lambda *_, **__: DeployRequest(""))
    monkeypatch.setattr(deploys, "call", lambda *_: next(answers))
    done = CliRunner().invoke(deploys.deploy, [__file__, "--wait"], obj=Settings())
    assert done.exit_code == 1
    for words in ("7 dead tasks keep", "days has yet to emit shop.days 31", "cutover shop --drop-missing"):
        assert words in done.stderr


@pytest.mark.parametrize("name", ["", "a b", "x" * 101, "-x", "a\nb"])
def test_a_token_needs_a_name_that_a_command_can_take(name: str) -> None:
    line = refused("token", "issue", "--role", "reader", "--", "user", name)
    assert line.startswith("token.bad_name")


def test_a_table_shows_columns_of_the_same_name_and_intervals() -> None:
    days = pa.array([1, 2])
    spans = pa.array([pa.MonthDayNano([14, 3, 3_600_500_000_000]), None], pa.month_day_nano_interval())
    table = pa.Table.from_arrays([days, days, spans], names=["day", "day", "span"])
    assert list(table_lines(table)) == [
        "day  day  span",
        "---  ---  --------------------------",
        "1    1    14 months 3 days 1:00:00.5",
        "2    2",
        "(2 rows)",
    ]


def test_a_list_of_tasks_names_the_class_of_an_exception() -> None:
    error = {"code": "operator.raised", "type": "RecursionError", "message": ""}
    assert error_text(error) == "operator.raised: RecursionError"
    assert error_text(error | {"message": "'x'"}) == "operator.raised: RecursionError: 'x'"
    assert error_text({"code": "task.timed_out", "message": "it took 3 s"}) == "task.timed_out: it took 3 s"


def test_events_say_who_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    at = "2026-11-19T21:02:43.704994+00:00"
    of_task = EventView(29, "shop.sales", "data", "7", at, task_id=uuid4(), dag="shop", job="sales")
    kept = EventView(28, "shop.sales#weekly.batches", "data", "7-13", at)
    events = EventList([of_task, kept, EventView(27, "shop.days", "data", "7", at)])
    monkeypatch.setattr(effects, "call", lambda *_: events)
    done = CliRunner().invoke(effects.list_, [], obj=Settings())
    assert done.stdout.splitlines() == [
        "29  2026-11-19 21:02:43 UTC  shop.sales 7  by shop/sales",
        "28  2026-11-19 21:02:43 UTC  shop.sales#weekly.batches 7-13  by the dispatcher",
        "27  2026-11-19 21:02:43 UTC  shop.days 7  by a source",
    ]


def test_times_are_for_people_except_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    deployed, active = "2026-11-19T21:02:43.704994+00:00", "2026-11-19T23:05:01+02:00"
    version = VersionView(1, "active", deployed, active)
    monkeypatch.setattr(deploys, "call", lambda *_: VersionsResponse("shop", [version]))
    done = CliRunner().invoke(deploys.versions, ["shop"], obj=Settings())
    assert done.stdout == "   1  active since 2026-11-19 21:05:01 UTC, deployed 2026-11-19 21:02:43 UTC\n"
    done = CliRunner().invoke(deploys.versions, ["shop", "--json"], obj=Settings())
    assert f'"created_at": "{deployed}"' in done.stdout


def test_a_retry_that_does_not_help_says_what_does(monkeypatch: pytest.MonkeyPatch) -> None:
    useless, useful = uuid4(), uuid4()
    answers = iter(
        [
            ExplainResponse(useless, "dead", "sales", [], next_step="Deploy a fix.", retry_helps=False),
            ExplainResponse(useful, "dead", "sales", [], next_step="Retry it.", retry_helps=True),
            TaskChanges({str(useless): "queued", str(useful): "queued"}, []),
        ]
    )
    monkeypatch.setattr(tasks, "call", lambda *_: next(answers))
    done = CliRunner().invoke(tasks.retry, [str(useless), str(useful)], obj=Settings())
    assert done.stdout.splitlines() == [f"{useless}  queued", f"{useful}  queued"]
    assert done.stderr == f"Warning: retrying {useless} does not help. Deploy a fix.\n"


def test_up_that_finds_its_port_in_use_leaves_no_folder(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "traceplane.cli.main", "up"],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env={**os.environ, "TRACEPLANE_HOME": "home", "TRACEPLANE_GATEWAY_PORT": str(port)},
        )
    assert str(port) in done.stderr
    assert "the setting gateway_port" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_client_and_the_command_line_say_alike_that_nothing_runs_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    monkeypatch.chdir(tmp_path)
    for name, value in {"GATEWAY_PORT": port, "USER_TOKEN": "x", "HOME": tmp_path / "home"}.items():
        monkeypatch.setenv(f"TRACEPLANE_{name}", str(value))
    done = CliRunner().invoke(cli, ["status"], standalone_mode=False)
    assert isinstance(done.exception, PlatformError)
    with pytest.raises(PlatformError) as failure:
        Client().whoami()
    for error in (done.exception, failure.value):
        assert (error.code, error.value) == ("service.unreachable", f"127.0.0.1:{port}: connection refused")
        assert str(error.next_step).startswith(
            f"no platform is running in {tmp_path / 'home'}: start it with"
        )
    with pytest.raises(PlatformError) as failure:
        Client(f"http://127.0.0.1:{port}").whoami()
    assert failure.value.next_step == "check that it is running; the call may be retried"


def test_deleting_an_unknown_dag_says_that_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise NotFound("dag.unknown", "there is no such DAG", value="nope")

    monkeypatch.setattr(deploys, "call", unknown)
    done = CliRunner().invoke(deploys.delete, ["nope"], obj=Settings())
    assert isinstance(done.exception, NotFound)


@pytest.mark.timeout(60)
def test_a_result_that_is_cut_off_by_sigterm_leaves_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from traceplane.cli.output import write_file\n"
        "def pieces():\n"
        "    yield b'first'\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(60)\n"
        f"write_file(Path({str(tmp_path / 'result.csv')!r}), pieces())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.terminate()
        assert process.wait(30) == 143
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_waiting_says_that_the_work_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), work_goes_on("the build", "traceplane versions shop"):
        raise KeyboardInterrupt
    assert capsys.readouterr().err.strip() == (
        "Stopped waiting; the build goes on. See `traceplane versions shop`."
    )


def test_an_empty_secret_is_refused_before_it_is_sent() -> None:
    done = CliRunner().invoke(secrets.set_, ["rpc"], obj=Settings(), input="\n")
    assert isinstance(done.exception, InvalidInput)
    assert done.exception.code == "secret.bad_value"


def test_lengths_of_time_and_names_are_checked_before_anything_is_sent() -> None:
    assert "a number with a unit, for example 30d" in refused(
        "member", "grant", "ada", "reader", "--lasts", "90"
    )
    for name in ("", "platform/"):
        assert refused("secret", "set", name).startswith("secret.bad_name")


def test_the_audit_log_can_be_asked_for_the_last_day(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, str]] = []

    def page(settings: Settings, query: dict[str, str]) -> AuditResponse:
        asked.append(query)
        return AuditResponse([])

    monkeypatch.setattr(audit, "_page", page)
    result = CliRunner().invoke(audit.audit, ["list", "--since", "1d"], obj=Settings())
    assert result.output == "no entries\n"
    ago = datetime.now(UTC) - datetime.fromisoformat(asked[0]["since"])
    assert timedelta(days=1) <= ago < timedelta(days=1, minutes=5)


def test_a_token_of_another_organization_than_the_setting_is_refused_with_both_names() -> None:
    with pytest.raises(Forbidden) as refused, whereabouts.explained(Settings(org="acme")):
        raise Forbidden("access.other_org", "the token is one of the organization default")
    assert (refused.value.code, refused.value.value) == ("cli.other_org", "acme")
    assert "default" in refused.value.message


def test_the_suffix_of_a_result_names_its_format_or_is_refused() -> None:
    for name, format_ in (
        ("rows.csv", "csv"),
        ("rows.PARQUET", "parquet"),
        ("rows", "table"),
        ("a.txt", "table"),
    ):
        assert queries._format_of(Path(name)) == format_
    assert queries._format_of(None) == "table"
    with pytest.raises(InvalidInput, match=r"rows\.xyz.*--format") as refused:
        queries._format_of(Path("rows.xyz"))
    assert refused.value.code == "cli.unknown_format"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_both_names_of_the_command_are_completed(shell: str) -> None:
    printed = CliRunner().invoke(main.cli, ["completion", shell]).output
    assert {"traceplane", "tp"} <= set(re.findall(r"\b(?:traceplane|tp)\b", printed))
