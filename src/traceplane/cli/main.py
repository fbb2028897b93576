"""`traceplane`, alias `tp`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from traceplane import __version__
from traceplane.cli import (
    admin,
    alerts,
    audit,
    backfill,
    channels,
    completion,
    dead_letters,
    deploys,
    dev,
    doctor,
    effects,
    events,
    jobs,
    messages,
    operators,
    people,
    pipelines,
    project,
    queries,
    secrets,
    services,
    sign_in,
    spark,
    tasks,
    top,
    trigger,
)
from traceplane.cli.grammar import CommandLine, Noun
from traceplane.cli.output import say
from traceplane.errors import InvalidInput, SpecInvalid, TraceplaneError
from traceplane.settings import load


def _not_empty(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    if path == "":
        raise click.BadParameter("the path is empty", ctx=context, param=parameter)
    return path


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="traceplane")
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Settings file (TOML)."
)
@click.option(
    "--home",
    type=click.Path(file_okay=False),  # a Path would make the current folder of an empty text
    callback=_not_empty,
    help="Folder of the local profile.",
)
@click.pass_context
def cli(context: click.Context, config: Path | None, home: str | None) -> None:
    """An event-driven data platform: dataset events become leased tasks, which become atomic commits."""
    context.obj = load(config, home=home)


cli.add_section(
    "Run",
    project.init,
    dev.dev,
    services.up,
    sign_in.ui,
    tasks.status,
    top.top,
    doctor.doctor,
    services.dispatcher,
    services.gateway,
    services.worker,
    services.sink,
    services.delivery,
    trigger.trigger,
)
cli.add_section("Deploy", deploys.dag, operators.operator)
cli.add_section("Data", queries.dataset, events.event, events.file, events.webhook)
cli.add_section(
    "Work",
    tasks.explain,
    tasks.task,
    jobs.job,
    jobs.batch,
    dead_letters.dead_letter,
    pipelines.pipeline,
    pipelines.execution,
    pipelines.scanner_list,
)
cli.add_section("Alerts", alerts.alert, channels.channel, messages.message)
cli.add_section(
    "People and secrets",
    sign_in.login,
    sign_in.logout,
    people.whoami,
    people.member,
    people.role,
    admin.token,
    sign_in.provider,
    secrets.secret,
    audit.audit,
)
cli.add_section("Set up", admin.migrate, admin.org, admin.key, admin.gc, spark.spark, completion.completion)

cli.add_short_names(
    "dag",
    plan=deploys.plan,
    deploy=deploys.deploy,
    versions=deploys.versions,
    cutover=deploys.cutover,
    rollback=deploys.rollback,
    abort=deploys.abort,
)
cli.add_short_names("dataset", query=queries.query, backfill=backfill.backfill)
cli.add_short_names("event", emit=events.emit, effects=effects.effects)
cli.add_short_names("task", retry=tasks.retry, cancel=tasks.cancel, logs=tasks.logs, dead=tasks.dead)
cli.add_short_names("dead-letter", dlq=dead_letters.dead_letter)
# Names that are accepted, and not shown.
for noun in (tasks.task, queries.dataset):
    noun.aliases["explain"] = tasks.explain
for noun in (secrets.secret, channels.channel, sign_in.provider):
    noun.aliases["remove"] = noun.commands["delete"]
people.role.aliases["define"] = people.role.commands["set"]
cli.aliases["deliveries"] = messages.message
cli.aliases["sign-in"] = Noun("sign-in", commands={"provider": sign_in.provider})


def main() -> None:
    """Runs the command; a user error is one readable line and exit code 2."""
    try:
        cli(standalone_mode=False, prog_name="traceplane")
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _fail(_usage_error(error))
    except TraceplaneError as error:
        _fail(error)


def _fail(error: TraceplaneError) -> NoReturn:
    # A message may quote a row's values, so its line breaks are replaced.
    problems = error.problems if isinstance(error, SpecInvalid) else (_with_next_step(error),)
    for problem in problems:  # a problem of a file says where to correct it
        say(" ".join(str(problem).splitlines()), err=True)
    sys.exit(2 if error.status < 500 else 1)


def _with_next_step(error: TraceplaneError) -> TraceplaneError:
    error.next_step = error.next_step or error.otherwise
    return error


def _usage_error(error: click.ClickException) -> InvalidInput:
    """Click's message names the value and similar ones."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "traceplane"
    message = error.format_message().strip().removesuffix(".")
    return InvalidInput(
        "cli.usage", f"{message[:1].lower()}{message[1:]}", next_step=f"see `{command} --help`"
    )


if __name__ == "__main__":
    main()
