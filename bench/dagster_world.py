"""A Dagster that has been in use for long, for `bench.ui_dagster`: its webserver, and what runs left behind.

The oldest and the newest hour of the large asset are materialized by Dagster itself. The runs between them are copies
of the oldest one's rows, by set-based SQL, with ids, hours and times of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg

from bench import environments
from bench.contender import REPOSITORY
from bench.peers import ui_graph
from tests.ports import free_port

PEER = "dagster-webserver"
DEFINITIONS = "bench.peers.dagster_ui_peer"
LAST_HOUR = ui_graph.hour(ui_graph.PARTITIONS - 1)
MATERIALIZED = ui_graph.PARTITIONS - ui_graph.PARTITIONS // 1000
"""One partition of a thousand is missing, on our side too."""
PATIENCE = 120

_SETTINGS = """
storage: {postgres: {postgres_url: {env: BENCH_DAGSTER_URL}}}
telemetry: {enabled: false}
run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}
"""  # the default one needs the daemon, which would take time from the webserver


@contextlib.contextmanager
def webserver(url: str) -> Iterator[str]:
    """The address of a webserver on an empty database, and its code server; it may not answer yet."""
    python = str(environments.prepare(PEER))
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-dagster-", ignore_cleanup_errors=True) as folder:
        Path(folder, "dagster.yaml").write_text(_SETTINGS)
        # Its driver is psycopg2, which is no longer SQLAlchemy's default.
        database = url.replace("postgresql:", "postgresql+psycopg2:")
        values = os.environ | {"DAGSTER_HOME": folder, "BENCH_DAGSTER_URL": database, "TMPDIR": folder}
        report = [python, "-m", DEFINITIONS]
        subprocess.run(report, cwd=REPOSITORY, env=values, check=True, timeout=PATIENCE, capture_output=True)
        options = ["-h", "127.0.0.1", "-p", str(port), "-m", DEFINITIONS]
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(
                [python, "-m", "dagster_webserver", *options],
                cwd=REPOSITORY,
                env=values,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """With its code server and the processes of runs."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)


async def _answers(http: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with http.get("/server_info") as answer:
                    if answer.ok:
                        return
            await asyncio.sleep(0.2)


async def fill(http: aiohttp.ClientSession, url: str) -> str:
    """The id of the newest run."""
    await _answers(http)
    await _asked(http, "mutation { setNuxSeen }")  # or a dialog covers each page
    oldest = await _materialized(http, ui_graph.hour(0))
    connection = await asyncpg.connect(url)
    try:
        for statement in (_COPIES, _RUNS, _TAGS, _EVENTS):
            await connection.execute(
                statement.format(run=oldest, first=ui_graph.hour(0), last=ui_graph.PARTITIONS - 1),
                timeout=300,
            )
        newest = await _materialized(http, LAST_HOUR)
        await connection.execute("analyze", timeout=300)
        return newest
    finally:
        await connection.close()


async def _materialized(http: aiohttp.ClientSession, hour: str) -> str:
    """The id of the run that did it."""
    launched = await _asked(
        http, _LAUNCH, selector=_SELECTOR, tag={"key": "dagster/partition", "value": hour}
    )
    run: str = launched["launchPipelineExecution"]["run"]["runId"]
    async with asyncio.timeout(PATIENCE):
        while (status := (await _asked(http, _STATUS, run=run))["runOrError"]["status"]) != "SUCCESS":
            assert status != "FAILURE", f"Dagster's run of {hour} failed"
            await asyncio.sleep(0.2)
    return run


async def _asked(http: aiohttp.ClientSession, query: str, **variables: Any) -> dict[str, Any]:
    async with http.post("/graphql", json={"query": query, "variables": variables}) as answer:
        content = await answer.json()
    assert "errors" not in content, content["errors"]
    data: dict[str, Any] = content["data"]
    return data


_SELECTOR = {
    "repositoryLocationName": DEFINITIONS,
    "repositoryName": "__repository__",
    "pipelineName": "__ASSET_JOB",
    "assetSelection": [{"path": ["r1"]}],
}

_LAUNCH = """
mutation ($selector: JobOrPipelineSelector!, $tag: ExecutionTag!) {
  launchPipelineExecution(executionParams: {
    selector: $selector, mode: "default", runConfigData: {}, executionMetadata: {tags: [$tag]}
  }) { ... on LaunchRunSuccess { run { runId } } ... on Error { message } }
}
"""

_STATUS = "query ($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"

# Evenly spread over a month, as our tasks are.
_COPIES = """
create temporary table copies as
select k, overlay(overlay(md5(k::text) placing '4' from 13) placing '8' from 17)::uuid::text as run_id,
       to_char(to_timestamp('{first}', 'YYYY-MM-DD-HH24:MI') + k * interval '1 hour', 'YYYY-MM-DD-HH24:MI') as hour,
       interval '30 days' * (1 - k / {last}::float8) as age
from generate_series(1, {last} - 1) k where k % 1000 <> 7
"""

_RUNS = """
insert into runs (run_id, snapshot_id, pipeline_name, status, run_body, partition, create_timestamp, update_timestamp,
                  start_time, end_time)
select c.run_id, r.snapshot_id, r.pipeline_name, r.status,
       replace(replace(r.run_body, r.run_id, c.run_id), r.partition, c.hour), c.hour, r.create_timestamp - c.age,
       r.update_timestamp - c.age, r.start_time - extract(epoch from c.age), r.end_time - extract(epoch from c.age)
from runs r, copies c where r.run_id = '{run}' order by c.k
"""

_TAGS = """
insert into run_tags (run_id, key, value)
select c.run_id, t.key, replace(t.value, r.partition, c.hour)
from run_tags t join runs r using (run_id), copies c where t.run_id = '{run}' order by c.k, t.id
"""

_EVENTS = """
insert into event_logs (run_id, event, dagster_event_type, timestamp, step_key, asset_key, partition)
select c.run_id, replace(replace(e.event, r.run_id, c.run_id), r.partition, c.hour), e.dagster_event_type,
       e.timestamp - c.age, e.step_key, e.asset_key, case when e.partition is not null then c.hour end
from event_logs e join runs r using (run_id), copies c where e.run_id = '{run}' order by c.k, e.id
"""
