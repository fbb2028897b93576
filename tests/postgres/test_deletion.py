"""A deleted DAG is gone in one transaction, unless others need it; its data goes with the garbage."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.control_plane import ControlPlane
from tests.dags import SOURCE, dag, job
from tests.postgres.test_versions import build
from traceplane.adapters.object_store_folder import FolderObjectStore
from traceplane.errors import Conflict, NotFound, TraceplaneError
from traceplane.registry.garbage import Policy, collect
from traceplane.wire.deploys import DeletedResponse, DeleteRequest
from traceplane.wire.queries import CatalogQuery

DAG = SOURCE + job("copy", "in", "mid")
READER = dag("other", job("read", "mid", "far"))
VIEW = """
version: 1
dag: views
jobs: []
datasets:
  seen: {storage: virtual, sql: "select * from mid"}
"""


async def delete(plane: ControlPlane, dag: str, *, force: bool = False) -> DeletedResponse:
    return await plane.api.deploys.delete(plane._call(DeleteRequest(dag, force)))


async def test_a_dag_that_is_not_there_is_told_with_the_one_that_was_meant(plane: ControlPlane) -> None:
    await plane.deploy(DAG)
    for wrong in (lambda: plane.rollback("mian"), lambda: delete(plane, "mian")):
        with pytest.raises(NotFound, match="did you mean 'main'") as refused:
            await wrong()
        assert (refused.value.code, refused.value.value) == ("dag.unknown", "mian")
    with pytest.raises(NotFound, match="traceplane versions main"):
        await plane.rollback("main", to=7)


async def test_a_deleted_dag_disappears_and_its_names_are_free(plane: ControlPlane) -> None:
    await plane.deploy(DAG)
    await plane.emit("in", range(3))
    await plane.run_all()
    await plane.emit("in", [7])
    assert (await delete(plane, "main")).datasets == ["in", "mid"]
    assert await plane.states() == {"completed": 3, "canceled": 1}
    for gone in (
        lambda: delete(plane, "main"),
        lambda: plane.rollback("main"),
        lambda: plane.emit("in", [9]),
    ):
        with pytest.raises(NotFound):
            await gone()
    assert (await plane.api.deploys.dags(plane._call(None))).dags == []
    assert (await plane.api.datasets(plane._call(None, query=CatalogQuery()))).datasets == []
    assert (await plane.status()).datasets == []
    renamed = DAG.replace("dag: main", "dag: second")
    await plane.deploy(renamed)
    await build(plane)
    await plane.emit("in", [1])
    assert await plane.run_all() == 1
    with pytest.raises(Conflict, match="second"):
        await plane.deploy(DAG)


@pytest.mark.parametrize(("reader", "named"), [(READER, "other/read reads mid"), (VIEW, "seen of views")])
async def test_a_dag_that_others_read_is_deleted_only_on_request(
    plane: ControlPlane, reader: str, named: str
) -> None:
    await plane.deploy(DAG)
    await plane.deploy(reader)
    with pytest.raises(TraceplaneError, match=named) as refused:
        await delete(plane, "main")
    assert refused.value.code == "dag.in_use"
    assert len((await plane.api.deploys.dags(plane._call(None))).dags) >= 1
    assert named in (await delete(plane, "main", force=True)).readers[0]


async def test_a_version_that_is_being_built_is_deleted_too(plane: ControlPlane) -> None:
    await plane.deploy(DAG)
    await plane.emit("in", range(3))
    await plane.run_all()
    assert (await plane.deploy(DAG.replace("basic:copy", "basic:other"))).building
    await delete(plane, "main")
    await build(plane)
    assert await plane.value("select count(*) from jobs where routed") == 0
    assert await plane.sql("select distinct state::text from dag_versions") == [("aborted",)]


async def test_the_data_of_a_deleted_dag_goes_with_the_garbage_after_its_grace(
    plane: ControlPlane, tmp_path: Path
) -> None:
    await plane.deploy(DAG)
    await plane.emit("in", range(3))
    await plane.run_all()
    await delete(plane, "main")
    store = FolderObjectStore(tmp_path)
    assert (await collect(plane.database, store, Policy(timedelta(hours=1)))).commits == 0
    assert (await collect(plane.database, store, Policy(timedelta(seconds=-1)))).commits == 3
    assert await plane.value("select count(*) from tasks") == 3
