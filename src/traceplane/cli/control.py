"""Commands for people who deploy DAGs and look after tasks. All of them call the gateway."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import click
import msgspec

from traceplane.cli import profile
from traceplane.control_api import (
    BackfillRequest,
    BackfillResponse,
    DagName,
    DagsResponse,
    DeployRequest,
    DeployResponse,
    EmitRequest,
    EmitResponse,
    ExplainResponse,
    ManualEvent,
    MovedResponse,
    PlanResponse,
    RollbackRequest,
    StatusResponse,
    TaskChanges,
    TaskIds,
    TasksResponse,
    TaskView,
    VersionsResponse,
    VersionView,
)
from traceplane.errors import InvalidInput
from traceplane.settings import Settings
from traceplane.task_api import MAX_BATCH, Caller, Scope, Wire

Answer = TypeVar("Answer", bound=Wire)


def call(settings: Settings, work: Callable[[Caller], Awaitable[Answer]]) -> Answer:
    """One conversation with the gateway."""
    chosen = profile.with_tokens(settings)
    if chosen.user_token is None:
        raise InvalidInput(
            "cli.no_token",
            "no user token was found",
            next_step="run `traceplane up` here first, or set TRACEPLANE_USER_TOKEN and TRACEPLANE_GATEWAY_URL",
        )

    async def run() -> Answer:
        caller = Caller(chosen.gateway_address, chosen.user_token)
        try:
            return await work(caller)
        finally:
            await caller.close()

    return asyncio.run(run())


def print_json(answer: Wire) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(answer)).decode())


as_json = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
with_code = click.option(
    "--code",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with the modules that the jobs run; they become part of the deploy. By default ./code.",
)


keeping_data = click.option(
    "--no-rematerialize",
    is_flag=True,
    help="Keep the data of jobs whose execution_strategy is all that changed; refuse if others must be rebuilt.",
)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_code
@keeping_data
@as_json
@click.pass_obj
def plan(
    settings: Settings, file: Path, code: tuple[Path, ...], no_rematerialize: bool, as_json: bool
) -> None:
    """Show what deploying FILE would do. Exit code 0: nothing, 3: changes, 4: it would be refused."""
    request = msgspec.structs.replace(
        _deploy_request(settings, file, code), no_rematerialize=no_rematerialize
    )
    answer = call(settings, lambda c: c.call("POST", "/v1/plan", PlanResponse, request))
    if as_json:
        print_json(answer)
    else:
        click.echo(answer.text, nl=False)
        if answer.blocked:
            click.echo(f"A deploy would be refused: {answer.blocked}")
    raise SystemExit(4 if answer.blocked else 0 if answer.noop else 3)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_code
@click.option(
    "--expect-version", type=click.IntRange(min=0), help="Refuse if another one is deployed; 0: none."
)
@click.option("--manual-cutover", is_flag=True, help="When it is built, wait for `traceplane cutover`.")
@keeping_data
@click.option("--wait", is_flag=True, help="Wait until the version is built, and serves unless told to wait.")
@as_json
@click.pass_obj
def deploy(
    settings: Settings,
    file: Path,
    code: tuple[Path, ...],
    expect_version: int | None,
    manual_cutover: bool,
    no_rematerialize: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Deploy the DAG in FILE. The same file twice changes nothing.

    What has to be computed anew is built beside what serves, which goes on serving until nothing is missing.
    """
    request = msgspec.structs.replace(
        _deploy_request(settings, file, code),
        expect_version=expect_version,
        manual_cutover=manual_cutover,
        no_rematerialize=no_rematerialize,
    )
    answer = call(settings, lambda c: c.call("POST", "/v1/deploy", DeployResponse, request))
    if as_json:
        print_json(answer)
    else:
        click.echo(answer.text, nl=False)
        if answer.changed:
            done = "is being built" if answer.building else "serves"
            click.echo(f"Deployed {answer.dag} version {answer.version}, which {done}.")
    if wait and answer.building:
        _wait_for_build(settings, answer.dag, answer.version, quiet=as_json)


def _wait_for_build(settings: Settings, dag: str, version: int, *, quiet: bool) -> None:
    """Until the version serves, or waits to be told so. Exit code 1: it was given up, or tasks of it are dead."""
    query = {"dag": dag, "limit": "1000"}
    while True:
        found = call(settings, lambda c: c.call("GET", "/v1/versions", VersionsResponse, query=query))
        (mine,) = [v for v in found.versions if v.version == version]
        if not quiet:
            click.echo(f"\r{_build_line(mine):<78}", nl=False)
        ready = not (mine.unfinished or mine.replays or mine.sources_behind)
        if mine.state != "building" or (ready and (mine.dead or mine.manual_cutover)):
            if not quiet:
                click.echo()
            if mine.dead or mine.state not in ("active", "building"):
                raise SystemExit(1)
            return
        time.sleep(_LOOK_SECONDS)


