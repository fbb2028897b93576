"""Which outputs one COPY writes: as many as possible, and never two at the same position."""

from __future__ import annotations

import io
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from traceplane.dispatcher.leases.hot_writes import HotRows, planned
from traceplane.model.hot_table import HotColumn, HotTable

COLUMNS = (HotColumn("block", "bigint"), HotColumn("n", "int"), HotColumn("name", "string"))
KEY = ("block", "n")
REPLACED = HotTable(UUID(int=1), COLUMNS, "block")
UPSERTED = HotTable(UUID(int=2), COLUMNS, "block", unique_key=KEY, key=KEY)
EXTENDED = HotTable(UUID(int=3), COLUMNS, "block", unique_key=KEY)


def rows(table: HotTable, start: int, end: int, size: int = 1) -> HotRows:
    return HotRows(uuid4(), table, start, end, io.BytesIO(), size, 1)


def test_outputs_of_different_positions_are_written_together() -> None:
    outputs = [rows(REPLACED, n, n) for n in (3, 1, 2)]
    (write,) = planned(outputs, ())
    assert write.outputs == outputs


def test_rows_whose_positions_are_empty_have_new_keys() -> None:
    new, known, other = rows(UPSERTED, 1, 1), rows(UPSERTED, 2, 2), rows(UPSERTED, 3, 3)
    writes = planned([new, known, other], {new.range, other.range})
    assert [(w.outputs, w.keys_are_new) for w in writes] == [([new, other], True), ([known], False)]


def test_positions_that_were_just_written_have_known_keys() -> None:
    first, again = rows(UPSERTED, 1, 5), rows(UPSERTED, 5, 6)
    writes = planned([first, again], {first.range, again.range})
    assert [(w.outputs, w.keys_are_new) for w in writes] == [([first], True), ([again], False)]


def test_rows_that_may_be_skipped_are_counted_alone() -> None:
    assert len(planned([rows(EXTENDED, n, n) for n in range(3)], ())) == 3


def test_one_by_one_every_refusal_has_its_task() -> None:
    assert len(planned([rows(REPLACED, n, n) for n in range(3)], (), one_by_one=True)) == 3


def test_a_statement_does_not_write_too_much() -> None:
    assert len(planned([rows(REPLACED, n, n, size=10 << 20) for n in range(3)], ())) == 3


spans = st.tuples(st.integers(0, 20), st.integers(0, 4)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(st.tuples(st.sampled_from([REPLACED, UPSERTED, EXTENDED]), spans), max_size=12), st.data())
def test_what_overlaps_is_written_in_its_order(
    given_: list[tuple[HotTable, tuple[int, int]]], data: st.DataObject
) -> None:
    outputs = [rows(table, *span) for table, span in given_]
    empty = data.draw(st.sets(st.sampled_from([o.range for o in outputs]))) if outputs else set()
    writes = planned(outputs, empty)
    turn = {o.task_id: number for number, write in enumerate(writes) for o in write.outputs}
    assert len(turn) == len(outputs)
    for later, output in enumerate(outputs):
        for earlier in outputs[:later]:
            if earlier.table is output.table and earlier.start <= output.end and output.start <= earlier.end:
                assert turn[earlier.task_id] < turn[output.task_id]
                assert not writes[turn[output.task_id]].keys_are_new
