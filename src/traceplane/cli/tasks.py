"""Commands for tasks and the status of the platform."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote
from uuid import UUID

import click
import msgspec

from traceplane.cli.coverage import contents, describe, say_why
from traceplane.cli.cron import describe as describe_cron
from traceplane.cli.failures import error_text, forgivable, logged, problems, unseen
from traceplane.cli.failures import explained as failure_lines
from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, say, say_json, say_json_line, say_lines, say_table
from traceplane.cli.scopes import MAY_BE_NEGATIVE, parse_ends, without_options
from traceplane.cli.whereabouts import call
from traceplane.errors import InvalidInput, NotFound
from traceplane.http_service.client import Caller
from traceplane.settings import Settings
from traceplane.wire.control import (
    ExplainResponse,
    ScopeExplanation,
    StatusResponse,
    TaskChanges,
    TaskLogs,
    TaskSelection,
    TasksResponse,
    TaskView,
)

_ENDED = ("completed", "dead", "canceled")
_FOLLOW_SECONDS = 1.0
_EXPLAINED_AT_MOST = 10
"""Of the tasks to retry: each costs a call."""

in_range = click.option(
    "--range",
    "range_",
    metavar="A..B",
    help="Only scopes with positions or partitions from A to B, inclusive.",
)


@click.group(cls=Noun)
def task() -> None:
    """The units of work: their state, their output, another try."""


@task.command("list")
@click.option("--dag", help="Only this DAG's.")
@click.option("--job", help="Only this job's.")
@in_range
@click.option(
    "--state", type=click.Choice(["queued", "dispatched", "running", "completed", "dead", "canceled"])
)
@click.option("--limit", default=50, show_default=True)
@as_json
@click.pass_obj
def list_(
    settings: Settings,
    dag: str | None,
    job: str | None,
    range_: str | None,
    state: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List tasks, newest first."""
    start, end = parse_ends(range_) if range_ is not None else (None, None)
    filters = {"dag": dag, "job": job, "start": start, "end": end, "state": state, "limit": str(limit)}
    query = {k: v for k, v in filters.items() if v is not None}
    _list(settings, query, as_json)


def _list(settings: Settings, query: dict[str, str], as_json: bool, none: str = "no tasks") -> None:
    """Prints the tasks that match, or `none`."""
    answer = call(settings, lambda c: c.call("GET", "/api/v1/tasks", TasksResponse, query=query))
    if as_json:
        say_json(answer)
        return
    say_table(("task", "state", "job", "scope", "attempt", ""), map(_cells, answer.tasks), none)


def _cells(t: TaskView) -> tuple[str, ...]:
    error = t.error if t.state in ("dead", "queued") else None
    standing = f" ({t.standing})" if t.standing not in (None, "open") else ""
    return (
        str(t.task_id),
        t.state,
        f"{t.dag}/{t.job}",
        t.scope or "-",
        f"attempt {t.attempt}/{t.max_attempts}{standing}",
        error_text(error) if error else "",
    )


@click.command(context_settings=MAY_BE_NEGATIVE)
@click.argument("subject", metavar="TASK | DATASET SCOPE", callback=without_options)
@click.argument("scope", metavar="", required=False, callback=without_options)
@click.option("--full", is_flag=True, help="Include the frames of libraries in the traceback.")
@as_json
@click.pass_obj
def explain(settings: Settings, subject: str, scope: str | None, full: bool, as_json: bool) -> None:
    """Explain why TASK waits or failed, or why SCOPE of DATASET (a position, partition or range A..B) is missing."""
    if scope is not None:
        first, last = parse_ends(scope)
        path = f"/api/v1/datasets/{quote(subject, safe='')}/explain"
        positions = {"first": first, "last": last}
        why = call(settings, lambda c: c.call("GET", path, ScopeExplanation, query=positions))
        say_json(why) if as_json else say_why(why)
        return
    try:
        task_id = UUID(subject)
    except ValueError:
        raise InvalidInput(
            "cli.bad_task",
            "explain needs a task id, which is a UUID, or a dataset and a scope",
            value=subject,
            next_step="use an id from `traceplane tasks`, or a dataset and a scope, for example shop.weekly 0-6",
        ) from None
    answer = call(settings, partial(_explanation, task_id))
    if as_json:
        say_json(answer)
        return
    for item in failure_lines(answer, full=full):
        say_lines(item)


