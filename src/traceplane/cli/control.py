"""Commands for people who deploy DAGs and look after tasks. All of them call the gateway."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import UUID

import click
import msgspec

from traceplane.cli.coverage import describe, say_why
from traceplane.cli.failures import explained as failure_lines
from traceplane.cli.failures import forgivable, logged, problems, shortened
from traceplane.cli.output import ask, say, say_again, say_json, say_lines
from traceplane.cli.whereabouts import explained, with_user_token
from traceplane.client import deploy_request
from traceplane.errors import InvalidInput
from traceplane.http_service.client import Caller
from traceplane.model.positions import written
from traceplane.settings import Settings
from traceplane.wire.control import (
    BackfillRequest,
    BackfillResponse,
    CutoverRequest,
    DagName,
    DagsResponse,
    DeletedResponse,
    DeleteRequest,
    DeployResponse,
    EmitRequest,
    EmitResponse,
    ExplainResponse,
    ManualEvent,
    MovedResponse,
    PlanResponse,
    RollbackRequest,
    ScopeExplanation,
    StatusResponse,
    TaskChanges,
    TaskLogs,
    TaskSelection,
    TasksResponse,
    TaskView,
    VersionsResponse,
    VersionView,
)
from traceplane.wire.scalars import MAX_BATCH, Scope, Wire

Answer = TypeVar("Answer", bound=Wire)
MANY_EVENTS = 100_000
"""More than these are emitted at once only after a question."""


def call(settings: Settings, work: Callable[[Caller], Awaitable[Answer]]) -> Answer:
    """One conversation with the gateway."""
    chosen, token = with_user_token(settings)

    async def run() -> Answer:
        caller = Caller(chosen.gateway_address, token)
        try:
            return await work(caller)
        finally:
            await caller.close()

    with explained(settings):
        return asyncio.run(run())


as_json = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
with_code = click.option(
    "--code",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with the modules that the jobs run; they become part of the deploy. By default ./code.",
)


dropping = click.option(
    "--drop-missing", is_flag=True, help="Let it serve also if readers lose scopes that it does not compute."
)
code_on_workers = click.option(
    "--code-on-workers",
    is_flag=True,
    help="Modules that are in no folder here are on the workers; whether they are is not checked.",
)
keeping_data = click.option(
    "--no-rematerialize",
    is_flag=True,
    help="Keep the data of jobs whose execution_strategy is all that changed; refuse if others must be rebuilt.",
)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_code
@code_on_workers
@keeping_data
@as_json
@click.pass_obj
def plan(
    settings: Settings,
    file: Path,
    code: tuple[Path, ...],
    code_on_workers: bool,
    no_rematerialize: bool,
    as_json: bool,
) -> None:
    """Show what deploying FILE would do. Exit code 0: nothing, 3: changes, 4: it would be refused."""
    request = msgspec.structs.replace(
        deploy_request(settings, file, code, code_on_workers=code_on_workers),
        no_rematerialize=no_rematerialize,
    )
    answer = call(settings, lambda c: c.call("POST", "/v1/plan", PlanResponse, request))
    if as_json:
        say_json(answer)
    else:
        say_lines(answer.text)
        if answer.blocked:
            say(f"A deploy would be refused: {answer.blocked}")
    raise SystemExit(4 if answer.blocked else 0 if answer.noop else 3)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_code
@code_on_workers
@click.option(
    "--expect-version", type=click.IntRange(min=0), help="Refuse if another one is deployed; 0: none."
)
@click.option("--manual-cutover", is_flag=True, help="When it is built, wait for `traceplane cutover`.")
@dropping
@keeping_data
@click.option("--wait", is_flag=True, help="Wait until the version is built, and serves unless told to wait.")
@as_json
@click.pass_obj
def deploy(
    settings: Settings,
    file: Path,
    code: tuple[Path, ...],
    code_on_workers: bool,
    expect_version: int | None,
    manual_cutover: bool,
    drop_missing: bool,
    no_rematerialize: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Deploy the DAG in FILE. The same file twice changes nothing.

    What has to be computed anew is built beside what serves, which goes on serving until nothing is missing.
    """
    request = msgspec.structs.replace(
        deploy_request(settings, file, code, code_on_workers=code_on_workers),
        expect_version=expect_version,
        manual_cutover=manual_cutover,
        drop_missing=drop_missing,
        no_rematerialize=no_rematerialize,
    )
    answer = call(settings, lambda c: c.call("POST", "/v1/deploy", DeployResponse, request))
    if as_json:
        say_json(answer)
    else:
        say_lines(answer.text)
        if answer.changed:
            done = "is being built" if answer.building else "serves"
            say(f"Deployed {answer.dag} version {answer.version}, which {done}.")
    if wait and answer.building:
        _wait_for_build(settings, answer.dag, answer.version, quiet=as_json)


