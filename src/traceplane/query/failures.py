"""Why a query failed, in terms of its caller."""

from __future__ import annotations

import re

import duckdb
import pyarrow as pa

from traceplane.linux.conversation import TooManyBytes
from traceplane.query.wire import QueryFailed


class QueryRefused(Exception):
    """The engine rejects the query, or stops it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


_PATH = re.compile(r"[\"']?/[^\s\"']+[\"']?")


def explain(error: BaseException) -> QueryFailed:
    """An error that names no file and none of the engine's internal names."""
    match error:
        case QueryRefused():
            return QueryFailed(error.code, error.message)
        case TooManyBytes():
            return QueryFailed("query.too_large", str(error))
        case duckdb.OutOfMemoryException() | MemoryError():
            return QueryFailed("query.out_of_memory", "the query needs more memory than one query may use")
        case duckdb.PermissionException():
            return QueryFailed("query.syntax_denied", "the query accesses something outside its relations")
        case duckdb.IOException() | duckdb.HTTPException():
            if "spill" in str(error) or "temp" in str(error).lower():
                return QueryFailed(
                    "query.out_of_memory", "the query needs more memory and disk than one query may use"
                )
            return QueryFailed("query.file_unreadable", "a file of a dataset cannot be read")
        case duckdb.InternalException() | duckdb.FatalException():
            return QueryFailed("query.engine_failed", "the engine failed on this query")
        case duckdb.InterruptException():
            return QueryFailed("query.timeout", "the query took too long")
        case duckdb.Error():
            return QueryFailed("query.invalid", _plain_message(str(error)))
        case RecursionError():
            return QueryFailed("query.too_deep", "the query is nested too deeply")
        case pa.ArrowInvalid() | pa.ArrowNotImplementedError() | pa.ArrowTypeError():
            return QueryFailed(
                "query.format_unsupported",
                f"the result cannot be written in this format: {_plain_message(str(error))}",
            )
        case OSError() if isinstance(error.__context__, QueryRefused | TooManyBytes):
            return explain(error.__context__)  # an encoder's
        case _:
            return QueryFailed(
                "query.engine_failed", f"the engine failed on this query: {type(error).__name__}"
            )


def _plain_message(message: str) -> str:
    first = re.split(r"\n\s*\n?LINE \d+:", message)[0].strip()
    return _PATH.sub("…", first)[:500]
