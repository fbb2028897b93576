"""Files that a task has merged take the place of those whose rows they hold, in the transaction that commits the task.

They count only if readers still see in their range what the task was made for. Otherwise nothing is committed: the
platform looks again at what there is now, and what was written is collected like any leftover. Commits of one
generation take turns, so nothing comes between this look and the commit. No event is about it: the rows are those that
were there, so it makes nothing stale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from traceplane import telemetry
from traceplane.dispatcher.leases.judged import Judged
from traceplane.postgres import commits, compaction
from traceplane.postgres.compaction import RangeState
from traceplane.postgres.database import Transaction
from traceplane.wire.tasks import TaskError


@dataclass(frozen=True, slots=True)
class Compacted:
    states: Mapping[UUID, RangeState]

    def judge(self, report: Judged) -> Judged:
        """Without outputs if they are no longer of use; as a failure if rows were lost."""
        if not _merges(report):
            return report
        state = self.states.get(report.task_id)
        if state is None or not state.is_unchanged:
            return replace(report, call=replace(report.call, outputs=(), implied=(), events=()))
        rows = sum(output.row_count for output in report.outputs)
        if rows > state.rows or (state.is_exact and rows != state.rows):
            message = f"{state.rows} rows were read and {rows} written"
            return report.failed(TaskError("compact.rows_differ", message))
        return report

    async def settle(self, tx: Transaction, completed: Sequence[Judged]) -> None:
        merged = [(r.task_id, self.states[r.task_id]) for r in completed if _merges(r) and r.outputs]
        if merged:
            await compaction.settle(tx, merged)
            telemetry.count("files_compacted_total", len(merged))


async def read_states(tx: Transaction, judged: Sequence[Judged]) -> Compacted:
    """What readers see of the ranges that were merged; until the transaction ends, nobody else changes them."""
    merging = [report for report in judged if _merges(report)]
    if not merging:
        return Compacted({})
    await commits.wait_for_others(tx, {o.generation_id for report in merging for o in report.outputs})
    return Compacted(await compaction.states(tx, [report.task_id for report in merging]))


def _merges(report: Judged) -> bool:
    return report.completes and report.task is not None and report.task.compacts
