"""The platform of a home folder: whether `traceplane up` runs there, and where."""

from __future__ import annotations

import fcntl
import json
import time
from dataclasses import dataclass
from typing import IO

from traceplane.settings import Settings, running_file


@dataclass(frozen=True, slots=True)
class Running:
    """A `traceplane up`."""

    pid: int
    url: str


def running_here(settings: Settings) -> Running | None:
    """The `up` of this folder, if one is running."""
    try:
        with running_file(settings).open() as file:
            if lock(file, patience=0.0):
                return None
            return Running(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def where_it_runs(settings: Settings) -> str:
    """The next step of a caller that did not reach the platform of its folder."""
    home, here = settings.home.resolve(), running_here(settings)
    if here is None:
        return (
            f"no platform is running in {home}: start it with `traceplane up`, on free ports,"
            " or go to the folder of the running one"
        )
    if here.url != settings.gateway_address:
        return f"the platform of {home} is at {here.url}: set TRACEPLANE_GATEWAY_URL={here.url}"
    return f"the platform of {home} runs as process {here.pid}: check its output, and try again"


def lock(file: IO[str], *, patience: float = 0.3) -> bool:
    """`running_here` holds the lock for a moment, which is no reason to refuse."""
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        else:
            return True
