"""Recomputes which producers are held; the decision itself is `model.backpressure`, a pure function."""

from __future__ import annotations

from dataclasses import dataclass

from traceplane import telemetry
from traceplane.model.backpressure import holds, pressure_of
from traceplane.postgres import backpressure
from traceplane.postgres.database import Database
from traceplane.runtime.process import Outcome


@dataclass(frozen=True, slots=True)
class Held(Outcome):
    released: int = 0
    changed: int = 0


class Backpressure:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run_once(self) -> Held:
        async with self._database.autocommit() as tx:
            if await backpressure.idle(tx):
                return Held()
        async with self._database.transaction("backpressure") as tx:
            if not await backpressure.one_at_a_time(tx):
                return Held()
            figures = await backpressure.figures(tx)
            pressures = [p for p in map(pressure_of, figures) if p is not None]
            held = holds(pressures, await backpressure.edges(tx) if pressures else [])
            names = await backpressure.names(tx, list({j for h in held for j in h.path})) if held else {}
            paths = [" ".join(names[j] for j in h.path) for h in held]
            released, changed = await backpressure.store(tx, pressures, held, paths)
        telemetry.gauge("jobs_held", len(held))
        return Held(released, changed)
