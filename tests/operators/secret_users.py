"""Operators that receive secrets, and do with them what nobody should."""

import base64
import hashlib
import json
import os
import sys
import time
from urllib.parse import quote

from traceplane.sdk import OperatorTask


def digest(task: OperatorTask) -> list[dict]:
    """What it received, as something that gives nothing away."""
    received = [task.secrets.get("KEY", ""), task.config.get("url", "")]
    return [{"position": task.scope.start, "digest": hashlib.sha256("|".join(received).encode()).hexdigest()}]


def leak(task: OperatorTask) -> None:
    """Prints a secret in every usual form, and fails with it."""
    key = task.secrets["KEY"]
    print("plain", key, "quoted", repr(key), "json", json.dumps({"key": key}))
    print("url", quote(key, safe=""), "base64", base64.b64encode(f"user:{key}".encode()).decode())
    print("config", task.config["url"], file=sys.stderr)
    os.write(1, f"raw {key}\n".encode())
    raise ValueError(f"cannot reach {task.config['url']} with {key}")


def in_time(task: OperatorTask) -> list[dict]:
    """What it received twice, at the beginning and at the end."""
    first = task.secrets["KEY"], task.config["url"].rpartition("/")[2]
    time.sleep(task.config.get("seconds", 0.2))
    last = task.secrets["KEY"], task.config["url"].rpartition("/")[2]
    digests = {hashlib.sha256(value.encode()).hexdigest() for value in (*first, *last)}
    return [{"position": task.scope.start, "digests": " ".join(sorted(digests))}]
