"""Which reports share a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from traceplane.dispatcher.leases.buffered import Handovers, is_buffered
from traceplane.dispatcher.leases.calls import CompletionCall
from traceplane.dispatcher.leases.complete import Reports, generations_of
from traceplane.runtime.group_commit import GroupCommit
from traceplane.wire.tasks import CompletionOutcome

_HOT_AT_ONCE = 100

Commit = Callable[[Sequence[CompletionCall]], Awaitable[Sequence[CompletionOutcome]]]


class GroupedReports:
    """Reports with rows for hot tables share their transaction only with each other.

    Such rows are read before their transaction begins, and operators can write files that take seconds to read. Reports
    without hot rows do not wait for that, and few reports with hot rows wait for each other. Those that a sink is to
    commit are only stored, and wait for neither.
    """

    def __init__(self, reports: Reports, handovers: Handovers) -> None:
        self._reports = reports
        self._handovers = handovers
        self._cold: GroupCommit[CompletionCall, CompletionOutcome] = GroupCommit("complete", reports.complete)
        self._hot: GroupCommit[CompletionCall, CompletionOutcome] = GroupCommit(
            "complete", self._complete_hot, max_items=_HOT_AT_ONCE
        )
        self._buffered: GroupCommit[CompletionCall, CompletionOutcome] = GroupCommit(
            "hand_over", handovers.hand_over
        )

    async def submit(self, calls: Sequence[CompletionCall]) -> Sequence[CompletionOutcome]:
        tables = await self._reports.hot_tables(generations_of(calls))
        if not tables:
            return await self._cold.submit(calls)
        buffered = [any(is_buffered(output, tables) for output in call.outputs) for call in calls]
        return await _divided(calls, buffered, self._hot.submit, self._buffered.submit)

    async def _complete_hot(self, calls: Sequence[CompletionCall]) -> Sequence[CompletionOutcome]:
        # A deploy may have made outputs direct after batches of them were published; a sink commits both together.
        published = await self._handovers.have_published(calls)
        return await _divided(calls, published, self._reports.complete, self._handovers.hand_over)


async def _divided(
    calls: Sequence[CompletionCall], to_sink: Sequence[bool], direct: Commit, hand_over: Commit
) -> Sequence[CompletionOutcome]:
    """The answers of both, in the order of the calls."""
    shares = (
        (direct, [call for call, sunk in zip(calls, to_sink, strict=True) if not sunk]),
        (hand_over, [call for call, sunk in zip(calls, to_sink, strict=True) if sunk]),
    )
    answers = [iter(await commit(own) if own else ()) for commit, own in shares]
    return [next(answers[sunk]) for sunk in to_sink]
