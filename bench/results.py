"""Rows of a comparison: how they are computed, kept and printed.

`ratio` always reads "how many times better ours is": ours / theirs where higher is better, theirs / ours
where lower is better. `bar` is the ratio that was promised, none where a row only informs, and `holds`
says whether it was reached. A row whose numbers are missing does not hold, and its note says why.
Absolute targets are rows too: the peer is then called "target" and `theirs` is the figure to reach.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

OUT = Path(__file__).parent / "out"
RESULTS = OUT / "results.json"


@dataclass(frozen=True)
class Row:
    suite: str
    name: str
    unit: str
    ours: float | None
    peer: str
    theirs: float | None
    ratio: float | None
    bar: float | None
    holds: bool | None
    note: str = ""


def compare(
    *,
    suite: str,
    name: str,
    unit: str,
    better: Literal["higher", "lower"],
    ours: float | None,
    peer: str,
    theirs: float | None,
    bar: float | None = None,
    note: str = "",
) -> Row:
    ratio = None
    if ours and theirs:
        ratio = ours / theirs if better == "higher" else theirs / ours
    holds = None if bar is None else ratio is not None and ratio >= bar
    return Row(suite, name, unit, ours, peer, theirs, ratio, bar, holds, note)


def save(suite: str, rows: Sequence[Row], path: Path = RESULTS) -> None:
    """Replace the suite's rows in the file and leave those of other suites as they are."""
    path.parent.mkdir(exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else []
    merged = [row for row in kept if row["suite"] != suite] + [asdict(row) for row in rows]
    path.write_text(json.dumps(merged, indent=1) + "\n")


def table(rows: Sequence[Row]) -> str:
    header = ("name", "unit", "ours", "peer", "theirs", "ratio", "bar", "holds")
    lines = [header, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    numeric = {2, 4, 5, 6}
    printed = [
        "  ".join(
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    notes = sorted({f"  {note}" for row in rows for note in row.note.split("; ") if note})
    return "\n".join(
        [printed[0], "-" * len(printed[0]), *printed[1:], *(["", "notes:"] if notes else []), *notes]
    )


def _cells(row: Row) -> tuple[str, ...]:
    holds = {None: "", True: "yes", False: "NO"}[row.holds]
    return (
        row.name,
        row.unit,
        _number(row.ours),
        row.peer,
        _number(row.theirs),
        _number(row.ratio),
        _number(row.bar),
        holds,
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