@task.command()
@click.argument("task_id", type=click.UUID)
@click.option("--attempt", type=click.IntRange(min=1), help="Only this attempt's.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what the task writes, until it has ended.")
@as_json
@click.pass_obj
def logs(settings: Settings, task_id: UUID, attempt: int | None, follow: bool, as_json: bool) -> None:
    """Print the output of a task (`print` and `task.log`), attempt by attempt."""

    async def read(caller: Caller) -> TaskLogs:
        return await caller.call("GET", f"/api/v1/tasks/{task_id}/logs", TaskLogs)

    async def followed(caller: Caller) -> TaskLogs:
        seen: dict[int, int] = {}
        shown: set[int] = set()
        while True:
            answer = await read(caller)
            for number, lines in unseen(answer, attempt, seen):
                if not as_json and number > 1 and number not in shown:
                    say(f"--- attempt {number}")
                shown.add(number)
                for line in lines:
                    say_json_line({"attempt": number, "line": line}) if as_json else say(line)
            if answer.state in _ENDED:
                return answer
            await asyncio.sleep(_FOLLOW_SECONDS)

    if follow:
        call(settings, followed)
        return
    answer = call(settings, read)
    if as_json:
        say_json(answer)
        return
    for item in logged(answer, attempt):
        say_lines(item)


def selection(
    task_ids: tuple[UUID, ...], dag: str | None, job: str | None, range_: str | None, **more: Any
) -> TaskSelection:
    """The tasks that a command selects. Selecting none is refused: it would mean all tasks."""
    if bool(task_ids) == (dag is not None) or (dag is None and (job or range_)):
        raise InvalidInput(
            "cli.which_tasks",
            "select tasks by their ids, or by --dag with optional --job and --range",
            next_step="for example --dag shop --job totals --range 0..9",
        )
    start, end = parse_ends(range_) if range_ is not None else (None, None)
    return TaskSelection(list(task_ids), dag, job, start, end, **more)


WHY_UNCHANGED = {
    "unknown": "there is no such task",
    "retired": "its job's version is no longer deployed, so it cannot be retried",
    "pipeline": "its execution is over; run the pipeline again",
}


def change(settings: Settings, path: str, request: TaskSelection) -> TaskChanges:
    """One call for tasks selected by id; as many as it takes for those of a DAG."""

    async def changed_by(caller: Caller) -> TaskChanges:
        answer = await caller.call("POST", path, TaskChanges, request)
        changed, last = dict(answer.changed), answer
        while last.after is not None and last.changed:
            next_page = msgspec.structs.replace(request, after=last.after)
            last = await caller.call("POST", path, TaskChanges, next_page)
            changed |= last.changed
        return TaskChanges(changed, answer.unchanged, why_unchanged=answer.why_unchanged)

    return call(settings, changed_by)


def say_changes(
    request: TaskSelection,
    answer: TaskChanges,
    *,
    why_unchanged: Mapping[str, str] = WHY_UNCHANGED,
    none: str = "no tasks match",
) -> None:
    """`none`: what to say if nothing of a DAG changed."""
    if request.dag is None:
        for task_id, state in answer.changed.items():
            say(f"{task_id}  {state}")
        for unchanged in answer.unchanged:
            why = answer.why_unchanged[str(unchanged)]
            say(f"{unchanged}  unchanged: {why_unchanged.get(why, f'it is {why}')}")
    else:
        counts = Counter(answer.changed.values())
        say(", ".join(f"{n} {state}" for state, n in sorted(counts.items())) or none)


def _change(settings: Settings, verb: str, request: TaskSelection, as_json: bool) -> TaskChanges:
    answer = change(settings, f"/api/v1/tasks/{verb}", request)
    say_json(answer) if as_json else say_changes(request, answer)
    if not answer.changed:
        raise SystemExit(1)
    return answer


