"""What a query may contain: listed syntax, functions, types and units, and nothing else."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from sqlglot import exp

from traceplane.errors import Forbidden, InvalidInput
from traceplane.sql.functions import (
    OPERATORS,
    SCALARS_AND_AGGREGATES,
    TABLE_FUNCTIONS,
    TYPES,
    TYPES_UNKNOWN_TO_SQLGLOT,
    UNITS,
)

_SYNTAX: frozenset[type[exp.Expr]] = frozenset(
    {
        # queries
        exp.Select, exp.Union, exp.Except, exp.Intersect, exp.Subquery, exp.With, exp.CTE, exp.TableAlias, exp.Alias,
        exp.Aliases, exp.From, exp.Join, exp.Lateral, exp.Table, exp.Values, exp.Tuple, exp.Where, exp.Group,
        exp.Having, exp.Qualify, exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.Fetch, exp.LimitOptions,
        exp.Distinct, exp.GroupingSets, exp.Cube, exp.Rollup, exp.TableSample, exp.Window, exp.WindowSpec,
        exp.WithinGroup, exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.HavingMax, exp.Unnest,
        # names and values
        exp.Star, exp.Column, exp.Columns, exp.Identifier, exp.Dot, exp.Literal, exp.Null, exp.Boolean, exp.Var,
        exp.DataType, exp.DataTypeParam, exp.ColumnDef, exp.Interval, exp.IntervalSpan, exp.Paren, exp.Bracket,
        exp.Slice, exp.PropertyEQ, exp.Kwarg, exp.Lambda, exp.Comprehension,
        exp.HexString, exp.ByteString, exp.RawString, exp.National,
        exp.JSONPath, exp.JSONPathRoot, exp.JSONPathKey, exp.JSONPathSubscript, exp.JSONPathSlice,
        exp.JSONPathWildcard, exp.JSONPathRecursive, exp.JSONPathUnion, exp.JSONPathSelector,
        exp.JSONKeyValue, exp.ArrayAgg,
        # operators
        exp.And, exp.Or, exp.Not, exp.Xor, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ,
        exp.NullSafeNEQ, exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.SimilarTo, exp.Glob, exp.Escape,
        exp.RegexpLike, exp.RegexpILike, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Pow, exp.Neg,
        exp.DPipe, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift,
        exp.BitwiseRightShift, exp.Collate, exp.Exists, exp.Any, exp.All, exp.Distance, exp.ArrayContainsAll,
        exp.ArrayContainedBy, exp.ArrayOverlaps, exp.StartsWith,
        # functions that sqlglot knows under names which are not DuckDB's
        exp.Cast, exp.TryCast, exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.Count, exp.CountIf, exp.Anonymous,
        exp.AnonymousAggFunc, exp.Extract, exp.AtTimeZone, exp.Struct, exp.Array, exp.List, exp.Map, exp.ToMap,
        exp.VarMap, exp.GenerateSeries, exp.Explode, exp.Posexplode, exp.CurrentDate, exp.CurrentTime,
        exp.CurrentTimestamp, exp.Localtime, exp.Localtimestamp, exp.JSONExtract, exp.JSONExtractScalar,
        exp.DateAdd, exp.DateSub, exp.DateDiff, exp.TimestampTrunc, exp.DateTrunc, exp.TsOrDsToDate, exp.StrToTime,
        exp.TimeToStr, exp.StrToUnix, exp.UnixToTime, exp.TimeToUnix, exp.StrPosition, exp.Substring, exp.Trim,
        exp.Concat, exp.ConcatWs, exp.GroupConcat, exp.ApproxDistinct, exp.Quantile, exp.PercentileCont,
        exp.PercentileDisc, exp.ApproxQuantile, exp.Variance, exp.VariancePop, exp.Stddev, exp.StddevPop,
        exp.StddevSamp, exp.LogicalAnd, exp.LogicalOr, exp.AnyValue, exp.ArgMax, exp.ArgMin, exp.RegexpExtract,
        exp.RegexpExtractAll, exp.RegexpReplace, exp.RegexpSplit, exp.Split, exp.ArraySize, exp.ArrayToString,
        exp.Transform, exp.ArrayFilter, exp.Rand, exp.Uuid, exp.MD5, exp.SHA, exp.SHA2, exp.Hex,
        exp.Unhex, exp.Encode, exp.Decode, exp.StructExtract, exp.Levenshtein, exp.DayOfWeek, exp.DayOfWeekIso,
        exp.DayOfMonth, exp.DayOfYear, exp.WeekOfYear, exp.LastDay, exp.Date, exp.Time, exp.MakeInterval,
        exp.BitwiseAndAgg, exp.BitwiseOrAgg, exp.BitwiseXorAgg, exp.JSONArray, exp.JSONObject, exp.ParseJSON,
        exp.First, exp.Last, exp.FirstValue, exp.LastValue, exp.NthValue, exp.Lag, exp.Lead, exp.RowNumber,
    }
)  # fmt: skip

_OF_A_TABLE = {"this", "db", "catalog", "alias", "joins", "laterals", "sample", "version"}


def check(tree: exp.Expr) -> None:
    """Raises at the first part of the tree that is not listed."""
    for node in tree.walk():
        if isinstance(node, exp.Version) and isinstance(node.parent, exp.Table):
            moment_of(node)
        elif isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
            if not _is_listed(str(node.this)):
                raise _function_denied(str(node.this))
        elif type(node) not in _SYNTAX:
            if not isinstance(node, exp.Func):
                raise syntax_denied(type(node).__name__)
            if not any(map(_is_listed, node.sql_names())) and not _is_listed(_written_name(node)):
                raise _function_denied(node.sql_name())
        if isinstance(node, exp.Table):
            _check_table(node)
        elif isinstance(node, exp.IntervalSpan):
            for unit in (node.this, node.expression):
                _check_unit_name(unit)
        elif isinstance(node, exp.DataType):
            _check_type(node)
        elif isinstance(node, exp.Var):
            if not _WORD.fullmatch(node.name):
                raise syntax_denied(node.name)
        elif isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
            raise syntax_denied("a function after a dot")
        elif isinstance(node, exp.Join) and node.args.get("global_"):
            raise syntax_denied("GLOBAL JOIN")
        elif isinstance(node, exp.Select) and (node.args.get("into") or node.args.get("locks")):
            raise syntax_denied("SELECT INTO" if node.args.get("into") else "FOR UPDATE")
        _check_unit(node)


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _check_type(node: exp.DataType) -> None:
    name = str(node.args.get("kind") or getattr(node.this, "name", node.this))
    if name not in TYPES and name.lower() not in TYPES_UNKNOWN_TO_SQLGLOT:
        raise Forbidden(
            "query.syntax_denied",
            "the query names a type that is not one of DuckDB's",
            value=name[:100],
            next_step="cast to a built-in type, such as bigint, double, varchar, date or timestamp",
        )


def _check_unit(node: exp.Expr) -> None:
    """A unit is written without quotes in some places, so it must be one of the known words, and never a literal."""
    key = "this" if isinstance(node, exp.Extract) else "unit"
    unit = node.args.get(key)
    if unit is None or not isinstance(unit, exp.Expr) or isinstance(unit, exp.IntervalSpan):
        return  # a span is a separate node
    _check_unit_name(unit)
    if isinstance(unit, exp.Literal):
        node.set(key, exp.Var(this=unit.name.upper()))


def _check_unit_name(unit: exp.Expr) -> None:
    if not isinstance(unit, exp.Var | exp.Literal) or unit.name.lower() not in UNITS:
        raise Forbidden(
            "query.syntax_denied",
            "the query names a unit of time that is not known",
            value=(unit.name or unit.sql(dialect="duckdb"))[:100],
            next_step="write a constant such as year, quarter, month, week, day, hour, minute or second",
        )


def _written_name(node: exp.Func) -> str:
    """DuckDB's name of a function that sqlglot knows under another one."""
    return node.sql(dialect="duckdb").partition("(")[0]


