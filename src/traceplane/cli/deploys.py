"""Commands that deploy DAGs and choose which version of them serves."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from traceplane.cli.grammar import Noun
from traceplane.cli.jobs import deployed, job_line
from traceplane.cli.output import ChangingLine, as_json, ask, moment, say, say_json, say_lines, work_goes_on
from traceplane.cli.whereabouts import call
from traceplane.client.deploy_files import deploy_request
from traceplane.errors import Conflict, InvalidInput
from traceplane.model.counted import counted
from traceplane.settings import Settings
from traceplane.wire.deploys import (
    CutoverRequest,
    DagName,
    DagsResponse,
    DeletedResponse,
    DeleteRequest,
    DeployRequest,
    DeployResponse,
    MovedResponse,
    PlanResponse,
    RollbackRequest,
    VersionsResponse,
    VersionView,
)

_POLL_SECONDS = 1.0


with_code = click.option(
    "--code",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with the modules that the jobs run; they become part of the deploy (default: ./code).",
)

dropping = click.option(
    "--drop-missing",
    is_flag=True,
    help="Let it serve even if readers lose scopes that it does not compute, or datasets whose job was removed.",
)

code_on_workers = click.option(
    "--code-on-workers",
    is_flag=True,
    help="Modules not found in a folder here are on the workers; this is not checked.",
)

keeping_data = click.option(
    "--no-rematerialize",
    is_flag=True,
    help="Keep the data of jobs whose only change is execution_strategy; refuse if other jobs must be rebuilt.",
)


@click.group(cls=Noun)
def dag() -> None:
    """Plan and deploy DAGs, and choose which version serves."""


@dag.command()
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
    """Show what deploying FILE would do. Exit code 0: nothing, 3: changes, 4: the deploy would be refused."""
    request = msgspec.structs.replace(
        deploy_request(settings, file, code, code_on_workers=code_on_workers),
        no_rematerialize=no_rematerialize,
    )
    answer = call(settings, lambda c: c.call("POST", "/api/v1/plan", PlanResponse, request))
    if as_json:
        say_json(answer)
    else:
        say_lines(answer.text)
        if answer.blocked:
            say(f"A deploy would be refused: {answer.blocked}")
    raise SystemExit(4 if answer.blocked else 0 if answer.noop else 3)


@dag.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_code
@code_on_workers
@click.option(
    "--expect-version", type=click.IntRange(min=0), help="Refuse if another version is deployed; 0: none is."
)
@click.option("--manual-cutover", is_flag=True, help="Once built, wait for `traceplane cutover`.")
@dropping
@keeping_data
@click.option(
    "--wait", is_flag=True, help="Wait until the version is built, and serves unless --manual-cutover."
)
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
    """Deploy the DAG in FILE. Deploying the same file again changes nothing.

    Data that must be recomputed is built beside the serving version, which keeps serving until nothing is missing.
    """
    request = msgspec.structs.replace(
        deploy_request(settings, file, code, code_on_workers=code_on_workers),
        expect_version=expect_version,
        manual_cutover=manual_cutover,
        drop_missing=drop_missing,
        no_rematerialize=no_rematerialize,
    )
    answer = _deploy(settings, request)
    if as_json:
        say_json(answer)
    else:
        say_lines(answer.text)
        if answer.changed:
            done = "is being built" if answer.building else "serves"
            say(f"Deployed {answer.dag} version {answer.version}, which {done}.")
    if wait and answer.building:
        with work_goes_on("the build", f"traceplane versions {answer.dag}"):
            _wait_for_build(settings, answer.dag, answer.version, quiet=as_json)


def _deploy(settings: Settings, request: DeployRequest) -> DeployResponse:
    """Asks for confirmation, if there is a terminal, before data is no longer served."""
    try:
        return call(settings, lambda c: c.call("POST", "/api/v1/deploy", DeployResponse, request))
    except Conflict as error:
        if error.code != "deploy.drops_data" or not ask(f"{error.message}. Deploy it anyway?"):
            raise
        return _deploy(settings, msgspec.structs.replace(request, drop_missing=True))


_STUCK_SECONDS = 10.0
"""Longer than the interval at which a dispatcher looks for scopes to catch up on."""


def _wait_for_build(settings: Settings, dag: str, version: int, *, quiet: bool) -> None:
    """Returns when the version serves or waits for a manual cutover. Exit code 1: it was aborted, it has dead tasks, or
    it lacks scopes that no task is computing."""
    stuck_since: float | None = None
    progress = ChangingLine()
    query = {"dag": dag, "limit": "1000"}
    while True:
        answer = call(settings, lambda c: c.call("GET", "/api/v1/versions", VersionsResponse, query=query))
        (mine,) = [v for v in answer.versions if v.version == version]
        if not quiet:
            progress.show(_build_line(mine))
        at_rest = not (mine.unfinished or mine.replays)
        ready = at_rest and not mine.sources_behind
        lacks = ready and not mine.dead and mine.state == "building" and bool(mine.lacking)
        stuck_since = (stuck_since or time.monotonic()) if lacks else None
        stuck = stuck_since is not None and time.monotonic() - stuck_since > _STUCK_SECONDS
        if (
            mine.state != "building"
            or stuck
            or (at_rest and mine.dead)
            or (ready and mine.manual_cutover and not lacks)
        ):
            if not quiet:
                progress.end()
            if stuck:
                say(f"No task is computing what it lacks, and {dag} keeps serving the previous version.")
                say(f"Compute what is missing, abort the version (`traceplane abort {dag}`),")
                say(f"or let it serve without that data: `traceplane cutover {dag} --drop-missing`.")
                raise SystemExit(1)
            if mine.dead or mine.state not in ("active", "building"):
                say(_after_a_failed_build(dag, mine), err=True)
                raise SystemExit(1)
            return
        time.sleep(_POLL_SECONDS)


def _after_a_failed_build(dag: str, version: VersionView) -> str:
    if version.state != "building":
        return f"Version {version.version} was aborted; `traceplane versions {dag}` lists what serves."
    tasks = "1 dead task keeps" if version.dead == 1 else f"{version.dead} dead tasks keep"
    behind = "".join(f" Source {s.job} has yet to emit {s.dataset} {s.position}." for s in version.behind[:3])
    return (
        f"{tasks} it from serving; the previous version keeps serving.{behind} See them with "
        f"`traceplane dead --dag {dag}` and `traceplane explain`. Fix the cause and run "
        f"`traceplane retry --dag {dag}`, abort the version with `traceplane abort {dag}` and deploy a fix, "
        f"or let it serve without that data: `traceplane cutover {dag} --drop-missing`."
    )


def _build_line(version: VersionView) -> str:
    if version.state != "building":
        return f"version {version.version} is {version.state}"
    built, serving = sum(d.built for d in version.datasets), sum(d.serving for d in version.datasets)
    more = "1000+" if version.unfinished == 1000 else None
    unfinished = f"{counted(version.unfinished, 'task', more)} to go"
    dead = f", {version.dead} dead" if version.dead else ""
    missing = ", ".join(f"{p.dataset} {p.scope}" for p in version.lacking[:3])
    missing = f"; lacks {missing}{', …' if len(version.lacking) > 3 else ''}" if missing else ""
    sources = "1 source has" if version.sources_behind == 1 else f"{version.sources_behind} sources have"
    behind = f"; {sources} yet to emit what the serving one did" if version.sources_behind else ""
    return (
        f"version {version.version} is being built: {built} of {serving} scopes, "
        f"{unfinished}{dead}{missing}{behind}"
    )


@dag.command()
@click.argument("dag")
@click.option("--limit", default=20, show_default=True)
@as_json
@click.pass_obj
def versions(settings: Settings, dag: str, limit: int, as_json: bool) -> None:
    """List the versions of DAG, newest first, with the progress of one being built."""
    query = {"dag": dag, "limit": str(limit)}
    answer = call(settings, lambda c: c.call("GET", "/api/v1/versions", VersionsResponse, query=query))
    if as_json:
        say_json(answer)
        return
    for v in answer.versions:
        since = (
            f"active since {moment(v.activated_at)}" if v.activated_at and v.state == "active" else v.state
        )
        say(f"{v.version:>4}  {since}, deployed {moment(v.created_at)}")
        if v.state == "building":
            say(f"      {_build_line(v)}")
            for d in v.datasets:
                say(f"      {d.dataset}: {d.built} of {d.serving} scopes")


@dag.command()
@click.argument("dag")
@dropping
@as_json
@click.pass_obj
def cutover(settings: Settings, dag: str, drop_missing: bool, as_json: bool) -> None:
    """Let the version of DAG that was built serve; all of its datasets switch together."""
    request = CutoverRequest(dag, drop_missing)
    answer = call(settings, lambda c: c.call("POST", "/api/v1/cutover", MovedResponse, request))
    _print_moved(answer, as_json)


@dag.command()
@click.argument("dag")
@click.option(
    "--to", type=click.IntRange(min=1), help="The version to return to (default: the previous one)."
)
@click.option(
    "--drop-missing",
    is_flag=True,
    help="Do not ask if it lacks data that readers have; let it serve without.",
)
@as_json
@click.pass_obj
def rollback(settings: Settings, dag: str, to: int | None, drop_missing: bool, as_json: bool) -> None:
    """Let an earlier version of DAG serve again; all of its datasets switch together."""
    _print_moved(_roll_back(settings, RollbackRequest(dag, to, drop_missing)), as_json)


def _roll_back(settings: Settings, request: RollbackRequest) -> MovedResponse:
    """Asks for confirmation, if there is a terminal, before readers lose data."""
    try:
        return call(settings, lambda c: c.call("POST", "/api/v1/rollback", MovedResponse, request))
    except Conflict as error:
        if error.code != "rollback.drops_data" or not ask(f"{error.message}. Roll back anyway?"):
            raise
        return _roll_back(settings, msgspec.structs.replace(request, drop_missing=True))


@dag.command()
@click.argument("dag")
@as_json
@click.pass_obj
def abort(settings: Settings, dag: str, as_json: bool) -> None:
    """Abort the version of DAG that is being built; the serving one keeps serving."""
    answer = call(settings, lambda c: c.call("POST", "/api/v1/abort", MovedResponse, DagName(dag)))
    if as_json:
        say_json(answer)
    else:
        say(f"Version {answer.version} of {answer.dag} is aborted.")


@dag.command()
@click.argument("dag")
@click.option("--force", is_flag=True, help="Delete it even if others read its datasets or run its jobs.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@as_json
@click.pass_obj
def delete(settings: Settings, dag: str, force: bool, yes: bool, as_json: bool) -> None:
    """Delete DAG: its jobs stop and its datasets are gone. This cannot be undone."""
    if not yes:  # an unknown DAG is refused before anyone is asked
        query = {"dag": dag, "limit": "1"}
        call(settings, lambda c: c.call("GET", "/api/v1/versions", VersionsResponse, query=query))
    if not yes and not ask(f"Delete the DAG {dag} and all of its datasets? This cannot be undone."):
        raise InvalidInput(
            "cli.not_confirmed",
            "nothing was deleted: the deletion was not confirmed",
            value=dag,
            next_step="confirm it at a terminal, or use --yes",
        )
    request = DeleteRequest(dag, force)
    answer = call(settings, lambda c: c.call("POST", "/api/v1/delete", DeletedResponse, request))
    if as_json:
        say_json(answer)
        return
    datasets = f" with {', '.join(answer.datasets)}" if answer.datasets else ""
    say(f"Deleted {answer.dag}{datasets}; its data is deleted after the grace period.")
    for reader in answer.readers:
        say(f"! {reader}")


def _print_moved(answer: MovedResponse, as_json: bool) -> None:
    if as_json:
        say_json(answer)
    else:
        before = f", in place of {answer.before}" if answer.before is not None else ""
        say(f"Version {answer.version} of {answer.dag} serves{before}.")
        if answer.given_up is not None:
            say(f"Version {answer.given_up}, which was being built, was aborted.")
        if answer.lacking:
            missing = ", ".join(f"{p.dataset} {p.scope}" for p in answer.lacking[:5])
            more = ", …" if len(answer.lacking) > 5 else ""
            say(f"Readers lose data: it lacks {missing}{more}, and computes what it can of that.")
            say("`traceplane explain DATASET SCOPE` says why the rest is missing.")


@dag.command("list")
@as_json
@click.pass_obj
def list_(settings: Settings, as_json: bool) -> None:
    """List the DAGs that are deployed, with their jobs."""
    _say_dags(deployed(settings), as_json)


@dag.command()
@click.argument("name")
@as_json
@click.pass_obj
def show(settings: Settings, name: str, as_json: bool) -> None:
    """Show the DAG NAME with its jobs."""
    _say_dags(deployed(settings, name), as_json)


def _say_dags(answer: DagsResponse, as_json: bool) -> None:
    if as_json:
        say_json(answer)
        return
    for d in answer.dags:
        say(f"{d.dag} version {d.version}")
        for j in d.jobs:
            say(f"  {job_line(j)}")
    if not answer.dags:
        say("no DAG is deployed; see `traceplane deploy --help`")
