"""The operator's code; it runs in the sandbox of a worker."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from traceplane.operators.config import read
from traceplane.sdk import OperatorError, OperatorTask
from traceplane_quality.spec import TOO_MANY, QualityConfig


def run(task: OperatorTask) -> None:
    config = read(task.config, QualityConfig)
    (name,) = task.inputs
    rows = task.read(name)
    rejected_rows = 0
    for start in range(0, max(rows.num_rows, 1), config.chunk_rows):
        chunk = rows.slice(start, config.chunk_rows)
        reasons = broken_rules(chunk, config)
        is_good = pc.equal(reasons, "")
        rejected = chunk.append_column("reason", reasons).filter(pc.invert(is_good))
        rejected_rows += rejected.num_rows
        task.write("accepted", chunk.filter(is_good))
        task.write("rejected", rejected)
    if rows.num_rows and rejected_rows / rows.num_rows > config.most_rejected:
        raise OperatorError(TOO_MANY, f"{rejected_rows} of {rows.num_rows} rows break the rules")


def broken_rules(rows: pa.Table, config: QualityConfig) -> pa.Array:
    """For each row, the first rule that it breaks; no text for a row that breaks none."""
    reasons = pa.array([""] * rows.num_rows, pa.string())
    for column in config.required:
        reasons = _noted(reasons, pc.is_null(rows[column]), f"{column} is missing")
    for column, bounds in config.bounds.items():
        if bounds.least is not None:
            reasons = _noted(reasons, pc.less(rows[column], bounds.least), f"{column} is too small")
        if bounds.most is not None:
            reasons = _noted(reasons, pc.greater(rows[column], bounds.most), f"{column} is too large")
    return reasons


def _noted(reasons: pa.Array, breaks: pa.ChunkedArray, reason: str) -> pa.Array:
    is_first = pc.and_(pc.equal(reasons, ""), pc.fill_null(breaks, False).combine_chunks())
    return pc.if_else(is_first, reason, reasons)
