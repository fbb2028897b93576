"""Which columns of a job's outputs are personal data, given those of its inputs. Pure.

SQL is analyzed. Built-in operators carry columns by name, or take their rows from outside the platform. The code of
users may compute each column from all that it reads, unless its job declares the lineage of a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from traceplane.model.job_definition import InputView, JobDefinition
from traceplane.operators import catalog
from traceplane.operators.spec import ColumnsFrom

if TYPE_CHECKING:  # it takes a parser of SQL, which a dispatcher starts without
    from traceplane.sql.column_lineage import QueryLineage, Sources


@dataclass(frozen=True, slots=True)
class Marks:
    """The columns of a dataset that are personal data, in lower case."""

    personal: frozenset[str] = frozenset()
    clean: frozenset[str] | None = None
    """If not None, all columns but these are personal data."""

    def has(self, column: str) -> bool:
        return column in self.personal or (self.clean is not None and column not in self.clean)

    def any_of(self, columns: Sequence[str] | None) -> bool:
        """`columns`: None if they are not known."""
        return bool(self) if columns is None else any(map(self.has, columns))

    def __bool__(self) -> bool:
        return bool(self.personal) or self.clean is not None

    def __or__(self, other: Marks) -> Marks:
        personal = self.personal | other.personal
        if self.clean is None or other.clean is None:
            clean = other.clean if self.clean is None else self.clean
        else:
            clean = self.clean & other.clean
        return Marks(personal, None if clean is None else clean - personal)

    def without(self, columns: Iterable[str]) -> Marks:
        gone = frozenset(columns)
        return Marks(self.personal - gone, None if self.clean is None else self.clean | gone)


NO_MARKS = Marks()
ALL_MARKED = Marks(clean=frozenset())


@dataclass(frozen=True, slots=True)
class Table:
    """What a job reads."""

    columns: tuple[str, ...] | None
    """In lower case; None if they are not known."""
    marks: Marks

    def only(self, columns: Sequence[str]) -> Table:
        """The table with these columns alone; empty: with all of them."""
        return replace(self, columns=tuple(c.lower() for c in columns)) if columns else self

    @property
    def is_marked(self) -> bool:
        return self.marks.any_of(self.columns)

    def __or__(self, other: Table) -> Table:
        known = self.columns is not None and other.columns is not None
        columns = tuple(dict.fromkeys((*(self.columns or ()), *(other.columns or ())))) if known else None
        return Table(columns, self.marks | other.marks)


def marks_of_output(
    operator: str,
    definition: JobDefinition,
    output: str,
    outputs: int,
    inputs: Mapping[str, Table],
    virtual_marks: Mapping[str, Marks],
) -> Marks:
    """`inputs` are the stored datasets that the job reads, `virtual_marks` what virtual datasets themselves declare;
    `outputs` is their number."""
    if not any(table.is_marked for table in inputs.values()) and not any(virtual_marks.values()):
        return NO_MARKS
    if definition.views:
        views = _views(definition.views, inputs, {})
        return views[definition.views[-1].name].marks
    return _of_code(operator, definition, output, outputs, _read(definition, inputs, virtual_marks))


def marks_of_inputs(
    definition: JobDefinition, inputs: Mapping[str, Table], virtual_marks: Mapping[str, Marks]
) -> Marks:
    """Of all that a job reads, by the names that the columns have there."""
    tables = _read(definition, inputs, virtual_marks)
    return reduce(Marks.__or__, (table.marks for table in tables.values()), NO_MARKS)


def _read(
    definition: JobDefinition, inputs: Mapping[str, Table], virtual_marks: Mapping[str, Marks]
) -> dict[str, Table]:
    """What a job reads, by the names of its inputs: stored datasets, and virtual ones."""
    tables = dict(inputs)
    if (virtual := definition.virtual) is not None:
        own = {
            view: virtual_marks.get(used.dataset_id, NO_MARKS)
            for used in virtual.inputs
            if (view := virtual.given.get(used.name)) is not None
        }
        own |= {
            view.name: virtual_marks[i] for view in virtual.views if (i := view.dataset_id) in virtual_marks
        }
        views = _views(virtual.views, inputs, own)
        tables = {name: table for name, table in inputs.items() if not name.startswith("#")}
        tables |= {
            used.name: views[virtual.given[used.name]].only(used.columns)
            for used in virtual.inputs
            if used.name in virtual.given
        }
    return tables


def _of_code(
    operator: str, definition: JobDefinition, output: str, outputs: int, tables: Mapping[str, Table]
) -> Marks:
    spec = catalog.find(operator)
    match spec.columns_from if spec is not None else None:
        case ColumnsFrom.OUTSIDE:
            return NO_MARKS
        case ColumnsFrom.SAME_NAMES:
            return reduce(Marks.__or__, (table.marks for table in tables.values()), NO_MARKS)
    if spec is not None and spec.query_field is not None:
        query = definition.config.get(spec.query_field)
        if isinstance(query, dict):
            query = query.get(output)
        return _of_query(query, tables, "spark").marks if isinstance(query, str) else ALL_MARKED
    if not any(table.is_marked for table in tables.values()):
        return NO_MARKS
    return Marks(clean=_declared_clean(definition.lineage or {}, output, outputs, tables))


def _declared_clean(
    lineage: Mapping[str, Sequence[str]], output: str, outputs: int, tables: Mapping[str, Table]
) -> frozenset[str]:
    """The columns that the job declares to be computed from columns without a mark."""
    prefix = "" if outputs == 1 else f"{output}."
    return frozenset(
        column.removeprefix(prefix).lower()
        for column, sources in lineage.items()
        if column.startswith(prefix) and not any(_is_marked(source, tables) for source in sources)
    )


def _is_marked(source: str, tables: Mapping[str, Table]) -> bool:
    """Of an `input.column`; both may contain dots, so each way to read it counts. What names nothing is marked."""
    meant = [
        (table, source.removeprefix(f"{name}.").lower())
        for name, table in tables.items()
        if source.startswith(f"{name}.")
    ]
    return not meant or any(table.marks.has(column) for table, column in meant)


def _views(
    views: Sequence[InputView], inputs: Mapping[str, Table], own: Mapping[str, Marks]
) -> dict[str, Table]:
    """Each view by its name; later ones read earlier ones."""
    tables: dict[str, Table] = {}
    for view in views:
        reads = tables | {name: inputs[stored] for name, stored in view.reads.items() if stored in inputs}
        table = _of_query(view.sql, reads, "spark")
        tables[view.name] = replace(table, marks=table.marks | own.get(view.name, NO_MARKS))
    return tables


def _of_query(sql: str, tables: Mapping[str, Table], dialect: str) -> Table:
    relations = tuple((name, table.columns) for name, table in tables.items())
    from traceplane.sql.column_lineage import lineage_of

    found = lineage_of(sql, relations, dialect)
    is_marked = any(table.is_marked for table in tables.values())
    if found is None:
        return Table(None, ALL_MARKED if is_marked else NO_MARKS)
    marks = {name.lower(): table.marks for name, table in tables.items()}
    columns = None if found.has_unnamed else tuple(found.columns)
    return Table(columns, _marks_of(found, marks, is_marked))


def _marks_of(found: QueryLineage, marks: Mapping[str, Marks], is_marked: bool) -> Marks:
    def marked(sources: Sources) -> bool:
        return any(marks[relation].has(column) for relation, column in sources)

    personal = frozenset(name for name, sources in found.columns.items() if marked(sources))
    # A column that the query does not name: one that the engine names, or one that the analysis did not foresee.
    if marked(found.unnamed) if found.has_unnamed else is_marked:
        return Marks(clean=frozenset(found.columns.keys() - personal))
    return Marks(personal)
