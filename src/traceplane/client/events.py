"""Events that were accepted, and everything that one of them caused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal
from uuid import UUID

from traceplane.client.connection import Connection, uuid_of
from traceplane.wire.events import EffectsResponse, EventList, EventView

_EVENTS = "/api/v1/events"
_PER_PAGE = 1000


class Events:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def each(
        self,
        *,
        dataset: str | None = None,
        kind: Literal["data", "invalidation"] | None = None,
        start: int | str | None = None,
        end: int | str | None = None,
        task_id: UUID | str | None = None,
        commit_id: int | None = None,
        limit: int | None = None,
    ) -> Iterator[EventView]:
        """Events, newest first; of a range of a dataset by position, the last one first, a thousand at most."""
        task = None if task_id is None else uuid_of(task_id, "task_id", "tasks()")
        seen, before = 0, None
        while True:
            page = self._connection.ask(
                "GET",
                _EVENTS,
                EventList,
                dataset=dataset,
                kind=kind,
                start=start,
                end=end,
                task_id=task,
                commit_id=commit_id,
                before=before,
                limit=_PER_PAGE if limit is None else min(_PER_PAGE, limit - seen),
            )
            yield from page.events
            seen, before = seen + len(page.events), page.before
            if before is None or seen == limit:
                return

    def effects(
        self, event_id: int, *, depth: int = 12, width: int = 20, after: str | None = None
    ) -> EffectsResponse:
        """Everything that an event caused, `depth` steps down, `width` of each event and task."""
        path = f"{_EVENTS}/{int(event_id)}/effects"
        return self._connection.ask("GET", path, EffectsResponse, depth=depth, width=width, after=after)

    def effects_of_task(
        self, task_id: UUID | str, *, depth: int = 12, width: int = 20, after: str | None = None
    ) -> EffectsResponse:
        """The same, of a task."""
        path = f"/api/v1/tasks/{uuid_of(task_id, 'task_id', 'tasks()')}/effects"
        return self._connection.ask("GET", path, EffectsResponse, depth=depth, width=width, after=after)
