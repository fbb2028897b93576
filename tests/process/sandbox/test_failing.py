"""How an operator can fail, and how that is reported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.process.sandbox.attacks import AS_ROOT, CODE, attack, run, whatever_the_layers
from traceplane.sandbox.pool import Sandbox

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="operators are isolated on Linux only"),
    pytest.mark.asyncio(loop_scope="package"),
]


@whatever_the_layers
async def test_code_that_operators_cannot_read_is_named(sandbox: Sandbox, lake: Path) -> None:
    if not AS_ROOT:
        pytest.skip("needs root")
    (lake / "private").mkdir(mode=0o700)
    failed = await run(sandbox, "nothing", code_paths=(lake / "private",))
    assert failed.code == "sandbox.setup_failed"
    assert f"operators cannot read the code path {lake / 'private'}" in failed.message
    missing = await run(sandbox, "nothing", code_paths=(lake / "missing",))
    assert missing.code == "sandbox.setup_failed"
    assert str(lake / "missing") in missing.message


@whatever_the_layers
async def test_an_exception_is_reported_in_the_users_terms(sandbox: Sandbox) -> None:
    failed = await run(sandbox, "raises")
    error = failed.result.error
    assert error is not None
    assert (error.code, error.type, error.message) == (
        "operator.raised",
        "LookupError",
        "no such ticker: ACME",
    )
    assert error.file == str(CODE / "hostile_operators.py")
    assert error.line is not None
    assert "raise LookupError" in (CODE / "hostile_operators.py").read_text().splitlines()[error.line - 1]
    assert error.traceback is not None
    assert "in inner" in error.traceback
    assert "runner.py" not in error.traceback


@whatever_the_layers
@pytest.mark.parametrize(
    ("entrypoint", "code", "part"),
    [
        ("no_such_module:run", "operator.no_entrypoint", "no module 'no_such_module'"),
        ("hostile_operators:no_such_function", "operator.no_entrypoint", "no function 'no_such_function'"),
        ("hostile_operators:CHANNEL", "operator.no_entrypoint", "no function 'CHANNEL'"),
        ("hostile_operators:", "operator.no_entrypoint", "package.module:function"),
        ("broken.raises:run", "operator.import_failed", "not today"),
        ("broken.lacks:run", "operator.import_failed", "no_such_library"),
        ("broken.syntax:run", "operator.import_failed", "invalid syntax"),
        ("broken.leaves:run", "operator.exited", "sys.exit"),
    ],
)
async def test_an_entrypoint_that_cannot_be_loaded_says_why(
    sandbox: Sandbox, lake: Path, entrypoint: str, code: str, part: str
) -> None:
    package = lake / "code" / "broken"
    package.mkdir(parents=True, exist_ok=True)
    (package / "raises.py").write_text("raise ValueError('not today')\n")
    (package / "lacks.py").write_text("import no_such_library\n")
    (package / "syntax.py").write_text("def run(task ::\n")
    (package / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    failed = await run(sandbox, entrypoint, code_paths=(lake / "code", CODE))
    assert failed.code == code
    assert part in failed.message
    if code == "operator.import_failed":
        assert failed.result.error is not None
        assert failed.result.error.file == str(package / f"{entrypoint.split(':')[0].split('.')[1]}.py")
        assert failed.result.error.line == 1


@whatever_the_layers
@pytest.mark.parametrize(
    ("operator", "config", "code", "part"),
    [
        ("exit_politely", {"code": 0}, "operator.exited", "sys.exit(0)"),
        ("exit_politely", {"code": "sorry"}, "operator.exited", "sys.exit('sorry')"),
        ("exit_at_once", {"code": 0}, "operator.exited", "exit code 0, without a result"),
        ("exit_at_once", {"code": 7}, "operator.exited", "exit code 7"),
        ("abort", {}, "operator.crashed", "SIGABRT"),
        ("crash", {}, "operator.crashed", "SIGSEGV"),
        ("recurse", {}, "operator.raised", "maximum recursion depth"),
        ("recurse_without_limit", {}, "operator.crashed", "SIGSEGV"),
        ("close_everything", {}, "operator.exited", "without a result"),
        ("raises_unprintable", {}, "operator.raised", "could not be read"),
        (
            "writes_elsewhere",
            {},
            "operator.output_unknown",
            "no output 'not_declared'; the job declares rows",
        ),
        ("returns_nonsense", {}, "operator.result_invalid", "object cannot be written as rows"),
        ("returns_a_number_as_a_column", {}, "operator.result_invalid", "column 'day' is int, not a list"),
        ("takes_nothing", {}, "operator.wrong_parameters", "takes_nothing() -> 'None' cannot be called with"),
        ("unencodable_result", {}, "operator.result_invalid", "an event is invalid"),
        ("raises_strange_text", {}, "operator.raised", "\\0 and \\ud800"),
    ],
)
async def test_every_way_to_die_has_a_stable_code(
    sandbox: Sandbox, operator: str, config: dict[str, Any], code: str, part: str
) -> None:
    died = await attack(sandbox, operator, config=config)
    assert died.code == code
    assert part in died.message
    assert died.result.outputs == ()


@whatever_the_layers
async def test_a_crash_in_native_code_says_which_line_was_running(sandbox: Sandbox) -> None:
    crashed = await attack(sandbox, "crash")
    assert crashed.code == "operator.crashed"
    assert crashed.result.error is not None
    assert "usually a bug in a native library" in (crashed.result.error.hint or "")
    assert any("in crash" in line and "hostile_operators.py" in line for line in crashed.lines), crashed.lines
