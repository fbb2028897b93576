"""Alerts end to end on Spark: conditions of all three forms find their rows, and a receiver is told once."""

from __future__ import annotations

import pytest

from tests.platform import until
from tests.spark.conftest import SparkPlatform
from tests.spark.spark_dags import dag

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

ALERTS = """
alerts:
- name: warn-thirteen
  dataset: warn.numbers
  when: n % 100 = 13 -- of each block
  position: block
  subject: [block]
  columns: [n]
  title: "{fields.n} in block {block}"
- name: warn-sums
  dataset: warn.numbers
  sql: >
    select block, cast(sum(n) as decimal(38, 3)) as total, timestamp_seconds(max(n)) as at from rows
    group by block having sum(n) > 10000
  subject: [block, total]
  event_time: at
  severity: critical
  title: "{total} at {event_time}"
- name: warn-function
  dataset: warn.numbers
  entrypoint: "spark_jobs:doubled"
  position: block
  subject: [n]
  title: "{n}"
"""


async def test_conditions_of_all_forms_find_their_rows(spark: SparkPlatform) -> None:
    await spark.platform.deploy(dag("warn", ALERTS))
    await spark.platform.emit("warn.in", range(3))

    async def routed() -> bool:
        done = await spark.platform.sql(
            "select j.name, count(*) as tasks from tasks join jobs j using (job_id) where state = 'completed'"
            " and j.name in ('warn-thirteen__route', 'warn-sums__route', 'warn-function__route') group by 1"
        )
        return [row["tasks"] for row in done] == [3, 3, 3]

    await until(routed, what="all are routed")
    rows = await spark.platform.sql(
        "select alert, position, title, severity, event_time, subject, fields, suppressed from alert_events"
        " where dag = 'warn' order by alert, position, title"
    )
    found = {
        alert: [row for row in rows if row["alert"] == alert] for alert in {row["alert"] for row in rows}
    }
    assert [row["title"] for row in found["warn-thirteen"]] == [
        "13 in block 0",
        "113 in block 1",
        "213 in block 2",
    ]
    assert [row["position"] for row in found["warn-thirteen"]] == [0, 1, 2]
    assert [row["title"] for row in found["warn-sums"]] == [
        "14950.000 at 1970-01-01T00:03:19Z",
        "24950.000 at 1970-01-01T00:04:59Z",
    ]
    assert len(found["warn-function"]) == 300
    assert {row["suppressed"] for row in rows} == {"no_channel"}
