"""The first line: parse, allow what is listed, and write the query anew. Pure.

Every relation of the query gets a name that the gate chose (`tp_d0` for the first dataset it reads, `tp_c0` for the
first common table expression), so nothing that a caller wrote can name a file, a Python variable or a catalog table.
What comes out is generated from the tree, without comments and with all identifiers quoted. It is then parsed again:
only if it passes the same check and reads as the same query is it used. A generator writes some parts of a tree bare
(units of time, names of types), so the tree alone does not say what its text is.

A relation also carries what the query asks of it in its own WHERE (`Condition`s), so that files which cannot hold
such rows are left out before the engine sees them. A condition is only taken where leaving out rows that fail it
cannot change the result. Who uses conditions drops those on columns that the caller may not see (`virtual.expand`).
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, SqlglotError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from traceplane.errors import Forbidden, InvalidInput, TooLarge, TraceplaneError
from traceplane.model.pruning import Condition, Literal, Span
from traceplane.sql.functions import (
    OPERATORS,
    SCALARS_AND_AGGREGATES,
    TABLE_FUNCTIONS,
    TYPES,
    TYPES_UNKNOWN_TO_SQLGLOT,
    UNITS,
)

LONGEST_SQL = 65_536
MOST_WORDS = 10_000
DEEPEST = 40
MOST_RELATIONS = 100
_DUCKDB = DuckDB()

# sqlglot says on a logger of its own that it does not know a statement; the gate's answer is enough.
logging.getLogger("sqlglot").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Relation:
    """One place of the query where a dataset is read."""

    name: str
    dataset_id: str
    conditions: tuple[Condition, ...] = ()
    as_of: Moment = None


Moment = int | datetime | None
"""What is read of a dataset: a version of its DAG, what was there at a time, or what is there now."""


@dataclass(frozen=True, slots=True)
class Gated:
    sql: str
    relations: tuple[Relation, ...]

    @property
    def dataset_ids(self) -> list[str]:
        return sorted({relation.dataset_id for relation in self.relations})


@lru_cache(maxsize=256)  # dashboards ask the same again and again
def admit(sql: str, *, within: str = "tp_d") -> Gated:
    """The query as the engine gets it; or the reason why it does not, as an error.

    `within` begins the names of its relations, so that one query can stand inside of another.
    """
    tree = _parse(sql)
    try:
        _check(tree)
        ctes = _rename_ctes(tree)
        relations = _rename_relations(tree, ctes, within)
        text = written(tree, {relation.name for relation in relations})
    except RecursionError:
        raise _too_deep() from None
    except (SqlglotError, ValueError) as error:
        raise _malformed(sql, error) from None
    return Gated(text, tuple(relations))


def read_again(sql: str, relations: Collection[str]) -> exp.Expr:
    """The tree of a text that the gate wrote, which passes the gate once more and reads no other relations."""
    try:
        statements = sqlglot.parse(sql, read="duckdb")
    except (SqlglotError, ValueError, TypeError, AttributeError, IndexError, KeyError):
        raise _changed("a text that cannot be parsed") from None
    tree = statements[0] if len(statements) == 1 else None
    if not isinstance(tree, _QUERIES):
        raise _changed("another statement")
    _check(tree)
    known = {*relations, *(cte.alias for cte in tree.find_all(exp.CTE))}
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Func) and (len(table.parts) != 1 or table.name not in known):
            raise _changed(f"the relation {'.'.join(part.name for part in table.parts)}")
    return tree


def written(tree: exp.Expr, relations: Collection[str]) -> str:
    """A checked tree as text for DuckDB: one that is read as the same query, over the same relations."""
    text = tree.sql(dialect="duckdb", identify=True, comments=False)
    again = read_again(text, relations)
    (parts, texts), (parts_again, texts_again) = _shape(tree), _shape(again)
    if parts != parts_again:
        raise _changed(next(iter((parts_again - parts) or (parts - parts_again))))
    if (
        lost := texts - texts_again
    ):  # some are added, such as the separator that string_agg has if none is given
        raise _changed(next(iter(lost)))
    return text


def _shape(tree: exp.Expr) -> tuple[Counter[str], Counter[str]]:
    """The parts and the texts of a query, which stay the same however its functions are spelled."""
    parts, texts = Counter[str](), Counter[str]()
    for node in tree.walk():
        kind = type(node)
        if kind in _TEXTS and (kind is not exp.Literal or node.is_string):
            texts[node.name] += 1
        elif kind is exp.Table:
            parts[f"the relation {node.name}"] += 1
        elif kind is exp.CTE:
            parts[f"the common table expression {node.alias}"] += 1
        elif kind in _PARTS:
            parts[kind.__name__.upper()] += 1
    return parts, texts


_QUERIES = (exp.Select, exp.SetOperation, exp.Subquery)
_TEXTS = {exp.Literal, exp.RawString, exp.ByteString, exp.National}
_PARTS = {
    exp.Select, exp.Union, exp.Except, exp.Intersect, exp.With, exp.From, exp.Join, exp.Where, exp.Group, exp.Having,
    exp.Qualify, exp.Order, exp.Limit, exp.Offset, exp.Window, exp.Values, exp.Star,
}  # fmt: skip


def _changed(part: str) -> Forbidden:
    return Forbidden(
        "query.syntax_denied",
        "the query has a part that cannot be written safely",
        value=part[:100],
        next_step="write that part in another way",
    )


# --- parsing ----------------------------------------------------------------------------------------


def _parse(sql: str) -> exp.Expr:
    if len(sql) > LONGEST_SQL:
        raise TooLarge("query.too_long", f"a query has at most {LONGEST_SQL} characters", value=len(sql))
    try:
        parsed = _DUCKDB.parser().parse(_tokens_within_depth(sql), sql)
        statements = [s for s in parsed if s is not None]
    except RecursionError:
        raise _too_deep() from None
    except (SqlglotError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        # Whatever a parser raises on hostile text is the text's fault.
        raise _malformed(sql, error) from None
    if len(statements) != 1:
        raise Forbidden(
            "query.several_statements",
            "a query is exactly one statement",
            value=len(statements),
            next_step="send the statements one by one",
        )
    (tree,) = statements
    if not isinstance(tree, _QUERIES):
        raise Forbidden(
            "query.not_a_select",
            "only SELECT is allowed",
            value=type(tree).__name__.upper(),
            next_step="datasets are changed by jobs; schemas are at GET /v1/datasets",
        )
    return tree


_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END}
_UNARY = {TokenType.NOT, TokenType.DASH, TokenType.TILDE, TokenType.PLUS}


def _tokens_within_depth(sql: str) -> list[Token]:
    """Parsers recurse, here and in the engine, and take their time: what is nested or long beyond use is refused
    before either looks."""
    depth = run = 0
    tokens = _DUCKDB.tokenize(sql)
    if len(tokens) > MOST_WORDS:
        raise TooLarge(
            "query.too_long", f"a query has at most {MOST_WORDS} words, numbers and signs", value=len(tokens)
        )
    for token in tokens:
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        run = run + 1 if token.token_type in _UNARY else 0
        if depth > DEEPEST or run > DEEPEST:
            raise _too_deep()
    return tokens


def _too_deep() -> InvalidInput:
    return InvalidInput("query.too_deep", f"the query is nested more than {DEEPEST} levels deep")


def _malformed(sql: str, error: Exception) -> InvalidInput:
    """Where the query stops making sense, in words of the query: the parser's own name its classes."""
    first = re.match(r"\s*(\w+)", sql)
    if first is not None and first[1].lower() not in _FIRST_WORDS:
        problem = f"it begins with {first[1][:40]!r}; a query begins with SELECT or WITH"
    elif isinstance(error, ParseError) and error.errors:
        problem = _place(error.errors[0])
    elif isinstance(error, TokenError):
        problem = "a quotation mark, a comment or a number in it does not end"
    else:
        problem = "a part of it cannot be understood"
    return InvalidInput(
        "query.malformed", f"the query cannot be parsed: {problem}", next_step="the dialect is DuckDB's"
    )