def _wait_for_build(settings: Settings, dag: str, version: int, *, quiet: bool) -> None:
    """Until the version serves, or waits to be told so. Exit code 1: it was given up, tasks of it are dead, or it lacks
    what nothing is under way for."""
    stuck_since: float | None = None
    query = {"dag": dag, "limit": "1000"}
    while True:
        found = call(settings, lambda c: c.call("GET", "/v1/versions", VersionsResponse, query=query))
        (mine,) = [v for v in found.versions if v.version == version]
        if not quiet:
            say_again(_build_line(mine))
        ready = not (mine.unfinished or mine.replays or mine.sources_behind)
        lacks = ready and not mine.dead and mine.state == "building" and bool(mine.lacking)
        stuck_since = (stuck_since or time.monotonic()) if lacks else None
        stuck = stuck_since is not None and time.monotonic() - stuck_since > _STUCK_SECONDS
        if (
            mine.state != "building"
            or stuck
            or (ready and (mine.dead or (mine.manual_cutover and not lacks)))
        ):
            if not quiet:
                say()
            if stuck:
                say(f"Nothing is under way for what it lacks, and {dag} goes on with the version before it.")
                say(f"Compute it, give the version up (`traceplane abort {dag}`),")
                say(f"or let it serve without it: `traceplane cutover {dag} --drop-missing`.")
                raise SystemExit(1)
            if mine.dead or mine.state not in ("active", "building"):
                say(_after_a_failed_build(dag, mine), err=True)
                raise SystemExit(1)
            return
        time.sleep(_LOOK_SECONDS)


def _after_a_failed_build(dag: str, version: VersionView) -> str:
    if version.state != "building":
        return f"Version {version.version} was given up; `traceplane versions {dag}` lists what serves."
    tasks = "1 dead task keeps" if version.dead == 1 else f"{version.dead} dead tasks keep"
    return (
        f"{tasks} it from serving; what served goes on. See them with `traceplane dead --dag {dag}` and "
        f"`traceplane explain`. Mend the cause and `traceplane retry --dag {dag}`, or give the version up with "
        f"`traceplane abort {dag}` and deploy a correction."
    )


def _build_line(version: VersionView) -> str:
    if version.state != "building":
        return f"version {version.version} is {version.state}"
    built, serving = sum(d.built for d in version.datasets), sum(d.serving for d in version.datasets)
    lacking = f"{version.unfinished}{'+' if version.unfinished == 1000 else ''} tasks to go"
    dead = f", {version.dead} dead" if version.dead else ""
    lost = ", ".join(f"{p.dataset} {written((p.first, p.last))}" for p in version.lacking[:3])
    lost = f"; lacks {lost}{', …' if len(version.lacking) > 3 else ''}" if lost else ""
    sources = "1 source has" if version.sources_behind == 1 else f"{version.sources_behind} sources have"
    behind = f"; {sources} yet to emit what the serving one did" if version.sources_behind else ""
    return f"version {version.version} is being built: {built} of {serving} scopes, {lacking}{dead}{lost}{behind}"


@click.command()
@click.argument("dag")
@click.option("--limit", default=20, show_default=True)
@as_json
@click.pass_obj
def versions(settings: Settings, dag: str, limit: int, as_json: bool) -> None:
    """List the versions of DAG, newest first, and how far one is that is being built."""
    query = {"dag": dag, "limit": str(limit)}
    answer = call(settings, lambda c: c.call("GET", "/v1/versions", VersionsResponse, query=query))
    if as_json:
        say_json(answer)
        return
    for v in answer.versions:
        since = f"active since {v.activated_at}" if v.state == "active" else v.state
        say(f"{v.version:>4}  {since}, deployed {v.created_at}")
        if v.state == "building":
            say(f"      {_build_line(v)}")
            for d in v.datasets:
                say(f"      {d.dataset}: {d.built} of {d.serving} scopes")


