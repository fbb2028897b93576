"""Reports of tasks share transactions. Those with rows for hot tables share theirs with each other only.

Such rows are read before their transaction begins, and operators can write what takes seconds to read. Whoever has no
hot rows does not wait for that, and of those who have, few wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceplane.dispatcher.leasing import CompletionCall, Leasing
from traceplane.runtime.group_commit import GroupCommit
from traceplane.wire.tasks import CompletionOutcome

_HOT_AT_ONCE = 100


class Completions:
    def __init__(self, leasing: Leasing) -> None:
        self._leasing = leasing
        self._cold: GroupCommit[CompletionCall, CompletionOutcome] = GroupCommit("complete", leasing.complete)
        self._hot: GroupCommit[CompletionCall, CompletionOutcome] = GroupCommit(
            "complete", leasing.complete, max_items=_HOT_AT_ONCE
        )

    async def submit(self, calls: Sequence[CompletionCall]) -> Sequence[CompletionOutcome]:
        group = self._hot if await self._leasing.any_hot(calls) else self._cold
        return await group.submit(calls)
