"""Rows of hot inputs that a task has written elsewhere leave their table, in the transaction that commits the task.

A task may move only the rows it has read: if its input changed since then, the task is retried.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from traceplane.dispatcher.leases.hot_writes import HotWrites
from traceplane.dispatcher.leases.job_entry import job_entry
from traceplane.dispatcher.leases.judged import Judged
from traceplane.postgres import commits, hot_tables, registry
from traceplane.postgres.commits import OutputCommit
from traceplane.postgres.database import Transaction
from traceplane.wire.tasks import TaskError


@dataclass(frozen=True, slots=True)
class Move:
    task_id: UUID
    state: str
    """The state of the positions when the task read them."""
    commit: OutputCommit
    """A commit of the hot generation that records where the moved rows are now."""


class Compaction:
    def __init__(self, hot: HotWrites) -> None:
        self._hot = hot
        self._moved_inputs: dict[UUID, dict[int, UUID]] = {}

    async def moves(self, tx: Transaction, judged: Sequence[Judged]) -> list[Move]:
        """The moves that completed tasks request."""
        moves: list[Move] = []
        for report in judged:
            call = report.call
            if not report.completes or not call.hot_reads or not call.outputs:
                continue
            assert report.task is not None
            generations = await self._inputs_to_move(tx, report.task.job_id)
            for read in call.hot_reads:
                if read.input_index in generations:
                    commit = replace(
                        call.outputs[0],
                        output_index=-1 - read.input_index,
                        generation_id=generations[read.input_index],
                        schema=None,
                    )
                    moves.append(Move(report.task_id, read.state, commit))
        return moves

    async def _inputs_to_move(self, tx: Transaction, job_id: UUID) -> dict[int, UUID]:
        """The hot inputs of a job that deletes what it has compacted, and their generations."""
        if job_id not in self._moved_inputs:
            (row,) = await registry.job_payloads(tx, [job_id])
            entry = job_entry(row)
            self._moved_inputs[job_id] = {
                i.input_index: generation
                for i, generation in zip(entry.payload.inputs, entry.row_generations, strict=True)
                if entry.deletes_inputs and i.hot
            }
        return self._moved_inputs[job_id]

    async def apply(self, tx: Transaction, moves: Sequence[Move]) -> None:
        if not moves:
            return
        tables = await self._hot.tables({move.commit.generation_id for move in moves}, tx)
        await commits.record(tx, [move.commit for move in moves])
        for move in moves:
            commit = move.commit
            await hot_tables.clear(tx, tables[commit.generation_id], commit.start, commit.end)


async def changed_inputs(tx: Transaction, moves: Sequence[Move]) -> dict[UUID, TaskError]:
    """The error of each task whose input is not what it read; the hot generations are locked."""
    if not moves:
        return {}
    states = await hot_tables.states(
        tx, [(m.commit.generation_id, m.commit.start, m.commit.end) for m in moves]
    )
    return {
        move.task_id: TaskError(
            "compact.input_changed",
            f"rows of {move.commit.partition_key or move.commit.start} were written while the task ran",
            next_step="none: the task is retried",
        )
        for move, state in zip(moves, states, strict=True)
        if move.state != state
    }
