"""Which positions there are, and why some are not, for people."""

from __future__ import annotations

from traceplane.cli.output import say
from traceplane.model.positions import written
from traceplane.wire.control import CoverageView, ScopeExplanation

_GAPS_SHOWN = 3


def describe(held: CoverageView) -> str:
    """As the end of a sentence about a dataset."""
    text = (
        "" if held.first is None or held.last is None else f", positions {written((held.first, held.last))}"
    )
    if held.gap_count:
        shown = [written((a, b)) for a, b in held.gaps[:_GAPS_SHOWN]]
        more = held.gap_count - len(shown)
        text += f" but for {', '.join(shown)}" + (f" and {more} more gaps" if more else "")
    if held.dead:
        text += f", {held.dead} scopes dead"
    return text


def say_why(answer: ScopeExplanation) -> None:
    missing = ", ".join(written((a, b)) for a, b in answer.missing)
    asked = f"{answer.dataset} {written((answer.first, answer.last))}"
    say(f"{asked}: " + (f"{missing} missing." if missing else "all of it is there."))
    for reason in answer.reasons:
        if reason.code != "held":
            say(f"- {reason.sentence}")
