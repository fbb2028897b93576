"""The conditions of a query on its relations in WHERE, so that files which cannot hold matching rows are not read.

A condition is only used where leaving out rows that fail it cannot change the result.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from traceplane.model.pruning import Condition, Literal, Span, as_moment, has_zone

_PLAIN_JOIN_KINDS = {"", "INNER", "OUTER", "CROSS"}


def conditions(tree: exp.Expr) -> dict[str, list[Condition]]:
    """By the names that the gate gave to relations."""
    by_relation: dict[str, list[Condition]] = {}
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
                # The engine rejects a name that two relations have, unless the join merges them into one column. So the
                # condition applies to each relation that has the column, and the others ignore it.
                own = datasets
            else:
                own = []  # a subquery, a function or a common table expression may have the column
            for table in own:
                by_relation.setdefault(table.name, []).append(condition)
    return by_relation


def _is_using(join: exp.Join, column: str) -> bool:
    return any(name.name.lower() == column for name in join.args.get("using") or ())


def is_plain_join(join: exp.Join) -> bool:
    """Whether a row that WHERE drops could also have been missing before the join."""
    method, kind = str(join.args.get("method") or "").upper(), str(join.args.get("kind") or "").upper()
    return method in ("", "NATURAL") and kind in _PLAIN_JOIN_KINDS


def is_plain_table(table: exp.Table) -> bool:
    """Whether a table is exactly one relation: all of its rows, under the original column names."""
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
"""The qualifier of the column, or "" for none, and the condition on it. Names are in lower case."""


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
    """Spans are inclusive: treating an exclusive bound as inclusive costs at most one file too many."""
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
        case exp.Cast() if isinstance(node.this, exp.Literal) and node.this.is_string:
            text = str(node.this.this)
            zoned = node.to.is_type(exp.DType.TIMESTAMPTZ)
            if zoned or (node.to.is_type(exp.DType.TIMESTAMPNTZ) and not has_zone(text)):
                return as_moment(text)
    return None


def _number(text: str) -> int | float | None:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return None
