"""The thinnest complete path, on real processes: deploy, emit, run in a sandbox, commit, cascade."""

from __future__ import annotations

from pathlib import Path

from tests.dags import dag, job, source
from tests.platform import Platform

CHAIN = dag(
    "chain", source(), job("copy", "in", "mid"), job("add_one", "mid", "out", entrypoint="basic:add_one")
)


async def test_an_event_cascades_to_the_end_and_every_output_is_committed(
    database_url: str, tmp_path: Path
) -> None:
    async with Platform.start(database_url, tmp_path) as platform:
        assert (await platform.deploy(CHAIN)).changed
        assert not (await platform.deploy(CHAIN)).changed
        answer = await platform.emit("in", range(20))
        assert (answer.accepted, answer.duplicates) == (20, 0)
        answer = await platform.emit("in", range(10, 30))
        assert (answer.accepted, answer.duplicates) == (10, 10)
        assert await platform.settled() == {"completed": 60}
        rows = await platform.sql(
            "select d.dataset_id, count(*), sum(c.row_count)::int from dataset_commits c"
            " join generations using (generation_id) join datasets d using (dataset_uuid) group by 1 order by 1"
        )
        assert [tuple(r) for r in rows] == [("mid", 30, 30), ("out", 30, 30)]
        assert await platform.value("select count(*) from events") == 90
        assert {p.name: await p.stop() for p in platform.processes.values()} == {
            "dispatcher-1": 0,
            "gateway": 0,
            "worker-1": 0,
        }
