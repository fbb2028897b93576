"""The operator, tested as a function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from traceplane_quality.split import run

from traceplane.sdk import Cursor, OperatorError
from traceplane.testing import operator_task

ROWS = [
    {"sensor": "a", "celsius": 20.5},
    {"sensor": None, "celsius": 99.0},
    {"sensor": "b", "celsius": 99.0},
    {"sensor": "c", "celsius": None},
]
RULES = {"required": ["sensor"], "bounds": {"celsius": {"most": 60}}}


def split(folder: Path, **config: Any) -> tuple[list[Any], list[Any]]:
    outputs = ("accepted", "rejected")
    task = operator_task(
        folder, scope=Cursor(1), inputs={"readings": ROWS}, outputs=outputs, config={**RULES, **config}
    )
    run(task)
    accepted, rejected = (parquet.read_table(task.outputs[name].folder).to_pylist() for name in outputs)
    return accepted, rejected


@pytest.mark.parametrize("chunk_rows", [1, 3, 1000])
def test_rows_that_break_a_rule_are_kept_apart_with_the_reason(tmp_path: Path, chunk_rows: int) -> None:
    accepted, rejected = split(tmp_path, chunk_rows=chunk_rows)
    assert accepted == [ROWS[0], ROWS[3]]
    assert [row["reason"] for row in rejected] == ["sensor is missing", "celsius is too large"]


def test_too_many_of_them_fail_the_task(tmp_path: Path) -> None:
    with pytest.raises(OperatorError) as failed:
        split(tmp_path, most_rejected=0.4)
    assert failed.value.code == "quality.too_many_rejected"