def _build_line(version: VersionView) -> str:
    if version.state != "building":
        return f"version {version.version} is {version.state}"
    built, serving = sum(d.built for d in version.datasets), sum(d.serving for d in version.datasets)
    lacking = f"{version.unfinished}{'+' if version.unfinished == 1000 else ''} tasks to go"
    dead = f", {version.dead} dead" if version.dead else ""
    return f"version {version.version} is being built: {built} of {serving} scopes, {lacking}{dead}"


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
        print_json(answer)
        return
    for v in answer.versions:
        since = f"active since {v.activated_at}" if v.state == "active" else v.state
        click.echo(f"{v.version:>4}  {since}, deployed {v.created_at}")
        if v.state == "building":
            click.echo(f"      {_build_line(v)}")
            for d in v.datasets:
                click.echo(f"      {d.dataset}: {d.built} of {d.serving} scopes")


@click.command()
@click.argument("dag")
@as_json
@click.pass_obj
def cutover(settings: Settings, dag: str, as_json: bool) -> None:
    """Let the version of DAG that was built serve, all of its datasets at once."""
    answer = call(settings, lambda c: c.call("POST", "/v1/cutover", MovedResponse, DagName(dag)))
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
        print_json(answer)
    else:
        click.echo(f"Version {answer.version} of {answer.dag} is given up.")