@click.command()
@click.argument("dag")
@dropping
@as_json
@click.pass_obj
def cutover(settings: Settings, dag: str, drop_missing: bool, as_json: bool) -> None:
    """Let the version of DAG that was built serve, all of its datasets at once."""
    request = CutoverRequest(dag, drop_missing)
    answer = call(settings, lambda c: c.call("POST", "/v1/cutover", MovedResponse, request))
    _print_moved(answer, as_json)


@click.command()
@click.argument("dag")
@click.option(
    "--to", type=click.IntRange(min=1), help="The version to go back to; by default the one before."
)
@as_json
@click.pass_obj
def rollback(settings: Settings, dag: str, to: int | None, as_json: bool) -> None:
    """Let an earlier version of DAG serve again, all of its datasets at once."""
    request = RollbackRequest(dag, to)
    answer = call(settings, lambda c: c.call("POST", "/v1/rollback", MovedResponse, request))
    _print_moved(answer, as_json)


@click.command()
@click.argument("dag")
@as_json
@click.pass_obj
def abort(settings: Settings, dag: str, as_json: bool) -> None:
    """Give up the version of DAG that is being built; what serves goes on."""
    answer = call(settings, lambda c: c.call("POST", "/v1/abort", MovedResponse, DagName(dag)))
    if as_json:
        say_json(answer)
    else:
        say(f"Version {answer.version} of {answer.dag} is given up.")


