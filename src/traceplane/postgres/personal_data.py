"""Which columns are personal data, followed upstream through all that rows were computed from.

Walked when it is asked, in the snapshot of the question: a mark that a deploy adds anywhere upstream counts from the
moment at which it serves, and no copy of it can be outdated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import msgspec

from traceplane.model.job_definition import JobDefinition, VirtualInputs
from traceplane.operators.column_marks import NO_MARKS, Marks, Table, marks_of_inputs, marks_of_output
from traceplane.postgres.database import Transaction, statements

_SQL = statements("personal_data")


class DeclaredColumn(msgspec.Struct, frozen=True):
    name: str
    pii: bool = False
    declassified: str | None = None


Declared = Sequence[DeclaredColumn]


class _Read(msgspec.Struct, frozen=True):
    name: str
    columns: list[str]
    generation_id: UUID
    virtual: VirtualInputs | None = None


class _Producer(msgspec.Struct, frozen=True):
    operator: str
    definition: JobDefinition
    output: str
    outputs: int
    inputs: list[_Read]
    past: list[_Read]
    virtual_columns: dict[str, list[DeclaredColumn]]


@dataclass(slots=True)
class _Node:
    definitions: tuple[Declared, ...]
    columns: tuple[str, ...] | None
    producers: list[_Producer]
    derived: Marks = NO_MARKS
    table: Table = field(init=False)

    def __post_init__(self) -> None:
        self.settle()

    def settle(self) -> None:
        self.table = Table(self.columns, effective(self.derived, self.definitions))


def effective(derived: Marks, definitions: Sequence[Declared]) -> Marks:
    """A mark of any definition counts, a declassification only if all definitions have it."""
    own = Marks(frozenset(c.name.lower() for columns in definitions for c in columns if c.pii))
    declassified = [{c.name.lower() for c in columns if c.declassified} for columns in definitions]
    return (derived | own).without(set.intersection(*declassified) if declassified else ())


@dataclass(frozen=True, slots=True)
class Origin:
    """The marks of a generation's rows."""

    derived: Marks
    """What follows from what they are computed from, before its own dataset declassifies anything."""
    effective: Marks
    definitions: tuple[Declared, ...]


async def origins(tx: Transaction, generation_ids: Sequence[UUID]) -> dict[UUID, Origin]:
    """Of generations that have rows."""
    nodes = await _settled(tx, generation_ids, {})
    return {
        generation_id: Origin(asked.derived, asked.table.marks, asked.definitions)
        for generation_id in generation_ids
        if (asked := nodes.get(generation_id)) is not None
    }


async def marks_of_rows(
    tx: Transaction, generation_id: UUID, query: str | None, declared: Mapping[str, Declared]
) -> Marks:
    """Of the columns that the jobs which write a generation would compute by another query; None: of those that they
    read. `declared`: the columns of datasets whose definitions are about to change."""

    def marks(
        producer: _Producer, definition: JobDefinition, tables: _Tables, virtual: _VirtualMarks
    ) -> Marks:
        if query is None:
            return marks_of_inputs(definition, tables, virtual)
        asked = replace(definition, config={**definition.config, "query": query})
        return _computed(producer, asked, tables, virtual)

    nodes = await _settled(tx, [generation_id], declared)
    return _derived(replace(nodes[generation_id], derived=NO_MARKS), nodes, marks)


async def _settled(
    tx: Transaction, generation_ids: Sequence[UUID], declared: Mapping[str, Declared]
) -> dict[UUID, _Node]:
    """These generations and all upstream of them, with their marks."""
    nodes = {
        row["generation_id"]: _node(row, declared.get(row["dataset_id"]))
        for row in await tx.rows(_SQL["upstream"], list(generation_ids))
    }
    # Those upstream come last, so one round is nearly always enough; a second one finds that nothing changes.
    changed = any(node.table.marks or _virtual_marks(node) for node in nodes.values())
    while changed:
        changed = False
        for node in reversed(nodes.values()):
            derived = _derived(node, nodes)
            if derived != node.derived:
                node.derived, changed = derived, True
                node.settle()
    return nodes


async def touched_by(
    tx: Transaction, org: str, jobs: Collection[tuple[str, str]]
) -> frozenset[tuple[str, str]]:
    """Those of the jobs, given as DAG and name, that read or write personal data in any of their versions."""
    if not jobs:
        return frozenset()
    rows = await tx.rows(_SQL["of_jobs"], org, [dag for dag, _ in jobs], [job for _, job in jobs])
    marks = (
        {
            generation_id: origin.effective
            for generation_id, origin in (await origins(tx, list({r["generation_id"] for r in rows}))).items()
        }
        if rows
        else {}
    )
    return frozenset(
        (r["dag"], r["job"])
        for r in rows
        if r["reads_marked"]
        or marks.get(r["generation_id"], NO_MARKS).any_of([c.lower() for c in r["columns"]] or None)
    )


def _node(row: Mapping[str, object], declared: Declared | None) -> _Node:
    """`declared`: instead of what its dataset declares now."""
    definitions = (
        [declared]
        if declared is not None
        else [
            msgspec.convert(columns, list[DeclaredColumn])
            for columns in (row["declared"], row["served"])
            if columns is not None
        ]
    )
    names = dict.fromkeys(c.name.lower() for columns in definitions for c in columns)
    of_files: list[dict[str, str]] = row["columns"] or []  # type: ignore[assignment]
    names |= dict.fromkeys(c["name"].lower() for c in of_files)
    producers = msgspec.convert(row["producers"], list[_Producer])
    return _Node(tuple(definitions), tuple(names) or None, producers)


def _virtual_marks(node: _Node) -> bool:
    return any(c.pii for p in node.producers for columns in p.virtual_columns.values() for c in columns)


_Tables = Mapping[str, Table]
_VirtualMarks = Mapping[str, Marks]


def _computed(
    producer: _Producer, definition: JobDefinition, tables: _Tables, virtual_marks: _VirtualMarks
) -> Marks:
    """What a job computes."""
    return marks_of_output(
        producer.operator, definition, producer.output, producer.outputs, tables, virtual_marks
    )


def _derived(
    node: _Node,
    nodes: Mapping[UUID, _Node],
    marks_of: Callable[[_Producer, JobDefinition, _Tables, _VirtualMarks], Marks] = _computed,
) -> Marks:
    marks = node.derived
    for producer in node.producers:
        virtual_marks = {i: effective(NO_MARKS, [columns]) for i, columns in producer.virtual_columns.items()}
        for definition, reads in _ways(producer):
            tables: dict[str, Table] = {}
            for read in reads:
                table = nodes[read.generation_id].table.only(read.columns)
                tables[read.name] = tables[read.name] | table if read.name in tables else table
            marks |= marks_of(producer, definition, tables, virtual_marks)
    return marks


def _ways(producer: _Producer) -> list[tuple[JobDefinition, list[_Read]]]:
    """How a job computes its rows now, and how it did before its virtual inputs were others."""
    now = producer.definition.virtual
    ways = {}
    for virtual in [now, *(read.virtual for read in producer.past if read.name.startswith("#"))]:
        past = [r for r in producer.past if r.virtual == virtual or not r.name.startswith("#")]
        current = producer.inputs if virtual == now else [r for r in producer.inputs if r.name[0] != "#"]
        ways[repr(virtual)] = (replace(producer.definition, virtual=virtual), [*current, *past])
    return list(ways.values())
