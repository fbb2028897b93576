"""Where every command writes what it has to say, so that nothing reaches a terminal unescaped (`model.printable`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click
import msgspec

from traceplane.model.printable import json_text, many_lines, one_line


def say(line: str = "", *, err: bool = False) -> None:
    """One line."""
    click.echo(one_line(line), err=err)


def say_lines(text: str, *, err: bool = False) -> None:
    """Text that has lines of its own."""
    click.echo(many_lines(text.removesuffix("\n")), err=err)


def say_again(line: str) -> None:
    """A line that the next one is written over, until `say` ends it."""
    click.echo(f"\r{one_line(line):<78}", nl=False)


def say_json(answer: object) -> None:
    click.echo(json_text(msgspec.json.format(msgspec.json.encode(answer)).decode()))


def is_terminal() -> bool:
    return sys.stdout.isatty()


def ask(question: str) -> bool:
    """Whether somebody at a terminal agrees; nobody there agrees to nothing."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return click.confirm(one_line(question), err=True)


def hand_on(pieces: Iterable[bytes], *, is_json: bool) -> None:
    """A result for another program, byte by byte; somebody who only looks at it gets it escaped."""
    if not is_terminal():
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    text = b"".join(pieces).decode(errors="replace").replace("\r\n", "\n").removesuffix("\n")
    click.echo(json_text(text) if is_json else many_lines(text))
