"""The checker that comes with Prometheus, `promtool`: the one on the PATH, or Debian's, fetched once into `.venv`."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parents[1] / ".venv" / "prometheus"


class PrometheusUnavailable(Exception):
    """There is no promtool here; the message says why."""


@cache
def promtool() -> str:
    if (found := shutil.which("promtool")) is not None:
        return found
    tool = _FOLDER / "usr/bin/promtool"
    if tool.exists():
        return str(tool)
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise PrometheusUnavailable("there is no promtool on the PATH, and no apt-get to fetch it")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    _run("apt-get", "-q", "download", "prometheus")
    archives = sorted(_FOLDER.glob("prometheus_*.deb"))
    _run("dpkg", "-x", str(archives[-1]), ".")
    for archive in archives:
        archive.unlink()
    return str(tool)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, cwd=_FOLDER, check=False, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        raise PrometheusUnavailable(f"{command[0]} took longer than five minutes") from None
    if done.returncode != 0:
        raise PrometheusUnavailable(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
