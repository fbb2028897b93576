"""Functions that tests run on the local Lambda. `BESIDE` is a folder through which a test sees and steers them."""

import os
import time
from pathlib import Path
from typing import Any

from traceplane.aws import handler
from traceplane.sdk import OperatorTask

BESIDE = Path(os.environ.get("BESIDE", "."))


@handler
def double(task: OperatorTask) -> Any:
    (source,) = task.inputs
    print(f"doubling {source}")
    table = task.read(source)
    return [{**row, "n": row["n"] * 2} for row in table.to_pylist()]


@handler
def number(task: OperatorTask) -> Any:
    """A row for the event that it runs for."""
    assert task.scope is not None
    return [{"n": task.scope.start, "environment": sorted(os.environ)}]


@handler
def wait_once(task: OperatorTask) -> Any:
    """The first attempt waits until the test says so, or for ever."""
    assert task.scope is not None
    if task.attempt == 1:
        (BESIDE / "waiting").touch()
        while not (BESIDE / "go").exists():
            time.sleep(0.02)
    return [{"n": task.scope.start}]


@handler
def hang(task: OperatorTask) -> Any:
    (BESIDE / "waiting").touch()
    time.sleep(600)


@handler
def fail(task: OperatorTask) -> Any:
    print("about to fail")
    raise ValueError("no price for 0xabc")


@handler
def deliveries(task: OperatorTask) -> Any:
    """Reads what a webhook source received."""
    rows = task.read("deliveries").to_pylist()
    return [{"id": row["delivery"], "key": row["key"]} for row in rows]
