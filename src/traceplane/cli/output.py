"""Where every command writes its output, so that nothing reaches a terminal unescaped (`model.printable`)."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn
from uuid import uuid4

import click
import msgspec

from traceplane import telemetry
from traceplane.model.printable import json_text, many_lines, one_line

as_json = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


def say(line: str = "", *, err: bool = False) -> None:
    """One line."""
    click.echo(one_line(line), err=err)


def note(event: str, /, *lines: str, **fields: object) -> None:
    """A notice of a process that logs to stderr: text lines, or an event among its JSON lines."""
    if telemetry.writes_json():
        telemetry.emit(event, "info", **fields)
        return
    for line in lines:
        say(line, err=True)


def say_lines(text: str, *, err: bool = False) -> None:
    """Text of several lines."""
    click.echo(many_lines(text.removesuffix("\n")), err=err)


class ChangingLine:
    """Progress: one line that is overwritten at a terminal, elsewhere a new line for each change."""

    def __init__(self) -> None:
        self._shown: str | None = None

    def show(self, line: str) -> None:
        if line == self._shown:
            return
        self._shown = line
        if is_terminal():
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"\r{one_line(line)[: width - 1]:<{width}}", nl=False)
        else:
            say(line)

    def end(self) -> None:
        if is_terminal():
            say()


class Screen:
    """Lines that are shown in place of the last ones at a terminal, and below them elsewhere."""

    def __init__(self) -> None:
        self._begun = False

    def show(self, lines: Sequence[str]) -> None:
        if not is_terminal():
            for line in [*([""] if self._begun else []), *lines]:
                say(line)
            self._begun = True
            return
        width, height = shutil.get_terminal_size()
        shown = [one_line(line)[: width - 1] for line in lines[: height - 1]]
        # From the upper left corner, each line and then the rest of the screen cleared behind what is written.
        click.echo("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in shown) + "\x1b[J", nl=False)


def progress_bar(length: int) -> Any:
    """Click's progress bar with the remaining time; hidden unless there is a terminal that can overwrite it."""
    return click.progressbar(length=length, show_pos=True, hidden=not is_terminal())


def say_json(answer: object) -> None:
    click.echo(json_text(msgspec.json.format(msgspec.json.encode(answer)).decode()))


def say_table(header: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> None:
    """At a terminal, columns under their names; elsewhere, a plain line for each row. `empty`: what to say if there is
    none, on stderr, since a script that counts lines counts none."""
    lines = [[one_line(cell) for cell in row] for row in rows]
    if not lines:
        say(empty, err=True)
        return
    if not is_terminal():
        for line in lines:
            say("  ".join(cell for cell in line if cell))
        return
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    for line in ([name.upper() for name in header], *lines):
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def moment(text: str) -> str:
    """A time as people read it; `--json` has it as the platform says it."""
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def say_fields(answer: object) -> None:
    """One thing, a line for each field that it has."""
    fields: dict[str, Any] = msgspec.to_builtins(answer)
    shown = {name: value for name, value in fields.items() if value not in (None, [], {}, "")}
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        say(f"{name:<{width}}  {text}")


def say_json_line(answer: object) -> None:
    """One of many answers, each on a line of its own."""
    click.echo(json_text(msgspec.json.encode(answer).decode()))


def is_terminal() -> bool:
    return sys.stdout.isatty()


def ask(question: str) -> bool:
    """Whether the user at the terminal agrees; False if there is no terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    return click.confirm(one_line(question), err=True)


def hand_on(pieces: Iterable[bytes], *, is_json: bool) -> None:
    """Writes a result: byte for byte for another program, escaped for a terminal."""
    if not is_terminal():
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    text = b"".join(pieces).decode(errors="replace").replace("\r\n", "\n").removesuffix("\n")
    click.echo(json_text(text) if is_json else many_lines(text))


def write_file(path: Path, pieces: Iterable[bytes]) -> None:
    """Replaces a file once all pieces are there; whatever fails leaves it as it was. Raises OSError."""
    if path.exists() and not path.is_file():  # such as /dev/stdout or a named pipe
        with path.open("wb") as stream:
            stream.writelines(pieces)
        return
    target = path.resolve()  # a link stays one
    partial = target.with_name(f".{uuid4().hex}.partial")
    before = signal.signal(signal.SIGTERM, _end)  # which by default ends the process at once
    try:
        with partial.open("xb") as file:
            file.writelines(pieces)
        if target.exists():
            shutil.copymode(target, partial)
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _end(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


@contextlib.contextmanager
def work_goes_on(what: str, look: str) -> Iterator[None]:
    """Says at Ctrl-C that only the waiting has ended."""
    try:
        yield
    except KeyboardInterrupt:
        say(err=True)  # after the progress
        say(f"Stopped waiting; {what} goes on. See `{look}`.", err=True)
        raise
