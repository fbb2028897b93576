"""Secrets in the public API: set, listed and removed, and never read."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from traceplane.wire.scalars import Text, Wire


class SecretRightsRequest(Wire, frozen=True):
    allowed_jobs: list[Text] | None = None
    """The jobs that may use it, as `dag/job` or `dag/*`; unset: as before, or every job if it is new."""
    any_job: bool = False
    """Every job may use it, whatever was set before."""
    roles: list[Text] | None = None
    """Roles whose members may set and list it, besides admins; unset: as before, or none if it is new."""


class SecretValue(SecretRightsRequest, frozen=True, kw_only=True):
    value: Annotated[str, msgspec.Meta(min_length=1, max_length=65536)]


class SecretSet(Wire, frozen=True):
    name: str
    version: int | str | None = None
    """A number; with AWS Secrets Manager, the version's id there."""
    warnings: list[str] = []
    """Names of jobs and roles that do not exist yet, and that the value is too short to be hidden."""


class SecretRightsView(Wire, frozen=True):
    name: str
    allowed_jobs: list[str] | None = None
    """Unset: every job."""
    roles: list[str] = []
    warnings: list[str] = []
    """Names of jobs and roles that do not exist yet."""


class SecretRemoved(Wire, frozen=True):
    name: str


class SecretView(Wire, frozen=True):
    name: str
    """As configs refer to it: `mainnet_rpc`, or `platform/mainnet_rpc`."""
    version: int | str | None = None
    """Unset: the store has no versions."""
    set_by: str | None = None
    """Unset: the store does not say."""
    set_at: datetime | None = None
    last_used_at: datetime | None = None
    """When a task last received it, to the minute."""
    allowed_jobs: list[str] | None = None
    """Unset: every job."""
    roles: list[str] = []
    """Whose members may set and list it, besides admins."""


class SecretsResponse(Wire, frozen=True):
    secrets: list[SecretView]
