"""The docs name what the code has: a setting, command, endpoint, metric or error code that is missing fails here."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import click
import pytest

from tests.docs_pages import DOCS, PAGES, ROOT, SOURCE, blocks, name_of, page, rows, sections
from tests.raised_codes import CODE, NOT_CODES, codes
from traceplane import crash_points, telemetry
from traceplane.cli.main import cli
from traceplane.decoding.decoder_pool import Decoders
from traceplane.dispatcher.api import InternalApi
from traceplane.dispatcher.leases.service import Leases
from traceplane.gateway.api import PublicApi
from traceplane.http_service.app import App
from traceplane.model import hook_keys
from traceplane.model.runtimes import DEFAULT_RUNTIMES, Runtime, RuntimeLimits
from traceplane.operators import catalog
from traceplane.operators import config as operator_config
from traceplane.registry.spec import dag_file
from traceplane.settings import PREFIX, Settings


@pytest.mark.parametrize("path", sorted(DOCS.glob("guides/*.md")), ids=name_of)
def test_a_guide_says_what_to_install_beside_traceplane(path: Path) -> None:
    text = path.read_text()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    installed = {re.split(r"[\[<>=]", requirement)[0].lower() for requirement in declared}
    distributions = packages_distributions()
    own = {"traceplane", *re.findall(r"^# (?:code/)?(\w+)\.py$", text, re.MULTILINE)}
    for name in (
        {n for code in blocks(text, "python") for n in _imported(code)} - own - sys.stdlib_module_names
    ):
        if not installed & {d.lower() for d in distributions.get(name, ())}:
            assert f"pip install {name}" in text


def _imported(code: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_every_row_of_a_table_has_a_cell_for_each_column() -> None:
    short = []
    for path in PAGES:
        columns = 0
        for number, line in enumerate(path.read_text().splitlines(), 1):
            cells = len(re.split(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            columns = columns or cells
            if cells not in (0, columns):
                short.append(f"{name_of(path)}:{number}")
            columns = columns if cells else 0
    assert short == []


# --- settings ---------------------------------------------------------------------------------------


def shown(field: Field[Any]) -> str:
    """A default as the docs write it."""
    default = field.default
    if default is MISSING:
        return ""
    if default is None or default == ():
        return "unset"
    if isinstance(default, frozenset | tuple):
        return ", ".join(f"`{item}`" for item in sorted(default))
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


@pytest.mark.parametrize("field", fields(Settings), ids=lambda f: f.name)
def test_every_setting_is_documented_with_its_variable_and_default(field: Field[Any]) -> None:
    cells = rows(page("reference/settings.md"))[field.name]
    if field.name == "hook_keys":
        assert cells[1] == f"`{hook_keys.PREFIX}…`"
        return
    if field.name == "runtimes":
        assert set(re.findall(r"`(\w+)`", cells[2])) == set(DEFAULT_RUNTIMES)
        return
    assert cells[1] == f"`{PREFIX}{field.name.upper()}`"
    assert cells[2] == shown(field)


@pytest.mark.parametrize("field", [*fields(Runtime), *fields(RuntimeLimits)], ids=lambda f: f.name)
def test_every_key_of_a_runtime_is_documented(field: Field[Any]) -> None:
    cells = rows(page("reference/settings.md"))[field.name]
    if field.default is not MISSING:
        assert cells[1] == shown(field)


def test_no_setting_is_documented_that_does_not_exist() -> None:
    documented = set(re.findall(rf"`({PREFIX}\w+)`", "".join(p.read_text() for p in PAGES)))
    known = {f"{PREFIX}{field.name.upper()}" for field in fields(Settings)} | {f"{PREFIX}CONFIG"}
    assert {name for name in documented - known if not name.startswith(hook_keys.PREFIX)} == set()


# --- the command line -------------------------------------------------------------------------------


def commands(
    group: click.Group = cli, path: tuple[str, ...] = ("traceplane",)
) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


@pytest.mark.parametrize(
    ("name", "command"), [*commands()], ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_command_is_documented_with_its_options(name: str, command: click.Command) -> None:
    section = sections(page("reference/cli.md"))[name]
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            cells = rows(section)[_usage(parameter)]
            default = parameter.default
            if default not in (None, False, "", ()) and "UNSET" not in repr(default).upper():
                assert str(default) in cells[1], f"{name} {parameter.opts[0]}: the default is {default}"
        else:
            assert parameter.make_metavar(click.Context(command)) in section


def _usage(option: click.Option) -> str:
    long = max(option.opts, key=len)
    if option.is_flag:
        return long
    return f"{long} {option.make_metavar(click.Context(cli))}".replace("|", "\\|")


def test_the_options_of_the_command_itself_are_documented() -> None:
    documented = page("reference/cli.md")
    for option in cli.params:
        assert f"`{_usage(option)}`" in documented  # type: ignore[arg-type]


def test_no_command_is_documented_that_does_not_exist() -> None:
    documented = {title for title in sections(page("reference/cli.md")) if title.startswith("traceplane ")}
    assert documented == {name for name, _ in commands()}


def called() -> Iterator[tuple[str, str]]:
    """Every call of the command line in a shell block, the ones inside `$(…)` too."""
    for path in PAGES:
        for block in blocks(path.read_text(), "bash", "sh"):
            for line in block.splitlines():
                for call in re.findall(r"(?:^|\$\()((?:traceplane|tp) [^)|#]*)", line):
                    yield name_of(path), re.sub(r"\"?\$\(.*", "", call).strip()


@pytest.mark.parametrize(("where", "line"), [*called()])
def test_shell_blocks_name_commands_and_options_that_exist(where: str, line: str) -> None:
    command: click.Command = cli
    known = {opt for parameter in cli.params for opt in parameter.opts} | {"-h", "--help"}
    context, words = click.Context(cli, info_name="traceplane"), shlex.split(line)[1:]
    while words:
        if words[0].startswith("-"):
            assert words[0].partition("=")[0] in known, f"{where}: {line}"
        elif isinstance(command, click.Group):
            _, found, words = command.resolve_command(context, words)
            assert found is not None, f"{where}: {line}"
            command = found
            known |= {o for parameter in command.params for o in (*parameter.opts, *parameter.secondary_opts)}
            continue
        words = words[1:]


# --- operators --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", catalog.BUILT_IN)
def test_every_operator_has_a_page_with_every_field_of_its_config(name: str) -> None:
    text, operator = page(f"operators/{name}.md"), catalog.find(name)
    assert operator is not None
    described = operator_config.fields(operator)
    documented = rows(sections(text, level=2)["Config"]) if described else {}
    assert list(documented) == [field.name for field in described]
    for field in described:
        default = "required" if field.default is None else f"`{field.default}`"
        assert documented[field.name][1:] == [default, field.explanation]


def test_no_operator_is_documented_that_does_not_exist() -> None:
    assert {path.stem for path in (DOCS / "operators").glob("*.md")} == set(catalog.BUILT_IN)


# --- the HTTP APIs ----------------------------------------------------------------------------------


def internal_api() -> App:
    leases = Leases(
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        work_created=lambda: None,
        slot_freed=lambda: None,
        decoders=Decoders(),
        staged=Path(),
    )
    api = InternalApi(database=None, authority=None, leases=leases, local_queue=None, queues={})  # type: ignore[arg-type]
    return api.app(max_body_bytes=1024)


def public_api() -> App:
    return PublicApi(database=None, orgs=None, settings=Settings()).app()  # type: ignore[arg-type]


async def openapi(app: App) -> dict[str, Any]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "raw_path": b"/openapi.json",
        "query_string": b"",
        "headers": [],
    }
    await app(scope, receive, send)
    document: dict[str, Any] = json.loads(sent[1]["body"])
    return document


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


@pytest.mark.parametrize("make", [internal_api, public_api])
async def test_every_endpoint_is_documented_with_its_principal_and_types(make: Any) -> None:
    documented = sections(page("reference/api.md"))
    for name, operation in operations(await openapi(make())):
        section = documented[name]
        principal = operation.get("x-traceplane-role", operation["x-traceplane-principal"])
        assert f"Principal: {principal}" in section, name
        for parameter in operation["parameters"]:
            assert f"`{parameter['name']}`" in section, f"{name}: {parameter['name']}"
        bodies = [operation.get("requestBody", {}), operation["responses"]["200"]]
        for reference in re.findall(r"#/components/schemas/(\w+)", json.dumps(bodies)):
            assert f"`{reference}`" in section, f"{name}: {reference}"


@pytest.mark.parametrize("make", [internal_api, public_api])
async def test_every_field_of_every_type_is_documented(make: Any) -> None:
    documented = sections(page("reference/api.md"), level=4)
    for name, schema in (await openapi(make()))["components"]["schemas"].items():
        if name.endswith("Query"):
            continue  # documented as parameters of its endpoint
        assert set(rows(documented[name])) >= set(schema.get("properties", ())), name


async def test_no_endpoint_is_documented_that_does_not_exist() -> None:
    known = {name for make in (internal_api, public_api) for name, _ in operations(await openapi(make()))}
    documented = {
        t for t in sections(page("reference/api.md")) if re.match(r"(GET|POST|PUT|PATCH|DELETE) /", t)
    }
    assert documented == known | {"GET /openapi.json"}


async def test_the_public_api_has_one_prefix() -> None:
    paths = (await openapi(public_api()))["paths"]
    others = {"/healthz", "/readyz", "/hooks/{org}/{path}"}
    prefixes = ("/api/v1/", "/auth/", "/iceberg/v1/")  # the last one's paths are Iceberg's
    assert {path for path in paths if not path.startswith(prefixes)} == others
    folders = (ROOT / name for name in ("src", "tests", "docs", "examples", "bench"))
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".md")]
    files = [path for path in files if ".venvs" not in path.parts]  # the benchmark's peers
    # OpenTelemetry's collectors and OpenLineage's receivers have paths of their own.
    assert [
        str(p)
        for p in files
        if re.search(r"(?<!/api)(?<!/iceberg)/v1/(?!traces|metrics|lineage)\w", p.read_text())
    ] == []


# --- metrics, crash points, dependencies ------------------------------------------------------------


@pytest.mark.parametrize("metric", telemetry.METRICS, ids=lambda m: m.name)
def test_every_metric_is_documented(metric: telemetry.Metric) -> None:
    documented = rows(sections(page("operations/telemetry.md"), level=2)["Metrics"])
    assert documented[metric.name][1] == metric.kind


def _log_events() -> Iterator[str]:
    """The names of log events in calls; those that a function is passed are in the calls of that function."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            if ast.unparse(node.func) in ("telemetry.emit", "emit", "note"):
                yield ast.unparse(node.args[0])


