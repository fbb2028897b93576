"""What a process imports before it serves: people wait for commands, and recovery waits for processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

SLOW = {
    "aiohttp",
    "asyncpg",
    "cryptography",
    "duckdb",
    "exchange_calendars",
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
    "sqlglot",
    "yaml",
}


@pytest.mark.parametrize(
    ("process", "needs"),
    [
        ("cli", set()),
        ("worker", set()),
        ("dispatcher", {"asyncpg", "cryptography"}),
        ("gateway", {"asyncpg", "cryptography", "sqlglot", "yaml"}),
    ],
)
def test_a_process_starts_without_modules_that_only_some_work_needs(process: str, needs: set[str]) -> None:
    look = f"import sys, traceplane.cli.main, traceplane.{process}.main; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout
    assert SLOW & set(told.split()) == needs
