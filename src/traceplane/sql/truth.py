"""Whether an expression can be true or false at all. Pure.

Only what is certain counts: a column of a declared type, a constant, a calculation. A function may return anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sqlglot import exp

_CALCULATIONS = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.DPipe,
    exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.BitwiseNot, exp.BitwiseLeftShift, exp.BitwiseRightShift,
)  # fmt: skip
_SHIFTS = (exp.BitwiseLeftShift, exp.BitwiseRightShift)
_APART = re.compile(r"<\s+<|>\s+>")


def never_true(tree: exp.Expr, types: Mapping[str, str | None] | None = None) -> str | None:
    """Why it is no condition, in words. `types`: of columns, by name, as they were declared."""
    match tree.unnest():
        case exp.Column() as column if (type_ := _type_of(column, types or {})) is not None:
            return f"the column {column.name[:100]!r} is {type_[:100]}"
        case exp.Literal() as constant:
            return f"{constant.sql()[:40]} is a constant"
        case exp.Expr() as other if isinstance(other, _CALCULATIONS):
            return "it is a calculation, which is neither true nor false"
    return None


def shift_apart(text: str, tree: exp.Expr) -> str | None:
    """Two signs that the parser takes for a shift, and Spark does not."""
    match = _APART.search(text) if tree.find(*_SHIFTS) is not None else None
    return match[0] if match else None


def _type_of(column: exp.Column, types: Mapping[str, str | None]) -> str | None:
    declared = {name.lower(): type_ for name, type_ in types.items() if name is not None}.get(
        column.name.lower()
    )
    return None if column.table or declared is None or declared.lower() == "boolean" else declared