def test_every_log_event_is_documented_and_no_other_one() -> None:
    documented = set(rows(_log_event_tables()))
    names = set(_log_events())
    written = {ast.literal_eval(name) for name in names if re.fullmatch(r"'[^']+'", name)}
    assert len(written) > 100
    # Made at run time, and passed on by `note`.
    assert names - {repr(name) for name in written} == {
        "f'{name}.error'", "f'{self.name}.pass'", "event"
    }  # fmt: skip
    assert written | {"<loop>.error", "<loop>.pass"} == documented


def _log_event_tables() -> str:
    """Only the first cells: others name fields."""
    text = sections(page("operations/telemetry.md"), level=2)["Log events"]
    return "\n".join(re.findall(r"^\| `[^`]+` \|", text, re.MULTILINE))


def test_every_crash_point_is_documented() -> None:
    documented = rows(sections(page("architecture.md"), level=2)["Boundaries"])
    assert set(documented) >= {*crash_points.TRANSACTIONS, *crash_points.STEPS}
    assert set(documented) <= {*crash_points.TRANSACTIONS, *crash_points.STEPS}


def test_every_direct_dependency_is_documented_with_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    titles = {
        "At run time": project["project"]["dependencies"],
        "Extra aws": project["project"]["optional-dependencies"]["aws"],
        "Extra celery": project["project"]["optional-dependencies"]["celery"],
        "Extra trigger": project["project"]["optional-dependencies"]["trigger"],
        "For development": project["dependency-groups"]["dev"],
    }
    documented = sections(page("dependencies.md"), level=2)
    for title, wanted in titles.items():
        names = {re.match(r"[\w-]+", requirement).group() for requirement in wanted}  # type: ignore[union-attr]
        assert set(rows(documented[title])) == names


