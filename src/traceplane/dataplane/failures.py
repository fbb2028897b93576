"""Spark's errors for users: without the JVM's stack, with the line of their code."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyspark.errors import PySparkException, QueryContextType

from traceplane.dataplane.datasets import DOES_NOT_FIT
from traceplane.dataplane.sent_packages import OTHER_PYTHON
from traceplane.sdk import OperatorError

_JVM_STACK = "\n\nJVM stacktrace:"
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_UNREADABLE = re.compile(r"(?:FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER|is not a Parquet file)")
_FILE = re.compile(r"file:/*(/\S+?\.parquet)")
_NOT_STORED = re.compile(r"TRACEPLANE_NOT_STORED ([^\n]+)")
_OTHER_PYTHON = re.compile(rf"{OTHER_PYTHON}([^\n]+)")
_NOT_WRITABLE = re.compile(r"IOException: Mkdirs failed to create file:/*(/\S+?)/_temporary/")
_EXPIRED = re.compile(r"\bs3a://.*(?:ExpiredToken|InvalidAccessKeyId|token has expired)", re.DOTALL)
_QUERY_LINE = re.compile(r"\bline (\d+),? pos(?:ition)? \d+")
_UNFIT = re.compile(rf"{DOES_NOT_FIT}(.+ as the dataset declares it)", re.DOTALL)


def explained(
    error: PySparkException,
    function: Callable[..., Any] | None,
    queries: Mapping[str, str],
    input_files: Collection[str],
) -> Exception:
    """The same error, with a readable message and a `place`: the line of the user's function that raised in Spark,
    or where the failing DataFrame was created, or else where the operator's function begins; or the line of the
    user's query, by the field of the job that holds it. Spark is lazy, so the traceback knows none of them."""
    message = str(error).partition(_JVM_STACK)[0].strip()
    if unfit := _UNFIT.search(message):
        return OperatorError("operator.value_does_not_fit", unfit[1])
    if not_stored := _NOT_STORED.search(message):
        return OperatorError(
            "operator.output_not_stored", f"an executor could not store a file of the output: {not_stored[1]}"
        )
    if other_python := _OTHER_PYTHON.search(message):
        return OperatorError(
            "operator.executors_other_python",
            f"Spark's executors cannot use the packages that the job needs: {other_python[1]}",
        )
    if not_writable := _NOT_WRITABLE.search(message):
        return OperatorError(
            "operator.output_not_stored",
            f"an executor may not write into the worker's folder {not_writable[1]}: it runs as another user than the "
            "worker",
        )
    if _EXPIRED.search(message):
        return OperatorError(
            "operator.credentials_expired",
            "the credentials for S3 that Spark's executors had for this task have expired",
        )
    unreadable = _FILE.search(message) if _UNREADABLE.search(message) else None
    if unreadable and unreadable[1] in input_files:
        return OperatorError(
            "operator.input_unreadable",
            f"a committed file cannot be read: {unreadable[1]}; restore it, or recompute its scope with "
            "`traceplane backfill`",
        )
    error.people_read = message  # type: ignore[attr-defined]
    error.place = (  # type: ignore[attr-defined]
        _line_of_query(error, message, queries)
        if function is None
        else _raised_at(message) or _call_site(error) or _beginning(function)
    )
    return error


def _line_of_query(
    error: PySparkException, message: str, queries: Mapping[str, str]
) -> tuple[str, int | None] | None:
    """None if the failing SQL is not, or not certainly, one of these: a view that it reads has a query of its own."""
    contexts = [c for c in error.getQueryContext() or () if c.contextType() == QueryContextType.SQL]
    fragments = [context.fragment() for context in contexts if not context.objectType()]
    failing = [
        field
        for field, text in queries.items()
        if text in message or any(fragment in text for fragment in fragments)
    ]
    if len(failing) == 1:
        line = _QUERY_LINE.search(message)
        return failing[0], int(line[1]) if line else None
    only = next(iter(queries)) if len(queries) == 1 else None
    return None if contexts or only is None else (only, None)


def _raised_at(message: str) -> tuple[str, int] | None:
    """The last line of a Python traceback that is not in a library."""
    frames = [(file, int(line)) for file, line in _FRAME.findall(message) if not file.startswith(_LIBRARIES)]
    return frames[-1] if frames else None


def _call_site(error: PySparkException) -> tuple[str, int] | None:
    for context in error.getQueryContext() or ():
        if context.contextType() == QueryContextType.DataFrame:
            file, _, line = context.callSite().rpartition(":")
            if file and line.isdigit():
                return file, int(line)
    return None


def _beginning(function: Callable[..., Any] | None) -> tuple[str, int] | None:
    code = getattr(function, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else None