_FIRST_WORDS = frozenset({"select", "with", "from", "values"})
_PLAIN_WORDS = re.compile(r"Expect(?:ing|ed) (\S+|END after CASE)")


def _place(told: Mapping[str, Any]) -> str:
    where = f"line {told.get('line')}, column {told.get('col')}"
    near = f"near {str(told.get('highlight'))[:40]!r}" if told.get("highlight") else "at its end"
    plain = _PLAIN_WORDS.fullmatch(str(told.get("description")))
    missing = f", where {plain[1]} is expected" if plain else ""
    if not str(told.get("end_context") or "").strip() and not plain:
        return f"something is missing or too much {near}, its last word ({where})"
    return f"it goes wrong {near} ({where}){missing}"


# --- what may be in a query -------------------------------------------------------------------------

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


def _check(tree: exp.Expr) -> None:
    for node in tree.walk():
        if isinstance(node, exp.Version) and isinstance(node.parent, exp.Table):
            _moment(node)
        elif isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
            if not _known(str(node.this)):
                raise _function(str(node.this))
        elif type(node) not in _SYNTAX:
            if not isinstance(node, exp.Func):
                raise _syntax(type(node).__name__)
            if not any(map(_known, node.sql_names())) and not _known(_written_name(node)):
                raise _function(node.sql_name())
        if isinstance(node, exp.Table):
            _check_table(node)
        elif isinstance(node, exp.IntervalSpan):
            for unit in (node.this, node.expression):
                _check_unit_name(unit)
        elif isinstance(node, exp.DataType):
            _check_type(node)
        elif isinstance(node, exp.Var):
            if not _WORD.fullmatch(node.name):
                raise _syntax(node.name)
        elif isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
            raise _syntax("a function after a dot")
        elif isinstance(node, exp.Join) and node.args.get("global_"):
            raise _syntax("GLOBAL JOIN")
        elif isinstance(node, exp.Select) and (node.args.get("into") or node.args.get("locks")):
            raise _syntax("SELECT INTO" if node.args.get("into") else "FOR UPDATE")
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
    """A unit is written bare in some places, so it is one of the known words, and from here on no literal."""
    key = "this" if isinstance(node, exp.Extract) else "unit"
    unit = node.args.get(key)
    if unit is None or not isinstance(unit, exp.Expr) or isinstance(unit, exp.IntervalSpan):
        return  # a span is a node of its own
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
    """What a function that sqlglot has under a name of its own is called in DuckDB."""
    return node.sql(dialect="duckdb").partition("(")[0]