# --- error codes ------------------------------------------------------------------------------------


def test_codes_built_at_run_time_are_listed_here() -> None:
    """`codes` follows these three; another f-string that makes a code has to be added to it."""
    found = {
        (path.name, node.values[0].value)
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant)
        if re.fullmatch(r"[a-z_]+\.", str(node.values[0].value))
    }
    assert found == {
        ("problems.py", "postgres."),
        ("capability.py", "token."),
        ("sandboxed_operators.py", "task."),
    }


def test_every_error_code_is_documented() -> None:
    documented = {name for name in rows(page("reference/errors.md")) if CODE.fullmatch(name)}
    missing = {code: where for code, where in codes().items() if code not in documented}
    assert missing == {}, "add these to docs/reference/errors.md"


def test_no_error_code_is_documented_that_does_not_exist() -> None:
    documented = {name for name in rows(page("reference/errors.md")) if CODE.fullmatch(name)}
    assert documented - set(codes()) == set()


@pytest.mark.parametrize("name", ["concepts/tokens.md", "operations/postgres.md", "reference/dag.md"])
def test_codes_in_other_pages_exist_too(name: str) -> None:
    # `task` and `worker` are also families of log events.
    families = {code.partition(".")[0] for code in codes()} - {"task", "worker"}
    named = {word for word in rows(page(name)) if CODE.fullmatch(word) and word.partition(".")[0] in families}
    files = {word for word in named if word in NOT_CODES or word.endswith((".log", ".json", ".conf"))}
    assert named - files - set(codes()) == set()


