"""The measured comparisons: what the last runs of `make bench` left, and nothing that was not measured."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

PAGE = "docs/comparisons.md"
RESULTS = "bench/out/results.json"
_NOTHING = "\nNothing was measured on the machine that built this page: run `make bench`, then `make docs`.\n"


def tables(results: Path) -> str:
    """Markdown of all rows that have both figures, by suite."""
    if not results.is_file():
        return _NOTHING
    rows = [row for row in json.loads(results.read_text()) if row["ours"] and row["theirs"]]
    if not rows:
        return _NOTHING
    measured = datetime.fromtimestamp(results.stat().st_mtime, UTC)
    lines = [f"\nThe last run ended on {measured:%Y-%m-%d}.\n"]
    for suite, of_suite in groupby(sorted(rows, key=lambda row: row["suite"]), key=lambda row: row["suite"]):
        lines += [
            f"\n## Suite {suite}\n",
            "| measurement | peer | ours | theirs | ratio | promised | kept |",
            "|---|---|---:|---:|---:|---:|---|",
            *(_line(row) for row in of_suite),
        ]
    return "\n".join(lines) + "\n"


def _line(row: dict[str, Any]) -> str:
    promised = "" if row["bar"] is None else f"{row['bar']:g} ×"
    kept = {None: "", True: "yes", False: "no"}[row["holds"]]
    cells = (
        f"{row['name']} ({row['unit']})",
        row["peer"],
        _figure(row["ours"]),
        _figure(row["theirs"]),
        f"{row['ratio']:.2f} ×",
        promised,
        kept,
    )
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
