"""The audit log, as admins read it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from traceplane.wire.scalars import Wire

MOST_ENTRIES = 1000


class AuditQuery(Wire, frozen=True):
    principal: str | None = None
    action: str | None = None
    """A part of it, such as `secrets` or `POST /api/v1/deploy`."""
    outcome: Literal["ok", "refused"] | None = None
    since: datetime | None = None
    until: datetime | None = None
    before: int | None = None
    """The last entry of the page before, for the newest first."""
    after: int | None = None
    """The last entry of the page before, for the oldest first; 0: from the beginning."""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MOST_ENTRIES)] = 100


class AuditEntry(Wire, frozen=True):
    audit_id: int
    at: datetime
    principal: str
    kind: str
    action: str
    object: dict[str, str]
    outcome: str
    """ok, or the code of the refusal."""
    times: int = 1
    remote: str | None = None
    request_id: str | None = None


class AuditResponse(Wire, frozen=True):
    entries: list[AuditEntry]
