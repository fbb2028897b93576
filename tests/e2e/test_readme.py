"""The README's quick start, executed as it is written there."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tests.terminal import Terminal, blocks

README = (Path(__file__).parents[2] / "README.md").read_text()
QUICK_START = README.partition("## Quick start")[2].partition("\n## ")[0]


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    (tmp_path / "code").mkdir()
    (dag,), (operators,) = blocks(QUICK_START, "yaml"), blocks(QUICK_START, "python")
    (tmp_path / "dag.yaml").write_text(dag)
    (tmp_path / "code/operators.py").write_text(operators)
    return Terminal(tmp_path)


@pytest.mark.timeout(900)
def test_the_quick_start_does_what_the_readme_says(terminal: Terminal) -> None:
    install, up, deploy, mend = blocks(QUICK_START, "bash")
    assert install == "pip install .\n"
    process = terminal.start(up.strip())
    try:
        terminal.until("traceplane status")
        assert "Deployed shop version 1, which serves." in terminal.run(deploy)
        status = terminal.until("traceplane status", "no unfinished tasks", "shop.sales: 13 commits")
        assert "shop.weekly: 1 commit," in status

        said = terminal.run(mend)
        assert "dead  shop/sales  3  attempt 2/2  operator.raised: ValueError: the till was broken" in said
        assert "It is dead after 2 attempts" in said
        assert "Deployed shop version 2, which is being built." in said
        assert "version 2 is active" in said
        terminal.until("traceplane status", "no unfinished tasks", "14 commits", "shop.weekly: 2 commits")
        assert totals(terminal.folder) == {0: 91, 7: 140}
        assert "Version 1 of shop serves, in place of 2." in terminal.run(
            "traceplane rollback shop --drop-missing"
        )
        assert "shop.weekly: 1 commit," in terminal.run("traceplane status")
        terminal.run("traceplane rollback shop --to 2")

        assert "0 accepted, 14 already accepted before" in terminal.run("traceplane emit shop.days 0..13")
        assert "no changes; version 2" in terminal.run("traceplane deploy dag.yaml")
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(90)
    assert code == 0, terminal.log()


def totals(folder: Path) -> dict[int, int]:
    """Every row that has a total, by its first day."""
    tables = [parquet.read_table(path) for path in (folder / ".traceplane/objects").rglob("*.parquet")]
    rows = [row for table in tables for row in table.to_pylist()]
    return {row["first_day"]: row["total"] for row in rows if "total" in row}
