"""Capability tokens for claimed tasks: as few as cover a claim, and none larger than a header allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from traceplane.auth.capability import Capability, TaskGrant
from traceplane.dispatcher.authority import Authority
from traceplane.dispatcher.leases.calls import HeartbeatCall
from traceplane.dispatcher.leases.job_entry import JobEntry
from traceplane.postgres.tasks import Claimed
from traceplane.wire.tasks import JobPayload

_MIN_TOKEN_SECONDS = 3600.0
_MAX_GRANTS_PER_TOKEN = 500


def group_jobs(jobs: Sequence[JobPayload]) -> list[list[UUID]]:
    """The jobs that share a token: of one organization, with no more grants than fit."""
    groups: list[list[UUID]] = []
    org, grants = None, 0
    for job in sorted(jobs, key=lambda job: job.org):
        size = len(job.inputs) + len(job.outputs)
        if job.org != org or grants + size > _MAX_GRANTS_PER_TOKEN:
            groups.append([])
            org, grants = job.org, 0
        groups[-1].append(job.job_id)
        grants += size
    return groups


def mint(
    authority: Authority, jobs: Sequence[UUID], claimed: Sequence[Claimed], entries: Mapping[UUID, JobEntry]
) -> str:
    """One token for the tasks of these jobs, valid for longer than the longest may run."""
    position = {job_id: number for number, job_id in enumerate(jobs)}
    payloads = [entries[job_id].payload for job_id in jobs]
    seconds = max(_MIN_TOKEN_SECONDS, *(p.timeout_seconds * 1.5 for p in payloads))
    covered = [c for c in claimed if c.job_id in position]
    return authority.mint(
        Capability(
            org=payloads[0].org,
            tasks=tuple(TaskGrant(str(c.task_id), c.attempt, position[c.job_id]) for c in covered),
            jobs=tuple(entries[job_id].grants for job_id in jobs),
            expires_at=authority.now + seconds,
        )
    )


def renew(authority: Authority, call: HeartbeatCall) -> str | None:
    """A task may outlive its token (a source always does); it gets a new one before the old one expires."""
    now = authority.now
    if call.capability.expires_at - now > _MIN_TOKEN_SECONDS / 2:
        return None
    task = TaskGrant(str(call.beat.task_id), call.beat.attempt, 0)
    return authority.mint(Capability(call.capability.org, (task,), (call.grants,), now + _MIN_TOKEN_SECONDS))