def _known(name: str) -> bool:
    return name.lower() in SCALARS_AND_AGGREGATES or name in OPERATORS


def _check_table(table: exp.Table) -> None:
    for key, value in table.args.items():
        if value and key not in _OF_A_TABLE:
            raise _syntax(key.upper())
    if isinstance(table.this, exp.Func):
        if table.args.get("version"):
            raise _syntax("AS OF of a function")
        name = table.this.this if isinstance(table.this, exp.Anonymous) else _table_function(table.this)
        if table.args.get("db") or str(name).lower() not in TABLE_FUNCTIONS:
            raise _function(str(name))
    elif not all(isinstance(part, exp.Identifier) for part in table.parts):
        raise _syntax(type(table.this).__name__)


def _table_function(node: exp.Func) -> str:
    if isinstance(node, exp.GenerateSeries):
        return "range" if node.args.get("is_end_exclusive") else "generate_series"
    return type(node).sql_name()


def _function(name: str) -> Forbidden:
    return Forbidden(
        "query.function_denied",
        "the query calls a function that is not allowed",
        value=name.lower()[:100],
        next_step="see the allowed functions in docs/concepts/queries.md",
    )


def _syntax(name: str) -> Forbidden:
    return Forbidden("query.syntax_denied", "the query uses syntax that is not allowed", value=name[:100])


def _moment(version: exp.Version) -> int | datetime:
    """`FOR VERSION AS OF 3`, or `FOR TIMESTAMP AS OF '2026-01-31 12:00'`, which is UTC if it says nothing else."""
    given = version.expression
    if isinstance(given, exp.Cast) and given.to.is_type(exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ):
        given = given.this
    if version.args.get("kind") == "AS OF" and isinstance(given, exp.Literal):
        text = str(given.this)
        if version.name == "VERSION" and not given.is_string and text.isdigit() and 0 < int(text) < 2**31:
            return int(text)
        if version.name == "TIMESTAMP" and given.is_string:
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


