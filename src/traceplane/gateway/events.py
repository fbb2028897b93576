"""Events as people look at them, and everything that one of them caused.

What an event caused is a tree of two kinds of nodes: the tasks that it fed, the events that those produced, and so on.
It is read a level at a time, each level by one statement over all its nodes. So what the caller may not see is left out
with all below it, and what several of them led to is followed once. A wide or deep tree is cut: a node says how
much of it was left out, and can be asked for as a root of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from traceplane.auth.rights import Access, access_of
from traceplane.errors import InvalidInput, NotFound
from traceplane.gateway import partition_names as names
from traceplane.gateway.refused_names import unknown_dataset
from traceplane.gateway.tasks import no_task, task_id_of
from traceplane.http_service.routes import Call, Route
from traceplane.model.positions import Range
from traceplane.postgres import coverage_strip, effects, registry, scopes
from traceplane.postgres.database import Transaction
from traceplane.postgres.effects import FedTask, StoredEvent, TaskCommit
from traceplane.wire.events import (
    Effect,
    EffectCommit,
    EffectsQuery,
    EffectsResponse,
    EffectTask,
    EventList,
    EventQuery,
    EventView,
)

_LOOKED_AT = (2_000, 20_000, 200_000)
"""How many events are looked through for one page: the next number if the one before did not fill it."""
_MOST_EFFECTS = 1_000
"""In one answer."""
_COUNTED = 1_000
_ANNOUNCED_LOOKED_AT = 500
_COMMITS = 10
"""Of one task."""


class EventApi:
    def routes(self) -> list[Route]:
        return [
            Route("GET", "/api/v1/events", None, EventList, self.listing, "reader", "Events, newest first.",
                  query=EventQuery),
            Route("GET", "/api/v1/events/{event_id}/effects", None, EffectsResponse, self.of_event, "reader",
                  "Everything that an event caused.", query=EffectsQuery),
            Route("GET", "/api/v1/tasks/{task_id}/effects", None, EffectsResponse, self.of_task, "reader",
                  "Everything that a task caused.", query=EffectsQuery),
        ]  # fmt: skip

    # Lists -----------------------------------------------------------------------------------------

    async def listing(self, call: Call[None]) -> EventList:
        query, org = call.query, call.principal.org
        _check(query)
        async with call.principal.database.snapshot() as tx:
            access = await access_of(tx, org, call.principal)
            if query.dataset is not None and (
                not access.reads(query.dataset)
                or await coverage_strip.dataset(tx, org, query.dataset) is None
            ):
                raise await unknown_dataset(tx, org, query.dataset, access)
            found, before, more = await _listed(tx, org, query, access)
            views = await _views(tx, org, found, access)
        return EventList(views, before, more)

    # Effects ---------------------------------------------------------------------------------------

    async def of_event(self, call: Call[None]) -> EffectsResponse:
        query, org, event_id = call.query, call.principal.org, _event_id(call)
        async with call.principal.database.snapshot() as tx:
            access = await access_of(tx, org, call.principal)
            event = await effects.by_id(tx, org, event_id)
            if event is None or not access.reads(event.dataset_id):
                raise _no_event(event_id)
            tree = _Tree(tx, org, access, query)
            tree.add(_Node(event))
            return await tree.grown()

    async def of_task(self, call: Call[None]) -> EffectsResponse:
        query, org, task_id = call.query, call.principal.org, task_id_of(call)
        async with call.principal.database.snapshot() as tx:
            access = await access_of(tx, org, call.principal)
            task = await effects.task(tx, org, task_id, access.hidden_ids)
            if task is None:
                raise no_task(task_id)
            tree = _Tree(tx, org, access, query)
            tree.add(_Node(task))
            return await tree.grown()


def _check(query: EventQuery) -> None:
    if (query.start is None) != (query.end is None) or (query.start is not None and query.dataset is None):
        raise InvalidInput(
            "event.bad_range",
            "a range needs a dataset, a start and an end",
            value=f"{query.start or ''}..{query.end or ''}",
            next_step="give dataset, start and end",
        )


async def _listed(
    tx: Transaction, org: str, query: EventQuery, access: Access
) -> tuple[list[StoredEvent], int | None, bool]:
    """The events of a page, where the next one begins, and whether a range has more."""
    without = sorted(access.unreadable)
    if query.task_id is not None or query.commit_id is not None:
        found = await _told_by(tx, org, query, access, query.limit + 1)
        kept = [e for e in found if query.kind in (None, e.kind) and query.dataset in (None, e.dataset_id)]
        return kept[: query.limit], None, len(found) > query.limit
    if query.dataset is not None and query.start is not None and query.end is not None:
        dataset = await coverage_strip.dataset(tx, org, query.dataset)
        assert dataset is not None
        partitions = await names.with_names(tx, org, dataset.partitions, query.start, query.end)
        first, last = names.positions(partitions, query.start, query.end)
        found = await effects.of_positions(
            tx, org, query.dataset, first, last, kind=query.kind, limit=query.limit + 1
        )
        return found[: query.limit], None, len(found) > query.limit
    newest = await effects.newest_id(tx) if query.before is None else query.before - 1
    found, last = [], newest
    for number in _LOOKED_AT:
        first = max(1, last - number + 1)
        found += await effects.recent(
            tx,
            org,
            first,
            last,
            dataset_id=query.dataset,
            kind=query.kind,
            without=without,
            limit=query.limit - len(found),
        )
        if len(found) == query.limit:
            return found, found[-1].event_id, False
        last = first - 1
        if last < 1:
            return found, None, False
    return found, last + 1, False


async def _told_by(
    tx: Transaction, org: str, query: EventQuery, access: Access, limit: int
) -> list[StoredEvent]:
    """Events of one commit, or of one task."""
    if query.commit_id is not None:
        found = await effects.of_commit(tx, org, query.commit_id, limit=limit)
        return [event for event in found if access.reads(event.dataset_id)]
    assert query.task_id is not None
    if await effects.task(tx, org, query.task_id, access.hidden_ids) is None:
        return []
    without = sorted(access.unreadable)
    return await effects.produced(tx, org, [query.task_id], limit=limit, without=without)


def _event_id(call: Call[None]) -> int:
    text = call.path_params["event_id"]
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidInput("event.bad_id", "the id of an event is a number", value=text)
    return int(text)


def _no_event(event_id: int) -> NotFound:
    return NotFound(
        "event.unknown",
        "there is no such event",
        value=str(event_id),
        next_step="see `traceplane events`; events are kept for the time of the setting history",
    )


async def _views(tx: Transaction, org: str, found: Sequence[StoredEvent], access: Access) -> list[EventView]:
    producers = await effects.producers(
        tx, org, list({event.producer_id for event in found}), access.hidden_ids
    )
    return [_view(event, producers.get(event.producer_id)) for event in found]


def _view(event: StoredEvent, producer: tuple[str, str] | None) -> EventView:
    dag, job = producer or (None, None)
    return EventView(
        event_id=event.event_id,
        dataset=event.dataset_id,
        kind=event.kind,
        scope=_scope(event) or "",
        created_at=event.created_at.isoformat(),
        backfill=event.backfill,
        emission=event.emission,
        task_id=event.producer_id if producer is not None else None,
        dag=dag,
        job=job,
        serving=event.serving,
    )


def _scope(row: StoredEvent | FedTask | TaskCommit) -> str | None:
    if row.range_start is None:
        return None
    return str(row.partition_key if row.partition_key is not None else row.range_start)


# What an event or a task caused -----------------------------------------------------------------------


@dataclass(slots=True)
class _Node:
    of: StoredEvent | FedTask
    parent: int | None = None
    left_out: int = 0
    next: str | None = None
    shown_at: int | None = None
    commits: list[TaskCommit] = field(default_factory=list)


class _Tree:
    """Grows a level at a time, until it is complete, deep enough, or as large as an answer may be."""

    def __init__(self, tx: Transaction, org: str, access: Access, query: EffectsQuery) -> None:
        self._tx, self._org, self._access, self._query = tx, org, access, query
        self._without = sorted(access.unreadable)
        self._nodes: list[_Node] = []
        self._places: dict[UUID | int, int] = {}
        """Where each task and event is shown first."""

    def add(self, node: _Node) -> int:
        self._nodes.append(node)
        place = len(self._nodes) - 1
        key = node.of.task_id if isinstance(node.of, FedTask) else node.of.event_id
        node.shown_at = self._places.get(key)
        self._places.setdefault(key, place)
        return place

    async def grown(self) -> EffectsResponse:
        level = [0]
        for _ in range(self._query.depth):
            if not level:
                break
            level = await self._grow(level)
        await self._count(level, shown={})  # what lies deeper than it was asked for
        return await self._response()

    async def _grow(self, level: Sequence[int]) -> list[int]:
        """Adds what the nodes of a level caused; returns the places of what is new."""
        room, width = _MOST_EFFECTS - len(self._nodes), self._query.width
        children: dict[int, list[StoredEvent | FedTask]] = {place: [] for place in level}
        for place, child in await self._children(level, width + 1):
            children[place].append(child)
        added: list[int] = []
        cut: dict[int, int] = {}
        for place, found in children.items():
            shown = found[: min(width, room)]
            room -= len(shown)
            if len(shown) < len(found):
                cut[place] = len(shown)
                if shown:
                    self._nodes[place].next = _key(shown[-1])
            added += [self.add(_Node(child, place)) for child in shown]
        await self._count(list(cut), shown=cut)
        return [place for place in added if self._nodes[place].shown_at is None]

    async def _children(self, level: Sequence[int], limit: int) -> list[tuple[int, StoredEvent | FedTask]]:
        tx, org, hidden, after = self._tx, self._org, self._access.hidden_ids, self._query.after
        is_root = level[0] == 0
        by_event, by_task = self._places_of(level)
        fed: list[FedTask] = []
        produced: list[StoredEvent] = []
        if by_event:
            behind = _uuid(after) if after is not None and is_root else None
            fed = await effects.fed(tx, org, list(by_event), limit=limit, without=hidden, after=behind)
        if by_task and after is not None and is_root:
            (task_id,) = by_task
            produced = await effects.produced_after(
                tx, org, task_id, _number(after), limit=limit, without=self._without
            )
        elif by_task:
            produced = await effects.produced(tx, org, list(by_task), limit=limit, without=self._without)
        announced: list[tuple[UUID, StoredEvent]] = []
        if by_task and not (after is not None and is_root):
            tasks = [self._nodes[place].of for place in by_task.values()]
            announced = await _announced(tx, org, [t for t in tasks if isinstance(t, FedTask)], self._without)
        return [
            *((by_event[task.event_id], task) for task in fed if task.event_id is not None),
            *((by_task[event.producer_id], event) for event in produced),
            *((by_task[task_id], event) for task_id, event in announced),
        ]

    async def _count(self, places: Sequence[int], *, shown: dict[int, int]) -> None:
        """How much of each node is left out, after the first that are shown."""
        by_event, by_task = self._places_of(places)
        if by_event:
            counts = await effects.count_fed(
                self._tx, list(by_event), _COUNTED + self._query.width, self._access.hidden_ids
            )
            for event_id, number in counts.items():
                self._leave_out(by_event[event_id], number, shown)
        if by_task:
            produced = await effects.count_produced(self._tx, list(by_task), _COUNTED + self._query.width)
            for task_id, number in produced.items():
                self._leave_out(by_task[task_id], number, shown)

    def _leave_out(self, place: int, number: int, shown: dict[int, int]) -> None:
        left = number - shown.get(place, 0)
        if place == 0 and self._query.after is not None:
            left = max(1, left)  # what came before was not counted
        self._nodes[place].left_out = min(_COUNTED, max(0, left))

    def _places_of(self, places: Sequence[int]) -> tuple[dict[int, int], dict[UUID, int]]:
        by_event: dict[int, int] = {}
        by_task: dict[UUID, int] = {}
        for place in places:
            match self._nodes[place].of:
                case StoredEvent() as event:
                    by_event[event.event_id] = place
                case FedTask() as task:
                    by_task[task.task_id] = place
        return by_event, by_task

    async def _response(self) -> EffectsResponse:
        tx, org = self._tx, self._org
        tasks = [key for key in self._places if isinstance(key, UUID)]
        for commit in await effects.commits(tx, org, tasks, limit=_COMMITS + 1, without=self._without):
            self._nodes[self._places[commit.task_id]].commits.append(commit)
        stored = [node.of for node in self._nodes if isinstance(node.of, StoredEvent)]
        views = {view.event_id: view for view in await _views(tx, org, stored, self._access)}
        return EffectsResponse(
            [
                Effect(
                    parent=node.parent,
                    event=views[node.of.event_id] if isinstance(node.of, StoredEvent) else None,
                    task=_task(node.of, node.commits) if isinstance(node.of, FedTask) else None,
                    left_out=node.left_out,
                    next=node.next,
                    shown_at=node.shown_at,
                )
                for node in self._nodes
            ]
        )


async def _announced(
    tx: Transaction, org: str, tasks: Sequence[FedTask], without: Sequence[str]
) -> list[tuple[UUID, StoredEvent]]:
    """Batches that became full and scopes that became ready because of tasks of the dispatcher."""
    own = [task for task in tasks if task.runtime == "dispatcher" and task.range_start is not None]
    if not own:
        return []
    jobs = await registry.job_payloads(tx, list({task.job_id for task in own}))
    edges = {row.job_id: {i.input_index: edge for i, edge in row.edges()} for row in jobs}
    fed = await effects.inputs_fed(tx, [task.task_id for task in own])
    concerned: list[tuple[UUID, Range]] = []
    by_time: dict[UUID, list[tuple[UUID, int, Range]]] = {}
    for task in own:
        assert task.range_start is not None
        assert task.range_end is not None
        change = task.range_start, task.range_end
        for index in fed.get(task.task_id, []):
            edge = edges[task.job_id][index]
            if edge.read.time_column is None:
                concerned.append((task.task_id, edge.concerned(change)))
            else:
                by_time.setdefault(task.job_id, []).append((task.task_id, index, change))
    for job_id, asked in by_time.items():  # the periods in which the rows are now, as they were told
        told = await scopes.periods_of_positions(tx, job_id, [(index, change) for _, index, change in asked])
        for (task_id, _, change), extents in zip(asked, told, strict=True):
            concerned += [(task_id, periods) for periods in extents.concerned(change)]
    found = await effects.announced(tx, org, concerned, looked_at=_ANNOUNCED_LOOKED_AT, without=without)
    return list({(task_id, event.event_id): (task_id, event) for task_id, event in found}.values())


def _task(row: FedTask, commits: Sequence[TaskCommit]) -> EffectTask:
    return EffectTask(
        task_id=row.task_id,
        dag=row.dag,
        job=row.job,
        state=row.state,
        kind=row.kind,
        attempt=row.attempt,
        max_attempts=row.max_attempts,
        created_at=row.created_at.isoformat(),
        scope=_scope(row),
        started_at=row.started_at.isoformat() if row.started_at else None,
        finished_at=row.finished_at.isoformat() if row.finished_at else None,
        commits=[
            EffectCommit(
                c.commit_id, c.dataset_id, _scope(c) or "", c.row_count, c.bytes, c.committed_at.isoformat()
            )
            for c in commits[:_COMMITS]
        ],
        more_commits=len(commits) > _COMMITS,
    )


def _key(child: StoredEvent | FedTask) -> str:
    return str(child.event_id if isinstance(child, StoredEvent) else child.job_id)


def _uuid(after: str) -> UUID:
    return _parsed(UUID, after)


def _number(after: str) -> int:
    return _parsed(int, after)


Key = TypeVar("Key", UUID, int)


def _parsed(parse: Callable[[str], Key], after: str) -> Key:
    try:
        return parse(after)
    except ValueError:
        raise InvalidInput(
            "event.bad_after", "`after` is the `next` of an earlier answer about the same root", value=after
        ) from None