@click.command()
@click.argument("dag")
@click.option("--force", is_flag=True, help="Also if others read its datasets or run its jobs.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@click.pass_obj
def delete(settings: Settings, dag: str, force: bool, yes: bool, as_json: bool) -> None:
    """Delete DAG: its jobs stop, and nobody finds its datasets. This cannot be taken back."""
    if not yes and not ask(f"Delete the DAG {dag} and all of its datasets? This cannot be taken back."):
        raise InvalidInput(
            "cli.not_confirmed",
            "nothing was deleted, since nobody confirmed it",
            value=dag,
            next_step="with --yes nothing is asked",
        )
    request = DeleteRequest(dag, force)
    answer = call(settings, lambda c: c.call("POST", "/v1/delete", DeletedResponse, request))
    if as_json:
        say_json(answer)
        return
    datasets = f" with {', '.join(answer.datasets)}" if answer.datasets else ""
    say(f"Deleted {answer.dag}{datasets}; `traceplane gc` deletes the data.")
    for reader in answer.readers:
        say(f"! {reader}")


def _print_moved(answer: MovedResponse, as_json: bool) -> None:
    if as_json:
        say_json(answer)
    else:
        before = f", in place of {answer.before}" if answer.before is not None else ""
        say(f"Version {answer.version} of {answer.dag} serves{before}.")
        if answer.given_up is not None:
            say(f"Version {answer.given_up}, which was being built, was given up.")
        if answer.lacking:
            lost = ", ".join(f"{p.dataset} {written((p.first, p.last))}" for p in answer.lacking[:5])
            more = ", …" if len(answer.lacking) > 5 else ""
            say(f"Readers have had more: it lacks {lost}{more}, and computes of that what it can.")
            say("`traceplane explain DATASET SCOPE` says what keeps the rest.")


@click.command()
@click.argument("dataset")
@click.argument("scopes", nargs=-1, required=True, metavar="SCOPE...")
@click.option("--kind", type=click.Choice(["data", "invalidation"]), default="data", show_default=True)
@click.option(
    "--emission",
    default="",
    help="Another value makes another event of the same scope, such as a correction.",
)
@click.option("--yes", is_flag=True, help=f"Emit more than {MANY_EVENTS:,} events without a question.")
@as_json
@click.pass_obj
def emit(
    settings: Settings,
    dataset: str,
    scopes: tuple[str, ...],
    kind: Any,
    emission: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Emit events of a source DATASET.

    SCOPE is a cursor (1207), a range of cursors (1200..1299, one event each), or a partition (1200-1299, one
    event for the whole range).
    """
    given = [_scopes(text) for text in scopes]
    _ask_before_many(sum(map(len, given)), dataset, yes=yes)
    events = (ManualEvent(dataset, scope, kind, emission) for some in given for scope in map(_scope, some))

    async def send(caller: Caller) -> EmitResponse:
        accepted = duplicates = 0
        while batch := list(itertools.islice(events, MAX_BATCH)):
            request = EmitRequest(batch)
            answer = await caller.call("POST", "/v1/events", EmitResponse, request)
            accepted, duplicates = accepted + answer.accepted, duplicates + answer.duplicates
        return EmitResponse(accepted, duplicates)

    answer = call(settings, send)
    if as_json:
        say_json(answer)
    else:
        repeated = f", {answer.duplicates} had been accepted before" if answer.duplicates else ""
        say(f"{answer.accepted} accepted{repeated}")


def _ask_before_many(count: int, dataset: str, *, yes: bool) -> None:
    """A slip of the finger should not make a million tasks."""
    if count <= MANY_EVENTS or yes:
        return
    if not ask(f"Emit {count:,} events of {dataset}? Each makes a task for every job that reads it."):
        raise InvalidInput(
            "cli.many_events",
            f"more than {MANY_EVENTS:,} events at once are emitted only if that is confirmed; none was emitted",
            value=count,
            next_step="check the range; with --yes nothing is asked",
        )


def _scope(scope: int | Scope) -> Scope:
    return scope if isinstance(scope, Scope) else Scope(cursor=scope)


def _scopes(text: str) -> Sequence[int] | Sequence[Scope]:
    """Cursors as numbers, however many they are; or one scope."""
    try:
        if ".." in text:
            first, last = (int(part) for part in text.split("..", 1))
            _check_order(text, first, last, "..")
            return range(first, last + 1)
        if text.lstrip("-").isdigit():
            return range(int(text), int(text) + 1)
        first, last = (int(part) for part in text.split("-", 1))
        _check_order(text, first, last, "-")
        return [Scope(partition_key=text, start=first, end=last)]
    except ValueError:
        raise InvalidInput(
            "cli.bad_scope",
            "a scope is a cursor, a range A..B of cursors with A no larger than B, or a partition A-B",
            value=text,
            next_step="for example 1207, 1200..1299 or 1200-1299",
        ) from None


def _check_order(text: str, first: int, last: int, between: str) -> None:
    if first > last:
        raise InvalidInput(
            "cli.empty_range",
            "the range ends before it begins",
            value=text,
            next_step=f"write the smaller position first: {last}{between}{first}",
        )


@click.command()
@click.argument("dataset")
@click.option("--range", "range_", metavar="A:B", required=True, help="Positions from A to B, both included.")
@click.option(
    "--only-missing", "only", flag_value="missing", default="missing", help="Scopes without a commit."
)
@click.option("--only-failed", "only", flag_value="failed", help="Scopes whose last task is dead.")
@click.option("--force", "only", flag_value="all", help="All scopes, those that are there too.")
@click.option("--partition-size", type=click.IntRange(min=1), help="Positions of one task.")
@click.option("--allow-gaps", is_flag=True, help="Also scopes for which an input lacks positions.")
@click.option("--wait", is_flag=True, help="Show the progress until all of it is done.")
@as_json
@click.pass_obj
def backfill(
    settings: Settings,
    dataset: str,
    range_: str,
    only: Any,
    partition_size: int | None,
    allow_gaps: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Compute a range of DATASET's history, behind current work. Given again, it goes on where it stands."""
    start, end = _range(range_)
    request = BackfillRequest(dataset, start, end, only, partition_size, allow_gaps)
    answer = call(settings, lambda c: c.call("POST", "/v1/backfill", BackfillResponse, request))
    if not as_json:
        say(f"{answer.created} tasks of job {answer.job} for {answer.scopes} scopes")
        _say_left_out(answer)
    left_out = answer.left_out
    if wait:
        watch = msgspec.structs.replace(request, dry_run=True)
        created, bar = answer.created, _ProgressBar(answer)
        while answer.unfinished:
            if not as_json:
                bar.show(answer)
            time.sleep(_LOOK_SECONDS)
            answer = call(settings, lambda c: c.call("POST", "/v1/backfill", BackfillResponse, watch))
        answer = msgspec.structs.replace(answer, created=created)
        if not as_json:
            bar.show(answer)
            say()
    if as_json:
        say_json(answer)
    if wait and answer.failed:
        scopes = "1 scope" if answer.failed == 1 else f"{answer.failed} scopes"
        say(
            f"{scopes} failed. See why with `traceplane tasks --job {answer.job} --state dead` and "
            f"`traceplane explain`. Mend the cause and give the same command with --only-failed.",
            err=True,
        )
    if left_out or (wait and answer.failed):
        raise SystemExit(1)


def _say_left_out(answer: BackfillResponse) -> None:
    if not answer.left_out:
        return
    lacking = ", ".join(f"{g.dataset} {written((g.first, g.last))}" for g in answer.gaps[:5])
    say(f"{answer.left_out} scopes are left out, since their inputs are not whole. Missing: {lacking}")
    first = answer.gaps[0]
    say(
        f"First `traceplane backfill {first.dataset} --range {first.first}:{first.last}`, or use --allow-gaps."
    )


_LOOK_SECONDS = 1.0
_STUCK_SECONDS = 10.0
"""A dispatcher looks for what is to be caught up with more often than that."""


class _ProgressBar:
    """One line, written again and again: how far a backfill is, and how long it will take at this pace."""

    def __init__(self, begun: BackfillResponse) -> None:
        self._started, self._before = time.monotonic(), begun.scopes - begun.unfinished

    def show(self, answer: BackfillResponse) -> None:
        finished = answer.scopes - answer.unfinished
        filled = 24 * finished // max(1, answer.scopes)
        counts = f"{finished - answer.failed} of {answer.scopes} done, {answer.failed} failed"
        line = f"[{'#' * filled}{'.' * (24 - filled)}] {counts}{self._left(finished, answer.unfinished)}"
        say_again(line)

    def _left(self, finished: int, unfinished: int) -> str:
        pace = (finished - self._before) / max(1e-9, time.monotonic() - self._started)
        return f", {pace:.1f}/s, {unfinished / pace:.0f} s left" if pace > 0 and unfinished else ""


def _positions(text: str) -> tuple[int, int]:
    """First and last of a position (3), a partition (0-6) or a range (0..6)."""
    found = _scopes(text)
    first, last = found[0], found[-1]
    return (
        first if isinstance(first, int) else first.first,
        last if isinstance(last, int) else last.last,
    )


def _range(text: str) -> tuple[int, int]:
    try:
        start, end = (int(part) for part in text.split(":"))
    except ValueError:
        raise InvalidInput(
            "cli.bad_range",
            "a range is A:B, its first and last position",
            value=text,
            next_step="for example 1200:1299",
        ) from None
    return start, end


@click.command()
@click.option("--dag", help="Only this DAG's.")
@click.option("--job", help="Only this job's.")
@click.option(
    "--state", type=click.Choice(["queued", "dispatched", "running", "completed", "dead", "canceled"])
)
@click.option("--limit", default=50, show_default=True)
@as_json
@click.pass_obj
def tasks(
    settings: Settings, dag: str | None, job: str | None, state: str | None, limit: int, as_json: bool
) -> None:
    """List tasks, newest first."""
    wanted = {"dag": dag, "job": job, "state": state, "limit": str(limit)}
    query = {k: v for k, v in wanted.items() if v is not None}
    answer = call(settings, lambda c: c.call("GET", "/v1/tasks", TasksResponse, query=query))
    if as_json:
        say_json(answer)
        return
    for t in answer.tasks:
        say(_task_line(t))


def _task_line(t: TaskView) -> str:
    shown = t.error if t.state in ("dead", "queued") else None
    error = f"  {shown['code']}: {shortened(shown['message'])}" if shown else ""
    standing = f" ({t.standing})" if t.standing not in (None, "open") else ""
    return (
        f"{t.task_id}  {t.state:<10} {t.dag}/{t.job}  {t.scope or '-'}  "
        f"attempt {t.attempt}/{t.max_attempts}{standing}{error}"
    )


@click.command()
@click.argument("subject", metavar="TASK | DATASET")
@click.argument("scope", required=False)
@as_json
@click.pass_obj
def explain(settings: Settings, subject: str, scope: str | None, as_json: bool) -> None:
    """Say why TASK waits, or why SCOPE of DATASET, a position or a range A-B, is missing."""
    if scope is not None:
        first, last = _positions(scope)
        path = f"/v1/datasets/{quote(subject, safe='')}/explain"
        asked = {"first": str(first), "last": str(last)}
        why = call(settings, lambda c: c.call("GET", path, ScopeExplanation, query=asked))
        say_json(why) if as_json else say_why(why)
        return
    try:
        task_id = UUID(subject)
    except ValueError:
        raise InvalidInput(
            "cli.bad_task",
            "a task id is a UUID, and a dataset is explained for a scope",
            value=subject,
            next_step="give a task of `traceplane tasks`, or a dataset and a scope: shop.weekly 0-6",
        ) from None
    answer = call(settings, lambda c: c.call("GET", f"/v1/tasks/{task_id}/explain", ExplainResponse))
    if as_json:
        say_json(answer)
        return
    for item in failure_lines(answer):
        say_lines(item)


@click.command()
@click.argument("task_id", type=click.UUID)
@click.option("--attempt", type=click.IntRange(min=1), help="Only this attempt's.")
@as_json
@click.pass_obj
def logs(settings: Settings, task_id: UUID, attempt: int | None, as_json: bool) -> None:
    """Print what a task wrote: `print` and `task.log`, of each attempt that is over."""
    answer = call(settings, lambda c: c.call("GET", f"/v1/tasks/{task_id}/logs", TaskLogs))
    if as_json:
        say_json(answer)
        return
    for item in logged(answer, attempt):
        say_lines(item)


def _selection(
    task_ids: tuple[UUID, ...], dag: str | None, job: str | None, range_: str | None, **more: Any
) -> TaskSelection:
    """Tasks that a command is about; meaning all tasks takes no more than naming none, so that is refused."""
    if bool(task_ids) == (dag is not None) or (dag is None and (job or range_)):
        raise InvalidInput(
            "cli.which_tasks",
            "tasks are meant by their ids, or by --dag, with --job and --range to mean fewer",
            next_step="for example --dag shop --job totals --range 0:9",
        )
    start, end = _range(range_) if range_ is not None else (None, None)
    return TaskSelection(list(task_ids), dag, job, start, end, **more)


def _change(settings: Settings, verb: str, request: TaskSelection) -> None:
    """One call for tasks that are named; as many as it takes for those of a DAG."""

    async def change(caller: Caller) -> TaskChanges:
        answer = await caller.call("POST", f"/v1/tasks/{verb}", TaskChanges, request)
        changed, last = dict(answer.changed), answer
        while last.after is not None and last.changed:
            going_on = msgspec.structs.replace(request, after=last.after)
            last = await caller.call("POST", f"/v1/tasks/{verb}", TaskChanges, going_on)
            changed |= last.changed
        return TaskChanges(changed, answer.unchanged)

    answer = call(settings, change)
    if request.dag is None:
        for task_id, state in answer.changed.items():
            say(f"{task_id}  {state}")
        for unchanged in answer.unchanged:
            say(f"{unchanged}  unchanged: unknown, or in a state that does not allow it")
    else:
        counts = Counter(answer.changed.values())
        say(", ".join(f"{n} {state}" for state, n in sorted(counts.items())) or "no task is meant by this")
    if not answer.changed:
        raise SystemExit(1)


def _of_a_dag(command: Any) -> Any:
    """The options that mean tasks without their ids."""
    for option in (
        click.option("--range", "range_", metavar="A:B", help="Only scopes with positions from A to B."),
        click.option("--job", help="Only this job's."),
        click.option("--dag", help="Those of this DAG, in place of ids."),
    ):
        command = option(command)
    return click.argument("task_ids", nargs=-1, type=click.UUID)(command)


@click.command()
@_of_a_dag
@click.option("--canceled", is_flag=True, help="With --dag: those that were canceled, in place of dead ones.")
@click.pass_obj
def retry(
    settings: Settings,
    task_ids: tuple[UUID, ...],
    dag: str | None,
    job: str | None,
    range_: str | None,
    canceled: bool,
) -> None:
    """Start dead or canceled tasks again, with a fresh set of attempts."""
    state = "canceled" if canceled else "dead"
    _change(settings, "retry", _selection(task_ids, dag, job, range_, state=state))


@click.command()
@_of_a_dag
@click.pass_obj
def cancel(
    settings: Settings, task_ids: tuple[UUID, ...], dag: str | None, job: str | None, range_: str | None
) -> None:
    """Stop tasks: waiting ones at once, running ones at their next heartbeat."""
    _change(settings, "cancel", _selection(task_ids, dag, job, range_))


@click.command()
@_of_a_dag
@click.option("--all", "all_", is_flag=True, help="Also those that need nobody any more.")
@click.option("--ack", is_flag=True, help="Acknowledge them: status speaks of them no more.")
@click.option("--limit", default=50, show_default=True)
@as_json
@click.pass_obj
def dead(
    settings: Settings,
    task_ids: tuple[UUID, ...],
    dag: str | None,
    job: str | None,
    range_: str | None,
    all_: bool,
    ack: bool,
    limit: int,
    as_json: bool,
) -> None:
    """List dead tasks that need somebody, newest first, or acknowledge them."""
    if ack:
        _change(settings, "acknowledge", _selection(task_ids, dag, job, range_))
        return
    if task_ids:
        raise InvalidInput(
            "cli.which_tasks",
            "ids are for --ack; the list is of a DAG, a job or a range",
            next_step="add --ack, or see one task with `traceplane explain`",
        )
    start, end = _range(range_) if range_ is not None else (None, None)
    standing = None if all_ else "open"
    wanted = {"dag": dag, "job": job, "start": start, "end": end, "standing": standing}
    query = {k: str(v) for k, v in wanted.items() if v is not None} | {"state": "dead", "limit": str(limit)}
    answer = call(settings, lambda c: c.call("GET", "/v1/tasks", TasksResponse, query=query))
    if as_json:
        say_json(answer)
        return
    for t in answer.tasks:
        say(_task_line(t))
    if not answer.tasks:
        say("no dead tasks" if all_ else "no dead tasks that need somebody")


@click.command()
@as_json
@click.pass_obj
def status(settings: Settings, as_json: bool) -> None:
    """Show what failed and what is stuck, then unfinished tasks per job and what each dataset holds."""
    answer = call(settings, lambda c: c.call("GET", "/v1/status", StatusResponse))
    if as_json:
        say_json(answer)
        return
    for line in problems(answer):
        say(line)
    for job, states in sorted(answer.counts.items()):
        say(f"{job}: " + ", ".join(f"{n} {state}" for state, n in sorted(states.items())))
    if not answer.counts:
        say("no unfinished tasks")
    for d in answer.datasets:
        held = describe(d.coverage) if d.coverage is not None else ""
        say(f"{d.dataset}: {d.commits} commits, {d.rows} rows, {d.bytes} bytes{held}")
    if (rest := forgivable(answer)) is not None:
        say(rest)


@click.command()
@as_json
@click.pass_obj
def dags(settings: Settings, as_json: bool) -> None:
    """Show what is deployed."""
    answer = call(settings, lambda c: c.call("GET", "/v1/dags", DagsResponse))
    if as_json:
        say_json(answer)
        return
    for d in answer.dags:
        say(f"{d.dag} version {d.version}")
        for j in d.jobs:
            held = {1: ", backfill held", 2: ", held"}.get(j.hold_level or 0, "")
            say(f"  {j.job} ({j.runtime}: {j.operator}{held})")


COMMANDS: tuple[Any, ...] = (
    *(plan, deploy, versions, cutover, rollback, abort, delete),
    *(emit, backfill, tasks, dead, explain, logs, retry, cancel, status, dags),
)