# --- names ------------------------------------------------------------------------------------------


def _rename_ctes(tree: exp.Expr) -> dict[str, str]:
    """Names of common table expressions are unique in a query, so that a name means one thing wherever it stands."""
    names: dict[str, str] = {}
    for cte in tree.find_all(exp.CTE):
        name = cte.alias.lower()
        if name in names:
            raise InvalidInput(
                "query.duplicate_cte",
                "two common table expressions have one name",
                value=cte.alias,
                next_step="rename one of them",
            )
        names[name] = f"tp_c{len(names)}"
        cte.args["alias"].set("this", exp.to_identifier(names[name], quoted=True))
    return names


def _rename_relations(tree: exp.Expr, ctes: Mapping[str, str], within: str) -> list[Relation]:
    found: list[tuple[exp.Table, str, Moment]] = []
    unaliased: dict[tuple[str, ...], exp.Identifier] = {}
    for table in [*tree.find_all(exp.Table)]:
        if isinstance(table.this, exp.Func):
            continue
        parts = [part.name for part in table.parts]
        last = exp.to_identifier(parts[-1], quoted=True)
        if len(parts) == 1 and parts[0].lower() in ctes:
            name = ctes[parts[0].lower()]
            if table.args.get("version"):
                raise _syntax("AS OF of a common table expression")
        else:
            name = f"{within}{len(found)}"
            version = table.args.pop("version", None)
            found.append((table, ".".join(parts), None if version is None else _moment(version)))
            if not table.alias:
                unaliased[tuple(part.lower() for part in parts)] = last
        _point_at(table, name, last)
    if len(found) > MOST_RELATIONS:
        raise TooLarge("query.too_many_relations", f"a query reads at most {MOST_RELATIONS} relations")
    _requalify_columns(tree, unaliased)
    conditions = _conditions(tree)
    return [
        Relation(table.name, dataset_id, tuple(conditions.get(table.name, ())), as_of)
        for table, dataset_id, as_of in found
    ]


def _point_at(table: exp.Table, name: str, alias: exp.Identifier) -> None:
    table.set("this", exp.to_identifier(name, quoted=True))
    table.set("db", None)
    table.set("catalog", None)
    given = table.args.get("alias")
    if given is None:
        table.set("alias", exp.TableAlias(this=alias))
    elif given.this is None:
        given.set("this", alias)


def _requalify_columns(tree: exp.Expr, unaliased: Mapping[tuple[str, ...], exp.Identifier]) -> None:
    """`chain.logs.block_number` names the column by its dataset: the part before it becomes the relation's alias."""
    for column in [*tree.find_all(exp.Column)]:
        parts = list(column.parts)
        for size in range(len(parts) - 1, 1, -1):
            prefix = tuple(part.name.lower() for part in parts[:size])
            if prefix in unaliased:
                first = exp.Column(this=parts[size].copy(), table=unaliased[prefix].copy())
                rest = [part.copy() for part in parts[size + 1 :]]
                column.replace(exp.Dot.build([first, *rest]) if rest else first)
                break


# --- what a query asks of a relation -----------------------------------------------------------------

_PLAIN_JOIN_KINDS = {"", "INNER", "OUTER", "CROSS"}


def _conditions(tree: exp.Expr) -> dict[str, list[Condition]]:
    found: dict[str, list[Condition]] = {}
    for select in tree.find_all(exp.Select):
        where, joins = select.args.get("where"), select.args.get("joins") or []
        if where is None or select.args.get("sample") or not all(is_plain_join(join) for join in joins):
            continue
        sources = [s.this for s in (select.args.get("from_"), *joins) if s is not None]
        tables = [t for t in sources if isinstance(t, exp.Table) and is_plain_table(t)]
        datasets = [t for t in tables if t.name.startswith("tp_d")]
        outputs = {e.alias.lower() for e in select.expressions if isinstance(e, exp.Alias)}
        for conjunct in _conjuncts(where.this):
            if (asked := _condition(conjunct)) is None:
                continue
            qualifier, condition = asked
            if qualifier:
                own = [t for t in datasets if t.alias.lower() == qualifier]
            elif condition.column in outputs:
                own = []
            elif len(datasets) == len(sources) or all(_is_using(join, condition.column) for join in joins):
                # The engine refuses a name that two relations have, unless the join makes one column of them. So the
                # column is of each relation that has it, and the others ignore it.
                own = datasets
            else:
                own = []  # a subquery, a function or a common table expression may have the column
            for table in own:
                found.setdefault(table.name, []).append(condition)
    return found


