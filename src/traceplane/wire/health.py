"""What is wrong with the platform, and which of its processes there are, in the public API."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from traceplane.wire.scalars import Wire


class FindingView(Wire, frozen=True):
    level: Literal["ok", "warning", "problem"]
    code: str
    sentence: str
    next_step: str | None = None


class ProcessView(Wire, frozen=True):
    kind: str
    """`dispatcher`, `gateway`, `sink`, `delivery`, `trigger` or `worker`."""
    name: str
    """Its host and process id; for a worker, the id that it gave itself."""
    seen_at: datetime
    is_silent: bool = False
    """It was not seen for 30 seconds, and did not say that it stops."""
    version: str | None = None
    started_at: datetime | None = None
    runtime: str | None = None
    """Of a worker."""


class HealthResponse(Wire, frozen=True):
    findings: list[FindingView]
    processes: list[ProcessView] = []
    """For admins."""
