"""The process of a function, as Lambda's Python runtime is: takes calls from the runtime interface one by one."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
import urllib.request
from dataclasses import dataclass

_INVOCATION = f"http://{os.environ['AWS_LAMBDA_RUNTIME_API']}/2018-06-01/runtime/invocation"


@dataclass(frozen=True)
class Context:
    aws_request_id: str
    deadline_ms: int
    function_name: str = os.environ["AWS_LAMBDA_FUNCTION_NAME"]

    def get_remaining_time_in_millis(self) -> int:
        return max(0, self.deadline_ms - int(time.time() * 1000))


def main() -> None:
    sys.path.insert(0, os.environ["LAMBDA_TASK_ROOT"])
    module, _, name = os.environ["_HANDLER"].rpartition(".")
    handler = getattr(importlib.import_module(module), name)
    while True:
        with urllib.request.urlopen(f"{_INVOCATION}/next") as call:
            event = json.load(call)
            request_id = call.headers["Lambda-Runtime-Aws-Request-Id"]
            context = Context(request_id, int(call.headers["Lambda-Runtime-Deadline-Ms"]))
        try:
            kind, answer = "response", json.dumps(handler(event, context))
        except Exception as error:
            traceback.print_exc()
            kind = "error"
            answer = json.dumps({"errorType": type(error).__name__, "errorMessage": str(error)})
        sys.stdout.flush()
        urllib.request.urlopen(f"{_INVOCATION}/{request_id}/{kind}", answer.encode()).close()


main()
