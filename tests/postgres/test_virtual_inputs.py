"""Jobs that read virtual datasets: what wakes them, what rebuilds them, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.control_plane import ControlPlane, Held
from tests.dags import SOURCE, job
from tests.postgres.test_versions import served
from traceplane.errors import TraceplaneError

DATASETS = """
datasets:
  big: {storage: virtual, sql: "select x.n from a x where n > 10"}
  both: {storage: virtual, sql: "select n from big union all select n from b"}
"""


def reading(name: str, *reads: str) -> str:
    inputs = ", ".join(f"{{name: {name}_{i}, from: {{dataset: {read}}}}}" for i, read in enumerate(reads))
    return f"""
- name: {name}
  runtime: spark
  operator: sql
  inputs: [{inputs}]
  outputs: [{{dataset: {name}}}]
  config: {{query: "select * from {name}_0"}}
"""


MAIN = SOURCE.replace("jobs:", DATASETS + "jobs:") + job("a", "in", "a") + job("b", "in", "b")
MAIN += reading("report", "both")
OTHER = "version: 1\ndag: other\njobs:\n" + reading("copy", "big", "b")


async def spark_tasks(plane: ControlPlane) -> list[Held]:
    """All that there is to do, done; the tasks that Spark was handed."""
    handed: list[Held] = []
    for _ in range(20):
        built = await plane.builds.run_once()
        moved = await plane.meter()
        sent = await plane.send()
        held = [*await plane.claim(sent), *(spark := await plane.claim(sent, runtime="spark"))]
        handed += spark
        await plane.complete(*held)
        if not (held or moved or built.told or built.cut_over or built.canceled):
            return handed
    raise AssertionError("it did not come to rest")


def scopes(held: list[Held], name: str) -> list[int]:
    return sorted(h.task.scope.first for h in held if h.job.name == name and h.task.scope)


def inputs(held: Held) -> dict[str, int]:
    """The stored datasets that a task reads, and how many files of each."""
    return {i.dataset_id: len(f) for i, f in zip(held.job.inputs, held.task.input_files, strict=True)}


async def test_a_change_below_a_virtual_dataset_wakes_its_readers_with_the_scope_it_has_there(
    plane: ControlPlane,
) -> None:
    await plane.deploy(MAIN)
    await plane.deploy(OTHER)
    await plane.emit("in", range(3))
    handed = await spark_tasks(plane)
    assert set(scopes(handed, "report")) == set(scopes(handed, "copy")) == {0, 1, 2}
    last = [h for h in handed if h.job.name == "report"][-1]
    assert inputs(last) == {"a": 1, "b": 1}
    assert [view.name for view in last.job.views] == ["tp_d0_0", "tp_d0"]  # innermost first
    assert [(g.name, g.view) for g in last.job.given] == [("report_0", "tp_d0")]
    copied = [h for h in handed if h.job.name == "copy"][-1]
    assert [(g.name, g.view) for g in copied.job.given] == [("copy_0", "tp_d0"), ("copy_1", None)]
    assert {"copy_1", "#0"} == {i.name for i in copied.job.inputs}
    assert "`n` > 10" in copied.job.views[0].sql
    before = await pointer(plane, "report")

    # Other SQL is other data: its readers are built beside and cut over with it; those in other DAGs follow then.
    answer = await plane.deploy(MAIN.replace("n > 10", "n > 20"))
    assert answer.building
    assert "report (spark: sql): rebuilt, downstream of big" in answer.text
    assert "! DAG other, job copy reads big: it follows at the cutover" in answer.text
    assert await pointer(plane, "report") == before
    assert await plane.value("select definition->>'sql' from datasets where dataset_id = 'big'") == (
        "select x.n from a x where n > 10"
    )
    handed = await spark_tasks(plane)
    assert await active_of(plane, "main") == 2
    assert set(scopes(handed, "report")) == set(scopes(handed, "copy")) == {0, 1, 2}
    assert all("`n` > 20" in h.job.views[0].sql for h in handed)
    assert await pointer(plane, "report") != before
    assert await served(plane, "copy") == ["c:0", "c:1", "c:2"]

    # Another dataset below it is another input, also of readers elsewhere; going back is going back.
    await plane.deploy(MAIN.replace("from a x where n > 10", "from b x where n > 30"))
    handed = await spark_tasks(plane)
    assert {frozenset(inputs(h)) for h in handed} == {frozenset({"b"})}
    await plane.rollback("main", to=1)
    handed = await spark_tasks(plane)
    assert {tuple(sorted(inputs(h))) for h in handed if h.job.name == "copy"} == {("a", "b")}
    assert await pointer(plane, "report") == before

    # What comes meanwhile wakes everybody as before, and another look changes nothing.
    await plane.emit("in", [7])
    assert set(scopes(await spark_tasks(plane), "report")) == {7}
    assert not (await plane.deploy(MAIN.replace("n > 10", "n  >  10"))).changed


async def pointer(plane: ControlPlane, dataset: str) -> Any:
    return await plane.value("select current_generation_id from datasets where dataset_id = $1", dataset)


async def active_of(plane: ControlPlane, dag: str) -> int:
    return await plane.value(
        "select number from dags join dag_versions on dag_version_id = active_version_id where name = $1", dag
    )


async def test_what_cannot_be_a_virtual_dataset_or_its_reader_is_refused_and_nothing_is_deployed(
    plane: ControlPlane,
) -> None:
    async def refusal(text: str) -> str:
        with pytest.raises(TraceplaneError) as refused:
            await plane.deploy(text)
        problems = getattr(refused.value, "problems", ())
        return ", ".join(sorted({p.code for p in problems})) or refused.value.code

    def with_datasets(text: str) -> str:
        return SOURCE.replace("jobs:", f"datasets: {{{text}}}\njobs:")

    through = with_datasets("v: {storage: virtual, sql: select n from report}") + reading("report", "v")
    for text, code in {
        through: "spec.cycle",
        MAIN.replace("from a x", "from both x"): "spec.cycle",
        MAIN.replace("big: {storage: virtual, ", "big: {"): "spec.sql_needs_virtual, spec.unproduced_dataset",
        with_datasets("v: {storage: virtual}"): "spec.virtual_needs_sql",
        with_datasets("in: {storage: virtual, sql: select n from x}"): "spec.virtual_produced",
        MAIN.replace("big: {", "big: {position: n, "): "spec.virtual_not_stored",
        MAIN.replace("from a x", "from a x for version as of 3"): "spec.sql_refused",
        MAIN.replace("from a x", "from nowhere x"): "deploy.unknown_dataset",
        MAIN + job("c", "big", "c"): "deploy.virtual_input_unsupported",
    }.items():
        assert await refusal(text) == code
    assert await plane.value("select count(*) from datasets") == 0

    await plane.deploy(MAIN)
    looping = "version: 1\ndag: other\ndatasets:\n  w: {storage: virtual, sql: select n from big}\njobs: []\n"
    await plane.deploy(looping)
    assert await refusal(MAIN.replace("from a x", "from w x")) == "virtual.cycle"
    assert await refusal(MAIN + reading("again", "w")) == "deploy.virtual_loops_back"
    third = looping.replace("dag: other", "dag: third").replace("w:", "u:").replace("from big", "from d")
    await plane.deploy(SOURCE.replace("dag: main", "dag: far").replace("dataset: in", "dataset: d"))
    await plane.deploy(third)
    await plane.deploy(MAIN + reading("again", "u"))
    await spark_tasks(plane)
    assert await refusal(third.replace("from d", "from big")) == "deploy.virtual_loops_back"
    assert await active_of(plane, "main") == 2


async def test_a_job_follows_when_another_dag_stores_a_dataset_that_was_virtual_and_back(
    plane: ControlPlane,
) -> None:
    await plane.deploy(MAIN)
    await plane.deploy(OTHER)
    await plane.emit("in", range(2))
    await spark_tasks(plane)
    virtual = '  big: {storage: virtual, sql: "select x.n from a x where n > 10"}\n'
    assert virtual in MAIN
    await plane.deploy(MAIN.replace(virtual, "") + job("big", "in", "big"))
    handed = await spark_tasks(plane)
    assert await active_of(plane, "main") == 2
    stored = [h for h in handed if h.job.name == "copy"][-1]
    assert inputs(stored) == {"b": 1, "big": 1}
    assert not stored.job.views
    assert not stored.job.given

    await plane.rollback("main")
    handed = await spark_tasks(plane)
    virtual_again = [h for h in handed if h.job.name == "copy"][-1]
    assert inputs(virtual_again) == {"a": 1, "b": 1}
    assert [(g.name, g.view) for g in virtual_again.job.given] == [("copy_0", "tp_d0"), ("copy_1", None)]
