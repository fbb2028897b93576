"""Which reports share a transaction. Reports with rows for hot tables share theirs only with each other.

Such rows are read before their transaction begins, and operators can write files that take seconds to read. Reports
without hot rows do not wait for that, and few reports with hot rows wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceplane.dispatcher.leases.calls import CompletionCall
from traceplane.dispatcher.leases.complete import Reports
from traceplane.runtime.group_commit import GroupCommit
from traceplane.wire.tasks import CompletionOutcome

_HOT_AT_ONCE = 100


class GroupedReports:
    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._cold: GroupCommit[CompletionCall, CompletionOutcome] = GroupCommit("complete", reports.complete)
        self._hot: GroupCommit[CompletionCall, CompletionOutcome] = GroupCommit(
            "complete", reports.complete, max_items=_HOT_AT_ONCE
        )

    async def submit(self, calls: Sequence[CompletionCall]) -> Sequence[CompletionOutcome]:
        group = self._hot if await self._reports.any_hot(calls) else self._cold
        return await group.submit(calls)
