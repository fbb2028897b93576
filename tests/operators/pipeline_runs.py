"""Operators that pipelines run."""

from __future__ import annotations

import time
from typing import Any

from traceplane.sdk import OperatorTask


def trade(task: OperatorTask) -> list[dict[str, Any]]:
    """What it was told, as a row; or what `parameters` ask for instead."""
    run = task.execution
    assert run is not None
    if "fail" in run.parameters:
        raise ValueError(run.parameters["fail"])
    if "sleep" in run.parameters:
        time.sleep(run.parameters["sleep"])
    return [
        {
            "execution_id": run.execution_id,
            "pipeline": run.pipeline,
            "user_id": run.user_id,
            "ticker": run.parameters.get("ticker"),
            "signal_id": run.signal["signal_id"] if run.signal else None,
            "scheduled": run.scheduled_for.isoformat() if run.scheduled_for else None,
        }
    ]


def audit(task: OperatorTask) -> list[dict[str, Any]]:
    return [{"execution_id": row["execution_id"]} for row in task.read("trades").to_pylist()]
