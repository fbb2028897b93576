"""The result of one task about everything, such as a query's, has rows without positions."""

from __future__ import annotations

from dataclasses import replace

from traceplane.gateway.coverage import last_position, view
from traceplane.model.edges import EVERYTHING
from traceplane.model.partitions import Partitions
from traceplane.postgres.coverage import Coverage

WHOLE = Coverage(*EVERYTHING, gap_count=0, gaps=(), dead=0, partitions=Partitions())


def test_it_has_no_first_or_last_position() -> None:
    assert view(WHOLE) is None
    assert last_position(EVERYTHING[1], WHOLE) == (None, None)
    dead = view(replace(WHOLE, dead=1))
    assert dead is not None
    assert (dead.dead, dead.first, dead.last) == (1, None, None)


def test_a_dataset_with_positions_has_them() -> None:
    held = replace(WHOLE, first=0, last=9)
    shown = view(held)
    assert shown is not None
    assert (shown.first, shown.last) == (0, 9)
    assert last_position(9, held) == (9, None)
