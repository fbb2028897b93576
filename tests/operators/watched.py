"""Operators of file sources."""

from traceplane.sdk import OperatorTask


def lines(task: OperatorTask) -> list[dict]:
    """How many lines the files of a partition have, and what the operator sees of the source's folder."""
    files = task.files()
    rows = task.read("files").to_pylist()
    assert sorted(files) == sorted(row["path"] for row in rows)
    return [
        {"path": path, "lines": len(local.read_bytes().splitlines()), "name": local.name}
        for path, local in files.items()
    ]
