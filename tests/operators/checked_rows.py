"""Random rows with the values that checks may stumble over."""

from __future__ import annotations

import math
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

from pyspark.sql import DataFrame

from traceplane.sdk import OperatorTask

VALUES: dict[str, list[Any]] = {
    "i": [None, -1, 0, 1, 2, 3],
    "d": [None, math.nan, -0.0, 0.0, 1.5, -1.0, math.inf],
    "m": [None, Decimal("0.125"), Decimal("1.000"), Decimal("-7.001"), Decimal("99999999999999999.999")],
    "t": [
        None,
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 2, 0, 0, 0, 1, tzinfo=UTC),
        datetime(2026, 1, 2, 0, 0, 0, 2, tzinfo=UTC),
        datetime(1969, 12, 31, tzinfo=UTC),
    ],
    "day": [None, date(2026, 1, 1), date(2026, 1, 2), date(1969, 1, 1)],
    "s": [None, "", "a", "b", "é", "\0", "x" * 300],
    "b": [None, True, False],
    "x": [None, b"", b"\x00\xff"],
}


def rows_of(block: int) -> list[dict[str, Any]]:
    """No rows for the first, then random ones; those of every other have no nulls."""
    random = Random(block)
    count = 0 if block == 0 else random.randint(1, 12)
    return [
        {"block": block, **{name: random.choice(values[block % 2 :]) for name, values in VALUES.items()}}
        for _ in range(count)
    ]


def made(task: OperatorTask) -> list[dict[str, Any]]:
    return rows_of(task.scope.position)


def as_arrow(numbers: DataFrame) -> Any:
    """Not as a DataFrame: this process writes the rows, and may send them with its result."""
    return numbers.toArrow()


def counted(task: OperatorTask) -> list[dict[str, Any]]:
    """Another number each time."""
    return [{"block": task.scope.position, "n": time.time_ns()}]
