"""`traceplane dead-letter`: dead letters of buffered datasets."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import click

from traceplane.cli.failures import error_text
from traceplane.cli.grammar import Noun
from traceplane.cli.output import as_json, moment, say, say_json
from traceplane.cli.tasks import WHY_UNCHANGED, change, of_a_dag, say_changes, selection
from traceplane.cli.whereabouts import call
from traceplane.model.counted import counted
from traceplane.settings import Settings
from traceplane.wire.dead_letters import DeadLetterDetail, DeadLettersResponse, DeadLetterView
from traceplane.wire.tasks import RefusedRow

_PATH = "/api/v1/dead-letters"
_WHY_UNCHANGED = {
    **WHY_UNCHANGED,
    "no_letter": "it has no dead letter; `traceplane explain` says how it stands",
    "retired": "its job's version is no longer deployed; `traceplane dead-letter drop` removes the letter",
    "pipeline": "its execution is over; run the pipeline again",
    "superseded": "something newer has been committed in its scope; `traceplane dead-letter drop` removes the letter",
    "acknowledged": "it was acknowledged; `traceplane retry` computes its rows again",
    "busy": "another task is working on its scope; try again when it is done",
    "not_newest": "a newer task of its scope is dead too; replay or retry that one",
}


@click.group(cls=Noun)
def dead_letter() -> None:
    """Dead letters: completed tasks whose rows a buffered dataset could not take."""


@dead_letter.command("list")
@click.option("--dag", help="Only this DAG's.")
@click.option("--job", help="Only this job's.")
@click.option("--dataset", help="Only this dataset's.")
@click.option("--after", type=click.IntRange(min=0), help="Continue behind an earlier page.")
@click.option("--limit", default=50, show_default=True)
@as_json
@click.pass_obj
def list_(
    settings: Settings,
    dag: str | None,
    job: str | None,
    dataset: str | None,
    after: int | None,
    limit: int,
    as_json: bool,
) -> None:
    """List dead letters, oldest first."""
    filters = {"dag": dag, "job": job, "dataset": dataset, "after": after, "limit": limit}
    query = {name: str(value) for name, value in filters.items() if value is not None}
    answer = call(settings, lambda c: c.call("GET", _PATH, DeadLettersResponse, query=query))
    if as_json:
        say_json(answer)
        return
    for letter in answer.letters:
        say(_line(letter))
    if not answer.letters:
        say("no dead letters")
        return
    if answer.after is not None:
        say(f"there may be more: --after {answer.after}")
    say(f"next: traceplane dead-letter show {answer.letters[0].task_id}")


def _line(letter: DeadLetterView) -> str:
    standing = f" ({letter.standing})" if letter.standing not in (None, "open") else ""
    error = f"  {error_text(letter.error)}" if letter.error else ""
    return (
        f"{letter.task_id}  {letter.dataset}  {letter.dag}/{letter.job}  {letter.scope or '-'}  "
        f"{counted(letter.rows, 'row')}{standing}{error}"
    )


@dead_letter.command()
@click.argument("task_id", type=click.UUID)
@as_json
@click.pass_obj
def show(settings: Settings, task_id: UUID, as_json: bool) -> None:
    """Show the dead letter of TASK_ID: why it was refused, the row, the files, and the next step."""
    answer = call(settings, lambda c: c.call("GET", f"{_PATH}/{task_id}", DeadLetterDetail))
    if as_json:
        say_json(answer)
        return
    for line in _shown(answer):
        say(line)


def _shown(detail: DeadLetterDetail) -> Iterator[str]:
    letter = detail.letter
    scope = f", scope {letter.scope}" if letter.scope is not None else ""
    standing = f" The task is {letter.standing}." if letter.standing not in (None, "open") else ""
    yield (
        f"Task {letter.task_id} of job {letter.dag}/{letter.job}{scope}: attempt {letter.attempt} is done, "
        f"but {letter.dataset} could not take its rows.{standing}"
    )
    error = letter.error or {}
    yield f"- {error.get('code', 'unknown')}: {error.get('message', '')}"
    if detail.row is not None:
        yield from _row(detail.row)
    yield (
        f"- Tried {'once' if letter.tries == 1 else f'{letter.tries} times'}; handed over at "
        f"{moment(letter.handed_over_at)}, dead since {moment(letter.failed_at)}"
    )
    yield (
        f"- {counted(letter.rows, 'row')}, {counted(letter.bytes, 'byte')} in {counted(letter.files, 'file')}"
        f"{':' if detail.files else ''}"
    )
    for file in detail.files:
        yield f"  {file.path}  {file.dataset}, {counted(file.rows, 'row')}, {counted(file.bytes, 'byte')}"
    if letter.files > len(detail.files):
        yield f"  and {letter.files - len(detail.files)} more"
    yield f"Next step: {detail.next_step}"


def _row(row: RefusedRow) -> Iterator[str]:
    facts = {
        "file": row.file,
        "row": row.row,
        "column": row.column,
        "value": row.value,
        "expected": row.expected,
    }
    known = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    if known:
        yield f"- Refused: {known}"


@dead_letter.command()
@of_a_dag
@as_json
@click.pass_obj
def replay(
    settings: Settings,
    task_ids: tuple[UUID, ...],
    dag: str | None,
    job: str | None,
    range_: str | None,
    as_json: bool,
) -> None:
    """Let sinks try dead letters again, with the rows that are there. `traceplane retry` computes them anew."""
    _change(
        settings,
        "replay",
        task_ids,
        (dag, job, range_),
        as_json,
        none="no dead letters that can be replayed; see `traceplane dead-letter list`",
    )


@dead_letter.command()
@of_a_dag
@as_json
@click.pass_obj
def drop(
    settings: Settings,
    task_ids: tuple[UUID, ...],
    dag: str | None,
    job: str | None,
    range_: str | None,
    as_json: bool,
) -> None:
    """Give dead letters up: their tasks stay dead and are acknowledged, and their rows are deleted in time."""
    _change(settings, "drop", task_ids, (dag, job, range_), as_json, none="no dead letters")


def _change(
    settings: Settings,
    verb: str,
    task_ids: tuple[UUID, ...],
    of_dag: tuple[str | None, str | None, str | None],
    as_json: bool,
    *,
    none: str,
) -> None:
    request = selection(task_ids, *of_dag)
    answer = change(settings, f"{_PATH}/{verb}", request)
    if as_json:
        say_json(answer)
    else:
        say_changes(request, answer, why_unchanged=_WHY_UNCHANGED, none=none)
    if not answer.changed:
        raise SystemExit(1)
