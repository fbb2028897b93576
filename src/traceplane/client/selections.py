"""Changes of many tasks: some by their ids, or those of a DAG, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal
from uuid import UUID

import msgspec

from traceplane.client.connection import checked_arguments, uuid_of
from traceplane.wire.control import TaskChanges, TaskSelection


def selected(
    task_ids: Sequence[UUID | str],
    dag: str | None,
    job: str | None,
    start: int | str | None,
    end: int | str | None,
    state: Literal["dead", "canceled"] = "dead",
) -> TaskSelection:
    ids = [uuid_of(task_id, "task_ids", "tasks()") for task_id in task_ids]
    with checked_arguments():
        return TaskSelection(ids, dag, job, start, end, state)


def all_changes(page: Callable[[TaskSelection], TaskChanges], request: TaskSelection) -> TaskChanges:
    """The changes of one call for tasks by their ids, and of as many as it takes for those of a DAG."""
    last = page(request)
    changed, unchanged, why = dict(last.changed), list(last.unchanged), dict(last.why_unchanged)
    while last.after is not None and last.changed:
        last = page(msgspec.structs.replace(request, after=last.after))
        changed |= last.changed
        unchanged += last.unchanged
        why |= last.why_unchanged
    return TaskChanges(changed, unchanged, why_unchanged=why)
