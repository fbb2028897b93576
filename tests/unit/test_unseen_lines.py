"""Following a log whose server keeps only the end of it: each line is shown once, and what is missing is said."""

from __future__ import annotations

from uuid import UUID

from traceplane.cli.failures import unseen
from traceplane.wire.control import AttemptLog, TaskLogs

TASK = UUID(int=1)


def answer(*texts: tuple[int, str]) -> TaskLogs:
    logs = [AttemptLog(attempt, text, "2026-11-19T00:00:00+00:00") for attempt, text in texts]
    return TaskLogs(TASK, "running", texts[0][0], logs)


def test_lines_are_new_once() -> None:
    seen: dict[int, int] = {}
    assert list(unseen(answer((1, "a\nb")), None, seen)) == [(1, ["a", "b"])]
    assert list(unseen(answer((1, "a\nb")), None, seen)) == []
    assert list(unseen(answer((1, "a\nb\nb")), None, seen)) == [(1, ["b"])]


def test_the_window_moves() -> None:
    seen = {1: 5}
    moved = answer((1, "[3 earlier lines were not kept]\nd\ne\nf"))
    assert list(unseen(moved, None, seen)) == [(1, ["f"])]
    far = answer((1, "[7 bytes of log were not forwarded]\n[9 earlier lines were not kept]\nj"))
    assert list(unseen(far, None, seen)) == [(1, ["[3 lines were not kept]", "j"])]


def test_attempts_are_told_apart_and_selected() -> None:
    seen: dict[int, int] = {}
    both = answer((2, "x"), (1, "a"))
    assert list(unseen(both, 2, seen)) == [(2, ["x"])]
    assert list(unseen(both, None, seen)) == [(1, ["a"])]
