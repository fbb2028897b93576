"""`traceplane trigger doctor` says why signals do not launch pipelines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tests.control_plane import ControlPlane
from tests.e2e.test_pipelines import DAG
from tests.ports import free_port
from traceplane.adapters.signal_source_folder import publish
from traceplane.cli.main import cli
from traceplane.model.finding import Finding
from traceplane.settings import Settings
from traceplane.trigger.doctor import examine

SIGNAL = {
    "signal_id": "s1",
    "timestamp": 1733875200,
    "signal_type": "mock",
    "tickers": [{"ticker": "AAPL", "signal": "BULLISH", "confidence": 80}],
}
PIPELINE = """
insert into pipelines (org_id, user_id, name, trigger_mode, scanner_tickers, config)
select org_id, 'u', 'p', 'signal', array['aapl'], $1::jsonb from orgs
"""


async def test_the_doctor_finds_why_pipelines_are_not_triggered(database_url: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, trigger_port=free_port())
    async with ControlPlane.open(database_url) as plane:

        async def findings() -> dict[str, Finding]:
            return {finding.code: finding for finding in await examine(settings, plane.database)}

        async def change(what: str, *args: Any) -> dict[str, Finding]:
            await plane.sql(f"update pipelines set {what}", *args)
            return await findings()

        by_code = await findings()
        problems = [code for code, f in by_code.items() if f.level == "problem"]
        assert problems == ["no_signals", "never_consumed", "no_pipelines"]

        publish(tmp_path / "signals", "trading-signals", [b"{", json.dumps(SIGNAL).encode()])
        await plane.sql(PIPELINE, {"target": "task", "dag": "desk", "job": "trade"})
        by_code = await findings()
        assert by_code["signals_refused"].level == "warning"
        assert "desk/trade of the pipeline 'p' is not deployed" in by_code["job_missing"].sentence
        assert "'p' watches 'aapl', but signals say 'AAPL'" in by_code["nothing_matches"].sentence

        def by_hand() -> None:
            urls = {"TRACEPLANE_STATE_URL": database_url}
            result = CliRunner().invoke(cli, ["--home", str(tmp_path), "trigger", "doctor"], env=urls)
            assert result.exit_code == 1, result.output
            assert "PROBLEM  No trigger of the group trigger-dispatcher has ever read" in result.output

        await asyncio.to_thread(by_hand)

        await plane.deploy(DAG)
        by_code = await change("scanner_tickers = array['AAPL'], is_active = false")
        assert by_code["none_active"].next_step is not None
        by_code = await change(
            "is_active = true, signal_subscriptions = $1::jsonb", [{"signal_type": "golden_cross"}]
        )
        assert "does not subscribe to 'mock'" in by_code["nothing_matches"].sentence
        by_code = await change("signal_subscriptions = $1::jsonb", [{"min_confidence": 90.0}])
        assert "wants a confidence of 90" in by_code["nothing_matches"].sentence
        by_code = await change("signal_subscriptions = $1::jsonb", [{"direction": "BEARISH"}])
        assert "wants the direction BEARISH" in by_code["nothing_matches"].sentence

        await plane.sql(
            "insert into trigger_offsets (consumer_group, topic, partition, next_offset)"
            " values ('trigger-dispatcher', 'trading-signals', 0, 1000)"
        )
        await plane.sql(
            "insert into executions (pipeline_id, target, signal_id, created_at)"
            " select pipeline_id, 'task', 's0', tp_now() - interval '2 hours' from pipelines"
        )
        by_code = await change("signal_subscriptions = '[]'")
        assert by_code["runs_long"].level == "warning"
        assert not [f for f in by_code.values() if f.level == "problem"]
        assert {"caught_up", "active", "signals_match"} <= by_code.keys()
