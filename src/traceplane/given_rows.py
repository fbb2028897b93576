"""The rows that a test gives a job instead of running it: see `pytest_plugin`."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as parquet

from traceplane.sdk import OperatorTask


def file_of(folder: Path, scope: str) -> Path:
    return folder / f"{quote(scope, safe='')}.parquet"


def rows(task: OperatorTask) -> pa.Table | list[object]:
    """None, for a scope that the test gave no rows."""
    file = file_of(Path(task.config["given"]), str(task.scope))
    return parquet.read_table(file) if file.exists() else []
