"""An operator whose first attempt writes until it is killed."""

from __future__ import annotations

import time

from traceplane.sdk import OperatorTask


def run(task: OperatorTask) -> list[dict]:
    print(f"attempt {task.attempt} begins with {task.secrets['KEY']}")
    for number in range(2_000 if task.attempt == 2 else 10):
        print(f"line {number} of attempt {task.attempt}")
    while task.attempt == 1:
        task.log("still here")
        time.sleep(0.5)
    return [{"position": task.scope.start}]