def of_a_dag(command: Any) -> Any:
    """The options that select tasks without their ids."""
    for option in (
        in_range,
        click.option("--job", help="Only this job's."),
        click.option("--dag", help="Tasks of this DAG, instead of ids."),
    ):
        command = option(command)
    return click.argument("task_ids", nargs=-1, type=click.UUID)(command)


@task.command()
@of_a_dag
@click.option("--canceled", is_flag=True, help="With --dag: canceled tasks instead of dead ones.")
@as_json
@click.pass_obj
def retry(
    settings: Settings,
    task_ids: tuple[UUID, ...],
    dag: str | None,
    job: str | None,
    range_: str | None,
    canceled: bool,
    as_json: bool,
) -> None:
    """Retry dead or canceled tasks, with a fresh set of attempts."""
    state = "canceled" if canceled else "dead"
    request = selection(task_ids, dag, job, range_, state=state)
    # What advises against it is known while they are dead.
    before = list(_explained(settings, task_ids[:_EXPLAINED_AT_MOST]))
    answer = _change(settings, "retry", request, as_json)
    for one in before:
        if one.retry_helps is False and str(one.task_id) in answer.changed:
            say(f"Warning: retrying {one.task_id} does not help. {one.next_step}", err=True)


def _explained(settings: Settings, task_ids: Sequence[UUID]) -> Iterator[ExplainResponse]:
    """Those of the tasks that there are."""
    for task_id in task_ids:
        with contextlib.suppress(NotFound):
            yield call(settings, partial(_explanation, task_id))


async def _explanation(task_id: UUID, caller: Caller) -> ExplainResponse:
    return await caller.call("GET", f"/api/v1/tasks/{task_id}/explain", ExplainResponse)


@task.command()
@of_a_dag
@as_json
@click.pass_obj
def cancel(
    settings: Settings,
    task_ids: tuple[UUID, ...],
    dag: str | None,
    job: str | None,
    range_: str | None,
    as_json: bool,
) -> None:
    """Cancel tasks: waiting ones immediately, running ones at their next heartbeat."""
    _change(settings, "cancel", selection(task_ids, dag, job, range_), as_json)


@task.command()
@of_a_dag
@as_json
@click.pass_obj
def ack(
    settings: Settings,
    task_ids: tuple[UUID, ...],
    dag: str | None,
    job: str | None,
    range_: str | None,
    as_json: bool,
) -> None:
    """Acknowledge dead tasks: `status` no longer lists them."""
    _change(settings, "acknowledge", selection(task_ids, dag, job, range_), as_json)


@task.command()
@click.option("--dag", help="Only this DAG's.")
@click.option("--job", help="Only this job's.")
@in_range
@click.option("--all", "all_", is_flag=True, help="Include those that need no action.")
@click.option("--limit", default=50, show_default=True)
@as_json
@click.pass_obj
def dead(
    settings: Settings,
    dag: str | None,
    job: str | None,
    range_: str | None,
    all_: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List dead tasks that need action, newest first."""
    start, end = parse_ends(range_) if range_ is not None else (None, None)
    standing = None if all_ else "open"
    filters = {"dag": dag, "job": job, "start": start, "end": end, "standing": standing}
    query = {k: str(v) for k, v in filters.items() if v is not None} | {"state": "dead", "limit": str(limit)}
    _list(settings, query, as_json, "no dead tasks" if all_ else "no dead tasks that need action")


@click.command()
@as_json
@click.pass_obj
def status(settings: Settings, as_json: bool) -> None:
    """Show failed and stuck work, then unfinished tasks per job and what each dataset holds."""
    answer = call(settings, lambda c: c.call("GET", "/api/v1/status", StatusResponse))
    if as_json:
        say_json(answer)
        return
    for line in problems(answer):
        say(line)
    for job, states in sorted(answer.counts.items()):
        say(f"{job}: " + ", ".join(f"{n} {state}" for state, n in sorted(states.items())))
    if not answer.counts:
        say("no unfinished tasks")
    for cron in answer.cron:
        say(f"{cron.dag}/{cron.job}: {describe_cron(cron)}")
    for d in answer.datasets:
        held = describe(d.coverage) if d.coverage is not None else ""
        say(f"{d.dataset}: {contents(d)}{held}")
    if (rest := forgivable(answer)) is not None:
        say(rest)
