"""Secrets in the public API: set, listed and removed, and never read."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from traceplane.wire.scalars import Text, Wire


class SecretValue(Wire, frozen=True):
    value: Annotated[str, msgspec.Meta(min_length=1, max_length=65536)]
    allowed_jobs: list[Text] | None = None
    """The jobs that may use it, as `dag/job` or `dag/*`; unset: as before, or every job if it is new."""
    any_job: bool = False
    """Every job may use it, whatever was set before."""


class SecretSet(Wire, frozen=True):
    name: str
    version: int


class SecretRemoved(Wire, frozen=True):
    name: str


class SecretView(Wire, frozen=True):
    name: str
    """As configs refer to it: `mainnet_rpc`, or `platform/mainnet_rpc`."""
    version: int
    set_by: str
    set_at: datetime
    last_used_at: datetime | None = None
    """When a task last received it, to the minute."""
    allowed_jobs: list[str] | None = None
    """Unset: every job."""


class SecretsResponse(Wire, frozen=True):
    secrets: list[SecretView]
