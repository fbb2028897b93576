"""Entries of jobs that were claimed here. What is fixed for one revision of a job is read once."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from traceplane.dispatcher.leases.job_entry import JobEntry, job_entry
from traceplane.postgres import registry
from traceplane.postgres.database import Transaction


class KnownJobs:
    def __init__(self) -> None:
        self._entries: dict[tuple[UUID, int], JobEntry] = {}
        self._names: dict[UUID, str] = {}

    async def entries(self, tx: Transaction, revisions: Collection[tuple[UUID, int]]) -> dict[UUID, JobEntry]:
        """By job, for (job, revision)."""
        entries = {key[0]: self._entries[key] for key in revisions if key in self._entries}
        unknown = [job_id for job_id, _ in revisions if job_id not in entries]
        if unknown:
            # If a deploy happened in between, the entry has a later revision than the one requested.
            for row in await registry.job_payloads(tx, unknown):
                job_id = row.job_id
                entries[job_id] = self._entries[job_id, row.revision] = job_entry(row)
                self._names[job_id] = row.name
        return entries

    def name(self, job_id: UUID) -> str:
        """`?` for a job that was never claimed here."""
        return self._names.get(job_id, "?")
