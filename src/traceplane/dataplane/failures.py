"""Spark's errors in the user's terms: without the JVM's stack, with the user's own line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.errors import PySparkException, QueryContextType

_JVM_STACK = "\n\nJVM stacktrace:"


def explained(error: PySparkException, function: Callable[..., Any] | None) -> PySparkException:
    """The same error, with a message for people and a `place`: where the DataFrame was made that cannot be
    computed, or else where the operator's function begins. Spark is lazy, so the traceback knows neither."""
    message = str(error).partition(_JVM_STACK)[0].strip()
    error.people_read = message  # type: ignore[attr-defined]
    error.place = _call_site(error) or _beginning(function)  # type: ignore[attr-defined]
    return error


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
