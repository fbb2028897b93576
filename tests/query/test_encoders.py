"""Results as text: a time reads the same in every format, and has a fraction only if there is one."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa
import pytest

from traceplane.query.encoders import ENCODERS

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


class Written(io.BytesIO):
    def close(self) -> None:
        """What was written is read after the encoder has closed its file."""


def encoded(format_: Literal["csv", "json"], table: pa.Table) -> str:
    sink: Any = Written()
    encoder = ENCODERS[format_](sink, table.schema)
    for batch in table.to_batches():
        encoder.batch(batch)
    encoder.end(table.num_rows)
    return sink.getvalue().decode()


@pytest.mark.parametrize("also", [{}, {"nested": [[1]] * 3}], ids=["plain", "with lists"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_time_reads_the_same_in_csv_and_in_json(unit: str, also: dict[str, Any]) -> None:
    late = NOON + timedelta(milliseconds=0 if unit == "s" else 250)
    table = pa.table(
        {
            "at": pa.array([NOON, late, None], pa.timestamp(unit, "UTC")),
            "there": pa.array([NOON.replace(tzinfo=None), None, None], pa.timestamp(unit)),
            **also,
        }
    )
    rows = [row[:2] for row in json.loads(encoded("json", table))["rows"]]
    lines = [line[:2] for line in csv.reader(io.StringIO(encoded("csv", table)))]
    assert lines[0] == ["at", "there"]
    assert lines[1] == rows[0] == ["2026-11-16T12:00:00Z", "2026-11-16T12:00:00"]
    assert lines[3] == ["", ""]
    for second in (lines[2][0], rows[1][0]):
        assert second.endswith("Z")
        assert datetime.fromisoformat(second) == late
