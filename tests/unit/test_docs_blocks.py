"""Every code block of the docs is run, or checked as far as it goes, or stands here with a reason.

A block is *run* if `RUN` names the test that does it, and that test reads the page. Otherwise its language decides
what is checked, here or in `test_docs`; a language without a check needs a line in `SHOWN`. New pages with new blocks
fail here until somebody has decided.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import tomllib
from typing import NamedTuple

import pytest
import sqlglot
import yaml

from tests.docs_pages import DOCS, PAGES, ROOT, name_of
from tests.docs_pages import blocks as blocks_in
from traceplane.model import hook_keys
from traceplane.settings import PREFIX, Settings

RUN = {
    "README.md": {"bash yaml python": "tests/e2e/test_readme.py"},
    "docs/guides/alert_webhooks.md": {"json python": "tests/delivery/test_webhook.py"},
    "docs/guides/channels.md": {"yaml": "tests/postgres/test_channels.py"},
    "docs/guides/data_in.md": {"bash yaml python": "tests/e2e/test_guides.py"},
    "docs/guides/files.md": {"bash yaml python": "tests/e2e/test_guides.py"},
    "docs/guides/iceberg.md": {"python sql": "tests/iceberg/test_engines.py"},
    "docs/guides/lambda.md": {"toml python yaml": "tests/e2e/test_lambda.py"},
    "docs/guides/people.md": {"bash": "tests/e2e/test_guides.py"},
    "docs/guides/rights_and_personal_data.md": {"bash yaml python": "tests/e2e/test_guides.py"},
    "docs/guides/schedules.md": {"bash yaml python": "tests/e2e/test_guides.py"},
    "docs/guides/scopes_and_dates.md": {"bash yaml python": "tests/e2e/test_guides.py"},
    "docs/guides/secrets.md": {"bash yaml python": "tests/e2e/test_guides.py"},
    "docs/guides/testing.md": {"python": "tests/e2e/test_guides.py"},
    "docs/guides/testing_dags.md": {"python": "tests/unit/test_project.py"},
    "docs/guides/webhooks.md": {"yaml": "tests/e2e/test_webhooks.py"},
    "docs/guides/when_jobs_run.md": {"bash yaml python": "tests/e2e/test_guides.py"},
    "docs/migration/airflow.md": {"bash yaml python": "tests/e2e/test_migration.py"},
    "docs/migration/celery.md": {"bash yaml python": "tests/e2e/test_migration.py"},
    "docs/migration/dagster.md": {"bash yaml python": "tests/e2e/test_migration.py"},
    "docs/operators/webhook_rows.md": {"yaml": "tests/e2e/test_webhooks.py"},
}
"""By page and languages, the test that runs the blocks."""

SHOWN = {
    "README.md": {"text": "what the demo prints, shortened"},
    "docs/concepts/pipelines.md": {"text": "a drawing"},
    "docs/concepts/sandbox.md": {"text": "a drawing"},
    "docs/concepts/tokens.md": {"text": "the form of a token"},
    "docs/concepts/trigger.md": {"text": "a drawing"},
    "docs/guides/data_in.md": {"text": "what a command prints"},
    "docs/guides/spark_cluster.md": {"text": "a policy with places to fill in"},
    "docs/operations/celery.md": {"text": "a drawing"},
    "docs/reference/cli.md": {"text": "the grammar of arguments"},
    "examples/signals/README.md": {"text": "a drawing"},
}

CHECKED = {"bash", "sh", "console", "yaml", "toml", "json", "sql", "ini", "python"}
"""Commands and options of shell blocks exist, and DAGs parse: `test_docs`. The others are checked below."""


class Block(NamedTuple):
    page: str
    language: str
    text: str


def blocks() -> list[Block]:
    return [
        Block(name_of(path), language or "text", body)
        for path in (*PAGES, *sorted(ROOT.glob("examples/*/README.md")))
        for language, body in re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", path.read_text(), re.M | re.S)
    ]


def of(*languages: str) -> list[object]:
    chosen = [block for block in blocks() if block.language in languages]
    return [pytest.param(block, id=f"{block.page}-{number}") for number, block in enumerate(chosen)]


def test_every_block_is_run_or_checked_or_shown_with_a_reason() -> None:
    run = {(page, word) for page, tests in RUN.items() for words in tests for word in words.split()}
    covered = {
        *run,
        *((page, language) for page, reasons in SHOWN.items() for language in reasons),
    }
    open_ = {
        (b.page, b.language)
        for b in blocks()
        if b.language not in CHECKED and (b.page, b.language) not in covered
    }
    assert open_ == set(), "run these in a test (RUN), or say why not (SHOWN)"
    there = {(block.page, block.language) for block in blocks()}
    assert covered - there == set(), "these are gone"


@pytest.mark.parametrize(("page", "tests"), RUN.items(), ids=list(RUN))
def test_what_is_said_to_run_a_page_reads_it(page: str, tests: dict[str, str]) -> None:
    for test in tests.values():
        text = (ROOT / test).read_text()
        stem = page.removesuffix(".md").rpartition("/")[2]
        assert re.search(rf"\b{stem}\b", text), f"{test} does not read {page}"
        assert "blocks(" in text or "write_files(" in text


@pytest.mark.parametrize("block", of("json"))
def test_json_in_the_docs_is_json(block: Block) -> None:
    without_dots = re.sub(r"…|\.\.\.", "", block.text)
    for piece in (block.text, without_dots, *block.text.splitlines()):
        try:
            json.loads(piece)
        except ValueError:
            continue
        return
    pytest.fail(f"{block.page}: {block.text}")


@pytest.mark.parametrize("block", of("yaml"))
def test_yaml_in_the_docs_is_yaml(block: Block) -> None:
    assert yaml.safe_load(block.text)


@pytest.mark.parametrize("block", of("toml"))
def test_settings_files_name_settings_that_exist(block: Block) -> None:
    keys = set(tomllib.loads(block.text))
    if block.page == "docs/guides/operator_packages.md":  # a pyproject.toml
        assert keys <= {"project", "build-system", "tool"}
        return
    assert keys - set(Settings.__dataclass_fields__) == set()


@pytest.mark.parametrize("block", of("bash", "sh", "console"))
def test_variables_in_shell_blocks_are_settings(block: Block) -> None:
    others = {"TRACEPLANE_CONFIG", "TRACEPLANE_UI_VERBOSE"}
    for name in set(re.findall(rf"\b{PREFIX}[A-Z_]+\b", block.text)) - others:
        known = name.removeprefix(PREFIX).lower() in Settings.__dataclass_fields__
        assert known or name.startswith(hook_keys.PREFIX), name


@pytest.mark.parametrize("block", of("sql"))
def test_sql_in_the_docs_parses(block: Block) -> None:
    if "sql" in " ".join(RUN.get(block.page, ())):
        return  # the engine itself has it
    dialect = "postgres" if block.page.startswith("docs/operations/") else "duckdb"
    assert sqlglot.parse(block.text, dialect=dialect)


@pytest.mark.parametrize("block", of("python"))
def test_python_in_the_docs_compiles_and_imports_what_there_is(block: Block) -> None:
    own = {match[1] for match in re.finditer(r"^# (?:\w+/)*(\w+)\.py$", _all(block.page), re.M)}
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in (
            "traceplane",
            "pyspark",
        ):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name) or alias.name in own, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "traceplane":
                    importlib.import_module(alias.name)


def _all(page: str) -> str:
    return (ROOT / page).read_text()


def test_the_share_of_blocks_that_are_run_does_not_shrink() -> None:
    run = {(page, word) for page, tests in RUN.items() for words in tests for word in words.split()}
    commands = [block for block in blocks() if block.language in ("bash", "sh", "console", "python", "yaml")]
    executed = [block for block in commands if (block.page, block.language) in run]
    assert len(executed) / len(commands) > 0.5
    assert blocks_in((DOCS / "guides/people.md").read_text(), "bash")