def _print_moved(answer: MovedResponse, as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        before = f", in place of {answer.before}" if answer.before is not None else ""
        click.echo(f"Version {answer.version} of {answer.dag} serves{before}.")


def _deploy_request(settings: Settings, file: Path, code: tuple[Path, ...]) -> DeployRequest:
    """Problems are told before anything is sent."""
    from traceplane.registry import code_identity, spec  # with a parser of SQL, which no other command needs

    dag = spec.load(file, known_runtimes=frozenset(settings.runtimes))
    folders = code or tuple(path for path in settings.worker_code_paths if path.is_dir())
    modules = code_identity.collect(
        dag, settings.runtimes, folders, is_installed=_is_installed, all_are_there=bool(code)
    )
    return DeployRequest(file.read_text(), str(file), code=modules or None)


def _is_installed(package: str) -> bool:
    """Not what happens to lie in the current folder, where Python may look too."""
    elsewhere = [path for path in sys.path if Path(path or ".").resolve() != Path.cwd()]
    return PathFinder.find_spec(package, elsewhere) is not None


@click.command()
@click.argument("dataset")
@click.argument("scopes", nargs=-1, required=True, metavar="SCOPE...")
@click.option("--kind", type=click.Choice(["data", "invalidation"]), default="data", show_default=True)
@click.option("--emission", default="", help="Tells a second word on the same scope from a repetition.")
@as_json
@click.pass_obj
def emit(
    settings: Settings, dataset: str, scopes: tuple[str, ...], kind: Any, emission: str, as_json: bool
) -> None:
    """Emit events of a source DATASET.

    SCOPE is a cursor (1207), a range of cursors (1200..1299, one event each), or a partition (1200-1299, one
    event for the whole range).
    """
    events = [ManualEvent(dataset, scope, kind, emission) for text in scopes for scope in _scopes(text)]

    async def send(caller: Caller) -> EmitResponse:
        accepted = duplicates = 0
        for start in range(0, len(events), MAX_BATCH):
            request = EmitRequest(events[start : start + MAX_BATCH])
            answer = await caller.call("POST", "/v1/events", EmitResponse, request)
            accepted, duplicates = accepted + answer.accepted, duplicates + answer.duplicates
        return EmitResponse(accepted, duplicates)

    answer = call(settings, send)
    if as_json:
        print_json(answer)
    else:
        repeated = f", {answer.duplicates} had been accepted before" if answer.duplicates else ""
        click.echo(f"{answer.accepted} accepted{repeated}")


def _scopes(text: str) -> list[Scope]:
    try:
        if ".." in text:
            first, last = (int(part) for part in text.split("..", 1))
            return [Scope(cursor=position) for position in range(first, last + 1)]
        if text.lstrip("-").isdigit():
            return [Scope(cursor=int(text))]
        first, last = (int(part) for part in text.split("-", 1))
        return [Scope(partition_key=text, start=first, end=last)]
    except ValueError:
        raise InvalidInput(
            "cli.bad_scope",
            "a scope is a cursor, a range A..B of cursors, or a partition A-B",
            value=text,
            next_step="for example 1207, 1200..1299 or 1200-1299",
        ) from None


@click.command()
@click.argument("dataset")
@click.option("--range", "range_", metavar="A:B", required=True, help="Positions from A to B, both included.")
@click.option(
    "--only-missing", "only", flag_value="missing", default="missing", help="Scopes without a commit."
)
@click.option("--only-failed", "only", flag_value="failed", help="Scopes whose last task is dead.")
@click.option("--force", "only", flag_value="all", help="All scopes, those that are there too.")
@click.option("--partition-size", type=click.IntRange(min=1), help="Positions of one task.")
@click.option("--wait", is_flag=True, help="Show the progress until all of it is done.")
@as_json
@click.pass_obj
def backfill(
    settings: Settings,
    dataset: str,
    range_: str,
    only: Any,
    partition_size: int | None,
    wait: bool,
    as_json: bool,
) -> None:
    """Compute a range of DATASET's history, behind current work. Given again, it goes on where it stands."""
    start, end = _range(range_)
    request = BackfillRequest(dataset, start, end, only, partition_size)
    answer = call(settings, lambda c: c.call("POST", "/v1/backfill", BackfillResponse, request))
    if not as_json:
        click.echo(f"{answer.created} tasks of job {answer.job} for {answer.scopes} scopes")
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
            click.echo()
    if as_json:
        print_json(answer)
    if wait and answer.failed:
        raise SystemExit(1)


_LOOK_SECONDS = 1.0


class _ProgressBar:
    """One line, written again and again: how far a backfill is, and how long it will take at this pace."""

    def __init__(self, begun: BackfillResponse) -> None:
        self._started, self._before = time.monotonic(), begun.scopes - begun.unfinished

    def show(self, answer: BackfillResponse) -> None:
        finished = answer.scopes - answer.unfinished
        filled = 24 * finished // max(1, answer.scopes)
        counts = f"{finished - answer.failed} of {answer.scopes} done, {answer.failed} failed"
        line = f"[{'#' * filled}{'.' * (24 - filled)}] {counts}{self._left(finished, answer.unfinished)}"
        click.echo(f"\r{line:<78}", nl=False)

    def _left(self, finished: int, unfinished: int) -> str:
        pace = (finished - self._before) / max(1e-9, time.monotonic() - self._started)
        return f", {pace:.1f}/s, {unfinished / pace:.0f} s left" if pace > 0 and unfinished else ""


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
        print_json(answer)
        return
    for t in answer.tasks:
        click.echo(_task_line(t))


def _task_line(t: TaskView) -> str:
    error = (
        f"  {t.error['code']}: {t.error['message'][:80]}" if t.error and t.state in ("dead", "queued") else ""
    )
    return f"{t.task_id}  {t.state:<10} {t.dag}/{t.job}  {t.scope or '-'}  attempt {t.attempt}/{t.max_attempts}{error}"


@click.command()
@click.argument("task_id", type=click.UUID)
@as_json
@click.pass_obj
def explain(settings: Settings, task_id: UUID, as_json: bool) -> None:
    """Say why a task waits: edge, threshold and figure."""
    answer = call(settings, lambda c: c.call("GET", f"/v1/tasks/{task_id}/explain", ExplainResponse))
    if as_json:
        print_json(answer)
        return
    click.echo(f"Task {answer.task_id} of job {answer.job} is {answer.state}.")
    for reason in answer.reasons:
        click.echo(f"- {reason.sentence}")


def _change(settings: Settings, verb: str, task_ids: tuple[UUID, ...]) -> None:
    request = TaskIds(list(task_ids))
    answer = call(settings, lambda c: c.call("POST", f"/v1/tasks/{verb}", TaskChanges, request))
    for task_id, state in answer.changed.items():
        click.echo(f"{task_id}  {state}")
    for unchanged in answer.unchanged:
        click.echo(f"{unchanged}  unchanged: unknown, or in a state that does not allow it")
    if not answer.changed:
        raise SystemExit(1)


@click.command()
@click.argument("task_ids", nargs=-1, required=True, type=click.UUID)
@click.pass_obj
def retry(settings: Settings, task_ids: tuple[UUID, ...]) -> None:
    """Start dead or canceled tasks again, with a fresh set of attempts."""
    _change(settings, "retry", task_ids)


@click.command()
@click.argument("task_ids", nargs=-1, required=True, type=click.UUID)
@click.pass_obj
def cancel(settings: Settings, task_ids: tuple[UUID, ...]) -> None:
    """Stop tasks: waiting ones at once, running ones at their next heartbeat."""
    _change(settings, "cancel", task_ids)


@click.command()
@as_json
@click.pass_obj
def status(settings: Settings, as_json: bool) -> None:
    """Show unfinished tasks per job and what each dataset holds."""
    answer = call(settings, lambda c: c.call("GET", "/v1/status", StatusResponse))
    if as_json:
        print_json(answer)
        return
    for job, states in sorted(answer.counts.items()):
        click.echo(f"{job}: " + ", ".join(f"{n} {state}" for state, n in sorted(states.items())))
    if not answer.counts:
        click.echo("no unfinished tasks")
    for d in answer.datasets:
        cursor = f", cursor {d.cursor}" if d.cursor is not None else ""
        click.echo(f"{d.dataset}: {d.commits} commits, {d.rows} rows, {d.bytes} bytes{cursor}")


@click.command()
@as_json
@click.pass_obj
def dags(settings: Settings, as_json: bool) -> None:
    """Show what is deployed."""
    answer = call(settings, lambda c: c.call("GET", "/v1/dags", DagsResponse))
    if as_json:
        print_json(answer)
        return
    for d in answer.dags:
        click.echo(f"{d.dag} version {d.version}")
        for j in d.jobs:
            held = {1: ", backfill held", 2: ", held"}.get(j.hold_level or 0, "")
            click.echo(f"  {j.job} ({j.runtime}: {j.operator}{held})")


COMMANDS: tuple[Any, ...] = (
    *(plan, deploy, versions, cutover, rollback, abort),
    *(emit, backfill, tasks, explain, retry, cancel, status, dags),
)
