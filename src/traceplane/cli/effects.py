"""`traceplane event list`: events that were accepted; `traceplane event effects`: all that one of them caused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from uuid import UUID

import click

from traceplane.cli.events import event
from traceplane.cli.output import as_json, moment, say, say_json
from traceplane.cli.scopes import parse_ends
from traceplane.cli.whereabouts import call
from traceplane.errors import InvalidInput
from traceplane.settings import Settings
from traceplane.wire.events import Effect, EffectsResponse, EffectTask, EventList, EventView


@event.command("list")
@click.option("--dataset", help="Only events of this dataset.")
@click.option("--kind", type=click.Choice(["data", "invalidation"]))
@click.option(
    "--range",
    "range_",
    metavar="A..B",
    help="Only scopes of the dataset that begin from A to B, inclusive; by position, the last one first.",
)
@click.option("--task", "task_id", type=click.UUID, help="Only events that this task produced.")
@click.option("--commit", "commit_id", type=int, help="Only events that tell of this commit.")
@click.option("--before", type=int, help="Only events older than this one.")
@click.option("--limit", default=50, show_default=True)
@as_json
@click.pass_obj
def list_(
    settings: Settings,
    dataset: str | None,
    kind: str | None,
    range_: str | None,
    task_id: UUID | None,
    commit_id: int | None,
    before: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """List events, newest first."""
    start, end = parse_ends(range_) if range_ is not None else (None, None)
    filters = {
        "dataset": dataset,
        "kind": kind,
        "start": start,
        "end": end,
        "task_id": task_id,
        "commit_id": commit_id,
        "before": before,
        "limit": limit,
    }
    query = {name: str(value) for name, value in filters.items() if value is not None}
    answer = call(settings, lambda c: c.call("GET", "/api/v1/events", EventList, query=query))
    if as_json:
        say_json(answer)
        return
    for one in answer.events:
        say(f"{one.event_id}  {moment(one.created_at)}  {_event(one)}  by {producer(one)}")
    if answer.before is not None:
        say(f"For older ones: --before {answer.before}")
    elif answer.more:
        say("There are more; narrow the range or raise --limit.")
    elif not answer.events:
        say("No event matches.")


def producer(of: EventView) -> str:
    """Of a dataset with `#`, which the dispatcher keeps for a job, events are no task's: it makes them itself."""
    if of.job is not None:
        return f"{of.dag}/{of.job}"
    return "the dispatcher" if "#" in of.dataset else "a source"


@event.command()
@click.argument("root", metavar="EVENT | TASK")
@click.option(
    "--depth", default=12, show_default=True, help="Steps down, from an event to its tasks or back."
)
@click.option("--width", default=20, show_default=True, help="How much of one event or task is shown.")
@click.option("--after", help="Go on behind this, which an earlier answer named.")
@as_json
@click.pass_obj
def effects(settings: Settings, root: str, depth: int, width: int, after: str | None, as_json: bool) -> None:
    """Show everything that an event or a task caused, as a tree: tasks, their commits, the events of those."""
    given = {"depth": depth, "width": width, "after": after}
    query = {name: str(value) for name, value in given.items() if value is not None}
    answer = call(settings, lambda c: c.call("GET", _path(root), EffectsResponse, query=query))
    if as_json:
        say_json(answer)
        return
    for line in tree(answer):
        say(line)


def _path(root: str) -> str:
    if root.isascii() and root.isdigit():
        return f"/api/v1/events/{root}/effects"
    try:
        return f"/api/v1/tasks/{UUID(root)}/effects"
    except ValueError:
        raise InvalidInput(
            "cli.bad_event",
            "effects needs the id of an event, which is a number, or of a task, which is a UUID",
            value=root,
            next_step="use an id from `traceplane events` or `traceplane tasks`",
        ) from None


def tree(answer: EffectsResponse) -> Iterator[str]:
    """One line for each event, task and commit, below what caused it."""
    nodes = answer.effects
    below: dict[int, list[int]] = {}
    for place, node in enumerate(nodes):
        if node.parent is not None:
            below.setdefault(node.parent, []).append(place)
    begun = _begun(nodes[0])
    yield _line(nodes[0], begun)
    # Deep trees need no deep stack.
    waiting: list[tuple[str, list[str | int]]] = [("", _rows(nodes, 0, below))]
    while waiting:
        indent, rows = waiting[-1]
        if not rows:
            waiting.pop()
            continue
        row = rows.pop(0)
        branch, rest = ("├─ ", "│  ") if rows else ("└─ ", "   ")
        if isinstance(row, str):
            yield f"{indent}{branch}{row}"
        else:
            yield f"{indent}{branch}{_line(nodes[row], begun)}"
            waiting.append((indent + rest, _rows(nodes, row, below)))


def _rows(nodes: Sequence[Effect], place: int, below: dict[int, list[int]]) -> list[str | int]:
    node = nodes[place]
    rows: list[str | int] = []
    if node.shown_at is not None:
        return rows
    if node.task is not None:
        rows += [
            f"committed {c.dataset} {c.scope}: {c.rows:,} {'row' if c.rows == 1 else 'rows'} (commit {c.commit_id})"
            for c in node.task.commits
        ]
        if node.task.more_commits:
            rows.append("and more commits")
    rows += below.get(place, [])
    if node.left_out:
        more = "1,000 or more" if node.left_out >= 1000 else f"{node.left_out:,}"
        root = node.event.event_id if node.event is not None else node.task.task_id  # type: ignore[union-attr]
        after = f" --after {node.next}" if node.next is not None else ""
        rows.append(f"and {more} more: traceplane effects {root}{after}")
    return rows


def _line(node: Effect, begun: datetime) -> str:
    again = "  (see above)" if node.shown_at is not None else ""
    if node.event is not None:
        since = _since(node.event.created_at, begun)
        return f"event {node.event.event_id}  {_event(node.event)}{since}{again}"
    assert node.task is not None
    return f"{_task(node.task)}{_since(node.task.created_at, begun)}{again}"


def _event(of: EventView) -> str:
    marks = [
        *(["correction"] if of.kind == "invalidation" else []),
        *(["backfill"] if of.backfill else []),
        *([] if of.serving else ["not of the version that serves"]),
    ]
    return f"{of.dataset} {of.scope}" + (f" ({', '.join(marks)})" if marks else "")


def _task(task: EffectTask) -> str:
    ran = ""
    if task.started_at is not None and task.finished_at is not None:
        seconds = (_time(task.finished_at) - _time(task.started_at)).total_seconds()
        ran = f", ran {seconds:.1f} s"
    attempts = f", attempt {task.attempt} of {task.max_attempts}" if task.attempt > 1 else ""
    return f"task {task.task_id}  {task.dag}/{task.job} {task.scope or '-'}: {task.state}{attempts}{ran}"


def _begun(root: Effect) -> datetime:
    created = root.event.created_at if root.event is not None else root.task.created_at  # type: ignore[union-attr]
    return _time(created)


def _since(text: str, begun: datetime) -> str:
    seconds = (_time(text) - begun).total_seconds()
    return f"  +{seconds:.1f} s" if seconds > 0 else ""


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
