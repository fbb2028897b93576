"""Running a contender: one subprocess per measurement, which answers with one JSON line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent


class ContenderFailedError(Exception):
    """The measurement gave no result; the message says why."""


def measure(
    python: Path,
    module: str,
    measurement: str,
    options: Mapping[str, object],
    *,
    environment: Mapping[str, str] | None = None,
    timeout: float,
) -> dict[str, Any]:
    """Run `python -m module measurement --option value …` and return the JSON object it prints."""
    command = [str(python), "-m", module, measurement]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    output, errors, code = _run(command, environment or {}, timeout)
    lines = output.strip().splitlines()
    if code != 0 or not lines:
        reason = (errors.strip().splitlines() or ["no message"])[-1]
        raise ContenderFailedError(f"ended with {code}: {reason}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def _run(command: Sequence[str], environment: Mapping[str, str], timeout: float) -> tuple[str, str, int]:
    """Whatever happens, a Ctrl-C included, no process of the group and no temporary file is left."""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o1777)  # as /tmp itself: a contender may run parts of itself as another user
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env=os.environ | environment | {"TMPDIR": folder},
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise ContenderFailedError(f"gave no result within {timeout:.0f} s") from error
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        return output, errors, process.returncode
