"""What a dataset promises of its rows, as `checks` of a DAG file says it, and what an output was found to break.

A check is computed for what one task writes, before it is committed. All kinds but `not_null`, `rows` and `expression`
leave a null alone, as constraints of SQL do: a column that must not be null says so with `not_null`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from traceplane.model import durations

Value = str | int | float | bool
SampleRow = dict[str, str | None]
"""A row that breaks a check: its values as short texts, by column."""

MOST_SAMPLED = 5
LONGEST_VALUE = 100
MOST_COLUMNS = 100
"""Of a sampled row."""


class Severity(StrEnum):
    WARN = "warn"
    """The output is committed, and the failure is recorded with it."""
    BLOCK = "block"
    """The task fails, and nothing is committed."""


class CheckKind(StrEnum):
    NOT_NULL = "not_null"
    UNIQUE = "unique"
    ACCEPTED = "accepted"
    RANGE = "range"
    ROWS = "rows"
    EXPRESSION = "expression"
    FRESHNESS = "freshness"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    kind: CheckKind
    severity: Severity = Severity.BLOCK
    columns: tuple[str, ...] = ()
    """Those that it is about, except for an expression, which names them itself."""
    values: tuple[Value, ...] = ()
    """Of `accepted`."""
    min: Value | None = None
    max: Value | None = None
    """Of `range` and `rows`, both included; None: no bound."""
    expression: str | None = None
    """True for a good row; in the dialect of queries, and for workers in Spark's."""
    seconds: float | None = None
    """Of `freshness`: how old the newest data may be."""

    @property
    def is_of_rows(self) -> bool:
        """Whether it is about rows, and not about when they came."""
        return self.kind is not CheckKind.FRESHNESS

    def as_written(self) -> dict[str, object]:
        """As a DAG file has it, without its name."""
        return {str(self.kind): self._argument(), "severity": str(self.severity)}

    def _argument(self) -> object:
        bounds = {word: bound for word, bound in (("min", self.min), ("max", self.max)) if bound is not None}
        match self.kind:
            case CheckKind.NOT_NULL | CheckKind.UNIQUE:
                return list(self.columns)
            case CheckKind.ACCEPTED:
                return {"column": self.columns[0], "values": list(self.values)}
            case CheckKind.RANGE:
                return {"column": self.columns[0], **bounds}
            case CheckKind.ROWS:
                return bounds
            case CheckKind.EXPRESSION:
                return self.expression
            case CheckKind.FRESHNESS:
                return durations.written(self.seconds or 0)

    def problem(self, rows: int, error: str = "") -> str:
        """What is wrong with an output in which so many rows break it; of `rows`, with so many rows. `error`: why it
        could not be computed."""
        if error:
            return f"it could not be computed for every row: {error}"
        count = "1 row" if rows == 1 else f"{rows} rows"
        has, columns = "has" if rows == 1 else "have", ", ".join(self.columns)
        match self.kind:
            case CheckKind.NOT_NULL:
                return f"{count} {has} a null in {columns}"
            case CheckKind.UNIQUE:
                return f"{count} {'repeats' if rows == 1 else 'repeat'} the {columns} of another row"
            case CheckKind.ACCEPTED:
                return f"{count} {has} a value of {columns} that is not accepted"
            case CheckKind.RANGE:
                return f"{count} {has} a value of {columns} {_outside(self.min, self.max)}"
            case CheckKind.ROWS:
                return f"it has {count}, and should have {_bounds(self.min, self.max)}"
            case CheckKind.EXPRESSION:
                return f"{count} {'is' if rows == 1 else 'are'} not as the expression demands"
            case CheckKind.FRESHNESS:
                return f"no data has come for {durations.written(self.seconds or 0)}"


def _outside(low: Value | None, high: Value | None) -> str:
    if low is None or high is None:
        return f"below {low}" if low is not None else f"above {high}"
    return f"outside {low} to {high}"


def _bounds(low: Value | None, high: Value | None) -> str:
    if low is None or high is None:
        return f"at least {low}" if low is not None else f"at most {high}"
    return f"exactly {low}" if low == high else f"{low} to {high}"


def default_name(kind: CheckKind, columns: Iterable[str]) -> str:
    return "_".join([str(kind), *columns])


@dataclass(frozen=True, slots=True)
class BrokenCheck:
    """A check that an output does not meet."""

    name: str
    rows: int
    """How many rows break it; of `rows`, how many there are."""
    sample: tuple[SampleRow, ...] = field(default_factory=tuple)
    error: str = ""
    """The condition that Spark raised for some row, without its values: it is not known how many rows break it."""


def sampled(rows: Iterable[Mapping[str, str | None]]) -> str:
    """Rows of a sample in one line."""
    return "; ".join(
        ", ".join(f"{name}={'null' if value is None else value}" for name, value in row.items())
        for row in rows
    )
