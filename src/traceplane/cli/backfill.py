"""`traceplane backfill`: computes a range of history at a lower priority than current work."""

from __future__ import annotations

import re
import time
from contextlib import nullcontext
from typing import Any

import click
import msgspec

from traceplane.cli.output import as_json, progress_bar, say, say_json, work_goes_on
from traceplane.cli.queries import dataset as noun
from traceplane.cli.scopes import parse_range
from traceplane.cli.whereabouts import call
from traceplane.model.counted import counted
from traceplane.settings import Settings
from traceplane.wire.control import BackfillRequest, BackfillResponse

_POLL_SECONDS = 1.0


@noun.command()
@click.argument("dataset")
@click.option(
    "--range", "range_", metavar="A..B", required=True, help="Positions or partitions from A to B, inclusive."
)
@click.option(
    "--only-missing",
    "only",
    flag_value="missing",
    default="missing",
    help="Only scopes without a commit (the default).",
)
@click.option("--only-failed", "only", flag_value="failed", help="Only scopes whose last task is dead.")
@click.option("--force", "only", flag_value="all", help="All scopes, including those already computed.")
@click.option("--partition-size", type=click.IntRange(min=1), help="Positions per task.")
@click.option("--allow-gaps", is_flag=True, help="Include scopes whose inputs have missing positions.")
@click.option("--wait", is_flag=True, help="Show the progress until everything is done.")
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
    """Compute a range of DATASET's history, at a lower priority than current work. Run it again to resume."""
    start, end = parse_range(range_)
    request = BackfillRequest(dataset, start, end, only, partition_size, allow_gaps)
    answer = call(settings, lambda c: c.call("POST", "/api/v1/backfill", BackfillResponse, request))
    if not as_json:
        say(f"{counted(answer.created, 'task')} of job {answer.job} for {counted(answer.scopes, 'scope')}")
        _say_left_out(answer)
    left_out = answer.left_out
    if wait:
        answer = _wait(settings, request, answer, quiet=as_json)
    if as_json:
        say_json(answer)
    if wait and answer.failed:
        say(
            f"{counted(answer.failed, 'scope')} failed. See why with "
            f"`traceplane tasks --job {answer.job} --state dead` and `traceplane explain`. "
            f"Fix the cause and run the same command with --only-failed.",
            err=True,
        )
    if left_out or (wait and answer.failed):
        raise SystemExit(1)


def _say_left_out(answer: BackfillResponse) -> None:
    if not answer.left_out:
        return
    gaps = ", ".join(f"{g.dataset} {g.scope}" for g in answer.gaps[:5])
    say(f"{counted(answer.left_out, 'scope')} skipped because of gaps in inputs. Missing: {gaps}")
    first = answer.gaps[0]
    say(
        f"Run `traceplane backfill {first.dataset} --range {_range(first.scope)}` first, or use --allow-gaps."
    )


def _range(scope: str) -> str:
    """A scope as the option --range takes it."""
    return scope if ".." in scope else re.sub(r"^(-?[0-9]+)-(-?[0-9]+)$", r"\1..\2", scope)


def _wait(
    settings: Settings, request: BackfillRequest, begun: BackfillResponse, *, quiet: bool
) -> BackfillResponse:
    """Returns when no scope is unfinished."""
    watch, answer = msgspec.structs.replace(request, dry_run=True), begun
    going_on = work_goes_on("the backfill", "traceplane status")
    with going_on, nullcontext() if quiet else progress_bar(begun.unfinished) as bar:
        while answer.unfinished:
            time.sleep(_POLL_SECONDS)
            before = answer
            answer = call(settings, lambda c: c.call("POST", "/api/v1/backfill", BackfillResponse, watch))
            if bar is not None:
                bar.update(before.unfinished - answer.unfinished)
    if not quiet:
        # A skipped scope may be one that failed before.
        done = max(0, answer.scopes - answer.failed - begun.left_out)
        skipped = f", {begun.left_out} skipped" if begun.left_out else ""
        say(f"{done} of {answer.scopes} done, {answer.failed} failed{skipped}")
    return msgspec.structs.replace(answer, created=begun.created)
