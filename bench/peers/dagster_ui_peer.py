"""Dagster's side of `bench.ui_dagster`: 500 assets, one of which has as many hours as our dataset has partitions.

Its webserver loads the definitions. Run as a module, it reports that each of the other assets was materialized.
"""

from __future__ import annotations

import dagster  # type: ignore[import-not-found, unused-ignore]

from bench.peers import ui_graph

HOURS = dagster.HourlyPartitionsDefinition(ui_graph.hour(0), end_date=ui_graph.hour(ui_graph.PARTITIONS))
LARGE = "r1"


def _asset(name: str, reads: list[str]) -> object:
    @dagster.asset(name=name, deps=reads, partitions_def=HOURS if name == LARGE else None)
    def nothing() -> None: ...

    return nothing


NODES = {f"j{job}": [f"r{dataset}" for dataset in ui_graph.reads(job)] for job in range(ui_graph.JOBS)}
NODES |= {f"r{job}": [f"j{job}"] for job in range(ui_graph.JOBS)}
definitions = dagster.Definitions(
    assets=[_asset(name, reads) for name, reads in NODES.items()],
    executor=dagster.in_process_executor,  # its default starts a process for each step
)

if __name__ == "__main__":
    with dagster.DagsterInstance.get() as instance:
        for node in NODES.keys() - {LARGE}:
            instance.report_runless_asset_event(dagster.AssetMaterialization(node))
