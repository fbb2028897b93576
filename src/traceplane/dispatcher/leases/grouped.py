"""Which reports share a transaction."""

from __future__ import annotations

from collections.abc import Sequence

from traceplane.dispatcher.leases.buffered import Handovers, is_buffered
from traceplane.dispatcher.leases.calls import CompletionCall
from traceplane.dispatcher.leases.complete import Reports
from traceplane.runtime.group_commit import GroupCommit
from traceplane.wire.tasks import CompletionOutcome

_HOT_AT_ONCE = 100


class GroupedReports:
    """Reports with rows for hot tables share their transaction only with each other.

    Such rows are read before their transaction begins, and operators can write files that take seconds to read. Reports
    without hot rows do not wait for that, and few reports with hot rows wait for each other. Those that a sink is to
    commit are only stored, and wait for neither.
    """

    def __init__(self, reports: Reports, handovers: Handovers) -> None:
        self._reports = reports
        self._cold: GroupCommit[CompletionCall, CompletionOutcome] = GroupCommit("complete", reports.complete)
        self._hot: GroupCommit[CompletionCall, CompletionOutcome] = GroupCommit(
            "complete", reports.complete, max_items=_HOT_AT_ONCE
        )
        self._buffered: GroupCommit[CompletionCall, CompletionOutcome] = GroupCommit(
            "hand_over", handovers.hand_over
        )

    async def submit(self, calls: Sequence[CompletionCall]) -> Sequence[CompletionOutcome]:
        tables = await self._reports.hot_tables(calls)
        if not tables:
            return await self._cold.submit(calls)
        buffered = [any(is_buffered(output, tables) for output in call.outputs) for call in calls]
        if not any(buffered):
            return await self._hot.submit(calls)
        groups = (
            (self._hot, [c for c, b in zip(calls, buffered, strict=True) if not b]),
            (self._buffered, [c for c, b in zip(calls, buffered, strict=True) if b]),
        )
        answers = [iter(await group.submit(own) if own else ()) for group, own in groups]
        return [next(answers[b]) for b in buffered]
