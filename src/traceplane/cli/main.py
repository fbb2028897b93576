"""`traceplane`, alias `tp`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from traceplane import __version__
from traceplane.cli import admin, control, pipelines, queries, services, trigger
from traceplane.cli import doctor as _doctor  # noqa: F401 -- a command of `trigger`
from traceplane.cli.output import say
from traceplane.errors import SpecInvalid, TraceplaneError
from traceplane.settings import load


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="traceplane")
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Settings file (TOML)."
)
@click.option("--home", type=click.Path(file_okay=False, path_type=Path), help="Folder of the local profile.")
@click.pass_context
def cli(context: click.Context, config: Path | None, home: Path | None) -> None:
    """An event-driven data platform: dataset events become leased tasks become atomic commits."""
    context.obj = load(config, home=home)


for command in (
    *services.COMMANDS,
    *control.COMMANDS,
    *pipelines.COMMANDS,
    *queries.COMMANDS,
    *trigger.COMMANDS,
    *admin.COMMANDS,
):
    cli.add_command(command)


def main() -> None:
    """Runs the command; an error of the caller's making is one readable line and exit code 2."""
    try:
        cli(standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except TraceplaneError as error:
        # A message may quote what a row holds, so its line ends are no line ends here.
        for told in error.problems if isinstance(error, SpecInvalid) else (error,):
            say(" ".join(str(told).splitlines()), err=True)
        sys.exit(2 if error.status < 500 else 1)


if __name__ == "__main__":
    main()
