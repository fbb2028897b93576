"""What a dataset holds, as a strip of cells, in the public API."""

from __future__ import annotations

from typing import Annotated

import msgspec

from traceplane.wire.scalars import Text, Wire


class StripQuery(Wire, frozen=True):
    first: Text | None = None
    """A position or the name of a partition; unset: the first that the dataset has or is computing."""
    last: Text | None = None
    cells: Annotated[int, msgspec.Meta(ge=1, le=2000)] = 500
    """How many at most."""


class StripCell(Wire, frozen=True):
    present: int = 0
    """Positions that the dataset holds."""
    waiting: int = 0
    """Tasks that wait."""
    running: int = 0
    dead: int = 0
    """Dead tasks that nobody has acknowledged."""


class CoverageStrip(Wire, frozen=True):
    dataset: str
    cells: list[StripCell]
    """Empty if there is nothing yet."""
    first: int = 0
    last: int = 0
    per_cell: int = 1
    """Positions of each cell; the last one may have fewer."""
    names: list[str] = []
    """What each cell stands for, as people write it."""
    tasks_left_out: bool = False
    """Whether there are more tasks than were looked at."""
