"""When a pipeline is launched, and what happens if its worker is lost."""

from __future__ import annotations

import json
from uuid import UUID

from tests.control_plane import ControlPlane
from tests.platform import Platform, until
from traceplane.dispatcher.loops.execution_status import ExecutionStatus
from traceplane.dispatcher.loops.periodic import PeriodicPipelines
from traceplane.wire.pipelines import ExecutionView, PipelineConfig

DAG = """
version: 1
dag: desk
defaults: {max_attempts: 2, retry: {base: 100ms}}
jobs:
- name: trade
  activation: source
  source: {kind: pipeline}
  runtime: python
  operator: python
  outputs: [{dataset: desk.trades}]
  config: {entrypoint: "pipeline_runs:trade"}
- name: audit
  runtime: python
  operator: python
  inputs: [{name: trades, from: {job: trade}}]
  outputs: [{dataset: desk.audited}]
  config: {entrypoint: "pipeline_runs:audit"}
"""
TRADE = PipelineConfig("desk", "trade", {"ticker": "AAPL"})

# What the trigger does for a match, as far as these tests need it.
LAUNCH = """
with launched as (
  insert into executions (pipeline_id, target, signal_id, signal, created_at)
  select pipeline_id, config->>'target', $2::text, $3::jsonb, tp_now() from pipelines where pipeline_id = $1
  on conflict do nothing returning execution_id, pipeline_id, target
), made as (
  insert into tasks (task_id, job_id, state, priority, kind, created_at, ready_at)
  select l.execution_id, j.job_id, 'queued', 0, 'data', tp_now(), tp_now()
  from launched l join pipelines p using (pipeline_id) join dags d on d.name = p.config->>'dag'
  join jobs j on j.dag_id = d.dag_id and j.name = p.config->>'job' and j.routed and not j.building
  where l.target = 'task'
), messages as (
  insert into celery_outbox (execution_id) select execution_id from launched where target = 'celery'
)
select execution_id, pg_notify('traceplane_work', '') from launched
"""


def signal(number: int) -> str:
    ticker = {"ticker": "AAPL", "signal": "BULLISH", "confidence": 80}
    return json.dumps({"signal_id": f"s{number}", "signal_type": "mock", "tickers": [ticker]})


async def launch(platform: Platform | ControlPlane, pipeline_id: UUID, number: int) -> UUID | None:
    if isinstance(platform, ControlPlane):
        rows = await platform.sql(LAUNCH, pipeline_id, f"s{number}", json.loads(signal(number)))
    else:
        rows = await platform.sql(LAUNCH, pipeline_id, f"s{number}", signal(number))
    return rows[0]["execution_id"] if rows else None


async def ended(platform: Platform, execution_id: UUID | None) -> ExecutionView:
    async def over() -> ExecutionView | None:
        path = f"/api/v1/executions/{execution_id}"
        view = await platform.api.call("GET", path, ExecutionView)
        return view if view.status in ("COMPLETED", "FAILED") else None

    found: ExecutionView = await until(over, seconds=120, what="the execution has ended")
    return found


async def test_a_pipeline_given_up_for_dead_runs_again_and_its_lost_worker_changes_nothing(
    database_url: str,
) -> None:
    async with ControlPlane.open(database_url) as plane:
        await plane.deploy(DAG.replace("max_attempts: 2", "max_attempts: 1"))
        pipeline_id = await _pipeline_in(plane, "signal")
        status = ExecutionStatus(plane.database)
        first = await launch(plane, pipeline_id, 1)
        await plane.meter()
        (held,) = await plane.claim(await plane.send())
        assert held.task.execution is not None
        assert (held.task.execution.pipeline, held.task.execution.parameters) == ("p", {"x": 1})
        assert (await status.run_once()).started == 1
        await plane.pass_time(3600)
        await plane.reaper.run_once()
        assert (await status.run_once()).failed == 1
        assert (await status.run_once()).counts() == {"started": 0, "completed": 0, "failed": 0}
        row = (await plane.sql("select status, error from executions where execution_id = $1", first))[0]
        assert (row["status"], row["error"]["code"]) == ("FAILED", "lease.expired")
        assert await launch(plane, pipeline_id, 2) is not None, "the pipeline is free"
        # The worker was only silent, and comes back.
        assert await plane.heartbeat(held) == ["stale"]
        assert await plane.complete(held) == ["dead"]
        assert await plane.value("select count(*) from dataset_commits") == 0
        assert await plane.states("trade") == {"dead": 1, "queued": 1}


async def test_a_periodic_pipeline_is_launched_once_for_each_of_its_times(database_url: str) -> None:
    async with ControlPlane.open(database_url) as plane:
        await plane.set_clock(0)  # midnight
        await plane.deploy(DAG)
        pipeline_id = await _pipeline_in(plane, "periodic", schedule="*/10 * * * *")
        both = [PeriodicPipelines(plane.database), PeriodicPipelines(plane.database)]
        status = ExecutionStatus(plane.database)

        async def at(seconds: float) -> int:
            await plane.set_clock(seconds)
            return sum([(await loop.run_once()).launched for loop in both])

        async def finish() -> None:
            await plane.meter()
            await plane.complete(*await plane.claim(await plane.send()))
            await status.run_once()

        assert await at(30) == 0, "midnight itself had passed when it was made"
        assert await at(601) == 1
        assert await at(605) == 0
        assert await at(1205) == 0, "it is still running"
        await finish()
        assert await at(1210) == 1, "the time that came meanwhile is made up for"
        await finish()
        assert await at(9000) == 1, "of many times that nobody saw, the newest"
        await finish()
        await plane.sql("update pipelines set is_active = false where pipeline_id = $1", pipeline_id)
        assert await at(9601) == 0
        rows = await plane.sql("select scheduled_for, status from executions order by 1")
        assert [(f"{r['scheduled_for']:%H:%M}", r["status"]) for r in rows] == [
            ("00:10", "COMPLETED"),
            ("00:20", "COMPLETED"),
            ("02:30", "COMPLETED"),
        ]


async def _pipeline_in(plane: ControlPlane, mode: str, schedule: str | None = None) -> UUID:
    rows = await plane.sql(
        "insert into pipelines (org_id, user_id, name, trigger_mode, scanner_tickers, schedule, config)"
        " select org_id, 'u', 'p', $1::text, case when $1 = 'signal' then array['AAPL'] end, $2::text, $3::jsonb"
        " from orgs returning pipeline_id",
        mode,
        schedule,
        {"target": "task", "dag": "desk", "job": "trade", "parameters": {"x": 1}},
    )
    return UUID(str(rows[0]["pipeline_id"]))
