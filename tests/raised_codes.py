"""Every stable error code that the source tree can raise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from tests.docs_pages import SOURCE, name_of, page, rows
from traceplane import crash_points, errors
from traceplane.postgres.embedded.problems import PROBLEMS
from traceplane.wire.tasks import EmissionOutcome

CODE = re.compile(r"[a-z_]+\.[a-z_]+")
# What else is a dotted word: names of log events, spans, boundaries and groups are the first argument of these.
NOT_RAISED_BY = {
    "emit",
    "note",
    "span",
    "record_span",
    "crash_point",
    "GroupCommit",
    "error",
    "warning",
    "info",
    "exception",
}


def _tree(kind: type[Any]) -> Iterator[type[Any]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


CARRIERS = {kind.__name__ for kind in _tree(errors.TraceplaneError)} | {
    "EmitRefused",
    "Failure",
    "OperatorError",
    "SpecProblem",
    "TaskError",
    "UnusableOperator",
}


@cache
def codes() -> dict[str, str]:
    """Every stable error code of the source tree, and a file that has it."""
    found: dict[str, str] = {f"postgres.{name}": "postgres/embedded/problems.py" for name in PROBLEMS}
    outcomes = get_args(get_type_hints(EmissionOutcome)["outcome"])
    found |= {f"task.{outcome}": "worker/sandboxed_operators.py" for outcome in outcomes if outcome != "ok"}
    for path in SOURCE.rglob("*.sql"):
        for code in re.findall(r"'code', '([a-z_.]+)'", path.read_text()):
            found[code] = name_of(path)
    for path in SOURCE.rglob("*.py"):
        found |= dict.fromkeys(_codes_in(path), name_of(path))
    return found


def _codes_in(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    skipped: set[int] = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name in NOT_RAISED_BY and call.args:
            skipped.add(id(call.args[0]))
        elif path.name == "capability.py" and name == "_refused":
            yield f"token.{ast.literal_eval(call.args[0])}"
        elif name in CARRIERS:
            given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "code")]
            yield from (
                str(g.value) for g in given if isinstance(g, ast.Constant) and CODE.fullmatch(str(g.value))
            )
    words = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in skipped)
    for word in (str(node.value) for node in words):
        if CODE.fullmatch(word) and word.partition(".")[0] in _families() and word not in NOT_CODES:
            yield word


NOT_CODES = {
    *crash_points.ALL,
    "client.region",
    "dag.yaml",
    "postgres.log",
    "postgresql.conf",
    "service.name",
    "service.namespace",
    "spark.master",
    "worker.complete",
    "worker.settle",
    "task.attempt",
}


@cache
def _families() -> frozenset[str]:
    """The first words of the codes that are documented: `spec`, `token`, …"""
    documented = (name for name in rows(page("reference/errors.md")) if CODE.fullmatch(name))
    return frozenset(name.partition(".")[0] for name in documented)