def _is_using(join: exp.Join, column: str) -> bool:
    return any(name.name.lower() == column for name in join.args.get("using") or ())


def is_plain_join(join: exp.Join) -> bool:
    """Whether a row that WHERE drops could also have been missing before the join."""
    method, kind = str(join.args.get("method") or "").upper(), str(join.args.get("kind") or "").upper()
    return method in ("", "NATURAL") and kind in _PLAIN_JOIN_KINDS


def is_plain_table(table: exp.Table) -> bool:
    """Whether a table is one relation as it is: all of its rows, under the names that its columns have."""
    alias = table.args.get("alias")
    if any(table.args.get(key) for key in ("sample", "joins", "laterals")):
        return False
    return not (alias is not None and alias.args.get("columns"))


def _conjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    waiting = [node]
    while waiting:
        match waiting.pop():
            case exp.And() as both:
                waiting += [both.this, both.expression]
            case exp.Paren() as wrapped:
                waiting.append(wrapped.this)
            case other:
                yield other


Asked = tuple[str, Condition]
"""The qualifier of the column, or "" for none; and what is asked of it. Names are in lower case."""


def _condition(node: exp.Expr) -> Asked | None:
    match node:
        case exp.Paren():
            return _condition(node.this)
        case exp.Or():
            one, other = _condition(node.this), _condition(node.expression)
            if one is None or other is None or (one[0], one[1].column) != (other[0], other[1].column):
                return None
            return one[0], Condition(one[1].column, one[1].spans + other[1].spans)
        case exp.Between() if not node.args.get("symmetric"):
            return _asked(node.this, [(_literal(node.args["low"]), _literal(node.args["high"]))])
        case exp.In() if node.expressions and not node.args.get("query"):
            values = [_literal(value) for value in node.expressions]
            return _asked(node.this, [(value, value) for value in values])
        case exp.EQ() | exp.GT() | exp.GTE() | exp.LT() | exp.LTE():
            kind: type[exp.Expr] = type(node)
            column, value = node.this, _literal(node.expression)
            if value is None:
                column, value, kind = node.expression, _literal(node.this), _MIRRORED[kind]
            if kind is exp.EQ:
                return _asked(column, [(value, value)])
            return _asked(column, [(value, None)] if kind in (exp.GT, exp.GTE) else [(None, value)], ends=1)
    return None


_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.EQ: exp.EQ,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
}


def _asked(column: exp.Expr, spans: list[Span], ends: int = 2) -> Asked | None:
    """Spans are inclusive: that a bound itself does not count costs at most a file too many."""
    if not isinstance(column, exp.Column) or isinstance(column.this, exp.Star) or column.args.get("db"):
        return None
    if any(sum(end is not None for end in span) < ends for span in spans):
        return None
    return column.table.lower(), Condition(column.name.lower(), tuple(spans))


def _literal(node: exp.Expr) -> Literal | None:
    match node:
        case exp.Paren():
            return _literal(node.this)
        case exp.Literal() if node.is_string:
            return str(node.this)
        case exp.Literal():
            return _number(str(node.this))
        case exp.Neg():
            value = _literal(node.this)
            return -value if isinstance(value, int | float) and not isinstance(value, bool) else None
        case exp.Boolean():
            return bool(node.this)
        case exp.Cast() if node.to.is_type(exp.DType.DATE) and isinstance(node.this, exp.Literal):
            return _literal(node.this)
    return None


def _number(text: str) -> int | float | None:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return None


def denied(error: TraceplaneError) -> bool:
    """Whether an error is a refusal to be audited, rather than a slip."""
    return error.code in DENIALS


DENIALS = frozenset(
    {
        "query.several_statements",
        "query.not_a_select",
        "query.function_denied",
        "query.syntax_denied",
        "query.unknown_relation",
        "query.too_deep",
        "query.too_long",
        "query.personal_data",
    }
)
