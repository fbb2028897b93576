"""`traceplane dev`: the platform of `traceplane up`, and the DAG files of a folder, which are deployed whenever they or
their code are saved. What fails is shown at once, as `traceplane explain` shows it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import click

from traceplane.cli.coverage import contents, describe
from traceplane.cli.failures import explained
from traceplane.cli.output import say, say_lines
from traceplane.cli.services import run_platform, with_code_folders
from traceplane.cli.whereabouts import with_user_token
from traceplane.client.deploy_files import deploy_request
from traceplane.errors import InvalidInput, SpecInvalid, TraceplaneError
from traceplane.http_service.client import Caller
from traceplane.runtime.retrying import happens
from traceplane.settings import Settings
from traceplane.wire.control import ExplainResponse, FailureView, StatusResponse
from traceplane.wire.deploys import DeployRequest, DeployResponse, VersionsResponse
from traceplane.wire.scalars import Wire

Answer = TypeVar("Answer", bound=Wire)

_LOOK_SECONDS = 0.5
_IDLE_LOOK_SECONDS = 2.0
"""How often the platform is asked what it does while nothing is known to run."""
_TELL_SECONDS = 5.0
"""How often it is said what came to datasets while tasks run."""
_IS_DAG = re.compile(r"^dag:", re.MULTILINE)


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_code_folders
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Worker processes.")
@click.option("--spark/--no-spark", default=True, show_default=True, help="Run a Spark worker too.")
@click.option("--trigger/--no-trigger", default=False, show_default=True, help="Run a trigger too.")
@click.option(
    "--browser/--no-browser", default=True, show_default=True, help="Open the web UI, if there is a display."
)
@click.pass_obj
def dev(
    settings: Settings,
    files: tuple[Path, ...],
    code: tuple[Path, ...],
    workers: int,
    spark: bool,
    trigger: bool,
    browser: bool,
) -> None:
    """Run everything, deploy FILES (default: the DAG files of this folder) whenever you save them, show what fails."""

    async def beside(ready: Settings) -> None:
        await _Session(ready, _dag_files(files), code or ready.worker_code_paths).run()

    _dag_files(files)
    # What fails is shown with its code and its next step: the log would say it once more, and less.
    quiet = replace(settings, log_level="error") if settings.log_level == "info" else settings
    run_platform(quiet, code, beside, with_browser=browser, workers=workers, spark=spark, trigger=trigger)


def _dag_files(given: Sequence[Path]) -> list[Path]:
    found = list(given) or [path for path in sorted(Path().glob("[!.]*.y*ml")) if _IS_DAG.search(_text(path))]
    if not found:
        raise InvalidInput(
            "dev.no_dag",
            "there is no DAG file in this folder",
            value=Path().absolute(),
            next_step="name one, or begin a project with `traceplane init`",
        )
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _shown(path: Path) -> str:
    here = Path().absolute()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


class _Session:
    """What somebody sees who works on these files."""

    def __init__(self, settings: Settings, files: Sequence[Path], code: Sequence[Path]) -> None:
        self._settings, token = with_user_token(settings)
        self._caller = Caller(settings.gateway_address, token, tls_ca=settings.tls_ca, org=settings.org)
        self._files = files
        self._code = [path for path in code if path.is_dir()]
        self._seen: dict[Path, tuple[int, int]] | None = None
        self._shown: set[tuple[UUID, str]] = set()
        self._held: dict[str, str] = {}
        self._worked = False
        self._looks_at = self._tells_at = 0.0
        self._building: dict[str, int] = {}

    async def run(self) -> None:
        """Until it is canceled."""
        never = asyncio.Event()
        try:
            while True:
                await self._deploy_if_changed()
                if self._worked or self._building or time.monotonic() >= self._looks_at:
                    await self._look()
                    self._looks_at = time.monotonic() + _IDLE_LOOK_SECONDS
                await happens(never, within=_LOOK_SECONDS)
        finally:
            await self._caller.close()

    # Deploys ----------------------------------------------------------------------------------------

    async def _deploy_if_changed(self) -> None:
        now = await asyncio.to_thread(self._snapshot)
        if now == self._seen:
            return
        if self._seen is None:
            watched = ", ".join(map(_shown, [*self._files, *self._code]))
            say(f"Watching {watched}: what you save is deployed. Stop with Ctrl-C.")
        else:  # an editor may be writing several files
            while (later := await asyncio.to_thread(self._snapshot)) != now:
                now = later
                await asyncio.sleep(_LOOK_SECONDS / 2)
        left, refused = list(self._files), len(self._files) + 1
        while left and len(left) < refused:  # one file may read datasets of another that comes later
            refused = len(left)
            failed = [(file, error) for file in left if (error := await self._deploy(file)) is not None]
            left = [file for file, _ in failed]
        if left and any(error.status >= 500 for _, error in failed):
            return
        self._seen = now
        for file, error in failed if left else ():
            say(f"{file}:", err=True)
            for problem in error.problems if isinstance(error, SpecInvalid) else (error,):
                say(f"  {' '.join(str(problem).splitlines())}", err=True)

    def _snapshot(self) -> dict[Path, tuple[int, int]]:
        watched = [*self._files, *Path().glob("*.txt"), *Path().glob("*.lock")]
        watched += [
            path for folder in self._code for path in folder.rglob("*") if "__pycache__" not in path.parts
        ]
        found = {}
        for path in watched:
            try:
                found[path] = (path.stat().st_mtime_ns, path.stat().st_size)
            except OSError:  # an editor replaces files
                continue
        return found

    async def _deploy(self, file: Path) -> TraceplaneError | None:
        try:
            request: DeployRequest = await asyncio.to_thread(deploy_request, self._settings, file, self._code)
            answer = await self._caller.call("POST", "/api/v1/deploy", DeployResponse, request)
        except TraceplaneError as error:
            return error
        except (OSError, UnicodeDecodeError) as error:  # removed, or half-written
            return InvalidInput(
                "dev.unreadable",
                f"the file cannot be read: {error}",
                value=str(file),
                next_step="save it again; it is deployed once it can be read",
            )
        self._looks_at = 0.0
        if answer.changed:
            say_lines(answer.text)
            state = "is being built beside the one that serves" if answer.building else "serves"
            say(f"Deployed {answer.dag} version {answer.version}, which {state}.")
            if answer.building:
                self._building[answer.dag] = answer.version
            else:
                self._building.pop(answer.dag, None)
        else:
            say(f"{answer.dag} version {answer.version} is deployed already.")
        return None

    # What happens -----------------------------------------------------------------------------------

    async def _look(self) -> None:
        try:
            status = await self._caller.call("GET", "/api/v1/status", StatusResponse)
            for failure in status.failed:
                await self._show(failure)
            for dag, version in list(self._building.items()):
                await self._follow_build(dag, version)
        except TraceplaneError as error:
            if error.status < 500:  # otherwise it restarts
                say(str(error), err=True)
            return
        works = bool(status.counts)
        if not self._held:  # what was there before is no news
            self._held = {d.dataset: contents(d) for d in status.datasets}
        if works and not self._worked:
            self._tells_at = time.monotonic() + _TELL_SECONDS
        if not works or time.monotonic() >= self._tells_at:
            self._say_what_changed(status)
            self._tells_at = time.monotonic() + _TELL_SECONDS
        self._worked = works

    async def _follow_build(self, dag: str, version: int) -> None:
        query = {"dag": dag, "limit": "10"}
        answer = await self._caller.call("GET", "/api/v1/versions", VersionsResponse, query=query)
        state = next((v.state for v in answer.versions if v.version == version), "gone")
        if state != "building":
            del self._building[dag]
            say(f"{dag} version {version} {'serves' if state == 'active' else f'is {state}'}.")

    async def _show(self, failure: FailureView) -> None:
        if (failure.newest, failure.state) in self._shown:
            return
        self._shown.add((failure.newest, failure.state))
        scope = f", scope {failure.scope}" if failure.scope is not None else ""
        again = "" if failure.state == "dead" else ", and is tried again"
        say(f"{failure.dag}/{failure.job}{scope} failed{again}:", err=True)
        path = f"/api/v1/tasks/{failure.newest}/explain"
        for item in explained(await self._caller.call("GET", path, ExplainResponse)):
            say_lines(item, err=True)

    def _say_what_changed(self, status: StatusResponse) -> None:
        """Also if the work was over before it was seen."""
        for d in status.datasets:
            holds = contents(d)
            if self._held.get(d.dataset) != holds and (d.dataset in self._held or self._worked):
                held = describe(d.coverage) if d.coverage is not None else ""
                say(f"{d.dataset}: {holds}{held}")
            self._held[d.dataset] = holds
