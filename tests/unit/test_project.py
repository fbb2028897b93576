"""The project that `traceplane init` writes is the one that the guide shows; `tests/e2e/test_dev.py` runs it."""

from __future__ import annotations

from pathlib import Path

from tests.terminal import blocks

ROOT = Path(__file__).parents[2]


def test_the_guide_shows_the_test_of_a_new_project() -> None:
    (shown,) = blocks((ROOT / "docs/guides/testing_dags.md").read_text(), "python")
    written = (ROOT / "src/traceplane/project/tests/test_dag.py").read_text().replace("PROJECT", "market")
    assert shown.removeprefix("# tests/test_dag.py\n") in written
