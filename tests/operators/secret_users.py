"""Operators that receive secrets, and do with them what nobody should."""

import base64
import hashlib
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from urllib.parse import quote, quote_plus

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


def tell_everything(task: OperatorTask) -> list[dict]:
    """Prints, logs and raises its secrets in every usual form, in all ways that operators have. Succeeds at odd
    positions; otherwise fails, in ways that depend on the position."""
    key, url = task.secrets["KEY"], task.config["url"]
    print(task.config["control"])
    for value in (key, url):
        for text in (
            value,
            repr(value),
            json.dumps({"value": value}),
            quote(value, safe=""),
            quote_plus(value),
        ):
            print("it is", text)
        for before in ("", "u:", "user"):
            print("Authorization: Basic", base64.b64encode(f"{before}{value}:x".encode()).decode())
            print("token", base64.urlsafe_b64encode(f"{before}{value}:x".encode()).decode())
        task.log("with a field", level="warning", value=value, nested=[{"value": value}])
        logging.getLogger("mine").error("failed with %s", value)
        warnings.warn(f"beware of {value}", stacklevel=1)
        os.write(2, f"in two pieces: {value[:9]}".encode())
        os.write(2, f"{value[9:]}\n".encode())
        print("x" * (8192 - 12) + value)
    subprocess.run(
        [sys.executable, "-c", "print(input())"], input=f"of a child: {key}\n", text=True, check=False
    )
    print(task.config["control"])
    if task.scope.start % 2:
        return [{"position": task.scope.start}]
    if task.scope.start == 0:
        raise ValueError("x" * (8000 - 12) + key)
    if task.scope.start == 2:
        sys.exit(f"cannot reach {url}")
    try:
        raise KeyError(key)
    except KeyError as error:
        raise RuntimeError(f"cannot reach {url}\nwith {key!r}") from error