def _is_listed(name: str) -> bool:
    return name.lower() in SCALARS_AND_AGGREGATES or name in OPERATORS


def _check_table(table: exp.Table) -> None:
    for key, value in table.args.items():
        if value and key not in _OF_A_TABLE:
            raise syntax_denied(key.upper())
    if isinstance(table.this, exp.Func):
        if table.args.get("version"):
            raise syntax_denied("AS OF of a function")
        name = table.this.this if isinstance(table.this, exp.Anonymous) else _table_function(table.this)
        if table.args.get("db") or str(name).lower() not in TABLE_FUNCTIONS:
            raise _function_denied(str(name))
    elif not all(isinstance(part, exp.Identifier) for part in table.parts):
        raise syntax_denied(type(table.this).__name__)


def _table_function(node: exp.Func) -> str:
    if isinstance(node, exp.GenerateSeries):
        return "range" if node.args.get("is_end_exclusive") else "generate_series"
    return type(node).sql_name()


def _function_denied(name: str) -> Forbidden:
    return Forbidden(
        "query.function_denied",
        "the query calls a function that is not allowed",
        value=name.lower()[:100],
        next_step="see the allowed functions in docs/concepts/queries.md",
    )


def syntax_denied(name: str) -> Forbidden:
    return Forbidden("query.syntax_denied", "the query uses syntax that is not allowed", value=name[:100])


def moment_of(version: exp.Version) -> int | datetime:
    """`FOR VERSION AS OF 3`, or `FOR TIMESTAMP AS OF '2026-01-31 12:00'`, in UTC unless it has a time zone."""
    moment = version.expression
    if isinstance(moment, exp.Cast) and moment.to.is_type(exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ):
        moment = moment.this
    if version.args.get("kind") == "AS OF" and isinstance(moment, exp.Literal):
        text = str(moment.this)
        if version.name == "VERSION" and not moment.is_string and text.isdigit() and 0 < int(text) < 2**31:
            return int(text)
        if version.name == "TIMESTAMP" and moment.is_string:
            try:
                time = datetime.fromisoformat(text.strip())
            except ValueError:
                pass
            else:
                return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    raise InvalidInput(
        "query.bad_as_of",
        "a dataset is read as of a version of its DAG, or as of a time",
        value=version.sql(dialect="duckdb")[:100],
        next_step="write FOR VERSION AS OF 3, or FOR TIMESTAMP AS OF '2026-01-31 12:00:00Z'",
    )