# --- examples and links -----------------------------------------------------------------------------


def dags() -> Iterator[tuple[str, str, frozenset[str]]]:
    """With the runtimes that they may use: those of a settings file on the same page too."""
    for path in PAGES:
        files = [tomllib.loads(block) for block in blocks(path.read_text(), "toml")]
        runtimes = {name for file in files for name in file.get("runtimes", ())}
        for block in blocks(path.read_text(), "yaml"):
            if re.search(r"^dag:", block, re.M):
                yield name_of(path), block, frozenset(DEFAULT_RUNTIMES) | runtimes


@pytest.mark.parametrize(("where", "text", "runtimes"), [*dags()])
def test_dags_in_the_docs_parse(where: str, text: str, runtimes: frozenset[str]) -> None:
    assert dag_file.parse(text, where, known_runtimes=runtimes).jobs


@pytest.mark.parametrize("text", [b for p in PAGES for b in blocks(p.read_text(), "toml")])
def test_settings_files_in_the_docs_are_toml(text: str) -> None:
    assert tomllib.loads(text)


def links() -> Iterator[tuple[str, str]]:
    for path in PAGES:
        prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", path.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", prose):
            if not re.match(r"[a-z]+:", target):
                yield name_of(path), target


@pytest.mark.parametrize(("where", "target"), sorted(set(links())))
def test_links_are_not_dead(where: str, target: str) -> None:
    file, _, anchor = target.partition("#")
    path = (ROOT / where).parent / file if file else ROOT / where
    assert path.exists(), f"{where} links to {target}"
    if anchor:
        assert anchor in {_anchor(title) for title in re.findall(r"^#+ +(.*)$", path.read_text(), re.M)}


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_every_page_is_reachable_from_the_index() -> None:
    seen: set[Path] = set()
    waiting = [DOCS / "index.md"]
    while waiting:
        current = waiting.pop()
        if current in seen or not current.exists() or current.suffix != ".md":
            continue
        seen.add(current)
        waiting += [
            (current.parent / target.partition("#")[0]).resolve()
            for where, target in links()
            if where == name_of(current) and not target.startswith("#")
        ]
    assert {name_of(p) for p in DOCS.rglob("*.md")} - {name_of(p) for p in seen} == set()
