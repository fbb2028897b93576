"""Dead letters of buffered datasets: completed attempts whose rows a sink could not write.

Their files are kept. Replayed, a letter goes back to its sink as it is; dropped, it is gone, and its task needs nobody
any more. To compute its rows anew, its task is retried.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec

from traceplane.auth.rights import access_of
from traceplane.errors import NotFound
from traceplane.gateway.refused_names import unknown_dataset
from traceplane.gateway.tasks import (
    CHANGED_AT_ONCE,
    READER,
    WRITER,
    as_seen_by,
    change_tasks,
    refuse_unknown,
    scope_text,
    task_id_of,
)
from traceplane.http_service.routes import Call, Route
from traceplane.model.advice import letter_step
from traceplane.postgres import buffers, registry
from traceplane.postgres.buffers import DeadLetter
from traceplane.postgres.database import Transaction
from traceplane.postgres.tasks import TaskFilter
from traceplane.wire.control import TaskChanges, TaskSelection
from traceplane.wire.dead_letters import (
    DeadLetterDetail,
    DeadLetterQuery,
    DeadLettersResponse,
    DeadLetterView,
    LetterFileView,
)
from traceplane.wire.tasks import RefusedRow

_FILES_SHOWN = 100


class DeadLetterApi:
    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/dead-letters", None, DeadLettersResponse, self.listing, READER,
                  "Dead letters of buffered datasets, oldest first.", query=DeadLetterQuery),
            Route("GET", "/api/v1/dead-letters/{task_id}", None, DeadLetterDetail, self.letter, READER,
                  "One dead letter with its files and the row that was refused."),
            Route("POST", "/api/v1/dead-letters/replay", TaskSelection, TaskChanges, self.replay, WRITER,
                  "Let sinks try dead letters again."),
            Route("POST", "/api/v1/dead-letters/drop", TaskSelection, TaskChanges, self.drop, WRITER,
                  "Give dead letters up."),
        ]  # fmt: skip

    async def listing(self, call: Call[None]) -> DeadLettersResponse:
        query: DeadLetterQuery = call.query
        org = call.principal.org
        async with call.principal.database.transaction() as tx:
            access = await access_of(tx, org, call.principal)
            letters = await buffers.letters(
                tx,
                org,
                dag=query.dag,
                job=query.job,
                dataset=query.dataset,
                after=query.after,
                without=access.hidden_ids,
                limit=query.limit,
            )
            if not letters:
                await refuse_unknown(tx, org, query.dag, query.job, access)
                if query.dataset is not None:
                    known = await registry.datasets_by_id(tx, org, [query.dataset])
                    if not access.readable(known):
                        raise await unknown_dataset(tx, org, query.dataset, access)
            letters = await as_seen_by(tx, call.principal, letters, access)
        after = letters[-1].report_id if len(letters) == query.limit else None
        return DeadLettersResponse([_view(letter) for letter in letters], after)

    async def letter(self, call: Call[None]) -> DeadLetterDetail:
        task_id, org = task_id_of(call), call.principal.org
        async with call.principal.database.transaction() as tx:
            access = await access_of(tx, org, call.principal)
            letters = await buffers.letters(tx, org, task_id=task_id, without=access.hidden_ids, limit=1)
            if not letters:
                raise NotFound(
                    "dead_letter.unknown",
                    "there is no dead letter of such a task",
                    value=str(task_id),
                    next_step="see `traceplane dead-letter list`; `traceplane explain` says how the task stands",
                )
            (letter,) = await as_seen_by(tx, call.principal, letters, access)
            files = await buffers.letter_files(tx, task_id, _FILES_SHOWN)
            why = (await buffers.why_not_replayed(tx, org, [task_id])).get(task_id)
        error = letter.error or {}
        return DeadLetterDetail(
            _view(letter),
            [LetterFileView(f.dataset_id, f.path, f.rows, f.bytes) for f in files],
            row=msgspec.convert(error["row"], RefusedRow) if error.get("row") else None,
            why_not_replayed=why,
            next_step=letter_step(
                str(error.get("code", "")), task_id=task_id, step=error.get("next_step"), why_not=why
            ),
        )

    async def replay(self, call: Call[TaskSelection]) -> TaskChanges:
        org, asked = call.principal.org, call.body

        async def choose(tx: Transaction, chosen: TaskFilter) -> list[UUID]:
            return await buffers.choose_letters(
                tx, org, chosen, CHANGED_AT_ONCE, after=asked.after, to_replay=True
            )

        async def change(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, str]:
            return dict.fromkeys(await buffers.replay(tx, org, task_ids), "running")

        return await change_tasks(call.principal, asked, choose, change, buffers.why_not_replayed)

    async def drop(self, call: Call[TaskSelection]) -> TaskChanges:
        org, asked, by = call.principal.org, call.body, call.principal.name

        async def choose(tx: Transaction, chosen: TaskFilter) -> list[UUID]:
            return await buffers.choose_letters(
                tx, org, chosen, CHANGED_AT_ONCE, after=asked.after, to_replay=False
            )

        async def change(tx: Transaction, task_ids: Sequence[UUID]) -> dict[UUID, str]:
            return dict.fromkeys(await buffers.drop(tx, org, task_ids, by), "dropped")

        return await change_tasks(call.principal, asked, choose, change, buffers.why_not_replayed)


def _view(letter: DeadLetter) -> DeadLetterView:
    return DeadLetterView(
        task_id=letter.task_id,
        dag=letter.dag,
        job=letter.job,
        dataset=letter.dataset_id,
        attempt=letter.attempt,
        tries=letter.tries,
        rows=letter.rows,
        bytes=letter.bytes,
        files=letter.files,
        handed_over_at=letter.created_at.isoformat(),
        failed_at=letter.failed_at.isoformat(),
        scope=scope_text(letter),
        error=letter.error,
        standing=letter.standing,
    )
