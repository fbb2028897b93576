"""The result of a query in a Spark session of one's own."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa

from traceplane.client.results import as_spark
from traceplane.testing import local_spark


def test_a_result_is_a_data_frame_with_the_same_rows_and_types() -> None:
    table = pa.table(
        {
            "id": pa.array([1, None], pa.int64()),
            "day": pa.array([date(2026, 11, 16), None]),
            "at": pa.array([datetime(2026, 11, 16, 12, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(38, 2)),
            "tags": pa.array([["a"], None], pa.list_(pa.string())),
        }
    )
    with local_spark() as session:
        frame = as_spark(table, session)
        assert dict(frame.dtypes) == {
            "id": "bigint",
            "day": "date",
            "at": "timestamp",
            "price": "decimal(38,2)",
            "tags": "array<string>",
        }
        assert frame.toArrow().to_pylist() == table.to_pylist()
        assert as_spark(table.slice(0, 0), session).count() == 0
