"""Every code block of the docs is run by a test, or stands here with a reason.

A block is *run* if `RUN` names the test that does it, and that test reads the page. Code that is not run, and text,
needs a reason (`NOT_RUN`, `SHOWN`); all of it is checked as far as its language allows, here or in `test_docs`. New
pages with new blocks fail here until somebody has decided.
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

from tests.docs_pages import PAGES, ROOT, name_of
from traceplane.model import hook_keys
from traceplane.settings import PREFIX, Settings

COMMANDS = "tests/e2e/test_docs_commands.py"
RUN = {
    "README.md": {"bash yaml python": "tests/e2e/test_readme.py"},
    "docs/concepts/code.md": {"bash": COMMANDS},
    "docs/concepts/queries.md": {"bash python sql": COMMANDS},
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
    "docs/guides/web_ui.md": {"bash": COMMANDS},
    "docs/guides/webhooks.md": {"yaml": "tests/e2e/test_webhooks.py"},
    "docs/guides/when_jobs_run.md": {"bash yaml python": "tests/e2e/test_guides.py"},
    "docs/migration/airflow.md": {"bash yaml python": "tests/e2e/test_migration.py"},
    "docs/migration/celery.md": {"bash yaml python": "tests/e2e/test_migration.py"},
    "docs/migration/dagster.md": {"bash yaml python": "tests/e2e/test_migration.py"},
    "docs/operations/audit.md": {"bash": COMMANDS},
    "docs/operations/backup.md": {"bash": COMMANDS},
    "docs/operations/failures.md": {"bash": COMMANDS},
    "docs/operators/webhook_rows.md": {"yaml": "tests/e2e/test_webhooks.py"},
    "docs/reference/client.md": {"python": COMMANDS},
    "docs/tutorials/chain.md": {"bash yaml python": COMMANDS},
    "docs/tutorials/operator_package.md": {"bash python": "tests/e2e/test_operator_package_tutorial.py"},
    "docs/tutorials/signals.md": {"bash sh yaml python": "tests/e2e/test_signals_tutorial.py"},
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

NOT_RUN = {
    "CONTRIBUTING.md": {"bash": "sets up this checkout and runs all tests"},
    "docs/concepts/chain.md": {
        "console python": "names a node; tests/chain/test_extract.py calls the same functions"
    },
    "docs/concepts/pipelines.md": {"bash python": "tests/e2e/test_pipelines.py makes the same calls"},
    "docs/concepts/sandbox.md": {"python": "a function on datasets that it does not define"},
    "docs/concepts/spark.md": {"python": "the signature of a function"},
    "docs/concepts/tokens.md": {
        "bash": "organizations that it does not make; tests/e2e/test_workers_of_organizations.py"
    },
    "docs/concepts/trigger.md": {"bash python": "needs Kafka; tests/trigger runs it"},
    "docs/guides/alerts.md": {"bash": "ids of alerts; tests/postgres/test_alert_api.py makes the same calls"},
    "docs/guides/channels.md": {
        "sh": "the address of a team; tests/postgres/test_channels.py makes the same calls"
    },
    "docs/guides/operator_packages.md": {
        "python": "parts of examples/operator_package, which has tests of its own"
    },
    "docs/guides/packages.md": {
        "python": "a package that an index has to have; tests/e2e/test_job_packages.py"
    },
    "docs/guides/reading_from_spark.md": {
        "python": "names a node and a gateway; tests/spark reads both sources"
    },
    "docs/guides/sign_in.md": {
        "bash": "names identity providers; tests/chaos/test_keycloak.py signs in at one"
    },
    "docs/guides/spark_cluster.md": {"bash": "downloads jars; tests/spark/test_cluster_on_s3.py"},
    "docs/guides/spark_cluster_managers.md": {"bash": "needs a cluster of Kubernetes or YARN"},
    "docs/guides/testing.md": {"sh": "installs from PyPI"},
    "docs/guides/webhooks.md": {"bash": "the same calls are in tests/e2e/test_webhooks.py, on other ports"},
    "docs/operations/celery.md": {
        "python": "needs Redis; tests/trigger_edge/test_celery.py runs such a worker"
    },
    "docs/operations/runbooks/pipelines_not_triggered.md": {"bash": "needs Kafka; tests/trigger runs it"},
    "docs/operations/tls.md": {"bash": "makes certificates; tests/certificates.py makes the like"},
    "docs/operations/wake_queues.md": {"sh": "needs an account of AWS"},
    "docs/operators/query.md": {"bash": "needs Spark; tests/query has such tasks"},
    "docs/reference/dag.md": {"bash": "tests/e2e/test_required_workers.py starts such workers"},
    "examples/chain/README.md": {"console": "the demo does the same, step by step: tests/e2e/test_demo.py"},
    "examples/operator_package/README.md": {"sh": "tests/e2e/test_operator_package.py installs it"},
    "examples/signals/README.md": {"console": "starts Spark; the demo runs such a DAG"},
}
"""Code that no test runs as it is written, with the reason and what is tested instead. Its commands, options and
imports are checked."""

CODE = {"bash", "sh", "console", "python"}
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


def words_of(table: dict[str, dict[str, str]]) -> set[tuple[str, str]]:
    return {(page, word) for page, entries in table.items() for words in entries for word in words.split()}


def test_every_block_is_run_or_stands_here_with_a_reason() -> None:
    decided = words_of(RUN) | words_of(SHOWN) | words_of(NOT_RUN)
    there = {(block.page, block.language) for block in blocks()}
    undecided = {
        (page, language) for page, language in there - decided if language in CODE or language not in CHECKED
    }
    assert undecided == set(), "run these in a test (RUN), or say why not (NOT_RUN, SHOWN)"
    assert decided - there == set(), "these are gone"
    assert words_of(RUN) & words_of(NOT_RUN) == set()


def test_what_is_tested_instead_exists() -> None:
    for reasons in NOT_RUN.values():
        for reason in reasons.values():
            for path in re.findall(r"tests/[\w/]+(?:\.py)?", reason):
                assert (ROOT / path).exists(), path


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
