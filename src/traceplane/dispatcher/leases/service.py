"""The four transactions behind the internal API, wired."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from traceplane.decoding.decoder_pool import Decoders
from traceplane.dispatcher.authority import Authority
from traceplane.dispatcher.leases.buffered import Handovers
from traceplane.dispatcher.leases.calls import CompletionCall, lease_fence
from traceplane.dispatcher.leases.claim import Claims
from traceplane.dispatcher.leases.complete import Reports
from traceplane.dispatcher.leases.emit import Emissions
from traceplane.dispatcher.leases.heartbeat import LeaseExtensions
from traceplane.dispatcher.leases.hot_writes import HotWrites, OpenStore
from traceplane.dispatcher.leases.job_entry import KnownJobs
from traceplane.model.task import Report
from traceplane.postgres.database import Database
from traceplane.wire.tasks import ClaimedTask


class Leases:
    """`work_created` is called when tasks were created, `slot_freed` when a waiting task may be dispatched."""

    def __init__(
        self,
        database: Database,
        authority: Authority,
        *,
        work_created: Callable[[], None],
        slot_freed: Callable[[], None],
        decoders: Decoders,
        staged: Path | OpenStore,
    ) -> None:
        jobs = KnownJobs()
        self._hot = HotWrites(database, staged, decoders)
        self.claims = Claims(database, authority, jobs)
        self.heartbeats = LeaseExtensions(database, authority)
        self.emissions = Emissions(database, work_created)
        self.reports = Reports(database, jobs, self._hot, work_created=work_created, slot_freed=slot_freed)
        self.handovers = Handovers(database, self.reports)

    async def close(self) -> None:
        await self._hot.close()

    async def hand_back(self, claimed: Sequence[ClaimedTask]) -> None:
        """Gives up leases that their worker will never learn of."""
        await self.reports.complete([CompletionCall(lease_fence(task), Report.RETURNED) for task in claimed])
