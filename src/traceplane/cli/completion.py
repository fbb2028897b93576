"""`traceplane completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from traceplane.cli.output import say_lines

_VARIABLE = "_TRACEPLANE_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands in SHELL; for bash: source <(traceplane completion bash)."""
    kind = get_completion_class(shell)
    assert kind is not None
    for name in ("traceplane", "tp"):
        say_lines(kind(context.find_root().command, {}, name, _VARIABLE).source())
