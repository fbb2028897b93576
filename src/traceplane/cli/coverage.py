"""What a dataset holds: its positions, its gaps and their reasons, as text."""

from __future__ import annotations

from traceplane.cli.output import say
from traceplane.model.counted import counted
from traceplane.model.positions import written
from traceplane.wire.control import CoverageView, DatasetView, ScopeExplanation
from traceplane.wire.queries import CatalogEntry

_GAPS_SHOWN = 3
_MOST_COUNTED = 10_000
"""The gateway stops counting a dataset's events here."""


def contents(d: DatasetView | CatalogEntry) -> str:
    """What a dataset consists of: rows, events, or the SQL that computes it."""
    if d.storage == "virtual":
        return "virtual"
    if d.events is not None:
        count = counted(d.events, "event", f"{d.events}+" if d.events == _MOST_COUNTED else None)
        last = d.cursor_name or d.cursor
        return count if last is None else f"{count}, the last at {last}"
    rows = counted(d.rows, "row", f"up to {d.rows}" if d.at_most else None)
    return f"{counted(d.commits, 'commit')}, {rows}, {counted(d.bytes, 'byte')}"


def describe(held: CoverageView) -> str:
    """The end of a sentence about a dataset."""
    text = ""
    if held.first_name is not None and held.last_name is not None:
        text = f", partitions {_named(held.first_name, held.last_name)}"
    elif held.first is not None and held.last is not None:
        text = f", positions {written((held.first, held.last))}"
    if held.gap_count:
        shown = [_named(a, b) for a, b in held.gap_names] or [written((a, b)) for a, b in held.gaps]
        shown = shown[:_GAPS_SHOWN]
        more = held.gap_count - len(shown)
        text += f" except {', '.join(shown)}" + (f" and {counted(more, 'more gap')}" if more else "")
    if held.dropped is not None:
        ranges = f"{held.dropped_ranges} ranges within " if held.dropped_ranges > 1 else ""
        text += f", {ranges}{held.dropped_name} dropped"
    if held.dead:
        text += f", {counted(held.dead, 'scope')} dead"
    return text


def _named(first: str, last: str) -> str:
    return first if first == last else f"{first}..{last}"


def say_why(answer: ScopeExplanation) -> None:
    missing = ", ".join(answer.missing_scopes)
    scope = f"{answer.dataset} {answer.scope}"
    codes = {reason.code for reason in answer.reasons}
    nothing = "nothing is missing."
    if "input" in codes:
        nothing = "it is there, but some of what it is computed from is missing."
    elif codes & {"outdated", "updating"}:
        nothing = "nothing is missing, but not all rows are up to date."
    say(f"{scope}: " + (f"{missing} missing." if missing else nothing))
    for reason in answer.reasons:
        if reason.code != "held":
            say(f"- {reason.sentence}")
